"""Small Llama: a model before any training, and what is measured of a trained one.

Retrieval needs a head that attends to the previous token, whatever that is. Queries and
keys of a Llama have no bias, so a model of this size spends most of its training on
finding such a head. Here they have biases (as Qwen 2's do), and those of one head of
the first layer start at values that make it look one token back. All other weights are
random, and all are trained.

Recall is how often a model knows the value of a fact across negatives, in a form that
no method trains on. A probe is one row: a text that states facts; `negatives` texts of
other documents, with facts of the same form (hard) or without (random); then each fact
again. Each value there is a question with one answer, before the negatives: it is
recalled if it is the likeliest token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from experiments.replicate.corpora import Negatives, Probe
from nextlong.rng import rng_for

KINDS: Final[tuple[Negatives, ...]] = get_args(Negatives)
_BATCH_TOKENS: Final = 16_384
_ROPE_BASE: Final = 10_000.0
# Of the head that looks back: it gives over 0.9 of its attention to the token before.
_SHARPNESS: Final = 8.0


@torch.no_grad()  # type: ignore[untyped-decorator]
def save(folder: Path, sizes: LlamaConfig, *, seed: int) -> None:
    """Write a model of some sizes into a folder that `from_pretrained` loads.

    Its first head is set to look one token back.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(sizes)
    attention = model.model.layers[0].self_attn
    size = sizes.hidden_size // sizes.num_attention_heads
    # Biases whose product, once RoPE has turned them, is greatest one token back: the
    # query is the key turned back by one position.
    angles = _ROPE_BASE ** (-torch.arange(0, size, 2) / size)
    key = torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
    query = torch.cat([torch.cos(angles), -torch.sin(angles)])
    attention.k_proj.bias[:size] = _SHARPNESS * key
    attention.q_proj.bias[:size] = _SHARPNESS * query
    # Contents weigh little at first.
    attention.q_proj.weight[:size] *= 0.1
    attention.k_proj.weight[:size] *= 0.1
    model.save_pretrained(folder)


def config(
    *,
    vocabulary: int,
    row_tokens: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
) -> LlamaConfig:
    """Return the configuration of a Llama with biases of queries and keys.

    `row_tokens` are those of the longest row.
    """
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        initializer_range=hidden_size**-0.5,
        max_position_embeddings=row_tokens,
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


def probes(
    make: Probe, kind: Negatives, *, negatives: int, count: int, seed: int
) -> Probes:
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
def attention_thirds(model: PreTrainedModel, probes: Probes) -> dict[str, float]:
    """Return the shares of attention on the `first` and `last` third of the tokens.

    From the tokens that predict values to those before them; means over probes, values,
    heads and layers. `model` computes its attention eagerly.
    """
    # (first, last) for each value.
    thirds = []
    for ids, positions, length in zip(
        probes.ids, probes.positions, probes.lengths, strict=True
    ):
        row = _on_device(ids[None, :length], model)
        output = model(input_ids=row, output_attentions=True, use_cache=False)
        for position in (positions - 1).tolist():
            # Attention of one token to all before it and itself, mean over heads and
            # layers, shape (position + 1,).
            by_layer = []
            for layer in output.attentions:
                by_layer.append(layer[0, :, position, : position + 1].mean(0))
            share = torch.stack(by_layer).mean(0)
            third = (position + 1) // 3
            on_first = float(share[:third].sum())
            on_last = float(share[-third:].sum())
            thirds.append((on_first, on_last))
    first, last = np.mean(thirds, axis=0).tolist()
    return {"first": first, "last": last}


@torch.inference_mode()  # type: ignore[untyped-decorator]
def losses(model: PreTrainedModel, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the loss of predicting each token but the first: (T - 1,), in nats.

    Mean over rows of equal length.
    """
    total = np.zeros(rows.shape[1] - 1)
    for row in rows:
        ids = _on_device(row[None], model)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        row_losses = torch.nn.functional.cross_entropy(
            logits, ids[0, 1:], reduction="none"
        )
        total += row_losses.cpu().numpy()
    return total / len(rows)
