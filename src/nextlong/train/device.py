"""Device: the one device that a training uses, its optimizer and learning rates, and advice when its memory is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from nextlong.errors import RunError
from nextlong.train.recipe import Training, TrainRecipe


def accelerator() -> torch.device:
    """Return the accelerator of this process, or the CPU where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device or torch.device("cpu")


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """Return the context in which the model computes: bfloat16 with float32 weights, or float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16")


def learning_rate(step: int, training: Training) -> float:
    """Return the learning rate of step 1, 2, …: a linear warm-up, then the schedule down to `min_lr_ratio` at the last step.

    A function of the step alone, so no state of it is saved.
    """
    if step <= training.warmup_steps:
        return training.lr * step / training.warmup_steps
    done = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
    left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[training.schedule]
    return training.lr * (training.min_lr_ratio + (1 - training.min_lr_ratio) * left)


def lr_factor(training: Training) -> Callable[[int], float]:
    """Return the share of `lr` for the step after `done` steps, as PyTorch's LambdaLR takes it."""
    return lambda done: learning_rate(min(done + 1, training.steps), training) / training.lr


def optimizer_for(model: torch.nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; norms and biases do not decay."""
    training = recipe.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (training.beta1, training.beta2)
    return torch.optim.AdamW(groups, lr=training.lr, betas=betas, eps=training.eps, fused=True)


@contextmanager
def explained_memory_errors(recipe: TrainRecipe) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the next settings to change."""
    try:
        yield
    except RuntimeError as error:  # OutOfMemoryError is one; the CPU's allocator raises a plain one
        is_of_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_of_gpu and "can't allocate memory" not in str(error):
            raise
        memory, message = "GPU memory" if is_of_gpu else "memory", str(error).split(". ")[0][:120]
        raise RunError(f"out of {memory} ({message}); {memory_advice(recipe)}") from None


def memory_advice(recipe: TrainRecipe) -> str:
    """Return the next settings that reduce the memory of a training."""
    memory = recipe.memory
    settings = [
        (recipe.training.micro_batch_rows > 1, "set training.micro_batch_rows=1"),
        (memory.checkpointing == "none", "set memory.checkpointing=layers"),
        (memory.checkpointing == "layers", "set memory.checkpointing=offload"),
        (recipe.model.lora_rank is None, "set model.lora_rank=16"),
    ]
    unused = [setting for is_unused, setting in settings if is_unused]
    return "; or ".join([*unused[:2], "use several GPUs: --engine torchtitan"])
