"""Tables: results as rows, with the models side by side; and the paper's columns (§4.1, Tables 1 and 2).

A cell that was not measured is a dash; a score is followed by its bootstrap 95 % interval, a row by its number of questions. A
score is bold if it is greater than every other of its column and differs from each significantly (`results.is_better`).

The paper's average is the mean of HELMET's five categories and RULER, each the mean over its tasks, over the lengths 8K to 128K; it
gives the 62.58 and 65.76 of the paper from its own columns. Two columns exist in two protocols, which are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from nextlong.evaluate.results import ModelResults, Result, Score, differences, is_better
from nextlong.evaluate.task import Probe, Task, all_tasks, registered, short
from nextlong.text import Json

CATEGORIES: Final = ("Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
_OTHER_PROTOCOL: Final = {"ICL": "ICL 2024", "RULER": "HELMET-RULER"}
_HELMET: Final = ("Recall", "RAG", "ICL", "Cite", "Re-rank", "LongQA", "Summ")  # all of it, in the order of its tables
# Tasks that are scored by a metric, by a judge of the user's, or by HELMET's own.
_SEVERAL_WAYS: Final = ("narrativeqa", "infbench_sum", "multi_lexsum", "alce_asqa", "alce_qampari")


class MeanStd(NamedTuple):
    """A mean over repeated trainings and their standard deviation, or an error; None for a single one."""

    mean: float
    deviation: float | None


Cell = float | MeanStd | Score | str | None


@dataclass(frozen=True)
class ScoreTable:
    """A title, what it shows, named columns and rows of numbers, each behind its name."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    rows_are: Literal["rivals", "parts"] = "rivals"

    def is_best(self, row: int, column: int) -> bool:
        """Return whether a score is significantly greater than every other of its column."""
        cell = self.rows[row][1][column]
        if self.rows_are != "rivals" or not isinstance(cell, Score):
            return False
        others = [cells[column] for number, (_, cells) in enumerate(self.rows) if number != row]
        return is_better(cell, [other for other in others if isinstance(other, Score)])


def tasks_of(category: str) -> list[Task]:
    """Return the tasks of a category."""
    return [task for task in all_tasks().values() if task.category == category]


def _columns_of(results: Sequence[ModelResults]) -> list[str]:
    """Return the category of each of the paper's columns: the other protocol where only that was measured, by any model."""
    measured = {one.task for result in results for one in result.finished}

    def is_measured(category: str) -> bool:
        return any(task.name in measured for task in tasks_of(category))

    others = {name: other for name, other in _OTHER_PROTOCOL.items() if is_measured(other) and not is_measured(name)}
    return [others.get(name, name) for name in CATEGORIES]


def mean(scores: Sequence[Score | None]) -> Score | None:
    """Return the mean of scores; None if one is missing, or there is none."""
    known = [score for score in scores if score is not None]
    return Score.mean(known) if known and len(known) == len(scores) else None


def category_score(
    results: ModelResults, category: str, length: int, tasks: Sequence[Task] | None = None
) -> Score | None:
    """Return the mean over a category's tasks (or some of them) at a length; None if one is missing."""
    return mean([results.score(task.name, length) for task in (tasks_of(category) if tasks is None else tasks)])


def shared_tasks(results: Sequence[ModelResults], category: str) -> list[Task]:
    """Return the tasks of a category that were measured wherever any of them was, by every model, and scored in one way."""
    tasks = tasks_of(category)
    names = {task.name for task in tasks}
    # Means over different tasks would compare nothing: a task counts only where all models have it, scored alike.
    measured = {
        (one, result.length) for one in range(len(results)) for result in results[one].finished if result.task in names
    }
    return [
        task
        for task in tasks
        if measured
        and all(results[one].score(task.name, length) is not None for one, length in measured)
        and (task.name not in _SEVERAL_WAYS or len({way for one in results for way in one.scored_by(task.name)}) == 1)
    ]


def title_of(category: str, tasks: Sequence[Task]) -> str:
    """Return the category's name, with how many of its tasks were measured where it is not all."""
    total = len(tasks_of(category))
    return category if len(tasks) == total else f"{category}, {len(tasks)} of {total} tasks"


def lengths_of(results: Sequence[ModelResults]) -> list[int]:
    """Return every length that was measured, ascending."""
    return sorted({result.length for one in results for result in one.finished if result.length is not None})


def mixed_protocols(results: Sequence[ModelResults]) -> list[str]:
    """Return in words where models were measured in different ways: their tasks, lengths, and what differs."""
    seen: dict[tuple[str, int | None], tuple[str, Result]] = {}
    found = []
    for one in results:
        for result in one.finished:
            name, first = seen.setdefault((result.task, result.length), (one.name, result))
            if several := differences(first.protocol, result.protocol):
                found.append(
                    f"{result.task} at {short(result.length)}: {name} and {one.name} have {', '.join(several)}"
                )
    return found


def all_tables(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield every table that there are results for."""
    mixed = mixed_protocols(results)
    for table in (
        _main(results),
        _whole_helmet(results),
        *_by_category(results),
        *_by_task(results),
        *(_by_part(results, task) for task in all_tasks().values() if task.splits),
        *(_of_probe(results, probe) for probe in registered().values() if isinstance(probe, Probe)),
    ):
        if any(cell is not None for _, cells in table.rows for cell in cells):
            are_compared = mixed and table.rows_are == "rivals" and len(table.rows) > 1
            more = f" Mixed protocols, so no score is bold: {'; '.join(mixed)}." if are_compared else ""
            counted = _with_counts(table)
            yield replace(counted, about=counted.about + more)


def _with_counts(table: ScoreTable) -> ScoreTable:
    """Return a table of scores with a last column: the number of questions of each row, and how many were refused."""
    if not any(isinstance(cell, Score) for _, cells in table.rows for cell in cells):
        return table
    rows = []
    for name, cells in table.rows:
        scores = [cell for cell in cells if isinstance(cell, Score)]
        numbers = sorted({score.n for score in scores})
        count = "–".join(f"{number:,}" for number in dict.fromkeys((*numbers[:1], *numbers[-1:])))
        refused = max((score.refused for score in scores), default=0)
        rows.append((name, (*cells, f"{count}, {refused:,} refused = 0" if refused else count)))
    about = f"{table.about} In brackets: bootstrap 95 % intervals over questions."
    if table.rows_are == "rivals" and len(rows) > 1:
        about += " Bold: better than every other row, p < 0.05 in paired permutation tests; not corrected for columns."
    return replace(table, about=about, columns=(*table.columns, "n"), rows=tuple(rows))


def _main(results: Sequence[ModelResults]) -> ScoreTable:
    rows = []
    categories = _columns_of(results)
    for one in results:
        scores = [mean([category_score(one, category, length) for length in LENGTHS]) for category in categories]
        rows.append((one.name, (mean(scores), *scores)))
    about = "Mean over 8K, 16K, 32K, 64K and 128K; the average is over the six columns (paper, Tables 1 and 2)."
    ways = {one.name: " and ".join(sorted(one.scored_by("narrativeqa"))) for one in results}
    if any(ways.values()):
        about += f" NarrativeQA is scored by {'; '.join(f'{way} ({name})' for name, way in ways.items() if way)}."
    return ScoreTable("HELMET and RULER", about, ("Avg.", *categories), tuple(rows))


def _whole_helmet(results: Sequence[ModelResults]) -> ScoreTable:
    """Return HELMET's seven categories, a row per model and length; no row unless Cite or Summ were measured."""
    rows = []
    for length in lengths_of(results):
        for one in results:
            scores = {category: category_score(one, category, length) for category in _HELMET}
            if scores["Cite"] or scores["Summ"]:
                rows.append((f"{one.name}, {short(length)}", (mean(list(scores.values())), *scores.values())))
    about = "Percent; the average is HELMET's, over its seven categories. How LongQA, Cite and Summ are scored: by task, below."
    return ScoreTable("HELMET, all seven categories", about, ("Avg.", *_HELMET), tuple(rows), "parts")


def _by_category(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    lengths = lengths_of(results)
    for category in dict.fromkeys((*CATEGORIES, *(task.category for task in all_tasks().values()))):
        tasks = shared_tasks(results, category)
        rows = tuple(
            (one.name, tuple(category_score(one, category, length, tasks) for length in lengths)) for one in results
        )
        title = f"{title_of(category, tasks)}, by length"
        yield ScoreTable(title, "Mean over the tasks, percent.", tuple(map(short, lengths)), rows)


def _by_task(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    lengths = lengths_of(results)
    for one in results:
        for suite in dict.fromkeys(task.suite for task in all_tasks().values()):
            rows = []
            for task in (task for task in all_tasks().values() if task.suite == suite):
                ways = sorted(one.scored_by(task.name)) if task.name in _SEVERAL_WAYS else []
                name = f"{task.name} ({' and '.join(ways)})" if ways else task.name
                scores = tuple(one.score(task.name, length) for length in lengths)
                rows += [(name, scores)] if any(scores) else []
            title = f"{one.name}: suite {suite}, by task"
            yield ScoreTable(title, "Percent.", tuple(map(short, lengths)), tuple(rows), "parts")


def _by_part(results: Sequence[ModelResults], task: Task) -> ScoreTable:
    rows = tuple(
        (
            f"{one.name}, {short(result.length)}",
            (result.measured, *(_part(task, result, *part[1:]) for part in task.splits)),
        )
        for one in results
        for result in one.finished
        if result.task == task.name
    )
    details = " and ".join(dict.fromkeys(detail for _, detail, _ in task.splits))
    about = f"{task.metric}, percent; refused questions count as 0 in every column. {task.about}"
    columns = ("Overall", *(heading for heading, _, _ in task.splits))
    return ScoreTable(f"{task.name} by {details}", about, columns, rows)


def _part(task: Task, result: Result, detail: str, value: str) -> Score | None:
    """Return the score over the samples whose detail has a value, refused ones included."""
    samples = [one for one in result.values["samples"] if one.get("details", {}).get(detail) == value]
    refused = [one for one in samples if one.get("refused")]
    outcomes = [0.0 if one in refused else 100 * one["scores"][task.metric] for one in samples]
    key = (f"{task.name} {detail}={value}", result.length)
    return Score.of_outcomes(key, outcomes, result.protocol, refused=len(refused)) if samples else None


def _of_probe(results: Sequence[ModelResults], probe: Probe) -> ScoreTable:
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for one in results:
        for result in (result for result in one.finished if result.task == probe.name):
            length = None if result.length is None else short(result.length)
            for part, scores in probe.rows(result.values):
                name = ", ".join(filter(None, (one.name, length, part)))
                rows.append((name, tuple(_probe_cell(probe, result, scores, key) for key in probe.columns.values())))
    return ScoreTable(
        probe.category, probe.about, tuple(probe.columns), tuple(rows), "rivals" if probe.lengths is None else "parts"
    )


def _probe_cell(probe: Probe, result: Result, scores: Json, key: str) -> Cell:
    """Return a score: with its questions where they are known, or with the interval that the probe states."""
    value = scores.get(key)
    if key == probe.metric and scores is result.values["scores"]:
        return result.measured
    answers = result.values.get("answers", {}).get(key.removesuffix(" acc"))
    if answers:
        return Score.of_answers(key.removesuffix(" acc"), answers)
    if key == probe.metric and "interval" in scores:
        low, high = scores["interval"]
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return str(value) if isinstance(value, int) else value
