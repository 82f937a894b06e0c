"""Config: a training recipe as a config of torchtitan's trainer, which imports this module and calls `nextlong`.

The model is torchtitan's Llama with every size from config.json, so that models of any size can be trained. Components of ours
replace torchtitan's data loader, learning rates, validation and logs. Each is built from the recipe as JSON, which is the same on
all ranks; the data are opened once in each process.
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
from nextlong.train.model import Prepared, prepare
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.rows import TrainingRow
from nextlong.train.titan.launch import installed_version

_IS_MAIN = installed_version() == "main"
if _IS_MAIN:
    from torchtitan.components.data.loader import BaseDataLoader
else:
    from torchtitan.components.dataloader import BaseDataLoader

_RecipeJson = Annotated[str, tyro.conf.Suppress]
_Batch = tuple[dict[str, torch.Tensor], torch.Tensor]

_BLOCK_TOKENS: Final = (
    128  # of flex attention; context parallelism distributes whole blocks
)
# torchtitan's 100 s are less than a step, or a checkpoint, of rows of half a million tokens.
_TIMEOUT_SECONDS: Final = 3600


def nextlong() -> Trainer.Config:
    """Return the config of the recipe that the environment variable NEXTLONG_RECIPE_JSON holds."""
    return config_of(
        TrainRecipe.model_validate_json(os.environ["NEXTLONG_RECIPE_JSON"])
    )


def config_of(recipe: TrainRecipe) -> Trainer.Config:
    """Return the trainer's config. Raises RecipeError for what the installed torchtitan does not support."""
    ranks = recipe.hardware.ranks_per_row
    if (
        _IS_MAIN
        and ranks > 1
        and not any("spmd_backend" in option for option in recipe.torchtitan.options)
    ):
        raise RecipeError(
            f"hardware.ranks_per_row={ranks}: context parallelism of torchtitan's main branch needs its backend "
            "spmd_types, which nextlong was not tested with; install torchtitan==0.3.0, or try it with "
            'torchtitan.options=["--parallelism.spmd_backend", "spmd_types"]'
        )
    as_json, path, training = (
        recipe.model_dump_json(),
        str(recipe.model.path),
        recipe.training,
    )
    ready = prepared(as_json)
    rows_per_step, at_once = ready.rows_per_step, training.micro_batch_rows
    row_tokens = _input_tokens(ready)
    micro_batches(
        recipe,
        rows_per_step=rows_per_step,
        devices=recipe.hardware.count,
        ranks_per_row=ranks,
    )
    check_llama(ready.config.to_dict(), path=path, trainer="the engine torchtitan")
    batch = {
        "seq_len": row_tokens,
        "local_batch_size": at_once,
        "global_batch_size": rows_per_step,
    }
    if _IS_MAIN:
        batch = {
            "max_context_length": row_tokens,
            "num_tokens_per_train_step": rows_per_step * row_tokens,
        }
        batch["num_tokens_per_microbatch_per_dp_rank"] = at_once * row_tokens
    # AdamW's options of norms, which do not decay, and of everything else.
    options = {
        "lr": training.lr,
        "betas": (training.beta1, training.beta2),
        "eps": training.eps,
    }
    param_groups = [
        ParamGroupConfig(
            pattern=pattern,
            optimizer_name="AdamW",
            optimizer_kwargs={**options, "weight_decay": decay},
        )
        for pattern, decay in ((r"norm\.weight$", 0.0), (".*", training.weight_decay))
    ]
    # Logits of at most `loss_block_tokens` tokens at a time, in chunks of equal length.
    local_tokens = row_tokens // ranks
    fewest = -(-local_tokens // recipe.memory.loss_block_tokens)
    chunks = next(
        count for count in range(fewest, local_tokens + 1) if local_tokens % count == 0
    )
    cross_entropy = CrossEntropyLoss.Config(global_vocab_size=ready.config.vocab_size)
    has_gpu, is_bf16 = torch.cuda.is_available(), training.precision == "bf16"
    return Trainer.Config(
        model_spec=_llama_spec(
            ready.config, row_tokens=row_tokens, float8=recipe.torchtitan.float8 == "on"
        ),
        hf_assets_path=path,
        dump_folder=str(Path(recipe.out)),
        tokenizer=NoTokenizer(),
        dataloader=RowsLoader.Config(recipe=as_json),
        loss=ChunkedLossWrapper.Config(num_chunks=chunks, loss_fn=cross_entropy),
        optimizer=OptimizersContainer.Config(
            param_groups=param_groups, implementation="fused" if has_gpu else "for-loop"
        ),
        lr_scheduler=Schedule(recipe=as_json, warmup_steps=training.warmup_steps),
        metrics=Log.Config(recipe=as_json, log_freq=1),
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
            context_parallel_degree=ranks,
            context_parallel_load_balancer="ptrr",
            spmd_backend="partial_dtensor",
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
        activation_checkpoint=FullAC.Config()
        if recipe.memory.checkpointing == "layers"
        else None,
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


def _input_tokens(ready: Prepared) -> int:
    """Return the length that a row is padded to: whole blocks for each of 2 · `ranks_per_row` slices.

    A row of one token more, as composed for trainers that need the label of the last input, is not padded for it.
    """
    row_tokens, ranks_per_row = ready.row_tokens, ready.recipe.hardware.ranks_per_row
    unit = 2 * ranks_per_row * _BLOCK_TOKENS if ranks_per_row > 1 else _BLOCK_TOKENS
    if row_tokens % unit == 1 and row_tokens > unit:
        return row_tokens - 1
    return -(-row_tokens // unit) * unit


def _llama_spec(
    config: PretrainedConfig, *, row_tokens: int, float8: bool
) -> llama3.ModelSpec:
    """Return torchtitan's ModelSpec of a checked config. Raises RecipeError for RoPE scaling that torchtitan does not have."""
    width, vocabulary, heads = (
        config.hidden_size,
        config.vocab_size,
        config.num_attention_heads,
    )
    parameters = config.rope_parameters
    positions = "max_context_length" if _IS_MAIN else "max_seq_len"
    rope_options: Json = {
        "theta": float(parameters["rope_theta"]),
        "scaling": "none",
        positions: row_tokens,
    }
    if (
        parameters["rope_type"] == "llama3"
    ):  # Llama 3.1 and later, with the factors of the model's own config.json
        kept = (
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
        rope_options |= {"scaling": "llama", "scaling_factor": parameters["factor"]}
        rope_options |= {name: parameters[name] for name in kept}
    elif parameters["rope_type"] != "default":
        problem = f"the model has RoPE scaling {parameters['rope_type']}, which torchtitan's Llama does not support"
        raise RecipeError(f"{problem}; set model.rope_scaling=replace")
    sizes = {
        "n_layers": config.num_hidden_layers,
        "dim": width,
        "hidden_dim": config.intermediate_size,
    }
    sizes |= {"n_heads": heads, "n_kv_heads": config.num_key_value_heads}
    rope = ComplexRoPE.Config(dim=width // heads, **rope_options)
    layers = llama3._build_llama3_layers(rope=rope, attn_backend="flex", **sizes)
    embedding_init = (
        llama3._EMBEDDING_SKIP_INIT
        if config.tie_word_embeddings
        else llama3._EMBEDDING_INIT
    )
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
    for _, norm, above, name in list(model.traverse(RMSNorm.Config)):
        setattr(above, str(name), replace(norm, eps=config.rms_norm_eps))
    if float8:
        from torchtitan.components.quantization import Float8LinearConverter

        model = (
            Float8LinearConverter.Config(filter_fqns=["lm_head"]).build().convert(model)
        )
    functions = {
        "parallelize_fn": llama3.parallelize_llama,
        "pipelining_fn": None,
        "post_optimizer_build_fn": None,
    }
    adapter = llama3.Llama3StateDictAdapter
    return llama3.ModelSpec(
        name="llama3",
        flavor="config.json",
        model=model,
        state_dict_adapter=adapter,
        **functions,
    )


@cache
def prepared(recipe: str) -> Prepared:
    """Return the data of a recipe written as JSON."""
    return prepare(TrainRecipe.model_validate_json(recipe))


def _batch_of(
    rows: list[TrainingRow], *, row_tokens: int, targets: list[torch.Tensor]
) -> _Batch:
    """Return what a model call reads of rows: inputs, positions from 0 in each document, and for each token the next one's target.

    Shape (rows, row_tokens); of torchtitan's main branch, which has no batch dimension, (rows · row_tokens,). A row that is shorter
    is padded by a document of its own. The last token of each document has no target: `targets` hold −100 where a document begins.
    """
    inputs = torch.zeros(len(rows), row_tokens, dtype=torch.int64)
    positions, labels = inputs.clone(), torch.full_like(inputs, IGNORED)
    for place, (row, target) in enumerate(zip(rows, targets, strict=True)):
        tokens = min(
            len(row.input_ids), row_tokens
        )  # a row of one token more has it as a target alone
        inputs[place, :tokens] = row.input_ids[:tokens]
        positions[place, :tokens] = row.position_ids[:tokens]
        positions[place, tokens:] = torch.arange(row_tokens - tokens)
        following = target[1 : tokens + 1]
        labels[place, : len(following)] = following
    if _IS_MAIN:
        inputs, positions, labels = (
            inputs.flatten(),
            positions.flatten(),
            labels.flatten(),
        )
    return {"input": inputs, "positions": positions}, labels


class RowsLoader(BaseDataLoader):  # type: ignore[misc]
    """The rows that one data-parallel rank reads, step by step; ranks that share a row by context parallelism read the same.

    Its state is how many steps were read, the same on all ranks, so a training resumes on another number of them too.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        recipe: _RecipeJson

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any
    ) -> None:
        self._ready = ready = prepared(config.recipe)
        self._row_tokens, self._ranks, self._rank = (
            _input_tokens(ready),
            dp_world_size,
            dp_rank,
        )
        self._calls_a_step = (
            ready.rows_per_step
            // ready.recipe.training.micro_batch_rows
            // dp_world_size
        )
        self._read = 0  # calls of the model of this rank since the first step

    def __iter__(self) -> Iterator[_Batch]:
        while True:
            step, call = divmod(self._read, self._calls_a_step)
            # Micro-batches of a step, shape (micro-batches, rows at once), go to the ranks in turn.
            numbers = self._ready.micro_batches(step)[self._rank :: self._ranks][call]
            rows = [self._ready.rows[number] for number in numbers.tolist()]
            batch = _batch_of(
                rows, row_tokens=self._row_tokens, targets=[row.labels for row in rows]
            )
            self._read += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were read; `launch` checks that the data are the same."""
        return {"steps": self._read // self._calls_a_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume after the steps of a checkpoint."""
        self._read = state_dict["steps"] * self._calls_a_step


@dataclass(kw_only=True, slots=True)
class Schedule(LRSchedulersContainer.Config):  # type: ignore[misc]
    """Our learning rates: torchtitan's own reach their maximum one step later."""

    recipe: _RecipeJson

    def build(self, *, optimizers: Any, training_steps: int) -> Any:  # noqa: ARG002
        """Return the schedule for the optimizers, whose own learning rate is the highest."""
        return LRSchedulersContainer(
            optimizers, TrainRecipe.model_validate_json(self.recipe).training.lr_share
        )


class HeldOutValidator(Validator):  # type: ignore[misc]
    """The loss of held-out rows by role, position and distance, as the one-device engine measures it.

    They are read by number; torchtitan's own loader of validation data, which is in the config, is never built.
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
        """Measure the first `held_out.rows` rows, distributed over the data-parallel ranks; called by all ranks."""
        rows, model = self._prepared.held_out_rows, model_parts[0]
        assert rows is not None, "only built where rows are held out"
        count, totals = min(self._prepared.recipe.held_out.rows, len(rows)), 0
        longest, ranks = rows.row_tokens, self.dp_world_size
        model.eval()
        for number in range(self.dp_rank, -(-count // ranks) * ranks, ranks):
            # Ranks compute together, so one without a row computes the last again and does not count it.
            row, is_counted = rows[min(number, count - 1)], number < count
            totals += self._tally(
                model_parts, row, longest=longest, is_counted=is_counted
            )
        model.train()
        on_device = torch.as_tensor(totals, device=next(model.parameters()).device)
        if (mesh := self.parallel_dims.get_optional_mesh("loss")) is not None:
            torch.distributed.all_reduce(on_device, group=mesh.get_group())
        self.metrics_processor.held_out(
            step, means(on_device.cpu().numpy(), longest=longest)
        )

    def _tally(
        self,
        model_parts: list[Any],
        row: TrainingRow,
        *,
        longest: int,
        is_counted: bool,
    ) -> Any:
        device = next(model_parts[0].parameters()).device
        # In place of labels, each token's place in the row, so that places come back in the order of context parallelism.
        places = torch.arange(len(row.labels))
        batch, following = _batch_of(
            [row], row_tokens=_input_tokens(self._prepared), targets=[places]
        )
        inputs = {name: column.to(device) for name, column in batch.items()}
        inputs_here, places_here, options = self.post_dataloading_process(
            inputs, following.to(device), model_parts
        )
        with self.validation_context():
            output = model_parts[0](inputs_here, **options)
        # places_here: for each output of this rank the place in the row of the token that it predicts, or IGNORED.
        places_here = places_here.flatten()
        is_target = (places_here != IGNORED) & is_counted
        labels = torch.full_like(places_here, IGNORED)
        labels[is_target] = row.labels.to(device)[places_here[is_target]]
        chunked = self.loss_fn if isinstance(self.loss_fn, ChunkedLossWrapper) else None
        count, losses = chunked.num_chunks if chunked else 1, []
        for hidden, part in zip(
            output.flatten(0, -2).chunk(count), labels.chunk(count), strict=True
        ):
            logits = (
                chunked.lm_head(hidden) if chunked else hidden
            ).float()  # of one chunk at a time
            losses.append(
                torch.nn.functional.cross_entropy(
                    logits, part, reduction="none", ignore_index=IGNORED
                )
            )
        of_row, masked = np.zeros(len(row.labels)), torch.full_like(row.labels, IGNORED)
        targets = places_here[is_target].cpu()
        of_row[targets.numpy()] = torch.cat(losses)[is_target].double().cpu().numpy()
        masked[targets] = row.labels[targets]
        return tally(replace(row, labels=masked), of_row, longest=longest)


class Log(MetricsProcessor):  # type: ignore[misc]
    """torchtitan's console lines, and beside them the one-device engine's logs, which pictures and comparisons read."""

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
        """Log a step; called by all ranks. Raises RunError on all of them where training must stop (`Metrics.fault`)."""
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        lr = next(
            float(value)
            for name, value in (extra_metrics or {}).items()
            if name.startswith("lr/")
        )
        seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
        faults: list[str | None] = [None]
        if metrics := self._first_rank_metrics(step):
            faults = [metrics.fault(step, global_avg_loss, grad_norm)]
            tokens = self._recipe.training.tokens_per_step
            metrics.step(
                TrainedStep(step, global_avg_loss, grad_norm, lr, tokens, seconds)
            )
        # Only the first rank knows the earlier losses, and the others would wait for it in their next step.
        torch.distributed.broadcast_object_list(faults)
        if faults[0]:
            raise RunError(
                f"{faults[0]}; checkpoints are of earlier steps: {STOPPED_ADVICE}"
            )

    def held_out(self, step: int, measured: Json) -> None:
        """Log a validation; called by all ranks."""
        self.log_validation(loss=measured["loss"], step=step)
        if metrics := self._first_rank_metrics(step):
            metrics.held_out(step, measured)
        self._began = time.perf_counter()

    def close(self) -> None:
        super().close()
        if self._metrics is not None:
            self._metrics.flush()

    def _first_rank_metrics(self, step: int) -> Metrics | None:
        """Return the logs, on the first rank; lines after the checkpoint that was resumed are removed from them."""
        if torch.distributed.get_rank():
            return None
        if self._metrics is None:
            self._metrics = Metrics(
                Path(self._recipe.out), self._recipe.watch, first_step=step - 1
            )
        return self._metrics


@dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):  # type: ignore[misc]
    """No tokenizer: rows hold ids already. torchtitan's trainer only passes one on, to components that here are ours."""

    def build(self, **_: Any) -> None:
        """Return None."""
