"""Results: what an evaluation writes, one JSON per task and length.

RESULTS/evaluation.json                 the model, and its label
RESULTS/<task>/<length>.json            finished: the score, and every sample with
                                        prompt hash, answer, references and scores
RESULTS/<task>/<length>.partial.jsonl   unfinished: what the results depend on, then one
                                        line per sample, in the order of the answers
RESULTS/<task>/<length>.3-of-8.partial.jsonl    the same of a shard; the last of the 8
                                        shards merges them into the finished file

Intervals are 95 % percentile bootstraps over questions. Differences are tested by a
paired permutation test: under the null hypothesis the difference of two models on a
question has either sign with equal probability. Questions that belong together (HELMET
asks one question at several depths) are resampled, and change their sign, together. The
tests of a table are corrected for their number by Holm's procedure.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar

import numpy as np

import nextlong
from nextlong.arrays import Doubles, Ints
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DEMO
from nextlong.significance import (
    FLIPS,
    REPLICATES,
    flipped_sums,
    holm,
    middle_95,
    resampled_means,
    share_as_great,
)
from nextlong.text import Json

FORMAT: Final = 2
JUDGED: Final = "judged"
_INDEX: Final = "evaluation.json"
# Of a results directory, what describes the model for readers alone.
_FOR_REPORTS: Final = ("label", "negatives_cosine")
_SIGNIFICANT: Final = 0.05
_Groups = Ints
_Key = TypeVar("_Key")


def differences(protocol: Json, other: Json) -> list[str]:
    """Describe the differences between two protocols.

    A field that only one of them has is not compared.
    """
    return [
        f"{name} {value} and {other[name]}"
        for name, value in protocol.items()
        if name in other and value != other[name]
    ]


@dataclass(frozen=True, eq=False)
class Result:
    """A finished task at a length, as its file says."""

    path: Path
    values: Json

    @property
    def task(self) -> str:
        return str(self.values["task"])

    @property
    def length(self) -> int | None:
        """Tokens, answer included; None where the task has no length."""
        length: int | None = self.values["length"]
        return length

    @property
    def score(self) -> float:
        """The score in percent."""
        return float(self.values["score"])

    @property
    def scored_by(self) -> str:
        """The metric, or the judge."""
        judge = self.values.get("judge")
        return f"judge {judge['name']}" if judge else str(self.values.get("metric"))

    @property
    def measured(self) -> Score:
        """The score with the outcome of each question.

        For its interval and for comparisons.
        """
        return Score(self.score, ((1.0, self),))

    @property
    def is_comparable(self) -> bool:
        """Whether others may have scores of the same data."""
        return DEMO not in (self.values.get("depends_on", {}).get("data") or {})

    @cached_property
    def protocol(self) -> Json:
        """What must be equal where scores are compared."""
        depends_on = self.values.get("depends_on", {})
        stated = {
            "n": self.values.get("n"),
            "seed": depends_on.get("seed"),
            "version": depends_on.get("version"),
            "data": depends_on.get("data"),
            "prompt format": depends_on.get("prompts", {}).get("format"),
            "scored by": self.scored_by,
        }
        return {name: value for name, value in stated.items() if value is not None}

    @cached_property
    def outcomes(self) -> tuple[Doubles, _Groups]:
        """Each question's outcome in percent and the number of its group.

        Both of shape (n,); empty where they are unknown. Questions of a group share a
        context. A refused one counts as 0. A judgement that could not be read is left
        out, as HELMET does.
        """
        if "outcomes" in self.values:
            # A probe's, in the unit of its score.
            outcomes = np.array(self.values["outcomes"], float)
            return outcomes, np.arange(len(outcomes))
        is_judged = self.values.get("metric") == JUDGED
        known: list[float] = []
        groups: list[int] = []
        group_numbers: dict[Any, int] = {}
        for index, sample in enumerate(self.values.get("samples", ())):
            # A question that is left out has a group too, so that two models' groups
            # have the same numbers.
            name = sample.get("details", {}).get("group", f"question {index}")
            group = group_numbers.setdefault(name, len(group_numbers))
            share = self._share(sample)
            if share is not None:
                known.append(100.0 * float(share))
                groups.append(group)
            elif not is_judged:
                return np.empty(0), np.empty(0, np.int64)
        return np.array(known), np.array(groups, np.int64)

    def _share(self, sample: Json) -> float | None:
        """Return the outcome of a question, from 0 to 1; None where it is unknown."""
        if sample.get("refused"):
            return 0.0
        metric = self.values.get("metric")
        if metric == JUDGED:
            share: float | None = sample["judged"]["share"]
        else:
            share = sample.get("scores", {}).get(metric)
        return share

    @cached_property
    def replicates(self) -> Doubles:
        """The score over resampled groups, shape (REPLICATES,)."""
        outcomes, groups = self.outcomes
        weights = np.ones(len(outcomes))
        key = str((self.task, self.length))
        return resampled_means(outcomes, weights, groups, key=key)


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent: of one task at one length, or a mean of several.

    parts: the tasks at their lengths, with their weights
    """

    value: float
    parts: tuple[tuple[float, Result], ...] = ()

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Score:
        """Return the mean of scores, each with the same weight.

        However many questions a score has, as HELMET and RULER average.
        """
        share = 1 / len(scores)
        parts = []
        for score in scores:
            parts += [(share * weight, part) for weight, part in score.parts]
        return cls(share * sum(score.value for score in scores), tuple(parts))

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap 95 % interval; None where outcomes are unknown."""
        if not self.parts:
            return None
        # Parts are resampled independently: replicate i of the mean is the mean of
        # their replicates i.
        replicates = np.zeros(REPLICATES)
        for weight, part in self.parts:
            outcomes, _ = part.outcomes
            if not len(outcomes):
                return None
            replicates = replicates + weight * part.replicates
        return middle_95(replicates)

    @property
    def n(self) -> int:
        """The number of questions, refused ones included."""
        total = 0
        for _, part in self.parts:
            outcomes, _ = part.outcomes
            total += int(part.values.get("n", len(outcomes)))
        return total

    @property
    def refused(self) -> int:
        """The number of questions that no prompt of the length was made for.

        They were not asked, and count as 0.
        """
        return sum(int(part.values.get("refused", 0)) for _, part in self.parts)


def _p_value(score: Score, other: Score) -> float | None:
    """Return the probability of a difference this great if the two do not differ.

    Two-sided. None where they cannot be compared: other tasks, lengths or protocols, or
    unknown outcomes.
    """
    if len(score.parts) != len(other.parts) or not score.parts:
        return None
    observed = 0.0
    flipped = np.zeros(FLIPS)
    for (weight, ours), (_, theirs) in zip(score.parts, other.parts, strict=True):
        if not _are_paired(ours, theirs):
            return None
        our_outcomes, groups = ours.outcomes
        their_outcomes, _ = theirs.outcomes
        # What each group adds to the difference, shape (groups,).
        gains = (our_outcomes - their_outcomes) / len(our_outcomes)
        by_group = weight * np.bincount(groups, gains)
        observed += float(by_group.sum())
        flipped += flipped_sums(by_group, key=str((ours.task, ours.length)))
    return share_as_great(flipped, observed)


def _are_paired(ours: Result, theirs: Result) -> bool:
    """Return whether two results have the same questions, measured in the same way."""
    if (ours.task, ours.length) != (theirs.task, theirs.length):
        return False
    if differences(ours.protocol, theirs.protocol):
        return False
    outcomes, groups = ours.outcomes
    _, their_groups = theirs.outcomes
    return len(outcomes) > 0 and np.array_equal(groups, their_groups)


def best_p_value(score: Score, others: Sequence[Score]) -> float:
    """Return the greatest p-value of a score against the others.

    1 where it is not the greatest, or cannot be compared with each of them.
    """
    p_values = []
    for other in others:
        p_value = _p_value(score, other) if score.value > other.value else None
        p_values.append(1.0 if p_value is None else p_value)
    return max(p_values, default=1.0)


def significant(p_values: Mapping[_Key, float]) -> set[_Key]:
    """Return the keys of the hypotheses that Holm's procedure rejects at 5 %."""
    corrected = holm(list(p_values.values()))
    return {key for key, p in zip(p_values, corrected, strict=True) if p < _SIGNIFICANT}


@dataclass(frozen=True)
class ModelResults:
    """A results directory: the model, and every finished file."""

    path: Path
    model: Json
    finished: tuple[Result, ...]

    @property
    def name(self) -> str:
        """The label for reports, else the model's short name."""
        path = Path(str(self.model["name"]))
        return str(self.model.get("label") or path.name)

    def of_task(self, task: str) -> list[Result]:
        return [result for result in self.finished if result.task == task]

    def score(self, task: str, length: int | None) -> Score | None:
        """Return a task's score at a length; None where it was not measured."""
        for result in self.of_task(task):
            if result.length == length:
                return result.measured
        return None

    def scored_by(self, task: str) -> set[str]:
        """Return the metrics or judges of a task, over its lengths."""
        return {result.scored_by for result in self.of_task(task)}


def fingerprint(values: Json) -> str:
    """Return a hash of what a result depends on."""
    content = json.dumps(values, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def path_of(folder: Path, task: str, length: int | None) -> Path:
    """Return the finished file of a task at a length."""
    return folder / task / f"{'any' if length is None else length}.json"


def write(path: Path, values: Json) -> None:
    """Write a finished file, with the interval of its score.

    A probe states its own interval where questions do not give it.
    """
    interval = Result(path, values).measured.interval or values.get("interval")
    if interval:
        interval = [round(bound, 4) for bound in interval]
    store.write_json(path, {**values, "interval": interval})


def write_index(folder: Path, model: Json) -> None:
    """Write whose results a folder holds: the model as it names itself.

    With a label and what else is for reports alone; one that is None stays as it was.
    Raises EvaluateError if the folder holds another model's.
    """
    index = folder / _INDEX
    for_reports = {name: model.get(name) for name in _FOR_REPORTS}
    # All else says whether it is the same model.
    identity = {name: value for name, value in model.items() if name not in for_reports}
    if index.is_file():
        before = _checked(store.read_json(index), index, model=dict)["model"]
        if {**before, **for_reports} != {**identity, **for_reports}:
            raise EvaluateError(
                where=folder,
                problem=f"it holds results of another model, {before.get('name')}, or "
                "of the same one with other options",
                fix="give another --out, or delete the folder",
            )
        for name, value in for_reports.items():
            if value is None:
                for_reports[name] = before.get(name)
    values = {
        "format": FORMAT,
        "nextlong": nextlong.__version__,
        "model": {**identity, **for_reports},
    }
    store.write_json(index, values)


def read_finished(path: Path) -> Result:
    """Read a finished file.

    Raises RunError if it is damaged, and EvaluateError if it is of another version.
    """
    values = store.read_json(path)
    checked = _checked(
        values, path, task=str, length=(int, NoneType), score=(int, float)
    )
    return Result(path, checked)


def _checked(values: Any, path: Path, **fields: type | tuple[type, ...]) -> Json:
    """Return the values of a file.

    Raises EvaluateError if a field lacks its type, or if another version wrote the
    file.
    """
    is_ours = isinstance(values, dict)
    for name, kind in fields.items():
        # No field is an Ellipsis, so a missing one has no type of these.
        is_ours = is_ours and isinstance(values.get(name, ...), kind)
    if not is_ours:
        raise EvaluateError(
            where=path,
            problem="it is not a file of nextlong evaluate",
            fix="move it out of the folder, or give another folder",
        )
    if values.get("format") != FORMAT:
        version = values.get("nextlong", "unknown")
        raise EvaluateError(
            where=path,
            problem=f"it has results of format {values.get('format')} and this "
            f"nextlong reads {FORMAT}",
            fix="evaluate again into another --out, or use the version that wrote it "
            f"({version})",
        )
    checked: Json = values
    return checked


def read_results(folder: Path) -> ModelResults:
    """Read a results directory. Raises EvaluateError for any other folder."""
    index = folder / _INDEX
    if not index.is_file():
        problem = "it is not a folder"
        if folder.is_dir():
            problem = f"the folder has no {_INDEX}"
        raise EvaluateError(
            where=folder,
            problem=problem,
            fix="give a folder that `nextlong evaluate run MODEL --out FOLDER` wrote",
        )
    paths = sorted(folder.glob("*/*.json"))
    finished = [read_finished(path) for path in paths]
    values = _checked(store.read_json(index), index, model=dict)
    return ModelResults(folder, values["model"], tuple(finished))


@dataclass(frozen=True)
class Shard:
    """A part of the samples of every task: each `count`-th from the `number`-th on."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that `3/8` names. Raises EvaluateError."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal():
            shard = cls(int(number), int(count))
            if 1 <= shard.number <= shard.count:
                return shard
        raise EvaluateError(
            where="--shard",
            value=text,
            problem="is not a shard",
            fix="give 1/8 to 8/8, one to each of 8 processes",
        )

    def has(self, sample: int) -> bool:
        return sample % self.count == self.number - 1

    def unfinished(self, final: Path) -> Path:
        """Return the file of this shard's answers to a task at a length."""
        part = f".{self.number}-of-{self.count}" if self.count > 1 else ""
        return final.with_suffix(f"{part}.partial.jsonl")

    def all_unfinished(self, final: Path) -> list[Path]:
        """Return the files of all shards."""
        numbers = range(1, self.count + 1)
        return [Shard(number, self.count).unfinished(final) for number in numbers]


UNSHARDED: Final = Shard()


class Partial:
    """The file of an unfinished task.

    Lines are appended and synced to the disk, and read again after an interruption. A
    line without a number says that every sample is answered.
    """

    def __init__(self, path: Path, depends_on: str) -> None:
        """Open it for what the results depend on.

        Earlier answers with the same dependencies are kept.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"format": FORMAT, "fingerprint": depends_on}
        lines = list(store.whole_lines(path))
        kept = lines[1:] if lines[:1] == [header] else []
        self.samples = _by_number(kept)
        # Rewritten, so that a line torn by a kill is gone before another is appended.
        store.write_file(path, store.json_lines([header, *kept]))
        self._file = path.open("a", encoding="utf-8")

    def append(self, number: int, sample: Json) -> None:
        """Add an answered sample; it is on the disk when this returns."""
        self._write({"number": number, **sample})
        self.samples[number] = sample

    def finish(self) -> None:
        """Note that every sample is answered."""
        self._write({"finished": True})

    def _write(self, line: Json) -> None:
        self._file.write(store.json_lines([line]))
        # A sample may have taken minutes, so it is on the disk before the next is
        # awaited.
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _by_number(lines: Iterable[Json]) -> dict[int, Json]:
    """Return the samples among the lines of an unfinished file, by their numbers."""
    samples = {}
    for line in lines:
        sample = dict(line)
        number = sample.pop("number", None)
        if number is not None:
            samples[number] = sample
    return samples


def answered(unfinished: Path) -> int:
    """Return the number of samples that an interrupted evaluation answered."""
    return len(_by_number(store.whole_lines(unfinished)))


def merged(parts: Sequence[Path]) -> list[Json] | None:
    """Return the samples of all shards in order, None while one is unfinished.

    Raises EvaluateError for shards of different settings.
    """
    samples: dict[int, Json] = {}
    headers = []
    for path in parts:
        lines = list(store.whole_lines(path))
        if not lines or "finished" not in lines[-1]:
            return None
        headers.append(lines[0])
        samples |= _by_number(lines)
    if any(header != headers[0] for header in headers):
        raise EvaluateError(
            where=parts[0].parent,
            problem="its shards were measured with different settings, samples or data",
            fix="delete the *.partial.jsonl files of the shards to measure again",
        )
    return [samples[number] for number in sorted(samples)]
