"""Config: a training recipe as a config of torchtitan's trainer.

In:  a recipe as JSON; torchtitan imports this module and calls `nextlong`.
Out: its config, with components of ours for data, learning rates, validation and logs.

The model is torchtitan's Llama with every size from config.json, so that models of any
size can be trained. Each component is built from the recipe as JSON, which is the same
on all ranks; the data are opened once in each process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import tyro
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import (
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.trainer import Trainer
from transformers import PretrainedConfig

from nextlong.errors import RecipeError, RunError
from nextlong.text import Json
from nextlong.train.emit import check_llama
from nextlong.train.loss import IGNORED
from nextlong.train.metrics import STOPPED_ADVICE, Metrics, TrainedStep, means, tally
from nextlong.train.prepare import Prepared, prepare
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.rows import TrainingRow
from nextlong.train.titan.versions import installed_version

_IS_MAIN = installed_version() == "main"
if _IS_MAIN:
    from torchtitan.components.data.loader import BaseDataLoader
else:
    from torchtitan.components.dataloader import BaseDataLoader

_RecipeJson = Annotated[str, tyro.conf.Suppress]
_Batch = tuple[dict[str, torch.Tensor], torch.Tensor]

# Of flex attention; context parallelism distributes whole blocks.
_BLOCK_TOKENS: Final = 128
# torchtitan's 100 s are less than a step, or a checkpoint, of rows of half a million
# tokens.
_TIMEOUT_SECONDS: Final = 3600


def nextlong() -> Trainer.Config:
    """Return the config of the recipe in the environment's NEXTLONG_RECIPE_JSON."""
    as_json = os.environ["NEXTLONG_RECIPE_JSON"]
    return config_of(TrainRecipe.model_validate_json(as_json))


def config_of(recipe: TrainRecipe) -> Trainer.Config:
    """Return the trainer's config.

    Raises RecipeError for what the installed torchtitan does not support.
    """
    _check_backend(recipe)
    training = recipe.training
    path = str(recipe.model.path)
    as_json = recipe.model_dump_json()
    ready = prepared(as_json)
    micro_batches(
        recipe,
        rows_per_step=ready.rows_per_step,
        devices=recipe.hardware.count,
        ranks_per_row=recipe.hardware.ranks_per_row,
    )
    check_llama(ready.config.to_dict(), path=path, trainer="the engine torchtitan")
    row_tokens = _input_tokens(ready)
    model = _llama_spec(
        ready.config,
        row_tokens=row_tokens,
        float8=recipe.torchtitan.float8 == "on",
    )
    has_gpu = torch.cuda.is_available()
    precision = "bfloat16" if training.precision == "bf16" else "float32"
    recomputes_layers = recipe.memory.checkpointing == "layers"
    return Trainer.Config(
        model_spec=model,
        hf_assets_path=path,
        dump_folder=str(Path(recipe.out)),
        tokenizer=NoTokenizer(),
        # Components of ours, each built from the same recipe on all ranks.
        dataloader=RowsLoader.Config(recipe=as_json),
        loss=_loss(recipe, ready.config.vocab_size, row_tokens=row_tokens),
        optimizer=OptimizersContainer.Config(
            param_groups=_param_groups(recipe),
            implementation="fused" if has_gpu else "for-loop",
        ),
        lr_scheduler=Schedule(recipe=as_json, warmup_steps=training.warmup_steps),
        metrics=Log.Config(recipe=as_json, log_freq=1),
        training=TrainingConfig(
            **_batch_sizes(ready, row_tokens=row_tokens),
            steps=training.steps,
            max_norm=training.clip or float("inf"),
            mixed_precision_param=precision,
            # They would keep the activations of a whole row allocated.
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            context_parallel_degree=recipe.hardware.ranks_per_row,
            # `ptrr` balances blocks of attention work; torchtitan's default,
            # `headtail`, is for attention without a mask.
            context_parallel_load_balancer="ptrr",
            # torchtitan's default, spmd_types, needs a torch that is not released;
            # partial_dtensor is what CI runs.
            spmd_backend="partial_dtensor",
        ),
        checkpoint=CheckpointManager.Config(
            enable=True,
            folder="checkpoints",
            interval=recipe.checkpoints.every_steps,
            keep_latest_k=max(2, recipe.checkpoints.keep_last),
            initial_load_path=path,
            # Weights come from safetensors, and the last save is read by transformers.
            initial_load_in_hf=True,
            last_save_in_hf=True,
            export_dtype=precision,
            async_mode="async" if has_gpu else "disabled",
        ),
        activation_checkpoint=FullAC.Config() if recomputes_layers else None,
        compile=CompileConfig(enable=recipe.compile == "on"),
        comm=CommConfig(
            init_timeout_seconds=_TIMEOUT_SECONDS,
            train_timeout_seconds=_TIMEOUT_SECONDS,
        ),
        debug=DebugConfig(seed=recipe.seed),
        validator=HeldOutValidator.Config(
            recipe=as_json, enable=ready.held_out_rows is not None, steps=1
        ),
    )


def _check_backend(recipe: TrainRecipe) -> None:
    """Raise RecipeError for context parallelism of main, unless the user chose it."""
    ranks = recipe.hardware.ranks_per_row
    names_backend = any(
        "spmd_backend" in option for option in recipe.torchtitan.options
    )
    if _IS_MAIN and ranks > 1 and not names_backend:
        raise RecipeError(
            where="hardware.ranks_per_row",
            value=ranks,
            problem="means context parallelism, for which torchtitan's main branch "
            "needs its backend spmd_types, which nextlong was not tested with",
            fix="install torchtitan==0.3.0, or try it with "
            'torchtitan.options=["--parallelism.spmd_backend", "spmd_types"]',
        )


def _batch_sizes(ready: Prepared, *, row_tokens: int) -> Json:
    """Return the sizes of rows and batches, as the installed torchtitan names them."""
    rows_at_once = ready.recipe.training.micro_batch_rows
    if not _IS_MAIN:
        return {
            "seq_len": row_tokens,
            "local_batch_size": rows_at_once,
            "global_batch_size": ready.rows_per_step,
        }
    return {
        "max_context_length": row_tokens,
        "num_tokens_per_train_step": ready.rows_per_step * row_tokens,
        "num_tokens_per_microbatch_per_dp_rank": rows_at_once * row_tokens,
    }


def _param_groups(recipe: TrainRecipe) -> list[ParamGroupConfig]:
    """Return AdamW's options of norms, which do not decay, and of everything else."""
    training = recipe.training
    groups = []
    for pattern, decay in ((r"norm\.weight$", 0.0), (".*", training.weight_decay)):
        options = {
            "lr": training.lr,
            "betas": (training.beta1, training.beta2),
            "eps": training.eps,
            "weight_decay": decay,
        }
        group = ParamGroupConfig(
            pattern=pattern, optimizer_name="AdamW", optimizer_kwargs=options
        )
        groups.append(group)
    return groups


def _loss(
    recipe: TrainRecipe, vocabulary: int, *, row_tokens: int
) -> ChunkedLossWrapper.Config:
    """Return the loss in equal chunks of at most `loss_block_tokens` tokens."""
    local_tokens = row_tokens // recipe.hardware.ranks_per_row
    chunks = -(-local_tokens // recipe.memory.loss_block_tokens)
    while local_tokens % chunks:
        chunks += 1
    cross_entropy = CrossEntropyLoss.Config(global_vocab_size=vocabulary)
    return ChunkedLossWrapper.Config(num_chunks=chunks, loss_fn=cross_entropy)


def _input_tokens(ready: Prepared) -> int:
    """Return the length that a row is padded to.

    It is whole blocks for each of 2 · `ranks_per_row` slices. A row of one token more,
    as composed for trainers that need the label of the last input, is not padded for
    it.
    """
    row_tokens = ready.row_tokens
    ranks = ready.recipe.hardware.ranks_per_row
    slices = 2 * ranks if ranks > 1 else 1
    unit = slices * _BLOCK_TOKENS
    if row_tokens % unit == 1 and row_tokens > unit:
        return row_tokens - 1
    return -(-row_tokens // unit) * unit


def _llama_spec(
    config: PretrainedConfig, *, row_tokens: int, float8: bool
) -> llama3.ModelSpec:
    """Return torchtitan's ModelSpec of a checked config.

    Raises RecipeError for RoPE scaling that torchtitan does not have.
    """
    width = config.hidden_size
    vocabulary = config.vocab_size
    layers = llama3._build_llama3_layers(
        rope=_rope(config, row_tokens=row_tokens),
        attn_backend="flex",
        n_layers=config.num_hidden_layers,
        dim=width,
        hidden_dim=config.intermediate_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
    )
    if config.tie_word_embeddings:
        embedding_init = llama3._EMBEDDING_SKIP_INIT
    else:
        embedding_init = llama3._EMBEDDING_INIT
    model = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocabulary,
        enable_weight_tying=config.tie_word_embeddings,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=embedding_init
        ),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=width,
            out_features=vocabulary,
            param_init=llama3._output_linear_init(width),
        ),
        layers=layers,
    )
    for _, norm, parent, name in list(model.traverse(RMSNorm.Config)):
        setattr(parent, str(name), replace(norm, eps=config.rms_norm_eps))
    if float8:
        from torchtitan.components.quantization import Float8LinearConverter

        converter = Float8LinearConverter.Config(filter_fqns=["lm_head"]).build()
        model = converter.convert(model)
    return llama3.ModelSpec(
        name="llama3",
        flavor="config.json",
        model=model,
        state_dict_adapter=llama3.Llama3StateDictAdapter,
        parallelize_fn=llama3.parallelize_llama,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
    )


def _rope(config: PretrainedConfig, *, row_tokens: int) -> ComplexRoPE.Config:
    """Return the rotary positions of a config.

    Raises RecipeError for a scaling that torchtitan does not have.
    """
    parameters = config.rope_parameters
    positions = "max_context_length" if _IS_MAIN else "max_seq_len"
    options: Json = {
        "theta": float(parameters["rope_theta"]),
        "scaling": "none",
        positions: row_tokens,
    }
    kind = parameters["rope_type"]
    if kind == "llama3":
        # Llama 3.1 and later, with the factors of the model's own config.json.
        options["scaling"] = "llama"
        options["scaling_factor"] = parameters["factor"]
        for name in (
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ):
            options[name] = parameters[name]
    elif kind != "default":
        raise RecipeError(
            where="model.rope_scaling",
            value="keep",
            problem=f"keeps the RoPE scaling {kind}, which torchtitan's Llama does not "
            "support",
            fix="set model.rope_scaling=replace",
        )
    head_size = config.hidden_size // config.num_attention_heads
    return ComplexRoPE.Config(dim=head_size, **options)


@cache
def prepared(recipe: str) -> Prepared:
    """Return the data of a recipe written as JSON."""
    return prepare(TrainRecipe.model_validate_json(recipe))


def _batch_of(
    rows: list[TrainingRow], *, row_tokens: int, targets: list[torch.Tensor]
) -> _Batch:
    """Return what a model call reads of rows, and for each token the next one's target.

    It reads inputs, and positions from 0 in each document. Shape (rows, row_tokens); of
    torchtitan's main branch, which has no batch dimension, (rows · row_tokens,). A row
    that is shorter is padded by a document of its own. The last token of each document
    has no target: `targets` hold −100 where a document begins.
    """
    inputs = torch.zeros(len(rows), row_tokens, dtype=torch.int64)
    positions = inputs.clone()
    labels = torch.full_like(inputs, IGNORED)
    for index, (row, target) in enumerate(zip(rows, targets, strict=True)):
        # A row of one token more has it as a target alone.
        tokens = min(len(row.input_ids), row_tokens)
        inputs[index, :tokens] = row.input_ids[:tokens]
        positions[index, :tokens] = row.position_ids[:tokens]
        positions[index, tokens:] = torch.arange(row_tokens - tokens)
        next_targets = target[1 : tokens + 1]
        labels[index, : len(next_targets)] = next_targets
    if _IS_MAIN:
        inputs = inputs.flatten()
        positions = positions.flatten()
        labels = labels.flatten()
    return {"input": inputs, "positions": positions}, labels


class RowsLoader(BaseDataLoader):  # type: ignore[misc]
    """The rows that one data-parallel rank reads, step by step.

    Ranks that share a row by context parallelism read the same. Its state is how many
    steps were read, the same on all ranks, so a training resumes on another number of
    them too.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        recipe: _RecipeJson

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any
    ) -> None:
        ready = prepared(config.recipe)
        rows_at_once = ready.recipe.training.micro_batch_rows
        self._ready = ready
        self._row_tokens = _input_tokens(ready)
        self._ranks = dp_world_size
        self._rank = dp_rank
        self._calls_per_step = ready.rows_per_step // rows_at_once // dp_world_size
        # Calls of the model of this rank since the first step.
        self._calls = 0

    def __iter__(self) -> Iterator[_Batch]:
        while True:
            step, call = divmod(self._calls, self._calls_per_step)
            # Micro-batches of a step, shape (micro-batches, rows at once), go to the
            # ranks in turn.
            own_batches = self._ready.micro_batches(step)[self._rank :: self._ranks]
            rows = [self._ready.rows[row] for row in own_batches[call].tolist()]
            labels = [row.labels for row in rows]
            batch = _batch_of(rows, row_tokens=self._row_tokens, targets=labels)
            self._calls += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were read.

        `launch` checks that the data are the same.
        """
        return {"steps": self._calls // self._calls_per_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume after the steps of a checkpoint."""
        self._calls = state_dict["steps"] * self._calls_per_step


@dataclass(kw_only=True, slots=True)
class Schedule(LRSchedulersContainer.Config):  # type: ignore[misc]
    """Our learning rates: torchtitan's own reach their maximum one step later."""

    recipe: _RecipeJson

    def build(self, *, optimizers: Any, training_steps: int) -> Any:  # noqa: ARG002
        """Return the schedule; the optimizers' own learning rate is the highest."""
        recipe = TrainRecipe.model_validate_json(self.recipe)
        return LRSchedulersContainer(optimizers, recipe.training.lr_share)


class HeldOutValidator(Validator):  # type: ignore[misc]
    """The loss of held-out rows, as the one-device engine measures it.

    Rows are read by number; torchtitan's own loader of validation data, which is in the
    config, is never built.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):  # type: ignore[misc]
        recipe: _RecipeJson

    def __init__(self, config: Config, **parts: Any) -> None:
        super().__init__(config, **parts)
        self._prepared = prepared(config.recipe)

    def should_validate(self, step: int) -> bool:
        recipe = self._prepared.recipe
        return step == recipe.training.steps or step % recipe.held_out.every_steps == 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def validate(self, model_parts: list[Any], step: int) -> None:
        """Measure the first `held_out.rows` rows; called by all ranks.

        They are distributed over the data-parallel ranks.
        """
        rows = self._prepared.held_out_rows
        assert rows is not None, "only built where rows are held out"
        model = model_parts[0]
        longest = rows.row_tokens
        count = min(self._prepared.recipe.held_out.rows, len(rows))
        ranks = self.dp_world_size
        rounds = -(-count // ranks)
        totals: Any = 0
        model.eval()
        for number in range(self.dp_rank, rounds * ranks, ranks):
            # Ranks compute together, so one without a row computes the last again and
            # does not count it.
            totals += self._tally(
                model_parts,
                rows[min(number, count - 1)],
                longest=longest,
                is_counted=number < count,
            )
        model.train()
        device = next(model.parameters()).device
        summed = torch.as_tensor(totals, device=device)
        mesh = self.parallel_dims.get_optional_mesh("loss")
        if mesh is not None:
            torch.distributed.all_reduce(summed, group=mesh.get_group())
        measured = means(summed.cpu().numpy(), longest=longest)
        self.metrics_processor.held_out(step, measured)

    def _tally(
        self,
        model_parts: list[Any],
        row: TrainingRow,
        *,
        longest: int,
        is_counted: bool,
    ) -> Any:
        """Return the sums of losses of a row by role, position and distance.

        Context parallelism reorders tokens, so the index of each token in the row is
        sharded in the place of its label, and losses are looked up by it.
        """
        device = next(model_parts[0].parameters()).device
        indices = torch.arange(len(row.labels))
        batch, next_indices = _batch_of(
            [row], row_tokens=_input_tokens(self._prepared), targets=[indices]
        )
        inputs = {name: column.to(device) for name, column in batch.items()}
        # Of this rank: inputs, and for each output the index in the row of the token
        # that it predicts, or IGNORED.
        inputs_here, indices_here, options = self.post_dataloading_process(
            inputs, next_indices.to(device), model_parts
        )
        with self.validation_context():
            output = model_parts[0](inputs_here, **options)
        indices_here = indices_here.flatten()
        is_target = (indices_here != IGNORED) & is_counted
        labels = torch.full_like(indices_here, IGNORED)
        labels[is_target] = row.labels.to(device)[indices_here[is_target]]
        losses = self._losses(output.flatten(0, -2), labels)

        # Back in the order of the row, where only this rank's targets have a label.
        targets = indices_here[is_target].cpu()
        row_losses = np.zeros(len(row.labels))
        row_losses[targets.numpy()] = losses[is_target].double().cpu().numpy()
        row_labels = torch.full_like(row.labels, IGNORED)
        row_labels[targets] = row.labels[targets]
        return tally(replace(row, labels=row_labels), row_losses, longest=longest)

    def _losses(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each output; logits of one chunk at a time."""
        chunked = isinstance(self.loss_fn, ChunkedLossWrapper)
        count = self.loss_fn.num_chunks if chunked else 1
        chunks = zip(output.chunk(count), labels.chunk(count), strict=True)
        losses = []
        for hidden, chunk_labels in chunks:
            logits = self.loss_fn.lm_head(hidden) if chunked else hidden
            chunk_losses = torch.nn.functional.cross_entropy(
                logits.float(), chunk_labels, reduction="none", ignore_index=IGNORED
            )
            losses.append(chunk_losses)
        return torch.cat(losses)


class Log(MetricsProcessor):  # type: ignore[misc]
    """torchtitan's console lines, and beside them the one-device engine's logs.

    Figures and comparisons read these.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        recipe: _RecipeJson

    def __init__(self, config: Config, **parts: Any) -> None:
        super().__init__(config, **parts)
        self._recipe = TrainRecipe.model_validate_json(config.recipe)
        self._metrics: Metrics | None = None
        self._began = time.perf_counter()

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: Any = None,
    ) -> None:
        """Log a step; called by all ranks.

        Raises RunError on all of them where training must stop (`Metrics.fault`).
        """
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        lr = _learning_rate(extra_metrics or {})
        now = time.perf_counter()
        seconds = now - self._began
        self._began = now
        faults: list[str | None] = [None]
        metrics = self._first_rank_metrics(step)
        if metrics is not None:
            faults = [metrics.fault(step, global_avg_loss, grad_norm)]
            trained = TrainedStep(
                step=step,
                loss=global_avg_loss,
                grad_norm=grad_norm,
                lr=lr,
                tokens=self._recipe.training.tokens_per_step,
                seconds=seconds,
            )
            metrics.step(trained)
        # Only the first rank knows the earlier losses, and the others would wait for it
        # in their next step.
        torch.distributed.broadcast_object_list(faults)
        if faults[0]:
            raise RunError(
                where=f"step {step}",
                problem=f"{faults[0]}; all checkpoints are from earlier steps",
                fix=STOPPED_ADVICE,
            )

    def held_out(self, step: int, measured: Json) -> None:
        """Log a validation; called by all ranks."""
        self.log_validation(loss=measured["loss"], step=step)
        metrics = self._first_rank_metrics(step)
        if metrics is not None:
            metrics.held_out(step, measured)
        self._began = time.perf_counter()

    def close(self) -> None:
        super().close()
        if self._metrics is not None:
            self._metrics.flush()

    def _first_rank_metrics(self, step: int) -> Metrics | None:
        """Return the logs, on the first rank.

        Lines after the checkpoint that was resumed are removed from them.
        """
        if torch.distributed.get_rank():
            return None
        if self._metrics is None:
            self._metrics = Metrics(
                Path(self._recipe.out), self._recipe.watch, first_step=step - 1
            )
        return self._metrics


def _learning_rate(metrics: Json) -> float:
    """Return the learning rate that torchtitan logs, of the first optimizer."""
    rates = (float(rate) for name, rate in metrics.items() if name.startswith("lr/"))
    return next(rates)


@dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):  # type: ignore[misc]
    """No tokenizer: rows hold ids already.

    torchtitan's trainer only passes one on, to components that here are ours.
    """

    def build(self, **_: Any) -> None:
        """Return None."""
