"""Asked: which tasks at which lengths, and what of it would fail, told before the first is begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import Model
from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import Request, Task

STAND_INS: Final = {
    "ruler/PaulGrahamEssays.json": "ruler/essays.txt",
    "needle/haystack.txt": "ruler/PaulGrahamEssays.json",
}


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    `samples` is the most a task, None for what its benchmark defines; `names_lengths` says whether the user named the lengths.
    `label` and `negatives_cosine` (of the run that the model was
    trained on) are for reports alone.
    """

    tasks: Sequence[Task | Probe]
    lengths: Sequence[int]
    out: Path
    data: DataFiles
    samples: int | None = None
    seed: int = 42
    label: str | None = None
    run: Path | None = None
    negatives_cosine: float | None = None
    names_lengths: bool = True


def pairs(asked: Asked) -> list[tuple[Task | Probe, int | None]]:
    """Return what is to be done, short lengths first. Raises EvaluateError if a task knows none of the lengths."""
    for task in asked.tasks:
        if isinstance(task, Task) and task.lengths and not set(task.lengths) & set(asked.lengths):
            known = ", ".join(map(str, task.lengths))
            raise EvaluateError(
                f"--lengths: {task.name} is defined at {known} only; add one of them or leave the task out"
            )
    once: list[tuple[Task | Probe, int | None]] = [(task, None) for task in asked.tasks if _is_lengthless(task)]
    each = [
        (task, length) for length in sorted(asked.lengths) for task in asked.tasks if _is_defined(task, length, asked)
    ]
    return [*each, *once]


def _is_lengthless(task: Task | Probe) -> bool:
    return isinstance(task, Probe) and task.lengths == "none"


def _is_defined(task: Task | Probe, length: int, asked: Asked) -> bool:
    if isinstance(task, Probe):
        return task.lengths == "each"
    if task.usual_length is not None and not asked.names_lengths:
        return length == task.usual_length
    return not task.lengths or length in task.lengths


def check(asked: Asked, *, context: int | None) -> None:
    """Raise EvaluateError for what would fail later: no run to read, a length beyond the model, a missing file."""
    for task in asked.tasks:
        if task.reads == "run" and asked.run is None:
            raise EvaluateError(f"{task.name}: say --run RUN, the run whose sequences are read")
    missing: dict[str, None] = {}
    for task, length in pairs(asked):
        if context is not None and length is not None and length > context:
            raise EvaluateError(
                f"--lengths {length:,}: the model's context is {context:,} tokens; leave the length out, or give a "
                f"model that is longer "
                "(--context says otherwise, at your own risk)"
            )
        missing |= dict.fromkeys(name for name in files_of(task, length) if not is_there(name, asked.data))
    if missing:
        raise asked.data.missing(list(missing))


def files_of(task: Task | Probe, length: int | None) -> tuple[str, ...]:
    """Return the user's files without which there is no measuring; probes read what is there."""
    return task.needs(length or 0) if isinstance(task, Task) else ()


def is_there(name: str, data: DataFiles) -> bool:
    """Say whether a file, or what is read in its place, is there."""
    return data.has(name) or (name in STAND_INS and data.has(STAND_INS[name]))


def check_probes(todo: Sequence[tuple[Task | Probe, int | None]], asked: Asked, model: Model) -> None:
    """Raise EvaluateError for a probe that cannot be measured on this model or at its length, before the first task is begun."""
    for task, length in todo:
        if isinstance(task, Probe) and not results.place_of(asked.out, task.name, length).exists():
            task.check_model(local(model, task), asked.run)
            if length is not None:
                task.check(request_of(task, length, asked, model))


def local(model: Model, probe: Probe) -> HuggingFaceModel:
    """Return the model that a probe looks into. Raises EvaluateError for one behind a server."""
    if isinstance(model, HuggingFaceModel):
        return model
    raise behind_a_server(probe)


def behind_a_server(probe: Probe) -> EvaluateError:
    """Return what is said where a server's model is to be looked into."""
    return EvaluateError(
        f"{probe.name}: a server does not give away what is inside its model; name the model's folder or hub name, "
        "without --url, or leave it out"
    )


def request_of(task: Task | Probe, length: int | None, asked: Asked, model: Model) -> Request:
    """Return what a task or probe is asked for."""
    samples = asked.samples or task.samples
    return Request(
        length or 0, model.prompts.tokenizer, asked.data, samples, asked.seed, model.prompts.overhead, asked.run
    )
