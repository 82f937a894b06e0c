"""Plots: lines, bars and maps of numbers, drawn by matplotlib as SVG and PNG.

In:  numbers with their names. Out: the bytes of both pictures, the same for the same
numbers. Every function that draws leaves the figure empty where it has no numbers.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
_MARKERS: Final = "osD^vPX"
_MAX_COLUMNS: Final = 3  # of panels
Line = Sequence[tuple[float, float | None]]  # (x, percent)
Bars = Sequence[tuple[str, float, float | None]]  # name, height, percent


class Plot(NamedTuple):
    """A picture in both formats."""

    svg: str
    png: bytes


class Measured(NamedTuple):
    """A number at a place, with the ends of its interval."""

    x: float
    value: float
    low: float
    high: float


def drawn(
    draw: Callable[..., None], *arguments: object, **keywords: object
) -> Plot | None:
    """Return what a function draws; None if it draws nothing.

    Raises NextlongError without matplotlib.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        figure_class = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise NextlongError(
            where="matplotlib",
            problem="drawing figures needs it, and it is not installed",
            fix="pip install 'nextlong[png]'",
        ) from None
    # The same numbers give the same bytes: fixed ids, no date; text stays text.
    settings = {
        "svg.hashsalt": "nextlong",
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure = figure_class(figsize=(7.2, 4.2), layout="constrained")
        draw(figure, *arguments, **keywords)
        if not figure.axes:
            return None
        svg = io.StringIO()
        png = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    text = svg.getvalue()
    # Without the XML declaration, which has no place in an HTML page.
    return Plot(text[text.index("<svg") :], png.getvalue())


def style(number: int) -> dict[str, Any]:
    """Return colour, marker and width of line `number`."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def _legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    if len(names) > 1:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(len(names), 4),
            frameon=False,
        )


def lines(
    figure: Figure,
    panels: Mapping[str, Sequence[Line]],
    names: Sequence[str],
    *,
    xlabel: str,
    ticks: Mapping[float, str] | None = None,
) -> None:
    """Draw a panel per title, and in it a line per name, over a logarithmic axis."""
    if not panels:
        return
    # A grid of at most three columns; unused panels are hidden.
    rows = -(-len(panels) // _MAX_COLUMNS)
    columns = min(len(panels), _MAX_COLUMNS)
    figure.set_size_inches(max(2.6 * columns + 1.8, 5.0), 2.5 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, of_panel) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, of_panel, names)
        axes.set_title(title, fontsize=10)
        axes.set(xlabel=xlabel, xscale="log", ylim=(-2, 102))
        labels = _ticks_of(of_panel) if ticks is None else ticks
        axes.set_xticks(list(labels), list(labels.values()))
        axes.minorticks_off()
    grid[0][0].set_ylabel("percent")
    _legend(figure, grid[0][0], names)


def _panel(axes: Axes, of_panel: Sequence[Line], names: Sequence[str]) -> None:
    for number, (name, line) in enumerate(zip(names, of_panel, strict=True)):
        measured = [(x, percent) for x, percent in line if percent is not None]
        # Shape (points, 2), also where there are none.
        points = np.array(measured).reshape(-1, 2)
        axes.plot(*points.T, label=name, **style(number))


def _ticks_of(of_panel: Sequence[Line]) -> dict[float, str]:
    """Return a tick for every x of some lines."""
    positions = set[float]()
    for line in of_panel:
        positions.update(x for x, _ in line)
    return {x: f"{x:g}" for x in sorted(positions)}


def grouped_bars(
    figure: Figure, groups: Mapping[str, Sequence[float]], names: Sequence[str]
) -> None:
    """Draw a group of bars per title, and in it a bar of percents per name."""
    if not groups:
        return
    axes = figure.subplots()
    positions = np.arange(len(groups))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        # The bars of a group are side by side, centred on their title.
        offset = (number - (len(names) - 1) / 2) * width
        heights = [percents[number] for percents in groups.values()]
        bars = axes.bar(
            positions + offset,
            heights,
            width * 0.94,
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
        )
        labels = [f"{height:.1f}" for height in heights]
        axes.bar_label(bars, labels, fontsize=8, padding=2)
    axes.set_xticks(positions, list(groups))
    axes.set(ylabel="percent", ylim=(0, 102))
    _legend(figure, axes, names)


def bars_and_line(figure: Figure, rows: Bars, *, bars: str, line: str) -> None:
    """Draw a bar per row, and over them the line of a second number in percent."""
    if not rows:
        return
    axes = figure.subplots()
    names, heights, scores = zip(*rows, strict=True)
    drawn_bars = axes.bar(names, heights, color=_COLOURS[5], width=0.55)
    axes.bar_label(drawn_bars, fmt="%.2f", label_type="center", fontsize=9)
    axes.set_ylabel(bars)
    if any(score is not None for score in scores):
        right = axes.twinx()
        # Unknown scores become NaN, which is drawn as a gap.
        percents = np.array(scores, float)
        right.plot(names, percents, **style(1))
        right.set_ylabel(line, color=_COLOURS[1])
        right.spines.right.set_visible(True)


def intervals(
    figure: Figure,
    curves: Sequence[tuple[str, Sequence[Measured]]],
    *,
    xlabel: str,
    ylabel: str,
    tick: Callable[[int], str],
) -> None:
    """Draw named curves with the interval of each point, over an axis of doublings."""
    if not curves:
        return
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves):
        x, values, lows, highs = np.array(points, float).T
        # A bootstrap interval need not hold the mean.
        errors = np.maximum((values - lows, highs - values), 0)
        axes.errorbar(x, values, errors, capsize=3, label=name, **style(number))
    axes.axhline(0, color="#57606a", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: tick(round(x)))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    _legend(figure, axes, [name for name, _ in curves])


def percent_map(
    figure: Figure,
    percents: Mapping[tuple[float, int], float],
    *,
    row_tick: Callable[[float], str],
    column_tick: Callable[[int], str],
    labels: tuple[str, str, str],
) -> None:
    """Draw percents by row and column.

    labels: of the rows, the columns and the colours
    """
    if not percents:
        return
    rows = sorted({row for row, _ in percents})
    columns = sorted({column for _, column in percents})
    # Cells that were not measured stay NaN, which is drawn as a gap.
    shape = (len(rows), len(columns))
    grid = np.full(shape, np.nan)
    for (row, column), percent in percents.items():
        grid[rows.index(row), columns.index(column)] = percent
    axes = figure.subplots()
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    for (y, x), value in np.ndenumerate(grid):
        if not np.isnan(value):
            axes.text(
                x,
                y,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                # The dark end of the colours is that of low values.
                color="white" if value < 60 else "black",
            )
    axes.set_xticks(np.arange(len(columns)), list(map(column_tick, columns)))
    axes.set_yticks(np.arange(len(rows)), list(map(row_tick, rows)))
    row_label, column_label, colour_label = labels
    axes.set(xlabel=column_label, ylabel=row_label)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label=colour_label, shrink=0.9)
