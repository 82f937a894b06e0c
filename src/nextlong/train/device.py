"""Device: the one device that a training uses, its optimizer, and what to do when its memory is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nextlong.errors import RecipeError, RunError
from nextlong.train.recipe import TrainRecipe


def here() -> torch.device:
    """Return the accelerator of this process, or the CPU where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device or torch.device("cpu")


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """Return the context in which the model computes: bfloat16 with float32 weights, or float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16")


def check_alone(recipe: TrainRecipe) -> None:
    """Raise RecipeError if this process is one of several, or the recipe asks for more than one device."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 or recipe.hardware.count > 1:
        asked = f"WORLD_SIZE={processes}" if processes > 1 else f"hardware.count={recipe.hardware.count}"
        raise RecipeError(
            f"{asked}: nextlong's own loop trains on one device; use --engine torchtitan for several, or set "
            "hardware.count=1 and start one process"
        )


def optimizer_for(model: Any, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Return AdamW over the parameters that are trained; norms and biases do not decay."""
    training = recipe.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": training.lr, "betas": (training.beta1, training.beta2), "eps": training.eps}
    kept = [group for group in groups if group["params"]]
    if recipe.memory.optimizer == "adamw":
        return torch.optim.AdamW(kept, **options, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError:
        raise RecipeError(
            "memory.optimizer=adamw-8bit needs bitsandbytes; pip install bitsandbytes, or set it to adamw"
        ) from None
    eight_bit: torch.optim.Optimizer = AdamW8bit(kept, **options)
    return eight_bit


@contextmanager
def explained(recipe: TrainRecipe) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the next setting to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(f"the GPU has no memory left ({str(error).split('.')[0]}); {memory_knob(recipe)}") from None
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        message = str(error).splitlines()[0][:120]
        raise RunError(f"there is no memory left ({message}); {memory_knob(recipe)}") from None


def memory_knob(recipe: TrainRecipe) -> str:
    """Return the next settings that reduce the memory of a training."""
    memory = recipe.memory
    knobs = [
        (recipe.training.micro_batch_rows > 1, "set training.micro_batch_rows=1"),
        (memory.checkpointing == "none", "set memory.checkpointing=layers"),
        (memory.checkpointing == "layers", "set memory.checkpointing=offload"),
        (memory.optimizer == "adamw", "set memory.optimizer=adamw-8bit"),
        (recipe.model.lora_rank is None, "set model.lora_rank=16"),
    ]
    open_knobs = [knob for is_open, knob in knobs if is_open]
    return "; or ".join([*open_knobs[:2], "use several GPUs: --engine torchtitan"])
