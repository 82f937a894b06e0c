"""Multi-round co-reference: the same request several times, with different replies.

The question asks for the reply to one of the equal requests, such as the second, so
that a reader must tell the rounds of a long conversation apart (as in MRCR, Vodrahalli
et al., arXiv 2409.12640). Other requests share the form or the topic. Forms, topics and
replies are invented words; the wordings are ours.
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

# Round, and question with its answer.
WORDINGS: Final = (
    (
        "Visitor: compose a {form} on {topic}.\nClerk: {reply}\n",
        "Visitor: repeat the {ordinal} {form} on {topic} that you composed.\n"
        "Clerk: {reply}\n",
    ),
    (
        "Somebody wants a {form} for {topic}, and receives: {reply}\n",
        "What was received by the {ordinal} one who wanted a {form} for {topic}? "
        "This: {reply}\n",
    ),
    (
        "Order: one {form} about {topic}. Delivery: {reply}\n",
        "Give the {ordinal} delivery after an order of one {form} about {topic}: "
        "{reply}\n",
    ),
)
_ORDINALS: Final = ("first", "second", "third")
_OTHER_ROUNDS: Final = 4  # of another form or another topic
_REPLY_WORDS: Final = 6


class _Coreference(KnownTask):
    name = "coreference"

    def insert(
        self, pieces: Sequence[Piece], rng: np.random.Generator
    ) -> list[Insertion]:
        statement, question = WORDINGS[rng.integers(len(WORDINGS))]
        form, other_form, topic, other_topic = invent_words(4, rng)
        others = [(other_form, topic), (form, other_topic)] * (_OTHER_ROUNDS // 2)
        requests = [(form, topic)] * len(_ORDINALS) + others
        replies = [" ".join(invent_words(_REPLY_WORDS, rng)) for _ in requests]
        order = rng.permutation(len(requests)).tolist()
        place = question_place(pieces, rng)
        places = statement_places(place, len(requests), rng)
        insertions = []
        asked: list[str] = []  # replies to the request of the question
        for number, at in zip(order, places, strict=True):
            own_form, own_topic = requests[number]
            text = statement.format(
                form=own_form, topic=own_topic, reply=replies[number]
            )
            insertions.append(Insertion(at, text))
            if requests[number] == requests[0]:
                asked.append(replies[number])
        ordinal = int(rng.integers(len(_ORDINALS)))
        text = question.format(
            ordinal=_ORDINALS[ordinal], form=form, topic=topic, reply=asked[ordinal]
        )
        return [*insertions, Insertion(place, text)]

    def solve(self, before: str, text: str) -> list[Answer]:
        answers = []
        for statement, question in WORDINGS:
            for asked in found(question, text):
                replies = []
                for turn in found(statement, before):
                    is_same_form = turn["form"] == asked["form"]
                    if is_same_form and turn["topic"] == asked["topic"]:
                        replies.append(turn["reply"])
                wanted = replies[_ORDINALS.index(asked["ordinal"]) :]
                answers.append(Answer(asked["reply"], next(iter(wanted), "")))
        return answers


TASK = _Coreference()
