"""Collect: results → scores, by row of a table and seed, and their spread. Everything is read from the files of finished stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from nextlong.evaluate.report.tables import Spread
from nextlong.evaluate.results import Results
from nextlong.evaluate.task import all_tasks
from nextlong.replicate.carry_out import Replicated
from nextlong.replicate.data import HELD_OUT_NEGATIVES, Arm
from nextlong.replicate.models import of_arm
from nextlong.replicate.recipe import Experiment

Bins = tuple[int, int]


@dataclass(frozen=True)
class Column:
    """A number that rows are compared by: its title, its unit, and which way is better ("" where neither is)."""

    key: str
    title: str
    unit: str
    better: str


COLUMNS: Final = (
    Column("key_values", "Value chosen", "percent", "higher"),
    Column("copying", "Copying", "nats", "higher"),
    Column("gain-top", "Gain, hard negatives", "nats", "higher"),
    Column("gain-random-corpus", "Gain, random negatives", "nats", "higher"),
    Column("loss-top", "Loss, hard negatives", "nats", "lower"),
    Column("loss-random-corpus", "Loss, random negatives", "nats", "lower"),
    Column("needle", "Needle", "percent", "higher"),
    Column("json_kv", "JSON KV", "percent", "higher"),
    Column("ruler", "RULER subset", "percent", "higher"),
    Column("first_third", "First third", "percent of attention", ""),
    Column("last_third", "Last third", "percent of attention", ""),
)


@dataclass(frozen=True)
class Scores:
    """Of one model: by column the mean over lengths, and at each length; by held-out run the gain in bins of distance."""

    mean: Mapping[str, float]
    at: Mapping[str, Mapping[int, float]]
    gains: Mapping[str, Mapping[Bins, float]]


@dataclass(frozen=True)
class Row:
    """What is compared: an arm, or (None) the model before it is extended; its scores by seed, and their results."""

    name: str
    arm: Arm | None
    seeds: tuple[Scores, ...]
    results: tuple[Results, ...]

    def values(self, column: str) -> list[float]:
        """Return a column's numbers by seed; [] if it was not measured."""
        return [scores.mean[column] for scores in self.seeds if column in scores.mean]

    def values_at(self, column: str, length: int) -> list[float]:
        """Return a column's numbers at a length, by seed."""
        return [scores.at[column][length] for scores in self.seeds if length in scores.at.get(column, {})]

    def gains(self, side: str, part: Bins) -> list[float]:
        """Return the gain from earlier meta-chunks at a distance, by seed."""
        return [scores.gains[side][part] for scores in self.seeds if part in scores.gains[side]]


def rows(done: Replicated, experiment: Experiment) -> list[Row]:
    """Return the pretrained model, then what the experiment compares."""
    arms = [arm for arm in done.runs.arms if arm.experiment == experiment]
    return [_row(done, arm) for arm in (None, *arms)]


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean and standard deviation; None of no values."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None) if values else None


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Return the mean difference of the same seeds and its standard error; None unless both were measured."""
    if not ours or len(ours) != len(theirs):
        return None
    each = [one - other for one, other in zip(ours, theirs, strict=True)]
    return Spread(fmean(each), stdev(each) / sqrt(len(each)) if len(each) > 1 else None)


def is_decided(gap: Spread, *, seeds: int) -> bool:
    """Say whether a mean difference is beyond chance: a paired t-test over the seeds, 95 %, two-sided."""
    from scipy.stats import t

    if gap.deviation is None:
        return False
    return abs(gap.mean) > float(t.ppf(0.975, seeds - 1)) * gap.deviation


def measured_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns that there are numbers for."""
    return [column for column in COLUMNS if any(row.values(column.key) for row in rows)]


def _row(done: Replicated, arm: Arm | None) -> Row:
    scores, results = [], []
    for seed in done.recipe.seeds:
        tasks, *sides = (one.results for one in done.measured(of_arm(done.recipe, arm, done.runs, done.out, seed)))
        scores.append(_scores(tasks, dict(zip(HELD_OUT_NEGATIVES, sides, strict=True))))
        results.append(tasks)
    return Row("not extended" if arm is None else arm.name, arm, tuple(scores), tuple(results))


def _scores(tasks: Results, sides: Mapping[str, Results]) -> Scores:
    at: dict[str, dict[int, float]] = {}
    for key, length, value in _measured(tasks):
        at.setdefault(key, {})[length] = value
    mean = {key: fmean(values.values()) for key, values in at.items()}
    gains: dict[str, dict[Bins, float]] = {}
    for side, results in sides.items():
        (dependency,) = results.finished
        mean |= {
            f"gain-{side}": float(dependency.values["scores"]["gain_nats"]),
            f"loss-{side}": float(dependency.values["scores"]["with_earlier_nats"]),
        }
        parts = dependency.values["by_distance"]
        gains[side] = {(part["from_tokens"], part["to_tokens"]): float(part["gain_nats"]) for part in parts}
    return Scores(mean, at, gains)


def _measured(results: Results) -> Iterator[tuple[str, int, float]]:
    """Yield column, length and score; RULER is the mean over its tasks that were measured."""
    suites = {task.name: task.suite for task in all_tasks().values()}
    ruler: dict[int, list[float]] = {}
    for one in results.finished:
        assert one.length is not None, "a replication measures at lengths"
        if suites.get(one.task) == "ruler":
            ruler.setdefault(one.length, []).append(one.score)
        elif one.task == "attention":
            yield "first_third", one.length, float(one.values["scores"]["first_third_context"])
            yield "last_third", one.length, float(one.values["scores"]["last_third_context"])
        else:
            yield one.task, one.length, one.score
    yield from (("ruler", length, fmean(scores)) for length, scores in ruler.items())
