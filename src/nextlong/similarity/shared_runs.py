"""Shared runs: which runs of words some texts have in common, and which texts have them.

In:  the runs of texts, one text after the other. Out: the *kinds* of equal runs, and the texts that hold each.

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
    """Runs that more than one text has; the texts that hold those of kind k are holders[offsets[k]:offsets[k + 1]].

    Kind 0 is what no other text has: nobody is said to hold it.
    """

    kinds: Ints  # (s,) the kind of each run
    holders: Owners  # (h,) each text once a kind, ascending
    offsets: Ints  # (g + 2,)

    @property
    def held(self) -> Ints:
        """How many texts hold each kind, (g + 1,)."""
        return np.diff(self.offsets)


def shared_runs(hashes: U64, owners: Owners) -> SharedRuns:
    """Return what texts share; `owners`, (s,) ascending, says whose each of the runs `hashes`, (s,), is."""
    places, begins = _equal(hashes)
    texts = owners[places]
    once = begins.copy()  # a run may stand in a text several times
    once[1:] |= texts[1:] != texts[:-1]
    first_members = np.flatnonzero(begins)
    first_holders = np.cumsum(once)[first_members] - 1
    holders = texts[np.flatnonzero(once)]
    offsets = np.concatenate([[0], first_holders, [len(holders)]])
    numbers = np.arange(1, len(first_members) + 1) * (np.diff(offsets)[1:] > 1)
    kinds = np.zeros(len(hashes), np.int64)
    kinds[places] = np.repeat(numbers, np.diff(first_members, append=len(places)))
    return SharedRuns(kinds, holders, offsets)


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return starts[0], starts[0] + 1 …, `sizes[0]` of them, and so on for all others, one after the other."""
    ends = np.cumsum(sizes)
    every: Ints = np.repeat(starts - ends + sizes, sizes)
    every += np.arange(len(every))
    return every


def _equal(hashes: U64) -> tuple[Ints, Bools]:
    """Return the places of the runs that stand more than once, equal ones together and ascending, and which begin a kind."""
    # A key ends in the run's place: sorting such numbers is several times as fast as argsort.
    bits = np.uint64(max(1, len(hashes).bit_length()))
    keys = hashes >> bits
    keys <<= bits
    keys |= np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    below = np.uint64(1 << int(bits))
    members, begins = _repeated((keys[1:] ^ keys[:-1]) < below)
    places = (keys[members] & (below - np.uint64(1))).view(np.int64)
    runs = hashes[places]
    if ((runs[1:] != runs[:-1]) & ~begins[1:]).any():  # one in a billion differs in those bits alone
        order = np.argsort(hashes, kind="stable")
        members, begins = _repeated(hashes[order[1:]] == hashes[order[:-1]])
        places = order[members]
    return places, begins


def _repeated(repeats: Bools) -> tuple[Ints, Bools]:
    """Return where rows of equal numbers stand, of which `repeats` says that one equals the one before, and which begin one."""
    again, several = np.zeros((2, len(repeats) + 1), np.bool_)
    again[1:] = several[1:] = repeats
    several[:-1] |= repeats
    members = np.flatnonzero(several)  # picking by numbers is several times as fast as by a mask
    return members, ~again[members]
