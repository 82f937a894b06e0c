"""Tables: results as rows, with the models side by side, as text, Markdown or LaTeX.

In:  results directories that were read. Out: tables by category, task, part and probe,
and the paper's columns (§4.1, Tables 1, 2).

A cell that was not measured is a dash; a score is followed by its bootstrap 95 %
interval, a row by its number of questions. A score is bold if it is greater than every
other of its column and differs from each significantly, corrected for the number of
columns (`results.significant`).

The paper's average is the mean of HELMET's five categories and RULER, each the mean
over its tasks, over the lengths 8K to 128K; it gives the 62.58 and 65.76 of the paper
from its own columns. Two columns exist in two protocols, which are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal, NamedTuple

from nextlong.evaluate.probe import Probe
from nextlong.evaluate.registry import all_probes, scored_tasks
from nextlong.evaluate.results import (
    ModelResults,
    Result,
    Score,
    best_p_value,
    differences,
    significant,
)
from nextlong.evaluate.task import Measurement, short
from nextlong.text import Json

# The columns of the paper's tables.
CATEGORIES: Final = ("Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
_LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
# The same column measured by another protocol.
_OTHER_PROTOCOL: Final = {"ICL": "ICL 2024", "RULER": "HELMET-RULER"}
# All of HELMET, in the order of its tables.
_HELMET: Final = ("Recall", "RAG", "ICL", "Cite", "Re-rank", "LongQA", "Summ")
# The task that a metric, a judge of the user's, or HELMET's own may score, so that a
# row names which.
_SEVERAL_WAYS: Final = "narrativeqa"
_NOT_COMPARABLE: Final = (
    "Not comparable with published scores: without --data, the texts are Python's "
    "documentation."
)
# A number, a score with its questions, a word, or what was not measured.
Cell = float | Score | str | None
Row = tuple[str, tuple[Cell, ...]]


@dataclass(frozen=True)
class ScoreTable:
    """A title, a caption, and named columns and rows of numbers.

    rows_are: "rivals" of which each column has a best one, or "parts" that nobody
    compares
    """

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    rows_are: Literal["rivals", "parts"] = "rivals"

    def all_rows(
        self, escape: Callable[[str], str] = str, bold: str = "{}"
    ) -> list[list[str]]:
        """Return names and cells as text.

        `escape` makes a text safe for the output, `bold` is the format of scores
        significantly above all others of their column.
        """
        rows = []
        best = self._best_cells()
        for index, (name, cells) in enumerate(self.rows):
            row = [escape(name)]
            for column, cell in enumerate(cells):
                text = escape(_text_of(cell))
                if (index, column) in best:
                    text = bold.format(text)
                row.append(text)
            rows.append(row)
        return rows

    def _best_cells(self) -> set[tuple[int, int]]:
        """Return the row and column of each score that is significantly the best."""
        if self.rows_are != "rivals":
            return set()
        p_values = {}
        for column, _ in enumerate(self.columns):
            scores: dict[int, Score] = {}
            for index, (_, cells) in enumerate(self.rows):
                cell = cells[column]
                if isinstance(cell, Score):
                    scores[index] = cell
            # Every column counts in the correction, also one that nobody leads.
            if len(scores) > 1:
                best = max(scores, key=lambda row: scores[row].value)
                score = scores.pop(best)
                p_values[best, column] = best_p_value(score, [*scores.values()])
        return significant(p_values)


def tasks_of(category: str) -> list[Measurement]:
    return [task for task in scored_tasks().values() if task.category == category]


def _mean(scores: Sequence[Score | None]) -> Score | None:
    """Return the mean of scores; None if one is missing, or if there are none."""
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return None
    return Score.mean(known)


def mean_score(
    results: ModelResults, tasks: Sequence[Measurement], length: int
) -> Score | None:
    return _mean([results.score(task.name, length) for task in tasks])


def shared_tasks(results: Sequence[ModelResults], category: str) -> list[Measurement]:
    """Return the tasks of a category that every model has, scored in one way.

    Means over different tasks would compare nothing: a task counts only where it was
    measured by all models wherever any task of the category was.
    """
    tasks = tasks_of(category)
    names = {task.name for task in tasks}
    measured = []
    for model in results:
        for result in model.finished:
            if result.task in names:
                measured.append((model, result.length))
    if not measured:
        return []

    def is_everywhere(name: str) -> bool:
        return all(model.score(name, length) is not None for model, length in measured)

    def is_one_way(name: str) -> bool:
        if name != _SEVERAL_WAYS:
            return True
        ways = set[str]()
        for model in results:
            ways |= model.scored_by(name)
        return len(ways) == 1

    return [
        task for task in tasks if is_one_way(task.name) and is_everywhere(task.name)
    ]


def title_of(category: str, tasks: Sequence[Measurement]) -> str:
    """Return a category's name, with how many of its tasks were measured if not all."""
    total = len(tasks_of(category))
    if len(tasks) == total:
        return category
    return f"{category}, {len(tasks)} of {total} tasks"


def lengths_of(results: Sequence[ModelResults]) -> list[int]:
    """Return every length that was measured, ascending."""
    lengths = set()
    for model in results:
        for result in model.finished:
            if result.length is not None:
                lengths.add(result.length)
    return sorted(lengths)


class MixedProtocol(NamedTuple):
    """A task at a length that two models were measured on in different ways."""

    where: str
    difference: str

    def __str__(self) -> str:
        return f"{self.where}: {self.difference}"


def mixed_protocols(results: Sequence[ModelResults]) -> list[MixedProtocol]:
    """Return where models were measured in different ways."""
    first_measured: dict[tuple[str, int | None], tuple[str, Result]] = {}
    found = []
    for model in results:
        for result in model.finished:
            # Every model is compared with the first that has the same task and length.
            key = (result.task, result.length)
            name, first = first_measured.setdefault(key, (model.name, result))
            several = differences(first.protocol, result.protocol)
            if several:
                where = f"{result.task} at {short(result.length)}"
                difference = f"{name} and {model.name} have {', '.join(several)}"
                found.append(MixedProtocol(where, difference))
    return found


def all_tables(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield every table that there are results for.

    Scores get a last column with the number of questions of each row.
    """
    mixed = mixed_protocols(results)
    for table in _every_table(results):
        if all(cell is None for cell in _cells_of(table)):
            continue
        are_compared = table.rows_are == "rivals" and len(table.rows) > 1
        if any(isinstance(cell, Score) for cell in _cells_of(table)):
            table = _with_counts(table, are_compared=are_compared)
            table = replace(table, caption=table.caption + _conditions(table))
        if mixed and are_compared:
            places = "; ".join(map(str, mixed))
            note = f" Mixed protocols, so no score is bold: {places}."
            table = replace(table, caption=table.caption + note)
        if not all(map(_is_comparable, _cells_of(table))):
            table = replace(
                table,
                title=f"{table.title} (not comparable)",
                caption=f"{table.caption} {_NOT_COMPARABLE}",
            )
        yield table


def _every_table(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield every table, those without results among them."""
    yield _of_the_paper(results)
    yield _of_helmet(results)
    yield from _by_category(results)
    lengths = lengths_of(results)
    for model in results:
        yield from _by_task(model, lengths)
    for task in scored_tasks().values():
        if task.splits:
            yield _by_part(results, task)
    probes_of: dict[str, list[Probe]] = {}
    for probe in all_probes():
        probes_of.setdefault(probe.category, []).append(probe)
    for probes in probes_of.values():
        if len(probes) == 1:
            yield _of_probe(results, probes[0])
        else:
            yield _side_by_side(results, probes)


def _is_comparable(cell: Cell) -> bool:
    if not isinstance(cell, Score):
        return True
    return all(part.is_comparable for _, part in cell.parts)


def _cells_of(table: ScoreTable) -> Iterator[Cell]:
    for _, cells in table.rows:
        yield from cells


def _with_counts(table: ScoreTable, *, are_compared: bool) -> ScoreTable:
    """Return a table with the number of questions of each row, and what marks mean."""
    rows = [(name, (*cells, _count(cells))) for name, cells in table.rows]
    caption = table.caption + " In brackets: bootstrap 95 % intervals over questions."
    if are_compared:
        caption += (
            " Bold: better than every other row, p < 0.05 in paired permutation tests, "
            "corrected for the columns of this table (Holm)."
        )
    return replace(
        table, caption=caption, columns=(*table.columns, "n"), rows=tuple(rows)
    )


def _conditions(table: ScoreTable) -> str:
    """Say how the models of a table were prompted, and whose samples were made here."""
    categories_by_format: dict[str, set[str]] = {}
    without_files: set[str] = set()
    for cell in _cells_of(table):
        parts = cell.parts if isinstance(cell, Score) else ()
        for _, part in parts:
            category = str(part.values.get("category", part.task))
            prompt_format = part.protocol.get("prompt format")
            if prompt_format:
                categories_by_format.setdefault(prompt_format, set()).add(category)
            if _is_made_here(part):
                without_files.add(category)
    text = ""
    if len(categories_by_format) == 1:
        text = f" Prompts: {next(iter(categories_by_format))}."
    elif categories_by_format:
        formats = [
            f"{name} ({', '.join(sorted(categories))})"
            for name, categories in categories_by_format.items()
        ]
        text = f" Prompts: {', '.join(sorted(formats))}."
    if without_files:
        names = ", ".join(sorted(without_files))
        text += f" Haystacks made here, without the benchmark's files: {names}."
    return text


def _is_made_here(result: Result) -> bool:
    """Return whether a result lacks the file that its benchmark publishes."""
    task = scored_tasks().get(result.task)
    data = result.protocol.get("data")
    if task is None or data is None:
        return False
    file = task.published(result.length or 0)
    return file is not None and file not in data


def _count(cells: Sequence[Cell]) -> str:
    """Return the fewest and the most questions of a score in a row, and the refused."""
    scores = [cell for cell in cells if isinstance(cell, Score)]
    counts = sorted({score.n for score in scores})
    text = ""
    if counts:
        text = f"{counts[0]:,}"
        if len(counts) > 1:
            text += f"–{counts[-1]:,}"
    refused = max((score.refused for score in scores), default=0)
    return f"{text}, {refused:,} refused = 0" if refused else text


def _of_the_paper(results: Sequence[ModelResults]) -> ScoreTable:
    """Return the paper's table."""
    categories = _paper_columns(results)
    rows = []
    for model in results:
        # Each cell is a mean over lengths of means over tasks, as in Tables 1 and 2;
        # one missing part leaves a dash.
        scores = []
        for category in categories:
            tasks = tasks_of(category)
            by_length = [mean_score(model, tasks, length) for length in _LENGTHS]
            scores.append(_mean(by_length))
        rows.append((model.name, (_mean(scores), *scores)))

    caption = (
        "Mean over 8K, 16K, 32K, 64K and 128K; the average is over the six columns "
        "(paper, Tables 1 and 2)."
    )
    ways = []
    for model in results:
        scored_by = sorted(model.scored_by("narrativeqa"))
        if scored_by:
            ways.append(f"{' and '.join(scored_by)} ({model.name})")
    if ways:
        caption += f" NarrativeQA is scored by {'; '.join(ways)}."
    return ScoreTable(
        title="HELMET and RULER",
        caption=caption,
        columns=("Avg.", *categories),
        rows=tuple(rows),
    )


def _paper_columns(results: Sequence[ModelResults]) -> list[str]:
    """Return the categories of the paper's table.

    A column has the other protocol where only that was measured, by any model.
    """
    measured = set()
    for task in scored_tasks().values():
        if any(model.of_task(task.name) for model in results):
            measured.add(task.category)
    columns = []
    for category in CATEGORIES:
        other = _OTHER_PROTOCOL.get(category, category)
        is_other = other in measured and category not in measured
        columns.append(other if is_other else category)
    return columns


def _of_helmet(results: Sequence[ModelResults]) -> ScoreTable:
    """Return HELMET's seven categories, where Cite or Summ were measured.

    The other five categories alone are in the paper's table, and in those by length.
    """
    rows = []
    for length in lengths_of(results):
        for model in results:
            scores = {}
            for category in _HELMET:
                scores[category] = mean_score(model, tasks_of(category), length)
            if scores["Cite"] or scores["Summ"]:
                by_category = list(scores.values())
                average = _mean(by_category)
                name = f"{model.name}, {short(length)}"
                rows.append((name, (average, *by_category)))
    return ScoreTable(
        title="HELMET, all seven categories",
        caption="Percent; the average is HELMET's, over its seven categories. How "
        "LongQA, Cite and Summ are scored: by task, below.",
        columns=("Avg.", *_HELMET),
        rows=tuple(rows),
        rows_are="parts",
    )


def _by_category(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield a table for each category, its columns the lengths."""
    lengths = lengths_of(results)
    others = [task.category for task in scored_tasks().values()]
    for category in dict.fromkeys([*CATEGORIES, *others]):
        tasks = shared_tasks(results, category)
        rows = []
        for model in results:
            scores = [mean_score(model, tasks, length) for length in lengths]
            rows.append((model.name, tuple(scores)))
        yield ScoreTable(
            title=f"{title_of(category, tasks)}, by length",
            caption="Mean over the tasks, percent.",
            columns=tuple(map(short, lengths)),
            rows=tuple(rows),
        )


def _by_task(model: ModelResults, lengths: Sequence[int]) -> Iterator[ScoreTable]:
    """Yield a table for each suite that a model was measured on, its rows the tasks."""
    rows_by_suite: dict[str, list[Row]] = {}
    for task in scored_tasks().values():
        scores = tuple(model.score(task.name, length) for length in lengths)
        if not any(scores):
            continue
        name = task.name
        if name == _SEVERAL_WAYS:
            ways = sorted(model.scored_by(name))
            name += f" ({' and '.join(ways)})"
        rows_by_suite.setdefault(task.suite, []).append((name, scores))
    for suite, rows in rows_by_suite.items():
        yield ScoreTable(
            title=f"{model.name}: suite {suite}, by task",
            caption="Percent.",
            columns=tuple(map(short, lengths)),
            rows=tuple(rows),
            rows_are="parts",
        )


def _by_part(results: Sequence[ModelResults], task: Measurement) -> ScoreTable:
    """Return the scores of a task over parts of its samples."""
    rows = []
    for model in results:
        for result in model.of_task(task.name):
            cells: list[Cell] = [result.measured]
            for _, detail, value in task.splits:
                cells.append(_part_score(result, task, detail, value))
            name = f"{model.name}, {short(result.length)}"
            rows.append((name, tuple(cells)))
    details = dict.fromkeys(detail for _, detail, _ in task.splits)
    return ScoreTable(
        title=f"{task.name} by {' and '.join(details)}",
        caption=f"{task.metric}, percent; refused questions count as 0 in every "
        f"column. {task.about}",
        columns=("Overall", *(heading for heading, _, _ in task.splits)),
        rows=tuple(rows),
    )


def _part_score(
    result: Result, task: Measurement, detail: str, value: str
) -> Score | None:
    """Return the score over the samples whose detail has a value, refused ones too."""
    samples = []
    refused = 0
    for sample in result.values["samples"]:
        if sample.get("details", {}).get(detail) == value:
            samples.append(sample)
            if sample.get("refused"):
                refused += 1
    if not samples:
        return None
    values = {
        **result.values,
        "task": f"{task.name} {detail}={value}",
        "metric": task.metric,
        "samples": samples,
        "n": len(samples),
        "refused": refused,
    }
    part = Result(result.path, values)
    outcomes, _ = part.outcomes
    mean = float(outcomes.mean())
    return Score(mean, ((1.0, part),))


def _of_probe(results: Sequence[ModelResults], probe: Probe) -> ScoreTable:
    """Return a probe's scores, a row per result and part."""
    rows: list[Row] = []
    for model in results:
        for result in model.of_task(probe.name):
            length = None if result.length is None else short(result.length)
            for part, scores in probe.rows(result.values):
                name = ", ".join(filter(None, (model.name, length, part)))
                cells = [
                    _probe_cell(probe, result, scores, key)
                    for key in probe.columns.values()
                ]
                rows.append((name, tuple(cells)))
    return ScoreTable(
        title=probe.category,
        caption=probe.about,
        columns=tuple(probe.columns),
        rows=tuple(rows),
        rows_are="rivals" if probe.lengths is None else "parts",
    )


def _side_by_side(
    results: Sequence[ModelResults], probes: Sequence[Probe]
) -> ScoreTable:
    """Return the scores of the probes of one category, and their mean."""
    rows: list[Row] = []
    for model in results:
        scores = [model.score(probe.name, None) for probe in probes]
        rows.append((model.name, (_mean(scores), *scores)))
    headings = chain.from_iterable(probe.columns for probe in probes)
    return ScoreTable(
        title=probes[0].category,
        caption=probes[0].about,
        columns=("Avg.", *headings),
        rows=tuple(rows),
    )


def _probe_cell(probe: Probe, result: Result, scores: Json, key: str) -> Cell:
    """Return a score, with its questions where they are known."""
    is_metric = key == probe.metric
    if is_metric and scores is result.values["scores"]:
        return result.measured
    value: float | str | None = scores.get(key)
    if is_metric and "interval" in scores:
        low, high = scores["interval"]
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return str(value) if isinstance(value, int) else value


def _text_of(cell: Cell) -> str:
    """Return a number with two digits, a score with its interval, a word, or a dash."""
    if isinstance(cell, float | int):
        return f"{cell:.2f}"
    if not isinstance(cell, Score):
        return cell or "–"
    if cell.interval is None:
        return f"{cell.value:.2f}"
    low, high = cell.interval
    # One digit would show the ends of a narrow interval as equal.
    digits = 2 if 0 < high - low < 1 else 1
    return f"{cell.value:.2f} [{low:.{digits}f}, {high:.{digits}f}]"
