"""Launch: train on several devices with torchtitan, one process per device.

In:  a recipe; torchrun's environment variables, or none: then the processes are started
     here, on this machine.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/ (DCP), final/
     (Hugging Face), as by the one-device engine.

torchtitan writes the last step as Hugging Face weights: each rank its part below
`step-N/sharded`, then whole files from all parts there, then the index. `final/` is
that folder with config, tokenizer and `trainer.json`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train.checkpoints import explained, publish
from nextlong.train.metrics import STOPPED_ADVICE
from nextlong.train.prepare import RECORD, Prepared
from nextlong.train.recipe import ENGINE_KEYS, TrainRecipe, check_supported
from nextlong.train.rope import write_rope_keys
from nextlong.train.titan.versions import TRIED, installed_version, version_or_commit

_KEYS: Final = {
    **ENGINE_KEYS,
    "watch": None,
    "held_out": None,
    "memory.loss_block_tokens": None,
    "torchtitan": None,
}
_INDEX: Final = "model.safetensors.index.json"


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    check_supported(
        recipe,
        _KEYS,
        trainer="--engine torchtitan",
        advice="leave these at their defaults, or train on one device with --engine "
        "nextlong",
    )
    installed_version()
    version = version_or_commit()
    is_first_rank = os.environ.get("RANK", "0") == "0"
    if is_first_rank and not version.startswith(TRIED):
        tables.say(
            f"torchtitan {version} has not been tested with nextlong; "
            f"{' and '.join(TRIED)} have",
            console,
        )
    recipe = _with_local_paths(recipe)
    # It imports torchtitan, which is installed as of here.
    from nextlong.train.titan.config import prepared

    ready = prepared(recipe.model_dump_json())
    final = Path(recipe.out) / "final"
    if _is_finished(ready):
        tables.say(
            f"all {recipe.training.steps} steps are done; choose another `out` to "
            "train from the start",
            console,
        )
    elif "WORLD_SIZE" in os.environ:
        _train_as_rank(ready)
    else:
        with store.locked(final.parent):
            # After all steps, torchtitan could not resume from weights alone.
            if _last_save(recipe) is None:
                _start_processes(ready, console)
            else:
                ready.check_record(final.parent)
            _finish(ready)
        tables.say(f"model: {final}", console)
    return final


def _start_processes(ready: Prepared, console: Console) -> None:
    """Start one process per device of this machine, and wait for them."""
    count = ready.recipe.hardware.count
    has_accelerator = torch.accelerator.is_available()
    available = torch.accelerator.device_count() if has_accelerator else 0
    if count > available:
        raise RecipeError(
            where="hardware.count",
            value=count,
            problem=f"is more devices than this machine has ({available})",
            fix="start it on each machine with torchrun, as for 2 machines of 8 "
            "devices: torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d "
            "--rdzv-endpoint FIRST_MACHINE:29500 -m nextlong train RECIPE --engine "
            "torchtitan",
        )
    ready.begin(resumes=_has_checkpoint(ready))
    for line in ready.notes():
        tables.say(line, console)
    # Each process runs this command again, and finds torchrun's variables.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(count)]
    recipe_file = str(ready.out / "recipe.yaml")
    command = ["-m", "nextlong", "train", recipe_file, "--engine", "torchtitan"]
    status = subprocess.run([*torchrun, *command], check=False).returncode
    if status != 0:
        raise RunError(
            where="torchtitan",
            problem=f"it ended with exit code {status}",
            fix="see its messages above; the same command resumes",
        )


def _has_checkpoint(ready: Prepared) -> bool:
    return any((ready.out / "checkpoints").glob("step-*"))


def _train_as_rank(ready: Prepared) -> None:
    """Train as one of torchrun's processes."""
    recipe = ready.recipe
    rank = int(os.environ["RANK"])
    processes = int(os.environ["WORLD_SIZE"])
    if processes != recipe.hardware.count:
        raise RecipeError(
            where="hardware.count",
            value=recipe.hardware.count,
            problem=f"differs from the {processes} processes that torchrun started",
            fix="make them equal",
        )
    if rank == 0:
        ready.begin(resumes=_has_checkpoint(ready))
    # Rank 0 may have finished it a moment ago.
    if _last_save(recipe) is None and not _is_finished(ready):
        if rank == 0:
            # A kill may have left parts of the last save. Parts of more ranks than now
            # would be read as weights of this training. The other ranks wait for this
            # one before they write.
            last_save = ready.out / "checkpoints" / f"step-{recipe.training.steps}"
            shutil.rmtree(last_save, ignore_errors=True)
        _run_torchtitan(recipe)
    if rank == 0:
        _finish(ready)


def _run_torchtitan(recipe: TrainRecipe) -> None:
    """Run torchtitan's own command in this process.

    Raises RunError where it ended at a loss that is not finite.
    """
    from torchtitan.train import main

    os.environ["NEXTLONG_RECIPE_JSON"] = recipe.model_dump_json()
    config = ["--module", "nextlong.train.titan.config", "--config", "nextlong"]
    sys.argv = ["torchtitan", *config, *recipe.torchtitan.options]
    try:
        main()
    except RuntimeError as error:
        # torchtitan's message for a loss of NaN, on all ranks.
        if "not finite" not in str(error):
            raise
        raise RunError(
            where="torchtitan",
            problem=f"{error}; all checkpoints are from earlier steps",
            fix=STOPPED_ADVICE,
        ) from None


def _with_local_paths(recipe: TrainRecipe) -> TrainRecipe:
    """Return the recipe with absolute paths, a model of the Hub downloaded.

    Raises RecipeError where there are no safetensors.
    """
    path = str(recipe.model.path)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(path))
        except Exception as error:
            raise RecipeError(
                where="model.path",
                value=repr(recipe.model.path),
                problem="is not a folder, and cannot be downloaded from the Hub "
                f"({error})",
                fix="name a folder, or another model of the Hub",
            ) from None
    if not list(folder.glob("*.safetensors")):
        raise RecipeError(
            where="model.path",
            value=repr(recipe.model.path),
            problem="holds no .safetensors, which torchtitan reads",
            fix="save it as safetensors",
        )
    model = recipe.model.model_copy(update={"path": str(folder.absolute())})
    out = Path(recipe.out).expanduser().absolute()
    return recipe.model_copy(update={"model": model, "out": str(out)})


def _last_save(recipe: TrainRecipe) -> Path | None:
    """Return torchtitan's last save, of weights alone, if it is complete.

    The index is written last.
    """
    saved = Path(recipe.out) / "checkpoints" / f"step-{recipe.training.steps}"
    is_whole = (saved / _INDEX).is_file()
    can_be_resumed = (saved / ".metadata").exists()
    return saved if is_whole and not can_be_resumed else None


def _is_finished(ready: Prepared) -> bool:
    """Return whether `final/` is of this recipe.

    Raises RunError if the training data have changed since.
    """
    final = Path(ready.recipe.out) / "final"
    record = final / RECORD
    if not record.is_file():
        return False
    if store.read_json(record)["recipe"] != ready.recipe.trained_keys():
        return False
    ready.check_record(final)
    return True


def _finish(ready: Prepared) -> None:
    """Make torchtitan's last save `final/`.

    Adds config, tokenizer and record, and renames it. Raises RunError if a shard is
    missing or torn, or if there is neither the last save nor a `final/` of this recipe.
    """
    recipe = ready.recipe
    saved = _last_save(recipe)
    if saved is None:
        # Rank 0 has finished it.
        if _is_finished(ready):
            return
        raise RunError(
            where=f"{recipe.out}/checkpoints",
            problem=f"torchtitan saved no weights of step {recipe.training.steps}",
            fix="remove --checkpoint options from torchtitan.options, then run again",
        )
    _check_shards(saved)
    is_bf16 = recipe.training.precision == "bf16"
    ready.config.dtype = "bfloat16" if is_bf16 else "float32"
    with explained(saved):
        ready.config.save_pretrained(saved)
        write_rope_keys(saved)
        if ready.tokenizer is not None:
            ready.tokenizer.save_pretrained(saved)
        ready.write_record(saved)
        # Each rank's part of the same weights.
        shutil.rmtree(saved / "sharded", ignore_errors=True)
        publish(saved, Path(recipe.out) / "final")


def _check_shards(saved: Path) -> None:
    """Raise RunError if a file of weights that the index names is missing or torn."""
    files = set(store.read_json(saved / _INDEX)["weight_map"].values())
    for name in sorted(files):
        try:
            # Opening reads the header, and compares it with the size of the file.
            with safe_open(saved / name, framework="pt"):
                pass
        except (FileNotFoundError, SafetensorError):
            raise RunError(
                where=saved / name,
                problem="it is missing or incomplete",
                fix=f"delete {saved} and run again: training resumes from the "
                "previous checkpoint",
            ) from None
