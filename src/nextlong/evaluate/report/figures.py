"""Figures: scores as the paper draws them.

Every figure is a function of results; a figure without data is left out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

import numpy as np

from nextlong.evaluate import required
from nextlong.evaluate.report.tables import CATEGORIES, category_score, lengths_of, shared_tasks, tasks_of, title_of
from nextlong.evaluate.results import ModelResults
from nextlong.evaluate.task import Task, short

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")


def all_figures(results: Sequence[ModelResults]) -> Iterator[Figure]:
    """Yield every figure that there are results for."""
    drawings: list[tuple[str, str, Callable[[Any, Sequence[ModelResults]], bool]]] = [
        ("score-by-length", "Score by length", _by_length),
        ("task-types", "Score by task type, mean over the lengths measured", _task_types),
        ("icl-by-shots", "In-context learning by shots", _icl),
        ("attention-longqa", "Attention on the first third, and LongQA", _attention),
        ("dependence", "Gain from earlier meta-chunks by distance", _dependence),
        ("similarity", "Similarity of the negatives, and score", _similarity),
        ("by-setting", "Average score by a setting of the data", _by_setting),
    ]
    for name, title, draw in drawings:
        if figure := drawn(lambda page, draw=draw: draw(page, results)):  # type: ignore[misc]
            yield Figure(name, title, *figure)
    for one in results:
        if figure := drawn(partial(_needle_map, results=[one])):
            name = re.sub(r"[^\w.-]+", "-", one.name)
            yield Figure(f"needle-{name}", f"Needle in a haystack: {one.name}", *figure)


def _legend(figure: Any, axes: Any, results: Sequence[ModelResults]) -> None:
    if len(results) > 1:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(results), 4), frameon=False)


def _value(one: ModelResults, category: str, length: int, tasks: Sequence[Task] | None = None) -> float | None:
    score = category_score(one, category, length, tasks)
    return None if score is None else score.value


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _shared(results: Sequence[ModelResults], *more: str) -> dict[str, list[Task]]:
    """Return the tasks of each category that every model was measured on."""
    return {category: tasks for category in (*CATEGORIES, *more) if (tasks := shared_tasks(results, category))}


def _over_categories(one: ModelResults, length: int, shared: Mapping[str, Sequence[Task]]) -> float | None:
    return _mean(_value(one, category, length, tasks) for category, tasks in shared.items())


def _by_length(figure: Any, results: Sequence[ModelResults]) -> bool:
    lengths, shared = lengths_of(results), _shared(results, "Needle")
    if not shared:
        return False
    columns = min(len(shared), 3)
    rows = -(-len(shared) // columns)
    figure.set_size_inches(2.6 * columns + 1.8, 2.5 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(shared) :]:
        axes.set_visible(False)
    for axes, (category, tasks) in zip(grid.flat, shared.items(), strict=False):
        for number, one in enumerate(results):
            _draw_line(axes, [(length, _value(one, category, length, tasks)) for length in lengths], one.name, number)
        axes.set_title(title_of(category, tasks), fontsize=10)
        axes.set_ylim(-2, 102)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(lengths), [short(length) for length in lengths])
        axes.minorticks_off()
        axes.set_xlabel("length in tokens")
    grid[0][0].set_ylabel("percent")
    _legend(figure, grid[0][0], results)
    return True


def _task_types(figure: Any, results: Sequence[ModelResults]) -> bool:
    lengths, shared = lengths_of(results), _shared(results)
    # Mean over the lengths by model and category; a category that no model has is left out.
    means = {
        one.name: {
            name: _mean(_value(one, name, length, tasks) for length in lengths) for name, tasks in shared.items()
        }
        for one in results
    }
    categories = [name for name in shared if any(row[name] is not None for row in means.values())]
    if not categories:
        return False
    axes, width = figure.subplots(), 0.8 / len(results)
    for number, (name, row) in enumerate(means.items()):
        # The bars of the models stand side by side, centred on their category.
        places = np.arange(len(categories)) + (number - (len(results) - 1) / 2) * width
        heights = [row[category] or 0.0 for category in categories]
        bars = axes.bar(places, heights, width * 0.94, label=name, color=_COLOURS[number % len(_COLOURS)])
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], fontsize=8, padding=2)
    labels = [title_of(category, shared[category]).replace(", ", "\n") for category in categories]
    axes.set_xticks(range(len(categories)), labels)
    axes.set(ylabel="percent", ylim=(0, 102))
    _legend(figure, axes, results)
    return True


def _icl(figure: Any, results: Sequence[ModelResults]) -> bool:
    """Draw a panel per data set and a line per model (paper, Figure 4)."""
    points = {task.name: [_shots_and_scores(one, task.name) for one in results] for task in tasks_of("ICL")}
    points = {name: lines for name, lines in points.items() if any(lines)}
    if not points:
        return False
    figure.set_size_inches(2.3 * len(points) + 1, 3.0)
    panels = figure.subplots(1, len(points), squeeze=False, sharey=True)[0]
    for axes, (task, lines) in zip(panels, points.items(), strict=True):
        for number, (one, line) in enumerate(zip(results, lines, strict=True)):
            _draw_line(axes, line, one.name, number)
        axes.set(title=task, xlabel="shots", xscale="log", ylim=(-2, 102))
        ticks = sorted({shots for line in lines for shots, _ in line})
        ticks = ticks if len(ticks) < 4 else ticks[::2]
        axes.set_xticks(ticks, [f"{shots:g}" for shots in ticks])
        axes.minorticks_off()
    panels[0].set_ylabel("accuracy, percent")
    _legend(figure, panels[0], results)
    return True


def _shots_and_scores(one: ModelResults, task: str) -> list[tuple[float, float]]:
    """Return (shots, score) of a task at each length; imported results hold no samples that say the shots."""
    points = []
    for result in (result for result in one.finished if result.task == task):
        shots = [sample.get("details", {}).get("shots") for sample in result.values["samples"]]
        points += [(float(shown), result.score) for shown in shots[:1] if shown is not None]
    return sorted(points)


def _attention(figure: Any, results: Sequence[ModelResults]) -> bool:
    rows = []
    for one in results:
        if shares := [result.score for result in one.finished if result.task == "attention"]:
            longqa = _mean(_value(one, "LongQA", length) for length in lengths_of([one]))
            rows.append((one.name, fmean(shares), longqa))
    return _bars_and_line(figure, rows, bars="attention on the first third, percent", line="LongQA, percent")


def _similarity(figure: Any, results: Sequence[ModelResults]) -> bool:
    """Draw the negatives' similarity of each model's data, and its score (paper, Figure 7)."""
    shared, lengths = _shared(results), lengths_of(results)
    rows = []
    for one in results:
        if (cosine := one.model.get("negatives_cosine")) is not None:
            score = _mean(_over_categories(one, length, shared) for length in lengths)
            rows.append((one.name, float(cosine), score))
    return _bars_and_line(figure, rows, bars="median cosine of the negatives", line="mean over task types, percent")


def _bars_and_line(figure: Any, rows: Sequence[tuple[str, float, float | None]], *, bars: str, line: str) -> bool:
    if not rows:
        return False
    axes = figure.subplots()
    names, heights, scores = zip(*rows, strict=True)
    axes.bar_label(axes.bar(names, heights, color=_COLOURS[5], width=0.55), fmt="%.2f", label_type="center", fontsize=9)
    axes.set_ylabel(bars)
    if any(score is not None for score in scores):
        right = axes.twinx()
        _draw_line(right, list(enumerate(scores)), line, 1)
        right.set_ylabel(line, color=_COLOURS[1])
        right.spines.right.set_visible(True)
    return True


def _dependence(figure: Any, results: Sequence[ModelResults]) -> bool:
    axes = figure.subplots()
    has_lines = False
    for number, one in enumerate(results):
        for parts in (result.values["by_distance"] for result in one.finished if result.task == "dependency"):
            x = [float((max(part["from_tokens"], 1) * part["to_tokens"]) ** 0.5) for part in parts]
            gains, errors = ([part[name] for part in parts] for name in ("gain_nats", "gain_standard_error"))
            colour = _COLOURS[number % len(_COLOURS)]
            axes.errorbar(x, gains, errors, marker="o", capsize=3, color=colour, label=one.name)
            has_lines = True
    axes.axhline(0, color="#57606a", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
    axes.set(xlabel="tokens to the nearest earlier meta-chunk", ylabel="gain, nats per token")
    _legend(figure, axes, results)
    return has_lines


def _by_setting(figure: Any, results: Sequence[ModelResults]) -> bool:
    """Draw a curve per length, and their mean, from labels KEY=NUMBER, say chunk.max_chars=512 (paper, Figure 6)."""
    labelled = [(label, one) for one in results if (label := _LABEL_NUMBER.fullmatch(one.name))]
    keys = {label[1] for label, _ in labelled}
    shared, lengths = _shared(results), lengths_of(results)
    if len(labelled) < 2 or len(keys) != 1 or not shared:
        return False
    axes = figure.subplots()
    ordered = sorted((int(label[2]), one) for label, one in labelled)
    for number, length in enumerate(lengths):
        points = [(value, _over_categories(one, length, shared)) for value, one in ordered]
        _draw_line(axes, points, short(length), number)
    means = [(value, _mean(_over_categories(one, length, shared) for length in lengths)) for value, one in ordered]
    axes.plot(*zip(*means, strict=True), "k--", label="mean", linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks([value for value, _ in ordered], [f"{value:,}" for value, _ in ordered])
    axes.minorticks_off()
    axes.set(xlabel=keys.pop(), ylabel="mean over task types, percent")
    figure.legend(loc="outside right upper", frameon=False)
    return True


_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = "osD^vPX"


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
        {"svg.hashsalt": "nextlong", "svg.fonttype": "none", "font.size": 10}
        | {"axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = figure_class(figsize=(7.2, 4.2), layout="constrained")
        if not draw(figure):
            return None
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    text = svg.getvalue()
    return text[text.index("<svg") :], png.getvalue()


def style(number: int) -> dict[str, Any]:
    """Return colour, marker and width of the line of model `number`."""
    look = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
    return {**look, "markersize": 4, "linewidth": 1.6}


def _draw_line(axes: Any, points: Sequence[tuple[float, float | None]], name: str, number: int) -> None:
    """Draw the points that are there, as the line of model `number`."""
    there = [(x, y) for x, y in points if y is not None]
    axes.plot([x for x, _ in there], [y for _, y in there], label=name, **style(number))


def _needle_map(figure: Any, results: Sequence[ModelResults]) -> bool:
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
    # Cells that were not measured stay NaN, which is drawn as a gap.
    for (depth, length), scores in scores_at.items():
        grid[depths.index(depth), lengths.index(length)] = 100 * fmean(scores)
    axes = figure.subplots()
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value < 60 else "black"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(lengths)), [short(int(length)) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:.0f} %" for depth in depths])
    axes.set(xlabel="length in tokens", ylabel="depth of the needle")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="found, percent", shrink=0.9)
    return True
