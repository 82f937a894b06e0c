"""Needle in a haystack: one sentence in a long text, at 11 or 35 depths; the answer must hold its words (paper App. A).

In:  a haystack, any text of the user's, repeated where it is too short. Out: one prompt a depth; score: the needle's fact is found.
The needle and question are those of Kamradt's test (github.com/gkamradt/LLMTest_NeedleInAHaystack); no judge is asked
(docs/evaluate/needle.md).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.evaluate.tasks.ruler import words

HAYSTACK: Final = "needle/haystack.txt"
BUDGET: Final = 32
_NEEDLE: Final = " The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
_FACTS: Final = ("eat a sandwich", "Dolores Park")
_PROMPT: Final = (
    "<context>\n{context}\n</context>\n\n"
    "Question: What is the best thing to do in San Francisco? Answer from the text above."
)
_PREFIX: Final = "\n\nAnswer: The best thing to do in San Francisco is"
_DEPTHS: Final = 11
MOST_CHARS_PER_TOKEN: Final = 8  # of prose; with more of them the text is only repeated sooner


def samples(request: Request, depths: int = _DEPTHS) -> Iterator[Sample | None]:
    """Yield one sample a depth, from the head of the text (0) to its end (100); fewer samples are spread over the depths.

    Rounds beyond the first read on in the text.
    """
    room = request.room - BUDGET - request.tokenizer.count(_PROMPT.format(context=_NEEDLE) + _PREFIX) - 2
    if room < 1:
        raise EvaluateError(f"--lengths: needle needs more than {request.length} tokens; leave the length out")
    count = request.samples or depths
    places = np.linspace(0, 100, min(count, depths)) if count != 1 else np.array([50.0])
    haystacks = Haystacks(request, haystack_text(request.data), room, rounds=-(-count // depths))
    for number in range(count):
        depth = float(places[number % depths])
        haystack = haystacks.of_round(number // depths)
        place = _sentence_end(haystack, int(len(haystack) * depth / 100))
        prompt = _PROMPT.format(context=haystack[:place] + _NEEDLE + haystack[place:])
        before, behind = _PROMPT.split("{context}")
        details: dict[str, JSON] = {"depth": depth, "chars_before": len(before), "chars_behind": len(behind + _PREFIX)}
        sample = Sample(prompt, _FACTS, BUDGET, _PREFIX, details=details)
        yield sample if request.fits(sample) else None


def haystack_text(data: DataFiles) -> str:
    """Return the text that needles are hidden in. Raises EvaluateError if it is empty."""
    text = (
        data.text(HAYSTACK) if data.has(HAYSTACK) or not data.has(words.ESSAYS) else " ".join(words.essay_words(data))
    )
    if not text.strip():
        raise EvaluateError(f"{HAYSTACK} is empty; put a long text there")
    return text


class Haystacks:
    """Texts of `room` tokens, a round's behind the one before; the text is repeated as needed and tokenized once."""

    def __init__(self, request: Request, text: str, room: int, *, rounds: int) -> None:
        part = text[: room * rounds * MOST_CHARS_PER_TOKEN]
        repeats = -(-room * rounds // request.tokenizer.count(part))
        self._text, self._room = " ".join([part] * repeats), room
        self._offsets = request.tokenizer.boundaries(self._text)

    def of_round(self, number: int) -> str:
        first = number * self._room
        return self._text[self._offsets[first][0] : self._offsets[first + self._room - 1][1]]


def _sentence_end(text: str, near: int) -> int:
    """Return the end of a sentence that is nearest before `near`; the ends of the text are ends too."""
    if near >= len(text):
        return len(text)
    ends = [0] + [match.end() for match in re.finditer(r"[.!?](?=\s)", text)]
    place = bisect_left(ends, near)
    return ends[min(place, len(ends) - 1)] if ends[min(place, len(ends) - 1)] == near else ends[max(place - 1, 0)]


def _score(answer: str, sample: Sample) -> dict[str, float]:
    is_named = [fact.lower() in answer.lower() for fact in sample.references]
    return {"found": float(all(is_named)), "found_share": sum(is_named) / len(is_named)}


TASKS: Final = tuple(
    Task(
        name.replace("-", "_"),
        name,
        category,
        "found",
        partial(samples, depths=depths),
        _score,
        samples=depths,
        max_new_tokens=BUDGET,
        files=(HAYSTACK,),
    )
    for name, category, depths in (("needle", "Needle", _DEPTHS), ("needle-35", "Needle, 35 depths", 35))
)
