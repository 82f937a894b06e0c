"""Loop: training on one device, from a recipe to a finished model.

In:  a training recipe.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/, final/, loss.svg.

A folder is trained in by one process at a time, and training resumes from what it holds. Rows, learning rate and random numbers
of a step follow from its number, so a killed training resumes bit for bit (on a CPU with the same number of threads).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train import checkpoint, forecast, held_out, metrics
from nextlong.train.check import check_model
from nextlong.train.loss import IGNORED
from nextlong.train.metrics import Metrics, TrainedStep
from nextlong.train.model import accelerator, autocast, explained_memory_errors, make_model, not_finite, optimizer_for
from nextlong.train.prepare import RECORD, Prepared, prepare
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import flat, on_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SEARCHED_ROWS: Final = 16  # for one of several documents
Batch = dict[str, Any]  # what `flat` makes of the rows of a micro batch


@dataclass
class Engine:
    """What a step needs: the prepared data, the model and its optimizer."""

    ready: Prepared
    device: torch.device
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 or recipe.hardware.count > 1:
        setting = f"WORLD_SIZE={processes}" if processes > 1 else f"hardware.count={recipe.hardware.count}"
        raise RecipeError(
            f"{setting}: nextlong's own loop trains on one device; use --engine torchtitan for several, or set "
            "hardware.count=1 and start one process"
        )
    out = Path(recipe.out).expanduser()
    with store.locked(out), explained_memory_errors(recipe):
        ready, device = prepare(recipe), accelerator()
        ready.begin(resumes=bool(checkpoint.finished(out)))
        model, rows = make_model(recipe, ready.config).to(device), ready.rows
        first_rows = (rows[row] for row in range(min(len(rows), _SEARCHED_ROWS)))
        is_packed = recipe.training.micro_batch_rows > 1 or any(len(row.bounds) > 2 for row in first_rows)
        checked, sizes = check_model(model, recipe, device=device, is_packed=is_packed), forecast.sizes_of(ready.config)
        for line in [f"model: {sizes.parameters:,} parameters", *ready.notes(), f"device: {device}", checked]:
            tables.say(line, console)
        engine = Engine(ready, device, model, optimizer_for(model, recipe))
        done = _resume(engine, console)
        steps = recipe.training.steps
        if done >= steps:
            tables.say(f"all {done} steps are done; choose another `out` to train from the start", console)
        elif done:
            tables.say(f"resuming after step {done} of {steps}", console)
        logs = Metrics(out, recipe.watch, first_step=done)
        bounds = rows[0].bounds
        per_token = forecast.flops(sizes, bounds.diff().tolist()) / int(bounds[-1])
        peak = forecast.peak_flops(device)
        progress = metrics.Progress(console, steps=steps, flops_per_token=per_token, peak_flops=peak)
        try:
            _run_steps(engine, logs, first_step=done, progress=progress)
        finally:
            progress.close()
        _write_final(engine)
        figure = metrics.draw(out)
        drawn = f"figure: {figure}" if figure else "figure: none, matplotlib is missing; pip install matplotlib"
        tables.say(f"model: {out / 'final'}\n{drawn}", console)
    return out / "final"


def _resume(engine: Engine, console: Console) -> int:
    """Load the latest undamaged checkpoint, if there is one; return how many steps are done.

    Damaged ones are renamed. Raises RunError if none is whole.
    """
    folders = checkpoint.finished(engine.ready.out)
    for folder in folders:
        if damage := checkpoint.damage(folder):
            if folder == folders[-1]:
                raise RunError(f"{damage}, and there is no other checkpoint; delete {folder.parent} to start over")
            aside = folder.with_name(f"damaged-{folder.name}")  # so that training can save that step again
            shutil.rmtree(aside, ignore_errors=True)
            folder.replace(aside)
            tables.say(f"{damage}; it is now {aside.name}, and training resumes from the checkpoint before", console)
            continue
        checkpoint.load(folder, model=engine.model, optimizer=engine.optimizer)
        step: int = store.read_json(folder / RECORD)["step"]
        return step
    return 0


def _run_steps(engine: Engine, logs: Metrics, *, first_step: int, progress: metrics.Progress) -> None:
    """Train from `first_step` (steps done so far) to the end; checkpoints and validations as the recipe says."""
    recipe = engine.ready.recipe

    def measure(step: int) -> None:
        rows = engine.ready.held_out_rows
        if rows is not None:
            with autocast(recipe, engine.device):
                found = held_out.measure(engine.model, rows, most=recipe.held_out.rows, device=engine.device)
            logs.held_out(step, found)

    if first_step == 0:
        measure(0)
    for number, batches in _prefetched(engine, first_step):
        done = _step(engine, logs, number, batches)
        logs.step(done)
        progress.show(done)
        is_last = number == recipe.training.steps
        if is_last or number % recipe.held_out.every_steps == 0:
            measure(number)
        if is_last or number % recipe.checkpoints.every_steps == 0:
            logs.flush()
            _save(engine, number)


def _prefetched(engine: Engine, first_step: int) -> Iterator[tuple[int, list[Batch]]]:
    """Yield each step's number and micro batches; a thread reads those of the next step while one is computed."""
    rows, plan, steps = engine.ready.rows, engine.ready.plan, engine.ready.recipe.training.steps

    def read(number: int) -> list[Batch]:
        batches = [flat([rows[row] for row in numbers.tolist()]) for numbers in plan.micro_batches(number - 1)]
        if engine.device.type != "cuda":
            return batches
        return [
            {name: one.pin_memory() if isinstance(one, torch.Tensor) else one for name, one in batch.items()}
            for batch in batches
        ]

    # One thread is enough: rows are mapped from disk, and a step takes longer than reading its rows.
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = None
        for number in range(first_step + 1, steps + 1):
            batches = (coming or reader.submit(read, number)).result()
            coming = reader.submit(read, number + 1) if number < steps else None
            yield number, batches


def _step(engine: Engine, logs: Metrics, number: int, batches: Sequence[Batch]) -> TrainedStep:
    started, training = time.perf_counter(), engine.ready.recipe.training
    torch.manual_seed(engine.ready.recipe.seed * 1_000_003 + number * 1009)  # of dropout
    lr = training.lr_at(number)
    for group in engine.optimizer.param_groups:
        group["lr"] = lr
    # Divided by the tokens of the whole step, so micro-batches of different lengths add up to its mean.
    items = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
    total = torch.zeros((), device=engine.device)
    for batch in batches:
        with autocast(engine.ready.recipe, engine.device):
            part = engine.model(**on_device(batch, engine.device), num_items_in_batch=items).loss
        part.backward()
        total += part.detach()
    loss, tokens = float(total), sum(batch["labels"].shape[1] for batch in batches)
    norm = float(torch.nn.utils.clip_grad_norm_(engine.model.parameters(), training.clip or float("inf")))
    if reason := logs.fault(number, loss, norm):
        if broken := not_finite(engine.model):
            reason += f", and the weight {broken} is not finite"
        engine.optimizer.zero_grad(set_to_none=True)
        _save(engine, number - 1, reason=reason)
        raise RunError(
            f"{reason}; stopped before the weights were updated, checkpoint of step {number - 1} saved in "
            f"{engine.ready.out / checkpoint.FOLDER}; {metrics.STOPPED_ADVICE}"
        )
    engine.optimizer.step()
    engine.optimizer.zero_grad(set_to_none=True)
    return TrainedStep(number, loss, norm, lr, tokens, time.perf_counter() - started)


def _save(engine: Engine, step: int, *, reason: str | None = None) -> None:
    """Write a checkpoint of `step` steps done, and remove old ones."""
    parts = {"model": engine.model, "optimizer": engine.optimizer, "tokenizer": engine.ready.tokenizer}
    checkpoint.save(engine.ready.out, step, **parts, stopped_because=reason)
    checkpoint.remove_old(engine.ready.out, keep_last=engine.ready.recipe.checkpoints.keep_last)


def _write_final(engine: Engine) -> None:
    """Write `final/`: the weights in the precision they were trained for, adapters merged, ready for vLLM and lm-eval."""
    model = engine.model
    if hasattr(model, "peft_config"):
        model = model.merge_and_unload()
    dtype = torch.bfloat16 if engine.ready.recipe.training.precision == "bf16" else torch.float32
    with checkpoint.new_folder(engine.ready.out / "final") as work:
        rounded = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
        checkpoint.write_model(work, model=model, weights=rounded, tokenizer=engine.ready.tokenizer)
        config = store.read_json(work / "config.json")  # save_pretrained wrote the precision of the weights in memory
        store.write_json(work / "config.json", config | {"dtype": str(dtype).removeprefix("torch.")})
