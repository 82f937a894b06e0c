"""Needle: one sentence hidden at many depths of a long text.

The answer must hold its words (paper App. A; Kamradt's test: docs/evaluate/needle.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from nextlong.evaluate.data import HAYSTACK
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.haystack import ends_of, haystack_text, haystacks

_NEEDLE: Final = (
    " The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park "
    "on a sunny day."
)
_FACTS: Final = ("eat a sandwich", "Dolores Park")
_PREFIX: Final = "\n\nAnswer: The best thing to do in San Francisco is"
_BUDGET: Final = 32
_SEAM_TOKENS: Final = 2  # what may split where the needle meets the text


def samples(request: TaskRequest, depths: int = 11) -> Iterator[Sample | None]:
    """Yield one sample per depth, from the head of the text (0) to its end (100).

    Fewer samples are spread over the depths. Further rounds use the text that follows.
    """
    before, after = prompt_of("needle").split("{context}")
    around = request.tokenizer.count(before + _NEEDLE + after + _PREFIX)
    room = request.room - _BUDGET - around - _SEAM_TOKENS
    request.require("needle", tokens=room, min_tokens=1)
    count = request.samples or depths
    # In percent; a single sample has its needle in the middle.
    depths_percent = [50.0]
    if count != 1:
        depths_percent = np.linspace(0, 100, min(count, depths)).tolist()
    rounds = -(-count // depths)
    texts = haystacks(request, haystack_text(request.data), room, rounds=rounds)
    for index in range(count):
        depth = depths_percent[index % depths]
        haystack = texts[index // depths]
        position = _sentence_end(haystack, depth)
        context = haystack[:position] + _NEEDLE + haystack[position:]
        details = {
            "depth": depth,
            "chars_before": len(before),
            "chars_behind": len(after + _PREFIX),
        }
        yield Sample(
            prompt=before + context + after,
            references=_FACTS,
            max_new_tokens=_BUDGET,
            answer_prefix=_PREFIX,
            details=details,
        )


def _sentence_end(text: str, depth: float) -> int:
    """Return the nearest end of a sentence at or before the depth.

    The ends of the text are ends too.
    """
    ends = ends_of(text, r"[.!?](?=\s)")
    deepest = int(len(text) * depth / 100)
    return ends[bisect_right(ends, deepest) - 1]


def _found(answer: str, sample: Sample) -> dict[str, float]:
    answer = answer.lower()
    is_found = [fact.lower() in answer for fact in sample.references]
    found_share = is_found.count(True) / len(is_found)
    return {"found": float(all(is_found)), "found_share": found_share}


_needle = partial(Task, files=(HAYSTACK,), metric="found", score=_found)
TASKS: Final = (
    _needle("needle", "needle", "Needle", samples=11, make=samples),
    _needle(
        "needle_35",
        "needle-35",
        "Needle, 35 depths",
        samples=35,
        make=partial(samples, depths=35),
    ),
)
