"""Checkpoint: everything that a training needs to resume, in a folder that `from_pretrained` loads.

`checkpoints/step-000050` has the layout of transformers, float32, and two more files: `optimizer.safetensors`, and
`trainer.json`, written last, with the step, the recipe, the data and every file's hash. The folder gets its name when all of it is
on the disk, so a kill leaves the checkpoints before it untouched.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.text import Json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FOLDER: Final = "checkpoints"
RECORD: Final = "trainer.json"
_OPTIMIZER: Final = "optimizer.safetensors"
_NAME: Final = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Progress:
    """The state of a training after `step` steps; `recent_losses` detect spikes, `recipe` and `data` another training."""

    step: int
    tokens: int
    recent_losses: list[float]
    recipe: Json
    data: str
    stopped_because: str | None = None


def finished(out: Path) -> list[Path]:
    """Return the checkpoints, that of the highest step first."""
    checkpoints = [
        path for path in (out / FOLDER).glob("step-*") if _NAME.fullmatch(path.name) and (path / RECORD).exists()
    ]
    return sorted(checkpoints, key=lambda path: int(path.name[5:]), reverse=True)


def damage(checkpoint: Path) -> str | None:
    """Return what is missing from a checkpoint or was altered since it was saved, if anything is."""
    try:
        record = store.read_json(checkpoint / RECORD)
    except RunError as error:
        return str(error)
    for name, file in record["files"].items():
        path = checkpoint / name
        if not path.exists() or path.stat().st_size != file["bytes"] or store.hash_file(path) != file["xxh3"]:
            return f"{path} is missing or was altered since it was saved"
    return None


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, so that training can save that step again; return where it is."""
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.replace(aside)


def save(
    out: Path,
    progress: Progress,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerBase | None,
    keep_last: int,
) -> None:
    """Write a checkpoint and delete those beyond the last `keep_last`.

    Raises RunError where the disk refuses; the checkpoints before it stay.
    """
    folder = out / FOLDER / f"step-{progress.step:06d}"
    if (folder / RECORD).exists():  # training resumed from it and stopped before the next step: only the reason is new
        with explained(folder):
            files = store.read_json(folder / RECORD)["files"]
            store.write_json(folder / RECORD, {"progress": asdict(progress), "files": files})
        return
    work = folder.with_name(f".{folder.name}.tmp")
    with explained(folder):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            write_model(work, model=model, weights=model.state_dict(), tokenizer=tokenizer)
            _write_optimizer(work / _OPTIMIZER, optimizer.state_dict())
            files = {}
            for path in sorted(work.iterdir()):
                _sync(path)
                files[path.name] = {"bytes": path.stat().st_size, "xxh3": store.hash_file(path)}
            store.write_json(work / RECORD, {"progress": asdict(progress), "files": files})
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        work.replace(folder)
        _sync(folder.parent)
    _prune(out, keep_last=keep_last)


def write_model(
    folder: Path,
    *,
    model: PreTrainedModel,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Write weights, config and tokenizer as transformers does."""
    # safetensors refuses tensors that share memory; `from_pretrained` ties them again.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    model.save_pretrained(folder, state_dict={name: tensor for name, tensor in weights.items() if name not in tied})
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def load(checkpoint: Path, *, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore weights and optimizer states; return the state of the training."""
    from safetensors.torch import load_file

    record = store.read_json(checkpoint / RECORD)
    weights = {
        name: tensor
        for path in sorted(checkpoint.glob("*model*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    if hasattr(model, "peft_config"):  # PEFT saves adapters without the name that they have in the model
        rename = re.compile(r"(lora_[AB])\.weight$")
        weights = {rename.sub(r"\1.default.weight", name): tensor for name, tensor in weights.items()}
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(_read_optimizer(checkpoint / _OPTIMIZER))
    return Progress(**record["progress"])


def publish(work: Path, final: Path) -> None:
    """Sync a folder to the disk, rename it to `final`, and only then delete what had that name before."""
    for path in (*work.rglob("*"), work):
        _sync(path)
    replaced = final.with_name(".work-replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.replace(replaced)
    work.replace(final)
    _sync(final.parent)
    _sync(work.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(out: Path) -> None:
    """Remove checkpoints that a kill left half written."""
    for path in (out / FOLDER).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def explained(where: Path) -> Iterator[None]:
    """Turn errors of the disk into a RunError with the fix; safetensors reports them in words."""
    from safetensors import SafetensorError

    try:
        with store.explained(where):
            try:
                yield
            except SafetensorError as error:
                code = re.search(r"os error (\d+)|code: (\d+)", str(error))
                if code is None:
                    raise
                raise OSError(int(code[1] or code[2]), os.strerror(int(code[1] or code[2])), str(where)) from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise RunError(f"{where}: the disk fails ({error.strerror}); choose another `out`") from None
        raise


def _write_optimizer(path: Path, states: Json) -> None:
    from safetensors.torch import save_file

    held = {f"{name}/{key}": value for name, state in states["state"].items() for key, value in state.items()}
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, value in held.items():
        if isinstance(value, torch.Tensor):
            # bitsandbytes' tables of 8-bit values share memory, which safetensors refuses: all but the first are copied.
            storage = value.untyped_storage().data_ptr()
            is_shared = storage in storages
            tensors[name] = value.clone(memory_format=torch.contiguous_format) if is_shared else value.contiguous()
            storages.add(storage)
    others = {name: value for name, value in held.items() if name not in tensors}  # bitsandbytes counts steps in an int
    groups = [{key: value for key, value in group.items() if key != "lr"} for group in states["param_groups"]]
    save_file(tensors, path, metadata={"param_groups": json.dumps(groups), "others": json.dumps(others)})


def _read_optimizer(path: Path) -> Json:
    from safetensors import safe_open

    state: dict[int, Json] = {}
    with safe_open(path, framework="pt") as file:
        groups = json.loads(file.metadata()["param_groups"])
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        held |= json.loads(file.metadata().get("others", "{}"))
    for name, value in held.items():
        parameter, _, key = name.rpartition("/")
        state.setdefault(int(parameter), {})[key] = value
    for group in groups:
        group["lr"] = 0.0  # set at every step
        group["betas"] = tuple(group["betas"])
    return {"state": state, "param_groups": groups}


def _prune(out: Path, *, keep_last: int) -> None:
    checkpoints = [path for path in (out / FOLDER).glob("step-*") if _NAME.fullmatch(path.name)]
    for path in sorted(checkpoints, key=lambda path: int(path.name[5:]))[:-keep_last]:
        gone = path.with_name(f".{path.name}.old.tmp")  # a kill while deleting leaves no half checkpoint
        shutil.rmtree(gone, ignore_errors=True)
        path.replace(gone)
    remove_leftovers(out)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
