"""Counting: how often frequent words occur in a section of the sequence.

OLMo 3 asks for the counts of common words in sections of 2^i characters, from
min(16 Ki, 25 %) to min(256 Ki, 50 %) of a document, with at least five questions. Ours:
a section is marked where it begins and ends, consists of whole chunks, and is as short
as that allows; a counted word has six letters or more, begins with a capital and never
occurs in lower case in its section, so none is in a list of words of an evaluation
suite.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from nextlong.sequences.tasks.base import (
    Answer,
    Insertion,
    KnownTask,
    Piece,
    found,
    invent_words,
)

# Where a section begins, where it ends, and a question with its answer.
WORDINGS: Final = (
    (
        "Section {label} begins here.\n",
        "Section {label} ends here. It has these words, each so many times:\n",
        "{word}: {count}\n",
    ),
    (
        "Start of the passage {label}.\n",
        "End of the passage {label}. Count these words in the passage.\n",
        "The word {word} occurs {count} times.\n",
    ),
    (
        "From here on, the text belongs to {label}.\n",
        "Here the text of {label} is over.\n",
        "How many times does it have {word}? {count} times.\n",
    ),
)
_SHORTEST: Final = (16 * 1024, 0.25)  # characters, and share of the text
_LONGEST: Final = (256 * 1024, 0.5)
_MIN_QUESTIONS: Final = 5
_MAX_QUESTIONS: Final = 8
_COMMON: Final = 20  # most frequent words of which questions are asked
_MIN_COUNT: Final = 3
_MIN_LETTERS: Final = 6
_WORD: Final = re.compile(r"[^\W\d_]+")


class _Counting(KnownTask):
    name = "counting"
    reads_text = True

    def insert(
        self, pieces: Sequence[Piece], rng: np.random.Generator
    ) -> list[Insertion]:
        opening, closing, question = WORDINGS[rng.integers(len(WORDINGS))]
        (label,) = invent_words(1, rng)
        section = _draw_section(pieces, rng)
        if section is None:
            return []
        first, last = section
        common = _common_words(pieces[first:last])
        if len(common) < _MIN_QUESTIONS:
            return []
        count = min(len(common), int(rng.integers(_MIN_QUESTIONS, _MAX_QUESTIONS + 1)))
        lines = closing.format(label=label)
        for index in rng.permutation(len(common))[:count].tolist():
            word, occurrences = common[index]
            lines += question.format(word=word, count=occurrences)
        opened = Insertion(first, opening.format(label=label))
        return [opened, Insertion(last, lines)]

    def solve(self, before: str, text: str) -> list[Answer]:
        answers = []
        for opening, closing, question in WORDINGS:
            for end in found(closing, text):
                begin = opening.format(label=end["label"])
                section = before.rpartition(begin)[2] if begin in before else ""
                for asked in found(question, text):
                    count = _occurrences(asked["word"], section)
                    answers.append(Answer(asked["count"], str(count)))
        return answers


def _draw_section(
    pieces: Sequence[Piece], rng: np.random.Generator
) -> tuple[int, int] | None:
    """Return the pieces [first, last) of a section, None if the text is too short."""
    # (pieces + 1,): the characters before each place.
    before = np.append(0, np.cumsum([len(piece.text) for piece in pieces]))
    shortest = _exponent(_SHORTEST, before[-1])
    longest = _exponent(_LONGEST, before[-1])
    chars = 2 ** int(rng.integers(shortest, max(shortest, longest) + 1))
    ends = np.arange(2, len(pieces))
    # The last place from which a section of so many characters fits before each end.
    begins = np.searchsorted(before, before[ends] - chars, side="right") - 1
    fits = np.flatnonzero(begins >= 1)
    if not len(fits):
        return None
    chosen = fits[rng.integers(len(fits))]
    return int(begins[chosen]), int(ends[chosen])


def _exponent(bound: tuple[int, float], chars: int) -> int:
    """Return the exponent of the largest power of two within a bound."""
    most, share = bound
    return max(1, int(min(most, share * chars))).bit_length() - 1


def _common_words(section: Sequence[Piece]) -> list[tuple[str, int]]:
    """Return the most frequent words that may be counted, with their counts.

    Words of other tasks are not among them.
    """
    counts = Counter(_WORD.findall("".join(piece.text for piece in section)))
    of_tasks = "".join(piece.text for piece in section if piece.kind)
    asked = {}
    for word, count in counts.items():
        is_capitalized = word[0].isupper() and word.lower() not in counts
        is_common = count >= _MIN_COUNT and len(word) >= _MIN_LETTERS
        if is_capitalized and is_common and word not in of_tasks:
            asked[word] = count
    ranked = sorted(asked.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:_COMMON]


def _occurrences(word: str, section: str) -> int:
    """Return how often a word stands in a section, bordered by no other letters."""
    letter = r"[^\W\d_]"
    return len(re.findall(rf"(?<!{letter}){re.escape(word)}(?!{letter})", section))


TASK = _Counting()
