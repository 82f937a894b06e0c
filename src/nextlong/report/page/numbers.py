"""Numbers: rows of tables. Each cell knows its path in `nextlong stats --json`; pages and terminals show the same text.

In:  `Stats.as_json()` of one or several runs. Out: rows with a name and one cell per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nextlong.report.page.words import LABELS, SETTINGS, Plain, is_extended

_Places = Sequence[int | None]  # of an entry of a list in each run
_APART = "tokens between chunks that followed each other, median"


class Cell(NamedTuple):
    """A value as it is shown; `value` is exactly what `path` leads to in the run's numbers."""

    text: str
    value: Any = None
    path: tuple[str | int | None, ...] = ()


class TableRow(NamedTuple):
    """A name and one cell per run; bins of a histogram are omitted where a terminal has no room."""

    name: str
    cells: tuple[Cell, ...]
    is_bin: bool = False


_NOTHING = Cell("–")


def cell(
    stats: Mapping[str, Any], path: Sequence[str | int | None], form: str = "{:,}", *, unit: float = 1, total: float = 0
) -> Cell:
    """Return one number of a run, "–" if the run has none.

    `form` gets the value in `unit`s, the fields beside the value by name, and `share`, the value over `total`.
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
        return Cell(value, value, tuple(path))
    more = dict(beside) if isinstance(beside, Mapping) else {}
    more["share"] = value / (total or 1)
    return Cell(form.format(value if unit == 1 else value / unit, **more), value, tuple(path))


def filled(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows that hold a value of at least one run."""
    return [row for row in rows if any(cell != _NOTHING for cell in row.cells)]


def spoken_bin(least: float, most: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{least:,.0f}" if least == most else f"{least:,.0f}–{most:,.0f}"


@dataclass(frozen=True)
class Numbers:
    """The numbers of runs side by side, and a name a run."""

    plain: Plain
    names: Sequence[str]

    @property
    def is_extended(self) -> bool:
        """Whether a sequence of at least one of the runs extends a document."""
        return is_extended(self.plain)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the numbers of each run."""
        return iter(self.plain)

    def row(
        self, name: str, *path: str | int | _Places, form: str = "{:,}", totals: Sequence[float] | None = None
    ) -> TableRow:
        """Return one number of every run; a list in its path holds the place of an entry in each run."""
        cells = []
        for number, stats in enumerate(self):
            own = [key if isinstance(key, str | int) else key[number] for key in path]
            cells.append(cell(stats, own, form, total=totals[number] if totals else 0))
        return TableRow(name, tuple(cells))

    def spread(self, key: str, form: str, *, of: str = "") -> list[TableRow]:
        """Return a distribution in five numbers; `of` says of what, where the table holds other numbers too."""
        return filled(self.row(f"{of}{name}", key, part, form=form) for part, name in LABELS["spread"].items())

    def entries(self, *path: str | int, by: Sequence[str]) -> dict[tuple[Any, ...], list[int | None]]:
        """Return the place of each entry of a list in every run, by the values of its keys `by`, sorted."""
        places_of: dict[tuple[Any, ...], list[int | None]] = {}
        for number, stats in enumerate(self):
            held: Any = stats
            for key in path:
                held = (held[key] if isinstance(held, Mapping) or int(key) < len(held) else {}) if held else ()
            for place, one in enumerate(held):
                places_of.setdefault(tuple(one[key] for key in by), [None] * len(self.plain))[number] = place
        return dict(sorted(places_of.items()))

    def bins(self, *path: str | int, form: str, part: str = "count") -> list[TableRow]:
        """Return a histogram, each bin with its share; `form` makes the name of its row."""
        places_of = {}
        for (least, most), places in self.entries(*path, by=("least", "most")).items():
            spoken = f"{least:.2f}" if isinstance(least, float) and most < 2 else spoken_bin(least, most)
            places_of[form.format(spoken)] = places
        counts = [self.row(name, *path, places, part, form="{}").cells for name, places in places_of.items()]
        totals = [sum(one.value or 0 for one in of_run) for of_run in zip(*counts, strict=True)]
        return [
            self.row(name, *path, places, part, form="{:,} ({share:.1%})", totals=totals)._replace(is_bin=True)
            for name, places in places_of.items()
        ]

    def first(self) -> list[TableRow]:
        """Return the few numbers of the first screen of one run."""
        random, what = self.plain[0]["random_similarity"], "negatives" if self.is_extended else "documents"
        of_random = f" (random pairs: {random['mean']:.2f})" if random else ""
        shown = [self.row(name, key) for key, name in LABELS["amounts"].items()]
        shown.append(self.row(_APART, "distance_tokens", "p50", form="{:,.0f}"))
        return filled([*shown, self.row(f"mean cosine of the {what}{of_random}", "similarity", "mean", form="{:.2f}")])

    def settings(self) -> list[TableRow]:
        """Return what distinguishes the runs; words of the recipe are explained."""
        shown = []
        for key, name in {**LABELS["settings"], **LABELS["amounts"]}.items():
            meanings = SETTINGS.get(key, {})
            cells = (
                one._replace(text=f"{one.text}: {meanings[one.value]}") if one.value in meanings else one
                for one in self.row(name, key).cells
            )
            shown.append(TableRow(name, tuple(cells)))
        shown.append(self.row("characters per token", "chars_per_token", form="{:.3f}"))
        shown.append(self.row("mean cosine", "similarity", "mean", form="{:.4f}"))
        return filled([*shown, self.row(_APART, "distance_tokens", "p50", form="{:,.0f}")])
