"""NExtLong: between the chunks of a meta-document stand the chunks of other documents nearest to them (paper §3.1).

In:  a meta-document's chunks and, for each, its candidates in descending order of cosine.
Out: a draft: for each meta-chunk a prefix of its candidates, long enough, by characters, for composing to choose from.

A draft promises nothing about which candidate goes where; it is generous. Composing walks each prefix in order and skips
what an earlier meta-chunk has used, so that the negatives of a sequence are exactly the nearest that were still free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray


def negatives_per_meta_chunk(
    *,
    target_tokens: int,
    chars_per_token: float,
    draft_factor: float,
    document_chars: int,
    meta_chunks: int,
    max_chars: int,
) -> int:
    """Return k = (Q − S) / (p·s) with Q = T·E·w, rounded up, at least 1 (paper §3.1.2)."""
    drafted_chars = target_tokens * chars_per_token * draft_factor
    return max(1, math.ceil((drafted_chars - document_chars) / (meta_chunks * max_chars)))


def order(
    count: int,
    *,
    by: Literal["nearest", "random", "farthest"],
    pool: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return in which order the `count` candidates of a meta-chunk serve, as positions (the paper's ablation, §4.4).

    `by` the nearest first; or the `pool` nearest at random, or the farthest of these first.
    Behind the pool come the others, nearest first, for sequences that need more.
    """
    positions = np.arange(count)
    nearest, others = positions[:pool], positions[pool:]
    if by == "random":
        nearest = rng.permutation(nearest)
    elif by == "farthest":
        nearest = nearest[::-1]
    return np.concatenate([nearest, others])


def draft(
    candidate_ids: Sequence[NDArray[np.int64]],
    candidate_chars: Sequence[NDArray[np.int64]],
    *,
    fit: Literal["exact", "paper"],
    needed_chars: float,
    drafted_chars: float,
    negatives: int,
) -> list[int]:
    """Return how long a prefix of each meta-chunk's candidates the draft takes.

    `fit="paper"`: as long as it holds `negatives` that no earlier meta-chunk has taken. `"exact"`: as long as it holds
    `drafted_chars / p` characters besides what earlier meta-chunks will presumably use, which is their first
    `needed_chars / p`. A prefix is the whole list where the candidates run out. A candidate of 0 characters will not serve.
    """
    distinct, numbers = np.unique(np.concatenate(candidate_ids), return_inverse=True)
    firsts = np.cumsum([len(ids) for ids in candidate_ids])[:-1]
    is_taken = np.zeros(len(distinct), np.bool_)
    lengths = []
    for ids, chars in zip(np.split(numbers, firsts), candidate_chars, strict=True):
        free = ~is_taken[ids] & (chars > 0)
        if fit == "paper":
            filled, enough, used = np.cumsum(free), negatives, negatives
        else:
            filled = np.cumsum(chars * free)
            enough, used = math.ceil(drafted_chars / len(candidate_ids)), math.ceil(needed_chars / len(candidate_ids))
        lengths.append(min(len(ids), int(np.searchsorted(filled, enough)) + 1))
        is_taken[ids[: int(np.searchsorted(filled, used)) + 1]] = True
    return lengths
