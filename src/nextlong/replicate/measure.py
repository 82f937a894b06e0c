"""Measure: models → results, by `nextlong.evaluate`; killed, it goes on with the first sample that is not on the disk.

OUT/results/<model>/            tasks and probes at each length
OUT/results/<model>-<side>/     the dependency probe over the held-out runs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from rich.console import Console

from nextlong.errors import EvaluateError, RecipeError
from nextlong.evaluate.asked import Asked
from nextlong.evaluate.command import chosen
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.models.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.progress import Progress
from nextlong.evaluate.results import Results, read_results
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.task import Request, Task
from nextlong.replicate.data import Arm
from nextlong.replicate.models import Trained
from nextlong.replicate.recipe import Replication
from nextlong.replicate.stage import Stage

_PROBE = "dependency"


@dataclass(frozen=True)
class Measured:
    """What is measured of a model: its stage, which holds a results folder, and what is asked."""

    stage: Stage
    asked: Asked

    @property
    def results(self) -> Results:
        """What came of it."""
        return read_results(self.asked.out)


def check(recipe: Replication) -> None:
    """Raise RecipeError for a task that is none or has no lengths, before anything is made."""
    try:
        tasks = chosen([], recipe.measure.tasks)
    except EvaluateError as error:
        raise RecipeError(f"measure.tasks: {str(error).removeprefix('--tasks ')}") from None
    if lengthless := [task.name for task in tasks if isinstance(task, Probe) and task.lengths == "none"]:
        raise RecipeError(
            f"measure.tasks: {lengthless[0]} is not measured at lengths; leave it out ({_PROBE} is always measured)"
        )


def check_samples(recipe: Replication, documents: Stage, tokenizer: Path) -> None:
    """Raise a user's error for a task without its files, or a task or probe that a length is too short for.

    Before anything is trained.
    """
    counts = TextTokenizer.read(tokenizer)
    for task in chosen([], recipe.measure.tasks):
        for length in recipe.measure.lengths:
            try:
                _check_samples(task, Request(length, counts, _data(documents), recipe.measure.samples))
            except EvaluateError as error:
                raise RecipeError(f"measure: {str(error).removeprefix('--lengths: ')}") from None


def _check_samples(task: Task | Probe, request: Request) -> None:
    if isinstance(task, Probe):
        task.check(request)
    elif all(sample is None for sample in islice(task.make(request), request.samples)):
        raise EvaluateError(
            f"no sample of {task.name} fits {request.length:,} tokens of this tokenizer; leave the task or the length out"
        )


def _data(documents: Stage) -> DataFiles:
    return DataFiles(documents.folder / "data")


def planned(
    recipe: Replication, model: Trained, held_out: tuple[Arm, ...], documents: Stage, out: Path
) -> Iterator[Measured]:
    """Yield the measurements of a model: the tasks, then the dependency probe over each held-out run."""
    data = _data(documents)
    about = {"model": model.stage.fingerprint, "documents": documents.fingerprint}
    tasks = {
        "tasks": {task.name: task.version for task in chosen([], recipe.measure.tasks)},
        "lengths": list(recipe.measure.lengths),
        "samples": recipe.measure.samples,
    }
    stage = Stage(out / "results", "tasks", {**about, **tasks})
    label = None if model.arm is None else f"{model.arm.experiment}={model.arm.value}"
    cosine = model.arm.stats.similarity if model.arm else None
    yield Measured(
        stage,
        Asked(
            tasks=chosen([], recipe.measure.tasks),
            lengths=recipe.measure.lengths,
            out=stage.folder / "results",
            data=data,
            samples=recipe.measure.samples,
            label=label or "pretrained",
            negatives_cosine=None if cosine is None else cosine.p50,
        ),
    )
    for arm in held_out:
        stage = Stage(out / "results", f"dependency-{arm.value}", {**about, "run": arm.composed})
        probe = chosen([], [_PROBE])
        yield Measured(
            stage,
            Asked(probe, [], stage.folder / "results", data, recipe.measure.sequences, label=label, run=Path(arm.run)),
        )


def measure(model: Trained, todo: list[Measured], recipe: Replication) -> None:
    """Carry out what is not finished; the model is loaded once."""
    if all(one.stage.is_finished for one in todo):
        return

    @lru_cache(maxsize=1)
    def loaded() -> HuggingFaceModel:
        opened = HuggingFaceModel(
            str(model.final), LoadOptions(dtype="float32", batch_tokens=recipe.measure.batch_tokens)
        )
        opened.context = (
            recipe.extend.tokens
        )  # of the one that is pretrained only, too: how it fares there is the question
        return opened

    for one in todo:
        if not one.stage.is_finished:
            measured = evaluate(loaded, one.asked, progress=Progress(Console(quiet=True)))
            one.stage.finish({"results": len(measured.finished)})
