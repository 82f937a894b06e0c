"""Copying probe: what an earlier copy of a passage is worth when the same passage is read again, far behind it.

In:  a Hugging Face model and any text (the haystack). Out: nats a token that the second reading costs less because the first stands
before it, by the length of the whole.

A model that can look back copies: this is what long contexts need first (Olsson et al. 2022, arXiv 2209.11895), and it is
asked without a question, which small models do not understand. Both readings stand at the same place behind the same text;
only what stands at the head differs, the passage itself or another of the same length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.probe import Probe, Values
from nextlong.evaluate.probes.dependency import token_losses
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks import needle

PASSAGE_TOKENS: Final = 64
_LEAST_TOKENS: Final = 4 * PASSAGE_TOKENS


def check(request: Request) -> None:
    """Raise EvaluateError for a length without room for the passages, and for a text that is too short."""
    if request.length < _LEAST_TOKENS:
        raise EvaluateError(
            f"--lengths: copying needs at least {_LEAST_TOKENS} tokens, not {request.length:,}; leave the length out"
        )
    haystack_ids(request, request.length + PASSAGE_TOKENS, part=0)


def measure(model: HuggingFaceModel, request: Request, _: Path | None) -> Values:
    """Measure the samples, each a passage, `length` − 2 passages of other text, and the passage again."""
    check(request)
    first: list[float] = []
    second: list[float] = []
    for number in range(request.samples or PROBE.samples):
        passage, other, between = _pieces(request, number, special=len(model.tokenizer.prefix))
        for losses, head in ((second, passage), (first, other)):
            ids = model.tokenizer.with_prefix([*head, *between, *passage])
            losses.append(float(token_losses(model, ids)[-PASSAGE_TOKENS:].mean()))
        request.advance(1)
    gains = np.array(first) - np.array(second)
    scores = {
        "gain_nats": float(gains.mean()),
        "without_copy_nats": float(np.mean(first)),
        "with_copy_nats": float(np.mean(second)),
        "gain_standard_error": float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0,
    }
    distance = request.length - 2 * PASSAGE_TOKENS
    return {"category": "Copying", "scores": scores, "distance": distance, "outcomes": gains.tolist(), "n": len(gains)}


def _pieces(request: Request, number: int, *, special: int) -> tuple[list[int], list[int], list[int]]:
    """Return passage, other passage, and the text between, all from different places of the haystack."""
    ids = haystack_ids(request, request.length + PASSAGE_TOKENS, part=number)
    ends = [PASSAGE_TOKENS, 2 * PASSAGE_TOKENS, request.length - special]
    passage, other, between = (part.tolist() for part in np.split(ids, ends)[:3])
    return passage, other, between


def haystack_ids(request: Request, tokens: int, *, part: int) -> NDArray[np.int64]:
    """Return `tokens` ids of the haystack, shape (tokens,); each `part` reads elsewhere.

    Raises EvaluateError if it is too short.
    """
    text = needle.haystack_text(request.data)
    chars = tokens * needle.MOST_CHARS_PER_TOKEN
    first = part * chars % len(text)
    ids = request.tokenizer.encode((text[first:] + "\n" + text[:first])[:chars])
    if len(ids) < tokens:
        raise EvaluateError(
            f"{needle.HAYSTACK} has {len(ids):,} tokens, and {tokens:,} are needed; put a longer text there, "
            "or leave the length out"
        )
    return np.array(ids[:tokens])


PROBE: Final = Probe(
    "copying", "copying", "gain_nats", measure, lengths="each", samples=20, optional=(needle.HAYSTACK,), check=check
)
