"""Results: what an evaluation writes, one JSON per task and length; its scores with intervals and paired tests.

RESULTS/evaluation.json                 the model, and its label
RESULTS/<task>/<length>.json            finished: the score, and every sample with prompt hash, answer, references and scores
RESULTS/<task>/<length>.partial.jsonl   unfinished: what the results depend on, then one line per sample

Intervals are 95 % percentile bootstraps over questions. Differences are tested by a paired permutation test: under the null
hypothesis the difference of two models on a question has either sign with equal probability. Questions that belong together (HELMET
asks one question at several depths) are resampled, and change their sign, together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.rng import rng_for
from nextlong.text import Json

FORMAT: Final = 2
_INDEX: Final = "evaluation.json"
JUDGED: Final = "judged"
_REPLICATES, _FLIPS = 1000, 2000
_Floats = NDArray[np.float64]
_Groups = NDArray[np.int64]


def _resampled(
    values: _Floats, weights: _Floats, groups: _Groups, *, key: str
) -> _Floats:
    """Return the weighted mean of values, shape (n,), over resampled groups, shape (_REPLICATES,)."""
    sums, counts = np.bincount(groups, values * weights), np.bincount(groups, weights)
    # Which groups each replicate holds, drawn with replacement, shape (_REPLICATES, groups). The generator depends on
    # the key and the number of groups, so an interval is the same in every report.
    picked = rng_for(0, "bootstrap", f"{key} {len(sums)}").integers(
        len(sums), size=(_REPLICATES, len(sums))
    )
    # A ratio of sums, since groups differ in their number of questions.
    return np.asarray(sums[picked].sum(1) / counts[picked].sum(1))


def _middle_95(replicates: _Floats) -> tuple[float, float]:
    low, high = np.quantile(replicates, (0.025, 0.975))
    return float(low), float(high)


def weighted_interval(
    values: _Floats, weights: _Floats, groups: _Groups
) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of a weighted mean over groups; all arrays have shape (n,)."""
    return _middle_95(_resampled(values, weights, groups, key="weighted"))


def differences(one: Json, other: Json) -> list[str]:
    """Describe the differences between two protocols; a field that only one of them has is not compared."""
    return [
        f"{name} {one[name]} and {other[name]}"
        for name in one
        if name in other and one[name] != other[name]
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
    def score(self) -> float:  # in percent
        return float(self.values["score"])

    @property
    def scored_by(self) -> str:
        """The metric, or the judge."""
        judge = self.values.get("judge")
        return f"judge {judge['name']}" if judge else str(self.values.get("metric"))

    @property
    def measured(self) -> Score:
        """The score with the outcome of each question, for its interval and for comparisons."""
        # Some files hold the right and wrong answers of several tasks.
        return (
            of_answers(self.values["answers"])
            if "answers" in self.values
            else Score(self.score, ((1.0, self),))
        )

    @cached_property
    def protocol(self) -> Json:
        """What must be equal where scores are compared."""
        depends_on = self.values.get("depends_on", {})
        stated = {
            "n": self.values.get("n"),
            **{name: depends_on.get(name) for name in ("seed", "version", "data")},
        }
        stated |= {
            "prompt format": depends_on.get("model", {}).get("prompt_format"),
            "scored by": self.scored_by,
        }
        return {name: value for name, value in stated.items() if value is not None}

    @cached_property
    def outcomes(self) -> tuple[_Floats, _Groups]:
        """Each question's outcome in percent and the number of its group, both of shape (n,); empty where they are unknown.

        Questions of a group share a context. A refused one counts as 0. A judgement that could not be read is left out, as HELMET
        does.
        """
        if "outcomes" in self.values:  # a probe's, in the unit of its score
            return np.array(self.values["outcomes"], float), np.arange(
                len(self.values["outcomes"])
            )
        metric = self.values.get("metric")
        outcomes, groups, number_of = list[float](), list[int](), dict[Any, int]()
        for number, sample in enumerate(self.values.get("samples", ())):
            # A question that is left out has a group too, so that two models' groups have the same numbers.
            group = number_of.setdefault(
                sample.get("details", {}).get("group", f"question {number}"),
                len(number_of),
            )
            if sample.get("refused"):
                value = 0.0
            else:
                value = (
                    sample["judged"]["share"]
                    if metric == JUDGED
                    else sample.get("scores", {}).get(metric)
                )
            if value is not None:
                outcomes.append(100.0 * float(value))
                groups.append(group)
            elif metric != JUDGED:
                return np.empty(0), np.empty(0, np.int64)
        return np.array(outcomes), np.array(groups, np.int64)

    @cached_property
    def replicates(self) -> _Floats:
        """The score over resampled groups, shape (_REPLICATES,)."""
        outcomes, groups = self.outcomes
        return _resampled(
            outcomes, np.ones(len(outcomes)), groups, key=str((self.task, self.length))
        )


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent: of one task at one length, or a mean of several, its parts with their weights."""

    value: float
    parts: tuple[tuple[float, Result], ...] = ()

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Score:
        """Return the mean of scores, each with the same weight however many questions it has, as HELMET and RULER average."""
        share = 1 / len(scores)
        parts = ((share * weight, part) for one in scores for weight, part in one.parts)
        return cls(share * sum(one.value for one in scores), tuple(parts))

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap 95 % interval; None where the outcomes of a part are unknown."""
        if not self.parts or any(not len(part.outcomes[0]) for _, part in self.parts):
            return None
        # Parts are resampled independently: replicate i of the mean is the mean of their replicates i.
        return _middle_95(
            sum(
                (weight * part.replicates for weight, part in self.parts),
                np.zeros(_REPLICATES),
            )
        )

    @property
    def n(self) -> int:
        """The number of questions, refused ones included."""
        return sum(
            int(part.values.get("n", len(part.outcomes[0]))) for _, part in self.parts
        )

    @property
    def refused(self) -> int:
        """The number of questions that were not asked because no prompt fits the length; they count as 0."""
        return sum(int(part.values.get("refused", 0)) for _, part in self.parts)


def of_answers(answers: Mapping[str, str]) -> Score:
    """Return the mean over tasks of the percentage of right answers, each a 1 or a 0."""
    parts = []
    for task, right in answers.items():
        outcomes = [100 * int(answer) for answer in right]
        values = {
            "task": task,
            "length": None,
            "score": fmean(outcomes),
            "outcomes": outcomes,
        }
        parts.append(Result(Path(), values).measured)
    return Score.mean(parts)


def _p_value(one: Score, other: Score) -> float | None:
    """Return the probability of a difference this great if the two do not differ, two-sided.

    None where they cannot be compared: other tasks, lengths or protocols, or unknown outcomes.
    """
    if len(one.parts) != len(other.parts) or not one.parts:
        return None
    observed, flipped = 0.0, np.zeros(_FLIPS)
    for (weight, ours), (_, theirs) in zip(one.parts, other.parts, strict=True):
        key, (outcomes, groups), (rivals, others) = (
            (ours.task, ours.length),
            ours.outcomes,
            theirs.outcomes,
        )
        if key != (theirs.task, theirs.length) or differences(
            ours.protocol, theirs.protocol
        ):
            return None
        if not len(outcomes) or not np.array_equal(groups, others):
            return None
        # What each group adds to the difference, shape (groups,), and its sign in each flip, shape (_FLIPS, groups).
        by_group = weight * np.bincount(groups, (outcomes - rivals) / len(outcomes))
        signs = (
            rng_for(0, "permutation", str(key)).integers(
                2, size=(_FLIPS, len(by_group))
            )
            * 2
            - 1
        )
        observed += float(by_group.sum())
        flipped += signs @ by_group
    # The observed signs are one of the flips, so p is never 0; 1e-9 lets rounding break no tie.
    return float(
        (1 + np.count_nonzero(np.abs(flipped) >= abs(observed) - 1e-9)) / (1 + _FLIPS)
    )


def is_better(one: Score, others: Sequence[Score]) -> bool:
    """Return whether a score is significantly greater than each of the others."""
    p_values = (
        _p_value(one, other) if one.value > other.value else None for other in others
    )
    return bool(others) and all(p is not None and p < 0.05 for p in p_values)


@dataclass(frozen=True)
class ModelResults:
    """A results directory: the model, and every finished file."""

    path: Path
    model: Json
    finished: tuple[Result, ...]

    @property
    def name(self) -> str:
        """The label for reports, else the model's short name."""
        return str(self.model.get("label") or Path(str(self.model["name"])).name)

    def of(self, task: str) -> list[Result]:
        return [one for one in self.finished if one.task == task]

    def score(self, task: str, length: int | None) -> Score | None:
        """Return a task's score at a length; None where it was not measured."""
        return next(
            (one.measured for one in self.of(task) if one.length == length), None
        )

    def scored_by(self, task: str) -> set[str]:
        """Return the metrics or judges of a task, over its lengths."""
        return {one.scored_by for one in self.of(task)}


def fingerprint(values: Json) -> str:
    """Return a hash of what a result depends on."""
    return hashlib.blake2b(
        json.dumps(values, sort_keys=True).encode(), digest_size=16
    ).hexdigest()


def path_of(folder: Path, task: str, length: int | None) -> Path:
    return folder / task / f"{'any' if length is None else length}.json"


def answered(final: Path) -> int:
    """Return the number of samples that an interrupted evaluation answered."""
    return max(sum(1 for _ in _whole_lines(final.with_suffix(".partial.jsonl"))) - 1, 0)


def write(path: Path, values: Json) -> None:
    """Write a finished file, with the interval of its score; a probe states its own where questions do not give it."""
    interval = Result(path, values).measured.interval or values.get("interval")
    store.write_json(
        path,
        {**values, "interval": interval and [round(bound, 4) for bound in interval]},
    )


def write_index(folder: Path, model: Json) -> None:
    """Write whose results a folder holds: the model as it names itself, with a label and what else is for reports alone.

    Raises EvaluateError if the folder holds another model's. A label that is None stays as it was.
    """
    # Label and cosine describe the model for readers; all else says whether it is the same model.
    index, about = (
        folder / _INDEX,
        {name: model.get(name) for name in ("label", "negatives_cosine")},
    )
    identity = {name: value for name, value in model.items() if name not in about}
    if index.is_file():
        before = _checked(store.read_json(index), index, model=dict)["model"]
        if {**before, **about} != {**identity, **about}:
            raise EvaluateError(
                f"{folder} holds results of another model, {before.get('name')}, or of the same one with other "
                "options; give another --out, or delete the folder"
            )
        about = {
            name: before.get(name) if value is None else value
            for name, value in about.items()
        }
    store.write_json(
        index,
        {
            "format": FORMAT,
            "nextlong": nextlong.__version__,
            "model": {**identity, **about},
        },
    )


def read_finished(path: Path) -> Result:
    """Read a finished file. Raises EvaluateError if it is damaged or of another version."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvaluateError(
            f"{path} is damaged ({error}); delete it and evaluate again"
        ) from None
    return Result(
        path,
        _checked(values, path, task=str, length=(int, NoneType), score=(int, float)),
    )


def _checked(values: Any, path: Path, **fields: type | tuple[type, ...]) -> Json:
    """Return the values of a file. Raises EvaluateError if a field lacks its type, or if another version wrote the file."""
    if not isinstance(values, dict) or not all(
        isinstance(values.get(name, ...), kind) for name, kind in fields.items()
    ):
        raise EvaluateError(
            f"{path} is not a file of nextlong evaluate; move it out of the folder, or give another folder"
        )
    if values.get("format") != FORMAT:
        raise EvaluateError(
            f"{path} has results of format {values.get('format')} and this nextlong reads {FORMAT}; evaluate again into another "
            f"--out, or use the version that wrote it ({values.get('nextlong', 'unknown')})"
        )
    return values


def read_results(folder: Path) -> ModelResults:
    """Read a results directory. Raises EvaluateError for any other folder."""
    index = folder / _INDEX
    if not index.is_file():
        reason = "has no " + _INDEX if folder.is_dir() else "is not a folder"
        raise EvaluateError(
            f"{folder} {reason}; give a folder that `nextlong evaluate MODEL --out FOLDER` wrote"
        )
    finished = tuple(read_finished(path) for path in sorted(folder.glob("*/*.json")))
    return ModelResults(
        folder, _checked(store.read_json(index), index, model=dict)["model"], finished
    )


class Partial:
    """The file of an unfinished task: lines are appended and synced to the disk, and read again after an interruption."""

    def __init__(self, path: Path, depends_on: str) -> None:
        """Open it for what the results depend on; earlier answers with the same dependencies are kept."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        header, lines = (
            {"format": FORMAT, "fingerprint": depends_on},
            list(_whole_lines(path)),
        )
        self.samples = lines[1:] if lines[:1] == [header] else []
        # Rewritten, so that a line torn by a kill is gone before another is appended.
        text = "".join(
            json.dumps(line, ensure_ascii=False) + "\n"
            for line in (header, *self.samples)
        )
        store.write_file(path, text)
        self._file = path.open("a", encoding="utf-8")

    def append(self, samples: Sequence[Json]) -> None:
        """Add answered samples; they are on the disk when this returns."""
        self._file.write(
            "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        )
        # A sample may have taken minutes, so it is on the disk before the next ones are sent.
        self._file.flush()
        os.fsync(self._file.fileno())
        self.samples.extend(samples)

    def close(self) -> None:
        self._file.close()

    def finish(self, final: Path, values: Mapping[str, object]) -> None:
        """Write the finished file, then remove this one."""
        self.close()
        write(final, {"format": FORMAT, **values, "samples": self.samples})
        self.path.unlink()


def _whole_lines(path: Path) -> Iterator[Json]:
    if not path.is_file():
        return
    # Not splitlines: an answer may hold U+2028, which does not end a line here. After the last line end there may be a torn line.
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            yield json.loads(line.decode("utf-8", errors="replace"))
        except ValueError:
            return
