"""Key-value probe: is the value that stood behind a key the likeliest, of all values in the context, when the key comes again?

In:  a Hugging Face model and any text (the haystack), into which pairs of words are strewn. Out: how often the right value is
chosen, in percent; chance is one of the number of pairs.

It asks what JSON KV asks, in a form that small models may understand: no instruction, no identifier of dozens of tokens, nothing
to generate; keys and values are single tokens, and only the values of the context are compared.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import numpy as np

from nextlong.errors import EvaluateError
from nextlong.evaluate.extra import required
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.probe import Probe, Values
from nextlong.evaluate.probes.copying import haystack_ids
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks import needle

PAIRS: Final = 8
_LEAST_TOKENS: Final = 16 * PAIRS
_SPACES: Final = "Ġ▁"  # how byte-level and sentencepiece vocabularies write the space before a word
_LEAST_LETTERS: Final = 3


def check(request: Request) -> None:
    """Raise EvaluateError for a length without room for the pairs, a tokenizer without words, and a text that is too short."""
    if request.length < _LEAST_TOKENS:
        raise EvaluateError(
            f"--lengths: key_values needs at least {_LEAST_TOKENS} tokens, not {request.length:,}; leave the length out"
        )
    assert isinstance(request.tokenizer, TextTokenizer), "probes read models that have one"
    _words(request.tokenizer)
    haystack_ids(request, request.length, part=0)


def measure(model: HuggingFaceModel, request: Request, _: Path | None) -> Values:
    """Ask for every pair of every sample."""
    check(request)
    words = _words(model.tokenizer)
    right = np.array(
        [_asked(model, request, words, number) for number in range(request.samples or PROBE.samples)], dtype=float
    )
    return {
        "category": "Recall by choice",
        "scores": {"accuracy": 100 * float(right.mean()), "chance": 100 / PAIRS},
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
    if len(words) < 2 * PAIRS:
        raise EvaluateError(
            f"key_values: the tokenizer has {len(words)} tokens that are words, and {2 * PAIRS} are needed; leave the probe out"
        )
    return words


def _asked(model: HuggingFaceModel, request: Request, words: list[int], number: int) -> list[bool]:
    """Return for each pair, those at the head first, whether its value is the likeliest of all."""
    torch = required("torch")
    drawn = random.Random(f"{request.seed} key_values {number}").sample(words, 2 * PAIRS)
    keys, values = drawn[:PAIRS], drawn[PAIRS:]
    colon, newline = model.tokenizer.encode(":"), model.tokenizer.encode("\n")
    lines = [[*newline, key, *colon, value, *newline] for key, value in zip(keys, values, strict=True)]
    room = request.length - sum(map(len, lines)) - len(newline) - 1 - len(colon) - len(model.tokenizer.prefix)
    filler = np.array_split(haystack_ids(request, room, part=number), PAIRS)
    ids = model.tokenizer.with_prefix(
        [one for line, between in zip(lines, filler, strict=True) for one in (*line, *between.tolist())]
    )
    cache, right = model.prefilled(ids), []
    for place, key in enumerate(keys):
        question = torch.tensor([[*newline, key, *colon]], device=model.device)
        logits = model.forward(question, cache)[0]
        right.append(int(logits[values].argmax()) == place)
        model.forget(len(ids))
    request.advance(1)
    return right


PROBE: Final = Probe(
    "key_values",
    "key-values",
    "accuracy",
    measure,
    lengths="each",
    samples=20,
    optional=(needle.HAYSTACK,),
    check=check,
)
