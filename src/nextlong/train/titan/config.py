"""Config: a training recipe as a config of torchtitan's trainer, which imports this module and calls `nextlong`.

The model is torchtitan's Llama with every size from config.json, so that models of any size can be trained.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import CommConfig, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.trainer import Trainer

from nextlong.errors import RecipeError
from nextlong.text import Json
from nextlong.train.emit import check_llama
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.titan import parts
from nextlong.train.titan.launch import installed_version

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BLOCK_TOKENS: Final = 128  # of flex attention; context parallelism distributes whole blocks
# torchtitan's 100 s are less than a step, or a checkpoint, of rows of half a million tokens.
_TIMEOUT_SECONDS: Final = 3600


def nextlong() -> Trainer.Config:
    """Return the config of the recipe that the environment variable NEXTLONG_RECIPE_JSON holds."""
    return config_of(TrainRecipe.model_validate_json(os.environ["NEXTLONG_RECIPE_JSON"]))


def config_of(recipe: TrainRecipe) -> Trainer.Config:
    """Return the trainer's config. Raises RecipeError for what the installed torchtitan does not support."""
    ranks, is_main = recipe.hardware.ranks_per_row, installed_version() == "main"
    if is_main and ranks > 1 and not any("spmd_backend" in option for option in recipe.torchtitan.options):
        raise RecipeError(
            f"hardware.ranks_per_row={ranks}: context parallelism of torchtitan's main branch needs its backend "
            "spmd_types, which nextlong was not tested with; install torchtitan==0.3.0, or try it with "
            'torchtitan.options=["--parallelism.spmd_backend", "spmd_types"]'
        )
    as_json, path, training = recipe.model_dump_json(), str(recipe.model.path), recipe.training
    ready = parts.prepared(as_json)
    rows_per_step, at_once = ready.rows_per_step, training.micro_batch_rows
    row_tokens = input_tokens(ready.row_tokens, ranks_per_row=ranks)
    micro_batches(recipe, rows_per_step=rows_per_step, devices=recipe.hardware.count, ranks_per_row=ranks)
    check_llama(ready.config.to_dict(), path=path, trainer="the engine torchtitan")
    rows: Json = {"recipe": as_json, "row_tokens": row_tokens}
    batch = {"seq_len": row_tokens, "local_batch_size": at_once, "global_batch_size": rows_per_step}
    if is_main:
        batch = {
            "max_context_length": row_tokens,
            "num_tokens_per_microbatch_per_dp_rank": at_once * row_tokens,
            "num_tokens_per_train_step": rows_per_step * row_tokens,
        }
    # AdamW's options of norms, which do not decay, and of everything else.
    options = {"lr": training.lr, "betas": (training.beta1, training.beta2), "eps": training.eps}
    param_groups = [
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**options, "weight_decay": decay})
        for pattern, decay in ((r"norm\.weight$", 0.0), (".*", training.weight_decay))
    ]
    # Logits of at most `loss_block_tokens` tokens at a time, in chunks of equal length.
    local_tokens = row_tokens // ranks
    fewest = -(-local_tokens // recipe.memory.loss_block_tokens)
    chunks = next(count for count in range(fewest, local_tokens + 1) if local_tokens % count == 0)
    cross_entropy = CrossEntropyLoss.Config(global_vocab_size=ready.config.vocab_size)
    has_gpu, is_bf16 = torch.cuda.is_available(), training.precision == "bf16"
    return Trainer.Config(
        model_spec=llama_spec(ready.config, row_tokens=row_tokens, float8=recipe.torchtitan.float8 == "on"),
        hf_assets_path=path,
        dump_folder=str(Path(recipe.out)),
        tokenizer=parts.NoTokenizer.Config(),
        dataloader=parts.RowsLoader.Config(**rows),
        loss=ChunkedLossWrapper.Config(num_chunks=chunks, loss_fn=cross_entropy),
        optimizer=OptimizersContainer.Config(
            param_groups=param_groups, implementation="fused" if has_gpu else "for-loop"
        ),
        lr_scheduler=parts.Schedule.Config(recipe=as_json, warmup_steps=training.warmup_steps),
        metrics=parts.Log.Config(recipe=as_json, log_freq=1),
        training=TrainingConfig(
            **batch,
            steps=training.steps,
            max_norm=training.clip or float("inf"),
            mixed_precision_param="bfloat16" if is_bf16 else "float32",
            disable_cuda_graphs=True,  # they would keep the activations of a whole row allocated
        ),
        # `ptrr` balances blocks of attention work; torchtitan's default, `headtail`, is for attention without a mask.
        # torchtitan's default backend, spmd_types, needs a torch that is not released; partial_dtensor is what CI runs.
        parallelism=ParallelismConfig(
            context_parallel_degree=ranks, context_parallel_load_balancer="ptrr", spmd_backend="partial_dtensor"
        ),
        checkpoint=CheckpointManager.Config(
            enable=True,
            folder="checkpoints",
            interval=recipe.checkpoints.every_steps,
            keep_latest_k=max(2, recipe.checkpoints.keep_last),
            initial_load_path=path,
            initial_load_in_hf=True,
            last_save_in_hf=True,
            export_dtype="bfloat16" if is_bf16 else "float32",
            async_mode="async" if has_gpu else "disabled",
        ),
        activation_checkpoint=FullAC.Config() if recipe.memory.checkpointing == "layers" else None,
        compile=CompileConfig(enable=recipe.compile == "on"),
        comm=CommConfig(init_timeout_seconds=_TIMEOUT_SECONDS, train_timeout_seconds=_TIMEOUT_SECONDS),
        debug=DebugConfig(seed=recipe.seed),
        validator=parts.HeldOutValidator.Config(**rows, enable=ready.held_out_rows is not None, steps=1),
    )


def input_tokens(row_tokens: int, *, ranks_per_row: int) -> int:
    """Return the length that a row is padded to: whole blocks for each of 2 · `ranks_per_row` slices.

    A row of one token more, as composed for trainers that need the label of the last input, is not padded for it.
    """
    unit = 2 * ranks_per_row * _BLOCK_TOKENS if ranks_per_row > 1 else _BLOCK_TOKENS
    if row_tokens % unit == 1 and row_tokens > unit:
        return row_tokens - 1
    return -(-row_tokens // unit) * unit


def llama_spec(config: PretrainedConfig, *, row_tokens: int, float8: bool) -> llama3.ModelSpec:
    """Return torchtitan's ModelSpec of a checked config. Raises RecipeError for RoPE scaling that torchtitan does not have."""
    width, vocabulary, heads = config.hidden_size, config.vocab_size, config.num_attention_heads
    parameters = config.rope_parameters
    positions = "max_context_length" if installed_version() == "main" else "max_seq_len"
    rope_options: Json = {"theta": float(parameters["rope_theta"]), "scaling": "none", positions: row_tokens}
    if parameters["rope_type"] == "llama3":  # Llama 3.1 and later, with the factors of the model's own config.json
        kept = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        rope_options |= {"scaling": "llama", "scaling_factor": parameters["factor"]}
        rope_options |= {name: parameters[name] for name in kept}
    elif parameters["rope_type"] != "default":
        raise RecipeError(
            f"the model has RoPE scaling {parameters['rope_type']}, which torchtitan's Llama does not support; set "
            "model.rope_scaling=replace"
        )
    sizes = {"n_layers": config.num_hidden_layers, "dim": width, "hidden_dim": config.intermediate_size}
    sizes |= {"n_heads": heads, "n_kv_heads": config.num_key_value_heads}
    rope = ComplexRoPE.Config(dim=width // heads, **rope_options)
    layers = llama3._build_llama3_layers(rope=rope, attn_backend="flex", **sizes)
    embedding_init = llama3._EMBEDDING_SKIP_INIT if config.tie_word_embeddings else llama3._EMBEDDING_INIT
    model = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocabulary,
        enable_weight_tying=config.tie_word_embeddings,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=width, param_init=embedding_init),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=llama3._output_linear_init(width)),
        layers=layers,
    )
    for _, norm, above, name in list(model.traverse(RMSNorm.Config)):
        setattr(above, str(name), replace(norm, eps=config.rms_norm_eps))
    if float8:
        from torchtitan.components.quantization import Float8LinearConverter

        model = Float8LinearConverter.Config(filter_fqns=["lm_head"]).build().convert(model)
    functions = {"parallelize_fn": llama3.parallelize_llama, "pipelining_fn": None, "post_optimizer_build_fn": None}
    adapter = llama3.Llama3StateDictAdapter
    return llama3.ModelSpec(name="llama3", flavor="config.json", model=model, state_dict_adapter=adapter, **functions)
