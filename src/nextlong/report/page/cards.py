"""Cards: what the report measures, with charts, numbers, and how to read them.

In:  the `Numbers` of one or several runs. Out: cards by section of the report;
`nextlong stats` prints their tables. The chart of a card ("" if there is nothing to
draw) and its table show the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from nextlong.pipeline import STEP_TITLES
from nextlong.recipe.keys import NEGATIVES
from nextlong.report.page import card_charts as draw
from nextlong.report.page.cells import (
    LABELS,
    Cell,
    Numbers,
    RunStats,
    TableRow,
    cell,
    filled,
    is_extended,
    value_at,
)
from nextlong.report.page.explain import reading

_MAX_SOURCES: Final = 40
_DROPPED_EXAMPLES: Final = 3  # documents per reason
_WITH_COUNT: Final = "{:.4f} (n = {count:,})"

# The columns of the costs of a step: the field, its form, and the unit of its values.
_COSTS: Final = (
    ("seconds", "{:,.1f} s", 1),
    ("peak_bytes", "{:,.0f} MB", 1e6),
    ("bytes", "{:,.1f} MB", 1e6),
)


class Table(NamedTuple):
    """Rows under a caption; `heads` names the columns of numbers."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[TableRow]


class Card(NamedTuple):
    """A chart, its numbers in tables that open on request, and how to read them."""

    name: str
    heading: str
    chart: Markup
    tables: Sequence[Table]
    reading: str


class _Topic(NamedTuple):
    """What a card is made from."""

    name: str
    heading: str
    chart: Markup
    rows: Iterable[TableRow]


def sections(numbers: Numbers) -> dict[str, list[Card]]:
    """Return the cards of each section that hold a value of at least one run."""
    cards: dict[str, list[Card]] = {}
    topics_of: dict[str, Callable[[Numbers], list[_Topic]]] = {
        "hardness": _hardness,
        "content": _content,
        "removal": _removal,
    }
    for section, topics in topics_of.items():
        cards[section] = []
        for topic in topics(numbers):
            rows = filled(topic.rows)
            # The mean of a single source is that of all.
            min_rows = 2 if topic.name == "source-cosine" else 1
            if len(rows) >= min_rows:
                cards[section].append(_card(numbers, topic, rows))
    hubs = _hubs(numbers)
    if hubs:
        heading = "Most-used chunks"
        card = Card(
            "hubs",
            heading,
            chart=Markup(),
            tables=hubs,
            reading="",
        )
        cards["content"].append(card)
    cost = Card(
        name="cost",
        heading="Time, memory and disk by step",
        chart=draw.seconds_by_step(numbers),
        tables=_costs(numbers),
        reading=reading("cost", numbers.all_stats, numbers.names),
    )
    cards["removal"].append(cost)
    return cards


def _card(numbers: Numbers, topic: _Topic, rows: Sequence[TableRow]) -> Card:
    return Card(
        name=topic.name,
        heading=topic.heading,
        chart=topic.chart,
        tables=[Table(topic.heading, numbers.names, rows)],
        reading=reading(topic.name, numbers.all_stats, numbers.names),
    )


def _hubs(numbers: Numbers) -> list[Table]:
    """Return the most-used chunks of each run."""
    tables = []
    for of_run, stats in _captioned(numbers):
        rows = []
        for index, hub in enumerate(stats["chunks"]["reuse"]["hubs"]):
            name = f"{hub['source_id']} · chunk {hub['ordinal']}"
            uses = cell(stats, ("chunks", "reuse", "hubs", index, "uses"))
            rows.append(TableRow(name, (uses,)))
        if rows:
            tables.append(Table(f"Most-used chunks{of_run}", ["uses"], rows))
    return tables


def _costs(numbers: Numbers) -> list[Table]:
    """Return the time, memory and disk space of the steps of each run."""
    tables = []
    for of_run, stats in _captioned(numbers):
        rows = []
        for index, step in enumerate(stats["steps"]):
            # The formats of an export have no title of their own.
            title = STEP_TITLES.get(step["step"], "write the files")
            cells = [
                cell(stats, ("steps", index, key), form, unit=unit)
                for key, form, unit in _COSTS
            ]
            name = f"{title} ({step['step']})"
            rows.append(TableRow(name, tuple(cells)))
        caption = f"Time, peak memory of one task, and disk space by step{of_run}"
        tables.append(Table(caption, ("time", "memory", "disk"), rows))
    return tables


def _captioned(numbers: Numbers) -> list[tuple[str, RunStats]]:
    """Return each run with what its captions end in: its name if there are several."""
    if len(numbers.names) == 1:
        return [("", stats) for stats in numbers]
    endings = [f" of {name}" for name in numbers.names]
    return list(zip(endings, numbers, strict=True))


# ---- are the negatives hard, and the distances long? ----


def _hardness(numbers: Numbers) -> list[_Topic]:
    what, part, owner = "documents", "part", "document"
    if numbers.is_extended:
        what, part, owner = "negatives", "chunk", "meta-document"
    compared = _compared(numbers)
    cosines = [
        *numbers.spread("similarity", "cosine", form="{:.4f}"),
        *numbers.bins("similarity", "cosine", "histogram", form="from {}"),
    ]
    compared_sources: set[str] = set()
    for stats in numbers:
        compared_sources |= (value_at(stats, "similarity.by_source") or {}).keys()
    sources = [name for name in _sources(numbers) if name in compared_sources]
    return [
        _Topic(
            name="rank",
            heading=f"Mean cosine by rank: {compared}",
            chart=draw.cosine_by_rank(numbers, what=what),
            rows=[*_ranks(numbers), *_random_pairs(numbers)],
        ),
        _Topic(
            name="similarity",
            heading=f"Distribution of the cosine: {compared}",
            chart=draw.cosines(numbers, what=what),
            rows=cosines,
        ),
        _Topic(
            name="source-cosine",
            heading=f"Mean cosine by source of the {owner}",
            chart=_drawn_sources(numbers, sources),
            rows=[
                numbers.row(
                    name, "similarity", "by_source", name, "mean", form=_WITH_COUNT
                )
                for name in sources[:_MAX_SOURCES]
            ],
        ),
        _distribution(
            numbers,
            ("distance", f"Tokens from a {part} to the next {part} of its document"),
            "distance_tokens",
            label="tokens in between",
            counted="distances",
            unit="tokens",
        ),
        _dependence(numbers),
        _Topic(
            name="exposure",
            heading="Effective left context of a predicted token",
            # Of several attention masks the first, the recipe's own.
            chart=draw.histogram(
                numbers,
                "attention",
                "exposure",
                0,
                "histogram",
                label="tokens that its attention can reach",
                counted="predicted tokens",
            ),
            rows=_attended(numbers),
        ),
    ]


def _dependence(numbers: Numbers) -> _Topic:
    """Return the gain of the earlier text, and how it falls with distance."""
    rows = [
        numbers.row("sequences measured", "dependence", "sequences"),
        numbers.row("sequences kept", "dependence", "kept"),
        numbers.row("minimum gain", "dependence", "min_gain", form="{:g}"),
        *numbers.spread("dependence", "gain", form="{:.2f}", prefix="gain, nats: "),
        numbers.row(
            "standard error of the mean", "dependence", "standard_error", form="{:.2f}"
        ),
        *numbers.spread(
            "dependence",
            "tokens",
            form="{:,.0f}",
            prefix="counted tokens of a later part: ",
        ),
    ]
    entries = numbers.entries("dependence", "by_gap", by=("low", "high"))
    for (low, high), indexes in entries.items():
        name = f"gain at {low:,} to {high:,} tokens from the part before"
        path = ("dependence", "by_gap", indexes, "gain")
        rows.append(numbers.row(name, *path, form="{:.2f} (n = {tokens:,})"))
    histogram = ("dependence", "gain", "histogram")
    return _Topic(
        name="dependence",
        heading="Gain of the earlier text",
        chart=draw.histogram(
            numbers, *histogram, label="gain, nats per token", counted="sequences"
        ),
        rows=[*rows, *numbers.bins(*histogram, form="gain from {}")],
    )


def _compared(numbers: Numbers) -> str:
    """Return between what the cosines of the runs are."""
    pairs = []
    for stats in numbers:
        kind = "negatives" if is_extended([stats]) else "documents"
        scores = stats["setting"]["scores"]
        if scores:
            pairs.append(f"{kind} to {scores}")
    return "; ".join(dict.fromkeys(pairs))


def _ranks(numbers: Numbers) -> list[TableRow]:
    rows = []
    entries = numbers.entries("similarity", "by_rank", by=("rank",))
    for (rank,), indexes in entries.items():
        path = ("similarity", "by_rank", indexes, "mean")
        rows.append(numbers.row(f"rank {rank:,}", *path, form=_WITH_COUNT))
    return rows


def _random_pairs(numbers: Numbers) -> list[TableRow]:
    """Return the cosines of random pairs; a cosine of 1 is that of the same text."""
    rows = []
    spread = numbers.spread(
        "similarity",
        "random",
        form="{:.4f}",
        prefix="random pairs: ",
    )
    for row in spread:
        cells = []
        for shown in row.cells:
            if shown.text == "1.0000":
                shown = shown._replace(text="1.0000 (the same text twice)")
            cells.append(shown)
        row = row._replace(cells=tuple(cells))
        rows.append(row)
    return rows


def _drawn_sources(numbers: Numbers, sources: Sequence[str]) -> Markup:
    if len(sources) < 2:
        return Markup()
    return draw.cosine_by_source(numbers, sources)


def _attended(numbers: Numbers) -> list[TableRow]:
    """Return the tokens before a predicted token, by attention mask.

    With them is how evenly devices that share a row work.
    """
    # Runs of different attention masks share only the row of their own, the first.
    shown_masks: Sequence[str] = ("",)
    masks = {_masks(stats) for stats in numbers}
    if len(masks) == 1:
        (shown_masks,) = masks
    rows = []
    for index, mask in enumerate(shown_masks):
        of_mask = f"{mask} attention: " if len(shown_masks) > 1 else ""
        name = f"{of_mask}mean tokens before"
        path = ("attention", "exposure", index)
        rows.append(numbers.row(name, *path, "mean", form="{:,.0f}"))
        form = f"{of_mask}{{}} tokens before"
        rows += numbers.bins(*path, "histogram", form=form)
    work = numbers.entries("attention", "work", by=("mask", "ranks"))
    for (mask, ranks), indexes in work.items():
        name = f"attention work, busiest of {ranks} devices, {mask} attention (1: even)"
        form = "{:.2f} (at most {worst:.2f})"
        rows.append(numbers.row(name, "attention", "work", indexes, "mean", form=form))
    return rows


def _masks(stats: RunStats) -> tuple[str, ...]:
    return tuple(exposure["mask"] for exposure in stats["attention"]["exposure"])


# ---- what text does the data contain? ----


def _content(numbers: Numbers) -> list[_Topic]:
    sources = _sources(numbers)
    as_negative = " as a negative" if numbers.is_extended else ""
    # The card has the documents of a sequence, too.
    lengths = _distribution(
        numbers,
        ("documents", "Length of the corpus's documents, in characters"),
        "corpus",
        "document_chars",
        label="characters of a document",
        counted="documents",
        unit="characters",
    )
    per_sequence = numbers.spread(
        "documents",
        "per_sequence",
        form="{:,.1f}",
        prefix="documents per sequence: ",
    )
    return [
        _Topic(
            name="sources",
            heading="Sources of the sequences and of the corpus",
            chart=draw.tokens_by_source(numbers, sources),
            rows=_by_source(numbers, sources),
        ),
        _Topic(
            name="roles",
            heading="Tokens by role",
            chart=draw.tokens_by_role(numbers),
            rows=_by_role(numbers),
        ),
        _Topic(
            name="meta-chunks",
            heading="Meta-chunks per sequence",
            chart=draw.histogram(
                numbers,
                "meta_chunks",
                "per_sequence",
                "histogram",
                label="meta-chunks of a sequence",
                counted="sequences",
            ),
            rows=_meta_chunks(numbers),
        ),
        _Topic(
            name="reuse",
            heading=f"How often a chunk is used{as_negative}",
            chart=draw.histogram(
                numbers,
                "chunks",
                "reuse",
                "histogram",
                label="uses of a chunk",
                counted="chunks used",
                part="chunks",
            ),
            rows=_uses(numbers),
        ),
        _distribution(
            numbers,
            ("chunks", "Length of the chunks, in tokens"),
            "chunks",
            "tokens",
            label="tokens of a chunk",
            counted="chunks",
            unit="tokens",
        ),
        lengths._replace(rows=[*lengths.rows, *per_sequence]),
    ]


def _by_source(numbers: Numbers, sources: Sequence[str]) -> list[TableRow]:
    """Return the tokens of each source beside its characters in the corpus."""
    columns = {
        "tokens": ("tokens", "by_source"),
        "characters in the corpus": ("corpus", "chars_by_source"),
    }
    totals = {}
    for unit, (group, key) in columns.items():
        totals[unit] = [sum(stats[group][key].values()) for stats in numbers]
    form = "{:,} ({share:.1%})"
    rows = []
    for source in sources[:_MAX_SOURCES]:
        for unit, path in columns.items():
            name = f"{source}: {unit}"
            of_unit = totals[unit]
            row = numbers.row(name, *path, source, form=form, totals=of_unit)
            rows.append(row)
    others = sources[_MAX_SOURCES:]
    if others:
        cells = []
        for stats in numbers:
            total = sum(stats["tokens"]["by_source"].get(name, 0) for name in others)
            cells.append(Cell(f"{total:,}"))
        name = f"{len(others):,} more sources together"
        rows.append(TableRow(name, tuple(cells)))
    return rows


def _by_role(numbers: Numbers) -> list[TableRow]:
    totals = [sum(stats["tokens"]["by_role"].values()) for stats in numbers]
    share = "share of the meta-documents"
    rows = [numbers.row(share, "tokens", "meta_share", form="{:.1%}")]
    for role in draw.roles_of(numbers):
        path = ("tokens", "by_role", role)
        form = "{:,} ({share:.2%})"
        rows.append(numbers.row(f"tokens: {role}", *path, form=form, totals=totals))
    rows += [
        numbers.row("documents scored to find contexts", "contexts", "documents"),
        numbers.row("uncertain tokens in them", "contexts", "anchors"),
        numbers.row("candidates tried", "contexts", "candidates"),
        numbers.row("contexts in the sequences", "contexts", "contexts"),
    ]
    kinds: dict[str, int] = {}
    for stats in numbers:
        if stats["tasks"]:
            kinds |= stats["tasks"]["texts"]
    if kinds:
        rows.append(numbers.row("sequences with tasks", "tasks", "sequences"))
        name = "sequences chosen for tasks, without room"
        rows.append(numbers.row(name, "tasks", "without_room"))
    for kind in kinds:
        name = f"texts of tasks: {kind}"
        rows.append(numbers.row(name, "tasks", "texts", kind))
    return rows


def _meta_chunks(numbers: Numbers) -> list[TableRow]:
    after_last = ("meta_chunks", "after_last")
    per_sequence = ("meta_chunks", "per_sequence")
    prefix = "meta-chunks per sequence: "
    return [
        numbers.row(
            "tokens after the last meta-chunk", *after_last, "share", form="{:.1%}"
        ),
        numbers.row(
            "short last meta-chunks",
            *after_last,
            "short",
            form="{:,} (fewer than {short_tokens} tokens)",
        ),
        *numbers.spread(*per_sequence, form="{:,.1f}", prefix=prefix),
        *numbers.bins(*per_sequence, "histogram", form="{} meta-chunks"),
    ]


def _uses(numbers: Numbers) -> list[TableRow]:
    reuse = ("chunks", "reuse")
    return [
        numbers.row("distinct chunks", *reuse, "distinct_chunks"),
        numbers.row("uses of a chunk, mean", *reuse, "mean", form="{:.2f}"),
        numbers.row("uses of a chunk, maximum", *reuse, "max"),
        *numbers.bins(*reuse, "histogram", form="chunks used {}×", part="chunks"),
    ]


def _distribution(
    numbers: Numbers,
    title: tuple[str, str],
    *path: str,
    label: str,
    counted: str,
    unit: str,
) -> _Topic:
    """Return a distribution with its histogram.

    `title` is the name and the heading of its card; `label` says what is measured, of
    what each count is one, and in which unit.
    """
    name, heading = title
    histogram = (*path, "histogram")
    return _Topic(
        name=name,
        heading=heading,
        chart=draw.histogram(numbers, *histogram, label=label, counted=counted),
        rows=[
            *numbers.spread(*path, form="{:,.0f}"),
            *numbers.bins(*histogram, form=f"{{}} {unit}"),
        ],
    )


def _sources(numbers: Numbers) -> list[str]:
    """Return every source, the one with most tokens first."""
    # Over all runs, so that their charts have the same order.
    tokens = Counter[str]()
    for stats in numbers:
        tokens.update(stats["tokens"]["by_source"])
    return sorted(tokens, key=lambda name: (-tokens[name], name))


# ---- what was filtered out? ----


def _removal(numbers: Numbers) -> list[_Topic]:
    return [
        _Topic(
            name="yield",
            heading="From documents to sequences",
            chart=draw.outcomes(numbers),
            rows=_yields(numbers),
        ),
        _Topic(
            name="near",
            heading="Near-duplicates and leaks",
            chart=Markup(),
            rows=_filtered(numbers),
        ),
    ]


def _yields(numbers: Numbers) -> list[TableRow]:
    used = "extended" if numbers.is_extended else "used"
    rows = [
        numbers.row(name.format(used=used), "yields", key)
        for key, name in LABELS["yields"].items()
    ]
    reasons: dict[str, None] = {}
    for stats in numbers:
        reasons |= dict.fromkeys(stats["yields"]["dropped"])
    for reason in reasons:
        rows.append(numbers.row(f"dropped: {reason}", "yields", "dropped", reason))
        # A row of an example that no run has is left out by `filled`.
        for index in range(_DROPPED_EXAMPLES):
            path = ("yields", "dropped_examples", reason, index)
            rows.append(numbers.row("example", *path))
    return rows


def _filtered(numbers: Numbers) -> list[TableRow]:
    """Return what near-duplicates, keywords and evaluation files removed, and leaks."""
    keyword_sources: dict[str, None] = {}
    evaluation_files: dict[str, None] = {}
    for stats in numbers:
        keyword_sources |= dict.fromkeys(stats["corpus"]["keywords"] or {})
        evaluation_files |= dict.fromkeys(stats["corpus"]["contaminated"] or {})

    rows = [
        numbers.row("near-duplicate negatives", "near_duplicates", "chunks"),
        numbers.row(
            "of these, because of a shared 100-word passage",
            "near_duplicates",
            "repeated_passages",
        ),
        numbers.row(
            "near-duplicate documents filtered out by the method",
            "near_duplicates",
            "documents",
        ),
    ]
    for source in keyword_sources:
        name = f"documents of {source} with keywords"
        path = ("corpus", "keywords", source, "with_keywords")
        rows.append(numbers.row(name, *path, form="{:,} of {documents:,}"))
    rows += [
        numbers.row(
            "documents whose keywords no other document has",
            "corpus",
            "unshared_keywords",
        ),
        numbers.row(
            "documents split into parts with other documents in between",
            "documents",
            "in_parts",
            "documents",
            form="{:,} of {of_documents:,}",
        ),
        numbers.row(
            "document tokens cut off at the ends of sequences",
            "tokens",
            "cut_off",
            "tokens",
            form="{:,} of {of_tokens:,}",
        ),
    ]
    for file in evaluation_files:
        name = f"chunks that share text with {file}"
        rows.append(numbers.row(name, "corpus", "contaminated", file))
    # What follows must be 0, unless the recipe asks for copies of meta-chunks.
    expected = _expected_repeats(numbers)
    rows += [
        numbers.row(
            f"negatives from the sequence's own document ({expected})",
            "negatives",
            "from_own_document",
        ),
        numbers.row(
            f"chunks that occur twice in a sequence ({expected})", "chunks", "repeated"
        ),
    ]
    return rows


def _expected_repeats(numbers: Numbers) -> str:
    # A control repeats each meta-chunk by design.
    for stats in numbers:
        name = stats["setting"]["negatives"]
        if name is None or NEGATIVES[name].origin != "meta-chunk":
            return "must be 0"
    return "by design"
