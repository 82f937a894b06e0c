"""HELMET (princeton-nlp/HELMET): results of its scripts.

In:  JSON files of eval.py (`args`, `averaged_metrics`, `data`); beside them the .score
     files of eval_alce.py, and the …-gpt4eval_o.json files of its judge, which replace
     those of eval.py.
Out: the scores that its collect_results.py prints, with each question's where a file
     has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import SOURCES
from nextlong.evaluate.importing.result import ImportedResult, ResultFormat
from nextlong.evaluate.registry import scored_tasks
from nextlong.evaluate.task import Measurement
from nextlong.text import Json

# Names of our tasks, joined by a space, by a part of HELMET's name: HELMET counts some
# of its results in two categories.
_TASKS: Final[dict[str, str]] = SOURCES["helmet_tasks"]
_JUDGED_FILE: Final = "-gpt4eval_o"
# The metrics of a citation task, whose mean HELMET's category counts.
_CITATIONS: Final = {
    "alce_asqa": ("str_em", "citation_rec", "citation_prec"),
    "alce_qampari": ("qampari_rec_top5", "citation_rec", "citation_prec"),
}


class _Metric(NamedTuple):
    """A name under which HELMET writes a score, and its greatest value there."""

    name: str
    max_value: float = 100.0


# What HELMET's judge gives. Without it NarrativeQA is scored by ROUGE, a summary not.
_JUDGED: Final = {
    "narrativeqa": _Metric("gpt-4-score", 3.0),
    "infbench_sum": _Metric("gpt-4-f1", 1.0),
    "multi_lexsum": _Metric("gpt-4-f1", 1.0),
}


def _recognizes(_: Path, content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    parts = [content.get("args"), content.get("averaged_metrics")]
    return all(isinstance(part, dict) for part in parts)


def _parts(file: Path) -> Sequence[Path]:
    unjudged = file.stem.removesuffix(_JUDGED_FILE)
    parts = [_score_file(file)]
    if unjudged != file.stem:
        parts.append(file.with_stem(unjudged))
    return parts


def _score_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.score")


def _read(file: Path, record: Json) -> Iterator[ImportedResult]:
    """Yield the result of a file for each of our tasks that it is of."""
    arguments = record["args"]
    # Scores of chat prompts are not compared with those of plain ones.
    prompt_formats = {True: "chat", False: "completion"}
    for task in _tasks_of(arguments):
        values = _values(record, task, file)
        yield ImportedResult(
            model=str(arguments.get("model_name_or_path")),
            task=task,
            length=int(arguments["input_max_length"]),
            values=values,
            evidence={"imported": arguments, "metrics": values["scores"]},
            seed=arguments.get("seed"),
            prompt_format=prompt_formats.get(arguments.get("use_chat_template")),
        )


def _tasks_of(arguments: Json) -> list[Measurement]:
    """Return our tasks that a file's data set is; raise ValueError for any other."""
    dataset = str(arguments.get("datasets"))
    for part_of_name, task_names in _TASKS.items():
        if part_of_name in dataset:
            return [scored_tasks()[name] for name in task_names.split()]
    raise ValueError(f"HELMET's data set {dataset!r} is not one of the paper's")


def _values(record: Json, task: Measurement, file: Path) -> Json:
    """Return the score of a file, with its questions."""
    questions = record.get("data") or []
    if task.name in _CITATIONS:
        return {**_cited(task.name, file), "n": len(questions), "samples": []}
    metrics = record["averaged_metrics"]
    metric = _Metric(task.metric)
    judged = _JUDGED.get(task.name, metric)
    if judged.name in metrics:
        metric = judged
    if metric.name not in metrics:
        present = ", ".join(metrics)
        raise EvaluateError(
            where=file,
            problem=f"{task.name} has no {metric.name} (it has {present})",
            fix="score it with HELMET's scripts first",
        )
    score = 100 * float(metrics[metric.name]) / metric.max_value
    return {
        "metric": metric.name,
        "score": score,
        "scores": {metric.name: score},
        "n": len(questions),
        "samples": _samples(questions, metric),
    }


def _cited(task: str, file: Path) -> Json:
    """Return the scores that eval_alce.py wrote beside a file, and their mean."""
    score_file = _score_file(file)
    scores = {}
    if score_file.is_file():
        scores = json.loads(score_file.read_text(encoding="utf-8"))
    if not set(_CITATIONS[task]) <= set(scores):
        raise EvaluateError(
            where=score_file,
            problem="it is missing, or has no citation scores",
            fix="run HELMET's eval_alce.py --citations on the file",
        )
    counted = {name: float(scores[name]) for name in _CITATIONS[task]}
    return {"score": fmean(counted.values()), "scores": counted}


def _samples(questions: Sequence[Json], metric: _Metric) -> list[Json]:
    """Return each question's score; none where a file does not hold those of all."""
    samples: list[Json] = []
    for question in questions:
        score = _score_of(question, metric)
        if score is None:
            return []
        # HELMET asks one question at several depths; such questions are resampled
        # together.
        names = [name for name in ("id", "qid", "question") if name in question]
        details = {"group": question[names[0]]} if names else {}
        samples.append({"scores": {metric.name: float(score)}, "details": details})
    return samples


def _score_of(question: Json, metric: _Metric) -> Any:
    """Return the score of a question, from 0 to 1; None where it is unknown."""
    judged = question.get("gpt-4-scores")
    if not judged or metric not in _JUDGED.values():
        return question.get(metric.name)
    if "f1" in judged:
        return judged["f1"]
    # As `eval_gpt4_longqa.py` computes it, here as a share of the highest score.
    return judged["fluency"] * judged["correctness"] / metric.max_value


FORMAT: Final = ResultFormat("HELMET", _recognizes, _read, _parts)
