"""Report: tables and figures of results, models side by side.

In:  results directories. Out: tables on the console or as files, figures as SVG and
PNG. A figure shows what a function finds in the results, and is left out where that is
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, NamedTuple

from markupsafe import Markup, escape
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import tables
from nextlong.evaluate.results import ModelResults, read_results
from nextlong.evaluate.tables import lengths_of, tasks_of, title_of
from nextlong.evaluate.task import Measurement, short
from nextlong.picture import html, plots
from nextlong.picture.plots import Plot, drawn
from nextlong.report import tables as console_tables
from nextlong.text import Json, latex

_LABEL_NUMBER: Final = re.compile(r"([\w.]+)=(\d+)")


class _Form(NamedTuple):
    """How the texts of a report are written: made safe, and bold."""

    escape: Callable[[str], str]
    bold: str


# By the suffix of the file; the template `report` with that suffix has all else.
_FORMS: Final = {
    ".html": _Form(escape, Markup("<b>{}</b>")),
    ".md": _Form(str, "**{}**"),
    ".tex": _Form(latex, r"\textbf{{{}}}"),
}


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
    if output.suffix not in _FORMS:
        raise EvaluateError(
            where=f"--output {output}",
            problem="its suffix, which chooses the format, is unknown",
            fix=f"end it in {', '.join(_FORMS)}",
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
    form = _FORMS[suffix]
    rows_of = partial(tables.ScoreTable.all_rows, escape=form.escape, bold=form.bold)
    figures = [(drawing.title, Markup(drawing.svg)) for drawing in drawings.values()]
    # One page, which loads nothing from elsewhere.
    return html.render(
        f"evaluate/report{suffix}",
        tables=shown,
        rows_of=rows_of,
        figures=figures,
        escape=form.escape,
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
) -> Iterator[tuple[str, str, Plot | None]]:
    """Yield file name, title and page of every figure, None for one without results."""
    names = [model.name for model in results]
    lengths = lengths_of(results)
    page = drawn(
        plots.lines,
        _score_panels(results),
        names,
        xlabel="length in tokens",
        ticks={length: short(length) for length in lengths},
    )
    yield "score-by-length", "Score by length", page
    page = drawn(plots.grouped_bars, _by_type(results), names)
    yield "task-types", "Score by task type, mean over the lengths measured", page
    page = drawn(plots.lines, _shots_panels(results), names, xlabel="shots")
    yield "icl-by-shots", "In-context learning by shots", page
    page = drawn(
        plots.bars_and_line,
        _attention(results),
        bars="attention on the first third, percent",
        line="LongQA, percent",
    )
    yield "attention-longqa", "Attention on the first third, and LongQA", page
    page = drawn(
        plots.intervals,
        _dependence(results),
        xlabel="tokens to the nearest earlier meta-chunk",
        ylabel="gain, nats per token",
        tick=short,
    )
    yield "dependence", "Gain from earlier meta-chunks by distance", page
    page = drawn(
        plots.bars_and_line,
        _similarity(results),
        bars="median cosine of the negatives",
        line="mean over task types, percent",
    )
    yield "similarity", "Similarity of the negatives, and score", page
    yield "by-setting", "Average score by a setting of the data", _by_setting(results)
    for model in results:
        file = re.sub(r"[^\w.-]+", "-", model.name)
        # Depth × length (paper, App. A).
        page = drawn(
            plots.percent_map,
            _needles_found(model),
            row_tick="{:.0f} %".format,
            column_tick=short,
            labels=("depth of the needle", "length in tokens", "found, percent"),
        )
        yield f"needle-{file}", f"Needle in a haystack: {model.name}", page


def _score_panels(results: Sequence[ModelResults]) -> dict[str, list[plots.Line]]:
    """Return a line per model, score by length, for each category."""
    lengths = lengths_of(results)
    panels = {}
    for category, tasks in _shared(results, "Needle").items():
        lines: list[plots.Line] = []
        for model in results:
            lines.append([(length, _value(model, tasks, length)) for length in lengths])
        panels[title_of(category, tasks)] = lines
    return panels


def _shots_panels(results: Sequence[ModelResults]) -> dict[str, list[plots.Line]]:
    """Return a line per model, score by shots, for each task of in-context learning."""
    panels = {}
    for task in tasks_of("ICL"):
        lines = [_by_shots(model, task) for model in results]
        if any(lines):
            panels[task.name] = lines
    return panels


def _by_shots(model: ModelResults, task: Measurement) -> plots.Line:
    points: list[tuple[float, float]] = []
    for result in model.of_task(task.name):
        # Imported results hold no samples that say the shots.
        for sample in result.values["samples"][:1]:
            shots = sample.get("details", {}).get("shots")
            if shots is not None:
                points.append((float(shots), result.score))
    return sorted(points)


def _attention(results: Sequence[ModelResults]) -> plots.Bars:
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


def _similarity(results: Sequence[ModelResults]) -> plots.Bars:
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


def _by_setting(results: Sequence[ModelResults]) -> Plot | None:
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
    return drawn(plots.lines, {"": curves}, names, xlabel=keys.pop())


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


def _by_type(results: Sequence[ModelResults]) -> dict[str, list[float]]:
    """Return each model's mean over the lengths, for each category."""
    lengths = lengths_of(results)
    groups = {}
    for category, tasks in _shared(results).items():
        percents = []
        for model in results:
            mean = _mean(_value(model, tasks, length) for length in lengths)
            percents.append(mean or 0.0)
        title = title_of(category, tasks).replace(", ", "\n")
        groups[title] = percents
    return groups


def _dependence(
    results: Sequence[ModelResults],
) -> list[tuple[str, list[plots.Measured]]]:
    """Return the gain of the probe `dependency` of each model.

    By the distance to the nearest earlier meta-chunk: the geometric mean of its bin.
    """
    curves = []
    for model in results:
        for result in model.of_task("dependency"):
            points = []
            for part in result.values["by_distance"]:
                from_tokens = max(part["from_tokens"], 1)
                distance = (from_tokens * part["to_tokens"]) ** 0.5
                low, high = part["interval"]
                points.append(plots.Measured(distance, part["gain_nats"], low, high))
            curves.append((model.name, points))
    return curves


def _needles_found(model: ModelResults) -> dict[tuple[float, int], float]:
    """Return the percent found at each depth in percent and length."""
    found_at: dict[tuple[float, int], list[float]] = {}
    for result in (*model.of_task("needle"), *model.of_task("needle_35")):
        for sample in result.values["samples"]:
            if not sample.get("refused"):
                depth = float(sample["details"]["depth"])
                shares = found_at.setdefault((depth, result.length or 0), [])
                shares.append(float(sample["scores"]["found"]))
    return {place: 100 * fmean(shares) for place, shares in found_at.items()}
