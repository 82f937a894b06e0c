"""The contract of a task with known answers: text to insert, and its own solution.

In:  the pieces of a sequence, from its first meta-chunk to its last.
Out: texts to insert between them; and, from the finished text alone, the answers that
     it gives beside those that follow from what stands before.

`solve` shares nothing with `insert` but the wordings, so `verify` recomputes every
answer as a reader would. Words are invented: each has four syllables that begin with
consonants as no English word has them, so none is in an evaluation suite.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

_ONSETS: Final = ("bw", "dz", "gz", "kj", "mv", "tl", "vr", "zl")
_VOWELS: Final = "aeiou"
_SYLLABLES: Final = 4
# So few that a statement and its question fit between the first and the last.
MIN_PIECES: Final = 3


class Piece(NamedTuple):
    """A chunk of a sequence with its separators, or an inserted text.

    `span` is the index of the first span of the chunk or, of an inserted text, that of
    the chunk behind it; `kind` is "" for a chunk.
    """

    span: int
    text: str
    kind: str = ""


class Insertion(NamedTuple):
    """A text to insert before the piece `place`; it ends in a newline."""

    place: int
    text: str


class Answer(NamedTuple):
    """The answer that a text gives, and the one that follows from the text before."""

    given: str
    recomputed: str


class KnownTask(ABC):
    """A kind of task."""

    name: str
    # Whether answers depend on the text of the sequence: such tasks are inserted last.
    reads_text: bool = False
    # Raise it whenever the same pieces give other texts.
    version: int = 1

    @abstractmethod
    def insert(
        self, pieces: Sequence[Piece], rng: np.random.Generator
    ) -> list[Insertion]:
        """Return the texts of a task in reading order; none if there is no room.

        There are `MIN_PIECES` pieces at least. Places are from 1 to len(pieces) - 1, so
        between the first and the last piece.
        """

    @abstractmethod
    def solve(self, before: str, text: str) -> list[Answer]:
        """Return the answers in an inserted text; none for one without a question.

        `before` is the text of the sequence before it.
        """


def invent_words(count: int, rng: np.random.Generator) -> list[str]:
    """Return different invented words of twelve letters."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = ""
        for _ in range(_SYLLABLES):
            syllables += str(rng.choice(_ONSETS)) + _VOWELS[rng.integers(len(_VOWELS))]
        words[syllables] = None
    return list(words)


def question_place(pieces: Sequence[Piece], rng: np.random.Generator) -> int:
    """Return a place in the second half."""
    return int(rng.integers(max(2, len(pieces) // 2), len(pieces)))


def statement_places(before: int, count: int, rng: np.random.Generator) -> list[int]:
    """Return `count` places in order, all of them before the place `before`."""
    places: list[int] = sorted(rng.integers(1, before, count).tolist())
    return places


def found(wording: str, text: str) -> Iterator[re.Match[str]]:
    """Return where a text has a wording; its fields in braces are groups of words."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[\\w ]+)", re.escape(wording))
    return re.finditer(pattern, text)
