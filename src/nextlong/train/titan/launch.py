"""Launch: train on several devices by torchtitan: one process a device, started by torchrun.

In:  a recipe; torchrun's environment variables, or none: then the processes are started here, on this machine.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/ (DCP), final/ (Hugging Face), as of the one-device engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train import metrics
from nextlong.train.emit import expressed
from nextlong.train.prepare import check_same_recipe
from nextlong.train.recipe import TrainRecipe
from nextlong.train.titan import versions

_KEYS: Final[expressed.Keys] = {
    **dict.fromkeys(
        ("data", "seed", "attention", "model.rope_base", "model.rope_scaling", "training", "watch", "checkpoints")
    ),
    **dict.fromkeys(("held_out", "memory.loss_block_tokens", "torchtitan", "compile")),
    "memory.checkpointing": ("layers", "none"),
}
_INDEX: Final = "model.safetensors.index.json"
_MACHINE: Final = 8  # devices of a machine, in commands that are shown


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Train as the recipe says, from the last checkpoint if there is one; return the folder of the finished model."""
    cure = "leave these at their defaults, or train on one device with --engine nextlong"
    expressed.check(recipe, _KEYS, trainer="--engine torchtitan", cure=cure)
    versions.interface()
    recipe = _with_local_paths(recipe)
    out = Path(recipe.out)
    if _is_finished(recipe):
        tables.say(f"all {recipe.training.steps} steps are done; choose another `out` to train from the start", console)
        return out / "final"
    if "WORLD_SIZE" in os.environ:
        _train_here(recipe)
    else:
        with store.locked(out):
            _check_same(recipe)
            if _last_save(recipe) is None:  # else the weights are trained, and torchtitan could not resume from them
                _start_processes(recipe, console)
            _finish(recipe)
        tables.say(f"model: {out / 'final'}", console)
    return out / "final"


def _start_processes(recipe: TrainRecipe, console: Console) -> None:
    import torch

    from nextlong.train.titan import parts

    count, here = recipe.hardware.count, torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if count > here:
        machines, rest = divmod(count, _MACHINE)
        shape = (
            f"--nnodes {machines} --nproc-per-node {_MACHINE}" if machines and not rest else f"--nproc-per-node {count}"
        )
        raise RecipeError(
            f"hardware.count={count} devices, and this machine has {here}; start it on each machine with: torchrun {shape} "
            "--rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 -m nextlong train RECIPE --engine torchtitan"
        )
    for line in parts.prepared(recipe.model_dump_json()).said():
        tables.say(line, console)
    kept = Path(recipe.out) / "recipe.yaml"
    store.write_text(kept, recipe.dump())
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, *torchrun, "-m", "nextlong", "train", str(kept), "--engine", "torchtitan"]
    if (status := subprocess.run(command, check=False).returncode) != 0:
        raise RunError(
            f"torchtitan stopped with exit code {status}; its messages are above, and the same command resumes"
        )


def _train_here(recipe: TrainRecipe) -> None:
    """Train as one of torchrun's processes."""
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes != recipe.hardware.count:
        raise RecipeError(
            f"hardware.count={recipe.hardware.count}, and torchrun started {processes} processes; make them equal"
        )
    out = Path(recipe.out)
    _check_same(recipe)
    if _last_save(recipe) or _is_finished(recipe):  # rank 0 may have finished it a moment ago
        if rank == 0:
            _finish(recipe)
        return
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        store.write_text(out / "recipe.yaml", recipe.dump())
    os.environ["NEXTLONG_RECIPE_JSON"] = recipe.model_dump_json()
    own = ["--module", "nextlong.train.titan.config", "--config", "nextlong"]
    from torchtitan.train import main

    sys.argv = ["torchtitan", *own, *recipe.torchtitan.options]
    main()
    if rank == 0:
        _finish(recipe)


def _with_local_paths(recipe: TrainRecipe) -> TrainRecipe:
    """Return the recipe with absolute paths, a model of the Hub downloaded. Raises RecipeError where there are no safetensors."""
    if recipe.model.path is None:
        raise RecipeError("--engine torchtitan starts from weights; set model.path instead of model.scratch")
    folder = Path(recipe.model.path).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(recipe.model.path))
        except Exception as error:
            raise RecipeError(
                f"model.path={recipe.model.path!r} is no folder, and cannot be had from the Hub ({error})"
            ) from None
    if not list(folder.glob("*.safetensors")):
        raise RecipeError(
            f"model.path={recipe.model.path!r} holds no .safetensors, which torchtitan reads; save it as safetensors"
        )
    model = recipe.model.model_copy(update={"path": str(folder.absolute())})
    return recipe.model_copy(update={"model": model, "out": str(Path(recipe.out).expanduser().absolute())})


def _is_finished(recipe: TrainRecipe) -> bool:
    out = Path(recipe.out)
    steps = metrics.read(out / metrics.STEPS) if (out / "final").is_dir() else []
    return bool(steps) and steps[-1]["step"] >= recipe.training.steps


def _check_same(recipe: TrainRecipe) -> None:
    """Raise RunError if the checkpoints in `out` are of another recipe; torchtitan's loader compares the data."""
    kept, saved = Path(recipe.out) / "recipe.yaml", Path(recipe.out) / "checkpoints"
    if kept.is_file() and list(saved.glob("step-*")):
        check_same_recipe(recipe, TrainRecipe.load(kept).trained_keys(), saved)


def _last_save(recipe: TrainRecipe) -> Path | None:
    """Return torchtitan's last checkpoint, of weights alone, if it is there; the index is what torchtitan writes last."""
    saved = Path(recipe.out) / "checkpoints" / f"step-{recipe.training.steps}"
    is_there = (saved / _INDEX).is_file() and not (saved / ".metadata").exists()
    return saved if is_there else None


def _finish(recipe: TrainRecipe) -> None:
    """Make torchtitan's last checkpoint `final/`: add config and tokenizer, rename it. Raises RunError if it is torn or missing."""
    saved, final = _last_save(recipe), Path(recipe.out) / "final"
    if saved is None:
        if not final.is_dir():
            raise RunError(
                f"torchtitan has left no weights of step {recipe.training.steps} in {final.with_name('checkpoints')}; take "
                "--checkpoint options out of torchtitan.options, then run again"
            )
        return
    from nextlong.train import checkpoint, rope
    from nextlong.train.titan import parts

    _check_whole(saved)
    ready = parts.prepared(recipe.model_dump_json())
    longest = ready.rows.longest_document
    rope.set_base(ready.config, base=recipe.model.rope_base, max_tokens=longest, scaling=recipe.model.rope_scaling)
    ready.config.dtype = "bfloat16" if recipe.training.precision == "bf16" else "float32"
    with checkpoint.explained(saved):
        ready.config.save_pretrained(saved)
        if ready.tokenizer is not None:
            ready.tokenizer.save_pretrained(saved)
        shutil.rmtree(saved / "sharded", ignore_errors=True)  # each rank's part of the same weights
        checkpoint.publish(saved, final)


def _check_whole(saved: Path) -> None:
    """Raise RunError if a shard that the index names is missing or shorter than its own header says."""
    for name in sorted(set(store.read_json(saved / _INDEX)["weight_map"].values())):
        path = saved / name
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
        except (FileNotFoundError, ValueError):
            header, size = {}, 0
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=None)
        if end is None or path.stat().st_size != 8 + size + end:
            raise RunError(
                f"{path} is missing or torn; delete {saved} and run again: training resumes from the checkpoint before"
            )
