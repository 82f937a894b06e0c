"""Import HELMET: results that HELMET's scripts wrote, as a results directory of ours.

In:  JSON files of eval.py (`args`, `averaged_metrics`, `data`); never their names. Out:
one file per task and length, with each question's score but without the answers, marked
as imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.data import SOURCES
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Task
from nextlong.report import tables
from nextlong.text import Json

# Names of our tasks, joined by a space, by a part of HELMET's name: HELMET counts some
# of its results in two categories.
_TASKS: Final[dict[str, str]] = SOURCES["helmet_tasks"]
# Of NarrativeQA, from 0 to 3; without a judge, ROUGE counts.
_JUDGED_BY_HELMET: Final = "gpt-4-score"
_MAX_JUDGED: Final = 3
_AS_WRITTEN: Final = "give a file as HELMET wrote it"


class _Metric(NamedTuple):
    """A name under which HELMET writes a score; `is_judged`: its judge's."""

    name: str
    is_judged: bool


def import_helmet(
    files: Sequence[Path], *, out: Path, label: str | None, console: Console
) -> results.ModelResults:
    """Read files of one model into `out`; return its results. Raises EvaluateError."""
    records = {file: _read(file) for file in files}
    model = _only_model(records)
    written: dict[Path, Path] = {}
    for file, record in records.items():
        for values in _imported(record, file):
            path = results.path_of(out, values["task"], values["length"])
            if path in written:
                both = f"both {values['task']} at {values['length']:,}"
                raise EvaluateError(
                    where="import",
                    problem=f"{written[path]} and {file} are {both}",
                    fix="leave one out",
                )
            with store.explained(out):
                path.parent.mkdir(parents=True, exist_ok=True)
            results.write(path, values)
            written[path] = file
    results.write_index(out, {"kind": "helmet", "name": model, "label": label})
    count = f"{len(files)} files of {model} into {len(written)} results"
    tables.say(f"read {count} in {out}", console)
    return results.read_results(out)


def _read(file: Path) -> Json:
    """Return a file's record, whose `args` and `averaged_metrics` are objects."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluateError(
            where=file,
            problem=f"it cannot be read ({error})",
            fix="give result files of HELMET's eval.py",
        ) from None
    is_result = isinstance(record, dict)
    if is_result:
        parts = [record.get("args"), record.get("averaged_metrics")]
        is_result = all(isinstance(part, dict) for part in parts)
    if not is_result:
        raise EvaluateError(
            where=file,
            problem="it is not a result of HELMET's eval.py, its `args` or "
            "`averaged_metrics` hold no fields (.score files lack them)",
            fix=_AS_WRITTEN,
        )
    fields: Json = record
    return fields


def _only_model(records: dict[Path, Json]) -> str:
    """Return the name of the files' model; raise if there are several."""
    names = set()
    for record in records.values():
        name = record["args"].get("model_name_or_path")
        names.add(str(name))
    models = sorted(names)
    if len(models) > 1:
        raise EvaluateError(
            where="import",
            problem=f"the files are of {len(models)} models, {models[0]} and "
            f"{models[1]}",
            fix="import each into its own --out",
        )
    return models[0]


def _imported(record: Json, file: Path) -> Iterator[Json]:
    """Yield the values of a result file for each of our tasks that a record is of."""
    arguments = record["args"]
    metrics = record["averaged_metrics"]
    tasks = _tasks_of(arguments, file)
    metric = _metric_of(tasks[0], metrics, arguments, file)
    try:
        length = int(arguments["input_max_length"])
        score = float(metrics[metric.name])
    except (KeyError, TypeError, ValueError):
        raise EvaluateError(
            where=file,
            problem="no number in `args.input_max_length` or "
            f"`averaged_metrics.{metric.name}`",
            fix=_AS_WRITTEN,
        ) from None
    if metric.is_judged:
        score *= 100 / _MAX_JUDGED

    questions = record.get("data") or []
    # Compared as part of the protocol: scores of chat prompts are not compared with
    # those of plain ones.
    prompt_formats = {True: "chat", False: "completion"}
    prompt_format = prompt_formats.get(arguments.get("use_chat_template"))
    common = {
        "metric": metric.name,
        "length": length,
        "score": score,
        "scores": {metric.name: score},
        "n": len(questions),
        "refused": 0,
        "imported_from": file.name,
        "fingerprint": results.fingerprint({"imported": arguments, "metrics": metrics}),
        "depends_on": {
            "seed": arguments.get("seed"),
            "prompts": {"format": prompt_format},
        },
        "samples": _samples(questions, metric, file),
    }
    for task in tasks:
        yield {
            "format": results.FORMAT,
            "nextlong": nextlong.__version__,
            "suite": task.suite,
            "category": task.category,
            "task": task.name,
            **common,
        }


def _tasks_of(arguments: Json, file: Path) -> list[Task]:
    """Return our tasks that a file's data set is; raise EvaluateError for any other."""
    dataset = str(arguments.get("datasets"))
    for part_of_name, task_names in _TASKS.items():
        if part_of_name in dataset:
            known_tasks = all_tasks()
            return [known_tasks[name] for name in task_names.split()]
    raise EvaluateError(
        where=file,
        problem=f"HELMET's data set {dataset!r} is not one of the paper's",
        fix="leave the file out",
    )


def _metric_of(task: Task, metrics: Json, arguments: Json, file: Path) -> _Metric:
    """Return the metric that a file holds, for NarrativeQA the judge's first."""
    is_judged = task.name == "narrativeqa" and _JUDGED_BY_HELMET in metrics
    metric = _JUDGED_BY_HELMET if is_judged else task.metric
    if metric not in metrics:
        present = ", ".join(metrics)
        raise EvaluateError(
            where=file,
            problem=f"{arguments.get('datasets')} has no {metric} (it has {present})",
            fix="score it with HELMET's scripts first",
        )
    return _Metric(metric, is_judged)


def _samples(questions: Sequence[Any], metric: _Metric, file: Path) -> list[Json]:
    """Return each question's score; none where a file does not hold those of all."""
    samples: list[Json] = []
    for index, question in enumerate(questions):
        try:
            score = _score_of(question, metric)
            if score is None:
                return []
            # HELMET asks one question at several depths; such questions are resampled
            # together.
            group = None
            for name in ("id", "qid", "question"):
                if name in question:
                    group = question[name]
                    break
            details = {"group": group} if group else {}
            samples.append({"scores": {metric.name: float(score)}, "details": details})
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EvaluateError(
                where=file,
                problem=f"data[{index}] is {question!r:.60}, not a question with its "
                f"{metric.name}",
                fix=_AS_WRITTEN,
            ) from None
    return samples


def _score_of(question: Json, metric: _Metric) -> Any:
    """Return the score of a question, None where it is unknown."""
    judged = question.get("gpt-4-scores")
    if metric.is_judged and judged:
        # As `eval_gpt4_longqa.py` computes it, here as a share of the highest score.
        return judged["fluency"] * judged["correctness"] / _MAX_JUDGED
    return question.get(metric.name)
