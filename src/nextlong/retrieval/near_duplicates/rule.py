"""Near-duplicates: is a candidate the meta-document's own text again, or that of another candidate?

In:  SHINGLES of some candidates, their meta-document, and WEIGHTS, which say how rare each shingle is.
Out: which candidates repeat the meta-document, and which pairs of the others repeat each other.

The rule is docs/decisions/0005-near-duplicates.md. A text repeats another if `threshold` of its words, by weight, stand in runs of
three that the other has too; or if both have the same 100 words in a row; or, of fewer than ten words, if the other has the
same. It is asymmetric: a part is a copy of the whole.

Texts with the same words are compared once; the meta-document is one more of them. Nothing shares more with one other text
than with all of them together, so only those that share enough with all can repeat one. Every decision is exact: nothing but
the 64-bit numbers and whole weights counts.

Most suspects consist of phrases from here and there. What tells is a text's rarest words: another text that shares enough of
it misses little, so it has one of any words that together weigh more than what may be missing. Only texts that hold a run of
the rarest such words are compared, and only where those words do not say that too many are missing. A passage is found by its
98 runs of three words, in a row in both texts, however many documents have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.retrieval.near_duplicates.shingles import (
    SHINGLE_WORDS,
    ComparedDocument,
    Shingles,
    Weights,
    mix,
    powers,
)
from nextlong.retrieval.near_duplicates.texts import (
    Bools,
    Ints,
    SharedRuns,
    Texts,
    covered,
    distinct_texts,
    highest,
    ranges,
    shared_runs,
)

_PASSAGE_WORDS: Final = 100
_RUNS: Final = _PASSAGE_WORDS - SHINGLE_WORDS + 1
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
    # (r,) how many texts hold each run; a run stands for its words, so a word is as common as its commonest run.
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
        # One key per run and text that holds it: suspect, then text, then the run's place, so sorting groups them by pair.
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
    # Sorted by suspect, then by how common a word is: the running sum of weights says where enough rare words are reached.
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
        # A table of kinds × texts says who holds what; `cells` are the entries for each run of each pair.
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


def repeated_passages(texts: Texts, is_shared: Bools) -> Ints:
    """Return the pairs a < b of texts that share a passage, (n, 2)."""
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
    up, down = powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    passages = mix((sums[begins + _RUNS] - sums[begins]) * down[begins])
    return _pairs(shared_runs(passages, owners), len(texts.whole))


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


class NearDuplicates(NamedTuple):
    """What m candidates repeat."""

    of_document: Bools  # (m,)
    pairs: Ints  # (n, 2) ascending places a < b of candidates: one is a copy of the other, or of a part of it
    by_passage: Bools  # (m,) those that would be no near-duplicate but for 100 words in a row


def find_near_duplicates(
    candidates: Shingles, *, document: ComparedDocument, weights: Weights, threshold: float
) -> NearDuplicates:
    """Return which candidates are near-duplicates of a document or of a part of it, and which of the others of each other.

    `weights` is what `weigh_shingles` wrote.
    """
    distinct = distinct_texts(candidates)
    # (d,) of the distinct texts: those that repeat the document by their share of words.
    by_words = _repeat_document(distinct.texts, document, weights, threshold)
    # In a corpus of near-identical pages nearly all repeat the document: only the other texts are paired. `texts` holds
    # these, and the document behind them as number `count`.
    others = np.flatnonzero(~by_words)
    count = len(others)
    texts = Texts.of(_with(distinct.texts.picked(others), document), weights, threshold)
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


def _repeat_document(texts: Shingles, document: ComparedDocument, weights: Weights, threshold: float) -> Bools:
    """Return which of m texts repeat the document by their share of words, or one of its short chunks, (m,)."""
    weighed = Texts.of(texts, weights, threshold)
    repeats: Bools = (weighed.whole > 0) & (_covered_by(document, weighed) >= weighed.needed)
    repeats[texts.is_short] = np.isin(texts.hashes[texts.offsets[:-1][texts.is_short]], document.wholes)
    return repeats


def _covered_by(document: ComparedDocument, texts: Texts) -> Ints:
    """Return the weight of each text's words that stand in runs of the document, (m,)."""
    places = np.flatnonzero(np.isin(texts.hashes, document.runs))
    firsts = np.flatnonzero(np.diff(texts.owners[places], prepend=-1))
    weights = np.zeros(len(texts.whole), np.int64)
    weights[texts.owners[places[firsts]]] = covered(texts.words, places, firsts)
    return weights


def similarities(candidates: Shingles, *, document: ComparedDocument, weights: Weights) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1].

    1 or 0 for a text of fewer than ten words: the document has the same or not.
    """
    texts = Texts.of(candidates, weights, 1.0)
    shares = _covered_by(document, texts).astype(np.float64)
    np.divide(shares, texts.whole, out=shares, where=texts.whole > 0)
    shares[candidates.is_short] = np.isin(texts.hashes[texts.offsets[:-1][candidates.is_short]], document.wholes)
    return shares


def _with(texts: Shingles, document: ComparedDocument) -> Shingles:
    """Return the texts, and the whole document behind them."""
    hashes = np.concatenate([texts.hashes, document.runs])
    return Shingles(hashes, np.append(texts.offsets, len(hashes)))
