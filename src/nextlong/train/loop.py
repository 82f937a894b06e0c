"""Loop: the steps of a training.

In:  a training recipe.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/, final/, loss.svg.

A step is a function of the weights, the optimiser's states and its number: rows, learning rate and random numbers follow from
the number, so a training that was killed goes on bit for bit where its last checkpoint is (on a CPU with as many threads).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.train import checkpoint, held_out
from nextlong.train.batches import Plan
from nextlong.train.check import not_finite
from nextlong.train.device import autocast
from nextlong.train.metrics import Metrics
from nextlong.train.prepare import check_same
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRows, flat, on_device
from nextlong.train.schedule import learning_rate

_SPIKE_WINDOW = 20
Batch = dict[str, Any]  # what `flat` makes of the rows of a micro batch


@dataclass
class Engine:
    """What a step needs."""

    recipe: TrainRecipe
    device: torch.device
    model: Any
    optimizer: Any
    tokenizer: Any
    rows: TrainingRows
    held_out_rows: TrainingRows | None
    plan: Plan
    data: str  # fingerprint of what is trained on
    recent: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def out(self) -> Path:
        """Where everything goes."""
        return Path(self.recipe.out).expanduser()


@dataclass(frozen=True)
class Step:
    """What a step measured: number, mean loss, norm of the gradient before clipping, tokens, seconds."""

    number: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


def run(engine: Engine, metrics: Metrics, *, first_step: int, report: Callable[[Step], None]) -> None:
    """Train from `first_step` (steps done so far) to the end; checkpoints and measurements as the recipe says."""
    recipe = engine.recipe
    if first_step == 0:
        _measure(engine, metrics, 0)
    for number, batches in _prefetched(engine, first_step):
        done = _step(engine, number, batches)
        metrics.step(done)
        report(done)
        is_last = number == recipe.training.steps
        if is_last or number % recipe.held_out.every_steps == 0:
            _measure(engine, metrics, number)
        if is_last or number % recipe.checkpoints.every_steps == 0:
            metrics.flush()
            save(engine, number)


def save(engine: Engine, step: int, *, reason: str | None = None) -> None:
    """Write a checkpoint of `step` steps done."""
    progress = checkpoint.Progress(
        step=step,
        tokens=engine.tokens,
        recent_losses=engine.recent,
        recipe=engine.recipe.trained_keys(),
        data=engine.data,
        stopped_because=reason,
    )
    checkpoint.save(
        engine.out,
        progress,
        model=engine.model,
        optimizer=engine.optimizer,
        tokenizer=engine.tokenizer,
        keep_last=engine.recipe.checkpoints.keep_last,
    )


def _step(engine: Engine, number: int, batches: Sequence[Batch]) -> Step:
    started, training = time.perf_counter(), engine.recipe.training
    torch.manual_seed(engine.recipe.seed * 1_000_003 + number * 1009)  # of dropout
    lr = learning_rate(number, training)
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    loss, tokens = _gradients(engine, batches)
    norm = float(torch.nn.utils.clip_grad_norm_(engine.model.parameters(), training.clip or float("inf")))
    if reason := _sickness(engine, number, loss, norm):
        engine.optimizer.zero_grad(set_to_none=True)
        save(engine, number - 1, reason=reason)
        raise RunError(
            f"{reason}; stopped before the weights took it, checkpoint of step {number - 1} saved in "
            f"{engine.out / checkpoint.FOLDER}; choose another `out` with a lower training.lr or a longer "
            "training.warmup_steps; or, if this does no harm, raise watch.spike and go on"
        )
    engine.optimizer.step()
    engine.optimizer.zero_grad(set_to_none=True)
    engine.recent = [*engine.recent, loss][-_SPIKE_WINDOW:]
    engine.tokens += tokens
    return Step(number, loss, norm, lr, tokens, time.perf_counter() - started)


def _gradients(engine: Engine, batches: Sequence[Batch]) -> tuple[float, int]:
    """Compute the gradient of the mean loss over the step's predicted tokens; return that mean, and the tokens read."""
    items = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    total = torch.zeros((), device=engine.device)
    for batch in batches:
        with autocast(engine.recipe, engine.device):
            loss = engine.model(**on_device(batch, engine.device), num_items_in_batch=items).loss
        loss.backward()
        total += loss.detach()
    return float(total), sum(batch["labels"].shape[1] for batch in batches)


def _prefetched(engine: Engine, first_step: int) -> Iterator[tuple[int, list[Batch]]]:
    """Yield each step's number and micro batches; a thread reads those of the next step while one is computed."""

    def read(number: int) -> list[Batch]:
        numbers = engine.plan.micro_batches(number - 1)
        batches = [flat([engine.rows[row] for row in rows.tolist()]) for rows in numbers]
        if engine.device.type != "cuda":
            return batches
        return [{name: _pinned(column) for name, column in batch.items()} for batch in batches]

    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = None
        for number in range(first_step + 1, engine.recipe.training.steps + 1):
            batches = (coming or reader.submit(read, number)).result()
            coming = reader.submit(read, number + 1) if number < engine.recipe.training.steps else None
            yield number, batches


def _pinned(column: Any) -> Any:
    return column.pin_memory() if isinstance(column, torch.Tensor) else column


def _sickness(engine: Engine, number: int, loss: float, norm: float) -> str | None:
    spike = engine.recipe.watch.spike
    for name, value in (("loss", loss), ("norm of the gradient", norm)):
        if value != value or value in (float("inf"), float("-inf")):
            broken = not_finite(engine.model)
            return f"the {name} of step {number} is {value}" + (
                f", and the weight {broken} is not finite" if broken else ""
            )
    if spike is not None and len(engine.recent) == _SPIKE_WINDOW and loss > spike * median(engine.recent):
        return (
            f"the loss of step {number} is {loss:.3f}, more than {spike:g} times the median of the last {_SPIKE_WINDOW}"
        )
    return None


def _measure(engine: Engine, metrics: Metrics, step: int) -> None:
    if engine.held_out_rows is None:
        return
    with autocast(engine.recipe, engine.device):
        measured = held_out.measure(
            engine.model, engine.held_out_rows, most=engine.recipe.held_out.rows, device=engine.device
        )
    metrics.held_out(step, measured)


def resume(engine: Engine, say: Callable[[str], None]) -> int:
    """Go on from the latest undamaged checkpoint, if there is one; return how many steps are done.

    Damaged ones are set aside. Raises RunError if none is whole, or it is of another recipe, or of data that have changed.
    """
    folders = checkpoint.finished(engine.out)
    for folder in folders:
        if damage := checkpoint.damage(folder):
            if folder == folders[-1]:
                raise RunError(f"{damage}, and there is no other checkpoint; delete {folder.parent} to start over")
            say(
                f"{damage}; it is now {checkpoint.set_aside(folder).name}, and training resumes from the checkpoint before"
            )
            continue
        check_same(engine.recipe, engine.data, store.read_json(folder / checkpoint.RECORD)["progress"], folder)
        progress = checkpoint.load(folder, model=engine.model, optimizer=engine.optimizer)
        engine.recent, engine.tokens = list(progress.recent_losses), progress.tokens
        return progress.step
    return 0
