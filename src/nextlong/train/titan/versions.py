"""Versions: which torchtitan and torch are installed, and how that torchtitan names what differs between its versions.

Two interfaces are supported: that of the release 0.3.0, and that of its main branch since August 2026, which counts tokens instead
of rows, takes rows without a batch dimension and keeps its data loaders elsewhere. Any other is refused by name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from typing import Any

from nextlong.errors import RecipeError

SUPPORTED = "0.3.0, and main with training.max_context_length (since August 2026)"


@dataclass(frozen=True)
class Interface:
    """An installed torchtitan: its version, and whether it has main's token budgets instead of 0.3's batch sizes."""

    version: str
    counts_tokens: bool

    @property
    def base_loader(self) -> Any:
        """Return the class that data loaders inherit from."""
        if self.counts_tokens:
            from torchtitan.components.data.loader import BaseDataLoader
        else:
            from torchtitan.components.dataloader import BaseDataLoader
        return BaseDataLoader

    def rope(self, tokens: int) -> dict[str, int]:
        """Return the option of a RoPE config that says for how many positions it is made."""
        return {"max_context_length" if self.counts_tokens else "max_seq_len": tokens}

    def batch(self, *, row_tokens: int, micro_batch_rows: int, rows_per_step: int) -> dict[str, int]:
        """Return the options of the training config that say how long rows are, and how many a rank and a step have."""
        if self.counts_tokens:
            return {
                "max_context_length": row_tokens,
                "num_tokens_per_microbatch_per_dp_rank": micro_batch_rows * row_tokens,
                "num_tokens_per_train_step": rows_per_step * row_tokens,
            }
        return {"seq_len": row_tokens, "local_batch_size": micro_batch_rows, "global_batch_size": rows_per_step}


def interface() -> Interface:
    """Return the installed torchtitan's. Raises RecipeError where it or torch is missing or not supported."""
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
    version = _version()
    from torchtitan.config import TrainingConfig

    fields = set(TrainingConfig.__dataclass_fields__)
    if {"max_context_length", "num_tokens_per_train_step"} <= fields and importlib.util.find_spec(
        "torchtitan.components.data"
    ):
        return Interface(version, counts_tokens=True)
    if version.startswith("0.3.") and {"seq_len", "global_batch_size"} <= fields:
        return Interface(version, counts_tokens=False)
    raise RecipeError(f"torchtitan {version} is not supported; install {SUPPORTED}")


def _version() -> str:
    try:
        return importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return "of unknown version"
