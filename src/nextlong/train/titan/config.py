"""Config: a training recipe as a config of torchtitan's trainer, which imports this module and calls `nextlong`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import CommConfig, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train import rope
from nextlong.train.recipe import Training, TrainRecipe
from nextlong.train.titan import llama, parts
from nextlong.train.titan.versions import interface

BLOCK_TOKENS = 128  # of flex attention, whose blocks context parallelism shares out
TIMEOUT_SECONDS = 3600  # torchtitan's 100 s are less than a step, or a checkpoint, of half a million tokens a row


def nextlong() -> Any:
    """Return the config of the recipe that the environment variable NEXTLONG_RECIPE_JSON holds."""
    return config_of(TrainRecipe.model_validate_json(os.environ["NEXTLONG_RECIPE_JSON"]))


def config_of(recipe: TrainRecipe) -> Any:
    """Return the trainer's config."""
    known, as_json = interface(), recipe.model_dump_json()
    prepared = parts.prepared(as_json)
    path, training, shared_by = str(recipe.model.path), recipe.training, recipe.hardware.ranks_per_row
    row_tokens = input_tokens(prepared.row_tokens, shared_by=shared_by)
    _check_shares(recipe, rows_per_step=prepared.plan.rows_per_step)
    longest = prepared.rows.longest_document
    rope.set_base(prepared.config, base=recipe.model.rope_base, max_tokens=longest, scaling=recipe.model.rope_scaling)
    llama.check(prepared.config, path=path)
    spec = llama.spec(prepared.config, interface=known, row_tokens=row_tokens, float8=recipe.torchtitan.float8 == "on")
    rows: Json = {"recipe": as_json, "row_tokens": row_tokens}
    batch = {"micro_batch_rows": training.micro_batch_rows, "rows_per_step": prepared.plan.rows_per_step}
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=path,
        dump_folder=str(Path(recipe.out)),
        tokenizer=parts.NoTokenizer.Config(),
        dataloader=parts.RowsLoader.Config(**rows),
        loss=_loss(recipe, local_tokens=row_tokens // shared_by, vocabulary=prepared.config.vocab_size),
        optimizer=OptimizersContainer.Config(param_groups=_groups(training), implementation=_implementation()),
        lr_scheduler=parts.Schedule.Config(recipe=as_json, warmup_steps=training.warmup_steps),
        metrics=parts.Log.Config(recipe=as_json, log_freq=1),
        training=TrainingConfig(
            **known.batch(row_tokens=row_tokens, **batch),
            steps=training.steps,
            max_norm=training.clip or float("inf"),
            mixed_precision_param="bfloat16" if training.precision == "bf16" else "float32",
            disable_cuda_graphs=True,  # they would keep the activations of a whole row allocated
        ),
        # `ptrr` balances blocks of attention work; torchtitan's default, `headtail`, is for attention without a mask.
        parallelism=ParallelismConfig(context_parallel_degree=shared_by, context_parallel_load_balancer="ptrr"),
        checkpoint=_checkpoint(recipe, path),
        activation_checkpoint=FullAC.Config() if recipe.memory.checkpointing == "layers" else None,
        compile=CompileConfig(enable=recipe.compile == "on"),
        comm=CommConfig(init_timeout_seconds=TIMEOUT_SECONDS, train_timeout_seconds=TIMEOUT_SECONDS),
        debug=DebugConfig(seed=recipe.seed),
        validator=parts.HeldOut.Config(**rows, enable=prepared.held_out_rows is not None, steps=1),
    )


def _check_shares(recipe: TrainRecipe, *, rows_per_step: int) -> None:
    count, shared_by, at_once = recipe.hardware.count, recipe.hardware.ranks_per_row, recipe.training.micro_batch_rows
    if count % shared_by or rows_per_step % (count // shared_by * at_once):
        raise RecipeError(
            f"{count} devices, {shared_by} a row, cannot share {rows_per_step} rows a step, {at_once} at once, evenly; change "
            "hardware.count, hardware.ranks_per_row, training.micro_batch_rows or training.tokens_per_step"
        )


def input_tokens(row_tokens: int, *, shared_by: int) -> int:
    """Return how many tokens of a row the model reads: whole blocks for each of 2 · `shared_by` slices, the rest padded.

    A row of one token more than that, as composed for trainers that want the label of the last input, is not padded for it.
    """
    unit = 2 * shared_by * BLOCK_TOKENS if shared_by > 1 else BLOCK_TOKENS
    if row_tokens % unit == 1 and row_tokens > unit:
        return row_tokens - 1
    return -(-row_tokens // unit) * unit


def _loss(recipe: TrainRecipe, *, local_tokens: int, vocabulary: int) -> Any:
    wanted = -(-local_tokens // recipe.memory.loss_block_tokens)
    chunks = next(count for count in range(wanted, local_tokens + 1) if local_tokens % count == 0)
    return ChunkedLossWrapper.Config(num_chunks=chunks, loss_fn=CrossEntropyLoss.Config(global_vocab_size=vocabulary))


def _groups(training: Training) -> list[Any]:
    """Return AdamW's options of norms, which do not decay, and of everything else."""
    options = {"lr": training.lr, "betas": (training.beta1, training.beta2), "eps": training.eps}
    return [
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**options, "weight_decay": decay})
        for pattern, decay in ((r"norm\.weight$", 0.0), (".*", training.weight_decay))
    ]


def _implementation() -> str:
    return "fused" if torch.cuda.is_available() else "for-loop"


def _checkpoint(recipe: TrainRecipe, path: str) -> Any:
    return CheckpointManager.Config(
        enable=True,
        folder="checkpoints",
        interval=recipe.checkpoints.every_steps,
        keep_latest_k=max(2, recipe.checkpoints.keep_last),
        initial_load_path=path,
        initial_load_in_hf=True,
        last_save_in_hf=True,
        export_dtype="bfloat16" if recipe.training.precision == "bf16" else "float32",
        async_mode="async" if torch.cuda.is_available() else "disabled",
    )
