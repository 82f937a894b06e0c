"""Costs of a training step: parameters, floating-point operations, and peak memory, before any weight is loaded.

In:  a training recipe, the model's config, the lengths of a row's documents.
Out: `Sizes`, operations, and bytes by part (weights, gradients, optimizer states, activations).

Peak memory comes from the step itself: the real model, loss, checkpointing and optimizer run under FakeTensorMode, which
allocates nothing, while MemTracker counts. A model of more than 8 equal layers runs with 2 and with 4 layers. Each moment that may
be the peak (the backward pass of the last layer, of the first layer, the optimizer step) is extrapolated linearly to all layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import torch

from nextlong.errors import RecipeError
from nextlong.train import attention, loss
from nextlong.train.model import autocast, optimizer_for, ready_to_train
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import packed_batch

if TYPE_CHECKING:
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import PretrainedConfig, PreTrainedModel

# Dense bf16 peak, TFLOP/s, and memory, GB: NVIDIA's data sheets.
DEVICES: Final = {"A100": (312.0, 80), "H100": (989.0, 80), "H200": (989.0, 141), "B200": (2250.0, 192)}
_MOST_RUN_LAYERS: Final = 8
_FEWER_LAYERS: Final = (2, 4)
_PARTS: Final = {"Parameter": "weights", "Gradient": "gradients", "Optstate": "states"}  # MemTracker's names and ours


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model: parameters in all, those that multiply each token, those of one layer, and the widths."""

    parameters: int
    multiplied: int
    layer_parameters: int
    layers: int
    width: int
    attention_width: int
    vocabulary: int


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one device at the peak of a step.

    `parts`: weights, gradients, states, activations. `layer_kinds`: what one layer allocates for its backward pass, by
    kind of module.
    """

    parts: Mapping[str, float]
    layer_kinds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


def sizes_of(config: PretrainedConfig) -> Sizes:
    """Return the sizes of the model that a config describes; nothing is allocated."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # Tied weights are one tensor, and `parameters()` yields it once.
    parameters = sum(tensor.numel() for tensor in model.parameters())
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    heads = config.num_attention_heads
    return Sizes(
        parameters=parameters,
        multiplied=parameters - (0 if is_tied else embedding.numel()),
        layer_parameters=(parameters - embedding.numel() * (1 if is_tied else 2)) // config.num_hidden_layers,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        attention_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=config.vocab_size,
    )


def flops(sizes: Sizes, document_lengths: Sequence[int]) -> float:
    """Return the operations of training on one row: 6 per parameter and token, and causal attention within each document."""
    attention_flops = sum(6.0 * length * length * sizes.attention_width * sizes.layers for length in document_lengths)
    return 6.0 * sizes.multiplied * sum(document_lengths) + attention_flops


def peak_flops(device: torch.device) -> float | None:
    """Return a GPU's peak in operations per second, from its data sheet; None for a CPU and for GPUs not listed here."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((tera * 1e12 for part, (tera, _) in DEVICES.items() if part in name), None)


def peak_memory(
    recipe: TrainRecipe, config: PretrainedConfig, lengths: Sequence[int], *, dtype: torch.dtype = torch.float32
) -> PeakMemory:
    """Return the peak memory of a step over documents of these lengths, computed at once.

    `dtype` is that of the weights. Raises RecipeError for a model whose operations have no fake implementation.
    """
    bounds = [0, *accumulate(lengths)]
    layers = config.num_hidden_layers
    try:
        if layers <= _MOST_RUN_LAYERS or len(set(getattr(config, "layer_types", None) or ())) > 1:
            moments, kinds = _run_step(recipe, config, bounds, layers=layers, dtype=dtype)
        else:
            (few, _), (more, kinds) = (
                _run_step(recipe, config, bounds, layers=number, dtype=dtype) for number in _FEWER_LAYERS
            )
            steps = (layers - _FEWER_LAYERS[0]) / (_FEWER_LAYERS[1] - _FEWER_LAYERS[0])
            moments = [interpolate(one, other, steps) for one, other in zip(few, more, strict=True)]
    except RuntimeError as error:  # an operation has no fake implementation, as in some mixtures of experts
        raise RecipeError(
            f"the memory of a {config.model_type} cannot be forecast ({str(error).splitlines()[0][:120]}); train without --dry-run"
        ) from None
    return PeakMemory(max(moments, key=lambda parts: sum(parts.values())), kinds)


def interpolate(first: Mapping[str, float], second: Mapping[str, float], share: float) -> dict[str, float]:
    """Return the bytes by part at `share` of the way from `first` to `second`; beyond 1 on the same line."""
    return {part: first[part] + (second[part] - first[part]) * share for part in first}


def model_of_layers(
    recipe: TrainRecipe, config: PretrainedConfig, *, layers: int, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Return the model as `model.make_model` makes it, with random weights and this many layers; nothing is offloaded."""
    from transformers import AutoModelForCausalLM

    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers, smaller.use_cache = layers, False
    if getattr(smaller, "layer_types", None):
        smaller.layer_types = smaller.layer_types[:layers]
    if recipe.model.lora_rank is not None and recipe.training.precision == "bf16":
        dtype = torch.bfloat16  # of frozen weights
    name = attention.register(recipe.attention_kernel)
    model = AutoModelForCausalLM.from_config(smaller, attn_implementation=name, dtype=dtype)
    return ready_to_train(model, recipe).train()


def _run_step(
    recipe: TrainRecipe, config: PretrainedConfig, bounds: list[int], *, layers: int, dtype: torch.dtype
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Run one step of a model with this many layers; return the bytes at its possible peaks, and of a layer by kind."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = model_of_layers(recipe, config, layers=layers, dtype=dtype)
        optimizer = optimizer_for(model, recipe)
        for parameter in model.parameters():  # a first step makes the optimizer's states
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        batch = packed_batch(torch.zeros(1, bounds[-1], dtype=torch.int64), bounds)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *(one for one in batch.values() if isinstance(one, torch.Tensor)))
        bare = model.get_base_model() if hasattr(model, "peft_config") else model
        decoder_layers = loss.layers_of(bare)
        with tracker:
            with autocast(recipe, torch.device("cpu")):
                result = model(**batch, num_items_in_batch=bounds[-1]).loss
            result.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.training.clip or float("inf"))
            optimizer.step()
        # Checkpointed inputs that are in main memory: of all layers but the last, which the backward pass needs at once.
        is_offloaded = recipe.memory.checkpointing == "offload"
        offloaded = is_offloaded * (layers - 1) * bounds[-1] * config.hidden_size * dtype.itemsize
        return _moments(tracker, decoder_layers, offloaded=offloaded), _layer_kinds(tracker, decoder_layers[-1])


def _moments(tracker: MemTracker, layers: torch.nn.ModuleList, *, offloaded: int) -> list[dict[str, float]]:
    """Return the bytes by part at the peak, at the peaks of the last and of the first layer, and at the end."""
    from torch.distributed._tools.mem_tracker import _ModState

    snapshots = [tracker.get_tracker_snapshot("peak")]
    for layer in (layers[-1], layers[0]):
        by_state = tracker.memory_tracking[layer].snapshots
        snapshots += [by_state[state][-1] for state in (_ModState.PEAK_FW, _ModState.PEAK_BW)]
    snapshots.append(tracker.get_tracker_snapshot("current"))
    moments = []
    for snapshot in snapshots:
        (held,) = snapshot.values()
        named = {getattr(kind, "value", kind): float(held[kind]) for kind in held}
        parts = {ours: named[theirs] for theirs, ours in _PARTS.items()}
        parts["activations"] = named["Total"] - sum(parts.values()) - offloaded  # everything else
        moments.append(parts)
    return moments


def _layer_kinds(tracker: MemTracker, layer: torch.nn.Module) -> dict[str, float]:
    """Return what a layer's modules allocate in the forward pass and keep for the backward pass, by kind of module."""
    from torch.distributed._tools.mem_tracker import _MemRefType, _ModState

    kinds: dict[str, float] = {}
    for module in layer.children():
        snapshots = tracker.memory_tracking[module].snapshots if module in tracker.memory_tracking else {}
        is_recomputed = _ModState.PRE_FW_AC in snapshots
        states = (_ModState.PRE_FW_AC, _ModState.POST_FW_AC) if is_recomputed else (_ModState.PRE_FW, _ModState.POST_FW)
        if all(state in snapshots for state in states):
            before, after = (sum(one[_MemRefType.ACT] for one in snapshots[state][-1].values()) for state in states)
            kind = type(module).__name__
            kinds[kind] = kinds.get(kind, 0.0) + after - before
    return kinds
