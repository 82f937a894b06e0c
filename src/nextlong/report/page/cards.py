"""Cards: what the report measures, each with its chart, its numbers, and how to read them.

In:  the `Numbers` of one or several runs. Out: cards by section of the report; `nextlong stats` prints their tables. The chart
of a card ("" if there is nothing to draw) and its table show the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.pipeline import STEP_TITLES
from nextlong.recipe.keys import NEGATIVES
from nextlong.report.page.words import (
    LABELS,
    Cell,
    Numbers,
    TableRow,
    cell,
    filled,
    is_extended,
    reading,
    spoken_bin,
    value_at,
)

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


def sections(of: Numbers) -> dict[str, list[Card]]:
    """Return the cards of each section of the report that hold a value of at least one run."""
    made: dict[str, list[Card]] = {}
    for section, topics in {
        "hardness": _hardness,
        "content": _content,
        "removal": _removal,
    }.items():
        made[section] = [
            Card(
                name,
                heading,
                chart,
                [Table(heading, of.names, rows)],
                reading(name, of.plain, of.names),
            )
            for name, heading, chart, found in topics(of)
            if (rows := filled(found))
            and (
                name != "source-cosine" or len(rows) > 1
            )  # a mean of one source is that of all
        ]
    hubs, of_steps = [], []
    for name, stats in zip(of.names, of, strict=True):
        of_run = f" of {name}" if len(of.names) > 1 else ""
        names = [
            f"{hub['source_id']} · chunk {hub['ordinal']}"
            for hub in stats["chunks"]["reuse"]["hubs"]
        ]
        uses = [
            TableRow(hub, (cell(stats, ("chunks", "reuse", "hubs", n, "uses")),))
            for n, hub in enumerate(names)
        ]
        forms = (
            ("seconds", "{:,.1f} s", 1),
            ("peak_bytes", "{:,.0f} MB", 1e6),
            ("bytes", "{:,.1f} MB", 1e6),
        )
        costs = [
            TableRow(
                f"{STEP_TITLES.get(step['step'], 'write the files')} ({step['step']})",
                tuple(
                    cell(stats, ("steps", place, key), form, unit=unit)
                    for key, form, unit in forms
                ),
            )
            for place, step in enumerate(stats["steps"])
        ]
        hubs += [Table(f"Most-used chunks{of_run}", ["uses"], uses)] if uses else []
        caption = f"Time, peak memory of one task, and disk space by step{of_run}"
        of_steps.append(Table(caption, ("time", "memory", "disk"), costs))
    if hubs:
        made["content"].append(Card("hubs", "Most-used chunks", Markup(), hubs, ""))
    read = reading("cost", of.plain, of.names)
    made["removal"].append(
        Card("cost", "Time, memory and disk by step", _seconds(of), of_steps, read)
    )
    return made


_Topic = tuple[str, str, Markup, Iterable[TableRow]]  # name, heading, chart, numbers


def _hardness(of: Numbers) -> list[_Topic]:
    what, part, owner = (
        ("negatives", "chunk", "meta-document")
        if of.is_extended
        else ("documents", "part", "document")
    )
    of_scores = (
        (
            stats["setting"]["scores"],
            "negatives" if is_extended([stats]) else "documents",
        )
        for stats in of
    )
    compared = "; ".join(
        dict.fromkeys(f"{kind} to {scores}" for scores, kind in of_scores if scores)
    )
    pairs = of.spread("similarity", "random", form="{:.4f}", of="random pairs: ")
    twice = {"1.0000": "1.0000 (the same text twice)"}
    random = [
        row._replace(
            cells=tuple(c._replace(text=twice.get(c.text, c.text)) for c in row.cells)
        )
        for row in pairs
    ]
    with_count = "{:.4f} (n = {count:,})"
    ranks = [
        of.row(
            f"rank {rank:,}", "similarity", "by_rank", places, "mean", form=with_count
        )
        for (rank,), places in of.entries("similarity", "by_rank", by=("rank",)).items()
    ]
    means_by_source = [value_at(stats, "similarity.by_source") or {} for stats in of]
    sources = [
        name for name in _sources(of) if any(name in means for means in means_by_source)
    ]
    shown, means = sources[:_SHOWN_SOURCES], Markup()
    by_source = [
        of.row(name, "similarity", "by_source", name, "mean", form=with_count)
        for name in shown
    ]
    if len(sources) > 1:
        shown = sources[:_MAX_SOURCES]
        values = [
            [max(0.0, by[name]["mean"]) if name in by else 0.0 for name in shown]
            for by in means_by_source
        ]
        means = charts.bars(
            shown, _series(of.names, values=values), label="mean cosine", form="{:.4f}"
        )
    # Of several attention masks the first, the recipe's own.
    label, counted = "tokens that its attention can reach", "predicted tokens"
    context = _histogram(
        of, "attention", "exposure", 0, "histogram", label=label, counted=counted
    )
    cosines = [
        *of.spread("similarity", "cosine", form="{:.4f}"),
        *of.bins("similarity", "cosine", "histogram", form="from {}"),
    ]
    distances = _distribution(
        of,
        "distance_tokens",
        label="tokens in between",
        counted="distances",
        unit="tokens",
    )
    return [
        (
            "rank",
            f"Mean cosine by rank: {compared}",
            _by_rank(of, what),
            [*ranks, *random],
        ),
        (
            "similarity",
            f"Distribution of the cosine: {compared}",
            _cosines(of, what),
            cosines,
        ),
        ("source-cosine", f"Mean cosine by source of the {owner}", means, by_source),
        (
            "distance",
            f"Tokens from a {part} to the next {part} of its document",
            *distances,
        ),
        (
            "exposure",
            "Effective left context of a predicted token",
            context,
            _attended(of),
        ),
    ]


def _attended(of: Numbers) -> list[TableRow]:
    """Return the tokens before a predicted token, and how evenly devices that share a row work, by attention mask."""
    masks = {
        tuple(one["mask"] for one in stats["attention"]["exposure"]) for stats in of
    }
    shown = next(iter(masks)) if len(masks) == 1 else ("",)
    rows = []
    for place, mask in enumerate(shown):
        of_mask = f"{mask} attention: " if len(shown) > 1 else ""
        rows.append(
            of.row(
                f"{of_mask}mean tokens before",
                "attention",
                "exposure",
                place,
                "mean",
                form="{:,.0f}",
            )
        )
        rows += of.bins(
            "attention",
            "exposure",
            place,
            "histogram",
            form=f"{of_mask}{{}} tokens before",
        )
    for (mask, ranks), places in of.entries(
        "attention", "work", by=("mask", "ranks")
    ).items():
        name = f"attention work, busiest of {ranks} devices, {mask} attention (1: even)"
        rows.append(
            of.row(
                name,
                "attention",
                "work",
                places,
                "mean",
                form="{:.2f} (at most {worst:.2f})",
            )
        )
    return rows


def _content(of: Numbers) -> list[_Topic]:
    by_role = [sum(stats["tokens"]["by_role"].values()) for stats in of]
    roles = [
        of.row(
            f"tokens: {role}",
            "tokens",
            "by_role",
            role,
            form="{:,} ({share:.2%})",
            totals=by_role,
        )
        for role in dict.fromkeys(
            role for stats in of for role in stats["tokens"]["by_role"]
        )
    ]
    chunks = _distribution(
        of,
        "chunks",
        "tokens",
        label="tokens of a chunk",
        counted="chunks",
        unit="tokens",
    )
    chart, characters = _distribution(
        of,
        "corpus",
        "document_chars",
        label="characters of a document",
        counted="documents",
        unit="characters",
    )
    each = of.spread(
        "documents", "per_sequence", form="{:,.1f}", of="documents per sequence: "
    )
    reuse = ("chunks", "reuse")
    uses = [
        of.row("distinct chunks", *reuse, "distinct_chunks"),
        of.row("uses of a chunk, mean", *reuse, "mean", form="{:.2f}"),
        of.row("uses of a chunk, maximum", *reuse, "max"),
        *of.bins(*reuse, "histogram", form="chunks used {}×", part="chunks"),
    ]
    used = _histogram(
        of,
        *reuse,
        "histogram",
        label="uses of a chunk",
        counted="chunks used",
        part="chunks",
    )
    meta_chunks = _histogram(
        of,
        "meta_chunks",
        "per_sequence",
        "histogram",
        label="meta-chunks of a sequence",
        counted="sequences",
    )
    after_last = [
        of.row(
            "tokens after the last meta-chunk",
            "meta_chunks",
            "after_last",
            "share",
            form="{:.1%}",
        ),
        of.row(
            "short last meta-chunks",
            "meta_chunks",
            "after_last",
            "short",
            form="{:,} (fewer than {short_tokens} tokens)",
        ),
        *of.spread(
            "meta_chunks",
            "per_sequence",
            form="{:,.1f}",
            of="meta-chunks per sequence: ",
        ),
        *of.bins("meta_chunks", "per_sequence", "histogram", form="{} meta-chunks"),
    ]
    share = of.row("share of the meta-documents", "tokens", "meta_share", form="{:.1%}")
    return [
        ("sources", "Sources of the sequences and of the corpus", *_by_source(of)),
        ("roles", "Tokens by role", _roles(of), [share, *roles]),
        ("meta-chunks", "Meta-chunks per sequence", meta_chunks, after_last),
        (
            "reuse",
            f"How often a chunk is used{' as a negative' if of.is_extended else ''}",
            used,
            uses,
        ),
        ("chunks", "Length of the chunks, in tokens", *chunks),
        (
            "documents",
            "Length of the corpus's documents, in characters",
            chart,
            [*characters, *each],
        ),
    ]


def _distribution(
    of: Numbers, *path: str, label: str, counted: str, unit: str
) -> tuple[Markup, list[TableRow]]:
    """Return a histogram and its numbers; `label` says what is measured, of what each count is one, and in which unit."""
    rows = [
        *of.spread(*path, form="{:,.0f}"),
        *of.bins(*path, "histogram", form=f"{{}} {unit}"),
    ]
    return _histogram(of, *path, "histogram", label=label, counted=counted), rows


def _removal(of: Numbers) -> list[_Topic]:
    used = "extended" if of.is_extended else "used"
    yields = [
        of.row(name.format(used=used), "yields", key)
        for key, name in LABELS["yields"].items()
    ]
    for reason in dict.fromkeys(
        reason for stats in of for reason in stats["yields"]["dropped"]
    ):
        yields.append(of.row(f"dropped: {reason}", "yields", "dropped", reason))
        yields += [
            of.row("example", "yields", "dropped_examples", reason, n)
            for n in range(_DROPPED_EXAMPLES)
        ]
    files = dict.fromkeys(
        file for stats in of for file in stats["corpus"]["contaminated"] or {}
    )
    sources = dict.fromkeys(
        source for stats in of for source in stats["corpus"]["keywords"] or {}
    )
    # A control repeats each meta-chunk by design.
    negatives = [stats["setting"]["negatives"] for stats in of]
    is_repeating = all(
        name is not None and NEGATIVES[name].origin == "meta-chunk"
        for name in negatives
    )
    expected = "by design" if is_repeating else "must be 0"
    filtered = [
        of.row("near-duplicate negatives", "near_duplicates", "chunks"),
        of.row(
            "of these, because of a shared 100-word passage",
            "near_duplicates",
            "repeated_passages",
        ),
        of.row(
            "near-duplicate documents filtered out by the method",
            "near_duplicates",
            "documents",
        ),
        *(
            of.row(
                f"documents of {source} with keywords",
                "corpus",
                "keywords",
                source,
                "with_keywords",
                form="{:,} of {documents:,}",
            )
            for source in sources
        ),
        of.row(
            "documents whose keywords no other document has",
            "corpus",
            "unshared_keywords",
        ),
        of.row(
            "documents split into parts with other documents in between",
            "documents",
            "in_parts",
            "documents",
            form="{:,} of {of_documents:,}",
        ),
        of.row(
            "document tokens cut off at the ends of sequences",
            "tokens",
            "cut_off",
            "tokens",
            form="{:,} of {of_tokens:,}",
        ),
        *(
            of.row(
                f"chunks that share text with {file}", "corpus", "contaminated", file
            )
            for file in files
        ),
        of.row(
            f"negatives from the sequence's own document ({expected})",
            "negatives",
            "from_own_document",
        ),
        of.row(
            f"chunks that occur twice in a sequence ({expected})", "chunks", "repeated"
        ),
    ]
    held = [stats["yields"] for stats in of]
    parts = {
        ("kept", "run0"): [one["kept"] for one in held],
        ("spare", "plain0"): [one["spare"] + one["untried"] for one in held],
        ("dropped", "run1"): [sum(one["dropped"].values()) for one in held],
    }
    outcomes = [
        Series(*named, values) for named, values in parts.items() if any(values)
    ]
    chart = charts.bars(
        _groups(of), outcomes, label="drafts of a sequence", stacked=True
    )
    return [
        ("yield", "From documents to sequences", chart, yields),
        ("near", "Near-duplicates and leaks", Markup(), filtered),
    ]


def _by_rank(of: Numbers, what: str) -> Markup:
    """Draw the mean cosine at each rank (the paper's figure on choosing negatives), above that of random pairs."""
    tip = "{}rank {:,}: {:.4f} (n = {:,})"
    lines = []
    for name, stats in _prefixed(of):
        held = [
            (one["rank"], one["mean"], one["count"])
            for one in value_at(stats, "similarity.by_rank") or ()
        ]
        lines.append(
            [
                Point(rank, mean, tip.format(name, rank, mean, count))
                for rank, mean, count in held
            ]
        )
    series = _series(of.names if len(of.names) > 1 else [what], points=lines)
    if ranks := [point.x for line in lines for point in line]:
        spreads = [value_at(stats, "similarity.random") for stats in of]
        for mean in dict.fromkeys(spread["mean"] for spread in spreads if spread):
            ends = [
                Point(rank, mean, f"random pairs of chunks: {mean:.4f}")
                for rank in (min(ranks), max(ranks))
            ]
            series.append(Series("random pairs of chunks", "plain1", points=ends))
    return charts.lines(series, x_label="rank", y_label="mean cosine", scale="log")


def _cosines(of: Numbers, what: str) -> Markup:
    lines = []
    for name, stats in _prefixed(of):
        histogram = value_at(stats, "similarity.cosine.histogram") or ()
        held = [(one["low"], one["count"]) for one in histogram]
        total = max(1, sum(count for _, count in held))
        tip = f"{name}{{:.2f}} to {{:.2f}}: {{:,}}"
        shares = ((low, count, 100 * count / total) for low, count in held)
        lines.append(
            [
                Point(low + 0.025, share, tip.format(low, low + 0.05, count))
                for low, count, share in shares
            ]
        )
    series = _series(of.names, points=lines)
    return charts.lines(
        series, x_label="cosine, in steps of 0.05", y_label=f"percent of the {what}"
    )


def _histogram(
    of: Numbers, *path: str | int, label: str, counted: str, part: str = "count"
) -> Markup:
    """Draw a histogram as bars, in percent of what it counts."""
    edges = of.entries(*path, by=("low", "high"))
    of_bins = [
        [one.value or 0 for one in of.row("", *path, places, part).cells]
        for places in edges.values()
    ]
    rows = [
        [100 * count / max(1, sum(counts)) for count in counts]
        for counts in zip(*of_bins, strict=True)
    ]
    groups, series = (
        [spoken_bin(*edge) for edge in edges],
        _series(of.names, values=rows),
    )
    return charts.bars(
        groups,
        series,
        label=f"percent of the {counted}",
        y_label=label,
        unit=" %",
        form="{:.1f}",
    )


def _by_source(of: Numbers) -> tuple[Markup, list[TableRow]]:
    """Return the tokens of each source beside its characters in the corpus, the largest first; no chart of one source."""
    every = _sources(of)
    by_source = [stats["tokens"]["by_source"] for stats in of]
    corpus = [stats["corpus"]["chars_by_source"] for stats in of]
    token_totals = [sum(counts.values()) for counts in by_source]
    char_totals = [sum(counts.values()) for counts in corpus]
    with_share = "{:,} ({share:.1%})"
    rows = []
    for name in every[:_SHOWN_SOURCES]:
        rows.append(
            of.row(
                f"{name}: tokens",
                "tokens",
                "by_source",
                name,
                form=with_share,
                totals=token_totals,
            )
        )
        rows.append(
            of.row(
                f"{name}: characters in the corpus",
                "corpus",
                "chars_by_source",
                name,
                form=with_share,
                totals=char_totals,
            )
        )
    if rest := every[_SHOWN_SOURCES:]:
        sums = (sum(one.get(name, 0) for name in rest) for one in by_source)
        rows.append(
            TableRow(
                f"{len(rest):,} more sources together",
                tuple(Cell(f"{total:,}") for total in sums),
            )
        )
    shown = every[:_MAX_SOURCES]
    if len(shown) == len(of.plain) == 1:
        return Markup(), rows

    def percent(counts: Mapping[str, int]) -> list[float]:
        return [
            100 * counts.get(name, 0) / max(1, sum(counts.values())) for name in shown
        ]

    labels = of.names if len(of.plain) > 1 else ["tokens of the sequences"]
    series = _series(labels, values=list(map(percent, by_source)))
    if all(one == corpus[0] for one in corpus):
        series.append(Series("characters of the corpus", "plain1", percent(corpus[0])))
    return charts.bars(shown, series, label="percent", unit=" %", form="{:.1f}"), rows


def _sources(of: Numbers) -> list[str]:
    """Return every source, the one with most tokens first."""
    total = Counter[str]()
    for stats in of:
        total.update(stats["tokens"]["by_source"])
    return sorted(total, key=lambda name: (-total[name], name))


def _roles(of: Numbers) -> Markup:
    groups: dict[str, list[float]] = {}
    for role in dict.fromkeys(
        role for stats in of for role in stats["tokens"]["by_role"]
    ):
        sums = groups.setdefault(
            role if role in _ROLES else "separator", [0.0] * len(of.plain)
        )
        for number, stats in enumerate(of):
            sums[number] += (
                100
                * stats["tokens"]["by_role"].get(role, 0)
                / max(1, stats["tokens"]["total"])
            )
    series = [Series(*_ROLES[role], values) for role, values in groups.items()]
    return charts.bars(
        _groups(of),
        series,
        label="percent of the tokens",
        unit=" %",
        form="{:.2f}",
        stacked=True,
    )


def _seconds(of: Numbers) -> Markup:
    """Draw the seconds of the steps that take at least 1 % of the time of a run."""
    held = [
        {step["step"]: step["seconds"] or 0.0 for step in stats["steps"]}
        for stats in of
    ]
    least = [(of_run, _LEAST_SHARE * sum(of_run.values())) for of_run in held]
    steps = dict.fromkeys(
        name for of_run, low in least for name, taken in of_run.items() if taken >= low
    )
    series = _series(
        of.names, values=[[of_run.get(name, 0.0) for name in steps] for of_run in held]
    )
    titles = [STEP_TITLES.get(name, f"write {name}") for name in steps]
    return charts.bars(titles, series, label="seconds", unit=" s", form="{:,.1f}")


def _series(
    names: Sequence[str],
    *,
    values: Sequence[Sequence[float]] = (),
    points: Sequence[Sequence[Point]] = (),
) -> list[Series]:
    """Return a series for each run in its colour, of values or of points."""
    colours = [f"run{number}" for number in range(len(names))]
    empty: list[tuple[()]] = [()] * len(names)
    return [
        Series(*one)
        for one in zip(names, colours, values or empty, points or empty, strict=True)
    ]


def _groups(of: Numbers) -> Sequence[str]:
    """Return the labels of the bars of runs: empty for a single run."""
    return of.names if len(of.names) > 1 else [""]


def _prefixed(of: Numbers) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each run with the prefix of its tooltips: its name if there are several runs."""
    return [
        (f"{name}, " if len(of.names) > 1 else "", stats)
        for name, stats in zip(of.names, of, strict=True)
    ]
