"""Parts: components that replace torchtitan's own: data loader, learning rates, validation by role and distance, logs.

Each part is built from the recipe as JSON, which is the same on all ranks; the data are opened once in each process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator

from nextlong.errors import RunError
from nextlong.text import Json
from nextlong.train.exact import IGNORED
from nextlong.train.metrics import STOPPED_ADVICE, Metrics, TrainedStep, means, tally
from nextlong.train.prepare import Prepared, prepare
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRow
from nextlong.train.titan.launch import installed_version

_IS_MAIN = installed_version() == "main"
if _IS_MAIN:
    from torchtitan.components.data.loader import BaseDataLoader
else:
    from torchtitan.components.dataloader import BaseDataLoader

_RecipeJson = Annotated[str, tyro.conf.Suppress]
_Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@cache
def prepared(recipe: str) -> Prepared:
    """Return the data of a recipe written as JSON."""
    return prepare(TrainRecipe.model_validate_json(recipe))


def batch_of(rows: list[TrainingRow], *, row_tokens: int, targets: list[torch.Tensor]) -> _Batch:
    """Return what a model call reads of rows: inputs, positions from 0 in each document, and for each token the next one's target.

    Shape (rows, row_tokens); of torchtitan's main branch, which has no batch dimension, (rows · row_tokens,). A row that is shorter
    is padded by a document of its own. The last token of each document has no target: `targets` hold −100 where a document begins.
    """
    inputs = torch.zeros(len(rows), row_tokens, dtype=torch.int64)
    positions, labels = inputs.clone(), torch.full_like(inputs, IGNORED)
    for place, (row, target) in enumerate(zip(rows, targets, strict=True)):
        tokens = min(len(row.input_ids), row_tokens)  # a row of one token more has it as a target alone
        inputs[place, :tokens] = row.input_ids[:tokens]
        positions[place, :tokens] = row.position_ids[:tokens]
        positions[place, tokens:] = torch.arange(row_tokens - tokens)
        following = target[1 : tokens + 1]
        labels[place, : len(following)] = following
    if _IS_MAIN:
        inputs, positions, labels = inputs.flatten(), positions.flatten(), labels.flatten()
    return {"input": inputs, "positions": positions}, labels


class RowsLoader(BaseDataLoader):  # type: ignore[misc]
    """The rows that one data-parallel rank reads, step by step; ranks that share a row by context parallelism read the same.

    Its state is how many steps were read, the same on all ranks, so a training resumes on another number of them too.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        recipe: _RecipeJson
        row_tokens: Annotated[int, tyro.conf.Suppress]

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        self._row_tokens, self._ranks, self._rank = config.row_tokens, dp_world_size, dp_rank
        self._ready = ready = prepared(config.recipe)
        self._calls_a_step = ready.rows_per_step // ready.recipe.training.micro_batch_rows // dp_world_size
        self._read = 0  # calls of the model of this rank since the first step

    def __iter__(self) -> Iterator[_Batch]:
        while True:
            step, call = divmod(self._read, self._calls_a_step)
            # Micro-batches of a step, shape (micro-batches, rows at once), go to the ranks in turn.
            numbers = self._ready.micro_batches(step)[self._rank :: self._ranks][call]
            rows = [self._ready.rows[number] for number in numbers.tolist()]
            batch = batch_of(rows, row_tokens=self._row_tokens, targets=[row.labels for row in rows])
            self._read += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were read; `launch` checks that the data are the same."""
        return {"steps": self._read // self._calls_a_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume after the steps of a checkpoint."""
        self._read = state_dict["steps"] * self._calls_a_step


class Schedule(LRSchedulersContainer):  # type: ignore[misc]
    """Our learning rates: torchtitan's own reach their maximum one step later and stay there one step longer."""

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):  # type: ignore[misc]
        recipe: _RecipeJson

        def build(self, *, optimizers: Any, training_steps: int) -> Any:  # noqa: ARG002
            """Return the schedule for the optimizers, whose own learning rate is the highest."""
            return LRSchedulersContainer(optimizers, TrainRecipe.model_validate_json(self.recipe).training.lr_share)


class HeldOutValidator(Validator):  # type: ignore[misc]
    """The loss of held-out rows by role, position and distance, as the one-device engine measures it."""

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):  # type: ignore[misc]
        recipe: _RecipeJson
        row_tokens: Annotated[int, tyro.conf.Suppress]

    def __init__(self, config: Config, **parts: Any) -> None:
        config.dataloader = _Repeating()
        super().__init__(config, **parts)
        self._prepared, self._row_tokens = prepared(config.recipe), config.row_tokens

    def should_validate(self, step: int) -> bool:
        recipe = self._prepared.recipe
        return step == recipe.training.steps or step % recipe.held_out.every_steps == 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def validate(self, model_parts: list[Any], step: int) -> None:
        """Measure the first `held_out.rows` rows, distributed over the data-parallel ranks; called by all ranks."""
        rows, model = self._prepared.held_out_rows, model_parts[0]
        assert rows is not None, "only built where rows are held out"
        count, totals = min(self._prepared.recipe.held_out.rows, len(rows)), 0
        longest, ranks = rows.source.row_tokens, self.dp_world_size
        model.eval()
        for number in range(self.dp_rank, -(-count // ranks) * ranks, ranks):
            # Ranks compute together, so one without a row computes the last again and does not count it.
            row, is_counted = rows[min(number, count - 1)], number < count
            totals += self._tally(model_parts, row, longest=longest, is_counted=is_counted)
        model.train()
        on_device = torch.as_tensor(totals, device=next(model.parameters()).device)
        if (mesh := self.parallel_dims.get_optional_mesh("loss")) is not None:
            torch.distributed.all_reduce(on_device, group=mesh.get_group())
        self.metrics_processor.held_out(step, means(on_device.cpu().numpy(), longest=longest))

    def _tally(self, model_parts: list[Any], row: TrainingRow, *, longest: int, is_counted: bool) -> Any:
        device = next(model_parts[0].parameters()).device
        # In place of labels, each token's place in the row, so that places come back in the order of context parallelism.
        places = torch.arange(len(row.labels))
        batch, following = batch_of([row], row_tokens=self._row_tokens, targets=[places])
        inputs = {name: column.to(device) for name, column in batch.items()}
        inputs_here, places_here, options = self.post_dataloading_process(inputs, following.to(device), model_parts)
        with self.validation_context():
            output = model_parts[0](inputs_here, **options)
        # places_here: for each output of this rank the place in the row of the token that it predicts, or IGNORED.
        places_here = places_here.flatten()
        is_target = (places_here != IGNORED) & is_counted
        labels = torch.full_like(places_here, IGNORED)
        labels[is_target] = row.labels.to(device)[places_here[is_target]]
        chunked = self.loss_fn if isinstance(self.loss_fn, ChunkedLossWrapper) else None
        count, losses = chunked.num_chunks if chunked else 1, []
        for hidden, part in zip(output.flatten(0, -2).chunk(count), labels.chunk(count), strict=True):
            logits = (chunked.lm_head(hidden) if chunked else hidden).float()  # of one chunk at a time
            losses.append(torch.nn.functional.cross_entropy(logits, part, reduction="none", ignore_index=IGNORED))
        of_row, masked = np.zeros(len(row.labels)), torch.full_like(row.labels, IGNORED)
        here = places_here[is_target].cpu()
        of_row[here.numpy()] = torch.cat(losses)[is_target].double().cpu().numpy()
        masked[here] = row.labels[here]
        return tally(replace(row, labels=masked), of_row, longest=longest)


@dataclass
class _Repeating:
    """A loader for torchtitan to copy with other options; held-out rows are read by number."""

    infinite: bool = False
    repeat: bool = False


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
        self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, extra_metrics: Any = None
    ) -> None:
        """Log a step; called by all ranks. Raises RunError on all of them where training must stop (`Metrics.fault`)."""
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        lr = next(float(value) for name, value in (extra_metrics or {}).items() if name.startswith("lr/"))
        seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
        faults: list[str | None] = [None]
        if metrics := self._first_rank_metrics(step):
            faults = [metrics.fault(step, global_avg_loss, grad_norm)]
            tokens = self._recipe.training.tokens_per_step
            metrics.step(TrainedStep(step, global_avg_loss, grad_norm, lr, tokens, seconds))
        # Only the first rank knows the earlier losses, and the others would wait for it in their next step.
        torch.distributed.broadcast_object_list(faults)
        if faults[0]:
            raise RunError(f"{faults[0]}; checkpoints are of earlier steps: {STOPPED_ADVICE}")

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
            self._metrics = Metrics(Path(self._recipe.out), self._recipe.watch, first_step=step - 1)
        return self._metrics


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    """The tokenizer that torchtitan's trainer requires. Rows hold ids already, so each call is an error in this package."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:  # noqa: ARG002
        super().__init__()

    def encode(self, *_: object, **__: object) -> list[int]:
        raise TypeError("rows hold token ids already; nothing is tokenized while training")

    decode = get_vocab_size = encode
