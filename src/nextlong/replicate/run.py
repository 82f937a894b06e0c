"""Run: a replication from its documents to measured models. Finished stages are reused; a killed one resumes.

OUT/models/                      one model pretrained on short rows per seed; extended from it, one on every run
OUT/results/tasks-…/             tasks and probes at each length
OUT/results/dependency-SIDE-…/   the dependency probe over the held-out runs

All extensions have the same tokens, steps and learning rates; those of a seed start from the same weights. The runs, the trainer
and the evaluation are the package's own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError, RecipeError
from nextlong.evaluate.command import chosen
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.plan import Settings
from nextlong.evaluate.results import Results, read_results
from nextlong.evaluate.run import Progress, evaluate
from nextlong.evaluate.task import Probe, Request, TextTokenizer
from nextlong.replicate import data
from nextlong.replicate.data import Arm, Runs, Stage
from nextlong.replicate.recipe import Phase, Replication
from nextlong.text import Json
from nextlong.train import checkpoint, metrics
from nextlong.train.recipe import TrainRecipe

RECIPE: Final = "replicate.yaml"
_PROBE: Final = "dependency"


@dataclass(frozen=True)
class Model:
    """A model to train: its stage, its seed, the arm that it is extended on (None: pretrained only), and its recipe."""

    stage: Stage
    seed: int
    arm: Arm | None
    recipe: TrainRecipe

    @property
    def final(self) -> Path:
        """The folder that `from_pretrained` loads."""
        return self.stage.folder / "final"

    @property
    def name(self) -> str:
        """The name in progress messages."""
        about = "pretrained" if self.arm is None else f"{self.arm.experiment}={self.arm.name}"
        return f"{about}, seed {self.seed}"


@dataclass(frozen=True)
class Measurement:
    """A measurement of a model: its stage, which holds a results folder, and the evaluation."""

    stage: Stage
    settings: Settings

    @property
    def results(self) -> Results:
        """The results on disk."""
        return read_results(self.settings.out)


@dataclass(frozen=True)
class Replicated:
    """A finished replication: its recipe, its folder, and everything in it."""

    recipe: Replication
    out: Path
    documents: Stage
    runs: Runs
    models: tuple[Model, ...]

    def model_of(self, arm: Arm | None, seed: int) -> Model:
        """Return the model of an arm and seed; of no arm, the pretrained one."""
        return model_of(self.recipe, arm, self.runs, self.out, seed)

    def measurements(self, model: Model) -> list[Measurement]:
        """Return the measurements of a model: the tasks, then the dependency probe over each held-out run."""
        return list(_measurements(self, model))


def replicate(recipe: Replication, *, report: Callable[[str], None]) -> Replicated:
    """Run or resume everything of the recipe but the report; `report` gets a line per stage."""
    if not recipe.corpus.sources:
        raise RecipeError("corpus.sources is empty; name files with your documents")
    check_tasks(recipe)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    out = Path(recipe.out).expanduser()
    with store.locked(out):
        with store.explained(out):
            store.write_text(out / RECIPE, recipe.dump())
        documents = data.split_stage(recipe.corpus, out)
        if not documents.is_finished:
            data.split_documents(recipe.corpus, documents)
        counts, rejected = documents.record["documents"], documents.record["rejected"]
        rejects = f"; rejected: {data.reject_counts(rejected)}" if rejected else ""
        report(f"documents: {counts['train']:,} to train on, {counts['held-out']:,} held out{rejects}")
        began = time.monotonic()
        runs = data.make_runs(recipe, documents, out)
        seconds = time.monotonic() - began
        report(f"data: {len(runs.arms)} runs to compare, {len(runs.held_out)} held out ({seconds:.0f} s)")
        for arm in runs.arms:
            if (count := arm.stats.sequences) < recipe.data.sequences:
                epochs = recipe.extend.trained_tokens / (count * recipe.extend.tokens)
                report(
                    f"{arm.experiment}={arm.name}: the corpus yields {count:,} of {recipe.data.sequences:,} sequences, which are "
                    f"read {epochs:.2g} times; add documents, or lower data.sequences"
                )
        _check_samples(recipe, documents, runs.tokenizer)
        models = all_models(recipe, runs, out)
        replicated = Replicated(recipe, out, documents, runs, models)
        for number, model in enumerate(models, start=1):
            train_and_measure(replicated, model, report, label=f"[{number}/{len(models)}] {model.name}")
    return replicated


def all_models(recipe: Replication, runs: Runs, out: Path) -> tuple[Model, ...]:
    """Return every model, pretrained ones before those extended from them; arms with the same sequences share one."""
    models = [model_of(recipe, arm, runs, out, seed) for seed in recipe.seeds for arm in (None, *runs.arms)]
    return tuple({model.stage.folder: model for model in reversed(models)}.values())[::-1]


def model_of(recipe: Replication, arm: Arm | None, runs: Runs, out: Path, seed: int) -> Model:
    """Return the model of an arm and seed; of no arm, the pretrained one."""
    base = _pretrained(recipe, runs, out, seed)
    return base if arm is None else _extended(recipe, arm, base, out)


def train_and_measure(done: Replicated, model: Model, report: Callable[[str], None], *, label: str) -> None:
    """Train a model and measure it, each from where it was interrupted."""
    recipe, folder = done.recipe, model.stage.folder
    pending = [one for one in done.measurements(model) if not one.stage.is_finished]
    if model.stage.is_finished and not pending:
        report(f"{label}: cached")
        return
    if not model.stage.is_finished:
        from nextlong.train import loop

        loop.train(model.recipe, Console(quiet=True))
        steps = metrics.read(folder / metrics.STEPS)
        tokens, seconds = (sum(step[name] for step in steps) for name in ("tokens", "seconds"))
        model.stage.finish({"loss": steps[-1]["loss"], "tokens": tokens, "seconds": seconds})
        shutil.rmtree(folder / checkpoint.FOLDER, ignore_errors=True)
        report(f"{label}: loss {steps[-1]['loss']:.3f} after {tokens:,} tokens, {seconds:.0f} s")

    @lru_cache(maxsize=1)
    def load() -> HuggingFaceModel:
        options = LoadOptions(dtype="float32", batch_tokens=recipe.measure.batch_tokens)
        loaded = HuggingFaceModel(str(model.final), options)
        loaded.context = recipe.extend.tokens  # of the pretrained one, too: how it performs there is the question
        return loaded

    began = time.monotonic()
    for one in pending:
        measured = evaluate(load, one.settings, progress=Progress(Console(quiet=True)))
        one.stage.finish({"results": len(measured.finished)})
    report(f"{label}: measured in {time.monotonic() - began:.0f} s")


def _pretrained(recipe: Replication, runs: Runs, out: Path, seed: int) -> Model:
    depends_on = {
        "run": runs.composed,
        "model": recipe.model.model_dump(mode="json"),
        "training": recipe.pretrain.model_dump(mode="json"),
        "precision": recipe.precision,
        "seed": seed,
    }
    stage = Stage(out / "models", f"pretrained-seed{seed}", depends_on)
    model = {"scratch": recipe.model.model_dump(), "rope_base": recipe.pretrain.rope_base}
    return Model(stage, seed, None, _train_recipe(recipe, stage, seed, recipe.pretrain, runs.pretraining, model))


def _extended(recipe: Replication, arm: Arm, base: Model, out: Path) -> Model:
    depends_on = {
        "run": arm.composed,
        "from": base.stage.fingerprint,
        "training": recipe.extend.model_dump(mode="json"),
        "precision": recipe.precision,
        "seed": base.seed,
    }
    stage = Stage(out / "models", f"extended-seed{base.seed}", depends_on)
    model = {"path": str(base.final), "rope_base": recipe.extend.rope_base}
    return Model(stage, base.seed, arm, _train_recipe(recipe, stage, base.seed, recipe.extend, arm.run, model))


def _train_recipe(recipe: Replication, stage: Stage, seed: int, phase: Phase, run: str, model: Json) -> TrainRecipe:
    keys = {"steps", "tokens_per_step", "lr", "min_lr_ratio", "warmup_steps", "micro_batch_rows"}
    return TrainRecipe.from_dict(
        {
            "out": str(stage.folder),
            "seed": seed,
            "data": {"runs": [run], "validation": 0.0},
            "model": model,
            "training": {**phase.model_dump(include=keys), "precision": recipe.precision},
            "memory": {"checkpointing": "none"},
            "checkpoints": {"every_steps": max(1, phase.steps // 4), "keep_last": 1},
            "watch": {"spike": None},
        },
        origin=stage.name,
    )


def check_tasks(recipe: Replication) -> None:
    """Raise RecipeError for an unknown task or one without lengths, before anything is made."""
    try:
        tasks = chosen([], recipe.measure.tasks)
    except EvaluateError as error:
        raise RecipeError(f"measure.tasks: {str(error).removeprefix('--tasks ')}") from None
    if without_lengths := [task.name for task in tasks if task.lengths is None]:
        raise RecipeError(
            f"measure.tasks: {without_lengths[0]} is not measured at lengths; leave it out ({_PROBE} is always measured)"
        )


def _check_samples(recipe: Replication, documents: Stage, tokenizer: Path) -> None:
    """Raise a user's error for a task without its files, or a length that is too short for a task, before anything is trained."""
    counts, files = TextTokenizer.read(tokenizer), DataFiles(documents.folder / "data")
    for task in chosen([], recipe.measure.tasks):
        for length in recipe.measure.lengths:
            request = Request(length, counts, files, recipe.measure.samples)
            try:
                if isinstance(task, Probe):
                    task.check(request)
                elif all(sample is None for sample in islice(task.make(request), request.samples)):
                    raise EvaluateError(
                        f"no sample of {task.name} fits {length:,} tokens of this tokenizer; leave the task or the length out"
                    )
            except EvaluateError as error:
                raise RecipeError(f"measure: {str(error).removeprefix('--lengths: ')}") from None


def _measurements(done: Replicated, model: Model) -> Iterator[Measurement]:
    measure, arm = done.recipe.measure, model.arm
    files = DataFiles(done.documents.folder / "data")
    depends_on = {"model": model.stage.fingerprint, "documents": done.documents.fingerprint}
    tasks = chosen([], measure.tasks)
    versions = {"tasks": {task.name: task.version for task in tasks}, "lengths": list(measure.lengths)}
    stage = Stage(done.out / "results", "tasks", {**depends_on, **versions, "samples": measure.samples})
    label = None if arm is None else f"{arm.experiment}={arm.value}"
    cosine = arm.stats.similarity if arm else None
    settings = Settings(
        tasks=tasks,
        lengths=measure.lengths,
        out=stage.folder / "results",
        data=files,
        samples=measure.samples,
        label=label or "pretrained",
        negatives_cosine=None if cosine is None else cosine.p50,
    )
    yield Measurement(stage, settings)
    for side in done.runs.held_out:
        stage = Stage(done.out / "results", f"{_PROBE}-{side.value}", {**depends_on, "run": side.composed})
        folder, probe, samples = stage.folder / "results", chosen([], [_PROBE]), measure.sequences
        yield Measurement(stage, Settings(probe, [], folder, files, samples, label=label, run=Path(side.run)))
