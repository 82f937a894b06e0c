"""Memory: bytes of one device at the peak of a training step, by a formula.

In:  a training recipe, the sizes of a model, the lengths of the documents computed at
     once; no weights.
Out: `PeakMemory`: weights, gradients, optimizer states and activations.

The formula counts what autograd keeps of layers like Llama's: two RMS norms, attention
with rotary positions, a gated feed-forward layer. Each token keeps, in bytes (D width,
A width of attention, K of its keys, F of the feed-forward layer, H heads):

    fp32   24 D +  8 A + 8 K + 16 F + 4 H
    bf16   26 D +  4 A + 4 K +  8 F + 4 H    (the residual stream is float32, and each
                                             linear layer has a copy of its input)

and once more A where a row has several documents, whose outputs are joined. With
activation checkpointing each layer keeps its input alone, and one layer all of this.
The peak is at one of four moments of the backward pass: at the loss, in the last layer,
in the first layer, or at the embedding, when all gradients are there. Tests compare it
with what the allocator of a CPU held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from nextlong.train.recipe import TrainRecipe
from nextlong.train.sizes import Sizes

_FLOAT32: Final = 4
_BFLOAT16: Final = 2
# Query, key, value, output; gate, up and down.
_ATTENTION_MATRICES: Final = 4
_FEED_FORWARD_MATRICES: Final = 3
# The layer that computes and the next, which FSDP2 prefetches.
_GATHERED_LAYERS: Final = 2

_Moment = Literal["loss", "last layer", "first layer", "embedding"]


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one device at the peak of a step.

    parts: weights, gradients, states, activations
    layer_kinds: what one layer keeps for its backward pass, by kind of module
    """

    parts: Mapping[str, float]
    layer_kinds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class _Layer:
    """What a layer computes, and the bytes of its numbers.

    residual: bytes of each number of the stream between layers
    product: bytes of each factor of a matrix product
    is_mixed: factors are rounded copies (autocast)
    adapter_rank: of LoRA, whose base weights are frozen
    holds_several: rows hold several documents
    """

    sizes: Sizes
    residual: int
    product: int
    is_mixed: bool
    adapter_rank: int | None
    holds_several: bool

    @property
    def norm(self) -> int:
        """Bytes per token and dimension that an RMS norm keeps.

        They are its input in float32 and, where its weights are trained, the normalized
        numbers that these multiply.
        """
        is_trained = self.adapter_rank is None
        return _FLOAT32 + (self.residual if is_trained else 0)

    @property
    def kinds(self) -> Mapping[str, int]:
        """Bytes per token that a layer keeps for its backward pass, by module kind."""
        sizes = self.sizes
        has_adapters = self.adapter_rank is not None
        # Query, key and value read the same numbers, and so do gate and up; each of
        # them rounds a copy for itself.
        attention = (3 if self.is_mixed else 1) * sizes.width
        feed_forward = (2 if self.is_mixed else 1) * sizes.width

        # Queries, keys, values and outputs; outputs once more where those of several
        # documents are joined, or are rounded again for an adapter.
        attention += 2 * sizes.attention_width + 2 * sizes.key_value_width
        is_rounded_again = self.is_mixed and has_adapters
        if self.holds_several or is_rounded_again:
            attention += sizes.attention_width
        # The gate before and after its activation, up, and their product.
        feed_forward += 4 * sizes.feed_forward_width

        if self.adapter_rank is not None:
            attention += _ATTENTION_MATRICES * self.adapter_rank
            feed_forward += _FEED_FORWARD_MATRICES * self.adapter_rank
        logarithms = _FLOAT32 * sizes.heads  # of the sums of attention's weights
        return {
            "norms": 2 * self.norm * sizes.width,
            "attention": self.product * attention + logarithms,
            "feed-forward": self.product * feed_forward,
        }

    @property
    def kept(self) -> int:
        """Bytes per token that a layer keeps for its backward pass."""
        return sum(self.kinds.values())

    @property
    def input(self) -> int:
        """Bytes per token of a layer's input, which checkpointing keeps."""
        return self.residual * self.sizes.width

    @property
    def recomputed(self) -> int:
        """Bytes per token that a checkpointed layer computes again, beside its input.

        In float32, its first norm keeps that input and not a copy.
        """
        if self.residual == _FLOAT32:
            return self.kept - self.input
        return self.kept

    @property
    def weight_copies(self) -> int:
        """Bytes of a layer's trained weights, rounded for its products."""
        is_rounded = self.is_mixed and self.adapter_rank is None
        return _BFLOAT16 * self.sizes.layer_parameters if is_rounded else 0


def peak_memory(
    recipe: TrainRecipe, sizes: Sizes, lengths: Sequence[int], *, is_gpu: bool
) -> PeakMemory:
    """Return the peak memory of a step of nextlong's loop.

    `lengths`: of the documents that are computed at once.
    """
    rank = recipe.model.lora_rank
    is_bf16 = recipe.training.precision == "bf16"
    head = sizes.width * sizes.vocabulary
    # Trained weights are float32. Frozen ones have the precision that they compute
    # with, and so has the stream between the layers of their model.
    if rank is None:
        weight = _FLOAT32
        trained = sizes.parameters
        trained_layer = sizes.layer_parameters
        trained_head = head
        adapters = 0
    else:
        weight = _BFLOAT16 if is_bf16 else _FLOAT32
        trained_layer = rank * _adapter_widths(sizes)
        trained = sizes.layers * trained_layer
        trained_head = 0
        adapters = trained
    layer = _Layer(
        sizes=sizes,
        residual=weight,
        product=_BFLOAT16 if is_bf16 else _FLOAT32,
        is_mixed=is_bf16,
        adapter_rank=rank,
        holds_several=len(lengths) > 1,
    )
    tokens = sum(lengths)
    activations = _activations(recipe, layer, tokens, is_gpu=is_gpu)
    # The head's gradient is the first and the embedding's the last; of tied weights,
    # the second is added to the first.
    is_tied = sizes.is_tied
    gradients: dict[_Moment, int] = {
        "loss": 0,
        "last layer": trained_head + trained_layer,
        "first layer": trained if is_tied else trained - trained_head,
        "embedding": trained + trained_head if is_tied else trained,
    }

    def changing_bytes(moment: _Moment) -> int:
        return _FLOAT32 * gradients[moment] + activations[moment]

    peak = max(activations, key=changing_bytes)
    return PeakMemory(
        parts={
            "weights": weight * sizes.parameters + _FLOAT32 * adapters,
            "gradients": _FLOAT32 * gradients[peak],
            "states": 2 * _FLOAT32 * trained,
            "activations": activations[peak],
        },
        layer_kinds={kind: tokens * size for kind, size in layer.kinds.items()},
    )


def sharded_memory(
    recipe: TrainRecipe, sizes: Sizes, tokens: int, *, devices: int, ranks_per_row: int
) -> PeakMemory:
    """Return the peak memory of each of several GPUs under torchtitan.

    FSDP2 shards float32 weights, gradients and states, and gathers layers and the
    output head in bfloat16. Context parallelism divides the `tokens` of a row; each
    rank gathers the keys and values of the whole row for one layer at a time.
    """
    # Activations are of a rank's own tokens, in bfloat16 throughout.
    local_tokens = tokens // ranks_per_row
    layer = _Layer(
        sizes=sizes,
        residual=_BFLOAT16,
        product=_BFLOAT16,
        is_mixed=False,
        adapter_rank=None,
        holds_several=False,
    )
    activations = max(
        _activations(recipe, layer, local_tokens, is_gpu=True, offloads=False).values()
    )
    if ranks_per_row > 1:
        activations += 2 * tokens * sizes.key_value_width * _BFLOAT16
    head = sizes.width * sizes.vocabulary
    gathered = _BFLOAT16 * (_GATHERED_LAYERS * sizes.layer_parameters + head)
    shard = _FLOAT32 * sizes.parameters / devices
    return PeakMemory(
        parts={
            "weights": shard + gathered,
            "gradients": shard + gathered,
            "states": 2 * shard,
            "activations": activations,
        },
        layer_kinds={kind: local_tokens * size for kind, size in layer.kinds.items()},
    )


def _activations(
    recipe: TrainRecipe,
    layer: _Layer,
    tokens: int,
    *,
    is_gpu: bool,
    offloads: bool = True,
) -> dict[_Moment, int]:
    """Return the bytes at each moment that are not weights, gradients or states."""
    sizes = layer.sizes
    checkpointing = recipe.memory.checkpointing
    if checkpointing == "none":
        stored = sizes.layers * (tokens * layer.kept + layer.weight_copies)
        recomputed = 0
        first_layer = tokens * layer.kept + layer.weight_copies
    else:
        # Inputs in main memory are of all layers but the last, which is needed at once.
        in_main_memory = checkpointing == "offload" and offloads
        inputs = 1 if in_main_memory else sizes.layers
        stored = tokens * inputs * layer.input
        recomputed = tokens * layer.recomputed + layer.weight_copies
        first_layer = tokens * layer.input + recomputed

    # In the feed-forward layer, the gradients of gate and up, and of its output in both
    # precisions. Layers that are computed again hold the outputs of adapters beside.
    gradients = 2
    if layer.adapter_rank is not None and layer.is_mixed and recomputed:
        gradients = 4
    working = gradients * sizes.feed_forward_width * layer.product
    working += (layer.residual + layer.product) * sizes.width
    return {
        "loss": stored + _loss(recipe, layer, tokens, is_gpu=is_gpu),
        "last layer": stored + recomputed + tokens * working,
        "first layer": first_layer + tokens * working,
        "embedding": 2 * tokens * layer.input,
    }


def _loss(recipe: TrainRecipe, layer: _Layer, tokens: int, *, is_gpu: bool) -> int:
    """Return the bytes of the last norm and of the loss in blocks, at their peak."""
    sizes = layer.sizes
    head = sizes.width * sizes.vocabulary
    block_tokens = min(recipe.memory.loss_block_tokens, tokens)
    rounds = layer.product == _BFLOAT16
    # Logits and their gradient, float32. A CPU has its factors in float32 again, beside
    # what it rounds.
    logit = 2 * _FLOAT32
    rounded_head = 0
    if rounds and is_gpu:
        rounded_head = _BFLOAT16 * head
    elif rounds:
        logit += _BFLOAT16
        rounded_head = _FLOAT32 * head
    if is_gpu and layer.residual == _BFLOAT16:
        rounded_head = 0  # the weights themselves

    hidden = layer.norm * sizes.width + layer.input
    head_gradient = _FLOAT32 * head
    kept = tokens * hidden + rounded_head + head_gradient
    # The gradient of the states is made in blocks, which are joined behind the last;
    # the head's gradient by one block is added to that of all.
    at_block = logit * block_tokens * sizes.vocabulary + tokens * layer.input
    at_end = 2 * tokens * layer.input + head_gradient
    return kept + max(at_block, at_end)


def _adapter_widths(sizes: Sizes) -> int:
    """Return the sum of inputs and outputs of a layer's matrices, which LoRA adapts."""
    query_and_output = 2 * (sizes.width + sizes.attention_width)
    key_and_value = 2 * (sizes.width + sizes.key_value_width)
    feed_forward = _FEED_FORWARD_MATRICES * (sizes.width + sizes.feed_forward_width)
    return query_and_output + key_and_value + feed_forward
