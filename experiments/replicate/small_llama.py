"""Small Llama: a model before any training, and what is measured of a trained one.

To match a subject and a relation needs heads that attend to the token before and to the
one before that, whatever they are. Queries and keys of a Llama have no bias, so a model
of this size spends most of its training on finding such heads. Here they have biases
(as Qwen 2's do), and those of the first layer start at values that make its heads look
one token back, two, and so on. All other weights are random, and all are trained.

Recall is how often a model knows the value of a fact across negatives. A probe is one
row: a paragraph that states facts; `negatives` paragraphs of other documents, which are
look-alikes (same) or unrelated (far); then each fact again. Each value there is a
question with one answer, before the negatives: it is recalled if it is the likeliest
token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from experiments.replicate.corpus import Kind, Probe
from nextlong.rng import rng_for

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_BATCH_TOKENS: Final = 16_384
_ROPE_BASE: Final = 10_000.0
# More than any row has, so that presets share base models: RoPE is the same for all.
_POSITIONS: Final = 4096
# Of the head that looks back: it gives over 0.9 of its attention to the token before.
_SHARPNESS: Final = 8.0


@torch.no_grad()  # type: ignore[untyped-decorator]
def save(folder: Path, sizes: LlamaConfig, *, seed: int) -> None:
    """Write a model of some sizes into a folder that `from_pretrained` loads.

    The heads of its first layer are set to look one token back, two, and so on.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(sizes)
    attention = model.model.layers[0].self_attn
    size = sizes.hidden_size // sizes.num_attention_heads
    angles = _ROPE_BASE ** (-torch.arange(0, size, 2) / size)
    key = torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
    for head in range(sizes.num_attention_heads):
        # Biases whose product, once RoPE has turned them, is greatest at a distance of
        # 1, 2, … tokens: the query is the key turned back by as many positions.
        turned = (head + 1) * angles
        query = torch.cat([torch.cos(turned), -torch.sin(turned)])
        own = slice(head * size, (head + 1) * size)
        attention.k_proj.bias[own] = _SHARPNESS * key
        attention.q_proj.bias[own] = _SHARPNESS * query
        # Contents weigh little at first.
        attention.q_proj.weight[own] *= 0.1
        attention.k_proj.weight[own] *= 0.1
    model.save_pretrained(folder)


def config(
    *,
    vocabulary: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
) -> LlamaConfig:
    """Return the configuration of a Llama with biases of queries and keys."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        initializer_range=hidden_size**-0.5,
        max_position_embeddings=_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        tie_word_embeddings=True,
        attention_bias=True,
    )


class Probes(NamedTuple):
    """Probes with the same number of negatives.

    ids: (probes, T), padded on the right with 0
    positions: (probes, facts), of the tokens that are values to be recalled
    lengths: (probes,), tokens of a probe before the padding
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]


def probes(make: Probe, kind: Kind, *, negatives: int, count: int, seed: int) -> Probes:
    """Return `count` probes; the same for every model."""
    rows = []
    positions = []
    for number in range(count):
        rng = rng_for(seed, f"recall-{kind}-{negatives}", number)
        row, values = make(kind, negatives, rng)
        rows.append(row)
        positions.append(values)
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((count, int(lengths.max())), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return Probes(ids, np.array(positions), lengths)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def recalled(model: PreTrainedModel, probes: Probes) -> NDArray[np.bool_]:
    """Return which values the model recalls, (probes, facts).

    `model` is a causal model of transformers.
    """
    batch = max(1, _BATCH_TOKENS // probes.ids.shape[1])
    parts = []
    for first in range(0, len(probes.ids), batch):
        ids = _on_device(probes.ids[first : first + batch], model)
        positions = _on_device(probes.positions[first : first + batch], model)
        # Hidden states, shape (batch, T, size); logits are computed only where a value
        # is to be recalled.
        decoded = model.get_decoder()(input_ids=ids, use_cache=False)
        hidden = decoded.last_hidden_state
        indices = (positions - 1)[..., None].expand(-1, -1, hidden.shape[-1])
        before = hidden.gather(1, indices)
        likeliest = model.get_output_embeddings()(before).argmax(-1)
        is_recalled = likeliest == ids.gather(1, positions)
        parts.append(is_recalled.cpu().numpy())
    return np.concatenate(parts)


def _on_device(array: NDArray[np.int64], model: PreTrainedModel) -> torch.Tensor:
    return torch.from_numpy(array).to(model.device)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def loss(model: PreTrainedModel, rows: NDArray[np.int64]) -> float:
    """Return the mean loss of predicting each token of rows (rows, T) but the first."""
    losses = []
    batch = max(1, _BATCH_TOKENS // rows.shape[1])
    for first in range(0, len(rows), batch):
        ids = _on_device(rows[first : first + batch], model)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        row_losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        losses.append(row_losses.cpu().numpy())
    return float(np.concatenate(losses).mean())
