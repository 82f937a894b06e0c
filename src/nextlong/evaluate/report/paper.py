"""The paper's columns: which tasks make a category, and how categories make an average (§4.1, Tables 1 and 2).

The average is the mean of HELMET's five categories and RULER, each the mean over its tasks, over the lengths 8K to 128K. It
gives the 62.58 and 65.76 of the paper from its own columns. Two columns exist in two protocols, which are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nextlong.evaluate.results import Results
from nextlong.evaluate.statistics import Score
from nextlong.evaluate.task import Task, all_tasks

CATEGORIES: Final = ("Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
OTHER_PROTOCOL: Final = {"ICL": "ICL 2024", "RULER": "HELMET-RULER"}
HELMET: Final = ("Recall", "RAG", "ICL", "Cite", "Re-rank", "LongQA", "Summ")  # all of it, in the order of its tables
# Tasks with several ways to score them: a metric, a judge of the user's, HELMET's own.
SEVERAL_WAYS: Final = ("narrativeqa", "infbench_sum", "multi_lexsum", "alce_asqa", "alce_qampari")
LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)


def average(columns: Mapping[str, Score | None]) -> Score | None:
    """Return the mean of the six columns; None if one is missing."""
    return mean(list(columns.values())) if len(columns) == len(CATEGORIES) else None


def columns_of(results: Sequence[Results]) -> list[str]:
    """Return the category of each of the paper's columns: the other protocol where only that was measured, by any model."""
    measured = {one.task for result in results for one in result.finished}

    def is_measured(category: str) -> bool:
        return any(task.name in measured for task in tasks_of(category))

    others = {name: other for name, other in OTHER_PROTOCOL.items() if is_measured(other) and not is_measured(name)}
    return [others.get(name, name) for name in CATEGORIES]


def mean(scores: Sequence[Score | None]) -> Score | None:
    """Return the mean of scores; None if one is missing, or there is none."""
    there = [score for score in scores if score is not None]
    return Score.mean(there) if there and len(there) == len(scores) else None


def tasks_of(category: str) -> list[Task]:
    """Return the tasks of a category."""
    return [task for task in all_tasks().values() if task.category == category]


def shared_tasks(results: Sequence[Results], category: str) -> list[Task]:
    """Return the tasks of a category that were measured wherever any of them was, by every model, and scored in one way."""
    tasks = tasks_of(category)
    measured = {
        (number, one.length)
        for number, model_results in enumerate(results)
        for task in tasks
        for one in model_results.finished
        if one.task == task.name
    }
    return [
        task
        for task in tasks
        if measured
        and all(results[number].score(task.name, length) is not None for number, length in measured)
        and (task.name not in SEVERAL_WAYS or len({way for one in results for way in one.scored_by(task.name)}) == 1)
    ]


def category_score(results: Results, category: str, length: int, tasks: Sequence[Task] | None = None) -> Score | None:
    """Return the mean over a category's tasks (or some of them) at a length; None if one is missing."""
    return mean([results.score(task.name, length) for task in (tasks_of(category) if tasks is None else tasks)])


def title_of(category: str, tasks: Sequence[Task]) -> str:
    """Return the category's name, with how many of its tasks were measured where it is not all."""
    total = len(tasks_of(category))
    return category if len(tasks) == total else f"{category}, {len(tasks)} of {total} tasks"


def mean_over(results: Results, category: str, lengths: Sequence[int]) -> Score | None:
    """Return the mean of a category over lengths; None if it is missing at one."""
    return mean([category_score(results, category, length) for length in lengths])


def lengths_of(all_results: Sequence[Results]) -> list[int]:
    """Return every length that something was measured at, ascending."""
    return sorted({one.length for results in all_results for one in results.finished if one.length is not None})
