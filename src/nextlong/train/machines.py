"""Machines: whether a training fits on 1 × H200, 8 × H100 and 64 × H100, at rows of 64K to 1M tokens, and how long it takes.

In:  a training recipe and the model's config.
Out: one table for both engines: nextlong's loop on one GPU, torchtitan on several.

All bytes come from `memory.forecast`. For torchtitan it runs the model in bfloat16 on the tokens of one context-parallel rank;
weights, gradients and optimizer states are divided by the devices, as FSDP2 does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from rich.console import Console

from nextlong.plain_data import Json
from nextlong.report import tables
from nextlong.train import costs, memory
from nextlong.train.recipe import TrainRecipe

# Model FLOP/s over peak that gives 15 h for the paper's 128K training (64 H100) and 20 h for 512K (128 H100), to within 10 %.
UTILISATION: Final = 0.195
USABLE: Final = 0.95  # of a GPU's memory; the CUDA context and fragments take the rest
MACHINES: Final = (("H200", 1), ("H100", 8), ("H100", 64))
LENGTHS: Final = {"64K": 1 << 16, "128K": 1 << 17, "512K": 1 << 19, "1M": 1 << 20}
_ANCHORS: Final = (1 << 16, 1 << 17)  # rows that are run; longer ones follow in a straight line
_LOSS_CHUNKS: Final = 8  # torchtitan's ChunkedLossWrapper
_GATHERED_LAYERS: Final = 2  # the one that computes and the next, which FSDP2 prefetches


@dataclass(frozen=True)
class Case:
    """One machine and row length: the ranks that share a row, bytes of each GPU by part, and the hours of the recipe's tokens."""

    device: str
    count: int
    row_tokens: int
    ranks_per_row: int
    memory: memory.Memory
    fits: bool
    hours: float

    def as_json(self) -> Json:
        """Return everything as a plain dictionary; memory in bytes."""
        return asdict(self) | {"memory": parts_of(self.memory)}


def parts_of(held: memory.Memory) -> dict[str, float]:
    """Return the bytes by part, and in total."""
    parts = {part: getattr(held, part) for part in ("weights", "gradients", "states", "activations")}
    return parts | {"total": held.total}


def cases(recipe: TrainRecipe, config: Any) -> Iterator[Case]:
    """Yield a case of each machine and row length; of several GPUs the fewest ranks per row that fit, else the most."""
    sizes = costs.sizes_of(config)
    alone = [memory.forecast(_one_row(recipe), config, [tokens]) for tokens in _ANCHORS]
    split = [split_forecast(recipe, config, tokens) for tokens in _ANCHORS]
    for device, count in MACHINES:
        tera, gigabytes = costs.DEVICES[device]
        for tokens in LENGTHS.values():
            for ranks in _ranks_per_row(recipe, count, tokens):
                share = _on_line(alone if count == 1 else split, tokens // ranks)
                held = share if count == 1 else sharded(share, sizes, count)
                if fits := held.total <= gigabytes * 1e9 * USABLE:
                    break
            flops = costs.flops(sizes, [tokens]) / tokens * recipe.training.tokens_per_step * recipe.training.steps
            hours = flops / (tera * 1e12 * UTILISATION * count) / 3600
            yield Case(device, count, tokens, ranks, held, fits, hours)


def split_forecast(recipe: TrainRecipe, config: Any, tokens: int) -> memory.Memory:
    """Return the forecast of the model in bfloat16 on `tokens` tokens of a row, without sharding."""
    blocks: Json = {"loss_block_tokens": max(1, tokens // _LOSS_CHUNKS)}
    if recipe.memory.checkpointing == "offload":
        blocks |= {"checkpointing": "layers"}
    one_row = _one_row(recipe)
    chunked = one_row.model_copy(update={"memory": recipe.memory.model_copy(update=blocks)})
    return memory.forecast(chunked, config, [tokens], dtype=torch.bfloat16)


def sharded(whole: memory.Memory, sizes: costs.Sizes, devices: int) -> memory.Memory:
    """Return the bytes of each of `devices` GPUs under FSDP2: float32 shards, and the layers gathered in bfloat16."""
    gathered = _GATHERED_LAYERS * sizes.layer_parameters + sizes.width * sizes.vocabulary
    return memory.Memory(
        weights=4.0 * sizes.parameters / devices + 2.0 * gathered,
        gradients=4.0 * sizes.parameters / devices + 2.0 * gathered,
        states=8.0 * sizes.parameters / devices,
        activations=whole.activations,
        kinds=whole.kinds,
    )


def _one_row(recipe: TrainRecipe) -> TrainRecipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"micro_batch_rows": 1})})


def _on_line(anchors: list[memory.Memory], tokens: int) -> memory.Memory:
    """Return the forecast at `tokens`, on the line through those at _ANCHORS."""
    share = (tokens - _ANCHORS[0]) / (_ANCHORS[1] - _ANCHORS[0])
    first, second = (parts_of(one) for one in anchors)
    parts = {part: first[part] + (second[part] - first[part]) * share for part in first if part != "total"}
    return memory.Memory(**parts, kinds={})


def _ranks_per_row(recipe: TrainRecipe, count: int, tokens: int) -> list[int]:
    """Return 1, 2, 4, … that divide the devices and leave each group of ranks a row in every step; all devices if none does."""
    rows = max(1, recipe.training.tokens_per_step // tokens)
    powers = [1 << power for power in range(count.bit_length()) if count % (1 << power) == 0]
    return [ranks for ranks in powers if rows % (count // ranks) == 0] or [count]


def show(found: list[Case], recipe: TrainRecipe, console: Console) -> None:
    """Print the table, and below it what it assumes."""
    table = tables.table("Fits, GB of each GPU, and hours")
    for name in (
        "GPUs",
        "engine",
        "row",
        "GPUs a row",
        "fits",
        "GB",
        "weights",
        "gradients",
        "states",
        "activations",
        "hours",
    ):
        table.add_column(name, justify="right")
    named = {tokens: name for name, tokens in LENGTHS.items()}
    for case in found:
        parts = [f"{size / 1e9:.1f}" for size in parts_of(case.memory).values()]
        engine = "nextlong" if case.count == 1 else "torchtitan"
        where = [f"{case.count} × {case.device}", engine, named[case.row_tokens], str(case.ranks_per_row)]
        table.add_row(*where, "yes" if case.fits else "no", parts[-1], *parts[:-1], f"{case.hours:,.0f}")
    tables.show(table, console)
    for line in assumptions(recipe):
        tables.say(line, console)


def assumptions(recipe: TrainRecipe) -> list[str]:
    """Return what the table assumes."""
    tokens = recipe.training.tokens_per_step * recipe.training.steps
    return [
        f"Each row is one document; {tokens:,} tokens are trained on in all. Activation checkpointing: "
        f"{recipe.memory.checkpointing}; optimizer: {recipe.memory.optimizer} (torchtitan: adamw, layers instead of offload).",
        f"Bytes: one step of the model on fake tensors, at {_ANCHORS[0]:,} and {_ANCHORS[1]:,} tokens; other lengths on the line "
        f"through both. A training fits if it takes at most {USABLE:.0%} of the GPU's memory.",
        "torchtitan: FSDP2 shards float32 weights, gradients and AdamW states over all GPUs and gathers two layers and the output "
        "head in bfloat16; context parallelism divides the tokens of a row; the loss is computed in 8 chunks.",
        f"Hours: {UTILISATION:.1%} of the data sheet's peak, as the paper's two trainings had. No row of this table has been run.",
    ]
