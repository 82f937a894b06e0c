"""Figures: scores as the paper draws them, with their spread over seeds as bars of error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from nextlong.evaluate.lengths import short
from nextlong.evaluate.probes.key_values import PAIRS
from nextlong.evaluate.report.draw import COLOURS, Figure, drawn, lengths_axis, needle_map, style
from nextlong.replicate.carry_out import Replicated
from nextlong.replicate.collect import COLUMNS, Column, Row, measured_columns, rows, spread
from nextlong.replicate.data import HELD_OUT_NEGATIVES

_BY_LENGTH: Final = ("key_values", "copying", "needle", "json_kv", "ruler")
_OF_SETTING: Final = ("key_values", "copying", "gain-top", "gain-random-corpus")
Draw = Callable[[Any], bool]


def all_figures(done: Replicated) -> Iterator[Figure]:
    """Yield every figure of every experiment."""
    for experiment in done.recipe.experiments:
        measured = rows(done, experiment)
        drawings: list[tuple[str, str, Draw]] = [
            ("score-by-length", "scores by length (as the paper's Figure 3)", partial(_by_length, measured=measured)),
            ("gain-by-distance", "gain from earlier meta-chunks by distance", partial(_by_distance, measured=measured)),
            (
                "first-third",
                "attention on the first third, and values chosen (as Figure 5)",
                _bars("first_third", measured),
            ),
            (
                "last-third",
                "attention on the last third, and values chosen (as Figure 9)",
                _bars("last_third", measured),
            ),
        ]
        if experiment == "granularity":
            drawings.append(
                ("curve", "scores by chunk.max_chars (as Figure 6)", partial(_by_setting, measured=measured))
            )
        if experiment == "negatives":
            drawings.append(
                (
                    "similarity",
                    "similarity of the negatives, and scores (as Figure 7)",
                    partial(_similarity, measured=measured),
                )
            )
        for row in measured:
            if row.arm is not None:
                title = f"needle in a haystack, {row.name}, all seeds"
                drawings.append((f"needle-{row.arm.value}", title, partial(needle_map, results=row.results)))
        for name, title, draw in drawings:
            if (page := drawn(draw)) is not None:
                yield Figure(f"{experiment}-{name}", f"{experiment.capitalize()}: {title}", *page)


def _points(axes: Any, points: Sequence[tuple[float, Sequence[float]]], name: str, number: int) -> None:
    """Draw means with their standard deviation; points without values are left out."""
    there = [(x, summary) for x, values in points if (summary := spread(values)) is not None]
    errors = [summary.deviation or 0.0 for _, summary in there]
    axes.errorbar(
        [x for x, _ in there], [summary.mean for _, summary in there], errors, label=name, capsize=2, **style(number)
    )


def _panels(figure: Any, count: int) -> list[Any]:
    columns = min(count, 3)
    lines = -(-count // columns)
    figure.set_size_inches(2.9 * columns + 0.6, 2.7 * lines + 0.8)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_visible(False)
    return grid[:count]


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)


def _by_length(figure: Any, *, measured: Sequence[Row]) -> bool:
    columns = [column for column in measured_columns(measured) if column.key in _BY_LENGTH]
    if not columns:
        return False
    panels = _panels(figure, len(columns))
    for axes, column in zip(panels, columns, strict=True):
        lengths = sorted({length for row in measured for scores in row.seeds for length in scores.at[column.key]})
        for number, row in enumerate(measured):
            _points(axes, [(length, row.values_at(column.key, length)) for length in lengths], row.name, number)
        axes.set_title(column.title, fontsize=10)
        axes.set_ylabel(column.unit)
        if column.key == "key_values":
            axes.axhline(100 / PAIRS, color="#57606a", linewidth=0.8, linestyle="--")  # chance
        if column.unit == "percent":
            axes.set_ylim(-2, max(30.0, axes.get_ylim()[1]))
        lengths_axis(axes, lengths)
    _legend(figure, panels[0])
    return True


def _by_distance(figure: Any, *, measured: Sequence[Row]) -> bool:
    panels = _panels(figure, len(HELD_OUT_NEGATIVES))
    for axes, side in zip(panels, HELD_OUT_NEGATIVES, strict=True):
        parts = sorted({part for row in measured for scores in row.seeds for part in scores.gains[side]})
        for number, row in enumerate(measured):
            _points(
                axes,
                [((max(low, 1) * high) ** 0.5, row.gains(side, (low, high))) for low, high in parts],
                row.name,
                number,
            )
        axes.axhline(0, color="#57606a", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
        axes.set(xlabel="tokens to the nearest", ylabel="gain, nats a token")
        axes.set_title(f"negatives: {side}", fontsize=10)
    _legend(figure, panels[0])
    return True


def _bars(key: str, measured: Sequence[Row]) -> Draw:
    return partial(_bars_and_line, measured=measured, key=key, values=[row.values(key) for row in measured])


def _bars_and_line(figure: Any, *, measured: Sequence[Row], key: str, values: Sequence[Sequence[float]]) -> bool:
    """Draw a number as bars and the share of values chosen as a line over them, as the paper's Figures 5 and 7."""
    heights = [spread(each) for each in values]
    if all(height is None for height in heights):
        return False
    axes = figure.subplots()
    places = np.arange(len(measured))
    errors = [height.deviation or 0.0 if height else 0.0 for height in heights]
    bars = axes.bar(
        places, [height.mean if height else 0.0 for height in heights], 0.55, yerr=errors, color=COLOURS[5], capsize=3
    )
    axes.bar_label(bars, fmt="%.2f", label_type="center", fontsize=9)
    axes.set_xticks(places, [row.name for row in measured])
    axes.set_ylabel(_axis(key))
    lines = [row.values("key_values") for row in measured]
    if any(lines):
        right = axes.twinx()
        _points(right, list(zip(places.tolist(), lines, strict=True)), "", 1)
        right.set_ylabel("value chosen, percent", color=COLOURS[1])
        right.spines.right.set_visible(True)
    return True


def _axis(key: str) -> str:
    column: Column | None = next((one for one in COLUMNS if one.key == key), None)
    return "median cosine of the negatives" if column is None else f"{column.title.lower()}, {column.unit}"


def _similarity(figure: Any, *, measured: Sequence[Row]) -> bool:
    arms = [row for row in measured if row.arm is not None]
    cosines = [[row.arm.stats.similarity.p50] if row.arm and row.arm.stats.similarity else [] for row in arms]
    return _bars_and_line(figure, measured=arms, key="cosine", values=cosines)


def _by_setting(figure: Any, *, measured: Sequence[Row]) -> bool:
    columns = [column for column in measured_columns(measured) if column.key in _OF_SETTING]
    arms = [(int(row.arm.value), row) for row in measured if row.arm is not None]
    panels = _panels(figure, len(columns))
    for axes, column in zip(panels, columns, strict=True):
        _points(axes, [(value, row.values(column.key)) for value, row in arms], column.title, 0)
        axes.set_xscale("log", base=2)
        axes.set_xticks([value for value, _ in arms], [f"{value:,}" for value, _ in arms], rotation=30)
        axes.minorticks_off()
        axes.set(xlabel="chunk.max_chars", ylabel=column.unit)
        axes.set_title(column.title, fontsize=10)
    return bool(columns)
