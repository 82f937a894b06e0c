"""Words: the lists that RULER draws from, and its essays.

wonderwords' lists come with the extra; NVIDIA's english_words.json, which cwe needs beyond them, and the essays are the
user's files.
"""

from __future__ import annotations

import functools
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Final, overload

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles, origin
from nextlong.evaluate.extra import required
from nextlong.evaluate.shapes import TextField

ESSAYS: Final = "ruler/PaulGrahamEssays.json"
ENGLISH_WORDS: Final = "ruler/english_words.json"
_PLAIN_ESSAYS: Final = "ruler/essays.txt"


@functools.cache
def wonderwords(name: str) -> tuple[str, ...]:
    """Return a list of the package wonderwords: noun, adjective or verb."""
    required("wonderwords")
    lines = (files("wonderwords.assets") / f"{name}list.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.rstrip() for line in lines)


class Hyphenated(Sequence[str]):
    """Every adjective-noun once, in the order of `sorted`, six millions of them, without making them.

    Those of one adjective stand together, unless another adjective begins with it and a hyphen: only these are made and sorted.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self._nouns = sorted(set(nouns))
        self._groups: list[list[str]] = []
        for stem in sorted({f"{adjective}-" for adjective in adjectives}):
            if self._groups and stem.startswith(self._groups[-1][0]):
                self._groups[-1].append(stem)
            else:
                self._groups.append([stem])
        self._ends = list(
            accumulate(len(self._words(group)) if len(group) > 1 else len(self._nouns) for group in self._groups)
        )

    def _words(self, group: Sequence[str]) -> list[str]:
        return sorted({stem + noun for stem in group for noun in self._nouns})

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        within = index - (self._ends[place - 1] if place else 0)
        group = self._groups[place]
        return group[0] + self._nouns[within] if len(group) == 1 else self._words(group)[within]


@functools.cache
def hyphenated() -> Hyphenated:
    """Return every adjective-noun: the keys of needles."""
    return Hyphenated(wonderwords("adjective"), wonderwords("noun"))


def single_words(*, seed: int) -> list[str]:
    """Return nouns, adjectives and verbs, each once, in the order that cwe draws from."""
    words = sorted({*wonderwords("noun"), *wonderwords("adjective"), *wonderwords("verb")})
    random.Random(seed).shuffle(words)
    return words


def essay_words(data: DataFiles) -> list[str]:
    """Return the words of the essays, in order."""
    is_plain = not data.has(ESSAYS) and data.has(_PLAIN_ESSAYS)
    text = data.text(_PLAIN_ESSAYS) if is_plain else data.json(ESSAYS, TextField)["text"]
    if not text.strip():
        raise EvaluateError(f"{ESSAYS} holds no words; {origin(ESSAYS)}")
    return re.sub(r"\s+", " ", text).split(" ")


def repeated(words: list[str], size: int) -> list[str]:
    """Return the first `size` words of a text that is repeated as often as needed."""
    repeats = -(-size // len(words))
    return (words * repeats)[:size]


@functools.lru_cache(maxsize=16)
def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences by Punkt with NLTK's English model, as NVIDIA's scripts do."""
    return tuple(required("punkt").sent_tokenize(text))
