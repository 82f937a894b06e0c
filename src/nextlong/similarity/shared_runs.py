"""Shared runs: which runs of words some texts have in common.

In:  the runs of texts, one text after the other. Out: the *segments* of runs that follow each other in all texts that have
any of them: what copies have in common is a few segments, whoever else has a phrase of it.

Sorting the runs brings equal ones together, and nothing below looks at those that only one text has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.similarity.words import U64

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Owners = NDArray[np.int32]


class SharedRuns(NamedTuple):
    """Runs that more than one text has; g distinct segments of them.

    A *part* is a segment as it stands in one text: p of them, in reading order.
    """

    is_shared: Bools  # (s,)
    starts: Ints  # (p,) the place of each part's first run
    segments: Ints  # (p,) its segment
    texts: Owners  # (p,) its text
    runs: Ints  # (p,) how many runs it has
    holders: Ints  # (g,) how often each segment stands anywhere


class EqualRuns(NamedTuple):
    """Which of s runs are equal and stand in more than one text; e of them, g distinct ones."""

    places: Ints  # (e,) equal ones together, each kind's ascending
    sizes: Ints  # (g,) how many there are of each kind
    is_shared: Bools  # (s,)


def equal_runs(hashes: U64, owners: Owners) -> EqualRuns:
    """Return what texts share; `owners`, (s,) ascending, says whose each of the runs `hashes`, (s,), is."""
    places, starts = _equal(hashes)
    sizes = np.diff(starts, append=len(places))
    several = owners[places[starts]] != owners[places[starts + sizes - 1]] if len(starts) else sizes > 0
    places = places[np.repeat(several, sizes)]
    is_shared = np.zeros(len(hashes), np.bool_)
    is_shared[places] = True
    return EqualRuns(places, sizes[several], is_shared)


def shared_runs(equal: EqualRuns, owners: Owners, *, among: Bools) -> SharedRuns:
    """Return the segments of what some texts, (n,), share with each other or with any other."""
    held = np.add.reduceat(among[owners[equal.places]], _firsts(equal.sizes)) if len(equal.sizes) else equal.sizes
    places, sizes = equal.places[np.repeat(held > 0, equal.sizes)], equal.sizes[held > 0]
    group_of = np.full(len(owners) + 1, -1, np.int32)  # the last one is before the first
    group_of[places] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    goes_on = _goes_on(group_of, places, sizes, owners)
    shared = np.flatnonzero(group_of[:-1] >= 0)
    heads = ~goes_on[group_of[shared]]
    starts = shared[heads]
    segment_of_group = np.cumsum(~goes_on) - 1
    return SharedRuns(
        group_of[:-1] >= 0,
        starts,
        segment_of_group[group_of[starts]],
        owners[starts],
        np.diff(np.flatnonzero(heads), append=len(shared)),
        sizes[~goes_on],
    )


def _firsts(sizes: Ints) -> Ints:
    firsts: Ints = np.cumsum(sizes) - sizes
    return firsts


def _equal(hashes: U64) -> tuple[Ints, Ints]:
    """Return the places of the runs that stand more than once, equal ones together and ascending, and where each kind begins."""
    # A key ends in the run's place: sorting such numbers is several times as fast as argsort.
    bits = np.uint64(max(1, len(hashes).bit_length()))
    keys = np.sort(hashes >> bits << bits | np.arange(len(hashes), dtype=np.uint64))
    repeats = (keys[1:] ^ keys[:-1]) >> bits == 0
    places, begins = _repeated((keys & np.uint64((1 << int(bits)) - 1)).view(np.int64), repeats)
    runs = hashes[places]
    if (runs[1:] != runs[:-1])[~begins[1:]].any():  # one in a billion differs in those bits alone
        order = np.argsort(hashes, kind="stable")
        places, begins = _repeated(order, hashes[order[1:]] == hashes[order[:-1]])
    return places, np.flatnonzero(begins)


def _repeated(order: Ints, repeats: Bools) -> tuple[Ints, Bools]:
    """Return those places of `order` that stand in a row of equal ones, and which of them begin one."""
    several = np.zeros(len(order), np.bool_)
    several[1:] = repeats
    begins = ~several
    several[:-1] |= repeats
    return order[several], begins[several]


def _goes_on(group_of: NDArray[np.int32], places: Ints, sizes: Ints, owners: Owners) -> Bools:
    """Return which groups of equal runs stand right behind those of one other group, each in the same text, (g,)."""
    firsts, before = _firsts(sizes), group_of[places - 1]
    before[owners[places] != owners[places - 1]] = -1
    first_before = before[firsts]
    goes_on: Bools = (first_before >= 0) & (sizes[first_before] == sizes)
    if len(goes_on):
        goes_on &= np.logical_and.reduceat(before == np.repeat(first_before, sizes), firsts)
    return goes_on
