"""Shares: which texts have enough of their words in runs that one other text has.

In:  texts, the runs they share, and the suspects: those that share enough with all others together.
Out: the pairs (a, b) of which a shares enough with b alone.

Most suspects consist of phrases from here and there. What tells is a text's rarest words: another text that shares enough of
it misses little, so that it has one of any words that together weigh more than what may be missing. Only who holds a run of
the rarest such words is compared, and only where those words do not say that too many are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.shared_runs import Bools, Ints, SharedRuns, ranges
from nextlong.similarity.texts import Texts, covered, highest

_RARE_SHARE: Final = 0.05  # of a text's weight that is looked at besides what may be missing
_AT_ONCE: Final = 1 << 21  # runs of one text that another may have
_KINDS_A_RUN: Final = 32  # … and kinds of runs a text may have, for each of them


class _Suspects(NamedTuple):
    """The runs of q suspects, one suspect after the other; r of them."""

    texts: Ints  # (q,)
    whole: Ints  # (q,)
    needed: Ints  # (q,)
    offsets: Ints  # (q + 1,)
    owners: Ints  # (r,) which of the suspects the run belongs to
    kinds: Ints  # (r,)
    words: NDArray[np.uint16]  # (r,) the weight of the run's last word

    @classmethod
    def of(cls, texts: Texts, shared: SharedRuns, suspects: Bools) -> _Suspects:
        those = np.flatnonzero(suspects)
        sizes = np.diff(texts.offsets)[those]
        places = ranges(texts.offsets[those], sizes)
        offsets = np.append(0, np.cumsum(sizes))
        owners = np.repeat(np.arange(len(those)), sizes)
        return cls(
            those,
            texts.whole[those],
            texts.needed[those],
            offsets,
            owners,
            shared.kinds[places],
            texts.words[places],
        )


def repeating(texts: Texts, shared: SharedRuns, suspects: Bools) -> Ints:
    """Return the pairs (a, b) of which a, one of the suspects, shares enough of its words with b, (n, 2)."""
    if not suspects.any():
        return np.empty((0, 2), np.int64)
    given = _Suspects.of(texts, shared, suspects)
    owners, others = np.divmod(_likely(given, shared, count=len(texts.whole)), len(texts.whole))
    enough = _shared(given, shared, owners, others) >= given.needed[owners]
    return np.stack([given.texts[owners[enough]], others[enough]], axis=1)


def _likely(given: _Suspects, shared: SharedRuns, *, count: int) -> Ints:
    """Return who may share enough with which of the `count` texts, (n,): suspect · count + text, ascending."""
    held = shared.held[given.kinds]
    commonest = highest(held)  # of the runs that a word stands in
    most = _most_held(given, commonest)
    rare_words = given.words * (commonest <= most[given.owners])
    rare = np.add.reduceat(rare_words, given.offsets[:-1], dtype=np.int64)
    places = np.flatnonzero((held > 0) & (held <= most[given.owners]))
    bits = len(held).bit_length()
    pairs, weights = [], []
    for first, last in _parts(held[places]):
        part = places[first:last]
        holders = shared.holders[ranges(shared.offsets[given.kinds[part]], held[part])]
        keys = (np.repeat(given.owners[part] * count, held[part]) + holders) << bits | np.repeat(part, held[part])
        keys.sort()
        pair = keys >> bits
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        pairs.append(pair[firsts])
        weights.append(covered(rare_words, keys & ((1 << bits) - 1), firsts))
    keys, which = np.unique(np.concatenate(pairs), return_inverse=True)
    owners, others = np.divmod(keys, count)
    most_shared = np.bincount(which, np.concatenate(weights)) + (given.whole - rare)[owners]
    likely: Ints = keys[(most_shared >= given.needed[owners]) & (others != given.texts[owners])]
    return likely


def _most_held(given: _Suspects, commonest: Ints) -> Ints:
    """Return how often the runs of each suspect may be held whose words are looked at as its rare ones, (q,)."""
    bits = 11  # of a weight, at most 1,024
    keys = np.sort((given.owners * (int(commonest.max()) + 1) + commonest) << bits | given.words)
    sums = np.cumsum(keys & ((1 << bits) - 1))
    before = np.append(0, sums)[given.offsets[:-1]]
    wanted = np.minimum(given.whole - given.needed + (given.whole * _RARE_SHARE).astype(np.int64), given.whole - 1)
    last = np.searchsorted(sums, before + wanted, side="right")
    most: Ints = (keys[last] >> bits) % (int(commonest.max()) + 1)
    return most


def _shared(given: _Suspects, shared: SharedRuns, owners: Ints, others: Ints) -> Ints:
    """Return the weight of each suspect's words that stand in runs that the other text has, of n pairs, (n,)."""
    places = np.flatnonzero(given.kinds)
    starts = np.searchsorted(places, given.offsets)
    sizes = np.diff(starts)[owners]
    weights = np.zeros(len(owners), np.int64)
    for first, last in _parts(np.maximum(sizes, len(shared.offsets) // _KINDS_A_RUN)):
        texts, columns = np.unique(others[first:last], return_inverse=True)
        runs = ranges(starts[owners[first:last]], sizes[first:last])
        cells = (given.kinds[places] * len(texts))[runs] + np.repeat(columns, sizes[first:last])
        there = np.flatnonzero(_holds(shared, texts).take(cells))
        pair = np.repeat(np.arange(first, last), sizes[first:last])[there]
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        weights[pair[firsts]] = covered(given.words, places[runs[there]], firsts)
    return weights


def _holds(shared: SharedRuns, texts: Ints) -> Bools:
    """Return which of some texts hold each kind of run, ((g + 1) · n,): kind after kind."""
    column = np.full(int(max(shared.holders.max(), texts.max())) + 1, -1)
    column[texts] = np.arange(len(texts))
    columns = column[shared.holders]
    those = np.flatnonzero(columns >= 0)
    kinds = np.repeat(np.arange(len(shared.offsets) - 1) * len(texts), shared.held)
    holds = np.zeros((len(shared.offsets) - 1) * len(texts), np.bool_)
    holds[kinds[those] + columns[those]] = True
    return holds


def _parts(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield bounds between which `sizes` add up to about what is looked at at once; at least one."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    bounds = np.searchsorted(ends, np.arange(_AT_ONCE, total, _AT_ONCE))
    yield from pairwise(np.unique([0, *bounds.tolist(), len(sizes)]).tolist())
