"""Report: tables and figures of results, models side by side, on the console or as files.

Every figure is a function of results that draws on a page and returns whether there was something to draw.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from markupsafe import Markup
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.results import ModelResults, read_results
from nextlong.evaluate.tables import (
    CATEGORIES,
    all_tables,
    as_latex,
    as_markdown,
    category_score,
    lengths_of,
    mixed_protocols,
    shared_tasks,
    tasks_of,
    text_of,
    title_of,
)
from nextlong.evaluate.task import Task, short
from nextlong.picture import html
from nextlong.report import tables as console_tables
from nextlong.text import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")
_SUFFIXES: Final = (".html", ".md", ".tex")
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = "osD^vPX"


def show(results: Sequence[ModelResults], console: Console) -> None:
    """Print every table."""
    for table in all_tables(results):
        console_tables.show_title(table.title, console)
        rows = [table.row(number, str, "{}") for number in range(len(table.rows))]
        console_tables.show_in_blocks(["", *table.columns], rows, console, names=1)
        console_tables.say(f"{table.about}\n", console, style="dim")


def as_json(results: Sequence[ModelResults]) -> list[Json]:
    """Return every finished task as a plain dictionary."""
    return [
        {"model": one.name, "task": result.task, "length": result.length, "score": result.score}
        | {name: result.values.get(name) for name in ("interval", "n", "refused")}
        for one in results
        for result in one.finished
    ]


def read(folders: Sequence[Path], *, protocols: Literal["same", "mixed"] = "same") -> list[ModelResults]:
    """Return the results in some folders.

    Raises EvaluateError for results of the same label, and for those that were measured with another n, seed, data or prompt
    format, unless `protocols` is mixed.
    """
    if not folders:
        raise EvaluateError("report: no results are named; run nextlong evaluate report RESULTS… -o table.html")
    results = [read_results(folder) for folder in folders]
    if not any(one.finished for one in results):
        raise EvaluateError(
            f"{folders[0]} holds no finished task; run nextlong evaluate MODEL --out {folders[0]} again"
        )
    names = [one.name for one in results]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise EvaluateError(
            f"two results have the label {duplicate!r}; evaluate one of them again with another --label (finished tasks are reused)"
        )
    if protocols == "same" and (mixed := mixed_protocols(results)):
        more = f" (and {len(mixed) - 1} more)" if mixed[1:] else ""
        raise EvaluateError(
            f"{mixed[0]}{more}; evaluate them in the same way, or give --mixed, which compares them and marks none as best"
        )
    return results


def write(results: Sequence[ModelResults], *, outputs: Sequence[Path], figures: Path | None, console: Console) -> None:
    """Write the tables of some results to files by their suffix, and the figures as SVG and PNG into a folder."""
    for output in outputs:
        if output.suffix not in _SUFFIXES:
            raise EvaluateError(f"--output {output}: end it in {', '.join(_SUFFIXES)}, which choose the format")
        if not output.parent.is_dir():
            raise EvaluateError(
                f"--output {output}: {output.parent} is not a folder; create it, or choose another place"
            )
    tables = list(all_tables(results))
    made = _all_figures(results) if figures or any(output.suffix == ".html" for output in outputs) else {}
    for output in outputs:
        if output.suffix == ".html":  # one page, which loads nothing from elsewhere
            drawings = [(title, Markup(svg)) for title, svg, _ in made.values()]
            page = html.render("evaluate/report.html", tables=tables, text_of=text_of, figures=drawings)
        else:
            page = as_markdown(tables) if output.suffix == ".md" else as_latex(tables)
        store.write_text(output, page)
        console_tables.say(f"wrote {output}", console)
    if figures is not None:
        with store.explained(figures):
            figures.mkdir(parents=True, exist_ok=True)
            for name, (_, svg, png) in made.items():
                store.write_text(figures / f"{name}.svg", svg + "\n")
                store.write_bytes(figures / f"{name}.png", png)
        console_tables.say(f"wrote {len(made)} figures as SVG and PNG to {figures}", console)


def _all_figures(results: Sequence[ModelResults]) -> dict[str, tuple[str, str, bytes]]:
    """Return every figure that there are results for, by its file's name: its title, and itself as SVG and PNG."""
    drawings: list[tuple[str, str, Callable[[Figure, Sequence[ModelResults]], bool], Sequence[ModelResults]]] = [
        ("score-by-length", "Score by length", _by_length, results),
        ("task-types", "Score by task type, mean over the lengths measured", _task_types, results),
        ("icl-by-shots", "In-context learning by shots", _icl, results),
        ("attention-longqa", "Attention on the first third, and LongQA", _attention, results),
        ("dependence", "Gain from earlier meta-chunks by distance", _dependence, results),
        ("similarity", "Similarity of the negatives, and score", _similarity, results),
        ("by-setting", "Average score by a setting of the data", _by_setting, results),
    ]
    for one in results:
        name = re.sub(r"[^\w.-]+", "-", one.name)
        drawings.append((f"needle-{name}", f"Needle in a haystack: {one.name}", _needle_map, [one]))
    drawn_figures = ((name, title, drawn(draw, shown)) for name, title, draw, shown in drawings)
    return {name: (title, *figure) for name, title, figure in drawn_figures if figure}


def drawn(draw: Callable[..., bool], *arguments: object) -> tuple[str, bytes] | None:
    """Return what a function draws on a page, by its arguments, as SVG and PNG; None if it says that there is nothing to draw."""
    matplotlib = required("matplotlib")
    figure_class = required("matplotlib.figure").Figure
    # The same results give the same bytes: ids without chance, no date; text stays text.
    with matplotlib.rc_context(
        {"svg.hashsalt": "nextlong", "svg.fonttype": "none", "font.size": 10}
        | {"axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = figure_class(figsize=(7.2, 4.2), layout="constrained")
        if not draw(figure, *arguments):
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


def _draw_line(axes: Axes, points: Sequence[tuple[float, float | None]], name: str, number: int) -> None:
    """Draw the points that are there, as the line of model `number`."""
    there = [(x, y) for x, y in points if y is not None]
    axes.plot([x for x, _ in there], [y for _, y in there], label=name, **style(number))


def _legend(figure: Figure, axes: Axes, results: Sequence[ModelResults]) -> None:
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


def _by_length(figure: Figure, results: Sequence[ModelResults]) -> bool:
    lengths, shared = lengths_of(results), _shared(results, "Needle")
    if not shared:
        return False
    columns = min(len(shared), 3)
    rows = -(-len(shared) // columns)
    # One panel per category, in a grid of at most three columns; unused panels are hidden.
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


def _task_types(figure: Figure, results: Sequence[ModelResults]) -> bool:
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


def _icl(figure: Figure, results: Sequence[ModelResults]) -> bool:
    """Draw a panel per data set and a line per model (paper, Figure 4)."""
    points: dict[str, list[list[tuple[float, float]]]] = {}
    for task in tasks_of("ICL"):
        lines = []
        for one in results:
            # (shots, score) at each length; imported results hold no samples that say the shots.
            found = ((r, [s.get("details", {}).get("shots") for s in r.values["samples"][:1]]) for r in one.finished)
            lines.append(sorted((float(s), r.score) for r, shots in found for s in shots if r.task == task.name and s))
        if any(lines):
            points[task.name] = lines
    if not points:
        return False
    figure.set_size_inches(2.3 * len(points) + 1, 3.0)
    panels = figure.subplots(1, len(points), squeeze=False, sharey=True)[0]
    for axes, (name, lines) in zip(panels, points.items(), strict=True):
        for number, (one, line) in enumerate(zip(results, lines, strict=True)):
            _draw_line(axes, line, one.name, number)
        axes.set(title=name, xlabel="shots", xscale="log", ylim=(-2, 102))
        ticks = sorted({shots for line in lines for shots, _ in line})
        ticks = ticks if len(ticks) < 4 else ticks[::2]
        axes.set_xticks(ticks, [f"{shots:g}" for shots in ticks])
        axes.minorticks_off()
    panels[0].set_ylabel("accuracy, percent")
    _legend(figure, panels[0], results)
    return True


def _attention(figure: Figure, results: Sequence[ModelResults]) -> bool:
    rows = []
    for one in results:
        if shares := [result.score for result in one.finished if result.task == "attention"]:
            longqa = _mean(_value(one, "LongQA", length) for length in lengths_of([one]))
            rows.append((one.name, fmean(shares), longqa))
    return _bars_and_line(figure, rows, bars="attention on the first third, percent", line="LongQA, percent")


def _similarity(figure: Figure, results: Sequence[ModelResults]) -> bool:
    """Draw the negatives' similarity of each model's data, and its score (paper, Figure 7)."""
    shared, lengths = _shared(results), lengths_of(results)
    rows = []
    for one in results:
        if (cosine := one.model.get("negatives_cosine")) is not None:
            score = _mean(_over_categories(one, length, shared) for length in lengths)
            rows.append((one.name, float(cosine), score))
    return _bars_and_line(figure, rows, bars="median cosine of the negatives", line="mean over task types, percent")


def _bars_and_line(figure: Figure, rows: Sequence[tuple[str, float, float | None]], *, bars: str, line: str) -> bool:
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


def _dependence(figure: Figure, results: Sequence[ModelResults]) -> bool:
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


def _by_setting(figure: Figure, results: Sequence[ModelResults]) -> bool:
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


def _needle_map(figure: Figure, results: Sequence[ModelResults]) -> bool:
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
