"""Forecast: what a training takes, and whether it fits, before anything is loaded (`nextlong train RECIPE --dry-run`).

In:  a training recipe, the model's config and the lengths of the rows; no weights.
Out: memory of a device, operations and hours, and one table of machines and row lengths for both engines: nextlong's loop on
one GPU, torchtitan on several.

All bytes come from `costs.peak_memory`. For torchtitan it runs the model in bfloat16 on the tokens of one context-parallel rank;
weights, gradients and optimizer states are divided by the devices, as FSDP2 does. Hours on a GPU follow from operations at the
share of the data sheet's peak that both of the paper's trainings had, where every step waits for the rank with the longest
rows. Hours on this machine are measured, on one and two layers of the model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import torch
from rich.console import Console

from nextlong.report import tables
from nextlong.rng import rng_for
from nextlong.text import Json, counted
from nextlong.train import costs, model
from nextlong.train.costs import PeakMemory, Sizes
from nextlong.train.prepare import Prepared, prepare
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.rows import on_device, packed_batch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Model FLOP/s over peak that gives 15 h for the paper's 128K training (64 H100) and 20 h for 512K (128 H100), to within 10 %.
UTILISATION: Final = 0.195
_USABLE: Final = 0.95  # of a GPU's memory; the CUDA context and fragmentation take the rest
_MACHINES: Final = (("H200", 1), ("H100", 8), ("H100", 64))
_LENGTHS: Final = {"64K": 1 << 16, "128K": 1 << 17, "512K": 1 << 19, "1M": 1 << 20}
_ANCHORS: Final = (1 << 16, 1 << 17)  # row lengths that are run; longer ones are extrapolated linearly
_LOSS_CHUNKS: Final = 8  # torchtitan's ChunkedLossWrapper
_GATHERED_LAYERS: Final = 2  # the one that computes and the next, which FSDP2 prefetches
_SAMPLED_STEPS: Final = 200
_MOST_EPOCHS: Final = 4  # as good as new data: Muennighoff et al. 2023, Scaling Data-Constrained Language Models
_SAMPLED_ROWS: Final = 64


@dataclass(frozen=True)
class Estimate:
    """What a training takes: memory of each device, operations and seconds in all, and what the seconds are based on."""

    sizes: Sizes
    memory: PeakMemory
    flops: float
    seconds: float
    basis: str


@dataclass(frozen=True)
class Case:
    """A machine and a row length: the ranks that share a row, the memory of each GPU, and the hours of the recipe's tokens."""

    device: str
    count: int
    row_tokens: int
    ranks_per_row: int
    memory: PeakMemory
    fits: bool
    hours: float


@dataclass(frozen=True)
class Forecast:
    """The estimate of a recipe, its prepared data, and the table of machines and row lengths."""

    ready: Prepared
    estimate: Estimate
    cases: Sequence[Case]

    @property
    def tokens(self) -> int:
        """The tokens of all steps."""
        return self.ready.recipe.training.tokens_per_step * self.ready.recipe.training.steps

    @property
    def warning(self) -> str:
        """Advice before this is trained; empty if there is none."""
        if self.ready.epochs <= _MOST_EPOCHS:
            return ""
        return (
            f"the data are read {self.ready.epochs:g} times; beyond {_MOST_EPOCHS} epochs repeated data help less and less. "
            "Make more sequences, or lower training.steps"
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; memory is that of one GPU, in bytes."""
        ready = self.ready
        return {
            "rows": len(ready.rows),
            "row_tokens": ready.row_tokens,
            "epochs": ready.epochs,
            "steps": ready.recipe.training.steps,
            "tokens": self.tokens,
            **asdict(self.estimate),
            "machines": [asdict(case) for case in self.cases],
            "notes": [*ready.changes, *filter(None, [self.warning])],
        }


def forecast(recipe: TrainRecipe) -> Forecast:
    """Return the forecast of a recipe; reads the runs' index and the model's config, and no weights.

    Raises NextlongError for everything in recipe and data that training would refuse before it loads the model.
    """
    ready = prepare(recipe)
    documents = [ready.rows[row].bounds.diff().tolist() for row in range(min(len(ready.rows), _SAMPLED_ROWS))]
    return Forecast(ready, estimate(recipe, ready.config, documents), tuple(cases(recipe, ready.config)))


def estimate(recipe: TrainRecipe, config: PretrainedConfig, documents: Sequence[Sequence[int]]) -> Estimate:
    """Return the estimate for rows whose documents have these lengths, each row as likely as the other.

    Raises RecipeError if the devices cannot share a step evenly.
    """
    sizes, hardware, longest = costs.sizes_of(config), recipe.hardware, max(documents, key=sum)
    rows_per_step, ranks = max(1, recipe.training.tokens_per_step // sum(longest)), hardware.ranks_per_row
    rows_per_group = recipe.training.micro_batch_rows * micro_batches(
        recipe, rows_per_step=rows_per_step, devices=hardware.count, ranks_per_row=ranks
    )
    row_flops = [costs.flops(sizes, lengths) for lengths in documents]
    flops = sum(row_flops) / len(row_flops) * rows_per_step * recipe.training.steps
    if hardware.device == "this":
        seconds = rows_per_step * measure_row(recipe, config, documents[0]) * recipe.training.steps
        basis = "measured here, on one and two of its layers"
    else:
        # A step waits for the group of ranks with the most work: sampled steps, shape (steps, groups, rows of a group).
        shape = (_SAMPLED_STEPS, hardware.count // ranks, rows_per_group)
        sampled = rng_for(recipe.seed, "plan").choice(row_flops, size=shape)
        slowest = float(sampled.sum(axis=2).max(axis=1).mean())
        peak = costs.DEVICES[hardware.device][0] * 1e12
        seconds = slowest / ranks / (peak * UTILISATION) * recipe.training.steps
        basis = f"{UTILISATION:.1%} of peak, as in the paper's two trainings; each step waits for its longest row"
    at_once = list(longest) * recipe.training.micro_batch_rows
    if hardware.count == 1:
        memory = costs.peak_memory(recipe, config, at_once)
    else:
        memory = sharded(_on_one_rank(recipe, config, sum(at_once) // ranks), sizes, hardware.count)
    return Estimate(sizes, memory, flops, seconds, basis)


def measure_row(recipe: TrainRecipe, config: PretrainedConfig, lengths: Sequence[int]) -> float:
    """Return the seconds of training on a row here: one and two layers with random weights are timed, the rest is linear."""
    here = model.accelerator()
    bounds = [0, *accumulate(lengths)]
    batch = on_device(packed_batch(torch.randint(config.vocab_size, (1, bounds[-1])), bounds), here)

    def seconds(layers: int) -> float:
        network = costs.model_of_layers(recipe, config, layers=layers).to(here)
        times = []
        for _ in range(2):  # the first warms up
            started = time.perf_counter()
            with model.autocast(recipe, here):
                result = network(**batch).loss
            result.backward()
            if here.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times)

    one, two = seconds(1), seconds(2)
    layers: int = config.num_hidden_layers
    return one + max(two - one, 0.0) * (layers - 1)


def cases(recipe: TrainRecipe, config: PretrainedConfig) -> Iterator[Case]:
    """Yield a case of each machine and row length; of several GPUs the fewest ranks per row that fit, else the most."""
    sizes = costs.sizes_of(config)
    alone = [costs.peak_memory(recipe, config, [tokens]) for tokens in _ANCHORS]
    split = [_on_one_rank(recipe, config, tokens) for tokens in _ANCHORS]
    for name, count in _MACHINES:
        tera, gigabytes = costs.DEVICES[name]
        for tokens in _LENGTHS.values():
            rows = max(1, recipe.training.tokens_per_step // tokens)
            powers = [1 << power for power in range(count.bit_length()) if count % (1 << power) == 0]
            # Each group of ranks that shares a row needs one in every step; if none divides evenly, all devices share it.
            for ranks in [ranks for ranks in powers if rows % (count // ranks) == 0] or [count]:
                first, second = alone if count == 1 else split
                share = (tokens // ranks - _ANCHORS[0]) / (_ANCHORS[1] - _ANCHORS[0])
                held = PeakMemory(costs.interpolate(first.parts, second.parts, share), {})
                if count > 1:
                    held = sharded(held, sizes, count)
                if fits := held.total <= gigabytes * 1e9 * _USABLE:
                    break
            flops = costs.flops(sizes, [tokens]) / tokens * recipe.training.tokens_per_step * recipe.training.steps
            hours = flops / (tera * 1e12 * UTILISATION * count) / 3600
            yield Case(name, count, tokens, ranks, held, fits, hours)


def sharded(whole: PeakMemory, sizes: Sizes, devices: int) -> PeakMemory:
    """Return the memory of each of `devices` GPUs under FSDP2: float32 shards, and the layers gathered in bfloat16."""
    gathered = 2.0 * (_GATHERED_LAYERS * sizes.layer_parameters + sizes.width * sizes.vocabulary)
    shard = 4.0 * sizes.parameters / devices
    parts = {"weights": shard + gathered, "gradients": shard + gathered, "states": 2 * shard}
    return PeakMemory(parts | {"activations": whole.parts["activations"]}, whole.layer_kinds)


def _on_one_rank(recipe: TrainRecipe, config: PretrainedConfig, tokens: int) -> PeakMemory:
    """Return the memory of the model in bfloat16 on `tokens` tokens of a row, without sharding."""
    changes: Json = {"loss_block_tokens": max(1, tokens // _LOSS_CHUNKS)}
    if recipe.memory.checkpointing == "offload":
        changes |= {"checkpointing": "layers"}
    chunked = recipe.model_copy(update={"memory": recipe.memory.model_copy(update=changes)})
    return costs.peak_memory(chunked, config, [tokens], dtype=torch.bfloat16)


def show(made: Forecast, console: Console) -> None:
    """Print a forecast: facts, the table of machines, and what the table assumes."""
    for line in made.ready.notes():
        tables.say(line, console)
    tables.show_facts(facts(made), console)
    table = tables.table("Fits, GB per GPU, and hours")
    names = "GPUs, engine, row, GPUs per row, fits, GB, weights, gradients, states, activations, hours"
    for name in names.split(", "):
        table.add_column(name, justify="right")
    length_names = {tokens: name for name, tokens in _LENGTHS.items()}
    for case in made.cases:
        *parts, total = [f"{size / 1e9:.1f}" for size in (*case.memory.parts.values(), case.memory.total)]
        engine, fits = "nextlong" if case.count == 1 else "torchtitan", "yes" if case.fits else "no"
        machine = [f"{case.count} × {case.device}", engine, length_names[case.row_tokens], str(case.ranks_per_row)]
        table.add_row(*machine, fits, total, *parts, f"{case.hours:,.{0 if case.hours >= 10 else 1}f}")
    tables.show(table, console)
    memory = made.ready.recipe.memory
    for line in (
        f"Each row is one document; {made.tokens:,} tokens are trained on in all. Activation checkpointing: "
        f"{memory.checkpointing} (torchtitan: layers instead of offload).",
        f"Bytes: one step of the model on fake tensors, at {_ANCHORS[0]:,} and {_ANCHORS[1]:,} tokens; other lengths by linear "
        "extrapolation. Parts are those at the moment of the peak, when not all gradients exist. A training fits if it takes at "
        f"most {_USABLE:.0%} of the GPU's memory.",
        "torchtitan: FSDP2 shards float32 weights, gradients and AdamW states over all GPUs and gathers two layers and the output "
        f"head in bfloat16; context parallelism divides the tokens of a row; the loss is computed in {_LOSS_CHUNKS} chunks. GPUs "
        "per row: the fewest that fit, and that leave each group of GPUs whole rows of training.tokens_per_step.",
        f"Hours: {UTILISATION:.1%} of the data sheet's peak, as in the paper's two trainings. No row of this table has been run.",
    ):
        tables.say(line, console)


def facts(made: Forecast) -> list[tuple[str, str]]:
    """Return the estimate of the recipe in words, as (name, value)."""
    recipe, found = made.ready.recipe, made.estimate
    memory, hardware, training, hours = found.memory, recipe.hardware, recipe.training, found.seconds / 3600
    machine = "this machine" if hardware.device == "this" else f"{hardware.count} {hardware.device}"
    *parts, total = [f"{size / 1e9:.1f}" for size in (*memory.parts.values(), memory.total)]
    layer = ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in memory.layer_kinds.items())
    names = ("weights", "gradients", "optimizer states", "activations")
    by_part = ", ".join(f"{size} {name}" for size, name in zip(parts, names, strict=True))
    shown = [
        ("parameters", f"{found.sizes.parameters:,}"),
        ("tokens", f"{made.tokens:,} in {counted(training.steps, 'step')}"),
        ("memory", f"{total} GB per device: {by_part}"),
        ("one layer", f"{layer} in its backward pass"),
        ("operations", f"{found.flops:.2e} FLOPs, {found.flops / made.tokens:.2e} per token"),
        ("time", f"{f'{hours:.1f} h' if hours >= 1 else f'{found.seconds:.0f} s'} on {machine} ({found.basis})"),
    ]
    if hardware.device != "this" and memory.total > (available := costs.DEVICES[hardware.device][1] * 1e9):
        shown.append(("too large", f"{hardware.device} has {available / 1e9:.0f} GB; {model.memory_advice(recipe)}"))
    if made.warning:
        shown.append(("warning", made.warning))
    return shown
