"""Near-duplicates: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-duplicates.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole. Every decision is exact: it rests on 64-bit numbers and whole weights.

Texts with the same words are compared once; the meta-document is one more text. No text shares more with one other than with
all together, so only those that share enough with all are suspects. Most suspects consist of phrases from here and there; their
rarest words decide: a text that shares enough has one of any words that together weigh more than what may be missing. Only texts
that hold a run of the rarest such words are compared. A passage is found by its 98 runs of three words, in a row in both texts.

Arrays: runs of texts are flat, (s,), and text i has those from offsets[i] to offsets[i + 1]; equal runs that several texts share
are of one *kind*. `firsts` says where each group of a sorted array begins. Pairs of texts are rows (a, b) of an array (n, 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.lookup import ranges
from nextlong.retrieval.near_duplicates import shingles
from nextlong.retrieval.near_duplicates.shingles import SHINGLE_WORDS, U64, ComparedDocument, Shingles, Weights

_PASSAGE_WORDS: Final = 100
_RUNS: Final = _PASSAGE_WORDS - SHINGLE_WORDS + 1
_WEIGHT_BITS: Final = 11
_RARE_SHARE: Final = 0.05  # of a text's weight that is looked at besides what may be missing
_AT_ONCE: Final = 1 << 21  # runs of one text that another may have
_KINDS_A_RUN: Final = 32  # … and kinds of runs a text may have, for each of them
_MILLION: Final = 1_000_000  # a threshold is a whole number of millionths

_Bools = NDArray[np.bool_]
_Ints = NDArray[np.int64]
_Owners = NDArray[np.int32]


class SharedRuns(NamedTuple):
    """Runs that more than one text has; the texts that hold those of kind k are holders[offsets[k]:offsets[k + 1]], none of 0."""

    kinds: _Ints  # (s,) the kind of each run
    holders: _Owners  # (h,) each text once a kind, ascending
    offsets: _Ints  # (g + 2,)
    held: _Ints  # (g + 1,) how many texts hold each kind


def shared_runs(hashes: U64, owners: _Owners) -> SharedRuns:
    """Return what texts share; `owners`, (s,) ascending, says whose each of the runs `hashes`, (s,), is."""
    # A key ends in the run's place: sorting such numbers is several times as fast as argsort.
    bits = np.uint64(max(1, len(hashes).bit_length()))
    keys = hashes >> bits
    keys <<= bits
    keys |= np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    below = np.uint64(1 << int(bits))
    again = np.zeros(len(hashes) + 1, np.bool_)  # whether each key is of the same run as the one before it
    again[1:-1] = (keys[1:] ^ keys[:-1]) < below
    members = np.flatnonzero(again[:-1] | again[1:])  # picking by numbers is several times as fast as by a mask
    # `places` are those of runs that stand more than once, equal ones together and ascending; `begins` says which begin a kind.
    places, begins = (keys[members] & (below - np.uint64(1))).view(np.int64), ~again[members]
    runs = hashes[places]
    if ((runs[1:] != runs[:-1]) & ~begins[1:]).any():  # one in a billion differs in the bits of places alone
        order = np.argsort(runs, kind="stable")
        places, runs = places[order], runs[order]
        begins[1:] = runs[1:] != runs[:-1]
    texts = owners[places]
    once = begins.copy()  # a run may stand in a text several times
    once[1:] |= texts[1:] != texts[:-1]
    # first_members is where each kind begins, first_holders where its distinct texts do. A kind is numbered from 1 if more
    # than one text holds it, else it is 0.
    first_members = np.flatnonzero(begins)
    first_holders = np.cumsum(once)[first_members] - 1
    holders = texts[np.flatnonzero(once)]
    offsets = np.concatenate([[0], first_holders, [len(holders)]])
    held = np.diff(offsets)
    kinds = np.zeros(len(hashes), np.int64)
    numbers = np.arange(1, len(first_members) + 1) * (held[1:] > 1)
    kinds[places] = np.repeat(numbers, np.diff(first_members, append=len(places)))
    return SharedRuns(kinds, holders, offsets, held)


class Texts(NamedTuple):
    """The shingles of n texts, s of them, and what their words weigh."""

    hashes: U64  # (s,)
    offsets: _Ints  # (n + 1,)
    owners: _Owners  # (s,) the text that the shingle belongs to
    words: NDArray[np.uint16]  # (s,) the weight of the shingle's last word
    whole: _Ints  # (n,) the weight of all words of a text
    needed: _Ints  # (n,) how much of it another text must share for this one to repeat it

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

    def suspects(self, is_shared: _Bools) -> _Bools:
        """Return which texts have enough of their words in the shingles, (s,), that they share with any others, (n,)."""
        shared = _sums(self.words * highest(is_shared), self.offsets)
        enough: _Bools = (self.whole > 0) & (shared >= self.needed)
        return enough


def highest(of_shingles: NDArray[Any]) -> NDArray[Any]:
    """Return the highest value of the shingles that the last word of each shingle stands in, (s,): whether any is, of bools."""
    most = of_shingles.copy()  # the last two words of a text get values of the text behind it, too; they weigh nothing
    for step in range(1, SHINGLE_WORDS):
        np.maximum(most[:-step], of_shingles[step:], out=most[:-step])
    return most


def covered(words: NDArray[np.integer], places: _Ints, firsts: _Ints) -> _Ints:
    """Return the weight of the words that stand in one of the shingles at `places`, or several, by group, (g,).

    `words`: the weight of each shingle's last word. A group goes from one of `firsts` to the next; its places ascend, of one text.
    """
    sums = np.zeros(len(words) + 1, np.int64)
    np.cumsum(words, out=sums[1:])
    # The words of a shingle are the last ones of it and of the two before; those before the text's first weigh nothing.
    since = np.maximum(places - SHINGLE_WORDS + 1, 0)
    before = places[:-1] + 1
    before[firsts[1:] - 1] = 0  # another group's
    np.maximum(since[1:], before, out=since[1:])
    weights: _Ints = np.add.reduceat(sums[places + 1] - sums[since], firsts) if len(firsts) else firsts
    return weights


def _sums(words: NDArray[np.uint16], offsets: _Ints) -> _Ints:
    """Return the sum of each text's words, (n,)."""
    sums = np.zeros(len(offsets) - 1, np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        sums[filled] = np.add.reduceat(words, offsets[filled], dtype=np.int64)
    return sums


class Distinct(NamedTuple):
    """The d distinct texts among m, by their first appearance."""

    texts: Shingles
    kinds: _Ints  # (m,) which of the distinct ones each is

    def pairs(self, kinds: _Ints) -> _Ints:
        """Return the pairs a < b of the m texts whose kinds are paired, (n, 2), once each and ascending."""
        members, counts = np.argsort(self.kinds, kind="stable"), np.bincount(self.kinds, minlength=1)
        firsts, (left, right) = np.cumsum(counts) - counts, kinds.T
        # Each pair of kinds once in either order, so that a < b picks each pair of members once.
        both = np.unique(np.concatenate([left * len(counts) + right, right * len(counts) + left]))
        left, right = np.divmod(both, len(counts))
        a, other = members[ranges(firsts[left], counts[left])], np.repeat(right, counts[left])
        a, b = np.repeat(a, counts[other]), members[ranges(firsts[other], counts[other])]
        keys = np.sort((a * len(members) + b)[a < b])
        return np.stack(np.divmod(keys, max(1, len(members))), axis=1)


def distinct_texts(texts: Shingles) -> Distinct:
    """Return the distinct texts: equal ones have the same numbers in the same order."""
    starts, sizes = texts.offsets[:-1], np.diff(texts.offsets)
    keys = sizes.astype(np.uint64)
    filled = np.flatnonzero(sizes)
    for share in (0, 0.5, 1):  # texts with the same number here, here and there are probably equal
        keys[filled] = shingles.mix(
            keys[filled] + texts.hashes[starts[filled] + (share * (sizes[filled] - 1)).astype(np.int64)]
        )
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


def repeating(texts: Texts, shared: SharedRuns, suspects: _Bools) -> _Ints:
    """Return the pairs (a, b) of which a, one of the suspects, shares enough of its words with b, (n, 2)."""
    if not suspects.any():
        return np.empty((0, 2), np.int64)
    # (q,) of the suspects, and (r,) of their runs, one suspect after the other: whose it is, its kind, its last word's weight.
    those, count = np.flatnonzero(suspects), len(suspects)
    whole, needed, sizes = texts.whole[those], texts.needed[those], np.diff(texts.offsets)[those]
    runs = ranges(texts.offsets[those], sizes)
    starts, owner_of = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(those)), sizes)
    kinds, words = shared.kinds[runs], texts.words[runs]
    # (r,) how many texts hold each run; a run stands for its words, so a word is as common as its commonest run.
    held = shared.held[kinds]
    commonest = highest(held)  # of the runs that a word stands in
    # (q,) how often the runs of each suspect may be held whose words are looked at as its rare ones. Sorted by suspect, then by
    # how common a word is, with its weight, at most 1,024: the running sum of weights says where enough rare words are reached.
    span = int(commonest.max()) + 1
    by_rarity = np.sort((owner_of * span + commonest) << _WEIGHT_BITS | words)
    sums = np.cumsum(by_rarity & ((1 << _WEIGHT_BITS) - 1))
    wanted = np.minimum(whole - needed + (whole * _RARE_SHARE).astype(np.int64), whole - 1)
    reached = np.searchsorted(sums, np.append(0, sums)[starts] + wanted, side="right")
    most = (by_rarity[reached] >> _WEIGHT_BITS) % span
    rare_words = words * (commonest <= most[owner_of])
    rare = np.add.reduceat(rare_words, starts, dtype=np.int64)
    places = np.flatnonzero((held > 0) & (held <= most[owner_of]))
    bits = len(held).bit_length()
    pairs, weights = [], []
    for first, last in _parts(held[places]):
        part = places[first:last]
        holders = shared.holders[ranges(shared.offsets[kinds[part]], held[part])]
        # One key per run and text that holds it: suspect, then text, then the run's place, so sorting groups them by pair.
        keys = (np.repeat(owner_of[part] * count, held[part]) + holders) << bits | np.repeat(part, held[part])
        keys.sort()
        pair = keys >> bits
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        pairs.append(pair[firsts])
        weights.append(covered(rare_words, keys & ((1 << bits) - 1), firsts))
    keys, which = np.unique(np.concatenate(pairs), return_inverse=True)
    owners, others = np.divmod(keys, count)
    most_shared = np.bincount(which, np.concatenate(weights)) + (whole - rare)[owners]
    likely = np.flatnonzero((most_shared >= needed[owners]) & (others != those[owners]))
    owners, others = owners[likely], others[likely]
    enough = _shared(shared, kinds, words, np.append(starts, len(kinds)), owners, others) >= needed[owners]
    return np.stack([those[owners[enough]], others[enough]], axis=1)


def _shared(
    shared: SharedRuns, kinds: _Ints, words: NDArray[np.uint16], offsets: _Ints, owners: _Ints, others: _Ints
) -> _Ints:
    """Return the weight of each suspect's words that stand in runs that the other text has, of n pairs, (n,)."""
    places = np.flatnonzero(kinds)
    starts = np.searchsorted(places, offsets)
    sizes = np.diff(starts)[owners]
    weights = np.zeros(len(owners), np.int64)
    for first, last in _parts(np.maximum(sizes, len(shared.held) // _KINDS_A_RUN)):
        # A table of kinds × texts says who holds what; `cells` are the entries for each run of each pair.
        texts, columns = np.unique(others[first:last], return_inverse=True)
        runs = ranges(starts[owners[first:last]], sizes[first:last])
        cells = (kinds[places] * len(texts))[runs] + np.repeat(columns, sizes[first:last])
        column = np.full(int(max(shared.holders.max(), texts.max())) + 1, -1)
        column[texts] = np.arange(len(texts))
        those = np.flatnonzero(column[shared.holders] >= 0)
        rows = np.repeat(np.arange(len(shared.held)) * len(texts), shared.held)
        holds = np.zeros(len(shared.held) * len(texts), np.bool_)
        holds[rows[those] + column[shared.holders[those]]] = True
        there = np.flatnonzero(holds.take(cells))
        pair = np.repeat(np.arange(first, last), sizes[first:last])[there]
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        weights[pair[firsts]] = covered(words, places[runs[there]], firsts)
    return weights


def _parts(sizes: _Ints) -> Iterator[tuple[int, int]]:
    """Yield bounds between which `sizes` add up to about what is looked at at once; at least one."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    bounds = np.searchsorted(ends, np.arange(_AT_ONCE, total, _AT_ONCE))
    yield from pairwise(np.unique([0, *bounds.tolist(), len(sizes)]).tolist())


def repeated_passages(texts: Texts, is_shared: _Bools) -> _Ints:
    """Return the pairs a < b of texts that share a passage, (n, 2)."""
    from scipy import sparse  # a tenth of a second, at every start of nextlong

    # `run` (…,): whether `length` shared runs in a row begin at each place; two that overlap make the rest of the 98.
    run, length = is_shared, 1
    while 2 * length <= _RUNS:
        run = run[:-length] & run[length:]
        length *= 2
    rest = _RUNS - length
    firsts = np.flatnonzero(run[:-rest] & run[rest:])  # of the passages, (n,)
    owners = texts.owners[firsts]
    within = np.flatnonzero(owners == texts.owners[firsts + _RUNS - 1])
    if not len(within):
        return np.empty((0, 2), np.int64)
    firsts, owners = firsts[within], owners[within]
    # `runs` (r,): those of all texts with a passage, one text after the other; a passage has the 98 from one of `begins` on.
    those, which = np.unique(owners, return_inverse=True)
    sizes = np.diff(texts.offsets)[those]
    runs = texts.hashes[ranges(texts.offsets[those], sizes)]
    begins = (firsts - texts.offsets[owners]) + (np.cumsum(sizes) - sizes)[which]
    # A number for each passage, equal for equal runs: the sum of these as a polynomial, shifted back to power 0.
    up, down = shingles.powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    passages = shingles.mix((sums[begins + _RUNS] - sums[begins]) * down[begins])
    shared = shared_runs(passages, owners)
    several = np.flatnonzero(shared.held > 1)
    places = ranges(shared.offsets[several], shared.held[several])
    firsts = np.cumsum(shared.held[several]) - shared.held[several]
    # A long passage has many kinds that the same texts hold: of these one will do.
    mixed = shingles.mix(shared.holders[places].astype(np.uint64) + np.uint64(1))
    sets = np.add.reduceat(mixed, firsts) if len(firsts) else firsts
    several = several[np.unique(sets, return_index=True)[1]]
    held = shared.held[several]
    holders = shared.holders[ranges(shared.offsets[several], held)]
    shape = (len(several), len(texts.whole))
    has = sparse.csr_array((np.ones(len(holders), np.bool_), holders, np.append(0, np.cumsum(held))), shape=shape)
    a, b = (has.T @ has).nonzero()
    pairs: _Ints = np.stack([a, b], axis=1)[a < b].astype(np.int64)
    return pairs


class NearDuplicates(NamedTuple):
    """What m candidates repeat."""

    of_document: _Bools  # (m,)
    pairs: _Ints  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: _Bools  # (m,) those that would be no near-duplicate but for 100 words in a row


def find_near_duplicates(
    candidates: Shingles, *, document: ComparedDocument, weights: Weights, threshold: float
) -> NearDuplicates:
    """Return which candidates are near-duplicates of a document or of a part of it, and which of the others of each other."""
    distinct = distinct_texts(candidates)
    # (d,) of the distinct texts: those that repeat the document, by their share of words or as one of its short chunks.
    weighed = Texts.of(distinct.texts, weights, threshold)
    by_words: _Bools = (weighed.whole > 0) & (_covered_by(document, weighed) >= weighed.needed)
    is_short = distinct.texts.is_short
    by_words[is_short] = np.isin(weighed.hashes[weighed.offsets[:-1][is_short]], document.wholes)
    # In a corpus of near-identical pages nearly all repeat the document: only the other texts are paired. `texts` holds
    # these, and the document behind them as number `count`.
    others = np.flatnonzero(~by_words)
    count = len(others)
    picked = distinct.texts.picked(others)
    hashes = np.concatenate([picked.hashes, document.runs])
    texts = Texts.of(Shingles(hashes, np.append(picked.offsets, len(hashes))), weights, threshold)
    shared = shared_runs(texts.hashes, texts.owners)
    is_shared = shared.kinds > 0
    suspects = texts.suspects(is_shared)
    suspects[-1] = False  # the document
    # Rows (a, b) of numbers among `texts`: a repeats b by its share of words, or both hold the same passage.
    pairs = repeating(texts, shared, suspects)
    passages = repeated_passages(texts, is_shared)
    by_passage = np.zeros(count + 1, np.bool_)
    by_passage[passages[passages[:, 1] == count, 0]] = True
    of_document = by_words.copy()
    of_document[others[by_passage[:-1]]] = True
    # Whoever repeats the document is no candidate any more, so only pairs of the others count.
    kept = ~by_passage
    kept[-1] = False
    pairs, passages = (found[kept[found].all(axis=1)] for found in (pairs, passages))
    # A distinct text that stands for several candidates pairs with itself: `Distinct.pairs` makes pairs of candidates of it.
    repeated = np.bincount(distinct.kinds, minlength=len(by_words))[others] > 1
    same = np.flatnonzero(repeated & kept[:-1] & (np.diff(texts.offsets)[:-1] > 0))
    pairs = np.concatenate([pairs, np.stack([same, same], axis=1)])
    by_passage[passages] = True
    by_passage[pairs] = False  # these repeat each other by their words as well
    only_passage = np.zeros(len(by_words), np.bool_)
    only_passage[others] = by_passage[:-1]
    return NearDuplicates(
        of_document[distinct.kinds],
        distinct.pairs(others[np.concatenate([pairs, passages])]),
        only_passage[distinct.kinds],
    )


def _covered_by(document: ComparedDocument, texts: Texts) -> _Ints:
    """Return the weight of each text's words that stand in runs of the document, (m,)."""
    places = np.flatnonzero(np.isin(texts.hashes, document.runs))
    firsts = np.flatnonzero(np.diff(texts.owners[places], prepend=-1))
    weights = np.zeros(len(texts.whole), np.int64)
    weights[texts.owners[places[firsts]]] = covered(texts.words, places, firsts)
    return weights
