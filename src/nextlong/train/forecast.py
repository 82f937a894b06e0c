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

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch
from rich.console import Console

from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.rng import rng_for
from nextlong.text import Json, counted
from nextlong.train import costs, device, model
from nextlong.train.costs import PeakMemory, Sizes
from nextlong.train.prepare import run_tokenizer_of, vocabulary_of
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRows, plan_batches, source_of

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
_MOST_MEASURED_SECONDS: Final = 10.0  # of each model that is timed
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
    """The estimate of a recipe, the rows that it is for, and notes on how the model is changed."""

    recipe: TrainRecipe
    config: PretrainedConfig
    estimate: Estimate
    rows: int
    row_tokens: int
    epochs: float
    notes: Sequence[str]

    @property
    def warning(self) -> str:
        """Advice before this is trained; empty if there is none."""
        if self.epochs <= _MOST_EPOCHS:
            return ""
        return (
            f"the data are read {self.epochs:g} times; beyond {_MOST_EPOCHS} epochs repeated data help less and less. "
            "Make more sequences, or lower training.steps"
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; memory is that of one GPU, in bytes."""
        estimate, training = self.estimate, self.recipe.training
        return {
            "parameters": estimate.sizes.parameters,
            "rows": self.rows,
            "row_tokens": self.row_tokens,
            "epochs": self.epochs,
            "steps": training.steps,
            "tokens": training.tokens_per_step * training.steps,
            "memory_bytes": _parts(estimate.memory),
            "layer_bytes": dict(estimate.memory.layer_kinds),
            "machines": [asdict(case) | {"memory": _parts(case.memory)} for case in cases(self.recipe, self.config)],
            "flops": estimate.flops,
            "seconds": estimate.seconds,
            "basis": estimate.basis,
            "notes": [*self.notes, *filter(None, [self.warning])],
        }


def forecast(recipe: TrainRecipe) -> Forecast:
    """Return the forecast of a recipe; reads the runs' index and the model's config, and no weights.

    Raises RecipeError or CorpusError for steps that training would refuse.
    """
    run_tokenizer = run_tokenizer_of(recipe.data)
    config = model.config_of(recipe, vocabulary=vocabulary_of(run_tokenizer))
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer) if recipe.data.chat else None
    rows = TrainingRows(source_of(recipe.data, split="train", tokenizer=tokenizer), attention=recipe.attention)
    batches = plan_batches(recipe, rows=len(rows), row_tokens=recipe.data.pack or rows.source.row_tokens)
    notes = model.set_rope_base(config, recipe, max_tokens=rows.longest_document)
    documents = [rows[row].bounds.diff().tolist() for row in range(min(len(rows), _SAMPLED_ROWS))]
    row_tokens = max(sum(lengths) for lengths in documents)
    epochs = math.ceil(batches.epoch(recipe.training.steps) * 100) / 100
    return Forecast(recipe, config, estimate(recipe, config, documents), len(rows), row_tokens, epochs, notes)


def estimate(recipe: TrainRecipe, config: PretrainedConfig, documents: Sequence[Sequence[int]]) -> Estimate:
    """Return the estimate for rows whose documents have these lengths, each row as likely as the other.

    Raises RecipeError if the devices cannot share a step evenly.
    """
    sizes, hardware = costs.sizes_of(config), recipe.hardware
    longest = max(documents, key=sum)
    # Groups of `ranks_per_row` devices share a row; each group needs the same number of rows in a step.
    rows_per_step = max(1, recipe.training.tokens_per_step // sum(longest))
    groups, rest = divmod(hardware.count, hardware.ranks_per_row)
    if rest or rows_per_step % groups:
        raise RecipeError(
            f"hardware: {hardware.count} devices, {hardware.ranks_per_row} a row, cannot share {rows_per_step} rows a step evenly; "
            "change hardware.count, hardware.ranks_per_row or training.tokens_per_step"
        )
    row_flops = [costs.flops(sizes, lengths) for lengths in documents]
    flops = sum(row_flops) / len(row_flops) * rows_per_step * recipe.training.steps
    if hardware.device == "this":
        seconds = rows_per_step * measure_row(recipe, config, documents[0]) * recipe.training.steps
        basis = "measured here, on one and two of its layers"
    else:
        # A step waits for the group of ranks with the most work: sampled steps, shape (steps, groups, rows of a group).
        shape = (_SAMPLED_STEPS, groups, rows_per_step // groups)
        sampled = rng_for(recipe.seed, "plan").choice(row_flops, size=shape)
        slowest = float(sampled.sum(axis=2).max(axis=1).mean())
        peak = costs.DEVICES[hardware.device][0] * 1e12
        seconds = slowest / hardware.ranks_per_row / (peak * UTILISATION) * recipe.training.steps
        basis = f"{UTILISATION:.1%} of peak, as in the paper's two trainings; each step waits for its longest row"
    if hardware.count == 1:
        memory = costs.peak_memory(recipe, config, longest)
    else:
        memory = sharded(_on_one_rank(recipe, config, sum(longest) // hardware.ranks_per_row), sizes, hardware.count)
    return Estimate(sizes, memory, flops, seconds, basis)


def measure_row(recipe: TrainRecipe, config: PretrainedConfig, lengths: Sequence[int]) -> float:
    """Return the seconds of training on a row here: one and two layers with random weights are timed, the rest is linear."""
    here = device.accelerator()
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)

    def seconds(layers: int) -> float:
        network = costs.model_of_layers(recipe, config, layers=layers, device=here)
        columns = costs.random_batch(bounds, vocabulary=config.vocab_size)
        batch = {name: one.to(here) if isinstance(one, torch.Tensor) else one for name, one in columns.items()}
        times: list[float] = []
        while not times or (sum(times) < _MOST_MEASURED_SECONDS and len(times) < 4):
            started = time.perf_counter()
            with device.autocast(recipe, here):
                result = network(**batch).loss
            result.backward()
            if here.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        timed = sorted(times[1:] or times)  # the first warms up
        return timed[len(timed) // 2]

    one, two = seconds(1), seconds(2)
    layers: int = config.num_hidden_layers
    return one + max(two - one, 0.0) * (layers - 1)


def cases(recipe: TrainRecipe, config: PretrainedConfig) -> Iterator[Case]:
    """Yield a case of each machine and row length; of several GPUs the fewest ranks per row that fit, else the most."""
    sizes = costs.sizes_of(config)
    alone = [costs.peak_memory(_one_row(recipe), config, [tokens]) for tokens in _ANCHORS]
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
    chunked = _one_row(recipe).model_copy(update={"memory": recipe.memory.model_copy(update=changes)})
    return costs.peak_memory(chunked, config, [tokens], dtype=torch.bfloat16)


def _one_row(recipe: TrainRecipe) -> TrainRecipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"micro_batch_rows": 1})})


def _parts(held: PeakMemory) -> dict[str, float]:
    return {**held.parts, "total": held.total}


def show(recipe: TrainRecipe, console: Console) -> None:
    """Print the forecast of a recipe: facts, the table of machines, and what the table assumes."""
    made = forecast(recipe)
    for line in made.notes:
        tables.say(line, console)
    tables.show_facts(facts(made), console)
    table = tables.table("Fits, GB per GPU, and hours")
    columns = (
        "GPUs",
        "engine",
        "row",
        "GPUs per row",
        "fits",
        "GB",
        "weights",
        "gradients",
        "states",
        "activations",
        "hours",
    )
    for name in columns:
        table.add_column(name, justify="right")
    length_names = {tokens: name for name, tokens in _LENGTHS.items()}
    for case in cases(recipe, made.config):
        *parts, total = [f"{size / 1e9:.1f}" for size in _parts(case.memory).values()]
        engine, fits = "nextlong" if case.count == 1 else "torchtitan", "yes" if case.fits else "no"
        machine = [f"{case.count} × {case.device}", engine, length_names[case.row_tokens], str(case.ranks_per_row)]
        table.add_row(*machine, fits, total, *parts, f"{case.hours:,.0f}")
    tables.show(table, console)
    tokens = recipe.training.tokens_per_step * recipe.training.steps
    for line in (
        f"Each row is one document; {tokens:,} tokens are trained on in all. Activation checkpointing: "
        f"{recipe.memory.checkpointing}; optimizer: {recipe.memory.optimizer} (torchtitan: adamw, layers instead of offload).",
        f"Bytes: one step of the model on fake tensors, at {_ANCHORS[0]:,} and {_ANCHORS[1]:,} tokens; other lengths by linear "
        f"extrapolation. A training fits if it takes at most {_USABLE:.0%} of the GPU's memory.",
        "torchtitan: FSDP2 shards float32 weights, gradients and AdamW states over all GPUs and gathers two layers and the output "
        "head in bfloat16; context parallelism divides the tokens of a row; the loss is computed in 8 chunks.",
        f"Hours: {UTILISATION:.1%} of the data sheet's peak, as in the paper's two trainings. No row of this table has been run.",
    ):
        tables.say(line, console)


def facts(made: Forecast) -> list[tuple[str, str]]:
    """Return the forecast in words, as (name, value)."""
    recipe, found = made.recipe, made.estimate
    memory, hardware, training = found.memory, recipe.hardware, recipe.training
    tokens, hours = training.tokens_per_step * training.steps, found.seconds / 3600
    machine = "this machine" if hardware.device == "this" else f"{hardware.count} {hardware.device}"
    gigabytes = {part: f"{size / 1e9:.1f}" for part, size in _parts(memory).items()}
    layer = ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in memory.layer_kinds.items())
    shown = [
        ("parameters", f"{found.sizes.parameters:,}"),
        (
            "rows",
            f"{made.rows:,} of up to {made.row_tokens:,} tokens; {tokens:,} tokens in {counted(training.steps, 'step')}, "
            f"{counted(training.tokens_per_step // made.row_tokens, 'row')} each; the data are read {made.epochs:g} times",
        ),
        (
            "memory",
            f"{gigabytes['total']} GB per device: {gigabytes['weights']} weights, {gigabytes['gradients']} gradients, "
            f"{gigabytes['states']} optimizer states, {gigabytes['activations']} activations",
        ),
        ("one layer", f"{layer} in its backward pass"),
        ("operations", f"{found.flops:.2e} FLOPs, {found.flops / tokens:.2e} per token"),
        ("time", f"{f'{hours:.1f} h' if hours >= 1 else f'{found.seconds:.0f} s'} on {machine} ({found.basis})"),
    ]
    if hardware.device != "this" and memory.total > (available := costs.DEVICES[hardware.device][1] * 1e9):
        advice = device.memory_advice(recipe)
        shown.append(("too large", f"{hardware.device} has {available / 1e9:.0f} GB; {advice}"))
    if made.warning:
        shown.append(("warning", made.warning))
    return shown
