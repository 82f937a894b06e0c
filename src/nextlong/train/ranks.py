"""Ranks: the processes that train together, by accelerate: one, DDP, or FSDP2.

The numbers do not depend on how many there are: each step reads the same rows, and each token counts once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from nextlong.errors import RecipeError, RunError
from nextlong.train.recipe import TrainRecipe


def accelerator_for(recipe: TrainRecipe) -> Any:
    """Return the accelerator of this process; under torchrun or `accelerate launch` it joins the others."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState

    if AcceleratorState._shared_state:  # of an earlier training in this process
        AcceleratorState._reset_state()
        GradientState._reset_state()
    _refuse_shared_rows()
    has_gpu = torch.accelerator.is_available()
    sharding = None
    if recipe.memory.shard == "fsdp2":
        sharding = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=True,
            auto_wrap_policy="transformer_based_wrap",
            cpu_offload=recipe.memory.offload == "cpu",
            cpu_ram_efficient_loading=False,
            mixed_precision_policy=_precisions(recipe),
        )
    accelerator = Accelerator(
        cpu=not has_gpu,
        mixed_precision="bf16" if recipe.training.precision == "bf16" else "no",
        fsdp_plugin=sharding,
    )
    if sharding is not None and accelerator.num_processes == 1:
        raise RecipeError(
            "memory.shard=fsdp2 shares weights among ranks, and there is one; use torchrun, or set it to none"
        )
    return accelerator


def _precisions(recipe: TrainRecipe) -> Any:
    """Compute in bfloat16, sum gradients and return the loss in float32; accelerate's own policy rounds all three."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if recipe.training.precision != "bf16":
        return None
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)


def _refuse_shared_rows() -> None:
    """Raise RecipeError if `accelerate launch` was told to share rows among ranks."""
    shared = [kind for kind in ("CP", "SP") if int(os.environ.get(f"PARALLELISM_CONFIG_{kind}_SIZE", "1")) > 1]
    if shared:
        raise RecipeError(
            f"accelerate was launched with parallelism_config_{shared[0].lower()}_size above 1, which drops the document mask in "
            "silence; launch without it, or hand over to an engine that keeps it: --emit torchtitan, axolotl, prolong or megatron"
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
        return torch.optim.AdamW(kept, **options)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError:
        raise RecipeError(
            "memory.optimizer=adamw-8bit needs bitsandbytes; pip install bitsandbytes, or set it to adamw"
        ) from None
    eight_bit: torch.optim.Optimizer = AdamW8bit(kept, **options)
    return eight_bit


def without_sync(accelerator: Any, model: Any, *, is_last: bool) -> AbstractContextManager[Any]:
    """Let ranks exchange gradients once a step, at its last micro batch."""
    from contextlib import nullcontext

    return nullcontext() if is_last else accelerator.no_sync(model)


def total(accelerator: Any, value: float) -> float:
    """Return the sum of the ranks' values."""
    if accelerator.num_processes == 1:
        return value
    held = torch.tensor(value, dtype=torch.float64 if accelerator.device.type != "mps" else torch.float32)
    return float(accelerator.reduce(held.to(accelerator.device), reduction="sum"))


@contextmanager
def explained(recipe: TrainRecipe, accelerator: Any) -> Iterator[None]:
    """Turn no memory, and a rank that is gone, into errors that say what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(f"the GPU has no memory left ({str(error).split('.')[0]}); {memory_knob(recipe)}") from None
    except RuntimeError as error:
        message = str(error)
        if "can't allocate memory" in message:
            raise RunError(
                f"there is no memory left ({message.splitlines()[0][:120]}); {memory_knob(recipe)}"
            ) from None
        if accelerator.num_processes > 1 and any(word in message for word in ("Connection", "peer", "gloo", "NCCL")):
            raise RunError(
                f"rank {accelerator.process_index} lost another rank ({message.splitlines()[0][:120]}); look for the first error "
                "above, then start all ranks again: training goes on from the last checkpoint"
            ) from None
        raise


def memory_knob(recipe: TrainRecipe) -> str:
    """Return the next setting that makes a training smaller."""
    memory = recipe.memory
    knobs = [
        (recipe.training.micro_batch_rows > 1, "set training.micro_batch_rows=1"),
        (memory.checkpointing == "none", "set memory.checkpointing=layers"),
        (memory.checkpointing == "layers", "set memory.checkpointing=offload"),
        (memory.shard == "none", "share weights among GPUs: torchrun with memory.shard=fsdp2"),
        (memory.offload == "none", "set memory.offload=cpu"),
        (memory.optimizer == "adamw", "set memory.optimizer=adamw-8bit"),
        (recipe.model.lora_rank is None and memory.shard == "none", "set model.lora_rank=16"),
    ]
    open_knobs = [knob for is_open, knob in knobs if is_open]
    return "; or ".join(open_knobs[:2]) if open_knobs else "use shorter rows, a smaller model or a larger GPU"
