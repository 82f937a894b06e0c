"""Small Llama: a model before any training, and what is measured of one that was trained.

Retrieval needs a head that attends to the previous token, whatever that is. Queries and keys of a Llama have no bias, so a
model of this size spends most of its training on finding such a head. Here they have biases (as Qwen 2's do), and those of one
head of the first layer start at values that make it look one token back. All other weights are random, and all are trained.

Recall is how often a model knows the value of a fact across negatives, in a form that no method trains on. A probe is one row: a
text that states facts; `negatives` texts of other documents, with facts of the same form (hard) or without (random); then each
fact again. Each value there is a question with one answer, before the negatives: it is recalled if it is the likeliest token.
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
_SHARPNESS: Final = 8.0  # of the head that looks back: it gives over 0.9 of its attention to the token before


@torch.no_grad()  # type: ignore[untyped-decorator]
def save(folder: Path, sizes: LlamaConfig, *, seed: int) -> None:
    """Write a model of some sizes into a folder that `from_pretrained` loads, its first head set to look one token back."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(sizes)
    attention, size = (
        model.model.layers[0].self_attn,
        sizes.hidden_size // sizes.num_attention_heads,
    )
    # Biases whose product, once RoPE has turned them, is greatest one token back.
    angles = _ROPE_BASE ** (-torch.arange(0, size, 2) / size)
    attention.k_proj.bias[:size] = _SHARPNESS * torch.cat(
        [torch.ones(size // 2), torch.zeros(size // 2)]
    )
    attention.q_proj.bias[:size] = _SHARPNESS * torch.cat(
        [torch.cos(angles), -torch.sin(angles)]
    )
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[:size] *= 0.1  # contents weigh little at first
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
    """Return the configuration of a Llama with biases of queries and keys; `row_tokens` are those of the longest row."""
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
    }
    sizes |= {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    rope = {"rope_type": "default", "rope_theta": _ROPE_BASE}
    width = {
        "initializer_range": hidden_size**-0.5,
        "max_position_embeddings": row_tokens,
    }
    return LlamaConfig(
        **sizes,
        **width,
        rope_parameters=rope,
        tie_word_embeddings=True,
        attention_bias=True,
    )


class Probes(NamedTuple):
    """Probes with the same number of negatives.

    `ids`: (probes, T), padded on the right with 0. `places`: (probes, facts), the tokens that are values to be recalled.
    `lengths`: (probes,), tokens of a probe before the padding.
    """

    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]


def probes(
    make: Probe, kind: Negatives, *, negatives: int, count: int, seed: int
) -> Probes:
    """Return `count` probes; the same for every model."""
    rngs = (
        rng_for(seed, f"recall-{kind}-{negatives}", place) for place in range(count)
    )
    rows, places = zip(*(make(kind, negatives, rng) for rng in rngs), strict=True)
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((count, int(lengths.max())), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return Probes(ids, np.array(places), lengths)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def recalled(model: PreTrainedModel, probes: Probes) -> NDArray[np.bool_]:
    """Return which values the model recalls, (probes, facts). `model` is a causal model of transformers."""
    rows = max(1, _BATCH_TOKENS // probes.ids.shape[1])
    parts = []
    for first in range(0, len(probes.ids), rows):
        some = (part[first : first + rows] for part in (probes.ids, probes.places))
        ids, places = (torch.from_numpy(part).to(model.device) for part in some)
        # Hidden states, shape (rows, T, size); logits are computed only where a value is to be recalled.
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        before = hidden.gather(
            1, (places - 1)[..., None].expand(-1, -1, hidden.shape[-1])
        )
        likeliest = model.get_output_embeddings()(before).argmax(-1)
        parts.append((likeliest == ids.gather(1, places)).cpu().numpy())
    return np.concatenate(parts)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def attention_thirds(model: PreTrainedModel, probes: Probes) -> dict[str, float]:
    """Return the shares of attention, from the tokens that predict values, to the `first` and `last` third of the tokens before.

    Means over probes, values, heads and layers. `model` computes its attention eagerly.
    """
    thirds = []  # (first, last) for each value
    for ids, places, length in zip(
        probes.ids, probes.places, probes.lengths, strict=True
    ):
        row = torch.from_numpy(ids[None, :length]).to(model.device)
        out = model(input_ids=row, output_attentions=True, use_cache=False)
        for place in places - 1:
            # Attention of one token to all before it and itself, mean over heads and layers, shape (place + 1,).
            share = torch.stack(
                [layer[0, :, place, : place + 1].mean(0) for layer in out.attentions]
            ).mean(0)
            third = (int(place) + 1) // 3
            thirds.append((float(share[:third].sum()), float(share[-third:].sum())))
    return dict(zip(("first", "last"), np.mean(thirds, axis=0).tolist(), strict=True))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def losses(model: PreTrainedModel, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the loss of predicting each token but the first of rows of equal length, nats, mean over rows: (T - 1,)."""
    total = np.zeros(rows.shape[1] - 1)
    for row in rows:
        ids = torch.from_numpy(row[None]).to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        total += (
            torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            .cpu()
            .numpy()
        )
    return total / len(rows)
