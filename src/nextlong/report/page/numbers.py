"""Numbers: rows of tables; each cell knows its place in `nextlong stats --json`, and pages and terminals show the same text.

In:  `Stats.as_json()` of one or several runs. Out: rows of a name and a cell a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nextlong.report.page.words import SETTINGS, Plain, is_extended

_Path = tuple[str | int, ...]
_SPREAD = {"mean": "mean", "p10": "10th percentile", "p50": "median", "p90": "90th percentile", "max": "maximum"}


class Cell(NamedTuple):
    """A value as it is shown; `value` is exactly what `path` leads to in the run's numbers."""

    text: str
    value: Any = None
    path: _Path = ()


class TableRow(NamedTuple):
    """A name and a cell a run; bins of a histogram are left out where a chart or a terminal has no room."""

    name: str
    cells: tuple[Cell, ...]
    is_bin: bool = False


_NOTHING = Cell("–")


def cell(stats: Mapping[str, Any], path: _Path, form: str = "{:,}", *, unit: float = 1, total: float = 0) -> Cell:
    """Return one number of a run, "–" if the run has none.

    `form` gets the value in `unit`s; what stands beside the value, by name; and `share`, the value over `total`.
    """
    value: Any = stats
    beside: Any = {}
    for key in path:
        if key not in (value if isinstance(value, Mapping) else range(len(value or ()))):
            return _NOTHING
        beside, value = value, value[key]
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return Cell(value, value, path)
    more = dict(beside) if isinstance(beside, Mapping) else {}
    more["share"] = value / (total or 1)
    return Cell(form.format(value if unit == 1 else value / unit, **more), value, path)


def row(name: str, plain: Plain, path: _Path, form: str = "{:,}", *, totals: Sequence[float] | None = None) -> TableRow:
    """Return one number of every run."""
    every = totals or [0.0] * len(plain)
    return TableRow(name, tuple(cell(stats, path, form, total=of) for stats, of in zip(plain, every, strict=True)))


def filled(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows that hold a value of at least one run."""
    return [row for row in rows if any(cell != _NOTHING for cell in row.cells)]


def spread(plain: Plain, key: str, form: str, *, of: str = "") -> list[TableRow]:
    """Return a distribution in five numbers; `of` says of what, where the table holds other numbers too."""
    return filled(row(f"{of}{name}", plain, (key, part), form) for part, name in _SPREAD.items())


def entries(plain: Plain, *path: str | int, by: Sequence[str]) -> dict[tuple[Any, ...], list[int | None]]:
    """Return where each entry of a list stands in every run, by the values of its keys `by`, sorted."""
    found: dict[tuple[Any, ...], list[int | None]] = {}
    for number, stats in enumerate(plain):
        held: Any = stats
        for key in path:
            held = (held[key] if isinstance(held, Mapping) or int(key) < len(held) else {}) if held else ()
        for place, one in enumerate(held):
            found.setdefault(tuple(one[key] for key in by), [None] * len(plain))[number] = place
    return dict(sorted(found.items()))


def entry(
    name: str,
    plain: Plain,
    path: _Path,
    places: Sequence[int | None],
    part: str,
    form: str,
    totals: Sequence[float] = (),
) -> TableRow:
    """Return a part of an entry of a list, which stands at another place in each run."""
    cells = (
        _NOTHING if place is None else cell(stats, (*path, place, part), form, total=total)
        for stats, place, total in zip(plain, places, totals or [0.0] * len(plain), strict=True)
    )
    return TableRow(name, tuple(cells))


def bins(plain: Plain, *path: str | int, form: str, part: str = "count") -> list[TableRow]:
    """Return a histogram, each bin with its share; `form` makes the name of its row."""
    rows = []
    for (least, most), places in entries(plain, *path, by=("least", "most")).items():
        spoken = f"{least:.2f}" if isinstance(least, float) and most < 2 else spoken_bin(least, most)
        rows.append((form.format(spoken), places))
    counts = [entry(name, plain, path, places, part, "{}").cells for name, places in rows]
    totals = [sum(one.value or 0 for one in of_run) for of_run in zip(*counts, strict=True)]
    return [
        entry(name, plain, path, places, part, "{:,} ({share:.1%})", totals)._replace(is_bin=True)
        for name, places in rows
    ]


def spoken_bin(least: float, most: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{least:,.0f}" if least == most else f"{least:,.0f}–{most:,.0f}"


def first(plain: Plain) -> list[TableRow]:
    """Return the few numbers of the first screen of one run."""
    what = "negatives" if is_extended(plain) else "documents"
    random = plain[0]["random_similarity"]
    of_random = f" (random pairs: {random['mean']:.2f})" if random else ""
    return filled(
        [
            *(row(name, plain, (key,)) for key, name in _AMOUNTS.items()),
            row(_APART, plain, ("distance_tokens", "p50"), "{:,.0f}"),
            row(f"mean cosine of the {what}{of_random}", plain, ("similarity", "mean"), "{:.2f}"),
        ]
    )


_APART = "tokens between chunks that followed each other, median"
_AMOUNTS = {
    "sequences": "sequences",
    "target_tokens": "tokens per sequence",
    "tokens": "tokens in total",
    "distinct_documents": "documents used",
}
_SETTINGS = {
    "method_name": "method",
    "negatives": "choice of negatives",
    "position": "position of a meta-chunk among its negatives",
    "fit": "how the length is reached",
    "max_uses": "maximum uses of a chunk",
    "encoder": "encoder",
    "search": "approximate index",
    "shortlist": "shortlist",
    "queries": "query model",
    "max_chars": "maximum characters per chunk",
    **_AMOUNTS,
}


def settings(plain: Plain) -> list[TableRow]:
    """Return what distinguishes the runs; words of the recipe are explained."""
    shown = []
    for key, name in _SETTINGS.items():
        meanings = SETTINGS.get(key, {})
        cells = row(name, plain, (key,)).cells
        told = (f"{one.text}: {meanings[one.value]}" if one.value in meanings else one.text for one in cells)
        shown.append(TableRow(name, tuple(one._replace(text=text) for one, text in zip(cells, told, strict=True))))
    return filled(
        [
            *shown,
            row("characters per token", plain, ("chars_per_token",), "{:.3f}"),
            row("mean cosine", plain, ("similarity", "mean"), "{:.4f}"),
            row(_APART, plain, ("distance_tokens", "p50"), "{:,.0f}"),
        ]
    )
