"""Draw: what every figure is made with: matplotlib's pages as SVG and PNG, colours, lines, the axis of lengths, the needle's map.

Colours are Okabe and Ito's, told apart by the colour-blind.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

from nextlong.evaluate.extra import required
from nextlong.evaluate.lengths import short
from nextlong.evaluate.results import Results

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS: Final = "osD^vPX"


@dataclass(frozen=True)
class Figure:
    """A drawn figure: its file name, what it shows, and itself as bytes."""

    name: str
    title: str
    svg: str
    png: bytes


def drawn(draw: Callable[[Any], bool]) -> tuple[str, bytes] | None:
    """Return what a function draws on a page, as SVG and PNG; None if it says that there is nothing to draw."""
    matplotlib = required("matplotlib")
    figure_class = required("matplotlib.figure").Figure
    # The same results give the same bytes: ids without chance, no date; text stays text.
    with matplotlib.rc_context(
        {
            "svg.hashsalt": "nextlong",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = figure_class(figsize=(7.2, 4.2), layout="constrained")
        if not draw(figure):
            return None
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    text = svg.getvalue()
    return text[text.index("<svg") :], png.getvalue()


def lengths_axis(axes: Any, lengths: Sequence[int]) -> None:
    """Give axes a logarithmic scale of lengths in tokens."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [short(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("length in tokens")


def style(number: int) -> dict[str, Any]:
    """Return colour, marker and width of the line of model `number`."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def draw_line(axes: Any, points: Sequence[tuple[float, float | None]], name: str, number: int) -> None:
    """Draw the points that are there, as the line of model `number`."""
    there = [(x, y) for x, y in points if y is not None]
    axes.plot([x for x, _ in there], [y for _, y in there], label=name, **style(number))


def needle_map(figure: Any, results: Sequence[Results]) -> bool:
    """Draw how often the needle was found, depth × length, over the samples of all results (paper, App. A)."""
    scores_at: dict[tuple[float, int], list[float]] = {}
    for result in (result for one in results for result in one.finished if result.task in ("needle", "needle_35")):
        for sample in result.values["samples"]:
            if not sample.get("refused"):
                place = float(sample["details"]["depth"]), result.length or 0
                scores_at.setdefault(place, []).append(float(sample["scores"]["found"]))
    if not scores_at:
        return False
    depths, lengths = (sorted({place[axis] for place in scores_at}) for axis in (0, 1))
    grid = np.full((len(depths), len(lengths)), np.nan)
    for (depth, length), scores in scores_at.items():
        grid[depths.index(depth), lengths.index(length)] = 100 * fmean(scores)
    axes = figure.subplots()
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            axes.text(
                column,
                row,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if value < 60 else "black",
            )
    axes.set_xticks(range(len(lengths)), [short(int(length)) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:.0f} %" for depth in depths])
    axes.set(xlabel="length in tokens", ylabel="depth of the needle")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="found, percent", shrink=0.9)
    return True
