"""Cells: the numbers of one or several runs side by side, as tables show them.

In:  `Stats.as_json()` of each run. Out: rows of tables with a name and one cell per
run. Each cell knows its path in `nextlong stats --json`. Pages and terminals show the
same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple

import yaml

from nextlong.runs.run import Run
from nextlong.schemas import Layout

RunStats = Mapping[str, Any]  # `Stats.as_json()` of a run
# The index of an entry of a list in each run; None in a run without the entry.
_Indexes = Sequence[int | None]

_APART: Final = "tokens between chunks that followed each other, median"

# The texts of the report: labels, how to read each card, the checks, the glossary.
_TEXTS_FILE: Final = files(__package__) / "words.yaml"
TEXTS: Final = yaml.safe_load(_TEXTS_FILE.read_text(encoding="utf-8"))
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = TEXTS["settings"]
LABELS: Final[Mapping[str, Mapping[str, str]]] = TEXTS["labels"]


class Cell(NamedTuple):
    """A value as it is shown; `value` is what `path` leads to in the run's numbers."""

    text: str
    value: Any = None
    path: tuple[str | int | None, ...] = ()


class TableRow(NamedTuple):
    """A name and one cell per run.

    Bins of a histogram are omitted where a terminal has no room.
    """

    name: str
    cells: tuple[Cell, ...]
    is_bin: bool = False


_NOTHING = Cell("–")


def is_extended(all_stats: Sequence[RunStats]) -> bool:
    """Return whether a sequence of at least one of the runs extends a document."""
    return any(stats["setting"]["layout"] == Layout.EXTENDED for stats in all_stats)


def cell(
    stats: RunStats,
    path: Sequence[str | int | None],
    form: str = "{:,}",
    *,
    unit: float = 1,
    total: float = 0,
) -> Cell:
    """Return one number of a run, "–" if the run has none.

    `form` gets the value in `unit`s, the fields beside the value by name, and `share`,
    the value over `total`.
    """
    value: Any = stats
    parent: Any = {}
    for key in path:
        if isinstance(value, Mapping):
            # A key of a mapping, or an index of a list.
            is_known = key in value
        else:
            is_known = key in range(len(value or ()))
        if not is_known:
            return _NOTHING
        parent = value
        value = value[key]
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return Cell(value, value, tuple(path))
    fields = dict(parent) if isinstance(parent, Mapping) else {}
    fields["share"] = value / (total or 1)
    # A division would make a whole number a float, which is shown otherwise.
    in_units = value if unit == 1 else value / unit
    text = form.format(in_units, **fields)
    return Cell(text, value, tuple(path))


def value_at(stats: RunStats, path: str) -> Any:
    """Return what is at a path such as `similarity.random`; None if a group is None."""
    value: Any = stats
    for key in path.split("."):
        if value is None:
            return None
        value = value[key]
    return value


def filled(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows that hold a value of at least one run."""
    return [row for row in rows if not _is_empty(row)]


def _is_empty(row: TableRow) -> bool:
    return all(cell == _NOTHING for cell in row.cells)


def spoken_bin(low: float, high: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f}"


def short_names(runs: Sequence[str]) -> list[str]:
    """Return the names of runs, RUN or RUN@VARIANT, without their common prefix."""
    # Cut behind each / and @.
    parts_of_runs = [re.findall(r"[^/@]*[/@]?", run)[:-1] for run in runs]
    shared = 0
    while _share_parts(parts_of_runs, shared + 1):
        shared += 1
    return ["".join(parts[shared:]) for parts in parts_of_runs]


def _share_parts(parts_of_runs: Sequence[Sequence[str]], count: int) -> bool:
    """Return whether all names begin with the same `count` parts, and have more."""
    first = parts_of_runs[0][:count]
    return all(len(parts) > count and parts[:count] == first for parts in parts_of_runs)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return labels for runs side by side.

    They are their methods, else their names without a common prefix.
    """
    # A method says most, where it differs in all runs.
    methods = [run.recipe.compose.method for run in runs]
    if len(set(methods)) == len(runs):
        return methods
    return short_names([str(run) for run in runs])


@dataclass(frozen=True)
class Numbers:
    """The numbers of runs side by side, and a name per run."""

    all_stats: Sequence[RunStats]
    names: Sequence[str]

    @property
    def is_extended(self) -> bool:
        """Whether a sequence of at least one of the runs extends a document."""
        return is_extended(self.all_stats)

    def __iter__(self) -> Iterator[RunStats]:
        """Yield the numbers of each run."""
        return iter(self.all_stats)

    def row(
        self,
        name: str,
        *path: str | int | _Indexes,
        form: str = "{:,}",
        totals: Sequence[float] | None = None,
    ) -> TableRow:
        """Return one number of every run.

        A list in its path holds the index of an entry in each run.
        """
        cells = []
        for index, stats in enumerate(self):
            own = [key if isinstance(key, str | int) else key[index] for key in path]
            total = totals[index] if totals else 0
            cells.append(cell(stats, own, form, total=total))
        return TableRow(name, tuple(cells))

    def spread(self, *path: str, form: str, prefix: str = "") -> list[TableRow]:
        """Return a distribution in five numbers.

        `prefix` says of what, where the table holds other numbers too.
        """
        rows = []
        for part, name in LABELS["spread"].items():
            rows.append(self.row(f"{prefix}{name}", *path, part, form=form))
        return filled(rows)

    def entries(
        self, *path: str | int, by: Sequence[str]
    ) -> dict[tuple[Any, ...], list[int | None]]:
        """Return the index of each entry of a list in every run.

        The entries are sorted by the values of their keys `by`.
        """
        indexes_of: dict[tuple[Any, ...], list[int | None]] = {}
        # Runs have different entries, so one is found by its keys and not by its index.
        for run, stats in enumerate(self):
            for index, entry in enumerate(_list_at(stats, path)):
                key = tuple(entry[name] for name in by)
                indexes = indexes_of.setdefault(key, [None] * len(self.all_stats))
                indexes[run] = index
        return dict(sorted(indexes_of.items()))

    def bins(self, *path: str | int, form: str, part: str = "count") -> list[TableRow]:
        """Return a histogram, each bin with its share; `form` names its row."""
        indexes_of = {}
        for (low, high), indexes in self.entries(*path, by=("low", "high")).items():
            is_share = isinstance(low, float) and high < 2
            spoken = f"{low:.2f}" if is_share else spoken_bin(low, high)
            indexes_of[form.format(spoken)] = indexes
        # The share of a bin needs the total of all bins, so rows are made twice.
        totals = [0] * len(self.all_stats)
        for name, indexes in indexes_of.items():
            counts = self.row(name, *path, indexes, part, form="{}").cells
            for run, count in enumerate(counts):
                totals[run] += count.value or 0
        with_share = "{:,} ({share:.1%})"
        rows = []
        for name, indexes in indexes_of.items():
            row = self.row(name, *path, indexes, part, form=with_share, totals=totals)
            rows.append(row._replace(is_bin=True))
        return rows

    def first(self) -> list[TableRow]:
        """Return the few numbers of the first screen of one run."""
        random = value_at(self.all_stats[0], "similarity.random")
        what = "negatives" if self.is_extended else "documents"
        of_random = f" (random pairs: {random['mean']:.2f})" if random else ""
        cosine = f"mean cosine of the {what}{of_random}"
        rows = []
        for path, name in LABELS["amounts"].items():
            rows.append(self.row(name, *path.split(".")))
        rows += [
            self.row(_APART, "distance_tokens", "p50", form="{:,.0f}"),
            self.row(cosine, "similarity", "cosine", "mean", form="{:.2f}"),
        ]
        return filled(rows)

    def settings(self) -> list[TableRow]:
        """Return what distinguishes the runs; words of the recipe are explained."""
        rows = []
        for path, name in {**LABELS["settings"], **LABELS["amounts"]}.items():
            keys = path.split(".")
            # The meanings are listed by the last part of the path.
            meanings = SETTINGS.get(keys[-1], {})
            row = self.row(name, *keys)
            cells = [_explained(shown, meanings) for shown in row.cells]
            row = TableRow(name, tuple(cells))
            rows.append(row)
        rows += [
            self.row(
                "characters per token", "tokens", "chars_per_token", form="{:.3f}"
            ),
            self.row("mean cosine", "similarity", "cosine", "mean", form="{:.4f}"),
            self.row(_APART, "distance_tokens", "p50", form="{:,.0f}"),
        ]
        return filled(rows)


def _list_at(stats: RunStats, path: Sequence[str | int]) -> Sequence[Any]:
    """Return the list at a path of a run's numbers; empty if the run has none."""
    found: Any = stats
    for key in path:
        if not found:
            return ()
        is_known = isinstance(found, Mapping) or int(key) < len(found)
        found = found[key] if is_known else {}
    return list(found)


def _explained(shown: Cell, meanings: Mapping[str, str]) -> Cell:
    if shown.value not in meanings:
        return shown
    return shown._replace(text=f"{shown.text}: {meanings[shown.value]}")
