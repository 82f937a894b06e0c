"""SFT: fine-tuning on conversations with TRL's SFTTrainer.

In:  a training recipe with `data.chat`.
Out: `out/`: recipe.yaml, trainer.json (recipe and data of the checkpoints), TRL's checkpoints and logs, `final/`.

TRL trains on the rows of nextlong's own loop, in the same order: whole conversations packed end to end, with a loss on the
answers alone. TRL's own answer masks need a chat template with `{% generation %}`; ours need one that only appends. Attention is
nextlong's, so a conversation attends to itself alone and no T × T mask is built.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.train import checkpoint, model
from nextlong.train.prepare import Prepared, check_same_data, check_same_recipe, prepare
from nextlong.train.recipe import SupportedKeys, TrainRecipe, check_supported
from nextlong.train.rows import flat

_KEYS: Final[SupportedKeys] = {
    **dict.fromkeys(
        ("data", "seed", "attention", "attention_kernel", "model.rope_base", "model.rope_scaling", "compile")
    ),
    **dict.fromkeys(("training", "checkpoints", "hardware", "watch.tensorboard")),
    "memory.checkpointing": ("layers", "none"),
    "memory.optimizer": ("adamw", "adamw-8bit"),
}


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a fine-tuning; return the folder of the finished model."""
    if importlib.util.find_spec("trl") is None:
        raise RecipeError("--engine trl needs trl; pip install 'nextlong[trl]'")
    if recipe.data.chat is None or recipe.model.path is None:
        raise RecipeError("--engine trl fine-tunes a model on conversations: set data.chat and model.path")
    advice = "leave these at their defaults, or train with --engine nextlong"
    check_supported(recipe, _KEYS, trainer="--engine trl", advice=advice)
    out, is_first = Path(recipe.out).expanduser(), os.environ.get("RANK", "0") == "0"
    with store.locked(out) if is_first else nullcontext():
        _train(recipe, out, console, is_first=is_first)
    return out / "final"


def _train(recipe: TrainRecipe, out: Path, console: Console, *, is_first: bool) -> None:
    from datasets import Dataset
    from trl import SFTTrainer

    ready, last = prepare(recipe), _last_checkpoint(out)
    if is_first and last is not None:
        record = store.read_json(out / checkpoint.RECORD)
        check_same_recipe(recipe, record["recipe"], last)
        check_same_data(ready.data, record["data"], last)
    notes = model.set_rope_base(ready.config, recipe, max_tokens=ready.rows.longest_document)
    for line in [*notes, *ready.notes()] if is_first else []:
        tables.say(line, console)
    # TRL's dataset is the numbers of the rows, in the order in which the steps of nextlong's loop read them.
    numbers = [
        row for step in range(recipe.training.steps) for row in ready.plan.micro_batches(step).flatten().tolist()
    ]
    trainer = SFTTrainer(
        model=model.load_weights(recipe, ready.config),
        args=_arguments(recipe, ready, out),
        train_dataset=Dataset.from_dict({"row": numbers}),
        data_collator=lambda batch: flat([ready.rows[one["row"]] for one in batch]),
        processing_class=ready.tokenizer,
    )
    if is_first:
        store.write_json(out / checkpoint.RECORD, {"recipe": recipe.trained_keys(), "data": ready.data})
        store.write_text(out / "recipe.yaml", recipe.dump())
    trainer.train(resume_from_checkpoint=last and str(last))
    work = out / ".work-final"
    trainer.save_model(str(work))
    if is_first:
        with checkpoint.explained(out):
            checkpoint.publish(work, out / "final")


def _last_checkpoint(out: Path) -> Path | None:
    """Return the last checkpoint with the file that the trainer writes last."""
    whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _arguments(recipe: TrainRecipe, ready: Prepared, out: Path) -> Any:
    """Return TRL's settings for those of the recipe. Raises RecipeError for a step that the ranks cannot share."""
    import torch
    from trl import SFTConfig

    training, ranks = recipe.training, int(os.environ.get("WORLD_SIZE", "1"))
    accumulation, rest = divmod(ready.plan.rows_per_step, ranks * training.micro_batch_rows)
    if rest:
        raise RecipeError(
            f"{ranks} processes with training.micro_batch_rows={training.micro_batch_rows} cannot share a step of "
            f"{ready.plan.rows_per_step} rows evenly; change training.tokens_per_step or the number of processes"
        )
    return SFTConfig(
        output_dir=str(out),
        max_steps=training.steps,
        per_device_train_batch_size=training.micro_batch_rows,
        gradient_accumulation_steps=accumulation,
        learning_rate=training.lr,
        warmup_steps=training.warmup_steps,
        **_schedule(recipe),
        adam_beta1=training.beta1,
        adam_beta2=training.beta2,
        adam_epsilon=training.eps,
        weight_decay=training.weight_decay,
        max_grad_norm=training.clip or 0.0,
        optim="adamw_torch_fused" if recipe.memory.optimizer == "adamw" else "adamw_bnb_8bit",
        bf16=training.precision == "bf16",
        activation_checkpointing=recipe.memory.checkpointing == "layers",
        activation_checkpointing_kwargs={"use_reentrant": False},
        torch_compile=recipe.compile == "on",
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        max_length=None,
        save_steps=recipe.checkpoints.every_steps,
        save_total_limit=recipe.checkpoints.keep_last,
        logging_steps=1,
        report_to=["tensorboard"] if recipe.watch.tensorboard == "on" else [],
        seed=recipe.seed,
        use_cpu=not torch.accelerator.is_available(),
    )


def _schedule(recipe: TrainRecipe) -> dict[str, Any]:
    """Return transformers' name of the schedule; its learning rate of a step is ours of the step before."""
    training = recipe.training
    if training.schedule == "cosine":
        return {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": training.min_lr_ratio},
        }
    if training.schedule == "linear" and training.min_lr_ratio:
        raise RecipeError(
            f"--engine trl: training.schedule=linear with training.min_lr_ratio={training.min_lr_ratio} is not known to "
            "transformers; use cosine, or set training.min_lr_ratio=0"
        )
    return {"lr_scheduler_type": {"linear": "linear", "constant": "constant_with_warmup"}[training.schedule]}
