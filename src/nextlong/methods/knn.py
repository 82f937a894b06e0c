"""KNN: a document followed by the documents most similar to it, nearest first.

In:  seed documents in draw order and, for each, its neighbours in descending order of cosine, itself excluded.
Out: positions of documents, one list a seed that has neighbours enough.

The published behaviour (the baseline of arXiv 2310.10638, 2405.19846 and 2501.12766) looks at each seed
alone, so a popular document comes back in many sequences: `reuse="across-sequences"`. `"never"` gives every document to
the first seed in draw order that reaches it, at the price of ever less similar neighbours for those that come later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reuse = Literal["across-sequences", "never"]


def draft(
    seeds: NDArray[np.int64],
    neighbours: Sequence[NDArray[np.int64]],
    chars: NDArray[np.int64],
    *,
    drafted_chars: float,
    sequences: int | None,
    reuse: Reuse,
) -> list[NDArray[np.int64]]:
    """Return at most `sequences` (None: all) lists of positions: a seed, then its nearest until `drafted_chars`.

    `seeds` (s,) and the s `neighbours` are positions into `chars` (n,). A seed whose neighbours do not reach
    `drafted_chars` gives no sequence and, under `reuse="never"`, takes no document from others.
    """
    enough = max(1, math.ceil(drafted_chars))
    free = np.ones(len(chars), np.bool_)
    drafts: list[NDArray[np.int64]] = []
    for own, nearest in zip(seeds.tolist(), neighbours, strict=True):
        if len(drafts) == sequences:
            break
        if not free[own]:
            continue
        candidates = np.concatenate([[own], nearest[free[nearest]]])
        last = int(np.searchsorted(np.cumsum(chars[candidates]), enough)) + 1
        if last > len(candidates):
            continue
        drafts.append(candidates[:last])
        if reuse == "never":
            free[candidates[:last]] = False
    return drafts
