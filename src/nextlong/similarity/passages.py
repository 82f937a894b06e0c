"""Passages: which texts have the same 100 words in a row, however many documents have them too.

In:  texts, and the segments of runs that they share. Out: the pairs that have a passage in common.

A passage is found by its 98 runs of three words, in a row in both texts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy.sparse as sp

from nextlong.similarity.shared_runs import Bools, Ints, SharedRuns
from nextlong.similarity.shingles import SHINGLE_WORDS
from nextlong.similarity.texts import Texts
from nextlong.similarity.words import U64, mix, powers

PASSAGE_WORDS: Final = 100
_RUNS: Final = PASSAGE_WORDS - SHINGLE_WORDS + 1


def with_passages(texts: Texts, is_shared: Bools) -> Bools:
    """Return which texts may have a passage that consists of shared runs, (n,)."""
    whole, length = is_shared, 1
    while 2 * length <= _RUNS:
        whole = whole[:-length] & whole[length:]
        length *= 2
    rest = _RUNS - length  # two of `length` that overlap
    whole = whole[:-rest] & whole[rest:]
    has_passage = np.zeros(len(texts.whole), np.bool_)
    has_passage[texts.owners[np.flatnonzero(whole)]] = True
    return has_passage


def repeated_passages(texts: Texts, shared: SharedRuns, *, left_out: Bools) -> Ints:
    """Return the pairs a < b of texts that share a passage, (n, 2); not of those `left_out`, (n,)."""
    firsts = _passages(shared)
    owners = texts.owners[firsts]
    firsts, owners = firsts[~left_out[owners]], owners[~left_out[owners]]
    numbers = _numbers(texts.hashes, firsts)
    order = np.argsort(numbers)
    groups = np.cumsum(np.diff(numbers[order], prepend=numbers[order][:1]) != 0)
    shape = (len(texts.whole), len(order))
    has = sp.csr_array((np.ones(len(order), np.bool_), (owners[order], groups)), shape=shape)
    a, b = (has @ has.T).nonzero()
    pairs: Ints = np.stack([a, b], axis=1)[a < b].astype(np.int64)
    return pairs


def _passages(shared: SharedRuns) -> Ints:
    """Return where the passages that consist of shared runs begin, (n,).

    Of those that begin in one part and end in another only the first: who shares one of them shares all.
    """
    part = np.repeat(np.arange(len(shared.starts)), shared.runs)
    ends = np.cumsum(shared.runs)
    place = np.arange(len(part)) + (shared.starts - ends + shared.runs)[part]
    first, last = part[: max(0, len(part) - _RUNS + 1)], part[_RUNS - 1 :]
    whole = place[_RUNS - 1 :] - place[: len(first)] == _RUNS - 1
    whole &= shared.texts[first] == shared.texts[last]
    again = np.zeros(len(whole), np.bool_)
    again[1:] = whole[1:] & whole[:-1] & (first[1:] == first[:-1]) & (last[1:] == last[:-1])
    firsts: Ints = place[: len(first)][whole & ~again]
    return firsts


def _numbers(runs: U64, firsts: Ints) -> U64:
    """Return a number for each passage, of the 98 runs from firsts[i] on, (n,): equal for equal runs."""
    up, down = powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    return mix((sums[firsts + _RUNS] - sums[firsts]) * down[firsts])
