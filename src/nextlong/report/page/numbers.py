"""Numbers: what stands in the tables beside the pictures, each with its place in `nextlong stats --json`.

In:  `Stats` of one or several runs, as plain dictionaries. Out: rows of a name and a cell a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nextlong.report.page.pictures import spoken_bin
from nextlong.report.page.words import is_extended

Plain = Sequence[Mapping[str, Any]]  # `Stats.as_json()` a run
Path = tuple[str | int, ...]
_NOTHING = "–"
_SHOWN_SOURCES = 40
_DROPPED_EXAMPLES = 3  # documents, by reason
_SPREAD = {"mean": "mean", "p10": "a tenth is at most", "p50": "half is at most", "p90": "nine tenths are at most"}


@dataclass(frozen=True)
class Cell:
    """A value as the page shows it; `value` is exactly what stands at `path` of the run's numbers."""

    text: str
    value: Any = None
    path: Path = ()


@dataclass(frozen=True)
class Row:
    """A name, whether a corpus gave it, and a cell a run."""

    name: str
    cells: tuple[Cell, ...]
    is_foreign: bool = False


def row(name: str, plain: Plain, path: Path, form: str = "{:,}", *, is_foreign: bool = False) -> Row:
    """Return one number of every run."""
    return Row(name, tuple(_cell(stats, path, form) for stats in plain), is_foreign)


def _cell(plain: Mapping[str, Any], path: Path | None, form: str) -> Cell:
    value: Any = plain if path is not None else None
    for key in path or ():
        known = value if isinstance(value, Mapping) else range(len(value or ()))
        if key not in known:
            return Cell(_NOTHING)
        value = value[key]
    if value is None:
        return Cell(_NOTHING)
    return Cell(value if isinstance(value, str) else form.format(value), value, path or ())


def first(plain: Plain) -> list[Row]:
    """The few numbers to look at first."""
    apart = row(
        "tokens between chunks that were neighbours, half the time at most",
        plain,
        ("distance_tokens", "p50"),
        "{:,.0f}",
    )
    return _filled(
        [
            row("sequences", plain, ("sequences",)),
            row("tokens in each", plain, ("target_tokens",)),
            row("tokens in all", plain, ("tokens",)),
            row("documents used", plain, ("distinct_documents",)),
            apart,
            row(
                f"cosine of the {'look-alikes' if is_extended(plain) else 'documents'}, on average",
                plain,
                ("similarity", "mean"),
                "{:.2f}",
            ),
            row("drafts kept", plain, ("yields", "kept")),
        ]
    )


def settings(plain: Plain) -> list[Row]:
    """What tells the runs apart, in a word each."""
    names = {
        "method_name": "method",
        "negatives": "which negatives",
        "position": "place of a chunk before its negatives",
        "fit": "how the length is met",
        "encoder": "what measures similarity",
        "search": "search for neighbours, where not exact",
        "queries": "model of the queries",
        "max_chars": "characters of a chunk, at most",
        "target_tokens": "tokens of a sequence",
        "sequences": "sequences",
        "tokens": "tokens in all",
        "distinct_documents": "documents that are used",
    }
    return _filled(row(name, plain, (key,)) for key, name in names.items())


def _filled(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that say something of one run at least."""
    return [row for row in rows if any(cell.path for cell in row.cells)]


def yields(plain: Plain) -> list[Row]:
    """From documents to sequences."""
    names = {
        "documents": "documents in the corpus",
        "eligible": "of which may be extended" if is_extended(plain) else "of which may be used",
        "asked": "sequences asked for",
        "drafts": "drafts of a sequence",
        "kept": "kept",
        "spare": "spare: composed beyond what was asked for",
        "untried": "untried, because there were enough",
    }
    rows = [row(name, plain, ("yields", key)) for key, name in names.items()]
    reasons = dict.fromkeys(reason for stats in plain for reason in stats["yields"]["dropped"])
    for reason in reasons:
        rows.append(row(f"dropped: {reason}", plain, ("yields", "dropped", reason)))
        rows += [
            row("such as", plain, ("yields", "dropped_examples", reason, number)) for number in range(_DROPPED_EXAMPLES)
        ]
    return _filled(rows)


def spread(plain: Plain, key: str, form: str, *, of: str = "") -> list[Row]:
    """A distribution in five numbers; `of` says of what, where the table holds other numbers too."""
    names = {**_SPREAD, "max": "the largest"}
    return _filled(row(f"{of}{name}", plain, (key, part), form) for part, name in names.items())


def by_rank(plain: Plain) -> list[Row]:
    """The mean cosine at each rank."""
    ranks = sorted({one["rank"] for stats in plain for one in stats["similarity_by_rank"]})
    return [
        Row(f"rank {rank:,}", _cells_where(plain, "similarity_by_rank", {"rank": rank}, "mean", "{:.4f}"))
        for rank in ranks
    ]


def _cells_where(plain: Plain, key: str, where: Mapping[str, Any], part: str, form: str) -> tuple[Cell, ...]:
    """Return one part of that entry of a list, in each run, in which `where` holds."""
    cells = []
    for stats in plain:
        places = [n for n, one in enumerate(stats[key]) if all(one[name] == value for name, value in where.items())]
        cells.append(_cell(stats, (key, places[0], part), form) if places else Cell(_NOTHING))
    return tuple(cells)


def bins(plain: Plain, key: str, *, of: str) -> list[Row]:
    """A histogram; `of` says what a bin of whole numbers counts, and is empty for cosines."""
    edges = sorted({(one["least"], one["most"]) for stats in plain for one in stats[key]})
    return [
        Row(
            f"{spoken_bin(*edge)} {of}" if of else f"from {edge[0]:.2f}",
            _cells_where(plain, key, {"least": edge[0], "most": edge[1]}, "count", "{:,}"),
        )
        for edge in edges
    ]


def reuse(plain: Plain) -> list[Row]:
    """How often a chunk serves."""
    rows = [
        row("different chunks", plain, ("reuse", "distinct_chunks")),
        row("uses of a chunk, mean", plain, ("reuse", "mean"), "{:.2f}"),
        row("uses of a chunk, at most", plain, ("reuse", "max")),
    ]
    edges = sorted({(one["least"], one["most"]) for stats in plain for one in stats["reuse"]["histogram"]})
    for edge in edges:
        cells = []
        for stats in plain:
            there = [n for n, one in enumerate(stats["reuse"]["histogram"]) if (one["least"], one["most"]) == edge]
            path: Path | None = ("reuse", "histogram", there[0], "chunks") if there else None
            cells.append(_cell(stats, path, "{:,}"))
        rows.append(Row(f"chunks used {spoken_bin(*edge)} times", tuple(cells)))
    return _filled(rows)


def roles(plain: Plain) -> list[Row]:
    """What the tokens are."""
    names = dict.fromkeys(role for stats in plain for role in stats["tokens_by_role"])
    counts = [row(f"tokens: {role}", plain, ("tokens_by_role", role)) for role in names]
    return _filled([row("share of the meta-documents", plain, ("meta_share",), "{:.1%}"), *counts])


def sources(plain: Plain, names: Sequence[str]) -> list[Row]:
    """Tokens by source; `names` are all of them, the largest first."""
    shown = [row(name, plain, ("tokens_by_source", name), is_foreign=True) for name in names[:_SHOWN_SOURCES]]
    if rest := names[_SHOWN_SOURCES:]:
        sums = [sum(stats["tokens_by_source"].get(name, 0) for name in rest) for stats in plain]
        shown.append(Row(f"{len(rest):,} sources more, together", tuple(Cell(f"{total:,}") for total in sums)))
    return shown


def left_out(plain: Plain) -> list[Row]:
    """What repeats something, or stands in an evaluation."""
    files = dict.fromkeys(file for stats in plain for file in stats["contaminated"] or {})
    return _filled(
        [
            row("near-copies left out of the drafts", plain, ("near_copies",)),
            row("of them, for one passage of 100 words", plain, ("repeated_passages",)),
            row("documents that the method left out as near-copies", plain, ("near_copy_documents",)),
            *_without_keywords(plain),
            row("documents whose keywords no other document has", plain, ("unshared_keywords",)),
            row("documents in parts with others in between", plain, ("in_parts", "in_parts")),
            *(
                row(f"chunks that share text with {file}", plain, ("contaminated", file), is_foreign=True)
                for file in files
            ),
        ]
    )


def _without_keywords(plain: Plain) -> list[Row]:
    sources = dict.fromkeys(source for stats in plain for source in stats["keywords"] or {})
    return [
        row(f"documents of {source} that have a keyword", plain, ("keywords", source, "with_keywords"), is_foreign=True)
        for source in sources
    ]


def leaks(plain: Plain) -> list[Row]:
    """What must not be there."""
    return _filled(
        [
            row("negatives from the sequence's own document", plain, ("own_document_negatives",)),
            row("chunks that a sequence holds twice", plain, ("repeated_chunks",)),
        ]
    )


def costs(plain: Plain, key: str, form: str, unit: float) -> list[Row]:
    """What each step took, in the order of the route; nothing where no step says."""
    names = dict.fromkeys(step["step"] for one in plain for step in one["steps"])
    return _filled(Row(name, tuple(_cost(one, name, key, form, unit) for one in plain)) for name in names)


def _cost(plain: Mapping[str, Any], step: str, key: str, form: str, unit: float) -> Cell:
    for place, cost in enumerate(plain["steps"]):
        if cost["step"] == step and cost[key] is not None:
            return Cell(form.format(cost[key] * unit), cost[key], ("steps", place, key))
    return Cell(_NOTHING)


def hubs(plain: Mapping[str, Any]) -> list[Row]:
    """The chunks that serve most often in one run."""
    return [
        Row(
            f"{hub['source_id']} · chunk {hub['ordinal']}",
            (_cell(plain, ("reuse", "hubs", place, "uses"), "{:,}"),),
            is_foreign=True,
        )
        for place, hub in enumerate(plain["reuse"]["hubs"])
    ]
