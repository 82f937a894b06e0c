"""The user's haystack: the long text in which needles and facts are hidden.

In:  `haystack.txt` of the data folder, or else the essays of RULER.
Out: texts of a number of tokens, repeated where the haystack is too short.
"""

from __future__ import annotations

import re
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import HAYSTACK, DataFiles
from nextlong.evaluate.task import TaskRequest, table_of
from nextlong.evaluate.tasks.ruler import essay_words

# The words of the tasks that are generated here.
WORDS: Final = table_of("haystack")
# Of prose; in a text with more of them, the text is only repeated sooner.
_MAX_CHARS_PER_TOKEN: Final = 8


def haystack_text(data: DataFiles) -> str:
    """Return the whole text; the essays of RULER stand in for a missing haystack."""
    if data.source(HAYSTACK) == HAYSTACK:
        text = data.text(HAYSTACK)
    else:
        text = " ".join(essay_words(data))
    if not text.strip():
        raise EvaluateError(
            where=HAYSTACK, problem="it is empty", fix="write a long text to it"
        )
    return text


def haystacks(
    request: TaskRequest, text: str, room: int, *, rounds: int = 1
) -> list[str]:
    """Return consecutive texts of `room` tokens each, one per round.

    The source text is repeated as needed, and tokenized once.
    """
    tokens = room * rounds
    # A library of books is not tokenized for one prompt.
    part = text[: tokens * _MAX_CHARS_PER_TOKEN]
    repeats = -(-tokens // request.tokenizer.count(part))
    whole = " ".join([part] * repeats)
    bounds = request.tokenizer.boundaries(whole)
    texts = []
    for first in range(0, tokens, room):
        start, _ = bounds[first]
        _, end = bounds[first + room - 1]
        texts.append(whole[start:end])
    return texts


def ends_of(text: str, pattern: str) -> list[int]:
    """Return the beginning of a text, the ends of what matches, and its own end."""
    ends = [match.end() for match in re.finditer(pattern, text)]
    return [0, *ends, len(text)]
