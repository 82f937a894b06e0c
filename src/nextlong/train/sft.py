"""Fine-tuning: on conversations, by TRL's SFTTrainer.

In:  a training recipe with `data.chat` and `model.path`.
Out: `out/`: recipe.yaml, TRL's own checkpoints and logs, final/.

TRL trains on the rows of nextlong's loop, in the same order, with a loss on the answers
alone. TRL's own answer masks need a chat template with `{% generation %}`; ours need
one that only appends. Attention is nextlong's, without T × T masks.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.text import Json
from nextlong.train import model as models
from nextlong.train.attention import compile_layers
from nextlong.train.checkpoints import explained, publish
from nextlong.train.emit import trainer_arguments
from nextlong.train.prepare import Prepared, prepare
from nextlong.train.recipe import (
    ENGINE_KEYS,
    TrainRecipe,
    check_supported,
    micro_batches,
)
from nextlong.train.rope import write_rope_keys
from nextlong.train.rows import flat


def fine_tune(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a fine-tuning; return the folder of the finished model."""
    _check_supported(recipe)
    out = Path(recipe.out).expanduser()
    is_first_rank = os.environ.get("RANK", "0") == "0"
    with store.locked(out) if is_first_rank else nullcontext():
        last = _last_checkpoint(out)
        ready = prepare(recipe)
        if is_first_rank:
            ready.begin(resumes=last is not None)
            for line in ready.notes():
                tables.say(line, console)
        trainer = _trainer(ready)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        # Whole or not at all, as of nextlong's own loop.
        work = out / ".work-final"
        trainer.save_model(str(work))
        if is_first_rank:
            with explained(out):
                write_rope_keys(work)
                publish(work, out / "final")
    return out / "final"


def _check_supported(recipe: TrainRecipe) -> None:
    """Raise RecipeError for what TRL, or its engine here, cannot do."""
    if importlib.util.find_spec("trl") is None:
        raise RecipeError(
            where="--engine trl",
            problem="trl is not installed",
            fix="pip install 'nextlong[trl]'",
        )
    if recipe.data.chat is None or recipe.model.path is None:
        raise RecipeError(
            where="--engine trl",
            problem="it fine-tunes a model on conversations",
            fix="set data.chat and model.path",
        )
    check_supported(
        recipe,
        {**ENGINE_KEYS, "attention_kernel": None, "hardware": None},
        trainer="--engine trl",
        advice="leave these at their defaults, or train with --engine nextlong",
    )


def _last_checkpoint(out: Path) -> Path | None:
    """Return the last checkpoint with the file that the trainer writes last."""
    states = out.glob("checkpoint-*/trainer_state.json")
    return max((path.parent for path in states), key=_step_of, default=None)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _trainer(ready: Prepared) -> Any:
    """Return TRL's trainer of a model over the rows of nextlong's loop."""
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from trl import SFTTrainer

    recipe = ready.recipe

    class RowsTrainer(SFTTrainer):  # type: ignore[misc]
        def create_scheduler(
            self,
            num_training_steps: int,  # noqa: ARG002
            optimizer: Any = None,
        ) -> Any:
            """Use our learning rates.

            transformers' own lag by one step and know no linear schedule that ends
            above 0.
            """
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, recipe.training.lr_share
            )
            return self.lr_scheduler

    def collate(batch: Sequence[Json]) -> Json:
        return flat([ready.rows[numbered["row"]] for numbered in batch])

    # Our attention, but TRL's own loss and checkpointing.
    model = models.load_weights(recipe, ready.config)
    if recipe.compile == "on":
        compile_layers(model, backend=models.COMPILER)
    # TRL's dataset is the numbers of the rows, in the order in which the steps of
    # nextlong's loop read them.
    steps = range(recipe.training.steps)
    numbers = np.concatenate([ready.micro_batches(step).ravel() for step in steps])
    return RowsTrainer(
        model=model,
        args=_arguments(ready),
        train_dataset=Dataset.from_dict({"row": numbers.tolist()}),
        data_collator=collate,
        processing_class=ready.tokenizer,
    )


def _arguments(ready: Prepared) -> Any:
    """Return TRL's arguments: the recipe's settings, and rows that hold ids already."""
    from trl import SFTConfig

    recipe = ready.recipe
    accumulation = micro_batches(
        recipe,
        rows_per_step=ready.rows_per_step,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        ranks_per_row=1,
    )
    # Older versions of transformers have another name for it.
    names = {field.name for field in fields(SFTConfig)}
    prefix = "activation" if "activation_checkpointing" in names else "gradient"
    checkpointing = {
        f"{prefix}_checkpointing": recipe.memory.checkpointing == "layers",
        f"{prefix}_checkpointing_kwargs": {"use_reentrant": False},
    }
    return SFTConfig(
        output_dir=str(Path(recipe.out).expanduser()),
        per_device_train_batch_size=recipe.training.micro_batch_rows,
        **trainer_arguments(recipe, accumulation=accumulation),
        optim="adamw_torch_fused",
        **checkpointing,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        max_length=None,
        logging_steps=1,
        report_to=[],
        use_cpu=not torch.accelerator.is_available(),
    )
