"""Cuts: where the one chunk that a sequence holds only the beginning of ends, by the offsets of the reference tokenizer.

In:  sequences, the text of their cut chunks. Out: the characters that stay, and whether the cut falls where it should.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nextlong.schemas import JOINT, NEGATIVE, Layout
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Composed
from nextlong.verify.outcome import Outcome

MOST_TRIMMED = 4  # tokens that a cut gives up to fall between two characters


class Beginning(NamedTuple):
    """The beginning of a chunk, of so many tokens: the whole characters, and whether the next token begins another one."""

    chars: int
    is_between: bool


class Tokenized:
    """The text of a chunk, by its tokens."""

    def __init__(self, run: Artefacts, text: str) -> None:
        """Encode the text anew."""
        self.text = text
        self._offsets: Sequence[tuple[int, int]] = run.tokenizer.encode(text, add_special_tokens=False).offsets

    def first(self, tokens: int) -> Beginning:
        """Return what the first tokens, not all, cover. A character that goes on behind the cut is not whole."""
        stop = max((end for _, end in self._offsets[:tokens]), default=0)
        start = min(start for start, _ in self._offsets[tokens:])
        return Beginning(min(stop, start), stop <= start)

    def visible(self, tokens: int) -> str:
        """Return the text that spans tell of: at least a character."""
        return self.text[: max(1, self.first(tokens).chars)]


def is_exact(run: Artefacts) -> bool:
    """Whether negatives fill a budget, and only the last of a sequence is cut."""
    return run.layout == Layout.EXTENDED and run.setting("compose", "fit", "exact") == "exact"


def texts_of_cuts(run: Artefacts, block: Iterable[Composed]) -> dict[int, Tokenized]:
    """Return the chunks that the sequences of a block hold only the beginning of."""
    cut = np.concatenate([np.empty(0, np.int64), *(sequence.chunk[sequence.is_truncated] for sequence in block)])
    return {chunk: Tokenized(run, text) for chunk, text in run.texts_of(cut).items()}


def check_cuts(run: Artefacts) -> list[Outcome]:
    """Check every cut."""
    outcome = Outcome("cuts between characters", "cuts")
    for block in run.blocks():
        texts = texts_of_cuts(run, block)
        for sequence in block:
            outcome.checked += int(sequence.is_truncated.sum())
            for problem in cut_problems(run, sequence, texts):
                outcome.breach(problem)
    return [outcome]


def cut_problems(run: Artefacts, sequence: Composed, texts: dict[int, Tokenized]) -> Iterator[str]:
    """Yield cuts that part a character though one near would not, or leave none, and joints behind a newline."""
    joint_tokens = len(run.special_ids[JOINT])
    for span in np.flatnonzero(sequence.is_truncated).tolist():
        if int(sequence.chunk[span]) not in texts:
            continue
        tokenized, tokens = texts[int(sequence.chunk[span])], int(sequence.end[span] - sequence.start[span])
        chars, is_between = tokenized.first(tokens)
        fills_budget = is_exact(run) and sequence.role[span] == NEGATIVE
        if fills_budget and not chars:
            yield f"{sequence.where(span)} holds a part of a character only"
        is_joined = span + 1 < len(sequence.role) and sequence.role[span + 1] == JOINT
        if fills_budget and is_joined and tokenized.text[:chars].endswith("\n"):
            yield f"{sequence.where(span)} ends in a newline but a separator (joint) follows it"
        if is_between or not joint_tokens:
            continue
        # A negative that is followed by no joint gives up the room of one, too.
        most = tokens - (joint_tokens if fills_budget and not is_joined else 1)
        for fewer in range(most, max(0, most - MOST_TRIMMED), -1):
            before = tokenized.first(fewer)
            is_fit = before.chars and not (fills_budget and tokenized.text[: before.chars].endswith("\n"))
            if before.is_between and is_fit:
                yield f"{sequence.where(span)} ends within a character; {tokens - fewer} tokens fewer would not"
                break
