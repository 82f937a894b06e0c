"""Models: one pretrained on short rows a seed, and from each of these one extended on every run, by `nextlong.train`.

All extensions have the same tokens, steps and learning rates; those of a seed start from the same weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nextlong.plain_data import Json
from nextlong.replicate.data import Arm, Runs
from nextlong.replicate.recipe import Phase, Replication
from nextlong.replicate.stage import Stage
from nextlong.train import checkpoint, metrics
from nextlong.train.recipe import TrainRecipe


@dataclass(frozen=True)
class Trained:
    """A model to be trained: its stage, the seed, the arm that it is extended on (None: pretrained only), and its recipe."""

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
        """What progress calls it."""
        about = "pretrained" if self.arm is None else f"{self.arm.experiment}={self.arm.name}"
        return f"{about}, seed {self.seed}"


def planned(recipe: Replication, runs: Runs, out: Path) -> list[Trained]:
    """Return every model, each once, those pretrained before what is extended from them."""
    models: list[Trained] = []
    for seed in recipe.seeds:
        base = _pretrained(recipe, runs, out, seed)
        models.append(base)
        models += [_extended(recipe, arm, base, out) for arm in runs.arms]
    return list({one.stage.folder: one for one in reversed(models)}.values())[::-1]


def of_arm(recipe: Replication, arm: Arm | None, runs: Runs, out: Path, seed: int) -> Trained:
    """Return the model of an arm and seed; of no arm, the pretrained one."""
    base = _pretrained(recipe, runs, out, seed)
    return base if arm is None else _extended(recipe, arm, base, out)


def train(model: Trained, *, report: Callable[[str], None]) -> None:
    """Train it, from its last checkpoint if there is one; what is finished is kept."""
    if model.stage.is_finished:
        return
    from nextlong.train import start

    start.train(model.recipe, Console(quiet=True))
    steps = metrics.read(model.stage.folder / metrics.STEPS)
    made = {
        "loss": steps[-1]["loss"],
        "tokens": sum(step["tokens"] for step in steps),
        "seconds": sum(s["seconds"] for s in steps),
    }
    model.stage.finish(made)
    shutil.rmtree(model.stage.folder / checkpoint.FOLDER, ignore_errors=True)
    report(f"loss {made['loss']:.3f} after {made['tokens']:,} tokens, {made['seconds']:.0f} s")


def _pretrained(recipe: Replication, runs: Runs, out: Path, seed: int) -> Trained:
    about = {
        "run": runs.composed,
        "model": recipe.model.model_dump(mode="json"),
        "training": recipe.pretrain.model_dump(mode="json"),
        "precision": recipe.precision,
        "seed": seed,
    }
    stage = Stage(out / "models", f"pretrained-seed{seed}", about)
    model = {"scratch": recipe.model.model_dump(), "rope_base": recipe.pretrain.rope_base}
    return Trained(stage, seed, None, _train_recipe(recipe, stage, seed, recipe.pretrain, runs.pretraining, model))


def _extended(recipe: Replication, arm: Arm, base: Trained, out: Path) -> Trained:
    about = {
        "run": arm.composed,
        "from": base.stage.fingerprint,
        "training": recipe.extend.model_dump(mode="json"),
        "precision": recipe.precision,
        "seed": base.seed,
    }
    stage = Stage(out / "models", f"extended-seed{base.seed}", about)
    model = {"path": str(base.final), "rope_base": recipe.extend.rope_base}
    return Trained(stage, base.seed, arm, _train_recipe(recipe, stage, base.seed, recipe.extend, arm.run, model))


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
