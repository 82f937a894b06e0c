"""Scores: the results of finished stages by row of a table and seed, their spread, and the paper's own numbers beside them.

Everything is read from files. The paper's numbers (arXiv 2501.12766) are means over HELMET's five categories and RULER, of
Llama-3-8B at 128K, lengths 8K to 128K, percent. What the paper shows in figures alone is quoted in its words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

from nextlong.evaluate.report.tables import Spread
from nextlong.evaluate.results import Results
from nextlong.evaluate.task import all_tasks
from nextlong.replicate.data import HELD_OUT_NEGATIVES, Arm
from nextlong.replicate.recipe import Experiment

if TYPE_CHECKING:
    from nextlong.replicate.run import Replicated

_Bins = tuple[int, int]

PAPER_COLUMNS: Final = ("Avg.", "Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
PAPER_PRETRAINED: Final = (13.37, 18.00, 12.68, 13.60, 7.74, 10.38, 17.80)
# By the recipe's names of methods and positions.
PAPER_TABLES: Final[Mapping[Experiment, Mapping[str, tuple[float, ...]]]] = {
    "methods": {  # Table 1: comparison with other data synthesis methods
        "standard": (52.85, 62.33, 58.67, 71.24, 19.18, 28.99, 76.68),
        "knn": (50.97, 64.24, 56.00, 60.28, 18.77, 32.27, 74.30),
        "iclm": (50.37, 64.04, 54.48, 72.36, 14.04, 28.17, 69.14),
        "quest": (55.25, 69.13, 57.47, 72.08, 22.35, 33.82, 76.63),
        "nextlong": (62.58, 82.56, 60.91, 81.76, 31.47, 37.30, 81.50),
    },
    "position": {  # appendix B.1: placing the meta-chunk at different positions
        "head": (62.58, 82.56, 60.91, 81.76, 31.47, 37.30, 81.50),
        "tail": (60.01, 72.66, 63.67, 80.68, 30.73, 34.09, 78.26),
        "random": (58.95, 74.51, 63.05, 71.64, 32.78, 33.00, 78.73),
    },
}
PAPER_SOURCES: Final[Mapping[Experiment, str]] = {
    "methods": "paper, Table 1",
    "position": "paper, appendix B.1",
    "granularity": "paper, section 5.3: a figure only; 512, 1024, 2048, 8192 and 32768 were compared, and 2048 was best, 1024 best "
    "at 128K alone",
    "negatives": "paper, section 5.4: a figure only; top was best, lower similarity gave lower scores, and self-repeat degraded "
    "them further",
}
PAPER_ATTENTION: Final = (
    "The paper shows in figures only (section 5.1, appendix B.4) that models trained with NExtLong attend more to the first third "
    "of the context and less to the last."
)


@dataclass(frozen=True)
class Column:
    """A score to compare rows by: its title, its unit, and which way is better ("" where neither is)."""

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
COLUMNS_BY_LENGTH: Final = ("key_values", "copying", "needle", "json_kv", "ruler")


@dataclass(frozen=True)
class Scores:
    """The scores of one model: by column the mean over lengths, and at each length; by held-out run the gain in distance bins."""

    mean: Mapping[str, float]
    at: Mapping[str, Mapping[int, float]]
    gains: Mapping[str, Mapping[_Bins, float]]


@dataclass(frozen=True)
class ScoreRow:
    """An arm, or (None) the model before it is extended: its scores by seed, and the results that they are from."""

    name: str
    arm: Arm | None
    seeds: tuple[Scores, ...]
    results: tuple[Results, ...]

    def values(self, column: str) -> list[float]:
        """Return the scores of a column by seed; [] if it was not measured."""
        return [scores.mean[column] for scores in self.seeds if column in scores.mean]

    def values_at(self, column: str, length: int) -> list[float]:
        """Return the scores of a column at a length, by seed."""
        return [scores.at[column][length] for scores in self.seeds if length in scores.at.get(column, {})]

    def gains(self, side: str, part: _Bins) -> list[float]:
        """Return the gain from earlier meta-chunks in a distance bin, by seed."""
        return [scores.gains[side][part] for scores in self.seeds if part in scores.gains[side]]


def score_rows(done: Replicated, experiment: Experiment) -> list[ScoreRow]:
    """Return the row of the pretrained model, then those of the experiment's arms."""
    rows = []
    for arm in (None, *(arm for arm in done.runs.arms if arm.experiment == experiment)):
        scores, results = [], []
        for seed in done.recipe.seeds:
            tasks, *sides = (one.results for one in done.measurements(done.model_of(arm, seed)))
            scores.append(scores_of(tasks, dict(zip(HELD_OUT_NEGATIVES, sides, strict=True))))
            results.append(tasks)
        rows.append(ScoreRow("not extended" if arm is None else arm.name, arm, tuple(scores), tuple(results)))
    return rows


def scores_of(tasks: Results, sides: Mapping[str, Results]) -> Scores:
    """Return the scores of a model; RULER's is the mean over its tasks that were measured."""
    suites = {task.name: task.suite for task in all_tasks().values()}
    by_column: dict[str, dict[int, list[float]]] = {}
    for one in tasks.finished:
        assert one.length is not None, "a replication measures at lengths"
        if one.task == "attention":
            thirds = {third: float(one.values["scores"][f"{third}_context"]) for third in ("first_third", "last_third")}
        else:
            thirds = {"ruler" if suites.get(one.task) == "ruler" else one.task: one.score}
        for column, score in thirds.items():
            by_column.setdefault(column, {}).setdefault(one.length, []).append(score)
    at = {
        column: {length: fmean(scores) for length, scores in lengths.items()} for column, lengths in by_column.items()
    }
    mean = {column: fmean(scores.values()) for column, scores in at.items()}
    gains: dict[str, dict[_Bins, float]] = {}
    for side, results in sides.items():
        (dependency,) = results.finished
        mean[f"gain-{side}"] = float(dependency.values["scores"]["gain_nats"])
        mean[f"loss-{side}"] = float(dependency.values["scores"]["with_earlier_nats"])
        bins = dependency.values["by_distance"]
        gains[side] = {(one["from_tokens"], one["to_tokens"]): float(one["gain_nats"]) for one in bins}
    return Scores(mean, at, gains)


def measured_columns(rows: Sequence[ScoreRow]) -> list[Column]:
    """Return the columns that have scores."""
    return [column for column in COLUMNS if any(row.values(column.key) for row in rows)]


def distance_bins(rows: Sequence[ScoreRow], side: str) -> list[_Bins]:
    """Return the distance bins of a held-out run that any row has a gain in, in order."""
    return sorted({part for row in rows for scores in row.seeds for part in scores.gains[side]})


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
    """Return whether a mean difference is beyond chance: a paired t-test over the seeds, 95 %, two-sided."""
    from scipy.stats import t

    if gap.deviation is None:
        return False
    return abs(gap.mean) > float(t.ppf(0.975, seeds - 1)) * gap.deviation
