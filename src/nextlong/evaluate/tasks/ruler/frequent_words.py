"""Frequent words: made-up words with frequencies by Zipf's law; the three most frequent behind the dots are asked for.

In:  nothing but the seed. Out: prompts with three words each; score: share of them found (`string_match_all`).
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Final

import numpy as np

from nextlong.evaluate.scores import string_match_all
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.ruler.fit import refuse_short

BUDGET: Final = 50
_ALPHA: Final = 2.0
_LETTERS: Final = 6
_TOKENS_PER_WORD_OF_VOCABULARY: Final = 50
_PROMPT: Final = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. "
    "{context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
    "frequently appeared "
    "words in the above coded text?"
)
_PREFIX: Final = " Answer: According to the coded text above, the three most frequently appeared words are:"


def samples(request: Request) -> Iterator[Sample | None]:
    """Yield the samples; the answer's tokens are taken from the length first, and all else follows from the rest."""
    refuse_short(request, "fwe", least=1024)
    draw = random.Random(request.seed)
    make = partial(_prompt, seed=request.seed)
    room = request.room - BUDGET
    step = room // 32
    vocabulary = _vocabulary(room, draw, seed=request.seed)
    words = room // _LETTERS
    while _tokens(request, make(words, vocabulary)) < room:
        words += step
    words -= step
    return _samples(request, draw, words=words, step=step, room=room)


def _samples(request: Request, draw: random.Random, *, words: int, step: int, room: int) -> Iterator[Sample | None]:
    for _ in count():
        vocabulary = _vocabulary(room, draw, seed=request.seed)
        used = words
        while used > 0 and _tokens(request, prompt := _prompt(used, vocabulary, seed=request.seed)) > room:
            used -= step
        yield Sample(prompt, tuple(vocabulary[1:4]), BUDGET, _PREFIX) if used > 0 else None


def _vocabulary(room: int, draw: random.Random, *, seed: int) -> list[str]:
    size = room // _TOKENS_PER_WORD_OF_VOCABULARY
    made = ["".join(draw.choices(string.ascii_lowercase, k=_LETTERS)) for _ in range(size)]
    while len(set(made)) < size:
        made.append("".join(draw.choices(string.ascii_lowercase, k=_LETTERS)))
    vocabulary = sorted(set(made))
    random.Random(seed).shuffle(vocabulary)
    vocabulary[0] = "..."  # the most frequent is noise
    return vocabulary


def _prompt(words: int, vocabulary: list[str], *, seed: int) -> str:
    from scipy.special import zeta

    ranks = np.arange(1, len(vocabulary) + 1)
    counts = (words * (ranks**-_ALPHA) / zeta(_ALPHA)).astype(int)
    listed = [word for word, repeats in zip(vocabulary, counts.tolist(), strict=True) for _ in range(repeats)]
    random.Random(seed).shuffle(listed)
    return _PROMPT.format(context=" ".join(listed))


def _tokens(request: Request, prompt: str) -> int:
    return request.tokenizer.count(prompt + _PREFIX)


def _score(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


TASKS: Final = (
    Task("fwe", "ruler", "RULER", "string_match_all", samples, _score, samples=500, max_new_tokens=BUDGET, version=2),
)
