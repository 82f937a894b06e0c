"""Standard: documents in random order, one after the other, until a sequence is full.

In:  the content hash and the length of every document.
Out: stretches of one keyed shuffle: positions of documents, no document in two of them.

The baseline of every paper on long sequences: nothing in a sequence belongs together. The shuffle sorts keyed hashes of
the documents' contents, so that another sharding or file order gives the same sequences.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import shuffled


def draft(
    content_hashes: NDArray[np.uint64],
    chars: NDArray[np.int64],
    *,
    drafted_chars: float,
    sequences: int | None,
    seed: int,
) -> list[NDArray[np.int64]]:
    """Return at most `sequences` (None: all) lists of positions into the documents, shape (n,), of `drafted_chars` each."""
    return stretches(
        shuffled(content_hashes, seed=seed, stage="standard"), chars, drafted_chars=drafted_chars, sequences=sequences
    )


def stretches(
    order: NDArray[np.int64], chars: NDArray[np.int64], *, drafted_chars: float, sequences: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut `order`, positions into `chars`, into consecutive pieces that each just reach `drafted_chars`.

    What is left at the end and does not reach it is left out.
    """
    filled = np.concatenate([[0], np.cumsum(chars[order])])
    enough = max(1, math.ceil(drafted_chars))
    pieces: list[NDArray[np.int64]] = []
    first = 0
    while sequences is None or len(pieces) < sequences:
        last = int(np.searchsorted(filled, filled[first] + enough))
        if last == len(filled):
            break
        pieces.append(order[first:last])
        first = last
    return pieces
