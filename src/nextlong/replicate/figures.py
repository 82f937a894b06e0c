"""Figures: scores as the paper draws them, with their standard deviation over seeds as error bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from nextlong.evaluate.report.figures import COLOURS, Figure, drawn, lengths_axis, needle_map, style
from nextlong.evaluate.task import short
from nextlong.evaluate.tasks.copying import PAIRS
from nextlong.replicate.data import HELD_OUT_NEGATIVES
from nextlong.replicate.run import Replicated
from nextlong.replicate.scores import (
    COLUMNS_BY_LENGTH,
    Column,
    ScoreRow,
    distance_bins,
    measured_columns,
    score_rows,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_COLUMNS_BY_SETTING: Final = ("key_values", "copying", "gain-top", "gain-random-corpus")
_GREY: Final = "#57606a"
Draw = Callable[["Canvas"], bool]  # returns whether there is anything to draw


def all_figures(done: Replicated) -> Iterator[Figure]:
    """Yield every figure of every experiment."""
    for experiment in done.recipe.experiments:
        rows = score_rows(done, experiment)
        arms = [row for row in rows if row.arm is not None]
        thirds = {third: [row.values(f"{third}_third") for row in rows] for third in ("first", "last")}
        cosines = [[row.arm.stats.similarity.p50] if row.arm and row.arm.stats.similarity else [] for row in arms]
        bars: dict[str, Draw] = {
            third: partial(_bars_and_line, rows=rows, label=f"{third} third, percent of attention", values=values)
            for third, values in thirds.items()
        }
        similarity = partial(_bars_and_line, rows=arms, label="median cosine of the negatives", values=cosines)
        drawings: list[tuple[str, str, Draw]] = [
            ("score-by-length", "scores by length (as the paper's Figure 3)", partial(_by_length, rows=rows)),
            ("gain-by-distance", "gain from earlier meta-chunks by distance", partial(_by_distance, rows=rows)),
            ("first-third", "attention on the first third, and values chosen (as Figure 5)", bars["first"]),
            ("last-third", "attention on the last third, and values chosen (as Figure 9)", bars["last"]),
        ]
        if experiment == "granularity":
            drawings.append(("curve", "scores by chunk.max_chars (as Figure 6)", partial(_by_setting, rows=rows)))
        if experiment == "negatives":
            drawings.append(("similarity", "similarity of the negatives, and scores (as Figure 7)", similarity))
        for row in arms:
            title = f"needle in a haystack, {row.name}, all seeds"
            assert row.arm is not None, "arms have one"
            drawings.append((f"needle-{row.arm.value}", title, partial(needle_map, results=row.results)))
        for name, title, draw in drawings:
            if (page := drawn(draw)) is not None:
                yield Figure(f"{experiment}-{name}", f"{experiment.capitalize()}: {title}", *page)


def _points(axes: Axes, points: Sequence[tuple[float, Sequence[float]]], name: str, number: int) -> None:
    """Draw means with their standard deviation; points without values are skipped."""
    spreads = [(x, summary) for x, values in points if (summary := spread(values)) is not None]
    means, errors = [summary.mean for _, summary in spreads], [summary.deviation or 0.0 for _, summary in spreads]
    axes.errorbar([x for x, _ in spreads], means, errors, label=name, capsize=2, **style(number))


def _panels(figure: Canvas, titles: Sequence[str]) -> list[Axes]:
    columns = min(len(titles), 3)
    lines = -(-len(titles) // columns)
    figure.set_size_inches(2.9 * columns + 0.6, 2.7 * lines + 0.8)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(title, fontsize=10)
    return grid[: len(titles)]


def _legend(figure: Canvas, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)


def _columns(rows: Sequence[ScoreRow], keys: Sequence[str]) -> list[Column]:
    return [column for column in measured_columns(rows) if column.key in keys]


def _by_length(figure: Canvas, *, rows: Sequence[ScoreRow]) -> bool:
    columns = _columns(rows, COLUMNS_BY_LENGTH)
    if not columns:
        return False
    panels = _panels(figure, [column.title for column in columns])
    for axes, column in zip(panels, columns, strict=True):
        lengths = sorted({length for row in rows for scores in row.seeds for length in scores.at[column.key]})
        for number, row in enumerate(rows):
            _points(axes, [(length, row.values_at(column.key, length)) for length in lengths], row.name, number)
        axes.set_ylabel(column.unit)
        if column.key == "key_values":
            axes.axhline(100 / PAIRS, color=_GREY, linewidth=0.8, linestyle="--")  # chance
        if column.unit == "percent":
            axes.set_ylim(-2, max(30.0, axes.get_ylim()[1]))
        lengths_axis(axes, lengths)
    _legend(figure, panels[0])
    return True


def _by_distance(figure: Canvas, *, rows: Sequence[ScoreRow]) -> bool:
    panels = _panels(figure, [f"negatives: {side}" for side in HELD_OUT_NEGATIVES])
    for axes, side in zip(panels, HELD_OUT_NEGATIVES, strict=True):
        for number, row in enumerate(rows):
            middles = [
                ((max(low, 1) * high) ** 0.5, row.gains(side, (low, high))) for low, high in distance_bins(rows, side)
            ]
            _points(axes, middles, row.name, number)
        axes.axhline(0, color=_GREY, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
        axes.set(xlabel="tokens to the nearest", ylabel="gain, nats per token")
    _legend(figure, panels[0])
    return True


def _bars_and_line(figure: Canvas, *, rows: Sequence[ScoreRow], label: str, values: Sequence[Sequence[float]]) -> bool:
    """Draw values as bars and the share of values chosen as a line over them, as the paper's Figures 5 and 7."""
    heights = [spread(each) for each in values]
    if all(height is None for height in heights):
        return False
    axes, places = figure.subplots(), np.arange(len(rows))
    means, errors = zip(*((one.mean, one.deviation or 0.0) if one else (0.0, 0.0) for one in heights), strict=True)
    bars = axes.bar(places, means, 0.55, yerr=errors, color=COLOURS[5], capsize=3)
    axes.bar_label(bars, fmt="%.2f", label_type="center", fontsize=9)
    axes.set_xticks(places, [row.name for row in rows])
    axes.set_ylabel(label)
    chosen = [row.values("key_values") for row in rows]
    if any(chosen):
        right = axes.twinx()
        _points(right, list(zip(places.tolist(), chosen, strict=True)), "", 1)
        right.set_ylabel("value chosen, percent", color=COLOURS[1])
        right.spines.right.set_visible(True)
    return True


def _by_setting(figure: Canvas, *, rows: Sequence[ScoreRow]) -> bool:
    columns = _columns(rows, _COLUMNS_BY_SETTING)
    arms = [(int(row.arm.value), row) for row in rows if row.arm is not None]
    panels = _panels(figure, [column.title for column in columns])
    for axes, column in zip(panels, columns, strict=True):
        _points(axes, [(value, row.values(column.key)) for value, row in arms], column.title, 0)
        axes.set_xscale("log", base=2)
        axes.set_xticks([value for value, _ in arms], [f"{value:,}" for value, _ in arms], rotation=30)
        axes.minorticks_off()
        axes.set(xlabel="chunk.max_chars", ylabel=column.unit)
    return bool(columns)
