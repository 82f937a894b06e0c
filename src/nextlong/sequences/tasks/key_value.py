"""Key–value: statements far apart, and a question for the values of some keys.

Every second key differs from another one in its last letter, so that a question must be
matched exactly. The wordings are ours.
"""

from __future__ import annotations

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
    question_place,
    statement_places,
)

# Statement, and question with its answer.
WORDINGS: Final = (
    (
        "The register lists {value} under {key}.\n",
        "What does the register list under {key}? It lists {value}.\n",
    ),
    (
        "Whoever asks for {key} is told {value}.\n",
        "What is somebody told who asks for {key}? The reply is {value}.\n",
    ),
    (
        "In the storeroom, {key} stands next to {value}.\n",
        "Next to what does {key} stand in the storeroom? Next to {value}.\n",
    ),
)
_PAIRS: Final = 8
_QUESTIONS: Final = 3


class _KeyValue(KnownTask):
    name = "key_value"

    def insert(
        self, pieces: Sequence[Piece], rng: np.random.Generator
    ) -> list[Insertion]:
        statement, question = WORDINGS[rng.integers(len(WORDINGS))]
        keys = _similar_keys(rng)
        values = invent_words(_PAIRS, rng)
        pairs = list(zip(keys, values, strict=True))
        asked = rng.permutation(_PAIRS)[:_QUESTIONS].tolist()
        order = rng.permutation(_PAIRS).tolist()
        place = question_place(pieces, rng)
        insertions = []
        for pair, at in zip(order, statement_places(place, _PAIRS, rng), strict=True):
            key, value = pairs[pair]
            insertions.append(Insertion(at, statement.format(key=key, value=value)))
        lines = ""
        for pair in asked:
            key, value = pairs[pair]
            lines += question.format(key=key, value=value)
        return [*insertions, Insertion(place, lines)]

    def solve(self, before: str, text: str) -> list[Answer]:
        answers = []
        for statement, question in WORDINGS:
            values = {fact["key"]: fact["value"] for fact in found(statement, before)}
            for asked in found(question, text):
                answers.append(Answer(asked["value"], values.get(asked["key"], "")))
        return answers


def _similar_keys(rng: np.random.Generator) -> list[str]:
    """Return keys, of which every second one differs from another in its last letter.

    No invented word ends in a y.
    """
    keys = []
    for word in invent_words(_PAIRS // 2, rng):
        keys += [word, f"{word[:-1]}y"]
    return keys


TASK = _KeyValue()
