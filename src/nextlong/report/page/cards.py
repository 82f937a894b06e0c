"""Cards: what the report measures, each with its chart, its numbers, and how to read them.

In:  `Stats.as_json()` of one or several runs, and a name a run. Out: cards by section of the report; `nextlong stats` prints
their tables. The chart of a card, "" where there is nothing to draw, and its table show the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.pipeline import STEP_TITLES
from nextlong.recipe.keys import NEGATIVES
from nextlong.report.page.numbers import Cell, TableRow, bins, cell, entries, entry, filled, row, spoken_bin, spread
from nextlong.report.page.words import Plain, is_extended, reading

_MAX_SOURCES: Final = 12  # of a chart
_SHOWN_SOURCES: Final = 40  # of a table
_LEAST_SHARE: Final = 0.01  # of the seconds of a run, of a step that is drawn
_DROPPED_EXAMPLES: Final = 3  # documents, by reason
_ROLES: Final = {  # name and colour, as in the strip
    "meta": ("meta-document", "own"),
    "negative": ("negatives", "negative"),
    "document": ("documents", "plain1"),
    "separator": ("separators and special tokens", "between"),
}


class Table(NamedTuple):
    """Rows under a caption; `heads` names the columns of numbers."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[TableRow]


class Card(NamedTuple):
    """A chart under a heading, its numbers in tables that open on request, and how to read it."""

    name: str
    heading: str
    chart: Markup
    tables: Sequence[Table]
    reading: str


def sections(plain: Plain, names: Sequence[str]) -> dict[str, list[Card]]:
    """Return the cards of each section of the report that hold a value of at least one run."""
    made: dict[str, list[Card]] = {}
    for section, topics in {"hardness": _hardness, "content": _content, "removal": _removal}.items():
        made[section] = [
            Card(name, heading, chart, [Table(heading, names, rows)], reading(name, plain, names))
            for name, heading, chart, found in topics(plain, names)
            if (rows := filled(found))
            and (name != "source-cosine" or len(rows) > 1)  # a mean of one source is that of all
        ]
    hubs, of_steps = [], []
    for name, stats in zip(names, plain, strict=True):
        of = f" of {name}" if len(plain) > 1 else ""
        uses = [
            TableRow(f"{hub['source_id']} · chunk {hub['ordinal']}", (cell(stats, ("reuse", "hubs", place, "uses")),))
            for place, hub in enumerate(stats["reuse"]["hubs"])
        ]
        costs = [
            TableRow(
                f"{STEP_TITLES.get(step['step'], 'write the files')} ({step['step']})",
                (
                    cell(stats, ("steps", place, "seconds"), "{:,.1f} s"),
                    cell(stats, ("steps", place, "peak_bytes"), "{:,.0f} MB", unit=1e6),
                    cell(stats, ("steps", place, "bytes"), "{:,.1f} MB", unit=1e6),
                ),
            )
            for place, step in enumerate(stats["steps"])
        ]
        hubs += [Table(f"Most-used chunks{of}", ["uses"], uses)] if uses else []
        caption = f"Time, peak memory of one task, and disk space by step{of}"
        of_steps.append(Table(caption, ("time", "memory", "disk"), costs))
    if hubs:
        made["content"].append(Card("hubs", "Most-used chunks", Markup(), hubs, ""))
    cost = Card(
        "cost", "Time, memory and disk by step", _seconds(plain, names), of_steps, reading("cost", plain, names)
    )
    made["removal"].append(cost)
    return made


_Topic = tuple[str, str, Markup, Iterable[TableRow]]  # name, heading, chart, numbers


def _hardness(plain: Plain, names: Sequence[str]) -> list[_Topic]:
    """Return what is measured of similarity, distance and context."""
    what = "negatives" if is_extended(plain) else "documents"
    part = "chunk" if is_extended(plain) else "part"
    compared = "; ".join(
        dict.fromkeys(
            f"{'negatives' if is_extended([stats]) else 'documents'} to {stats['scores']}"
            for stats in plain
            if stats["scores"]
        )
    )
    random = [
        one._replace(
            cells=tuple(c._replace(text="1.0000 (the same text twice)") if c.text == "1.0000" else c for c in one.cells)
        )
        for one in spread(plain, "random_similarity", "{:.4f}", of="random pairs: ")
    ]
    ranks = [
        entry(f"rank {rank:,}", plain, ("similarity_by_rank",), places, "mean", "{:.4f} (n = {count:,})")
        for (rank,), places in entries(plain, "similarity_by_rank", by=("rank",)).items()
    ]
    sources = [name for name in _sources(plain) if any(name in stats["similarity_by_source"] for stats in plain)]
    by_source = [
        row(name, plain, ("similarity_by_source", name, "mean"), "{:.4f} (n = {count:,})")
        for name in sources[:_SHOWN_SOURCES]
    ]
    means = Markup()
    if len(sources) > 1:
        held = [stats["similarity_by_source"] for stats in plain]
        shown = sources[:_MAX_SOURCES]
        values = [[max(0.0, of_run[name]["mean"]) if name in of_run else 0.0 for name in shown] for of_run in held]
        means = _bars(names, shown, values, label="mean cosine", unit="", form="{:.4f}")
    return [
        ("rank", f"Mean cosine by rank: {compared}", _by_rank(plain, names, what), [*ranks, *random]),
        (
            "similarity",
            f"Distribution of the cosine: {compared}",
            _cosines(plain, names, what),
            [*spread(plain, "similarity", "{:.4f}"), *bins(plain, "similarity_histogram", form="from {}")],
        ),
        (
            "source-cosine",
            f"Mean cosine by source of the {'meta-document' if part == 'chunk' else 'document'}",
            means,
            by_source,
        ),
        (
            "distance",
            f"Tokens from a {part} to the next {part} of its document",
            *_distribution(
                plain, names, "distance_tokens", "distance_histogram", what=("tokens in between", "distances", "tokens")
            ),
        ),
        (
            "exposure",
            "Effective left context of a predicted token",
            # Of several attention masks the first, the recipe's own.
            _histogram(
                [{"exposure": stats["exposure"][0]["histogram"] if stats["exposure"] else []} for stats in plain],
                names,
                "exposure",
                label="tokens that it can attend to",
                of="predicted tokens",
            ),
            _attended(plain),
        ),
    ]


def _attended(plain: Plain) -> list[TableRow]:
    """Return the tokens before a predicted token, and how evenly devices that share a row work, by attention mask."""
    masks = {tuple(one["mask"] for one in stats["exposure"]) for stats in plain}
    shown = next(iter(masks)) if len(masks) == 1 else ("",)
    rows = []
    for place, mask in enumerate(shown):
        of = f"{mask} attention: " if len(shown) > 1 else ""
        rows.append(row(f"{of}mean tokens before", plain, ("exposure", place, "mean"), "{:,.0f}"))
        rows += bins(plain, "exposure", place, "histogram", form=f"{of}{{}} tokens before")
    for (mask, ranks), places in entries(plain, "attention_work", by=("mask", "ranks")).items():
        name = f"attention work, busiest of {ranks} devices, {mask} attention (1: even)"
        rows.append(entry(name, plain, ("attention_work",), places, "mean", "{:.2f} (at most {worst:.2f})"))
    return rows


def _content(plain: Plain, names: Sequence[str]) -> list[_Topic]:
    """Return what is measured of the tokens, and of the chunks and documents that they come from."""
    by_role = [sum(stats["tokens_by_role"].values()) for stats in plain]
    roles = [
        row(f"tokens: {role}", plain, ("tokens_by_role", role), "{:,} ({share:.2%})", totals=by_role)
        for role in dict.fromkeys(role for stats in plain for role in stats["tokens_by_role"])
    ]
    of_chunk, of_document = (
        ("tokens of a chunk", "chunks", "tokens"),
        ("characters of a document", "documents", "characters"),
    )
    chunks = _distribution(plain, names, "chunk_tokens", "chunk_tokens_histogram", what=of_chunk)
    chart, characters = _distribution(plain, names, "document_chars", "document_chars_histogram", what=of_document)
    each = spread(plain, "documents_per_sequence", "{:,.1f}", of="documents per sequence: ")
    return [
        ("sources", "Sources of the sequences and of the corpus", *_by_source(plain, names)),
        (
            "roles",
            "Tokens by role",
            _roles(plain, names),
            [row("share of the meta-documents", plain, ("meta_share",), "{:.1%}"), *roles],
        ),
        (
            "reuse",
            f"How often a chunk is used{' as a negative' if is_extended(plain) else ''}",
            _histogram(
                [stats["reuse"] for stats in plain],
                names,
                "histogram",
                label="uses of a chunk",
                of="chunks used",
                part="chunks",
            ),
            [
                row("distinct chunks", plain, ("reuse", "distinct_chunks")),
                row("uses of a chunk, mean", plain, ("reuse", "mean"), "{:.2f}"),
                row("uses of a chunk, maximum", plain, ("reuse", "max")),
                *bins(plain, "reuse", "histogram", form="chunks used {}×", part="chunks"),
            ],
        ),
        ("chunks", "Length of the chunks, in tokens", *chunks),
        ("documents", "Length of the corpus's documents, in characters", chart, [*characters, *each]),
    ]


def _distribution(
    plain: Plain, names: Sequence[str], key: str, histogram: str, *, what: tuple[str, str, str]
) -> tuple[Markup, list[TableRow]]:
    """Return a histogram and its numbers; `what`: what is counted, of what each count is one, and the unit."""
    label, of, unit = what
    rows = [*spread(plain, key, "{:,.0f}"), *bins(plain, histogram, form=f"{{}} {unit}")]
    return _histogram(plain, names, histogram, label=label, of=of), rows


def _removal(plain: Plain, names: Sequence[str]) -> list[_Topic]:
    """Return what became of the drafts, and what was filtered out or must be 0."""
    extended = is_extended(plain)
    ways = {
        "documents": "documents in the corpus",
        "eligible": "documents that can be extended" if extended else "documents that can be used",
        "asked": "sequences requested",
        "drafts": "drafts of a sequence",
        "kept": "kept",
        "spare": "spare, built",
        "untried": "spare, not built",
    }
    yields = [row(name, plain, ("yields", key)) for key, name in ways.items()]
    for reason in dict.fromkeys(reason for stats in plain for reason in stats["yields"]["dropped"]):
        yields.append(row(f"dropped: {reason}", plain, ("yields", "dropped", reason)))
        examples = (("yields", "dropped_examples", reason, number) for number in range(_DROPPED_EXAMPLES))
        yields += [row("example", plain, path) for path in examples]
    files = dict.fromkeys(file for stats in plain for file in stats["contaminated"] or {})
    sources = dict.fromkeys(source for stats in plain for source in stats["keywords"] or {})
    # A control repeats each meta-chunk by design.
    repeats = [
        name is not None and NEGATIVES[name].repeat_meta_chunk for name in (stats["negatives"] for stats in plain)
    ]
    ought = "by design" if all(repeats) else "must be 0"
    filtered = [
        row("near-duplicate negatives", plain, ("near_duplicates",)),
        row("of these, because of a shared 100-word passage", plain, ("repeated_passages",)),
        row("near-duplicate documents, by the method", plain, ("near_duplicate_documents",)),
        *(
            row(
                f"documents of {source} with keywords",
                plain,
                ("keywords", source, "with_keywords"),
                "{:,} of {documents:,}",
            )
            for source in sources
        ),
        row("documents whose keywords no other document has", plain, ("unshared_keywords",)),
        row(
            "documents split into parts with others in between",
            plain,
            ("in_parts", "in_parts"),
            "{:,} of {documents:,}",
        ),
        row("document tokens cut off at the ends of sequences", plain, ("cut_off", "tokens"), "{:,} of {of_tokens:,}"),
        *(row(f"chunks that share text with {file}", plain, ("contaminated", file)) for file in files),
        row(f"negatives from the sequence's own document ({ought})", plain, ("own_document_negatives",)),
        row(f"chunks that occur twice in a sequence ({ought})", plain, ("repeated_chunks",)),
    ]
    held = [stats["yields"] for stats in plain]
    parts = {
        ("kept", "run0"): [of["kept"] for of in held],
        ("spare", "plain0"): [of["spare"] + of["untried"] for of in held],
        ("dropped", "run1"): [sum(of["dropped"].values()) for of in held],
    }
    outcomes = [Series(*named, values) for named, values in parts.items() if any(values)]
    chart = charts.bars(names if len(names) > 1 else [""], outcomes, label="drafts of a sequence", stacked=True)
    return [
        ("yield", "From documents to sequences", chart, yields),
        ("near", "Near-duplicates and leaks", Markup(), filtered),
    ]


def _by_rank(plain: Plain, names: Sequence[str], what: str) -> Markup:
    """Draw the mean cosine at each rank (the paper's figure on choosing negatives), above that of random pairs."""
    lines = [
        [
            Point(one["rank"], one["mean"], f"{name}rank {one['rank']:,}: {one['mean']:.4f} (n = {one['count']:,})")
            for one in stats["similarity_by_rank"]
        ]
        for name, stats in _prefixed(plain, names)
    ]
    series = _series(names if len(names) > 1 else [what], lines)
    if ranks := [point.x for line in lines for point in line]:
        for mean in dict.fromkeys(stats["random_similarity"]["mean"] for stats in plain if stats["random_similarity"]):
            ends = [Point(rank, mean, f"random pairs of chunks: {mean:.4f}") for rank in (min(ranks), max(ranks))]
            series.append(Series("random pairs of chunks", "plain1", points=ends))
    return charts.lines(series, x_label="rank", y_label="mean cosine", scale="log")


def _cosines(plain: Plain, names: Sequence[str], what: str) -> Markup:
    """Draw how the cosines are distributed."""
    lines = []
    for name, stats in _prefixed(plain, names):
        held = [(one["least"], one["count"]) for one in stats["similarity_histogram"]]
        total = max(1, sum(count for _, count in held))
        tip = f"{name}{{:.2f}} to {{:.2f}}: {{:,}}"
        lines.append(
            [Point(low + 0.025, 100 * count / total, tip.format(low, low + 0.05, count)) for low, count in held]
        )
    return charts.lines(_series(names, lines), x_label="cosine, in steps of 0.05", y_label=f"percent of the {what}")


def _histogram(plain: Plain, names: Sequence[str], key: str, *, label: str, of: str, part: str = "count") -> Markup:
    """Draw a histogram as bars, in percent `of` what it counts."""
    edges = entries(plain, key, by=("least", "most"))
    rows = []
    for number, stats in enumerate(plain):
        counts = [0 if (place := places[number]) is None else stats[key][place][part] for places in edges.values()]
        rows.append([100 * count / max(1, sum(counts)) for count in counts])
    groups = [spoken_bin(*edge) for edge in edges]
    return _bars(names, groups, rows, label=f"percent of the {of}", y_label=label, unit=" %", form="{:.1f}")


def _by_source(plain: Plain, names: Sequence[str]) -> tuple[Markup, list[TableRow]]:
    """Return the tokens of each source beside its characters in the corpus, the largest first; no chart of one source."""
    every = _sources(plain)
    by_source, corpus = ([stats[key] for stats in plain] for key in ("tokens_by_source", "corpus_by_source"))
    totals, of_corpus = ([sum(one.values()) for one in held] for held in (by_source, corpus))
    rows = [
        found
        for name in every[:_SHOWN_SOURCES]
        for found in (
            row(f"{name}: tokens", plain, ("tokens_by_source", name), "{:,} ({share:.1%})", totals=totals),
            row(
                f"{name}: characters in the corpus",
                plain,
                ("corpus_by_source", name),
                "{:,} ({share:.1%})",
                totals=of_corpus,
            ),
        )
    ]
    if rest := every[_SHOWN_SOURCES:]:
        sums = (sum(one.get(name, 0) for name in rest) for one in by_source)
        rows.append(TableRow(f"{len(rest):,} more sources together", tuple(Cell(f"{total:,}") for total in sums)))
    shown = every[:_MAX_SOURCES]
    if len(shown) == len(plain) == 1:
        return Markup(), rows

    def percent(counts: Mapping[str, int]) -> list[float]:
        return [100 * counts.get(name, 0) / max(1, sum(counts.values())) for name in shown]

    labels = names if len(plain) > 1 else ["tokens of the sequences"]
    series = [Series(name, f"run{n}", percent(of)) for n, (name, of) in enumerate(zip(labels, by_source, strict=True))]
    if all(one == corpus[0] for one in corpus):
        series.append(Series("characters of the corpus", "plain1", percent(corpus[0])))
    return charts.bars(shown, series, label="percent", unit=" %", form="{:.1f}"), rows


def _sources(plain: Plain) -> list[str]:
    """Return every source, the one with most tokens first."""
    total: dict[str, int] = {}
    for stats in plain:
        for name, tokens in stats["tokens_by_source"].items():
            total[name] = total.get(name, 0) + tokens
    return sorted(total, key=lambda name: (-total[name], name))


def _roles(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw what the tokens are, in the strip's colours."""
    groups: dict[str, list[float]] = {}
    for role in dict.fromkeys(role for stats in plain for role in stats["tokens_by_role"]):
        sums = groups.setdefault(role if role in _ROLES else "separator", [0.0] * len(plain))
        for number, stats in enumerate(plain):
            sums[number] += 100 * stats["tokens_by_role"].get(role, 0) / max(1, stats["tokens"])
    series = [Series(*_ROLES[role], values) for role, values in groups.items()]
    return charts.bars(
        names if len(names) > 1 else [""], series, label="percent of the tokens", unit=" %", form="{:.2f}", stacked=True
    )


def _seconds(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw the seconds of the steps that take at least 1 % of the time of a run."""
    held = [{step["step"]: step["seconds"] or 0.0 for step in stats["steps"]} for stats in plain]
    steps = dict.fromkeys(
        name for of_run in held for name, taken in of_run.items() if taken >= _LEAST_SHARE * sum(of_run.values())
    )
    rows = [[of_run.get(name, 0.0) for name in steps] for of_run in held]
    titles = [STEP_TITLES.get(name, f"write {name}") for name in steps]
    return _bars(names, titles, rows, label="seconds", unit=" s", form="{:,.1f}")


def _bars(
    names: Sequence[str],
    groups: Sequence[str],
    rows: Sequence[Sequence[float]],
    *,
    label: str,
    unit: str,
    form: str,
    y_label: str = "",
) -> Markup:
    series = [Series(name, f"run{number}", row) for number, (name, row) in enumerate(zip(names, rows, strict=True))]
    return charts.bars(groups, series, label=label, y_label=y_label, unit=unit, form=form)


def _series(names: Sequence[str], lines: Sequence[Sequence[Point]]) -> list[Series]:
    return [
        Series(name, f"run{number}", points=line) for number, (name, line) in enumerate(zip(names, lines, strict=True))
    ]


def _prefixed(plain: Plain, names: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each run with what its tooltips begin with: its name, where there are several."""
    return [(f"{name}, " if len(names) > 1 else "", stats) for name, stats in zip(names, plain, strict=True)]
