"""Result: what is read from a result file of another program, whichever it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.task import Measurement
from nextlong.text import Json


@dataclass(frozen=True)
class ImportedResult:
    """A task at a length, as another program measured it.

    values: `score` and `scores` in percent, `n`, and what else the result file holds
    seed, prompt_format: compared as parts of the protocol; None where they are unknown
    evidence: all else that the score depends on, for its fingerprint
    """

    model: str
    task: Measurement
    length: int | None
    values: Json
    evidence: Json
    seed: int | None = None
    prompt_format: str | None = None

    def as_values(self, file: Path) -> Json:
        """Return what a finished file of ours holds."""
        return {
            "suite": self.task.suite,
            "category": self.task.category,
            "metric": self.task.metric,
            "task": self.task.name,
            "length": self.length,
            "refused": 0,
            "imported_from": file.name,
            "fingerprint": results.fingerprint(self.evidence),
            "depends_on": {
                "seed": self.seed,
                "prompts": {"format": self.prompt_format},
            },
            **self.values,
        }


class ResultFormat(NamedTuple):
    """How one program's result files are recognized and read.

    recognizes: whether the content of a file is of this program
    read: yields the results of a file; raises ValueError, KeyError, TypeError or
        AttributeError for a damaged one
    parts: the files that are read with this file, or replaced by it
    """

    program: str
    recognizes: Callable[[Path, Any], bool]
    read: Callable[[Path, Any], Iterable[ImportedResult]]
    parts: Callable[[Path], Sequence[Path]] = lambda _: ()


def values_of_samples(metric: str, samples: Sequence[Json]) -> Json:
    """Return the values of a result whose scores are the means over its samples."""
    scores = {
        name: 100 * fmean(sample["scores"][name] for sample in samples)
        for name in samples[0]["scores"]
    }
    return {
        "score": scores[metric],
        "scores": scores,
        "n": len(samples),
        "samples": list(samples),
    }


def parsed(file: Path) -> Any:
    """Return the content of a file: rows of CSV, a JSON value, or one per line."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".csv":
            return list(csv.DictReader(io.StringIO(text, newline="")))
        if file.suffix == ".jsonl":
            lines = text.split("\n")
            return [json.loads(line) for line in lines if line.strip()]
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise EvaluateError(
            where=file,
            problem=f"it cannot be read ({error})",
            fix="give the result files of one model",
        ) from None
