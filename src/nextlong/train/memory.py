"""Memory: the peak memory of a training step, by running the step on fake tensors.

In:  a training recipe, the model's config, the lengths of a row's documents.
Out: bytes by part (weights, gradients, optimizer states, activations) and of one layer by kind of module.

The real model, loss, checkpointing and optimizer run one step under FakeTensorMode, which allocates nothing, while MemTracker
counts. A model of more than 8 equal layers is run with 2 and with 4 of them; each moment that may be the peak (the backward pass
of the last layer, of the first layer, the optimizer step) is extended to all layers in a straight line.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from nextlong.errors import RecipeError
from nextlong.train import attention, loss
from nextlong.train.device import autocast, optimizer_for
from nextlong.train.recipe import TrainRecipe

_WHOLE: Final = 8  # layers up to which the whole model is run
_FEWER: Final = (2, 4)
_PARTS: Final = {"Parameter": "weights", "Gradient": "gradients", "Optstate": "states"}
Moment = dict[str, float]  # bytes by part


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a step; `kinds`: what one layer allocates for its backward pass, by kind of module."""

    weights: float
    gradients: float
    states: float
    activations: float
    kinds: Mapping[str, float]

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.states + self.activations


def forecast(recipe: TrainRecipe, config: Any, lengths: Sequence[int], *, dtype: torch.dtype = torch.float32) -> Memory:
    """Return the peak memory of a step over rows whose documents have these lengths (`micro_batch_rows` of them at once).

    `dtype` is that of the weights.
    """
    bounds = [0]
    for length in list(lengths) * recipe.training.micro_batch_rows:
        bounds.append(bounds[-1] + length)
    try:
        return _forecast(recipe, config, bounds, dtype)
    except (
        RuntimeError
    ) as error:  # an operation that PyTorch cannot run on fake tensors, as those of some mixtures of experts
        raise RecipeError(
            f"the memory of a {config.model_type} cannot be forecast ({str(error).splitlines()[0][:120]}); train without --dry-run"
        ) from None


def _forecast(recipe: TrainRecipe, config: Any, bounds: list[int], dtype: torch.dtype) -> Memory:
    layers = config.num_hidden_layers
    if layers <= _WHOLE or len(set(getattr(config, "layer_types", None) or ())) > 1:
        moments, kinds = _run(recipe, config, bounds, layers=layers, dtype=dtype)
    else:
        (few, _), (more, kinds) = (_run(recipe, config, bounds, layers=number, dtype=dtype) for number in _FEWER)
        moments = [_extended(one, other, layers) for one, other in zip(few, more, strict=True)]
    peak = max(moments, key=lambda moment: sum(moment.values()))
    return Memory(**peak, kinds=kinds)


def _extended(few: Moment, more: Moment, layers: int) -> Moment:
    """Return the bytes of `layers` layers from those of two smaller models."""
    share = (layers - _FEWER[0]) / (_FEWER[1] - _FEWER[0])
    return {part: few[part] + (more[part] - few[part]) * share for part in few}


def _run(
    recipe: TrainRecipe, config: Any, bounds: list[int], *, layers: int, dtype: torch.dtype
) -> tuple[list[Moment], dict[str, float]]:
    """Run one step of a model with this many layers; return what is held at its peaks, and what a layer allocates by kind."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = fake_model(recipe, config, layers=layers, dtype=dtype)
        optimizer = optimizer_for(model, recipe.model_copy(update={"memory": recipe.memory.model_copy(update=_ADAMW)}))
        _make_states(model, optimizer)
        batch = fake_batch(bounds)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *(one for one in batch.values() if isinstance(one, torch.Tensor)))
        inputs = _LayerInputs(model) if recipe.memory.checkpointing == "offload" else None
        with tracker:
            with autocast(recipe, torch.device("cpu")):
                result = model(**batch, num_items_in_batch=bounds[-1]).loss
            result.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.training.clip or float("inf"))
            optimizer.step()
        shrunk = 0.25 if recipe.memory.optimizer == "adamw-8bit" else 1.0
        offloaded = inputs.bytes if inputs else 0
        moments = [_moment(one, shrunk, offloaded) for one in _peaks(tracker, model)]
        return moments, _kinds(tracker, _layers(model)[-1])


_ADAMW: Final = {"optimizer": "adamw"}


def fake_model(recipe: TrainRecipe, config: Any, *, layers: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return the model as `model.make` makes it, with this many layers; called under FakeTensorMode."""
    from transformers import AutoModelForCausalLM

    from nextlong.train.model import with_adapters, with_checkpointing

    smaller = copy.deepcopy(config)
    smaller.num_hidden_layers, smaller.use_cache = layers, False
    if getattr(smaller, "layer_types", None):
        smaller.layer_types = smaller.layer_types[:layers]
    is_adapted = recipe.model.lora_rank is not None and recipe.training.precision == "bf16"
    made = AutoModelForCausalLM.from_config(
        smaller,
        attn_implementation=attention.register(recipe.attention_kernel),
        dtype=torch.bfloat16 if is_adapted else dtype,
    )
    loss.install(made, block_tokens=recipe.memory.loss_block_tokens)
    if recipe.memory.checkpointing != "none":
        with_checkpointing(made, offload=False)  # what is offloaded is subtracted
    return (with_adapters(made, recipe) if recipe.model.lora_rank is not None else made).train()


def fake_batch(bounds: Sequence[int]) -> dict[str, Any]:
    """Return what `rows.flat` gives, without numbers in it; called under FakeTensorMode."""
    ids = torch.zeros(1, bounds[-1], dtype=torch.int64)
    ends = torch.zeros(len(bounds), dtype=torch.int32)
    columns = {"input_ids": ids, "labels": ids.clone(), "position_ids": ids.clone()}
    return {**columns, "cu_seq_lens_q": ends, "document_bounds": tuple(bounds)}


def _make_states(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class _LayerInputs:
    """Counts the bytes of the layers' inputs, which `offload` keeps in the main memory."""

    def __init__(self, model: Any) -> None:
        self.bytes = 0
        for layer in _layers(model)[:-1]:
            layer.register_forward_pre_hook(self._count)

    def _count(self, _: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if not torch._C._current_graph_task_id() >= 0:  # not again where the backward pass recomputes
            self.bytes += inputs[0].numel() * inputs[0].element_size()


def _layers(model: Any) -> Any:
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    return loss.layers_of(bare)


def _peaks(tracker: Any, model: Any) -> list[Any]:
    """Return what was held at the peak, at the peaks of the last and of the first layer, and at the end."""
    from torch.distributed._tools.mem_tracker import _ModState

    layers = _layers(model)
    held = [tracker.memory_tracking[layer].snapshots for layer in (layers[-1], layers[0])]
    by_layer = [snapshots[state][-1] for snapshots in held for state in (_ModState.PEAK_FW, _ModState.PEAK_BW)]
    return [tracker.get_tracker_snapshot("peak"), *by_layer, tracker.get_tracker_snapshot("current")]


def _moment(snapshot: Any, shrunk: float, offloaded: int) -> Moment:
    """Return bytes by part: everything that is not a weight, gradient or state is an activation."""
    (held,) = snapshot.values()
    named = {getattr(kind, "value", kind): float(held[kind]) for kind in held}
    parts = {ours: named[theirs] for theirs, ours in _PARTS.items()}
    parts["activations"] = named["Total"] - sum(parts.values()) - offloaded
    parts["states"] *= shrunk
    return parts


def _kinds(tracker: Any, layer: Any) -> dict[str, float]:
    """Return what the parts of a layer allocate in its forward pass and keep for the backward pass, by kind of module."""
    from torch.distributed._tools.mem_tracker import _MemRefType, _ModState

    kinds: dict[str, float] = {}
    for module in layer.children():
        snapshots = tracker.memory_tracking[module].snapshots if module in tracker.memory_tracking else {}
        is_again = _ModState.PRE_FW_AC in snapshots
        states = (_ModState.PRE_FW_AC, _ModState.POST_FW_AC) if is_again else (_ModState.PRE_FW, _ModState.POST_FW)
        if any(state not in snapshots for state in states):
            continue
        before, after = (sum(one[_MemRefType.ACT] for one in snapshots[state][-1].values()) for state in states)
        kind = type(module).__name__
        kinds[kind] = kinds.get(kind, 0.0) + after - before
    return kinds
