"""Loop: training on one device, from a recipe to a finished model: by our own loop, or conversations by TRL's SFTTrainer.

In:  a training recipe.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/, final/, loss.svg; of TRL its own checkpoints and logs.

Only one process at a time trains in a folder, and training resumes from its last checkpoint. Rows, learning rate and random numbers
of a step depend on its number, so a killed training resumes bit for bit (on a CPU with the same number of threads).
A checkpoint, such as `checkpoints/step-000050`, is a folder that `from_pretrained` loads, float32, with two more files:
`optimizer.pt`, and `trainer.json`, written last, with the step and every file's hash. It gets its name when all of it is on the
disk, so a kill leaves the checkpoints before it untouched.

TRL trains on the rows of our own loop, in the same order, with a loss on the answers alone. TRL's own answer masks need a
chat template with `{% generation %}`; ours need one that only appends. Attention is nextlong's, without T × T masks.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train import forecast, metrics
from nextlong.train import model as models
from nextlong.train.attention import compile_layers
from nextlong.train.emit import trainer_arguments
from nextlong.train.loss import IGNORED
from nextlong.train.model import RECORD, Prepared, prepare
from nextlong.train.recipe import (
    ENGINE_KEYS,
    TrainRecipe,
    check_supported,
    micro_batches,
)
from nextlong.train.rows import flat, on_device
from nextlong.train.sizes import Sizes, flops, sizes_of

CHECKPOINTS: Final = "checkpoints"
_OPTIMIZER: Final = "optimizer.pt"
_SEARCHED_ROWS: Final = 16  # for one of several documents
_Batch = dict[str, Any]  # what `flat` makes of the rows of a micro batch


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    logging.disable_progress_bar()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 or recipe.hardware.count > 1:
        setting = (
            f"WORLD_SIZE={processes}"
            if processes > 1
            else f"hardware.count={recipe.hardware.count}"
        )
        cure = "use --engine torchtitan for several, or set hardware.count=1 and start one process"
        raise RecipeError(
            f"{setting}: nextlong's own loop trains on one device; {cure}"
        )
    out, steps = Path(recipe.out).expanduser(), recipe.training.steps
    with store.locked(out), models.explained_memory_errors(recipe):
        ready, device = prepare(recipe), models.accelerator()
        ready.begin(resumes=bool(checkpoints_in(out)))
        rows = ready.rows
        first_rows = (rows[row] for row in range(min(len(rows), _SEARCHED_ROWS)))
        is_packed = recipe.training.micro_batch_rows > 1 or any(
            len(row.bounds) > 2 for row in first_rows
        )
        model = models.make_model(recipe, ready.config, is_packed=is_packed)
        model = model.to(device)
        sizes = sizes_of(ready.config)
        checked = models.check_model(model, recipe, device=device, is_packed=is_packed)
        for line in [
            f"model: {sizes.parameters:,} parameters",
            *ready.notes(),
            f"device: {device}",
            checked,
        ]:
            tables.say(line, console)
        training = _Training(ready, device, model, models.optimizer_for(model, recipe))
        done = training.resume(console)
        if done >= steps:
            tables.say(
                f"all {done} steps are done; choose another `out` to train from the start",
                console,
            )
        elif done:
            tables.say(f"resuming after step {done} of {steps}", console)
        logs = metrics.Metrics(out, recipe.watch, first_step=done)
        peak = forecast.peak_flops(device)
        with metrics.shown_progress(console, steps=steps, peak_flops=peak) as show:
            training.run_steps(logs, first_step=done, sizes=sizes, show=show)
        training.write_final()
        figure = metrics.draw(out)
        drawn = (
            f"figure: {figure}"
            if figure
            else "figure: none, matplotlib is missing; pip install matplotlib"
        )
        tables.say(f"model: {out / 'final'}\n{drawn}", console)
    return out / "final"


@dataclass
class _Training:
    """The prepared data, the model and its optimizer."""

    ready: Prepared
    device: torch.device
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer

    def resume(self, console: Console) -> int:
        """Load the latest whole checkpoint, renaming damaged ones; return the steps done. Raises RunError if none is whole."""
        for folder in (folders := checkpoints_in(self.ready.out)):
            damage = None
            try:
                record = store.read_json(folder / RECORD)
            except RunError as error:
                damage = str(error)
            else:
                hashes = store.hash_folder(folder)
                if altered := [
                    name
                    for name, xxh3 in record["files"].items()
                    if hashes.get(name) != xxh3
                ]:
                    damage = f"{folder / altered[0]} is missing or was altered since it was saved"
            if damage is None:
                self._load(folder)
                return int(record["step"])
            if folder == folders[-1]:
                raise RunError(
                    f"{damage}, and there is no other checkpoint; delete {folder.parent} to start over"
                )
            aside = folder.with_name(
                f"damaged-{folder.name}"
            )  # so that training can save that step again
            shutil.rmtree(aside, ignore_errors=True)
            folder.replace(aside)
            tables.say(
                f"{damage}; it is now {aside.name}, and training resumes from the checkpoint before",
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
        """Train from `first_step` (steps done so far) to the end; checkpoints and validations as the recipe says.

        `show` is called with each step and its operations.
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
                logs.flush()
                self.save(number)

    def _measure(self, logs: metrics.Metrics, step: int) -> None:
        if (rows := self.ready.held_out_rows) is not None:
            with models.autocast(self.ready.recipe, self.device):
                most = self.ready.recipe.held_out.rows
                logs.held_out(
                    step,
                    metrics.measure(self.model, rows, most=most, device=self.device),
                )

    def _prefetched(self, first_step: int) -> Iterator[tuple[int, list[_Batch]]]:
        """Yield each step's number and micro batches; a thread reads those of the next step while one is computed."""
        rows, steps = self.ready.rows, self.ready.recipe.training.steps

        def read(number: int) -> list[_Batch]:
            numbers = self.ready.micro_batches(number - 1).tolist()
            batches = [flat([rows[row] for row in at_once]) for at_once in numbers]
            if self.device.type == "cuda":
                for batch in batches:
                    batch |= {
                        name: one.pin_memory()
                        for name, one in batch.items()
                        if isinstance(one, torch.Tensor)
                    }
            return batches

        # One thread is enough: rows are mapped from disk, and a step takes longer than reading its rows.
        with ThreadPoolExecutor(max_workers=1) as reader:
            coming = None
            for number in range(first_step + 1, steps + 1):
                batches = (coming or reader.submit(read, number)).result()
                coming = reader.submit(read, number + 1) if number < steps else None
                yield number, batches

    def _step(
        self, logs: metrics.Metrics, number: int, batches: Sequence[_Batch]
    ) -> metrics.TrainedStep:
        started, recipe, training = (
            time.perf_counter(),
            self.ready.recipe,
            self.ready.recipe.training,
        )
        torch.manual_seed(recipe.seed * 1_000_003 + number * 1009)  # of dropout
        lr = training.lr_at(number)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Divided by the tokens of the whole step, so micro-batches of different lengths add up to its mean.
        items = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            with models.autocast(recipe, self.device):
                part = self.model(
                    **on_device(batch, self.device), num_items_in_batch=items
                ).loss
            part.backward()
            total += part.detach()
        loss, tokens = float(total), sum(batch["labels"].shape[1] for batch in batches)
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), training.clip or float("inf")
            )
        )
        if reason := logs.fault(number, loss, norm):
            if broken := models.not_finite(self.model):
                reason += f", and the weight {broken} is not finite"
            self.optimizer.zero_grad(set_to_none=True)
            self.save(number - 1, stopped_because=reason)
            saved = f"checkpoint of step {number - 1} saved in {self.ready.out / CHECKPOINTS}"
            raise RunError(
                f"{reason}; stopped before the weights were updated, {saved}; {metrics.STOPPED_ADVICE}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return metrics.TrainedStep(
            number, loss, norm, lr, tokens, time.perf_counter() - started
        )

    def save(self, step: int, *, stopped_because: str | None = None) -> None:
        """Write the checkpoint of `step` steps done, then remove old ones and what a kill left half written or half removed.

        Raises RunError if the disk fails; earlier checkpoints are kept.
        """
        folder = self.ready.out / CHECKPOINTS / f"step-{step:06d}"
        if (record := folder / RECORD).exists():
            with explained(
                folder
            ):  # training resumed from it and stopped before the next step: only the reason is new
                store.write_json(
                    record,
                    store.read_json(record) | {"stopped_because": stopped_because},
                )
        else:
            with _new_folder(folder) as work:
                self._write_model(work, self.model, self.model.state_dict())
                with (work / _OPTIMIZER).open("wb") as file:
                    torch.save(self.optimizer.state_dict(), file)
                files = store.hash_folder(work)
                store.write_json(
                    work / RECORD,
                    {"step": step, "stopped_because": stopped_because, "files": files},
                )
        for path in checkpoints_in(self.ready.out)[
            self.ready.recipe.checkpoints.keep_last :
        ]:
            path.replace(
                path.with_name(f".{path.name}.old.tmp")
            )  # a kill while deleting leaves no half checkpoint
        for path in folder.parent.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    def _write_model(
        self, folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor]
    ) -> None:
        """Write weights, config and tokenizer as transformers does."""
        # safetensors refuses tensors that share memory; `from_pretrained` ties them again.
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        model.save_pretrained(
            folder,
            state_dict={
                name: tensor for name, tensor in weights.items() if name not in tied
            },
        )
        models.write_rope_keys(folder)
        if self.ready.tokenizer is not None:
            self.ready.tokenizer.save_pretrained(folder)

    def _load(self, checkpoint: Path) -> None:
        """Restore weights and optimizer states."""
        weights: dict[str, Tensor] = {}
        for path in sorted(checkpoint.glob("*model*.safetensors")):
            weights |= load_file(path)
        if hasattr(
            self.model, "peft_config"
        ):  # PEFT saves adapters without the name that they have in the model
            rename = re.compile(r"(lora_[AB])\.weight$")
            weights = {
                rename.sub(r"\1.default.weight", name): tensor
                for name, tensor in weights.items()
            }
        self.model.load_state_dict(weights, strict=False)
        self.optimizer.load_state_dict(
            torch.load(checkpoint / _OPTIMIZER, weights_only=True, mmap=True)
        )

    def write_final(self) -> None:
        """Write `final/`: the weights in the precision they were trained for, adapters merged, ready for vLLM and lm-eval."""
        model = (
            self.model.merge_and_unload()
            if hasattr(self.model, "peft_config")
            else self.model
        )
        name = (
            "bfloat16" if self.ready.recipe.training.precision == "bf16" else "float32"
        )
        with _new_folder(self.ready.out / "final") as work:
            rounded = {
                key: tensor.to(getattr(torch, name))
                for key, tensor in model.state_dict().items()
            }
            self._write_model(work, model, rounded)
            path = (
                work / "config.json"
            )  # in which save_pretrained wrote the precision of the weights in memory
            store.write_json(path, store.read_json(path) | {"dtype": name})


def _flops(batches: Sequence[_Batch], sizes: Sizes) -> float:
    """Return the operations of training on batches, whose rows may differ in their documents."""
    total = 0.0
    for batch in batches:
        ends = batch["document_bounds"]
        lengths = [last - first for first, last in pairwise(ends)]
        total += flops(sizes, lengths)
    return total


def checkpoints_in(out: Path) -> list[Path]:
    """Return the checkpoints, that of the highest step first."""
    checkpoints = (
        path
        for path in (out / CHECKPOINTS).glob("step-[0-9]*")
        if (path / RECORD).exists()
    )
    return sorted(checkpoints, key=lambda path: int(path.name[5:]), reverse=True)


@contextmanager
def _new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `final` at the end, whole or not at all. Raises RunError if the disk fails."""
    work = final.with_name(f".{final.name}.tmp")
    with explained(final):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            yield work
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        publish(work, final)


def publish(work: Path, final: Path) -> None:
    """Sync a folder to the disk, rename it to `final`, and only then delete what had that name before."""
    for path in (*work.rglob("*"), work):
        store.sync(path)
    replaced = final.with_name(".work-replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.replace(replaced)
    work.replace(final)
    store.sync(final.parent)
    store.sync(work.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def explained(where: Path) -> Iterator[None]:
    """Turn errors of the disk, also those that safetensors reports as text, into a RunError with the fix."""
    with store.explained(where):
        try:
            yield
        except SafetensorError as error:
            code = re.search(r"os error (\d+)|code: (\d+)", str(error))
            if code is None:
                raise
            number = int(code[1] or code[2])
            raise OSError(number, os.strerror(number), str(where)) from None


def fine_tune(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a fine-tuning on conversations with TRL; return the folder of the finished model."""
    if importlib.util.find_spec("trl") is None:
        raise RecipeError("--engine trl needs trl; pip install 'nextlong[trl]'")
    if recipe.data.chat is None or recipe.model.path is None:
        raise RecipeError(
            "--engine trl fine-tunes a model on conversations: set data.chat and model.path"
        )
    advice = "leave these at their defaults, or train with --engine nextlong"
    keys = {**ENGINE_KEYS, "attention_kernel": None, "hardware": None}
    check_supported(recipe, keys, trainer="--engine trl", advice=advice)
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from trl import SFTConfig, SFTTrainer

    out, is_first = Path(recipe.out).expanduser(), os.environ.get("RANK", "0") == "0"
    with store.locked(out) if is_first else nullcontext():
        # The last checkpoint with the file that the trainer writes last.
        whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
        last = max(
            whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None
        )
        ready = prepare(recipe)
        if is_first:
            ready.begin(resumes=last is not None)
            for line in ready.notes():
                tables.say(line, console)
        # TRL's dataset is the numbers of the rows, in the order in which the steps of nextlong's loop read them.
        numbers = np.concatenate(
            [ready.micro_batches(step).ravel() for step in range(recipe.training.steps)]
        )

        class RowsTrainer(SFTTrainer):  # type: ignore[misc]
            def create_scheduler(
                self,
                num_training_steps: int,  # noqa: ARG002
                optimizer: Any = None,
            ) -> Any:
                """Use our learning rates: transformers' own lag by one step and know no linear schedule that ends above 0."""
                self.lr_scheduler = LambdaLR(
                    optimizer or self.optimizer, recipe.training.lr_share
                )
                return self.lr_scheduler

        processes = int(os.environ.get("WORLD_SIZE", "1"))
        accumulation = micro_batches(
            recipe,
            rows_per_step=ready.rows_per_step,
            devices=processes,
            ranks_per_row=1,
        )
        # Older versions of transformers have another name for it.
        names = {field.name for field in fields(SFTConfig)}
        prefix = "activation" if "activation_checkpointing" in names else "gradient"
        checkpointing = {
            f"{prefix}_checkpointing": recipe.memory.checkpointing == "layers",
            f"{prefix}_checkpointing_kwargs": {"use_reentrant": False},
        }
        arguments = SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=recipe.training.micro_batch_rows,
            **trainer_arguments(recipe, accumulation=accumulation),
            optim="adamw_torch_fused",
            **checkpointing,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            max_length=None,
            logging_steps=1,
            report_to=[],
            use_cpu=not torch.accelerator.is_available(),
        )
        model = models.load_weights(recipe, ready.config)
        if recipe.compile == "on":
            compile_layers(model, backend=models.COMPILER)
        trainer = RowsTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"row": numbers.tolist()}),
            data_collator=lambda batch: flat([ready.rows[one["row"]] for one in batch]),
            processing_class=ready.tokenizer,
        )
        trainer.train(resume_from_checkpoint=last and str(last))
        work = out / ".work-final"
        trainer.save_model(str(work))
        if is_first:
            with explained(out):
                models.write_rope_keys(work)
                publish(work, out / "final")
    return out / "final"
