"""Copying and recall by choice: two probes of long-range attention that small models can pass, without an instruction.

`copying`: how much an earlier copy of a passage lowers the loss of the passage when it occurs again far behind it, in nats per
token. Copying is the first ability that long contexts need (Olsson et al. 2022, arXiv 2209.11895). Both contexts have the passage
at the same position behind the same text; only their heads differ: the passage itself, or another one of the same length.

`key_values`: how often the value of a key is the most likely of all values in the context when the key occurs again, in percent;
chance is 1 / the number of pairs. This is JSON KV without an instruction and without identifiers of dozens of tokens: keys
and values are single tokens, and only the values of the context are compared.

In:  a Hugging Face model and any text, the haystack.
"""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.huggingface import HuggingFaceModel
from nextlong.evaluate.task import Probe, Request, TextTokenizer
from nextlong.evaluate.tasks.dependency import token_losses
from nextlong.evaluate.texts import HAYSTACK, haystack_ids
from nextlong.text import Json

_PASSAGE_TOKENS: Final = 64
_PAIRS: Final = 8
_SAMPLES: Final = 20
_SPACES: Final = "Ġ▁"  # how byte-level and sentencepiece vocabularies write the space before a word
_LEAST_LETTERS: Final = 3


def _check_copying(request: Request) -> None:
    """Raise EvaluateError for a length without room for the passages, and for a text that is too short."""
    request.require(4 * _PASSAGE_TOKENS, "copying")
    haystack_ids(request, request.length + _PASSAGE_TOKENS, part=0)


def _measure_copying(model: HuggingFaceModel, request: Request) -> Json:
    """Measure the samples: a passage, other text (`length` less the two passages), and the passage again."""
    _check_copying(request)
    losses = []
    for number in range(request.samples or _SAMPLES):
        # Passage, another passage, and the text between, all from different places of the haystack.
        ids = haystack_ids(request, request.length + _PASSAGE_TOKENS, part=number)
        ends = [_PASSAGE_TOKENS, 2 * _PASSAGE_TOKENS, request.length - len(model.tokenizer.prefix)]
        passage, other, between = (part.tolist() for part in np.split(ids, ends)[:3])
        whole = [model.tokenizer.with_prefix([*head, *between, *passage]) for head in (other, passage)]
        losses.append([float(token_losses(model, ids)[-_PASSAGE_TOKENS:].mean()) for ids in whole])
        request.advance(1)
    # Mean loss of the passage in nats per token, shape (samples,): behind another passage, and behind its copy.
    without, with_copy = np.array(losses).T
    gains = without - with_copy
    scores = {
        "gain_nats": float(gains.mean()),
        "without_copy_nats": float(without.mean()),
        "with_copy_nats": float(with_copy.mean()),
        "gain_standard_error": float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0,
    }
    distance = request.length - 2 * _PASSAGE_TOKENS
    return {"scores": scores, "distance": distance, "outcomes": gains.tolist(), "n": len(gains)}


def _check_key_values(request: Request) -> None:
    """Raise EvaluateError for a length without room for the pairs, a tokenizer without words, and a text that is too short."""
    request.require(16 * _PAIRS, "key_values")
    _words(request.tokenizer)
    haystack_ids(request, request.length, part=0)


def _measure_key_values(model: HuggingFaceModel, request: Request) -> Json:
    """Ask for every pair of every sample."""
    _check_key_values(request)
    words = _words(model.tokenizer)
    samples = range(request.samples or _SAMPLES)
    # Whether each value is the likeliest, shape (samples, pairs), pairs at the head of the context first.
    right = np.array([_is_likeliest(model, request, words, number) for number in samples], dtype=float)
    return {
        "scores": {"accuracy": 100 * float(right.mean()), "chance": 100 / _PAIRS},
        "by_depth": [100 * float(share) for share in right.mean(axis=0)],
        "outcomes": [100 * float(share) for share in right.mean(axis=1)],  # the pairs of a sample share its context
        "n": right.size,
    }


def _words(tokenizer: TextTokenizer) -> list[int]:
    """Return the ids of whole words: a space, then letters."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=False)
    words = sorted(
        number
        for token, number in vocabulary.items()
        if token[:1] in _SPACES and len(token) > _LEAST_LETTERS and token[1:].isascii() and token[1:].isalpha()
    )
    if len(words) < 2 * _PAIRS:
        raise EvaluateError(
            f"key_values: the tokenizer has {len(words)} tokens that are words, and {2 * _PAIRS} are needed; leave the probe out"
        )
    return words


def _is_likeliest(model: HuggingFaceModel, request: Request, words: list[int], number: int) -> list[bool]:
    torch = required("torch")
    sampled = random.Random(f"{request.seed} key_values {number}").sample(words, 2 * _PAIRS)
    keys, values = sampled[:_PAIRS], sampled[_PAIRS:]
    colon, newline = model.tokenizer.encode(":"), model.tokenizer.encode("\n")
    lines = [[*newline, key, *colon, value, *newline] for key, value in zip(keys, values, strict=True)]
    room = request.length - sum(map(len, lines)) - len(newline) - 1 - len(colon) - len(model.tokenizer.prefix)
    filler = np.array_split(haystack_ids(request, room, part=number), _PAIRS)
    ids = model.tokenizer.with_prefix(
        [one for line, between in zip(lines, filler, strict=True) for one in (*line, *between.tolist())]
    )
    cache, right = model.prefilled(ids), []
    for place, key in enumerate(keys):
        query = torch.tensor([[*newline, key, *colon]], device=model.device)
        logits = model.forward(query, cache)[0]
        right.append(int(logits[values].argmax()) == place)
        model.forget(len(ids))
    request.advance(1)
    return right


TASKS: Final = (
    Probe(
        name="copying",
        suite="copying",
        category="Copying",
        metric="gain_nats",
        samples=_SAMPLES,
        measure=_measure_copying,
        optional=lambda _: (HAYSTACK,),
        check=_check_copying,
        columns={"Gain": "gain_nats", "With a copy": "with_copy_nats", "Without": "without_copy_nats"},
        about="Loss of a passage in nats per token, with and without an earlier copy, and the difference.",
    ),
    Probe(
        name="key_values",
        suite="key-values",
        category="Recall by choice",
        metric="accuracy",
        samples=_SAMPLES,
        measure=_measure_key_values,
        optional=lambda _: (HAYSTACK,),
        check=_check_key_values,
        columns={"Value chosen": "accuracy", "Chance": "chance"},
        about="Percent of the keys whose value is the most likely of the values in the context.",
    ),
)
