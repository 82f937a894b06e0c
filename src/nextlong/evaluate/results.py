"""Results: what a run leaves behind, one JSON a task and length, and how it is read again.

RESULTS/evaluation.json                 the model, and what was asked for
RESULTS/<task>/<length>.json            finished: the score, and every sample with prompt hash, answer, references and scores
RESULTS/<task>/<length>.partial.jsonl   under way: what the results depend on, then a line a sample
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.statistics import Floats, Sampled, Score
from nextlong.evaluate.task import JSON
from nextlong.plain_data import Json

FORMAT: Final = 2
INDEX: Final = "evaluation.json"
LENGTHLESS: Final = "any"
JUDGED: Final = "judged"


@dataclass(frozen=True)
class Result:
    """A finished task at a length, as its file says. `score` is in percent."""

    path: Path
    values: Mapping[str, Any]

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.values["task"])

    @property
    def length(self) -> int | None:
        """Tokens, answer included; None where the task has no length."""
        length = self.values["length"]
        return None if length is None else int(length)

    @property
    def score(self) -> float:
        """The score, in percent."""
        return float(self.values["score"])

    @property
    def scored_by(self) -> str:
        """What gave the score: the metric, or who judged."""
        judge = self.values.get("judge")
        return f"judge {judge['name']}" if judge else str(self.values.get("metric"))

    @cached_property
    def measured(self) -> Score:
        """The score with the outcome of each question, for its interval and for comparisons."""
        outcomes, groups = _outcomes(self.values)
        n, refused = int(self.values.get("n", len(outcomes))), int(self.values.get("refused", 0))
        return Score.of(Sampled((self.task, self.length), self.score, outcomes, groups, n, refused, self.protocol))

    @property
    def protocol(self) -> dict[str, Any]:
        """What has to be equal where scores are compared."""
        depends_on = self.values.get("depends_on", {})
        named = {
            "n": self.values.get("n"),
            "seed": depends_on.get("seed"),
            "version": depends_on.get("version"),
            "data": depends_on.get("data"),
            "prompt format": depends_on.get("model", {}).get("prompt_format"),
            "scored by": self.scored_by,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Results:
    """A results directory: whose they are, and every finished file."""

    path: Path
    model: Mapping[str, Any]
    finished: tuple[Result, ...]

    @property
    def name(self) -> str:
        """The label of a report, else the model's short name."""
        return str(self.model.get("label") or Path(str(self.model["name"])).name)

    def score(self, task: str, length: int | None) -> Score | None:
        """Return a task's score at a length; None where it was not measured."""
        return next((one.measured for one in self.finished if one.task == task and one.length == length), None)

    def scored_by(self, task: str) -> set[str]:
        """Return what gave a task's scores, over its lengths."""
        return {one.scored_by for one in self.finished if one.task == task}


def _outcomes(values: Mapping[str, Any]) -> tuple[Floats, Any]:
    """Return each question's outcome in percent and the number of its group, both of shape (n,); empty where they are unknown.

    A refused question counts as 0. A judgement that could not be read is left out, as HELMET does.
    """
    if "outcomes" in values:  # a probe's, in the unit of its score
        return np.array(values["outcomes"], float), np.arange(len(values["outcomes"]))
    metric = values.get("metric")
    outcomes: list[float] = []
    named: dict[Any, int] = {}
    groups: list[int] = []
    for number, sample in enumerate(values.get("samples", ())):
        # Also of a question that is left out, so that two models' groups have the same numbers.
        group = named.setdefault(sample.get("details", {}).get("group", f"question {number}"), len(named))
        scored = {} if sample.get("refused") else sample.get("scores", {})
        value = 0.0 if sample.get("refused") else scored.get(metric)
        if metric == JUDGED and not sample.get("refused"):
            value = sample["judged"]["share"]
            if value is None:
                continue
        if value is None:
            return np.empty(0), np.empty(0, np.int64)
        outcomes.append(100.0 * float(value))
        groups.append(group)
    return np.array(outcomes), np.array(groups, np.int64)


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return a hash of what a result depends on."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def prompt_hash(text: str) -> str:
    """Return the SHA-256 of a prompt, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def place_of(folder: Path, task: str, length: int | None) -> Path:
    """Return the file of a task at a length."""
    return folder / task / f"{LENGTHLESS if length is None else length}.json"


def partial_of(final: Path) -> Path:
    """Return the file of a task under way, by that of the finished one."""
    return final.with_suffix(".partial.jsonl")


def answered(final: Path) -> int:
    """Return how many samples an earlier run answered of a task that it did not finish."""
    return max(sum(1 for _ in _whole_lines(partial_of(final))) - 1, 0)


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write a finished file, with the interval of its score; a probe states its own where questions do not give it."""
    found = Result(path, values).measured.interval if len(_outcomes(values)[0]) else values.get("interval")
    store.write_json(path, {**values, "interval": found and [round(bound, 4) for bound in found]})


def read_finished(path: Path) -> Result:
    """Read a finished file. Raises EvaluateError if it is damaged or of another version."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvaluateError(f"{path} is damaged ({error}); delete it and evaluate again") from None
    if not isinstance(values, dict) or "score" not in values or "task" not in values:
        raise EvaluateError(f"{path} is not a result of nextlong evaluate; take it out of the folder")
    check_format(values, path)
    return Result(path, values)


def check_format(values: Mapping[str, Any], path: Path) -> None:
    """Raise EvaluateError if a file was written in another format than this version reads."""
    if values.get("format") != FORMAT:
        raise EvaluateError(
            f"{path} has results of format {values.get('format')} and this nextlong reads {FORMAT}; evaluate again "
            f"into another --out, or "
            f"use the version that wrote it ({values.get('nextlong', 'unknown')})"
        )


def read_results(folder: Path) -> Results:
    """Read a results directory. Raises EvaluateError if it is none."""
    index = folder / INDEX
    if not index.is_file():
        there = "has no " + INDEX if folder.is_dir() else "is not a folder"
        raise EvaluateError(f"{folder} {there}; give a folder that `nextlong evaluate MODEL --out FOLDER` wrote")
    record = store.read_json(index)
    check_format(record, index)
    finished = tuple(read_finished(path) for path in sorted(folder.glob("*/*.json")))
    return Results(folder, record["model"], finished)


class Partial:
    """The file of a task under way: lines are appended and brought to the disk, and read again after a kill."""

    def __init__(self, path: Path, depends_on: str) -> None:
        """Open it for what the results depend on; what an earlier run answered under the same is kept, else it is begun anew."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"format": FORMAT, "fingerprint": depends_on}
        lines = list(_whole_lines(path))
        if lines and lines[0] == header:
            self.samples = lines[1:]
        else:
            self.samples = []
            lines = [header]
        # Written anew, so that a line torn by a kill is gone before another is appended.
        store.write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        self._file = path.open("a", encoding="utf-8")

    def append(self, samples: list[dict[str, JSON]]) -> None:
        """Add answered samples; they are on the disk when this returns."""
        self._file.write("".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.samples.extend(samples)

    def close(self) -> None:
        """Close the file; it stays for the next run."""
        self._file.close()

    def finish(self, final: Path, values: Mapping[str, JSON]) -> None:
        """Write the finished file, then remove this one."""
        self.close()
        write(final, {"format": FORMAT, **values, "samples": self.samples})
        self.path.unlink()


def _whole_lines(path: Path) -> Iterator[Json]:
    if not path.is_file():
        return
    # Not splitlines: an answer may hold U+2028, which ends no line of ours. Behind the last end is nothing, or a torn line.
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            yield json.loads(line.decode("utf-8", errors="replace"))
        except ValueError:
            return
