"""Facts: what every trainer's config says in its own words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.recipe import TrainRecipe


@dataclass(frozen=True)
class Facts:
    """A recipe, where its files go, and the tokens of its longest sequence and row."""

    recipe: TrainRecipe
    folder: Path
    sequence_tokens: int
    row_tokens: int

    @property
    def data(self) -> Path:
        """Where the exported data set lies."""
        return self.folder / "data"

    @property
    def rows_per_step(self) -> int:
        """Rows of all ranks in a step."""
        return max(1, self.recipe.training.tokens_per_step // self.row_tokens)

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return self.recipe.hardware.count

    @property
    def gpus_per_node(self) -> int:
        """Devices of one machine, as launch scripts have it."""
        return min(8, self.gpus)

    @property
    def nodes(self) -> int:
        """Machines."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def shared_by(self) -> int:
        """Ranks that share a row."""
        return self.recipe.hardware.ranks_per_row

    @property
    def accumulation(self) -> int:
        """Micro batches of a step."""
        return self.rows_per_step * self.shared_by // self.gpus

    def check_shares(self) -> None:
        """Raise RecipeError if the devices cannot share machines, or a step's rows, evenly."""
        if self.gpus % self.gpus_per_node:
            raise RecipeError(
                f"hardware.count={self.gpus} does not fill machines of {self.gpus_per_node} devices; use a multiple of "
                f"{self.gpus_per_node}"
            )
        if self.gpus % self.shared_by or self.rows_per_step * self.shared_by % self.gpus:
            raise RecipeError(
                f"hardware: {self.gpus} devices, {self.shared_by} a row, cannot share {self.rows_per_step} rows a step evenly; "
                "change hardware.count, hardware.ranks_per_row or training.tokens_per_step"
            )

    def architecture(self) -> Json:
        """Return config.json of the model. Raises RecipeError if it is no folder here."""
        path = Path(self.recipe.model.path or "") / "config.json"
        if not path.is_file():
            raise RecipeError(
                f"model.path={self.recipe.model.path!r}: this trainer is told the model's sizes and RoPE; name a folder here"
            )
        architecture: Json = json.loads(path.read_text(encoding="utf-8"))
        return architecture

    def llama3_scaling(self) -> Json | None:
        """Return the model's own RoPE scaling, that of Llama 3.1, if it stays. Raises RecipeError for another that would."""
        if self.recipe.model.rope_scaling == "replace":
            return None
        config = self.architecture()
        scaling = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        kind = scaling.pop("type", "default")
        kind = scaling.setdefault("rope_type", kind)
        if kind in ("default", "llama3"):
            return scaling if kind == "llama3" else None
        raise RecipeError(
            f"model.rope_scaling=keep: this trainer does not know {kind} scaling; set model.rope_scaling=replace"
        )

    def rope_base(self) -> float:
        """Return the base to train with: the recipe's, or the model's own."""
        if self.recipe.model.rope_base is not None:
            return self.recipe.model.rope_base
        config = self.architecture()
        return float(config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 10_000.0))


def shell(lines: list[str]) -> str:
    """Return a script of bash that stops at the first error, in its own folder."""
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")"', *lines]) + "\n"


def machines(facts: Facts) -> str:
    """Return the options of torchrun that say how many machines there are, and where they meet."""
    options = f"--nnodes {facts.nodes} --nproc-per-node {facts.gpus_per_node}"
    if facts.nodes > 1:
        options += ' --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?address:port of the first machine}"'
    return options


def torchrun(facts: Facts, *what: str) -> list[str]:
    """Return the lines of a torchrun command."""
    return [f"torchrun {machines(facts)} \\", *(f"    {line} \\" for line in what[:-1]), f"    {what[-1]}"]
