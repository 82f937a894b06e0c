"""Texts: some candidates and their meta-document, prepared for comparison.

In:  SHINGLES, the runs of words of texts, one text after the other; WEIGHTS, how rare each is; the threshold.
Out: the distinct texts; what their words weigh, and how much of that stands in some of their runs; the *kinds* of equal runs
     that several texts share, and the texts that hold each.

Three array layouts recur. Runs of texts are flat, (s,), and text i has those from offsets[i] to offsets[i + 1]. Groups of a
sorted array are given by `firsts`, where each begins. Pairs of texts are rows (a, b) of an array (n, 2).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.retrieval.near_duplicates.shingles import SHINGLE_WORDS, U64, Shingles, Weights, mix

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
    # `places` are those of runs that stand more than once, equal ones together: first_members is where each kind begins,
    # first_holders where its distinct texts do. A kind is numbered from 1 if more than one text holds it, else it is 0.
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


_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths


class Texts(NamedTuple):
    """The shingles of n texts, s of them, and what their words weigh."""

    hashes: U64  # (s,)
    offsets: Ints  # (n + 1,)
    owners: Owners  # (s,) the text that the shingle belongs to
    words: NDArray[np.uint16]  # (s,) the weight of the shingle's last word
    whole: Ints  # (n,) the weight of all words of a text
    needed: Ints  # (n,) how much of it another text must share for this one to repeat it

    @classmethod
    def of(cls, texts: Shingles, weights: Weights, threshold: float) -> Texts:
        """Weigh the words of texts."""
        # A word weighs as the heaviest shingle that it stands in. The first and last two of a text stand in fewer than three
        # and do not count: 0 for the last two shingles, and so for the one number of a text of fewer than ten words.
        words: NDArray[np.uint16] = highest(weights[(texts.hashes & np.uint64(len(weights) - 1)).view(np.int64)])
        sizes = np.diff(texts.offsets)
        ends = texts.offsets[1:][sizes > 0]
        for step in range(1, SHINGLE_WORDS):
            words[ends - step] = 0
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        whole = _sums(words, texts.offsets)
        needed = -(-whole * round(threshold * _MILLION) // _MILLION)
        return cls(texts.hashes, texts.offsets, owners, words, whole, needed)

    def suspects(self, is_shared: Bools) -> Bools:
        """Return which texts have enough of their words in the shingles, (s,), that they share with any others, (n,)."""
        shared = _sums(self.words * highest(is_shared), self.offsets)
        enough: Bools = (self.whole > 0) & (shared >= self.needed)
        return enough


def highest(of_shingles: NDArray[Any]) -> NDArray[Any]:
    """Return the highest value of the shingles that the last word of each shingle stands in, (s,): whether any is, of bools.

    The last two words of a text get values of the text behind it, too; they weigh nothing.
    """
    most = of_shingles.copy()
    for step in range(1, SHINGLE_WORDS):
        np.maximum(most[:-step], of_shingles[step:], out=most[:-step])
    return most


def covered(words: NDArray[np.integer], places: Ints, firsts: Ints) -> Ints:
    """Return the weight of the words that stand in one of the shingles at `places`, by group, (g,).

    `words`: the weight of each shingle's last word. A group goes from one of `firsts` to the next; its places ascend and are
    of one text. A word that stands in several of them counts once.
    """
    sums = np.zeros(len(words) + 1, np.int64)
    np.cumsum(words, out=sums[1:])
    # The words of a shingle are the last ones of it and of the two before; those before the text's first weigh nothing.
    since = np.maximum(places - SHINGLE_WORDS + 1, 0)
    before = places[:-1] + 1
    before[firsts[1:] - 1] = 0  # another group's
    np.maximum(since[1:], before, out=since[1:])
    weights: Ints = np.add.reduceat(sums[places + 1] - sums[since], firsts) if len(firsts) else firsts
    return weights


def _sums(words: NDArray[np.uint16], offsets: Ints) -> Ints:
    """Return the sum of each text's words, (n,)."""
    sums = np.zeros(len(offsets) - 1, np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        sums[filled] = np.add.reduceat(words, offsets[filled], dtype=np.int64)
    return sums


class Distinct(NamedTuple):
    """The d distinct texts among m, by their first appearance."""

    texts: Shingles
    kinds: Ints  # (m,) which of the distinct ones each is

    def pairs(self, kinds: Ints) -> Ints:
        """Return the pairs a < b of the m texts whose kinds are paired, (n, 2), once each and ascending."""
        members, counts = np.argsort(self.kinds, kind="stable"), np.bincount(self.kinds, minlength=1)
        firsts = np.cumsum(counts) - counts
        # Members of kind k are members[firsts[k] : firsts[k] + counts[k]]; `once` has each pair of kinds once, lower first.
        once = np.unique(
            np.stack([kinds.min(axis=1, initial=len(counts)), kinds.max(axis=1, initial=0)], axis=1), axis=0
        )
        left, right = once.T
        # Each pair of kinds becomes sizes[i] pairs of members: `place` counts them within their pair, row by row.
        sizes = counts[left] * counts[right]
        pair = np.repeat(np.arange(len(once)), sizes)
        place = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows, columns = np.divmod(place, counts[right][pair])
        a, b = members[firsts[left][pair] + rows], members[firsts[right][pair] + columns]
        kept = (left != right)[pair] | (a < b)  # of a kind with itself each pair was made twice
        keys = np.sort(np.minimum(a, b)[kept] * len(members) + np.maximum(a, b)[kept])
        return np.stack(np.divmod(keys, max(1, len(members))), axis=1)


def distinct_texts(texts: Shingles) -> Distinct:
    """Return the distinct texts: equal ones have the same numbers in the same order."""
    starts, sizes = texts.offsets[:-1], np.diff(texts.offsets)
    keys = sizes.astype(np.uint64)
    filled = np.flatnonzero(sizes)
    for share in (0, 0.5, 1):  # texts with the same number here, here and there are probably equal
        keys[filled] = mix(keys[filled] + texts.hashes[starts[filled] + (share * (sizes[filled] - 1)).astype(np.int64)])
    _, key_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return Distinct(texts, np.arange(len(sizes)))
    first_alike: dict[bytes, int] = {}
    same_as = np.arange(len(sizes))
    for text in np.flatnonzero((counts > 1)[key_of]).tolist():
        numbers = texts.hashes[texts.offsets[text] : texts.offsets[text + 1]].tobytes()
        same_as[text] = first_alike.setdefault(numbers, text)
    chosen, kinds = np.unique(same_as, return_inverse=True)
    return Distinct(texts.picked(chosen), kinds)
