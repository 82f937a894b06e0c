"""Loop: training on one device, from a recipe to a finished model.

In:  a training recipe.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/, final/, loss.svg.

Only one process at a time trains in a folder, and training resumes from its last
checkpoint. Rows, learning rate and random numbers of a step depend on its number, so a
killed training resumes bit for bit (on a CPU with the same number of threads). A
checkpoint, such as `checkpoints/step-000050`, is a folder that `from_pretrained` loads,
float32, with two more files: `optimizer.pt`, and `trainer.json`, written last, with the
step and every file's hash. It gets its name when all of it is on the disk, so a kill
leaves the checkpoints before it untouched.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train import forecast, metrics
from nextlong.train import model as models
from nextlong.train.check import check_model
from nextlong.train.checkpoints import (
    CHECKPOINTS,
    checkpoints_in,
    explained,
    new_folder,
)
from nextlong.train.loss import IGNORED
from nextlong.train.prepare import RECORD, Prepared, prepare
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rope import write_rope_keys
from nextlong.train.rows import flat, on_device
from nextlong.train.sizes import Sizes, flops, sizes_of

_OPTIMIZER: Final = "optimizer.pt"
_SEARCHED_ROWS: Final = 16  # for one of several documents
_Batch = dict[str, Any]  # what `flat` makes of the rows of a micro-batch


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    logging.disable_progress_bar()
    _check_one_device(recipe)
    out = Path(recipe.out).expanduser()
    with store.locked(out), models.explained_memory_errors(recipe):
        ready = prepare(recipe)
        device = models.accelerator()
        ready.begin(resumes=bool(checkpoints_in(out)))
        # Compiled layers of rows of one document have another graph.
        is_packed = _holds_packed_rows(ready)
        model = models.make_model(recipe, ready.config, is_packed=is_packed)
        model = model.to(device)
        sizes = sizes_of(ready.config)
        checked = check_model(model, recipe, device=device, is_packed=is_packed)
        tables.say(f"model: {sizes.parameters:,} parameters", console)
        for line in [*ready.notes(), f"device: {device}", checked]:
            tables.say(line, console)

        training = _Training(
            ready=ready,
            device=device,
            model=model,
            optimizer=models.optimizer_for(model, recipe),
        )
        done = training.resume(console)
        steps = recipe.training.steps
        if done >= steps:
            tables.say(
                f"all {done} steps are done; choose another `out` to train from the "
                "start",
                console,
            )
        elif done:
            tables.say(f"resuming after step {done} of {steps}", console)
        logs = metrics.Metrics(out, recipe.watch, first_step=done)
        peak_flops = forecast.peak_flops(device)
        progress = metrics.shown_progress(console, steps=steps, peak_flops=peak_flops)
        with progress as show:
            training.run_steps(logs, first_step=done, sizes=sizes, show=show)
        training.write_final()
        figure = metrics.draw(out)
        if figure is None:
            figure_line = "figure: none, matplotlib is missing; pip install matplotlib"
        else:
            figure_line = f"figure: {figure}"
        tables.say(f"model: {out / 'final'}\n{figure_line}", console)
    return out / "final"


def _check_one_device(recipe: TrainRecipe) -> None:
    """Raise RecipeError where several devices or processes are asked for."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        where = "WORLD_SIZE"
        count = processes
    else:
        where = "hardware.count"
        count = recipe.hardware.count
    if count > 1:
        raise RecipeError(
            where=where,
            value=count,
            problem="is for several devices, and nextlong's own loop trains on one",
            fix="use --engine torchtitan for several, or set hardware.count=1 and "
            "start one process",
        )


def _holds_packed_rows(ready: Prepared) -> bool:
    """Tell whether rows, as they are computed, hold several documents."""
    if ready.recipe.training.micro_batch_rows > 1:
        return True
    count = min(len(ready.rows), _SEARCHED_ROWS)
    return any(len(ready.rows[row].bounds) > 2 for row in range(count))


@dataclass
class _Training:
    """The prepared data, the model and its optimizer."""

    ready: Prepared
    device: torch.device
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer

    def resume(self, console: Console) -> int:
        """Load the latest whole checkpoint; return the steps done.

        Damaged ones are renamed. Raises RunError if none is whole.
        """
        folders = checkpoints_in(self.ready.out)
        for folder in folders:
            damage = _damage_of(folder)
            if damage is None:
                self._load(folder)
                return int(store.read_json(folder / RECORD)["step"])
            if folder == folders[-1]:
                raise RunError(
                    where=damage.where,
                    problem=f"{damage.problem}, and there is no other checkpoint",
                    fix=f"delete {folder.parent} to start over",
                )
            # So that training can save that step again.
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.replace(aside)
            tables.say(
                f"{damage.where}: {damage.problem}; it is now {aside.name}, and "
                "training resumes from the checkpoint before",
                console,
            )
        return 0

    def run_steps(
        self,
        logs: metrics.Metrics,
        *,
        first_step: int,
        sizes: Sizes,
        show: Callable[[metrics.TrainedStep, float], None],
    ) -> None:
        """Train from `first_step` (steps done so far) to the end.

        Checkpoints and validations come as the recipe says. `show` is called with each
        step and its operations.
        """
        recipe = self.ready.recipe
        if first_step == 0:
            self._measure(logs, 0)
        for number, batches in self._prefetched(first_step):
            done = self._step(logs, number, batches)
            logs.step(done)
            show(done, _flops(batches, sizes))
            is_last = number == recipe.training.steps
            if is_last or number % recipe.held_out.every_steps == 0:
                self._measure(logs, number)
            if is_last or number % recipe.checkpoints.every_steps == 0:
                # A checkpoint is never ahead of the logs.
                logs.flush()
                self.save(number)

    def _measure(self, logs: metrics.Metrics, step: int) -> None:
        rows = self.ready.held_out_rows
        if rows is None:
            return
        recipe = self.ready.recipe
        with models.autocast(recipe, self.device):
            measured = metrics.measure(
                self.model, rows, max_rows=recipe.held_out.rows, device=self.device
            )
        logs.held_out(step, measured)

    def _prefetched(self, first_step: int) -> Iterator[tuple[int, list[_Batch]]]:
        """Yield each step's number and micro-batches.

        A thread reads those of the next step while one is computed. One is enough: rows
        are mapped from disk, and a step takes longer than reading its rows.
        """
        steps = self.ready.recipe.training.steps
        with ThreadPoolExecutor(max_workers=1) as reader:
            coming = None
            for number in range(first_step + 1, steps + 1):
                if coming is None:
                    coming = reader.submit(self._read_batches, number)
                batches = coming.result()
                coming = None
                if number < steps:
                    coming = reader.submit(self._read_batches, number + 1)
                yield number, batches

    def _read_batches(self, number: int) -> list[_Batch]:
        """Return the micro-batches of a step, in memory that a GPU copies from fast."""
        batches = []
        for numbers in self.ready.micro_batches(number - 1).tolist():
            batch = flat([self.ready.rows[row] for row in numbers])
            if self.device.type == "cuda":
                for name, column in batch.items():
                    if isinstance(column, Tensor):
                        batch[name] = column.pin_memory()
            batches.append(batch)
        return batches

    def _step(
        self, logs: metrics.Metrics, number: int, batches: Sequence[_Batch]
    ) -> metrics.TrainedStep:
        began = time.perf_counter()
        recipe = self.ready.recipe
        training = recipe.training
        torch.manual_seed(recipe.seed * 1_000_003 + number * 1009)  # of dropout
        lr = training.lr_at(number)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Divided by the tokens of the whole step, so that micro-batches of different
        # lengths add up to its mean.
        items = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            inputs = on_device(batch, self.device)
            with models.autocast(recipe, self.device):
                part = self.model(**inputs, num_items_in_batch=items).loss
            part.backward()
            total += part.detach()
        loss = float(total)
        # Without clipping only the norm is computed.
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), training.clip or float("inf")
        )
        grad_norm = float(norm)
        fault = logs.fault(number, loss, grad_norm)
        if fault:
            raise self._stopped(number, fault)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return metrics.TrainedStep(
            step=number,
            loss=loss,
            grad_norm=grad_norm,
            lr=lr,
            tokens=sum(batch["labels"].shape[1] for batch in batches),
            seconds=time.perf_counter() - began,
        )

    def _stopped(self, number: int, fault: str) -> RunError:
        """Save a checkpoint before a step that must not be taken; return the error."""
        broken = models.not_finite(self.model)
        if broken:
            fault += f", and the weight {broken} is not finite"
        self.optimizer.zero_grad(set_to_none=True)
        self.save(number - 1, stopped_because=fault)
        folder = self.ready.out / CHECKPOINTS
        return RunError(
            where=f"step {number}",
            problem=f"{fault}; stopped before the weights were updated, checkpoint of "
            f"step {number - 1} saved in {folder}",
            fix=metrics.STOPPED_ADVICE,
        )

    def save(self, step: int, *, stopped_because: str | None = None) -> None:
        """Write the checkpoint of `step` steps done, then remove old ones.

        Also removed is what a kill left half written or half removed. Raises RunError
        if the disk fails; earlier checkpoints are kept.
        """
        folder = self.ready.out / CHECKPOINTS / f"step-{step:06d}"
        record = folder / RECORD
        if record.exists():
            # Training resumed from it and stopped before the next step: only the reason
            # is new.
            with explained(folder):
                known = store.read_json(record)
                store.write_json(record, {**known, "stopped_because": stopped_because})
        else:
            with new_folder(folder) as work:
                self._write_checkpoint(work, step, stopped_because)
        checkpoints = checkpoints_in(self.ready.out)
        for path in checkpoints[self.ready.recipe.checkpoints.keep_last :]:
            # A kill while deleting leaves no half checkpoint.
            path.replace(path.with_name(f".{path.name}.old.tmp"))
        for path in folder.parent.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    def _write_checkpoint(
        self, folder: Path, step: int, stopped_because: str | None
    ) -> None:
        self._write_model(folder, self.model, self.model.state_dict())
        with (folder / _OPTIMIZER).open("wb") as file:
            torch.save(self.optimizer.state_dict(), file)
        record = {
            "step": step,
            "stopped_because": stopped_because,
            "files": store.hash_folder(folder),
        }
        store.write_json(folder / RECORD, record)

    def _write_model(
        self, folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor]
    ) -> None:
        """Write weights, config and tokenizer as transformers does."""
        # safetensors refuses tensors that share memory; `from_pretrained` ties them
        # again.
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        untied = {name: tensor for name, tensor in weights.items() if name not in tied}
        model.save_pretrained(folder, state_dict=untied)
        write_rope_keys(folder)
        if self.ready.tokenizer is not None:
            self.ready.tokenizer.save_pretrained(folder)

    def _load(self, checkpoint: Path) -> None:
        """Restore weights and optimizer states."""
        weights: dict[str, Tensor] = {}
        for path in sorted(checkpoint.glob("*model*.safetensors")):
            weights |= load_file(path)
        if hasattr(self.model, "peft_config"):
            # PEFT saves adapters without the name that they have in the model.
            name_in_file = re.compile(r"(lora_[AB])\.weight$")
            weights = {
                name_in_file.sub(r"\1.default.weight", name): tensor
                for name, tensor in weights.items()
            }
        # Tied weights are in the file once, adapters without their base.
        self.model.load_state_dict(weights, strict=False)
        states = torch.load(checkpoint / _OPTIMIZER, weights_only=True, mmap=True)
        self.optimizer.load_state_dict(states)

    def write_final(self) -> None:
        """Write `final/`, ready for vLLM and lm-eval.

        Weights have the precision they were trained for, adapters are merged.
        """
        model = self.model
        if hasattr(model, "peft_config"):
            model = model.merge_and_unload()
        is_bf16 = self.ready.recipe.training.precision == "bf16"
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        with new_folder(self.ready.out / "final") as work:
            weights = model.state_dict()
            rounded = {name: tensor.to(dtype) for name, tensor in weights.items()}
            self._write_model(work, model, rounded)
            # save_pretrained wrote the precision of the weights in memory.
            path = work / "config.json"
            config = store.read_json(path)
            config["dtype"] = str(dtype).removeprefix("torch.")
            store.write_json(path, config)


def _damage_of(checkpoint: Path) -> RunError | None:
    """Return what is wrong with a checkpoint, by its record and its files' hashes."""
    path = checkpoint / RECORD
    fix = "delete the checkpoint"
    try:
        record = store.read_json(path)
    except RunError:
        return RunError(where=path, problem="it is damaged", fix=fix)
    hashes = store.hash_folder(checkpoint)
    for name, xxh3 in record["files"].items():
        if hashes.get(name) != xxh3:
            return RunError(
                where=checkpoint / name,
                problem="it is missing or was altered since it was saved",
                fix=fix,
            )
    return None


def _flops(batches: Sequence[_Batch], sizes: Sizes) -> float:
    """Return the operations of training on batches.

    Their rows may differ in their documents.
    """
    total = 0.0
    for batch in batches:
        bounds = batch["document_bounds"]
        lengths = [end - start for start, end in pairwise(bounds)]
        total += flops(sizes, lengths)
    return total
