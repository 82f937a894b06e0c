"""Recall: how often a model knows the value of a fact across negatives, in a form that no method trains on.

A probe is one row: a text that states facts; `negatives` texts of other documents, with facts of the same form (hard) or
without (random); then each fact again. Each value there is a question: it is recalled if it is the likeliest of all tokens. No
other fact of a probe has its name, so every question has one answer, which stands only once, before the negatives. (Sequences
of NExtLong put negatives between all paragraphs.) The corpus makes the probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.replicate.invented import Negatives, Probe
from nextlong.rng import rng_for

KINDS: Final[tuple[Negatives, ...]] = ("hard", "random")
_BATCH_TOKENS: Final = 16_384


@dataclass(frozen=True)
class Probes:
    """Probes with the same number of negatives.

    `ids`: (probes, T), padded on the right with 0. `places`: (probes, facts), the tokens that are values to be recalled.
    `lengths`: (probes,), tokens of a probe before the padding.
    """

    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]


def probes(make: Probe, kind: Negatives, *, negatives: int, count: int, seed: int) -> Probes:
    """Return `count` probes; the same for every model."""
    rngs = (rng_for(seed, f"recall-{kind}-{negatives}", place) for place in range(count))
    rows, places = zip(*(make(kind, negatives, rng) for rng in rngs), strict=True)
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((count, int(lengths.max())), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return Probes(ids, np.array(places), lengths)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def recalled(model: Any, asked: Probes) -> NDArray[np.bool_]:
    """Return which values the model recalls, (probes, facts). `model` is a causal model of transformers."""
    rows = max(1, _BATCH_TOKENS // asked.ids.shape[1])
    parts = []
    for first in range(0, len(asked.ids), rows):
        ids, places = (
            torch.from_numpy(part[first : first + rows]).to(model.device) for part in (asked.ids, asked.places)
        )
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        before = hidden.gather(1, (places - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
        likeliest = model.get_output_embeddings()(before).argmax(-1)
        parts.append((likeliest == ids.gather(1, places)).cpu().numpy())
    return np.concatenate(parts)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def attention_thirds(model: Any, asked: Probes) -> tuple[float, float]:
    """Return the shares of attention, from the tokens that predict values, to the first and last third of what stands before.

    Means over probes, values, heads and layers. `model` computes its attention eagerly.
    """
    firsts, lasts = [], []
    for ids, places, length in zip(asked.ids, asked.places, asked.lengths, strict=True):
        row = torch.from_numpy(ids[None, :length]).to(model.device)
        out = model(input_ids=row, output_attentions=True, use_cache=False)
        for place in places - 1:
            share = torch.stack([layer[0, :, place, : place + 1].mean(0) for layer in out.attentions]).mean(0)
            third = (int(place) + 1) // 3
            firsts.append(float(share[:third].sum()))
            lasts.append(float(share[-third:].sum()))
    return float(np.mean(firsts)), float(np.mean(lasts))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def losses(model: Any, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the loss of predicting each token but the first of rows of equal length, nats, mean over rows: (T - 1,)."""
    total = np.zeros(rows.shape[1] - 1)
    for row in rows:
        ids = torch.from_numpy(row[None]).to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").cpu().numpy()
    return total / len(rows)
