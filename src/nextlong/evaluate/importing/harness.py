"""lm-eval (EleutherAI/lm-evaluation-harness): the files of --output_path.

In:  results_TIME.json, and the samples_TASK_TIME.jsonl beside it (--log_samples).
Out: OpenAI's GraphWalks. The short-text tasks are measured here, by the suite `short`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.importing.result import (
    ImportedResult,
    ResultFormat,
    parsed,
    values_of_samples,
)
from nextlong.evaluate.registry import scored_tasks
from nextlong.text import Json

_TASK: Final = "graphwalks"
# lm-eval's tasks, one per file of OpenAI's, with the greatest length in the file.
_LENGTHS: Final = {"graphwalks_128k": 131_072, "graphwalks_1M": 1_048_576}
_METRICS: Final = ("f1", "flexible_f1")


def _recognizes(_: Path, content: Any) -> bool:
    return isinstance(content, dict) and {"results", "n-samples"} <= set(content)


def _samples_file(file: Path, task: str) -> Path:
    time = file.stem.removeprefix("results_")
    return file.with_name(f"samples_{task}_{time}.jsonl")


def _parts(file: Path) -> Sequence[Path]:
    time = file.stem.removeprefix("results_")
    return list(file.parent.glob(f"samples_*_{time}.jsonl"))


def _read(file: Path, content: Any) -> Iterator[ImportedResult]:
    for task, length in _LENGTHS.items():
        if task not in content["results"]:
            continue
        samples_file = _samples_file(file, task)
        if not samples_file.is_file():
            raise EvaluateError(
                where=samples_file,
                problem="it is missing, and has the score of each question",
                fix="run lm-eval with --log_samples",
            )
        yield _result(content, task, length, _samples(samples_file))


def _samples(file: Path) -> list[Json]:
    samples = []
    for row in parsed(file):
        scores = {metric: float(row[metric]) for metric in _METRICS}
        kind = str(row["doc"]["problem_type"]).lower()
        samples.append({"scores": scores, "details": {"kind": kind}})
    return samples


def _result(
    content: Mapping[str, Any], task: str, length: int, samples: Sequence[Json]
) -> ImportedResult:
    measured = content["results"][task]
    values = values_of_samples(_METRICS[0], samples)
    stated = 100 * float(measured["f1,none"])
    if abs(stated - values["score"]) > 1e-6:
        raise ValueError(
            f"{task} has {stated:.4f} there and {values['score']:.4f} in its samples"
        )
    has_template = content.get("chat_template") is not None
    return ImportedResult(
        model=str(content["model_name"]),
        task=scored_tasks()[_TASK],
        length=length,
        values=values,
        evidence={"results": measured, "version": content.get("lm_eval_version")},
        prompt_format="chat" if has_template else "completion",
    )


FORMAT: Final = ResultFormat("lm-eval", _recognizes, _read, _parts)
