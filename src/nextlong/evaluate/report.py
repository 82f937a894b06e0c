"""Report: tables and figures of results, models side by side, on the console or as files.

Every figure is a function of results that draws on a page, and nothing where there are no results for it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from markupsafe import Markup, escape
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, tables
from nextlong.evaluate.results import ModelResults, read_results
from nextlong.evaluate.tables import lengths_of, tasks_of, title_of
from nextlong.evaluate.task import Task, short
from nextlong.picture import html
from nextlong.report import tables as console_tables
from nextlong.text import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")
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
_Line = Sequence[tuple[float, float | None]]  # (x, percent)
_Ticks = Mapping[float, str] | None


def show(results: Sequence[ModelResults], console: Console) -> None:
    """Print every table."""
    for table in tables.all_tables(results):
        console_tables.show_title(table.title, console)
        console_tables.show_in_blocks(
            ["", *table.columns], table.all_rows(), console, names=1
        )
        console_tables.say(f"{table.caption}\n", console, style="dim")


def as_json(results: Sequence[ModelResults]) -> list[Json]:
    """Return every finished task as a plain dictionary."""
    return [
        {
            "model": one.name,
            "task": result.task,
            "length": result.length,
            "score": result.score,
        }
        | {name: result.values.get(name) for name in ("interval", "n", "refused")}
        for one in results
        for result in one.finished
    ]


def read(
    folders: Sequence[Path], *, protocols: Literal["same", "mixed"] = "same"
) -> list[ModelResults]:
    """Return the results in some folders.

    Raises EvaluateError for results of the same label, and for those that were measured with another n, seed, data or prompt
    format, unless `protocols` is mixed.
    """
    if not folders:
        raise EvaluateError(
            "report: no results are named; run nextlong evaluate report RESULTS… -o table.html"
        )
    results = [read_results(folder) for folder in folders]
    if not any(one.finished for one in results):
        cure = f"run nextlong evaluate MODEL --out {folders[0]} again"
        raise EvaluateError(f"{folders[0]} holds no finished task; {cure}")
    names = [one.name for one in results]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        cure = "evaluate one of them again with another --label (finished tasks are reused)"
        raise EvaluateError(f"two results have the label {duplicate!r}; {cure}")
    if protocols == "same" and (mixed := tables.mixed_protocols(results)):
        more = f" (and {len(mixed) - 1} more)" if mixed[1:] else ""
        cure = "evaluate them in the same way, or give --mixed, which compares them and marks none as best"
        raise EvaluateError(f"{mixed[0]}{more}; {cure}")
    return results


def write(
    results: Sequence[ModelResults],
    *,
    outputs: Sequence[Path],
    figures: Path | None,
    console: Console,
) -> None:
    """Write the tables of some results to files by their suffix, and the figures as SVG and PNG into a folder."""
    for output in outputs:
        if output.suffix not in (".html", ".md", ".tex"):
            raise EvaluateError(
                f"--output {output}: end it in .html, .md, .tex, which choose the format"
            )
        if not output.parent.is_dir():
            cure = "create it, or choose another place"
            raise EvaluateError(
                f"--output {output}: {output.parent} is not a folder; {cure}"
            )
    shown = list(tables.all_tables(results))
    made = (
        _all_figures(results)
        if figures or any(output.suffix == ".html" for output in outputs)
        else {}
    )
    for output in outputs:
        if output.suffix == ".html":  # one page, which loads nothing from elsewhere
            rows_of = partial(
                tables.ScoreTable.all_rows, escape=escape, bold=Markup("<b>{}</b>")
            )
            drawings = [(title, Markup(svg)) for title, svg, _ in made.values()]
            page = html.render(
                "evaluate/report.html", tables=shown, rows_of=rows_of, figures=drawings
            )
        else:
            page = (
                tables.as_markdown(shown)
                if output.suffix == ".md"
                else tables.as_latex(shown)
            )
        store.write_file(output, page)
        console_tables.say(f"wrote {output}", console)
    if figures is not None:
        with store.explained(figures):
            figures.mkdir(parents=True, exist_ok=True)
            for name, (_, svg, png) in made.items():
                store.write_file(figures / f"{name}.svg", svg + "\n")
                store.write_file(figures / f"{name}.png", png)
        console_tables.say(
            f"wrote {len(made)} figures as SVG and PNG to {figures}", console
        )


def _all_figures(results: Sequence[ModelResults]) -> dict[str, tuple[str, str, bytes]]:
    """Return every figure that has results, by file name: its title, SVG and PNG."""
    names, lengths, shared = (
        [one.name for one in results],
        lengths_of(results),
        _shared(results),
    )

    def over_categories(one: ModelResults, length: int) -> float | None:
        return _mean(_value(one, tasks, length) for tasks in shared.values())

    at_lengths = dict(zip(lengths, map(short, lengths), strict=True))
    panels = {
        title_of(category, tasks): [
            [(length, _value(one, tasks, length)) for length in lengths]
            for one in results
        ]
        for category, tasks in _shared(results, "Needle").items()
    }

    def by_shots(one: ModelResults, task: Task) -> _Line:
        # Imported results hold no samples that say the shots.
        first = (
            (result.score, sample)
            for result in one.of(task.name)
            for sample in result.values["samples"][:1]
        )
        return sorted(
            (float(n), score)
            for score, one in first
            if (n := one.get("details", {}).get("shots")) is not None
        )

    icl = {
        task.name: [by_shots(one, task) for one in results] for task in tasks_of("ICL")
    }
    shots = {name: lines for name, lines in icl.items() if any(lines)}
    attention = [
        (
            one.name,
            fmean(found),
            _mean(
                _value(one, tasks_of("LongQA"), length) for length in lengths_of([one])
            ),
        )
        for one in results
        if (found := [result.score for result in one.of("attention")])
    ]
    # The negatives' similarity of each model's data, and its score (paper, Figure 7).
    similarity = [
        (
            one.name,
            float(cosine),
            _mean(over_categories(one, length) for length in lengths),
        )
        for one in results
        if (cosine := one.model.get("negatives_cosine")) is not None
    ]
    label, attended = (
        "length in tokens",
        ("attention on the first third, percent", "LongQA, percent"),
    )
    cosine_score = ("median cosine of the negatives", "mean over task types, percent")
    figures = [
        (
            "score-by-length",
            "Score by length",
            drawn(_lines, panels, names, xlabel=label, ticks=at_lengths),
        ),
        (
            "task-types",
            "Score by task type, mean over the lengths measured",
            drawn(_task_types, results),
        ),
        (
            "icl-by-shots",
            "In-context learning by shots",
            drawn(_lines, shots, names, xlabel="shots"),
        ),
        (
            "attention-longqa",
            "Attention on the first third, and LongQA",
            drawn(_bars, attention, *attended),
        ),
        (
            "dependence",
            "Gain from earlier meta-chunks by distance",
            drawn(_dependence, results),
        ),
        (
            "similarity",
            "Similarity of the negatives, and score",
            drawn(_bars, similarity, *cosine_score),
        ),
    ]
    # A curve per length, and their mean, from labels KEY=NUMBER, say chunk.max_chars=512 (paper, Figure 6).
    labelled = [
        (match[1], int(match[2]), one)
        for one in results
        if (match := _LABEL_NUMBER.fullmatch(one.name))
    ]
    if len(labelled) > 1 and len({key for key, _, _ in labelled}) == 1 and shared:
        ordered = sorted((value, one) for _, value, one in labelled)
        curves = [
            [(value, over_categories(one, length)) for value, one in ordered]
            for length in lengths
        ]
        curves.append(
            [
                (value, _mean(over_categories(one, length) for length in lengths))
                for value, one in ordered
            ]
        )
        made = drawn(
            _lines, {"": curves}, [*at_lengths.values(), "mean"], xlabel=labelled[0][0]
        )
        figures.append(("by-setting", "Average score by a setting of the data", made))
    for one in results:
        file = re.sub(r"[^\w.-]+", "-", one.name)
        figures.append(
            (
                f"needle-{file}",
                f"Needle in a haystack: {one.name}",
                drawn(_needle_map, one),
            )
        )
    return {name: (title, *figure) for name, title, figure in figures if figure}


def drawn(
    draw: Callable[..., None], *arguments: object, **keywords: object
) -> tuple[str, bytes] | None:
    """Return the page that a function draws, as SVG and PNG; None if it draws nothing."""
    matplotlib, figure_class = (
        required("matplotlib"),
        required("matplotlib.figure").Figure,
    )
    # The same results give the same bytes: fixed ids, no date; text stays text.
    settings = {"svg.hashsalt": "nextlong", "svg.fonttype": "none", "font.size": 10}
    with matplotlib.rc_context(
        settings | {"axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = figure_class(figsize=(7.2, 4.2), layout="constrained")
        draw(figure, *arguments, **keywords)
        if not figure.axes:
            return None
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    text = svg.getvalue()
    return text[text.index("<svg") :], png.getvalue()


def style(number: int) -> dict[str, Any]:
    """Return colour, marker and width of the line of model `number`."""
    look = {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }
    return {**look, "markersize": 4, "linewidth": 1.6}


def _value(one: ModelResults, tasks: Sequence[Task], length: int) -> float | None:
    return getattr(tables.mean_score(one, tasks, length), "value", None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _shared(results: Sequence[ModelResults], *more: str) -> dict[str, list[Task]]:
    """Return the tasks of each category that every model was measured on."""
    shared = {
        category: tables.shared_tasks(results, category)
        for category in (*tables.CATEGORIES, *more)
    }
    return {category: tasks for category, tasks in shared.items() if tasks}


def _legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    if len(names) > 1:
        handles, ncols = axes.get_legend_handles_labels(), min(len(names), 4)
        figure.legend(*handles, loc="outside lower center", ncols=ncols, frameon=False)


def _lines(
    figure: Figure,
    panels: Mapping[str, Sequence[_Line]],
    names: Sequence[str],
    *,
    xlabel: str,
    ticks: _Ticks = None,
) -> None:
    """Draw a panel per title and in it a line per name, percent over a logarithmic axis."""
    if not panels:
        return
    # A grid of at most three columns; unused panels are hidden.
    rows, columns = -(-len(panels) // 3), min(len(panels), 3)
    figure.set_size_inches(max(2.6 * columns + 1.8, 5.0), 2.5 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        for number, (name, line) in enumerate(zip(names, lines, strict=True)):
            points = np.array([one for one in line if one[1] is not None]).reshape(
                -1, 2
            )
            axes.plot(*points.T, label=name, **style(number))
        axes.set_title(title, fontsize=10)
        axes.set(xlabel=xlabel, xscale="log", ylim=(-2, 102))
        places = (
            {x: f"{x:g}" for x in sorted({x for line in lines for x, _ in line})}
            if ticks is None
            else ticks
        )
        axes.set_xticks(list(places), list(places.values()))
        axes.minorticks_off()
    grid[0][0].set_ylabel("percent")
    _legend(figure, grid[0][0], names)


def _task_types(figure: Figure, results: Sequence[ModelResults]) -> None:
    lengths, shared = lengths_of(results), _shared(results)
    if not shared:
        return
    axes, width = figure.subplots(), 0.8 / len(results)
    for number, one in enumerate(results):
        # The bars of the models are side by side, centred on their category.
        places = np.arange(len(shared)) + (number - (len(results) - 1) / 2) * width
        heights = [
            _mean(_value(one, tasks, length) for length in lengths) or 0.0
            for tasks in shared.values()
        ]
        bars = axes.bar(
            places,
            heights,
            width * 0.94,
            label=one.name,
            color=_COLOURS[number % len(_COLOURS)],
        )
        axes.bar_label(
            bars, [f"{height:.1f}" for height in heights], fontsize=8, padding=2
        )
    axes.set_xticks(
        range(len(shared)),
        [title_of(*one).replace(", ", "\n") for one in shared.items()],
    )
    axes.set(ylabel="percent", ylim=(0, 102))
    _legend(figure, axes, [one.name for one in results])


def _bars(
    figure: Figure,
    rows: Sequence[tuple[str, float, float | None]],
    bars: str,
    line: str,
) -> None:
    """Draw a bar per row, and over the bars the line of a second number in percent."""
    if not rows:
        return
    axes = figure.subplots()
    names, heights, scores = zip(*rows, strict=True)
    axes.bar_label(
        axes.bar(names, heights, color=_COLOURS[5], width=0.55),
        fmt="%.2f",
        label_type="center",
        fontsize=9,
    )
    axes.set_ylabel(bars)
    if any(score is not None for score in scores):
        right = axes.twinx()
        right.plot(names, np.array(scores, float), **style(1))
        right.set_ylabel(line, color=_COLOURS[1])
        right.spines.right.set_visible(True)


def _dependence(figure: Figure, results: Sequence[ModelResults]) -> None:
    """Draw the gain of the probe `dependency` with its interval, by the distance to the nearest earlier meta-chunk."""
    if not (
        measured := [
            (one.name, result) for one in results for result in one.of("dependency")
        ]
    ):
        return
    axes = figure.subplots()
    for number, (name, result) in enumerate(measured):
        # Rows of geometric mean distance, gain, and the two ends of its interval.
        rows = [
            (
                (max(part["from_tokens"], 1) * part["to_tokens"]) ** 0.5,
                part["gain_nats"],
                *part["interval"],
            )
            for part in result.values["by_distance"]
        ]
        distances, gains, lows, highs = np.array(rows, float).T
        errors = np.maximum(
            (gains - lows, highs - gains), 0
        )  # a bootstrap interval need not hold the mean
        axes.errorbar(distances, gains, errors, capsize=3, label=name, **style(number))
    axes.axhline(0, color="#57606a", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tokens, _: short(round(tokens)))
    axes.set(
        xlabel="tokens to the nearest earlier meta-chunk", ylabel="gain, nats per token"
    )
    _legend(figure, axes, [name for name, _ in measured])


def _needle_map(figure: Figure, one: ModelResults) -> None:
    """Draw how often the needle was found, depth × length (paper, App. A)."""
    scores_at: dict[tuple[float, int], list[float]] = {}
    for result in (*one.of("needle"), *one.of("needle_35")):
        for sample in result.values["samples"]:
            if not sample.get("refused"):
                place = float(sample["details"]["depth"]), result.length or 0
                scores_at.setdefault(place, []).append(float(sample["scores"]["found"]))
    if not scores_at:
        return
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
            axes.text(
                column,
                row,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color=colour,
            )
    axes.set_xticks(range(len(lengths)), [short(int(length)) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:.0f} %" for depth in depths])
    axes.set(xlabel="length in tokens", ylabel="depth of the needle")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="found, percent", shrink=0.9)
