"""Forecast: memory, operations and time of a training, before anything is loaded.

In:  a training recipe, the model's config and the lengths of the rows; no weights.
Out: memory, operations and hours (`nextlong train RECIPE --dry-run`).

Memory follows from a formula (`memory.py`). Hours on a GPU follow from operations at
the share of the data sheet's peak that both of the paper's trainings had; here they are
measured on one and two layers of the model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Final

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from nextlong.report import tables
from nextlong.rng import rng_for
from nextlong.text import Json, counted
from nextlong.train.attention import register_attention
from nextlong.train.memory import PeakMemory, peak_memory, sharded_memory
from nextlong.train.model import (
    accelerator,
    autocast,
    memory_advice,
    ready_to_train,
)
from nextlong.train.prepare import Prepared, prepare
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.rows import on_device, packed_batch
from nextlong.train.sizes import Sizes, flops, sizes_of

# Dense bf16 peak, TFLOP/s, and memory, GB: NVIDIA's data sheets.
_DEVICES: Final = {
    "A100": (312.0, 80),
    "H100": (989.0, 80),
    "H200": (989.0, 141),
    "B200": (2250.0, 192),
}
# Model FLOP/s over peak that gives 15 h for the paper's 128K training (64 H100) and
# 20 h for 512K (128 H100), to within 10 %.
_UTILISATION: Final = 0.195
_SAMPLED_STEPS: Final = 200
_SAMPLED_ROWS: Final = 64
# Up to which repeated data are as good as new: Muennighoff et al. 2023, Scaling
# Data-Constrained Language Models.
_MAX_EPOCHS: Final = 4
# A CPU takes minutes for a step of a long row, so it is timed on its first tokens: from
# the fewest to the most, until the next measurement would take longer than the budget.
# The rest follows from operations.
_MEASURED_TOKENS: Final = (512, 2048, 8192)
_MEASURING_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Cost:
    """The cost of a training: memory per device, total operations and seconds.

    `basis` says where the seconds come from.
    """

    sizes: Sizes
    memory: PeakMemory
    flops: float
    seconds: float
    basis: str


@dataclass(frozen=True)
class Forecast:
    """The prepared data of a recipe, and the cost of its training."""

    ready: Prepared
    cost: Cost

    @property
    def warning(self) -> str:
        """Advice where the data are read too often, else ""."""
        epochs = self.ready.epochs
        if epochs <= _MAX_EPOCHS:
            return ""
        return (
            f"the data are read {epochs:g} times; beyond {_MAX_EPOCHS} epochs repeated "
            "data help less and less. Make more sequences, or lower training.steps"
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists.

        Memory is that of one GPU, in bytes.
        """
        training = self.ready.recipe.training
        notes = list(self.ready.changes)
        if self.warning:
            notes.append(self.warning)
        return {
            "rows": len(self.ready.rows),
            "row_tokens": self.ready.row_tokens,
            "epochs": self.ready.epochs,
            "steps": training.steps,
            "tokens": training.tokens,
            **asdict(self.cost),
            "notes": notes,
        }


def forecast(recipe: TrainRecipe) -> Forecast:
    """Return the forecast of a recipe; no weights are loaded.

    Raises NextlongError as training would before.
    """
    ready = prepare(recipe)
    count = min(len(ready.rows), _SAMPLED_ROWS)
    documents = [ready.rows[row].bounds.diff().tolist() for row in range(count)]
    return Forecast(ready=ready, cost=estimate(recipe, ready.config, documents))


def estimate(
    recipe: TrainRecipe, config: PretrainedConfig, documents: Sequence[Sequence[int]]
) -> Cost:
    """Return the estimate for rows of such documents, all equally likely.

    Raises RecipeError if devices cannot share a step.
    """
    sizes = sizes_of(config)
    hardware = recipe.hardware
    training = recipe.training
    # A step has as many rows as if all were the longest.
    longest = max(documents, key=sum)
    rows_per_step = max(1, training.tokens_per_step // sum(longest))
    rounds = micro_batches(
        recipe,
        rows_per_step=rows_per_step,
        devices=hardware.count,
        ranks_per_row=hardware.ranks_per_row,
    )
    row_flops = [flops(sizes, lengths) for lengths in documents]
    mean_flops = sum(row_flops) / len(row_flops)
    if hardware.device == "this":
        timed, timed_seconds = _time_row_start(
            recipe, config, documents[0], sizes=sizes
        )
        row_seconds = timed_seconds * row_flops[0] / flops(sizes, timed)
        seconds = rows_per_step * row_seconds * training.steps
        basis = f"measured here, on {sum(timed):,} tokens and one and two of its layers"
    else:
        rows_per_group = rounds * training.micro_batch_rows
        seconds = _seconds_on_gpus(recipe, row_flops, rows_per_group=rows_per_group)
        basis = (
            f"{_UTILISATION:.1%} of peak, as in the paper's two trainings; each step "
            "waits for its longest row"
        )
    return Cost(
        sizes=sizes,
        memory=_memory(recipe, sizes, longest),
        flops=mean_flops * rows_per_step * training.steps,
        seconds=seconds,
        basis=basis,
    )


def _memory(
    recipe: TrainRecipe, sizes: Sizes, longest_row: Sequence[int]
) -> PeakMemory:
    """Return the memory of each device for steps over such rows."""
    hardware = recipe.hardware
    at_once = list(longest_row) * recipe.training.micro_batch_rows
    if hardware.count > 1:
        return sharded_memory(
            recipe,
            sizes,
            sum(at_once),
            devices=hardware.count,
            ranks_per_row=hardware.ranks_per_row,
        )
    is_gpu = hardware.device != "this" or accelerator().type == "cuda"
    return peak_memory(recipe, sizes, at_once, is_gpu=is_gpu)


def _seconds_on_gpus(
    recipe: TrainRecipe, row_flops: Sequence[float], *, rows_per_group: int
) -> float:
    """Return the seconds of all steps, each of which waits for its slowest group.

    A group of ranks that share rows computes `rows_per_group` of them in a step.
    """
    hardware = recipe.hardware
    groups = hardware.count // hardware.ranks_per_row
    # (steps, groups, rows of a group): the work of each row of a sample of steps.
    sampled = rng_for(recipe.seed, "plan").choice(
        row_flops, size=(_SAMPLED_STEPS, groups, rows_per_group)
    )
    group_flops = sampled.sum(axis=2)
    slowest = float(group_flops.max(axis=1).mean())
    tera_flops, _ = _DEVICES[hardware.device]
    device_flops = tera_flops * 1e12 * _UTILISATION
    step_seconds = slowest / hardware.ranks_per_row / device_flops
    return step_seconds * recipe.training.steps


def _time_row_start(
    recipe: TrainRecipe,
    config: PretrainedConfig,
    documents: Sequence[int],
    *,
    sizes: Sizes,
) -> tuple[list[int], float]:
    """Return the documents of as much of a row as is timed here, and its seconds."""
    if accelerator().type == "cuda":
        return list(documents), measure_row(recipe, config, documents)
    timed: list[int] = []
    seconds = 0.0
    measuring_seconds = 0.0
    for tokens in _MEASURED_TOKENS:
        start_of_row = _first_tokens(documents, tokens)
        if timed:
            growth = flops(sizes, start_of_row) / flops(sizes, timed)
            is_too_slow = measuring_seconds * growth > _MEASURING_SECONDS
            if start_of_row == timed or is_too_slow:
                break
        timed = start_of_row
        began = time.perf_counter()
        seconds = measure_row(recipe, config, timed)
        measuring_seconds = time.perf_counter() - began
    return timed, seconds


def _first_tokens(documents: Sequence[int], tokens: int) -> list[int]:
    """Return the lengths of the documents of the first `tokens` tokens of a row."""
    bounds = [min(end, tokens) for end in accumulate(documents, initial=0)]
    return [end - start for start, end in pairwise(bounds) if end > start]


def measure_row(
    recipe: TrainRecipe, config: PretrainedConfig, lengths: Sequence[int]
) -> float:
    """Return the seconds of training here on a row of documents of these lengths.

    One and two layers with random weights are timed; the rest is linear.
    """
    device = accelerator()
    bounds = list(accumulate(lengths, initial=0))
    ids = torch.randint(config.vocab_size, (1, bounds[-1]))
    batch = on_device(packed_batch(ids, bounds), device)
    # Two models, so that the embedding and the head are counted once.
    one_layer, two_layers = (
        _time_layers(recipe, config, batch, layers=layers) for layers in (1, 2)
    )
    other_layers = int(config.num_hidden_layers) - 1
    return one_layer + max(two_layers - one_layer, 0.0) * other_layers


def _time_layers(
    recipe: TrainRecipe, config: PretrainedConfig, batch: Json, *, layers: int
) -> float:
    """Return the seconds of a step of a model with so few layers, but no update."""
    device = accelerator()
    network = model_of_layers(recipe, config, layers=layers).to(device)
    seconds = []
    # The first step warms up.
    for _ in range(2):
        began = time.perf_counter()
        with autocast(recipe, device):
            loss = network(**batch).loss
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def model_of_layers(
    recipe: TrainRecipe, config: PretrainedConfig, *, layers: int
) -> PreTrainedModel:
    """Return the model as `model.make_model` makes it, with this many layers.

    Weights are random, and nothing is offloaded.
    """
    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers = layers
    smaller.use_cache = False
    if getattr(smaller, "layer_types", None):
        smaller.layer_types = smaller.layer_types[:layers]
    # Frozen weights have the type that they compute with.
    is_frozen = recipe.model.lora_rank is not None
    is_bf16 = recipe.training.precision == "bf16"
    model = AutoModelForCausalLM.from_config(
        smaller,
        attn_implementation=register_attention(recipe.attention_kernel),
        dtype=torch.bfloat16 if is_frozen and is_bf16 else torch.float32,
    )
    return ready_to_train(model, recipe).train()


def peak_flops(device: torch.device) -> float | None:
    """Return a GPU's peak in operations per second, from its data sheet.

    None for a CPU and for GPUs not listed here.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for part, (tera_flops, _) in _DEVICES.items():
        if part in name:
            return tera_flops * 1e12
    return None


def show(forecasted: Forecast, console: Console) -> None:
    """Print a forecast as facts, after the notes on its data."""
    recipe = forecasted.ready.recipe
    cost = forecasted.cost
    tokens = recipe.training.tokens
    facts = [
        ("parameters", f"{cost.sizes.parameters:,}"),
        ("tokens", f"{tokens:,} in {counted(recipe.training.steps, 'step')}"),
        ("memory", _shown_memory(cost.memory)),
        ("one layer", _shown_layer(cost.memory)),
        ("operations", f"{cost.flops:.2e} FLOPs, {cost.flops / tokens:.2e} per token"),
        ("time", _shown_time(recipe, cost)),
    ]
    too_large = _too_large(recipe, cost.memory)
    if too_large:
        facts.append(("too large", too_large))
    if forecasted.warning:
        facts.append(("warning", forecasted.warning))
    for line in forecasted.ready.notes():
        tables.say(line, console)
    tables.show_facts(facts, console)


def _shown_memory(memory: PeakMemory) -> str:
    gigabytes = {part: f"{size / 1e9:.1f}" for part, size in memory.parts.items()}
    return (
        f"{memory.total / 1e9:.1f} GB per device: {gigabytes['weights']} weights, "
        f"{gigabytes['gradients']} gradients, {gigabytes['states']} optimizer states, "
        f"{gigabytes['activations']} activations"
    )


def _shown_layer(memory: PeakMemory) -> str:
    kinds = ", ".join(
        f"{kind} {size / 1e9:.2f} GB" for kind, size in memory.layer_kinds.items()
    )
    return f"{kinds} in its backward pass"


def _shown_time(recipe: TrainRecipe, cost: Cost) -> str:
    hardware = recipe.hardware
    machine = f"{hardware.count} {hardware.device}"
    if hardware.device == "this":
        machine = "this machine"
    hours = cost.seconds / 3600
    duration = f"{hours:.1f} h" if hours >= 1 else f"{cost.seconds:.0f} s"
    return f"{duration} on {machine} ({cost.basis})"


def _too_large(recipe: TrainRecipe, memory: PeakMemory) -> str:
    """Return advice where the training does not fit into the GPU it is planned for."""
    device = recipe.hardware.device
    if device == "this":
        return ""
    _, gigabytes = _DEVICES[device]
    if memory.total <= gigabytes * 1e9:
        return ""
    return f"{device} has {gigabytes} GB; {memory_advice(recipe)}"
