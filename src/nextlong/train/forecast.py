"""Forecast: memory, operations and time of a training, before anything is loaded (`nextlong train RECIPE --dry-run`).

In:  a training recipe, the model's config and the lengths of the rows; no weights.
Out: memory, operations and hours, and a table of machines and row lengths: nextlong's loop on one GPU, torchtitan on several.

Memory comes from the step itself: the real model, loss, checkpointing and optimizer run under FakeTensorMode, which allocates
nothing, while MemTracker counts. Of more than 8 equal layers, 2 and 4 run, and each moment that may be the peak (the backward
pass of the last and the first layer, the optimizer step) is extrapolated linearly. For torchtitan the model runs in bfloat16 on
the tokens of one context-parallel rank; weights, gradients and states are divided by the devices, as FSDP2 does. Hours on a GPU
follow from operations at the share of the data sheet's peak that both of the paper's trainings had; here they are measured.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Final
from unittest.mock import patch

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.rng import rng_for
from nextlong.text import Json, counted
from nextlong.train.attention import layers_of, register_attention
from nextlong.train.model import (
    Prepared,
    accelerator,
    autocast,
    memory_advice,
    optimizer_for,
    prepare,
    ready_to_train,
)
from nextlong.train.recipe import TrainRecipe, micro_batches
from nextlong.train.rows import on_device, packed_batch

# Dense bf16 peak, TFLOP/s, and memory, GB: NVIDIA's data sheets.
_DEVICES: Final = {
    "A100": (312.0, 80),
    "H100": (989.0, 80),
    "H200": (989.0, 141),
    "B200": (2250.0, 192),
}
_MOST_RUN_LAYERS: Final = 8
_FEWER_LAYERS: Final = (2, 4)
_PARTS: Final = {
    "Parameter": "weights",
    "Gradient": "gradients",
    "Optstate": "states",
}  # MemTracker's names and ours
# Model FLOP/s over peak that gives 15 h for the paper's 128K training (64 H100) and 20 h for 512K (128 H100), to within 10 %.
_UTILISATION: Final = 0.195
_USABLE: Final = (
    0.95  # of a GPU's memory; the CUDA context and fragmentation take the rest
)
_MACHINES: Final = (("H200", 1), ("H100", 8), ("H100", 64))
_LENGTHS: Final = {1 << 16: "64K", 1 << 17: "128K", 1 << 19: "512K", 1 << 20: "1M"}
_ANCHORS: Final = (
    1 << 16,
    1 << 17,
)  # row lengths that are run; longer ones are extrapolated linearly
_GATHERED_LAYERS: Final = (
    2  # the one that computes and the next, which FSDP2 prefetches
)
_SAMPLED_STEPS: Final = 200
# Up to which repeated data are as good as new: Muennighoff et al. 2023, Scaling Data-Constrained Language Models.
_MOST_EPOCHS: Final = 4
_SAMPLED_ROWS: Final = 64
# A CPU takes minutes for a step of a long row, so it is timed on its first tokens: from
# the fewest to the most, until the next measurement would take longer than the budget.
# The rest follows from operations.
_MEASURED_TOKENS: Final = (512, 2048, 8192)
_MEASURING_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: parameters in all, those that multiply each token, those of one layer, and the widths."""

    parameters: int
    multiplied: int
    layer_parameters: int
    layers: int
    width: int
    attention_width: int
    key_value_width: int
    vocabulary: int


@dataclass(frozen=True)
class _PeakMemory:
    """Bytes of one device at the peak of a step.

    `parts`: weights, gradients, states, activations. `layer_kinds`: what one layer keeps for its backward pass, by kind of module.
    """

    parts: Mapping[str, float]
    layer_kinds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class _Cost:
    """The cost of a training: memory per device, total operations and seconds, and the basis of the seconds."""

    sizes: Sizes
    memory: _PeakMemory
    flops: float
    seconds: float
    basis: str


@dataclass(frozen=True)
class _Case:
    """A machine and a row length: the ranks that share a row, the memory of each GPU, and the hours of the recipe's tokens."""

    device: str
    count: int
    row_tokens: int
    ranks_per_row: int
    memory: _PeakMemory
    fits: bool
    hours: float


@dataclass(frozen=True)
class _Forecast:
    """The prepared data of a recipe, the cost of its training, and whether a table of other machines was asked for."""

    ready: Prepared
    cost: _Cost
    with_machines: bool

    @cached_property
    def cases(self) -> Sequence[_Case]:
        """Return the table of machines and row lengths, which takes longer than all else."""
        if not self.with_machines:
            return ()
        return tuple(cases(self.ready.recipe, self.ready.config))

    @property
    def warning(self) -> str:
        """Advice where the data are read too often, else ""."""
        if self.ready.epochs <= _MOST_EPOCHS:
            return ""
        return (
            f"the data are read {self.ready.epochs:g} times; beyond {_MOST_EPOCHS} epochs repeated data help less and less. "
            "Make more sequences, or lower training.steps"
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; memory is that of one GPU, in bytes."""
        ready, training = self.ready, self.ready.recipe.training
        plain = {
            "rows": len(ready.rows),
            "row_tokens": ready.row_tokens,
            "epochs": ready.epochs,
        }
        plain |= {
            "steps": training.steps,
            "tokens": training.tokens,
            **asdict(self.cost),
        }
        notes = [*ready.changes, *filter(None, [self.warning])]
        return {
            **plain,
            "machines": [asdict(case) for case in self.cases],
            "notes": notes,
        }


def forecast(recipe: TrainRecipe, *, with_machines: bool = False) -> _Forecast:
    """Return the forecast of a recipe; no weights are loaded. Raises NextlongError as training would before."""
    ready = prepare(recipe)
    documents = [
        ready.rows[row].bounds.diff().tolist()
        for row in range(min(len(ready.rows), _SAMPLED_ROWS))
    ]
    return _Forecast(
        ready=ready,
        cost=estimate(recipe, ready.config, documents),
        with_machines=with_machines,
    )


def estimate(
    recipe: TrainRecipe, config: PretrainedConfig, documents: Sequence[Sequence[int]]
) -> _Cost:
    """Return the estimate for rows of such documents, all equally likely. Raises RecipeError if devices cannot share a step."""
    sizes, hardware, longest = (
        sizes_of(config),
        recipe.hardware,
        max(documents, key=sum),
    )
    rows_per_step, ranks = (
        max(1, recipe.training.tokens_per_step // sum(longest)),
        hardware.ranks_per_row,
    )
    rounds = micro_batches(
        recipe, rows_per_step=rows_per_step, devices=hardware.count, ranks_per_row=ranks
    )
    row_flops = [flops(sizes, lengths) for lengths in documents]
    total = sum(row_flops) / len(row_flops) * rows_per_step * recipe.training.steps
    if hardware.device == "this":
        measured, measured_seconds = _measure_row_start(
            recipe, config, documents[0], sizes=sizes
        )
        row_seconds = measured_seconds * row_flops[0] / flops(sizes, measured)
        seconds = rows_per_step * row_seconds * recipe.training.steps
        basis = (
            f"measured here, on {sum(measured):,} tokens and one and two of its layers"
        )
    else:
        # A step waits for the group of ranks with the most work: sampled steps, shape (steps, groups, rows of a group).
        shape = (
            _SAMPLED_STEPS,
            hardware.count // ranks,
            rounds * recipe.training.micro_batch_rows,
        )
        slowest = float(
            rng_for(recipe.seed, "plan")
            .choice(row_flops, size=shape)
            .sum(axis=2)
            .max(axis=1)
            .mean()
        )
        seconds = (
            slowest
            / ranks
            / (_DEVICES[hardware.device][0] * 1e12 * _UTILISATION)
            * recipe.training.steps
        )
        basis = f"{_UTILISATION:.1%} of peak, as in the paper's two trainings; each step waits for its longest row"
    at_once = list(longest) * recipe.training.micro_batch_rows
    if hardware.count == 1:
        memory = _peak_memory(recipe, config, at_once)
    else:
        local = _on_one_rank(recipe, config, sum(at_once) // ranks)
        memory = _sharded(local, sizes, hardware.count)
        memory = _with_gathered_keys(memory, sizes, sum(at_once), ranks=ranks)
    return _Cost(sizes, memory, total, seconds, basis)


def _measure_row_start(
    recipe: TrainRecipe,
    config: PretrainedConfig,
    documents: Sequence[int],
    *,
    sizes: Sizes,
) -> tuple[list[int], float]:
    """Return the documents of as much of a row as is timed here, and the seconds of training on that."""
    if accelerator().type == "cuda":
        return list(documents), measure_row(recipe, config, documents)
    measured: list[int] = []
    seconds, taken = 0.0, 0.0
    for tokens in _MEASURED_TOKENS:
        ends = [min(end, tokens) for end in accumulate(documents, initial=0)]
        longer = [end - start for start, end in pairwise(ends) if end > start]
        if measured:
            next_taken = taken * flops(sizes, longer) / flops(sizes, measured)
            if longer == measured or next_taken > _MEASURING_SECONDS:
                break
        measured = longer
        started = time.perf_counter()
        seconds = measure_row(recipe, config, measured)
        taken = time.perf_counter() - started
    return measured, seconds


def measure_row(
    recipe: TrainRecipe, config: PretrainedConfig, lengths: Sequence[int]
) -> float:
    """Return the seconds of training on a row here: one and two layers with random weights are timed, the rest is linear."""
    device, bounds = accelerator(), [0, *accumulate(lengths)]
    batch = on_device(
        packed_batch(torch.randint(config.vocab_size, (1, bounds[-1])), bounds), device
    )
    times: dict[int, list[float]] = {1: [], 2: []}
    for layers, of_steps in times.items():
        network = _model_of_layers(recipe, config, layers=layers).to(device)
        for _ in range(2):  # the first warms up
            started = time.perf_counter()
            with autocast(recipe, device):
                result = network(**batch).loss
            result.backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            of_steps.append(time.perf_counter() - started)
    one, two = map(min, times.values())
    return one + max(two - one, 0.0) * (int(config.num_hidden_layers) - 1)


def cases(recipe: TrainRecipe, config: PretrainedConfig) -> Iterator[_Case]:
    """Yield a case of each machine and row length; of several GPUs the fewest ranks per row that fit, else the most."""
    sizes = sizes_of(config)
    alone = [_peak_memory(recipe, config, [tokens]) for tokens in _ANCHORS]
    split = [_on_one_rank(recipe, config, tokens) for tokens in _ANCHORS]
    for name, count in _MACHINES:
        tera, gigabytes = _DEVICES[name]
        for tokens in _LENGTHS:
            rows = max(1, recipe.training.tokens_per_step // tokens)
            powers = [
                1 << power
                for power in range(count.bit_length())
                if count % (1 << power) == 0
            ]
            # Each group of ranks that shares a row needs one in every step; if none divides evenly, all devices share it.
            for ranks in [
                ranks for ranks in powers if rows % (count // ranks) == 0
            ] or [count]:
                share = (tokens // ranks - _ANCHORS[0]) / (_ANCHORS[1] - _ANCHORS[0])
                ends = (one.parts for one in (alone if count == 1 else split))
                held = _PeakMemory(_interpolate(*ends, share=share), {})
                if count > 1:
                    held = _sharded(held, sizes, count)
                    held = _with_gathered_keys(held, sizes, tokens, ranks=ranks)
                if fits := held.total <= gigabytes * 1e9 * _USABLE:
                    break
            total = flops(sizes, [tokens]) / tokens * recipe.training.tokens
            hours = total / (tera * 1e12 * _UTILISATION * count) / 3600
            yield _Case(name, count, tokens, ranks, held, fits, hours)


def _on_one_rank(
    recipe: TrainRecipe, config: PretrainedConfig, tokens: int
) -> _PeakMemory:
    """Return the memory of the model in bfloat16 on `tokens` tokens of a row, without sharding."""
    if recipe.memory.checkpointing == "offload":
        layers = recipe.memory.model_copy(update={"checkpointing": "layers"})
        recipe = recipe.model_copy(update={"memory": layers})
    return _peak_memory(recipe, config, [tokens], dtype=torch.bfloat16)


def _with_gathered_keys(
    memory: _PeakMemory, sizes: Sizes, tokens: int, *, ranks: int
) -> _PeakMemory:
    """Add the keys and values of a whole row, which each rank of context parallelism gathers for one layer at a time."""
    if ranks == 1:
        return memory
    gathered = 2.0 * tokens * sizes.key_value_width * torch.bfloat16.itemsize
    activations = memory.parts["activations"] + gathered
    parts = {**memory.parts, "activations": activations}
    return _PeakMemory(parts, memory.layer_kinds)


def _sharded(whole: _PeakMemory, sizes: Sizes, devices: int) -> _PeakMemory:
    """Return the memory of each of `devices` GPUs under FSDP2: float32 shards, and the layers gathered in bfloat16."""
    gathered = 2.0 * (
        _GATHERED_LAYERS * sizes.layer_parameters + sizes.width * sizes.vocabulary
    )
    shard = 4.0 * sizes.parameters / devices
    parts = {
        "weights": shard + gathered,
        "gradients": shard + gathered,
        "states": 2 * shard,
    }
    return _PeakMemory(
        parts | {"activations": whole.parts["activations"]}, whole.layer_kinds
    )


def show(made: _Forecast, console: Console) -> None:
    """Print a forecast: facts, the table of machines, and what the table assumes."""
    recipe, cost, tokens = (
        made.ready.recipe,
        made.cost,
        made.ready.recipe.training.tokens,
    )
    memory, hardware, hours = cost.memory, recipe.hardware, cost.seconds / 3600
    machine = (
        "this machine"
        if hardware.device == "this"
        else f"{hardware.count} {hardware.device}"
    )
    *parts, total = _gigabytes(memory)
    by_part = "{} weights, {} gradients, {} optimizer states, {} activations".format(
        *parts
    )
    layer = ", ".join(
        f"{kind} {size / 1e9:.2f} GB" for kind, size in memory.layer_kinds.items()
    )
    facts = [
        ("parameters", f"{cost.sizes.parameters:,}"),
        ("tokens", f"{tokens:,} in {counted(recipe.training.steps, 'step')}"),
        ("memory", f"{total} GB per device: {by_part}"),
        ("one layer", f"{layer} in its backward pass"),
        ("operations", f"{cost.flops:.2e} FLOPs, {cost.flops / tokens:.2e} per token"),
        (
            "time",
            f"{f'{hours:.1f} h' if hours >= 1 else f'{cost.seconds:.0f} s'} on {machine} ({cost.basis})",
        ),
    ]
    if hardware.device != "this" and memory.total > (
        available := _DEVICES[hardware.device][1] * 1e9
    ):
        facts.append(
            (
                "too large",
                f"{hardware.device} has {available / 1e9:.0f} GB; {memory_advice(recipe)}",
            )
        )
    if made.warning:
        facts.append(("warning", made.warning))
    for line in made.ready.notes():
        tables.say(line, console)
    tables.show_facts(facts, console)
    if not made.with_machines:
        tables.say("other machines and row lengths: add --machines", console)
        return
    with console.status("one step on fake tensors for each machine and row length"):
        machines = made.cases
    table = tables.table("Fits, GB per GPU, and hours")
    columns = "GPUs, engine, row, GPUs per row, fits, GB, weights, gradients, states, activations, hours"
    for column in columns.split(", "):
        table.add_column(column, justify="right")
    for case in machines:
        *parts, total = _gigabytes(case.memory)
        engine, fits = (
            "nextlong" if case.count == 1 else "torchtitan",
            "yes" if case.fits else "no",
        )
        machine_row = [
            f"{case.count} × {case.device}",
            engine,
            _LENGTHS[case.row_tokens],
            str(case.ranks_per_row),
        ]
        table.add_row(
            *machine_row,
            fits,
            total,
            *parts,
            f"{case.hours:,.{0 if case.hours >= 10 else 1}f}",
        )
    tables.show(table, console)
    for line in (
        f"Each row is one document; {tokens:,} tokens are trained on in all. Activation checkpointing: "
        f"{recipe.memory.checkpointing} (torchtitan: layers instead of offload).",
        f"Bytes: one step of the model on fake tensors, at {_ANCHORS[0]:,} and {_ANCHORS[1]:,} tokens; other lengths by linear "
        "extrapolation. Parts are those at the moment of the peak, when not all gradients exist. A training fits if it takes at "
        f"most {_USABLE:.0%} of the GPU's memory.",
        "torchtitan: FSDP2 shards float32 weights, gradients and AdamW states over all GPUs and gathers two layers and the output "
        "head in bfloat16; context parallelism divides the tokens of a row, of which each GPU gathers the keys and values of one "
        "layer; the loss is computed in chunks of memory.loss_block_tokens. GPUs per row: the fewest that fit, and that leave each "
        "group of GPUs whole rows of training.tokens_per_step.",
        f"Hours: {_UTILISATION:.1%} of the data sheet's peak, as in the paper's two trainings. No row of this table has been run.",
    ):
        tables.say(line, console)


def _gigabytes(memory: _PeakMemory) -> list[str]:
    return [f"{size / 1e9:.1f}" for size in (*memory.parts.values(), memory.total)]


def sizes_of(config: PretrainedConfig) -> Sizes:
    """Return the sizes of the model that a config describes; nothing is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # Tied weights are one tensor, and `parameters()` yields it once.
    parameters, heads = (
        sum(tensor.numel() for tensor in model.parameters()),
        config.num_attention_heads,
    )
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    return Sizes(
        parameters=parameters,
        multiplied=parameters - (0 if is_tied else embedding.numel()),
        layer_parameters=(parameters - embedding.numel() * (1 if is_tied else 2))
        // config.num_hidden_layers,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        attention_width=heads
        * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads)
        * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=config.vocab_size,
    )


def flops(sizes: Sizes, document_lengths: Sequence[int]) -> float:
    """Return the operations of training on one row: 6 per parameter and token, and causal attention within each document."""
    attention_flops = sum(
        6.0 * length * length * sizes.attention_width * sizes.layers
        for length in document_lengths
    )
    return 6.0 * sizes.multiplied * sum(document_lengths) + attention_flops


def peak_flops(device: torch.device) -> float | None:
    """Return a GPU's peak in operations per second, from its data sheet; None for a CPU and for GPUs not listed here."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next(
        (tera * 1e12 for part, (tera, _) in _DEVICES.items() if part in name), None
    )


def _peak_memory(
    recipe: TrainRecipe,
    config: PretrainedConfig,
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> _PeakMemory:
    """Return the peak memory of a step over documents of these lengths, computed at once.

    `dtype` is that of the weights. Raises RecipeError for a model whose operations have no fake implementation.
    """
    bounds, layers = [0, *accumulate(lengths)], config.num_hidden_layers
    run = partial(_run_step, recipe, config, bounds, dtype=dtype)
    try:
        if (
            layers <= _MOST_RUN_LAYERS
            or len(set(getattr(config, "layer_types", None) or ())) > 1
        ):
            moments, kinds = run(layers=layers)
        else:
            (few, _), (more, kinds) = (run(layers=number) for number in _FEWER_LAYERS)
            steps = (layers - _FEWER_LAYERS[0]) / (_FEWER_LAYERS[1] - _FEWER_LAYERS[0])
            moments = [
                _interpolate(one, other, share=steps)
                for one, other in zip(few, more, strict=True)
            ]
    except RuntimeError as error:  # an operation has no fake implementation, as in some mixtures of experts
        problem = f"the memory of a {config.model_type} cannot be forecast ({str(error).splitlines()[0][:120]})"
        raise RecipeError(f"{problem}; train without --dry-run") from None
    return _PeakMemory(max(moments, key=lambda parts: sum(parts.values())), kinds)


def _interpolate(
    first: Mapping[str, float], second: Mapping[str, float], *, share: float
) -> dict[str, float]:
    """Return the bytes by part at `share` of the way from `first` to `second`; beyond 1 on the same line."""
    return {part: first[part] + (second[part] - first[part]) * share for part in first}


def _model_of_layers(
    recipe: TrainRecipe,
    config: PretrainedConfig,
    *,
    layers: int,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Return the model as `model.make_model` makes it, with random weights and this many layers; nothing is offloaded."""
    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers, smaller.use_cache = layers, False
    if getattr(smaller, "layer_types", None):
        smaller.layer_types = smaller.layer_types[:layers]
    if recipe.model.lora_rank is not None and recipe.training.precision == "bf16":
        dtype = torch.bfloat16  # of frozen weights
    name = register_attention(recipe.attention_kernel)
    model = AutoModelForCausalLM.from_config(
        smaller, attn_implementation=name, dtype=dtype
    )
    return ready_to_train(model, recipe).train()


def _run_step(
    recipe: TrainRecipe,
    config: PretrainedConfig,
    bounds: list[int],
    *,
    layers: int,
    dtype: torch.dtype,
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Run one step of a model with this many layers; return the bytes by part at its possible peaks, and `layer_kinds`."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _ModState

    with FakeTensorMode():
        # PEFT moves each module to the device that it is on, and torch cannot move fake weights.
        with patch.object(torch.nn.Module, "_apply", lambda module, *_: module):
            model = _model_of_layers(recipe, config, layers=layers, dtype=dtype)
        optimizer = optimizer_for(model, recipe)
        for (
            parameter
        ) in model.parameters():  # a first step makes the optimizer's states
            parameter.grad = (
                torch.zeros_like(parameter) if parameter.requires_grad else None
            )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        batch = packed_batch(torch.zeros(1, bounds[-1], dtype=torch.int64), bounds)
        tracker = MemTracker()
        tracker.track_external(
            model,
            optimizer,
            *(one for one in batch.values() if isinstance(one, torch.Tensor)),
        )
        hookless = torch.utils.hooks.RemovableHandle(OrderedDict())
        for parameter in (
            model.parameters()
        ):  # the tracker hooks on gradients, which frozen weights do not have
            if not parameter.requires_grad:
                tracker._param_to_grad_hook_handles[parameter] = hookless, hookless
        stack = layers_of(
            model.get_base_model() if hasattr(model, "peft_config") else model
        )
        with tracker:
            with autocast(recipe, torch.device("cpu")):
                result = model(**batch, num_items_in_batch=bounds[-1]).loss
            result.backward()
            torch.nn.utils.clip_grad_norm_(
                model.parameters(), recipe.training.clip or float("inf")
            )
            optimizer.step()
    # Checkpointed inputs that are in main memory: of all layers but the last, which the backward pass needs at once.
    offloaded = (layers - 1) * bounds[-1] * config.hidden_size * dtype.itemsize
    offloaded *= recipe.memory.checkpointing == "offload"
    # At the peak, at the end, and at the peaks of the last and of the first layer.
    by_layer = tracker.memory_tracking
    snapshots = [tracker.get_tracker_snapshot(moment) for moment in ("peak", "current")]
    for layer in (stack[-1], stack[0]):
        snapshots += [
            by_layer[layer].snapshots[state][-1]
            for state in (_ModState.PEAK_FW, _ModState.PEAK_BW)
        ]
    moments = []
    for (held,) in (snapshot.values() for snapshot in snapshots):
        named = {getattr(kind, "value", kind): float(held[kind]) for kind in held}
        parts = {ours: named[theirs] for theirs, ours in _PARTS.items()}
        moments.append(
            parts | {"activations": named["Total"] - sum(parts.values()) - offloaded}
        )  # everything else
    kinds: dict[str, float] = {}
    for module in stack[-1].children():
        states = by_layer[module].snapshots if module in by_layer else {}
        ends = (_ModState.PRE_FW, _ModState.POST_FW)
        if _ModState.PRE_FW_AC in states:  # recomputed
            ends = (_ModState.PRE_FW_AC, _ModState.POST_FW_AC)
        if states.keys() >= {*ends}:
            before, after = (
                sum(one[_MemRefType.ACT] for one in states[end][-1].values())
                for end in ends
            )
            kind = type(module).__name__
            kinds[kind] = kinds.get(kind, 0.0) + after - before
    return moments, kinds
