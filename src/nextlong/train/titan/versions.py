"""Versions: which interface the installed torchtitan has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from typing import Final, Literal

import torch

from nextlong.errors import RecipeError

# A release, and a commit of main of August 2026.
TRIED: Final = ("0.3.0", "b5bcd76")


def installed_version() -> Literal["0.3", "main"]:
    """Return which interface the installed torchtitan has.

    main, since August 2026, counts tokens instead of rows, takes rows without a batch
    dimension and has moved its data loaders. Raises RecipeError where torchtitan or
    torch is missing or not supported.
    """
    if importlib.util.find_spec("torchtitan") is None:
        raise RecipeError(
            where="--engine torchtitan",
            problem="torchtitan is not installed",
            fix="pip install torchtitan==0.3.0 beside a torch newer than 2.13",
        )
    if not hasattr(torch.distributed, "set_timeout"):
        raise RecipeError(
            where=f"torch {torch.__version__}",
            problem="it is too old for torchtitan: it lacks "
            "torch.distributed.set_timeout, which torchtitan calls after the first "
            "step",
            fix="install a torch newer than 2.13 (torchtitan is developed against "
            "torch's nightly builds)",
        )
    from torchtitan.config import TrainingConfig

    # Their interfaces are told apart, because main calls itself 0.2.2.
    fields = set(TrainingConfig.__dataclass_fields__)
    counts_tokens = {"max_context_length", "num_tokens_per_train_step"} <= fields
    has_new_loaders = importlib.util.find_spec("torchtitan.components.data") is not None
    if counts_tokens and has_new_loaders:
        return "main"
    counts_rows = {"seq_len", "global_batch_size"} <= fields
    version = version_or_commit()
    if version.startswith("0.3.") and counts_rows:
        return "0.3"
    raise RecipeError(
        where=f"torchtitan {version}",
        problem="it is not supported",
        fix="install 0.3.0, or main with training.max_context_length (since August "
        "2026)",
    )


def version_or_commit() -> str:
    """Return the installed version, or the commit that pip installed it from."""
    try:
        installed = importlib.metadata.distribution("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        # A checkout on PYTHONPATH.
        return "of unknown version"
    # Written by pip for what is not from an index (PEP 610).
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    return str(commit or installed.version)
