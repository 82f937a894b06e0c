"""Propose: how long the sequences of a first recipe are, and how many, from what its files hold.

In:  a recipe with sources and a tokenizer. Out: the longest context length, a power of two, that a corpus of this size carries,
and in which its documents have room; so many sequences that a chunk serves about twice; and shorter chunks where few documents
have two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.corpus.look import look_at
from nextlong.errors import NextlongError
from nextlong.inputs.head import UNREADABLE
from nextlong.inputs.listing import list_files
from nextlong.plural import counted
from nextlong.recipe import Recipe
from nextlong.runs.warnings import MOST_OF_CORPUS
from nextlong.tokens.enough import count_tokens

_LENGTHS: Final = (1_024, 131_072)
_LEAST_EXTENDABLE: Final = 0.1  # of the documents, which have two chunks or more
_LEAST_CHUNK_CHARS: Final = 64
_ROOM: Final = 4  # sequences are so many times as long as half of the documents that are extended
_USES: Final = 2.0  # of a chunk, on average
_MOST_SEQUENCES: Final = 1_000  # of a first run


@dataclass(frozen=True)
class Proposal:
    """What is proposed, and what it is made from: about so many documents and tokens; `rejects` of the records that were read."""

    target_tokens: int
    sequences: int
    max_chars: int
    documents: float
    tokens: float
    rejects: int
    reject_share: float

    @property
    def in_words(self) -> str:
        """Return what is proposed and why."""
        uses = self.sequences * self.target_tokens / self.tokens
        told = (
            f"about {self.documents:,.0f} documents with {self.tokens:,.0f} tokens: {counted(self.sequences, 'sequence')} of "
            f"{self.target_tokens:,} tokens, in which a chunk serves {uses:.1f} times on average"
        )
        if not self.rejects:
            return told
        return f"{told}; {counted(self.rejects, 'record')} of those read cannot be used ({self.reject_share:.1%})"


def propose(recipe: Recipe) -> Proposal | None:
    """Return lengths and numbers that fit a recipe's sources, None where these are elsewhere or cannot be read."""
    if any("://" in source.path for source in recipe.ingest.sources):
        return None
    try:
        files = [list_files(source, where="FILE") for source in recipe.ingest.sources]
        looks = [look for look in look_at(recipe, files) if look.documents]
        tokens = count_tokens(recipe, looks) if looks else 0.0
    except (NextlongError, *UNREADABLE):
        return None
    least, most = _LENGTHS
    if tokens < least:
        return None
    document_chars = np.array([len(text) for look in looks for text in look.texts])
    max_chars = _chunk_chars(recipe.chunk.max_chars, document_chars)
    documents = sum(look.scale * look.distinct_documents for look in looks)
    extendable = sum(
        look.scale * look.distinct_documents * float(np.mean([len(text) > max_chars for text in look.texts]))
        for look in looks
        if look.texts
    )
    carried = 1 << math.floor(math.log2(max(1.0, MOST_OF_CORPUS * tokens)))
    token_of_chars = tokens / sum(look.scale * look.distinct_chars for look in looks)
    longer = document_chars[document_chars > max_chars]
    roomy = 1 << math.ceil(math.log2(_ROOM * token_of_chars * float(np.median(longer)))) if len(longer) else least
    length = min(most, max(least, carried, min(roomy, 1 << math.floor(math.log2(tokens)))))
    sequences = max(1, math.floor(min(_USES * tokens / length, extendable, _MOST_SEQUENCES)))
    rejects = sum(look.rejects.total() for look in looks)
    read = sum(look.documents for look in looks) + rejects
    return Proposal(length, sequences, max_chars, documents, tokens, rejects, rejects / max(1, read))


def _chunk_chars(default: int, document_chars: NDArray[np.int64]) -> int:
    """Return the default length of a chunk, or where few documents are longer a power of two of which the median has three."""
    if (document_chars > default).mean() >= _LEAST_EXTENDABLE:
        return default
    third = max(1.0, float(np.median(document_chars)) / 3)
    return max(_LEAST_CHUNK_CHARS, 1 << math.floor(math.log2(third)))
