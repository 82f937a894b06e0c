"""Texts: the haystacks of the needle tasks, and RULER's word lists.

In:  the user's essays or any long text; wonderwords' lists, which come with the extra. Out: words, sentences, and haystacks of an
exact number of tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import DataFiles, origin, record
from nextlong.evaluate.task import TaskRequest

ESSAYS: Final = "ruler/PaulGrahamEssays.json"
HAYSTACK: Final = "needle/haystack.txt"
_PLAIN_ESSAYS: Final = "ruler/essays.txt"
_MOST_CHARS_PER_TOKEN: Final = 8  # of prose; with more of them the text is only repeated sooner


@cache
def wonderwords(name: str) -> tuple[str, ...]:
    """Return a list of the package wonderwords: noun, adjective or verb."""
    required("wonderwords")
    # Read from the package itself: its own functions draw at random, and the samples need the whole list in order.
    lines = (files("wonderwords.assets") / f"{name}list.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.rstrip() for line in lines)


class _Hyphenated:
    """Every adjective-noun once, in the order of `sorted`: six million strings that are computed on access.

    Those of one adjective are contiguous, unless another adjective begins with it and a hyphen: only such groups are expanded and
    sorted.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self._nouns = sorted(set(nouns))
        self._groups: list[list[str]] = []
        for stem in sorted({f"{adjective}-" for adjective in adjectives}):
            if self._groups and stem.startswith(self._groups[-1][0]):
                self._groups[-1].append(stem)
            else:
                self._groups.append([stem])
        # The index behind the last word of each group.
        self._ends = list(
            accumulate(len(self._words(group)) if len(group) > 1 else len(self._nouns) for group in self._groups)
        )

    def _words(self, group: Sequence[str]) -> list[str]:
        return sorted({stem + noun for stem in group for noun in self._nouns})

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        within = index - (self._ends[place - 1] if place else 0)
        group = self._groups[place]
        return group[0] + self._nouns[within] if len(group) == 1 else self._words(group)[within]


@cache
def hyphenated() -> _Hyphenated:
    """Return every adjective-noun: the keys of RULER's needles."""
    return _Hyphenated(wonderwords("adjective"), wonderwords("noun"))


def essay_words(data: DataFiles) -> list[str]:
    """Return the words of the essays, in order."""
    is_plain = not data.has(ESSAYS) and data.has(_PLAIN_ESSAYS)
    text = data.text(_PLAIN_ESSAYS) if is_plain else data.json(ESSAYS, record(text=str))["text"]
    if not text.strip():
        raise EvaluateError(f"{ESSAYS} holds no words; {origin(ESSAYS)}")
    return re.sub(r"\s+", " ", text).split(" ")


@lru_cache(maxsize=16)
def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences by Punkt with NLTK's English model, as NVIDIA's scripts do."""
    return tuple(required("punkt").sent_tokenize(text))


def haystack_text(data: DataFiles) -> str:
    """Return the text that needles are hidden in. Raises EvaluateError if it is empty."""
    # The essays of RULER stand in for a missing haystack.
    text = data.text(HAYSTACK) if data.has(HAYSTACK) or not data.has(ESSAYS) else " ".join(essay_words(data))
    if not text.strip():
        raise EvaluateError(f"{HAYSTACK} is empty; put a long text there")
    return text


class Haystacks:
    """Texts of `room` tokens, each round's behind that of the one before; the text is repeated as needed and tokenized once."""

    def __init__(self, request: TaskRequest, text: str, room: int, *, rounds: int) -> None:
        # Cut to about what the rounds take, so that a library of books is not tokenized for one prompt.
        part = text[: room * rounds * _MOST_CHARS_PER_TOKEN]
        repeats = -(-room * rounds // request.tokenizer.count(part))
        self._text, self._room = " ".join([part] * repeats), room
        self._offsets = request.tokenizer.boundaries(self._text)

    def of_round(self, number: int) -> str:
        first = number * self._room
        return self._text[self._offsets[first][0] : self._offsets[first + self._room - 1][1]]


def haystack_ids(request: TaskRequest, tokens: int, *, part: int) -> NDArray[np.int64]:
    """Return `tokens` ids of the haystack, shape (tokens,), each `part` elsewhere. Raises EvaluateError if it is too short."""
    text = haystack_text(request.data)
    chars = tokens * _MOST_CHARS_PER_TOKEN
    first = part * chars % len(text)
    # Each part begins elsewhere and wraps around the end of the text.
    ids = request.tokenizer.encode((text[first:] + "\n" + text[:first])[:chars])
    if len(ids) < tokens:
        raise EvaluateError(
            f"{HAYSTACK} has {len(ids):,} tokens, and {tokens:,} are needed; put a longer text there, or leave the length out"
        )
    return np.array(ids[:tokens])
