"""SFT: fine-tuning on conversations with TRL's SFTTrainer.

In:  a training recipe with `data.chat`.
Out: `out/`: recipe.yaml, trainer.json (recipe and data of the checkpoints), TRL's checkpoints and logs, `final/`.

TRL trains on the rows of nextlong's own loop, in the same order, with a loss on the answers alone. TRL's own answer masks need a
chat template with `{% generation %}`; ours need one that only appends. Attention is nextlong's, without T × T masks.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.train import checkpoint
from nextlong.train.emit import trainer_arguments
from nextlong.train.model import load_weights
from nextlong.train.prepare import prepare
from nextlong.train.recipe import SupportedKeys, TrainRecipe, check_supported, micro_batches
from nextlong.train.rows import flat

_SUPPORTED = (
    "data seed attention attention_kernel model.rope_base model.rope_scaling compile training checkpoints hardware"
)
_KEYS: Final[SupportedKeys] = {**dict.fromkeys(_SUPPORTED.split()), "memory.checkpointing": ("layers", "none")}


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a fine-tuning; return the folder of the finished model."""
    if importlib.util.find_spec("trl") is None:
        raise RecipeError("--engine trl needs trl; pip install 'nextlong[trl]'")
    if recipe.data.chat is None or recipe.model.path is None:
        raise RecipeError("--engine trl fine-tunes a model on conversations: set data.chat and model.path")
    advice = "leave these at their defaults, or train with --engine nextlong"
    check_supported(recipe, _KEYS, trainer="--engine trl", advice=advice)
    import torch
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from trl import SFTConfig, SFTTrainer

    out, is_first = Path(recipe.out).expanduser(), os.environ.get("RANK", "0") == "0"
    with store.locked(out) if is_first else nullcontext():
        # The last checkpoint with the file that the trainer writes last.
        whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
        last = max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        ready = prepare(recipe)
        if is_first:
            ready.begin(resumes=last is not None)
            for line in ready.notes():
                tables.say(line, console)
        # TRL's dataset is the numbers of the rows, in the order in which the steps of nextlong's loop read them.
        numbers = np.concatenate([ready.micro_batches(step).ravel() for step in range(recipe.training.steps)])

        class RowsTrainer(SFTTrainer):  # type: ignore[misc]
            def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG002
                """Use our learning rates: transformers' own lag by one step and know no linear schedule that ends above 0."""
                self.lr_scheduler = LambdaLR(optimizer or self.optimizer, recipe.training.lr_share)
                return self.lr_scheduler

        processes = int(os.environ.get("WORLD_SIZE", "1"))
        accumulation = micro_batches(recipe, rows_per_step=ready.rows_per_step, devices=processes, ranks_per_row=1)
        arguments = SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=recipe.training.micro_batch_rows,
            **trainer_arguments(recipe, accumulation=accumulation),
            optim="adamw_torch_fused",
            activation_checkpointing=recipe.memory.checkpointing == "layers",
            activation_checkpointing_kwargs={"use_reentrant": False},
            torch_compile=recipe.compile == "on",
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            max_length=None,
            logging_steps=1,
            report_to=[],
            use_cpu=not torch.accelerator.is_available(),
        )
        trainer = RowsTrainer(
            model=load_weights(recipe, ready.config),
            args=arguments,
            train_dataset=Dataset.from_dict({"row": numbers.tolist()}),
            data_collator=lambda batch: flat([ready.rows[one["row"]] for one in batch]),
            processing_class=ready.tokenizer,
        )
        trainer.train(resume_from_checkpoint=last and str(last))
        work = out / ".work-final"
        trainer.save_model(str(work))
        if is_first:
            with checkpoint.explained(out):
                checkpoint.publish(work, out / "final")
    return out / "final"
