"""After the last meta-chunk: the tokens to expect there, from the chunks of documents.

In:  how many documents have how many chunks. Out: the expected share of the tokens that
follow the last meta-chunk, and the settings that make it small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from nextlong.runs.statistics.thresholds import THRESHOLDS

# The smallest chunk size that is proposed, and the largest compose.min_meta_chunks.
MIN_CHUNK_CHARS: Final = 64
_MAX_MIN_META_CHUNKS: Final = 8
# Leaves room below the threshold, because the documents of a run are a sample.
_MARGIN: Final = 0.9


class ExpectedAfterLast(NamedTuple):
    """What to expect if only documents of enough chunks are extended.

    `share` is that of the tokens after the last meta-chunk, `remaining` that of the
    documents that have enough chunks.
    """

    share: float
    remaining: float


def shares_after_last(
    documents: Sequence[tuple[int, float]],
) -> dict[int, ExpectedAfterLast]:
    """Return what to expect of documents with at least 2, 3, … chunks, by that number.

    `documents` has pairs: a number of chunks, and how many documents have so many.

    Negatives are shared evenly among the meta-chunks, so the last one of p is followed
    by one part in p. Corpora of real documents differ from this by at most 0.02.
    """
    extendable = [(chunks, count) for chunks, count in documents if chunks >= 2]
    total = sum(count for _, count in extendable)
    shares = {}
    for min_chunks in range(2, _MAX_MIN_META_CHUNKS + 1):
        kept = [(chunks, count) for chunks, count in extendable if chunks >= min_chunks]
        num_kept = sum(count for _, count in kept)
        if num_kept:
            share = sum(count / chunks for chunks, count in kept) / num_kept
            shares[min_chunks] = ExpectedAfterLast(share, num_kept / total)
    return shares


def enough_meta_chunks(shares: Mapping[int, ExpectedAfterLast]) -> int | None:
    """Return the least compose.min_meta_chunks that avoids `few-meta-chunks` for sure.

    None if no proposed one does.
    """
    wanted = _MARGIN * THRESHOLDS.max_after_last
    for min_chunks, expected in shares.items():
        if expected.share <= wanted:
            return min_chunks
    return None


def three_chunk_chars(median_chars: float) -> int:
    """Return the chunk size, a power of two, at which the median document has three."""
    third = max(1.0, median_chars / 3)
    return max(MIN_CHUNK_CHARS, 1 << math.floor(math.log2(third)))
