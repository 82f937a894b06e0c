"""Launch: train on several devices with torchtitan: one process per device, started by torchrun.

In:  a recipe; torchrun's environment variables, or none: then the processes are started here, on this machine.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/ (DCP), final/ (Hugging Face), as by the one-device engine.

torchtitan writes the last step as Hugging Face weights: each rank its part below `step-N/sharded`, then whole files from all
parts there, then the index. `final/` is that folder with config, tokenizer and `trainer.json`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train.loop import explained, publish
from nextlong.train.metrics import STOPPED_ADVICE
from nextlong.train.model import RECORD, Prepared, write_rope_keys
from nextlong.train.recipe import ENGINE_KEYS, TrainRecipe, check_supported

_KEYS: Final = {
    **ENGINE_KEYS,
    **dict.fromkeys(("watch", "held_out", "memory.loss_block_tokens", "torchtitan")),
}
_TRIED: Final = ("0.3.0", "b5bcd76")  # a release, and a commit of main of August 2026
_INDEX: Final = "model.safetensors.index.json"


def installed_version() -> Literal["0.3", "main"]:
    """Return which interface the installed torchtitan has.

    main, since August 2026, counts tokens instead of rows, takes rows without a batch dimension and has moved its data loaders.
    Raises RecipeError where torchtitan or torch is missing or not supported.
    """
    if importlib.util.find_spec("torchtitan") is None:
        cure = "pip install torchtitan==0.3.0 beside a torch newer than 2.13"
        raise RecipeError(f"--engine torchtitan needs torchtitan; {cure}")
    if not hasattr(torch.distributed, "set_timeout"):
        lacks = "it lacks torch.distributed.set_timeout, which torchtitan calls after the first step"
        cure = "install a torch newer than 2.13 (torchtitan is developed against torch's nightly builds)"
        raise RecipeError(
            f"torch {torch.__version__} is too old for torchtitan: {lacks}; {cure}"
        )
    from torchtitan.config import TrainingConfig

    fields = set(TrainingConfig.__dataclass_fields__)
    has_new_loaders = importlib.util.find_spec("torchtitan.components.data") is not None
    if {
        "max_context_length",
        "num_tokens_per_train_step",
    } <= fields and has_new_loaders:
        return "main"
    version = _version_or_commit()
    if version.startswith("0.3.") and {"seq_len", "global_batch_size"} <= fields:
        return "0.3"
    cure = "install 0.3.0, or main with training.max_context_length (since August 2026)"
    raise RecipeError(f"torchtitan {version} is not supported; {cure}")


def _version_or_commit() -> str:
    """Return the version of the installed torchtitan, or the commit that pip installed it from."""
    try:
        installed = importlib.metadata.distribution("torchtitan")
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return "of unknown version"
    origin = json.loads(
        installed.read_text("direct_url.json") or "{}"
    )  # pip's, PEP 610
    return str(origin.get("vcs_info", {}).get("commit_id") or installed.version)


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    advice = (
        "leave these at their defaults, or train on one device with --engine nextlong"
    )
    check_supported(recipe, _KEYS, trainer="--engine torchtitan", advice=advice)
    installed_version()
    if (
        not (version := _version_or_commit()).startswith(_TRIED)
        and os.environ.get("RANK", "0") == "0"
    ):
        tables.say(
            f"torchtitan {version} has not been tested with nextlong; {' and '.join(_TRIED)} have",
            console,
        )
    recipe = _with_local_paths(recipe)
    from nextlong.train.titan.config import prepared

    ready, final = prepared(recipe.model_dump_json()), Path(recipe.out) / "final"
    if _is_finished(ready):
        tables.say(
            f"all {recipe.training.steps} steps are done; choose another `out` to train from the start",
            console,
        )
    elif "WORLD_SIZE" in os.environ:
        _train_as_rank(ready)
    else:
        with store.locked(final.parent):
            if _last_save(recipe) is None:
                _start_processes(ready, console)
            else:  # all steps are done, and torchtitan could not resume from weights alone
                ready.check_record(final.parent)
            _finish(ready)
        tables.say(f"model: {final}", console)
    return final


def _start_processes(ready: Prepared, console: Console) -> None:
    count = ready.recipe.hardware.count
    available = (
        torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    )
    if count > available:
        raise RecipeError(
            f"hardware.count={count} devices, and this machine has {available}; start it on each machine with torchrun, as for 2 "
            "machines of 8 devices: torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "
            "FIRST_MACHINE:29500 -m nextlong train RECIPE --engine torchtitan"
        )
    ready.begin(resumes=any((ready.out / "checkpoints").glob("step-*")))
    for line in ready.notes():
        tables.say(line, console)
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
        "-m",
        "nextlong",
    ]
    trains = ["train", str(ready.out / "recipe.yaml"), "--engine", "torchtitan"]
    status = subprocess.run(
        [sys.executable, *torchrun, *trains], check=False
    ).returncode
    if status != 0:
        raise RunError(
            f"torchtitan ended with exit code {status}; see its messages above; the same command resumes"
        )


def _train_as_rank(ready: Prepared) -> None:
    """Train as one of torchrun's processes."""
    recipe, rank, processes = (
        ready.recipe,
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
    )
    if processes != recipe.hardware.count:
        cure = "make them equal"
        raise RecipeError(
            f"hardware.count={recipe.hardware.count}, and torchrun started {processes} processes; {cure}"
        )
    if rank == 0:
        ready.begin(resumes=any((ready.out / "checkpoints").glob("step-*")))
    if _last_save(recipe) is None and not _is_finished(
        ready
    ):  # rank 0 may have finished it a moment ago
        if rank == 0:
            # A kill may have left parts of the last save. Parts of more ranks than now would be read as weights of this training.
            # The other ranks wait for this one before they write.
            shutil.rmtree(
                ready.out / "checkpoints" / f"step-{recipe.training.steps}",
                ignore_errors=True,
            )
        os.environ["NEXTLONG_RECIPE_JSON"] = recipe.model_dump_json()
        from torchtitan.train import main

        ours = ["--module", "nextlong.train.titan.config", "--config", "nextlong"]
        sys.argv = ["torchtitan", *ours, *recipe.torchtitan.options]
        try:
            main()
        except RuntimeError as error:
            if "not finite" not in str(
                error
            ):  # torchtitan's message for a loss of NaN, on all ranks
                raise
            raise RunError(
                f"{error}; checkpoints are of earlier steps: {STOPPED_ADVICE}"
            ) from None
    if rank == 0:
        _finish(ready)


def _with_local_paths(recipe: TrainRecipe) -> TrainRecipe:
    """Return the recipe with absolute paths, a model of the Hub downloaded. Raises RecipeError where there are no safetensors."""
    folder = Path(str(recipe.model.path)).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(str(recipe.model.path)))
        except Exception as error:
            reason = f"is not a folder, and cannot be downloaded from the Hub ({error})"
            raise RecipeError(f"model.path={recipe.model.path!r} {reason}") from None
    if not list(folder.glob("*.safetensors")):
        cure = "save it as safetensors"
        raise RecipeError(
            f"model.path={recipe.model.path!r} holds no .safetensors, which torchtitan reads; {cure}"
        )
    model = recipe.model.model_copy(update={"path": str(folder.absolute())})
    return recipe.model_copy(
        update={"model": model, "out": str(Path(recipe.out).expanduser().absolute())}
    )


def _last_save(recipe: TrainRecipe) -> Path | None:
    """Return torchtitan's last save, of weights alone, if it is complete: the index is written last."""
    saved = Path(recipe.out) / "checkpoints" / f"step-{recipe.training.steps}"
    return (
        saved
        if (saved / _INDEX).is_file() and not (saved / ".metadata").exists()
        else None
    )


def _is_finished(ready: Prepared) -> bool:
    """Return whether `final/` is of this recipe. Raises RunError if the training data have changed since."""
    final = Path(ready.recipe.out) / "final"
    if (
        not (final / RECORD).is_file()
        or store.read_json(final / RECORD)["recipe"] != ready.recipe.trained_keys()
    ):
        return False
    ready.check_record(final)
    return True


def _finish(ready: Prepared) -> None:
    """Make torchtitan's last save `final/`: add config, tokenizer and record, rename it.

    Raises RunError if a shard is missing or torn, or if there is neither the last save nor a `final/` of this recipe.
    """
    recipe, saved = ready.recipe, _last_save(ready.recipe)
    if saved is None:
        if _is_finished(ready):  # rank 0 has finished it
            return
        problem = f"torchtitan has left no weights of step {recipe.training.steps} in {recipe.out}/checkpoints"
        raise RunError(
            f"{problem}; remove --checkpoint options from torchtitan.options, then run again"
        )
    for name in sorted(set(store.read_json(saved / _INDEX)["weight_map"].values())):
        try:
            with safe_open(
                saved / name, framework="pt"
            ):  # reads the header, and compares it with the size of the file
                pass
        except (FileNotFoundError, SafetensorError):
            cure = f"delete {saved} and run again: training resumes from the checkpoint before"
            raise RunError(f"{saved / name} is missing or torn; {cure}") from None
    ready.config.dtype = (
        "bfloat16" if recipe.training.precision == "bf16" else "float32"
    )
    with explained(saved):
        ready.config.save_pretrained(saved)
        write_rope_keys(saved)
        if ready.tokenizer is not None:
            ready.tokenizer.save_pretrained(saved)
        ready.write_record(saved)
        shutil.rmtree(
            saved / "sharded", ignore_errors=True
        )  # each rank's part of the same weights
        publish(saved, Path(recipe.out) / "final")
