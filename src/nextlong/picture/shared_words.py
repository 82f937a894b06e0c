"""Shared words: what two texts have in common beyond the words that all texts have.

In:  two texts, and a few others of the same kind. Out: words in lower case, as `strip.js` finds them again.
A letter of a script that is written without blanks counts as a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_SOLO = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SOLO}]|(?:(?![{_SOLO}])[^\W_])+")
_COMMON_SHARE = 1 / 3  # of the other texts that hold a word which says nothing
_FEWEST_TEXTS = 6


def words_of(text: str) -> set[str]:
    """Return the distinct words of a text, in lower case."""
    return set(map(str.lower, _WORD.findall(text)))


def common_words(texts: Iterable[str]) -> frozenset[str]:
    """Return the words that at least a third of some texts hold; none if these are too few to say."""
    held = [words_of(text) for text in texts]
    if len(held) < _FEWEST_TEXTS:
        return frozenset()
    counts = Counter(word for piece_words in held for word in piece_words)
    return frozenset(word for word, count in counts.items() if count >= _COMMON_SHARE * len(held))


def shared(one: str, other: str, common: frozenset[str]) -> list[str]:
    """Return the words that two texts share, without the common ones, sorted."""
    return sorted((words_of(one) & words_of(other)) - common)


def sample(places: Sequence[int], most: int) -> list[int]:
    """Return at most so many of some places, evenly spread."""
    step = max(1, -(-len(places) // most))
    return list(places[::step])
