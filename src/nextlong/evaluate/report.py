"""Report: tables and figures of results, models side by side.

In:  results directories. Out: tables on the console or as files, figures as SVG and
PNG. Every figure is a function of results that draws on a page, and nothing where there
are no results for it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from markupsafe import Markup, escape
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, tables
from nextlong.evaluate.results import ModelResults, read_results
from nextlong.evaluate.tables import lengths_of, tasks_of, title_of
from nextlong.evaluate.task import Measurement, short
from nextlong.picture import html
from nextlong.report import tables as console_tables
from nextlong.text import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")
_SUFFIXES: Final = (".html", ".md", ".tex")
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
_Line = Sequence[tuple[float, float | None]]  # (x, percent)
_Bars = Sequence[tuple[str, float, float | None]]  # name, height, percent
_Ticks = Mapping[float, str] | None
_Page = tuple[str, bytes]  # SVG and PNG


class _Figure(NamedTuple):
    """A figure: its title, and its page as SVG and PNG."""

    title: str
    svg: str
    png: bytes


def show(results: Sequence[ModelResults], console: Console) -> None:
    """Print every table."""
    for table in tables.all_tables(results):
        console_tables.show_title(table.title, console)
        headings = ["", *table.columns]
        console_tables.show_in_blocks(headings, table.all_rows(), console, names=1)
        console_tables.say(f"{table.caption}\n", console, style="dim")


def as_json(results: Sequence[ModelResults]) -> list[Json]:
    """Return every finished task as a plain dictionary."""
    rows = []
    for model in results:
        for result in model.finished:
            row = {
                "model": model.name,
                "task": result.task,
                "length": result.length,
                "score": result.score,
                "comparable": result.is_comparable,
            }
            for name in ("interval", "n", "refused"):
                row[name] = result.values.get(name)
            rows.append(row)
    return rows


def read(
    folders: Sequence[Path], *, protocols: Literal["same", "mixed"] = "same"
) -> list[ModelResults]:
    """Return the results in some folders.

    Raises EvaluateError for two models of the same label, and for results that were
    measured with another n, seed, data or prompt format, unless `protocols` is mixed.
    """
    results = [read_results(folder) for folder in folders]
    if not any(model.finished for model in results):
        raise EvaluateError(
            where=folders[0],
            problem="it holds no finished task",
            fix=f"run nextlong evaluate run MODEL --out {folders[0]} again",
        )
    results = _joined(results)
    mixed = tables.mixed_protocols(results)
    if protocols == "same" and mixed:
        more = f" (and {len(mixed) - 1} more)" if len(mixed) > 1 else ""
        raise EvaluateError(
            where=mixed[0].where,
            problem=f"{mixed[0].difference}{more}",
            fix="evaluate them in the same way, or give --mixed, which compares them "
            "and marks none as best",
        )
    return results


def _joined(results: Sequence[ModelResults]) -> list[ModelResults]:
    """Return the results of each label: two folders may hold tasks of one model.

    Raises EvaluateError for two models, and for a task in both folders.
    """
    by_label: dict[str, ModelResults] = {}
    for model in results:
        earlier = by_label.setdefault(model.name, model)
        if earlier is model:
            continue
        problem = None
        # A server does not say which weights it has.
        weights = {one.model.get("weights") for one in (earlier, model)} - {None}
        if len(weights) > 1:
            problem = "and differ in their weights"
        for result in model.finished:
            if earlier.score(result.task, result.length) is not None:
                problem = f"and both hold {result.task} at {short(result.length)}"
        if problem is not None:
            raise EvaluateError(
                where=model.path,
                problem=f"it and {earlier.path} have the label {model.name!r}, "
                f"{problem}",
                fix="evaluate one of them again with another --label (finished tasks "
                "are reused)",
            )
        finished = (*earlier.finished, *model.finished)
        by_label[model.name] = replace(earlier, finished=finished)
    return list(by_label.values())


def write(
    results: Sequence[ModelResults],
    *,
    outputs: Sequence[Path],
    figures: Path | None,
    console: Console,
) -> None:
    """Write the tables of some results to files by their suffix.

    And the figures as SVG and PNG into a folder.
    """
    for output in outputs:
        _check_output(output)
    shown = list(tables.all_tables(results))
    has_figures = figures is not None or any(
        output.suffix == ".html" for output in outputs
    )
    drawings = _all_figures(results) if has_figures else {}
    for output in outputs:
        store.write_file(output, _page_of(output.suffix, shown, drawings))
        console_tables.say(f"wrote {output}", console)
    if figures is not None:
        with store.explained(figures):
            figures.mkdir(parents=True, exist_ok=True)
            for name, drawing in drawings.items():
                store.write_file(figures / f"{name}.svg", drawing.svg + "\n")
                store.write_file(figures / f"{name}.png", drawing.png)
        count = f"{len(drawings)} figures as SVG and PNG"
        console_tables.say(f"wrote {count} to {figures}", console)


def _check_output(output: Path) -> None:
    if output.suffix not in _SUFFIXES:
        raise EvaluateError(
            where=f"--output {output}",
            problem="its suffix, which chooses the format, is unknown",
            fix=f"end it in {', '.join(_SUFFIXES)}",
        )
    if not output.parent.is_dir():
        raise EvaluateError(
            where=f"--output {output}",
            problem=f"{output.parent} is not a folder",
            fix="create it, or choose another place",
        )


def _page_of(
    suffix: str, shown: Sequence[tables.ScoreTable], drawings: Mapping[str, _Figure]
) -> str:
    """Return tables, and in HTML figures, in the format of a suffix."""
    if suffix == ".md":
        return tables.as_markdown(shown)
    if suffix == ".tex":
        return tables.as_latex(shown)
    rows_of = partial(
        tables.ScoreTable.all_rows, escape=escape, bold=Markup("<b>{}</b>")
    )
    figures = [(drawing.title, Markup(drawing.svg)) for drawing in drawings.values()]
    # One page, which loads nothing from elsewhere.
    return html.render(
        "evaluate/report.html", tables=shown, rows_of=rows_of, figures=figures
    )


def _all_figures(results: Sequence[ModelResults]) -> dict[str, _Figure]:
    """Return every figure that has results, by file name."""
    figures = {}
    for name, title, page in _every_figure(results):
        if page is not None:
            figures[name] = _Figure(title, *page)
    return figures


def _every_figure(
    results: Sequence[ModelResults],
) -> Iterator[tuple[str, str, _Page | None]]:
    """Yield file name, title and page of every figure, None for one without results."""
    names = [model.name for model in results]
    lengths = lengths_of(results)
    page = drawn(
        _lines,
        _score_panels(results),
        names,
        xlabel="length in tokens",
        ticks={length: short(length) for length in lengths},
    )
    yield "score-by-length", "Score by length", page
    page = drawn(_task_types, results)
    yield "task-types", "Score by task type, mean over the lengths measured", page
    page = drawn(_lines, _shots_panels(results), names, xlabel="shots")
    yield "icl-by-shots", "In-context learning by shots", page
    page = drawn(
        _bars,
        _attention(results),
        bars="attention on the first third, percent",
        line="LongQA, percent",
    )
    yield "attention-longqa", "Attention on the first third, and LongQA", page
    page = drawn(_dependence, results)
    yield "dependence", "Gain from earlier meta-chunks by distance", page
    page = drawn(
        _bars,
        _similarity(results),
        bars="median cosine of the negatives",
        line="mean over task types, percent",
    )
    yield "similarity", "Similarity of the negatives, and score", page
    yield "by-setting", "Average score by a setting of the data", _by_setting(results)
    for model in results:
        file = re.sub(r"[^\w.-]+", "-", model.name)
        title = f"Needle in a haystack: {model.name}"
        yield f"needle-{file}", title, drawn(_needle_map, model)


def _score_panels(results: Sequence[ModelResults]) -> dict[str, list[_Line]]:
    """Return a line per model, score by length, for each category."""
    lengths = lengths_of(results)
    panels = {}
    for category, tasks in _shared(results, "Needle").items():
        lines: list[_Line] = []
        for model in results:
            lines.append([(length, _value(model, tasks, length)) for length in lengths])
        panels[title_of(category, tasks)] = lines
    return panels


def _shots_panels(results: Sequence[ModelResults]) -> dict[str, list[_Line]]:
    """Return a line per model, score by shots, for each task of in-context learning."""
    panels = {}
    for task in tasks_of("ICL"):
        lines = [_by_shots(model, task) for model in results]
        if any(lines):
            panels[task.name] = lines
    return panels


def _by_shots(model: ModelResults, task: Measurement) -> _Line:
    points: list[tuple[float, float]] = []
    for result in model.of_task(task.name):
        # Imported results hold no samples that say the shots.
        for sample in result.values["samples"][:1]:
            shots = sample.get("details", {}).get("shots")
            if shots is not None:
                points.append((float(shots), result.score))
    return sorted(points)


def _attention(results: Sequence[ModelResults]) -> _Bars:
    """Return each model's attention on the first third, and its score in LongQA."""
    rows = []
    for model in results:
        shares = [result.score for result in model.of_task("attention")]
        if shares:
            tasks = tasks_of("LongQA")
            scores = [_value(model, tasks, length) for length in lengths_of([model])]
            score = _mean(scores)
            rows.append((model.name, fmean(shares), score))
    return rows


def _similarity(results: Sequence[ModelResults]) -> _Bars:
    """Return the negatives' similarity of each model's data, and its score.

    As in Figure 7 of the paper.
    """
    lengths = lengths_of(results)
    shared = _shared(results)
    rows = []
    for model in results:
        cosine = model.model.get("negatives_cosine")
        if cosine is not None:
            scores = [_over_categories(model, shared, length) for length in lengths]
            score = _mean(scores)
            rows.append((model.name, float(cosine), score))
    return rows


def _by_setting(results: Sequence[ModelResults]) -> _Page | None:
    """Draw a curve per length, and their mean, over the number in the models' labels.

    Labels are KEY=NUMBER, say chunk.max_chars=512 (paper, Figure 6); nothing is drawn
    where they have several keys.
    """
    keys = set()
    models = []
    for model in results:
        match = _LABEL_NUMBER.fullmatch(model.name)
        if match:
            keys.add(match[1])
            models.append((int(match[2]), model))
    shared = _shared(results)
    if len(models) < 2 or len(keys) > 1 or not shared:
        return None

    lengths = lengths_of(results)
    curves: list[list[tuple[float, float | None]]] = [[] for _ in (*lengths, "mean")]
    for value, model in sorted(models, key=lambda pair: pair[0]):
        scores = [_over_categories(model, shared, length) for length in lengths]
        for curve, score in zip(curves, [*scores, _mean(scores)], strict=True):
            curve.append((value, score))
    names = [*map(short, lengths), "mean"]
    return drawn(_lines, {"": curves}, names, xlabel=keys.pop())


def drawn(
    draw: Callable[..., None], *arguments: object, **keywords: object
) -> _Page | None:
    """Return what a function draws, as SVG and PNG; None if it draws nothing."""
    matplotlib = required("matplotlib")
    figure_class = required("matplotlib.figure").Figure
    # The same results give the same bytes: fixed ids, no date; text stays text.
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
    return text[text.index("<svg") :], png.getvalue()


def style(number: int) -> dict[str, Any]:
    """Return colour, marker and width of the line of model `number`."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def _value(
    model: ModelResults, tasks: Sequence[Measurement], length: int
) -> float | None:
    score = tables.mean_score(model, tasks, length)
    return None if score is None else score.value


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _shared(
    results: Sequence[ModelResults], *more: str
) -> dict[str, list[Measurement]]:
    """Return the tasks of each category that every model was measured on."""
    shared = {}
    for category in (*tables.CATEGORIES, *more):
        tasks = tables.shared_tasks(results, category)
        if tasks:
            shared[category] = tasks
    return shared


def _over_categories(
    model: ModelResults, shared: Mapping[str, Sequence[Measurement]], length: int
) -> float | None:
    """Return the mean score over the categories that every model was measured on."""
    return _mean(_value(model, tasks, length) for tasks in shared.values())


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


def _lines(
    figure: Figure,
    panels: Mapping[str, Sequence[_Line]],
    names: Sequence[str],
    *,
    xlabel: str,
    ticks: _Ticks = None,
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
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, lines, names)
        axes.set_title(title, fontsize=10)
        axes.set(xlabel=xlabel, xscale="log", ylim=(-2, 102))
        labels = _ticks_of(lines) if ticks is None else ticks
        axes.set_xticks(list(labels), list(labels.values()))
        axes.minorticks_off()
    grid[0][0].set_ylabel("percent")
    _legend(figure, grid[0][0], names)


def _panel(axes: Axes, lines: Sequence[_Line], names: Sequence[str]) -> None:
    for number, (name, line) in enumerate(zip(names, lines, strict=True)):
        measured = [(x, percent) for x, percent in line if percent is not None]
        # Shape (points, 2), also where there are none.
        points = np.array(measured).reshape(-1, 2)
        axes.plot(*points.T, label=name, **style(number))


def _ticks_of(lines: Sequence[_Line]) -> dict[float, str]:
    """Return a tick for every x of some lines."""
    positions = set[float]()
    for line in lines:
        positions.update(x for x, _ in line)
    return {x: f"{x:g}" for x in sorted(positions)}


def _task_types(figure: Figure, results: Sequence[ModelResults]) -> None:
    """Draw a group of bars per category, and in it a bar per model."""
    lengths = lengths_of(results)
    shared = _shared(results)
    if not shared:
        return
    axes = figure.subplots()
    positions = np.arange(len(shared))
    width = 0.8 / len(results)
    for number, model in enumerate(results):
        # The bars of the models are side by side, centred on their category.
        offset = (number - (len(results) - 1) / 2) * width
        heights = []
        for tasks in shared.values():
            mean = _mean(_value(model, tasks, length) for length in lengths)
            heights.append(mean or 0.0)
        bars = axes.bar(
            positions + offset,
            heights,
            width * 0.94,
            label=model.name,
            color=_COLOURS[number % len(_COLOURS)],
        )
        labels = [f"{height:.1f}" for height in heights]
        axes.bar_label(bars, labels, fontsize=8, padding=2)
    titles = [
        title_of(category, tasks).replace(", ", "\n")
        for category, tasks in shared.items()
    ]
    axes.set_xticks(positions, titles)
    axes.set(ylabel="percent", ylim=(0, 102))
    _legend(figure, axes, [model.name for model in results])


def _bars(figure: Figure, rows: _Bars, *, bars: str, line: str) -> None:
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


def _dependence(figure: Figure, results: Sequence[ModelResults]) -> None:
    """Draw the gain of the probe `dependency` with its interval.

    By the distance to the nearest earlier meta-chunk.
    """
    measured = []
    for model in results:
        measured += [(model.name, result) for result in model.of_task("dependency")]
    if not measured:
        return
    axes = figure.subplots()
    for number, (name, result) in enumerate(measured):
        # Rows of geometric mean distance, gain, and the two ends of its interval.
        rows = []
        for part in result.values["by_distance"]:
            from_tokens = max(part["from_tokens"], 1)
            distance = (from_tokens * part["to_tokens"]) ** 0.5
            rows.append((distance, part["gain_nats"], *part["interval"]))
        distances, gains, lows, highs = np.array(rows, float).T
        # A bootstrap interval need not hold the mean.
        errors = np.maximum((gains - lows, highs - gains), 0)
        axes.errorbar(distances, gains, errors, capsize=3, label=name, **style(number))
    axes.axhline(0, color="#57606a", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
    axes.set_xlabel("tokens to the nearest earlier meta-chunk")
    axes.set_ylabel("gain, nats per token")
    _legend(figure, axes, [name for name, _ in measured])


def _needle_map(figure: Figure, model: ModelResults) -> None:
    """Draw how often the needle was found, depth × length (paper, App. A)."""
    found_at = _needles_found(model)
    if not found_at:
        return
    depths = sorted({depth for depth, _ in found_at})
    lengths = sorted({length for _, length in found_at})
    # Cells that were not measured stay NaN, which is drawn as a gap.
    shape = (len(depths), len(lengths))
    grid = np.full(shape, np.nan)
    for (depth, length), shares in found_at.items():
        row = depths.index(depth)
        column = lengths.index(length)
        grid[row, column] = 100 * fmean(shares)
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
                # The dark end of the colours is that of low values.
                color="white" if value < 60 else "black",
            )
    length_labels = [short(length) for length in lengths]
    depth_labels = [f"{depth:.0f} %" for depth in depths]
    axes.set_xticks(np.arange(len(lengths)), length_labels)
    axes.set_yticks(np.arange(len(depths)), depth_labels)
    axes.set(xlabel="length in tokens", ylabel="depth of the needle")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="found, percent", shrink=0.9)


def _needles_found(model: ModelResults) -> dict[tuple[float, int], list[float]]:
    """Return the shares found of each depth in percent and length."""
    found_at: dict[tuple[float, int], list[float]] = {}
    for result in (*model.of_task("needle"), *model.of_task("needle_35")):
        for sample in result.values["samples"]:
            if not sample.get("refused"):
                depth = float(sample["details"]["depth"])
                shares = found_at.setdefault((depth, result.length or 0), [])
                shares.append(float(sample["scores"]["found"]))
    return found_at
