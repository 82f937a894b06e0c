"""Passages: which texts have the same 100 words in a row, however many documents have them too.

In:  texts, and which of their runs of three words another has. Out: the pairs that have a passage in common.

A passage is found by its 98 runs of three words, in a row in both texts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nextlong.similarity.shared_runs import Bools, Ints, Owners, SharedRuns, ranges, shared_runs
from nextlong.similarity.shingles import SHINGLE_WORDS
from nextlong.similarity.texts import Texts
from nextlong.similarity.words import U64, mix, powers

PASSAGE_WORDS: Final = 100
_RUNS: Final = PASSAGE_WORDS - SHINGLE_WORDS + 1


def repeated_passages(texts: Texts, is_shared: Bools) -> Ints:
    """Return the pairs a < b of texts that share a passage, (n, 2)."""
    firsts = _passages(is_shared)
    owners = texts.owners[firsts]
    within = np.flatnonzero(owners == texts.owners[firsts + _RUNS - 1])
    if not len(within):
        return np.empty((0, 2), np.int64)
    firsts, owners = firsts[within], owners[within]
    return _pairs(shared_runs(_numbers(texts, firsts, owners), owners), len(texts.whole))


def _passages(is_shared: Bools) -> Ints:
    """Return where 98 shared runs in a row begin, (n,)."""
    whole, length = is_shared, 1
    while 2 * length <= _RUNS:
        whole = whole[:-length] & whole[length:]
        length *= 2
    rest = _RUNS - length  # two of `length` that overlap
    return np.flatnonzero(whole[:-rest] & whole[rest:])


def _numbers(texts: Texts, firsts: Ints, owners: Owners) -> U64:
    """Return a number for each passage, of the 98 runs from firsts[i] on, (n,): equal for equal runs."""
    those, which = np.unique(owners, return_inverse=True)
    sizes = np.diff(texts.offsets)[those]
    runs = texts.hashes[ranges(texts.offsets[those], sizes)]
    begins = (firsts - texts.offsets[owners]) + (np.cumsum(sizes) - sizes)[which]
    up, down = powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    return mix((sums[begins + _RUNS] - sums[begins]) * down[begins])


def _pairs(shared: SharedRuns, count: int) -> Ints:
    """Return the pairs a < b of `count` texts that hold the same kind, (n, 2)."""
    from scipy import sparse  # a tenth of a second, at every start of nextlong

    several = np.flatnonzero(shared.held > 1)
    places = ranges(shared.offsets[several], shared.held[several])
    firsts = np.cumsum(shared.held[several]) - shared.held[several]
    # A long passage has many kinds that the same texts hold: of these one will do.
    sets = (
        np.add.reduceat(mix(shared.holders[places].astype(np.uint64) + np.uint64(1)), firsts) if len(firsts) else firsts
    )
    several = several[np.unique(sets, return_index=True)[1]]
    held = shared.held[several]
    holders = shared.holders[ranges(shared.offsets[several], held)]
    shape = (len(several), count)
    has = sparse.csr_array((np.ones(len(holders), np.bool_), holders, np.append(0, np.cumsum(held))), shape=shape)
    a, b = (has.T @ has).nonzero()
    pairs: Ints = np.stack([a, b], axis=1)[a < b].astype(np.int64)
    return pairs
