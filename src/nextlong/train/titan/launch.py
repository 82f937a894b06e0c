"""Launch: train on several devices with torchtitan: one process per device, started by torchrun.

In:  a recipe; torchrun's environment variables, or none: then the processes are started here, on this machine.
Out: `out/`: recipe.yaml, metrics.jsonl, held_out.jsonl, checkpoints/ (DCP), final/ (Hugging Face), as by the one-device engine.

torchtitan writes the last step as Hugging Face weights: each rank its part below `step-N/sharded`, then whole files from all parts
there, then the index. `final/` is that folder with config and tokenizer, and `trainer.json` with the recipe and data it is of.
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

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.report import tables
from nextlong.train.prepare import check_same_data, check_same_recipe
from nextlong.train.recipe import SupportedKeys, TrainRecipe, check_supported

_KEYS: Final[SupportedKeys] = {
    **dict.fromkeys(
        ("data", "seed", "attention", "model.rope_base", "model.rope_scaling", "training", "watch", "checkpoints")
    ),
    **dict.fromkeys(("held_out", "memory.loss_block_tokens", "torchtitan", "compile")),
    "memory.checkpointing": ("layers", "none"),
}
_INDEX: Final = "model.safetensors.index.json"
_GPUS_PER_NODE: Final = 8  # in commands that are shown


def installed_version() -> Literal["0.3", "main"]:
    """Return which interface the installed torchtitan has.

    main, since August 2026, counts tokens instead of rows, takes rows without a batch dimension and has moved its data loaders.
    Raises RecipeError where torchtitan or torch is missing or not supported.
    """
    if importlib.util.find_spec("torchtitan") is None:
        raise RecipeError(
            "--engine torchtitan needs torchtitan; pip install torchtitan==0.3.0 beside a torch newer than 2.13"
        )
    import torch

    if not hasattr(torch.distributed, "set_timeout"):
        raise RecipeError(
            f"torch {torch.__version__} is too old for torchtitan: it lacks torch.distributed.set_timeout, which torchtitan calls "
            "after the first step; install a torch newer than 2.13 (torchtitan is developed against torch's nightly builds)"
        )
    from torchtitan.config import TrainingConfig

    fields = set(TrainingConfig.__dataclass_fields__)
    has_new_loaders = importlib.util.find_spec("torchtitan.components.data") is not None
    if {"max_context_length", "num_tokens_per_train_step"} <= fields and has_new_loaders:
        return "main"
    try:
        version = importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        version = "of unknown version"
    if version.startswith("0.3.") and {"seq_len", "global_batch_size"} <= fields:
        return "0.3"
    raise RecipeError(
        f"torchtitan {version} is not supported; install 0.3.0, or main with training.max_context_length (since August 2026)"
    )


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Run or resume a training; return the folder of the finished model."""
    advice = "leave these at their defaults, or train on one device with --engine nextlong"
    check_supported(recipe, _KEYS, trainer="--engine torchtitan", advice=advice)
    installed_version()
    recipe = _with_local_paths(recipe)
    out = Path(recipe.out)
    if _is_finished(recipe):
        tables.say(f"all {recipe.training.steps} steps are done; choose another `out` to train from the start", console)
    elif "WORLD_SIZE" in os.environ:
        _train_as_rank(recipe)
    else:
        with store.locked(out):
            _check_checkpoints(recipe)
            if _last_save(recipe) is None:  # otherwise all steps are done, and torchtitan could not resume from them
                _start_processes(recipe, console)
            _finish(recipe)
        tables.say(f"model: {out / 'final'}", console)
    return out / "final"


def _start_processes(recipe: TrainRecipe, console: Console) -> None:
    import torch

    from nextlong.train.titan import parts

    count = recipe.hardware.count
    available = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if count > available:
        nodes, rest = divmod(count, _GPUS_PER_NODE)
        shape = f"--nnodes {nodes} --nproc-per-node {_GPUS_PER_NODE}" if nodes and not rest else ""
        raise RecipeError(
            f"hardware.count={count} devices, and this machine has {available}; start it on each machine with: torchrun "
            f"{shape or f'--nproc-per-node {count}'} --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 -m nextlong train "
            "RECIPE --engine torchtitan"
        )
    for line in parts.prepared(recipe.model_dump_json()).notes():
        tables.say(line, console)
    kept = Path(recipe.out) / "recipe.yaml"
    store.write_text(kept, recipe.dump())
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, *torchrun, "-m", "nextlong", "train", str(kept), "--engine", "torchtitan"]
    if (status := subprocess.run(command, check=False).returncode) != 0:
        raise RunError(
            f"torchtitan stopped with exit code {status}; its messages are above, and the same command resumes"
        )


def _train_as_rank(recipe: TrainRecipe) -> None:
    """Train as one of torchrun's processes."""
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes != recipe.hardware.count:
        raise RecipeError(
            f"hardware.count={recipe.hardware.count}, and torchrun started {processes} processes; make them equal"
        )
    out = Path(recipe.out)
    _check_checkpoints(recipe)
    if _last_save(recipe) is None and not _is_finished(recipe):  # rank 0 may have finished it a moment ago
        if rank == 0:
            out.mkdir(parents=True, exist_ok=True)
            store.write_text(out / "recipe.yaml", recipe.dump())
            # A kill may have left parts of the last save. Parts of more ranks than now would be read as weights of this training.
            # The other ranks wait for this one before they write.
            shutil.rmtree(_last_step_folder(recipe), ignore_errors=True)
        os.environ["NEXTLONG_RECIPE_JSON"] = recipe.model_dump_json()
        from torchtitan.train import main

        ours = ["--module", "nextlong.train.titan.config", "--config", "nextlong"]
        sys.argv = ["torchtitan", *ours, *recipe.torchtitan.options]
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
                f"model.path={recipe.model.path!r} is not a folder, and cannot be downloaded from the Hub ({error})"
            ) from None
    if not list(folder.glob("*.safetensors")):
        raise RecipeError(
            f"model.path={recipe.model.path!r} holds no .safetensors, which torchtitan reads; save it as safetensors"
        )
    model = recipe.model.model_copy(update={"path": str(folder.absolute())})
    return recipe.model_copy(update={"model": model, "out": str(Path(recipe.out).expanduser().absolute())})


def _check_checkpoints(recipe: TrainRecipe) -> None:
    """Raise RunError if the checkpoints in `out` are of another recipe; torchtitan's loader compares the data."""
    kept, saved = Path(recipe.out) / "recipe.yaml", Path(recipe.out) / "checkpoints"
    if kept.is_file() and list(saved.glob("step-*")):
        check_same_recipe(recipe, TrainRecipe.load(kept).trained_keys(), saved)


def _last_step_folder(recipe: TrainRecipe) -> Path:
    return Path(recipe.out) / "checkpoints" / f"step-{recipe.training.steps}"


def _last_save(recipe: TrainRecipe) -> Path | None:
    """Return torchtitan's last save, of weights alone, if it is complete: the index is written last."""
    saved = _last_step_folder(recipe)
    return saved if (saved / _INDEX).is_file() and not (saved / ".metadata").exists() else None


def _is_finished(recipe: TrainRecipe) -> bool:
    """Return whether `final/` is of this recipe. Raises RunError if the training data have changed since."""
    from nextlong.train import checkpoint
    from nextlong.train.titan import parts

    final = Path(recipe.out) / "final"
    if not (final / checkpoint.RECORD).is_file():
        return False
    record = store.read_json(final / checkpoint.RECORD)
    if record["recipe"] != recipe.trained_keys():
        return False
    check_same_data(parts.prepared(recipe.model_dump_json()).data, record["data"], final)
    return True


def _finish(recipe: TrainRecipe) -> None:
    """Make torchtitan's last save `final/`: add config, tokenizer and record, rename it.

    Raises RunError if a shard is missing or torn, or if there is neither the last save nor a `final/` of this recipe.
    """
    saved, final = _last_save(recipe), Path(recipe.out) / "final"
    if saved is None:
        if _is_finished(recipe):  # rank 0 has finished it
            return
        raise RunError(
            f"torchtitan has left no weights of step {recipe.training.steps} in {final.with_name('checkpoints')}; remove "
            "--checkpoint options from torchtitan.options, then run again"
        )
    from nextlong.train import checkpoint
    from nextlong.train.model import set_rope_base
    from nextlong.train.titan import parts

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
    ready = parts.prepared(recipe.model_dump_json())
    set_rope_base(ready.config, recipe, max_tokens=ready.rows.longest_document)
    ready.config.dtype = "bfloat16" if recipe.training.precision == "bf16" else "float32"
    with checkpoint.explained(saved):
        ready.config.save_pretrained(saved)
        if ready.tokenizer is not None:
            ready.tokenizer.save_pretrained(saved)
        store.write_json(saved / checkpoint.RECORD, {"recipe": recipe.trained_keys(), "data": ready.data})
        shutil.rmtree(saved / "sharded", ignore_errors=True)  # each rank's part of the same weights
        checkpoint.publish(saved, final)
