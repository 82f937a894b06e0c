"""Shared words: the rare words that two texts have in common, which is what makes one a distractor for the other.

In:  two texts, and how many texts of a sample of the corpus hold each word (their document frequency). Out: words in lower
case, as `page.js` finds them again. A letter of a script that is written without spaces counts as a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

_SOLO: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SOLO}]|(?:(?![{_SOLO}])[^\W_])+")
_RARE_SHARES: Final = (0.01, 0.03)  # of the sampled texts hold a rare word; each only where no shared word is rarer
_FEWEST_TEXTS: Final = 20  # of a sample that can tell rare words from common ones
_MOST_WORDS: Final = 20  # that are marked, the rarest


class Frequencies(NamedTuple):
    """How many of `texts` texts hold each word."""

    texts: int
    of: Counter[str]


def words_of(text: str) -> set[str]:
    """Return the distinct words of a text, in lower case."""
    return set(map(str.lower, _WORD.findall(text)))


def frequencies(texts: Iterable[str]) -> Frequencies:
    """Return the document frequency of every word of some texts."""
    held = [words_of(text) for text in texts]
    return Frequencies(len(held), Counter(word for words in held for word in words))


def shared(one: str, other: str, known: Frequencies) -> list[str]:
    """Return the rarest words that two texts share, sorted; those of few letters and those that many texts hold do not count."""
    common = words_of(one) & words_of(other)
    if known.texts >= _FEWEST_TEXTS:
        rare = ({word for word in common if known.of[word] <= share * known.texts} for share in _RARE_SHARES)
        common = next(filter(None, rare), set())
    return sorted(sorted(common, key=lambda word: (known.of[word], word))[:_MOST_WORDS])
