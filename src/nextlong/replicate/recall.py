"""Recall: how often a model knows the value of a fact across negatives, in a form that no method trains on.

A probe is one row: the first paragraph of a new document, which states its facts; `negatives` paragraphs of other documents,
of the same topic (hard) or of other topics (random); then a paragraph that states each fact again. Each value there is a
question: it is recalled if it is the likeliest of all tokens. No other document of a probe has its names, so every question
has one answer, which stands only once, before the negatives. (Sequences of NExtLong put negatives between all paragraphs.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nextlong.replicate import invented
from nextlong.replicate.invented import Document, document, paragraph
from nextlong.rng import rng_for

Negatives = Literal["hard", "random"]
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


def probes(kind: Negatives, *, negatives: int, count: int, seed: int, tokenizer: Tokenizer) -> Probes:
    """Return `count` probes; the same for every model."""
    rows, places = zip(
        *(
            _probe(kind, negatives, rng_for(seed, f"recall-{kind}-{negatives}", place), tokenizer)
            for place in range(count)
        ),
        strict=True,
    )
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((count, int(lengths.max())), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return Probes(ids, np.array(places), lengths)


def _probe(
    kind: Negatives, negatives: int, rng: np.random.Generator, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    asked = document(rng)
    avoid = frozenset(fact.name for fact in asked.facts)
    again = paragraph(rng, asked.topic, [asked.facts[place] for place in rng.permutation(len(asked.facts))])
    paragraphs = [asked.paragraphs[0], *(_negative(kind, asked, avoid, rng) for _ in range(negatives)), again]
    ids = tokenizer.encode("".join(map(invented.line, paragraphs))).ids
    first = len(ids) - len(again)
    return ids, [first + place + 1 for place, word in enumerate(again) if word in avoid]


def _negative(kind: Negatives, asked: Document, avoid: frozenset[str], rng: np.random.Generator) -> tuple[str, ...]:
    others = [topic for topic in range(invented.TOPICS) if topic != asked.topic]
    made = document(rng, topic=asked.topic if kind == "hard" else int(rng.choice(others)), avoid=avoid)
    return made.paragraphs[int(rng.integers(len(made.paragraphs)))]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def recalled(model: Any, asked: Probes) -> NDArray[np.bool_]:
    """Return which values the model recalls, (probes, facts). `model` is a causal model of transformers."""
    rows = max(1, _BATCH_TOKENS // asked.ids.shape[1])
    parts = []
    for first in range(0, len(asked.ids), rows):
        ids = torch.from_numpy(asked.ids[first : first + rows])
        places = torch.from_numpy(asked.places[first : first + rows])
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        before = hidden.gather(1, (places - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
        likeliest = model.get_output_embeddings()(before).argmax(-1)
        parts.append((likeliest == ids.gather(1, places)).numpy())
    return np.concatenate(parts)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def attention_thirds(model: Any, asked: Probes) -> tuple[float, float]:
    """Return the shares of attention, from the tokens that predict values, to the first and last third of what stands before.

    Means over probes, values, heads and layers. `model` computes its attention eagerly.
    """
    firsts, lasts = [], []
    for ids, places, length in zip(asked.ids, asked.places, asked.lengths, strict=True):
        out = model(input_ids=torch.from_numpy(ids[None, :length]), output_attentions=True, use_cache=False)
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
        ids = torch.from_numpy(row[None])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()
    return total / len(rows)
