"""Figures: scores as the paper draws them.

Every figure is a function of results; one that there is nothing for is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

import numpy as np

from nextlong.evaluate.lengths import short
from nextlong.evaluate.report import paper
from nextlong.evaluate.report.draw import COLOURS, Figure, draw_line, drawn, lengths_axis, needle_map
from nextlong.evaluate.results import Results
from nextlong.evaluate.task import Task

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")


def all_figures(results: Sequence[Results]) -> Iterator[Figure]:
    """Yield every figure that there are results for."""
    drawings: list[tuple[str, str, Callable[[Any], bool]]] = [
        ("score-by-length", "Score by length", lambda figure: _by_length(figure, results)),
        (
            "task-types",
            "Score by task type, mean over the lengths measured",
            lambda figure: _task_types(figure, results),
        ),
        ("icl-by-shots", "In-context learning by shots", lambda figure: _icl(figure, results)),
        ("attention-longqa", "Attention on the first third, and LongQA", lambda figure: _attention(figure, results)),
        ("dependence", "Gain from earlier meta-chunks by distance", lambda figure: _dependence(figure, results)),
        ("similarity", "Similarity of the negatives, and score", lambda figure: _similarity(figure, results)),
        ("by-setting", "Average score by a setting of the data", lambda figure: _by_setting(figure, results)),
    ]
    for one in results:
        title = f"Needle in a haystack: {one.name}"
        drawings.append((f"needle-{_file_name(one.name)}", title, partial(needle_map, results=[one])))
    for name, title, draw in drawings:
        figure = drawn(draw)
        if figure is not None:
            yield Figure(name, title, *figure)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def _by_length(figure: Any, results: Sequence[Results]) -> bool:
    lengths = paper.lengths_of(results)
    tasks = {category: paper.shared_tasks(results, category) for category in (*paper.CATEGORIES, "Needle")}
    there = [category for category in tasks if tasks[category]]
    if not there:
        return False
    columns = min(len(there), 3)
    rows = -(-len(there) // columns)
    figure.set_size_inches(2.6 * columns + 1.8, 2.5 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(there) :]:
        axes.set_visible(False)
    for axes, category in zip(grid.flat, there, strict=False):
        for number, one in enumerate(results):
            points = [(length, _value(one, category, length, tasks[category])) for length in lengths]
            draw_line(axes, points, one.name, number)
        axes.set_title(paper.title_of(category, tasks[category]), fontsize=10)
        axes.set_ylim(-2, 102)
        lengths_axis(axes, lengths)
    grid[0][0].set_ylabel("percent")
    _legend(figure, grid[0][0], results)
    return True


def _legend(figure: Any, axes: Any, results: Sequence[Results]) -> None:
    if len(results) > 1:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(results), 4), frameon=False)


def _task_types(figure: Any, results: Sequence[Results]) -> bool:
    lengths = paper.lengths_of(results)
    tasks = [paper.shared_tasks(results, category) for category in paper.CATEGORIES]
    values = {
        one.name: [
            _mean(_value(one, name, length, category_tasks) for length in lengths)
            for name, category_tasks in zip(paper.CATEGORIES, tasks, strict=True)
        ]
        for one in results
    }
    kept = [n for n in range(len(paper.CATEGORIES)) if any(row[n] is not None for row in values.values())]
    if not kept:
        return False
    axes = figure.subplots()
    width = 0.8 / len(results)
    for number, (name, row) in enumerate(values.items()):
        places = np.arange(len(kept)) + (number - (len(results) - 1) / 2) * width
        heights = [row[n] or 0.0 for n in kept]
        bars = axes.bar(places, heights, width * 0.94, label=name, color=COLOURS[number % len(COLOURS)])
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(kept)), [paper.title_of(paper.CATEGORIES[n], tasks[n]).replace(", ", "\n") for n in kept])
    axes.set(ylabel="percent", ylim=(0, 102))
    _legend(figure, axes, results)
    return True


def _mean_measured(one: Results, category: str, lengths: Sequence[int]) -> float | None:
    return _mean(_value(one, category, length) for length in lengths)


def _value(one: Results, category: str, length: int, tasks: Sequence[Task] | None = None) -> float | None:
    score = paper.category_score(one, category, length, tasks)
    return None if score is None else score.value


def _icl(figure: Any, results: Sequence[Results]) -> bool:
    """Draw a panel a data set and a line a model (paper, Figure 4)."""
    tasks = [task for task in paper.tasks_of("ICL") if any(_shots_and_scores(one, task.name) for one in results)]
    if not tasks:
        return False
    figure.set_size_inches(2.3 * len(tasks) + 1, 3.0)
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for number, one in enumerate(results):
            draw_line(axes, _shots_and_scores(one, task.name), one.name, number)
        axes.set(title=task.name, xlabel="shots", xscale="log", ylim=(-2, 102))
        ticks = sorted({shots for one in results for shots, _ in _shots_and_scores(one, task.name)})
        ticks = ticks if len(ticks) < 4 else ticks[::2]
        axes.set_xticks(ticks, [f"{shots:g}" for shots in ticks])
        axes.minorticks_off()
    panels[0].set_ylabel("accuracy, percent")
    _legend(figure, panels[0], results)
    return True


def _shots_and_scores(one: Results, task: str) -> list[tuple[float, float]]:
    """Return (shots, score) of a task at each length; imported results hold no samples that say the shots."""
    points = []
    for result in one.finished:
        if result.task != task:
            continue
        details = [sample.get("details", {}) for sample in result.values["samples"]]
        shots = [one["shots"] for one in details if "shots" in one]
        points += [(float(shown), result.score) for shown in shots[:1]]
    return sorted(points)


def _attention(figure: Any, results: Sequence[Results]) -> bool:
    rows = []
    for one in results:
        shares = [result.score for result in one.finished if result.task == "attention"]
        rows += [(one.name, fmean(shares), _mean_measured(one, "LongQA", paper.lengths_of([one])))] if shares else []
    return _bars_and_line(figure, rows, bars="attention on the first third, percent", line="LongQA, percent")


def _similarity(figure: Any, results: Sequence[Results]) -> bool:
    """Draw the negatives' similarity of each model's data, and its score (paper, Figure 7)."""
    tasks, lengths = _measured_tasks(results), paper.lengths_of(results)
    rows = []
    for one in results:
        if (cosine := one.model.get("negatives_cosine")) is not None:
            score = _mean(_over_categories(one, length, tasks) for length in lengths)
            rows.append((one.name, float(cosine), score))
    return _bars_and_line(figure, rows, bars="median cosine of the negatives", line="mean over task types, percent")


def _bars_and_line(figure: Any, rows: Sequence[tuple[str, float, float | None]], *, bars: str, line: str) -> bool:
    if not rows:
        return False
    axes = figure.subplots()
    drawn = axes.bar([name for name, _, _ in rows], [height for _, height, _ in rows], color=COLOURS[5], width=0.55)
    axes.bar_label(drawn, fmt="%.2f", label_type="center", fontsize=9)
    axes.set_ylabel(bars)
    if any(score is not None for _, _, score in rows):
        right = axes.twinx()
        draw_line(right, [(float(n), score) for n, (_, _, score) in enumerate(rows)], line, 1)
        right.set_ylabel(line, color=COLOURS[1])
        right.spines.right.set_visible(True)
    return True


def _measured_tasks(results: Sequence[Results]) -> dict[str, list[Task]]:
    return {category: shared for category in paper.CATEGORIES if (shared := paper.shared_tasks(results, category))}


def _dependence(figure: Any, results: Sequence[Results]) -> bool:
    axes = figure.subplots()
    drawn = False
    for number, one in enumerate(results):
        for dependency in (result for result in one.finished if result.task == "dependency"):
            parts = dependency.values["by_distance"]
            x = [float((max(part["from_tokens"], 1) * part["to_tokens"]) ** 0.5) for part in parts]
            colour = COLOURS[number % len(COLOURS)]
            errors = [part["gain_standard_error"] for part in parts]
            axes.errorbar(
                x, [part["gain_nats"] for part in parts], errors, marker="o", capsize=3, color=colour, label=one.name
            )
            drawn = True
    axes.axhline(0, color="#57606a", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
    axes.set(xlabel="tokens to the nearest earlier meta-chunk", ylabel="gain, nats a token")
    _legend(figure, axes, results)
    return drawn


def _by_setting(figure: Any, results: Sequence[Results]) -> bool:
    """Draw the curves of a setting, say chunk.max_chars, from labels KEY=NUMBER (paper, Figure 6): one a length, and their mean."""
    named = [(label, one) for one in results if (label := _LABEL_NUMBER.fullmatch(one.name))]
    keys = {label[1] for label, _ in named}
    if len(named) < 2 or len(keys) != 1:
        return False
    axes = figure.subplots()
    ordered = sorted((int(label[2]), one) for label, one in named)
    lengths = paper.lengths_of(results)
    tasks = _measured_tasks(results)
    if not tasks:
        return False
    for number, length in enumerate(lengths):
        draw_line(
            axes, [(value, _over_categories(one, length, tasks)) for value, one in ordered], short(length), number
        )
    means = [(value, _mean(_over_categories(one, length, tasks) for length in lengths)) for value, one in ordered]
    axes.plot(*zip(*means, strict=True), "k--", label="mean", linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks([value for value, _ in ordered], [f"{value:,}" for value, _ in ordered])
    axes.minorticks_off()
    axes.set(xlabel=keys.pop(), ylabel="mean over task types, percent")
    figure.legend(loc="outside right upper", frameon=False)
    return True


def _over_categories(one: Results, length: int, tasks: Mapping[str, Sequence[Task]]) -> float | None:
    return _mean(_value(one, category, length, category_tasks) for category, category_tasks in tasks.items())


def _mean(values: Any) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
