"""Checkpoint: everything that a training needs to resume, in a folder that `from_pretrained` loads.

`checkpoints/step-000050` has the layout of transformers, float32, and two more files: `optimizer.pt`, and `trainer.json`,
written last, with the step and every file's hash. The folder gets its name when all of it is on the disk, so a kill leaves the
checkpoints before it untouched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.train.model import RECORD

FOLDER: Final = "checkpoints"
_OPTIMIZER: Final = "optimizer.pt"


def finished(out: Path) -> list[Path]:
    """Return the checkpoints, that of the highest step first."""
    checkpoints = (path for path in (out / FOLDER).glob("step-[0-9]*") if (path / RECORD).exists())
    return sorted(checkpoints, key=lambda path: int(path.name[5:]), reverse=True)


def damage(checkpoint: Path) -> str | None:
    """Describe a file that is missing from a checkpoint or was altered since it was saved; None if there is none."""
    try:
        files = store.read_json(checkpoint / RECORD)["files"]
    except RunError as error:
        return str(error)
    hashes = store.hash_folder(checkpoint)
    altered = (checkpoint / name for name, xxh3 in files.items() if hashes.get(name) != xxh3)
    return next((f"{path} is missing or was altered since it was saved" for path in altered), None)


def save(
    out: Path,
    step: int,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerBase | None,
    stopped_because: str | None = None,
) -> None:
    """Write the checkpoint of `step` steps done. Raises RunError if the disk fails; earlier checkpoints are kept."""
    folder = out / FOLDER / f"step-{step:06d}"
    if (folder / RECORD).exists():  # training resumed from it and stopped before the next step: only the reason is new
        with explained(folder):
            store.write_json(folder / RECORD, store.read_json(folder / RECORD) | {"stopped_because": stopped_because})
        return
    with new_folder(folder) as work:
        write_model(work, model=model, weights=model.state_dict(), tokenizer=tokenizer)
        with (work / _OPTIMIZER).open("wb") as file:
            torch.save(optimizer.state_dict(), file)
        files = store.hash_folder(work)
        store.write_json(work / RECORD, {"step": step, "stopped_because": stopped_because, "files": files})


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
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


def write_model(
    folder: Path, *, model: PreTrainedModel, weights: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Write weights, config and tokenizer as transformers does."""
    # safetensors refuses tensors that share memory; `from_pretrained` ties them again.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    model.save_pretrained(folder, state_dict={name: tensor for name, tensor in weights.items() if name not in tied})
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def load(checkpoint: Path, *, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Restore weights and optimizer states."""
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("*model*.safetensors")):
        weights |= load_file(path)
    if hasattr(model, "peft_config"):  # PEFT saves adapters without the name that they have in the model
        rename = re.compile(r"(lora_[AB])\.weight$")
        weights = {rename.sub(r"\1.default.weight", name): tensor for name, tensor in weights.items()}
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(torch.load(checkpoint / _OPTIMIZER, weights_only=True, mmap=True))


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


def remove_old(out: Path, *, keep_last: int) -> None:
    """Remove all checkpoints but the last ones, and those that a kill left half written or half removed."""
    for path in finished(out)[keep_last:]:
        path.replace(path.with_name(f".{path.name}.old.tmp"))  # a kill while deleting leaves no half checkpoint
    for path in (out / FOLDER).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def explained(where: Path) -> Iterator[None]:
    """Turn errors of the disk, also those that safetensors reports as text, into a RunError with the fix."""
    from safetensors import SafetensorError

    with store.explained(where):
        try:
            yield
        except SafetensorError as error:
            code = re.search(r"os error (\d+)|code: (\d+)", str(error))
            if code is None:
                raise
            number = int(code[1] or code[2])
            raise OSError(number, os.strerror(number), str(where)) from None
