"""Keep the pairs of near-duplicates among chunks, so that each is judged only once.

In:  SHINGLES and WEIGHTS; the chunks that some drafts may take.
Out: for a meta-document and chunks that are known, what `find_near_duplicates` returns.

In a corpus of near-identical pages, a draft walks through thousands of copies, several
times as far as in other text, and the next draft walks through the same ones. Whether
two chunks repeat each other does not depend on the draft, so each pair is judged once.
Only the meta-document is new: the runs of all chunks are kept sorted, and its own are
looked up.

Texts are numbered in the order in which they became known. Pairs are rows (a, b) of
numbers, a < b. `positions` are those of runs in the runs of all texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from nextlong.arrays import Bools, Hashes, Ints
from nextlong.artifacts.corpus_files import FileVersion, ranges
from nextlong.retrieval.near_duplicates.rule import (
    PASSAGE_RUNS,
    NearDuplicates,
    Texts,
    compare,
    covered,
    repeated_passages,
    repeating,
    running,
    shared_runs,
)
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    Shingles,
    ShingleStore,
    Weights,
)

# Kept: 80 MB, and those of about 12 MB of text.
_MAX_RUNS: Final = 1 << 21
# Equal runs of known and new texts, which are listed in 200 MB; if there are more, the
# candidates of the draft are compared by their rarest runs alone.
_MAX_MATCHES: Final = 1 << 22


class KnownTexts(NamedTuple):
    """The k chunks whose pairs are known, and their texts in the order of learning."""

    chunks: Ints  # (k,) ids, ascending
    numbers: Ints  # (k,) of their texts
    texts: Texts
    sorted_hashes: Hashes  # (s,) of the runs of all texts
    positions: Ints  # (s,) of these runs in `texts`
    by_words: Ints  # (n, 2) pairs that repeat each other by their share of words
    by_passage: Ints  # (p, 2) other pairs, with the same passage


class KnownPairs:
    """Chunks of a corpus, compared with each other when a draft first needs them."""

    def __init__(self) -> None:
        self._known: KnownTexts | None = None

    def learn(
        self, chunks: Ints, shingles: ShingleStore, weights: Weights, threshold: float
    ) -> None:
        """Compare chunks, ascending ids, with each other, unless all of them are known.

        Chunks of earlier drafts stay known while there is room.
        """
        if self._known is not None:
            others = np.setdiff1d(chunks, self._known.chunks, assume_unique=True)
            if not len(others):
                return
            texts = shingles.of(others)
            if len(self._known.positions) + len(texts.hashes) <= _MAX_RUNS:
                new = _judge(others, texts, weights, threshold)
                self._known = _joined(self._known, new)
                if self._known is not None:
                    return
        self._known = _judge(chunks, shingles.of(chunks), weights, threshold)

    def knows(self, chunks: Ints) -> bool:
        """Return whether chunks were compared with each other."""
        if self._known is None:
            return False
        return bool(np.isin(chunks, self._known.chunks).all())

    def against(self, document: ComparedDocument) -> KnownCandidates:
        """Return the known chunks, compared with a document."""
        known = self._known
        assert known is not None, "nothing was learned"
        by_words, by_passage = _repeating_document(known, document)
        return KnownCandidates(known, by_words, by_passage)


class KnownCandidates(NamedTuple):
    """The k known chunks, compared with each other and with a document."""

    known: KnownTexts
    by_words: Bools  # (k,) texts that repeat the document by their words
    by_passage: Bools  # (k,) only by a passage

    def find(self, chunks: Ints) -> NearDuplicates:
        """Return the near-duplicates among known chunks, as `find_near_duplicates`."""
        known = self.known
        numbers = known.numbers[np.searchsorted(known.chunks, chunks)]
        is_free = ~(self.by_words | self.by_passage)

        # (k,) the index in `chunks` of a text that does not repeat the document, else
        # -1.
        order = np.full(len(is_free), -1)
        indices = np.arange(len(chunks))
        order[numbers] = np.where(is_free[numbers], indices, -1)
        repeats = _reordered(known.by_words, order)
        passages = _reordered(known.by_passage, order)
        only_passage = self.by_passage[numbers]
        only_passage[passages] = True
        only_passage[repeats] = False
        pairs = _ascending(np.concatenate([repeats, passages]), len(chunks))
        return NearDuplicates(~is_free[numbers], pairs, only_passage)


@lru_cache(maxsize=1)
def kept_pairs(_weights: FileVersion, _threshold: float) -> KnownPairs:
    """Return the known pairs of a run; a worker keeps them from task to task.

    The file of the weights identifies the chunks, because it was made from all of them.
    """
    return KnownPairs()


def _judge(
    chunks: Ints, texts: Shingles, weights: Weights, threshold: float
) -> KnownTexts:
    """Compare all chunks with each other."""
    compared = compare(
        texts, document=_NO_DOCUMENT, weights=weights, threshold=threshold
    )
    repeats = repeating(compared.texts, compared.shared, compared.suspects)
    kinds_by_words = np.concatenate([repeats, compared.pairs_of_equals()])
    by_words = compared.distinct.pairs(compared.others[kinds_by_words])
    passages = repeated_passages(compared.texts, compared.shared.kinds > 0)
    by_passage = compared.distinct.pairs(compared.others[passages])
    positions = np.argsort(texts.hashes)
    return KnownTexts(
        chunks=chunks,
        numbers=np.arange(len(chunks)),
        texts=Texts.of(texts, weights, threshold),
        sorted_hashes=texts.hashes[positions],
        positions=positions,
        by_words=by_words,
        by_passage=_without(by_passage, by_words),
    )


def _joined(known: KnownTexts, new: KnownTexts) -> KnownTexts | None:
    """Return known and new chunks together; None if they have too many equal runs."""
    matches = _matches(known, new)
    if matches is None:
        return None
    of_known, of_new = matches
    known_repeats, known_likely = _repeats_of(of_known, of_new, known.texts, new.texts)
    new_repeats, new_likely = _repeats_of(of_new, of_known, new.texts, known.texts)
    equal = _equal_short_texts(of_known, of_new, known, new)

    # Rows (known, new); the numbers of new texts follow those of the known ones.
    count = len(known.texts.whole)
    shift = np.array([0, count])
    repeats = np.concatenate([known_repeats, new_repeats[:, ::-1], equal]) + shift
    likely = np.concatenate([known_likely, new_likely[:, ::-1]]) + shift
    texts = known.texts.followed_by(new.texts)

    # Passages are looked for among all texts that may share one; those of two known or
    # two new texts are listed already.
    numbers = np.unique(likely)
    picked = Shingles(texts.hashes, texts.offsets).picked(numbers)
    passages = numbers[_passages_among(picked)]
    is_between = (passages[:, 0] < count) & (passages[:, 1] >= count)

    repeats = _distinct(repeats)
    other_passages = _without(passages[is_between], repeats)
    by_words = [known.by_words, repeats, new.by_words + count]
    by_passage = [known.by_passage, other_passages, new.by_passage + count]
    chunks = np.concatenate([known.chunks, new.chunks])
    numbers_of_chunks = np.concatenate([known.numbers, new.numbers + count])
    order = np.argsort(chunks)
    # The runs stay sorted: those of new texts are inserted.
    at = np.searchsorted(known.sorted_hashes, new.sorted_hashes)
    new_positions = new.positions + len(known.positions)
    return KnownTexts(
        chunks=chunks[order],
        numbers=numbers_of_chunks[order],
        texts=texts,
        sorted_hashes=np.insert(known.sorted_hashes, at, new.sorted_hashes),
        positions=np.insert(known.positions, at, new_positions),
        by_words=np.concatenate(by_words),
        by_passage=np.concatenate(by_passage),
    )


def _matches(known: KnownTexts, new: KnownTexts) -> tuple[Ints, Ints] | None:
    """Return the positions, (m,) each, of equal runs of known and of new texts.

    None if there are too many.
    """
    first = np.searchsorted(known.sorted_hashes, new.sorted_hashes, side="left")
    last = np.searchsorted(known.sorted_hashes, new.sorted_hashes, side="right")
    counts = last - first
    if counts.sum() > _MAX_MATCHES:
        return None
    of_known = known.positions[ranges(first, counts)]
    of_new = np.repeat(new.positions, counts)
    return of_known, of_new


def _repeats_of(
    own: Ints, other: Ints, own_texts: Texts, other_texts: Texts
) -> tuple[Ints, Ints]:
    """Return the pairs of an own text and another that it repeats by its words, (n, 2).

    And those that it does not, but with which it may share a passage. `own` and `other`
    are the positions of equal runs, (m,) each.
    """
    # One key for each pair of equal runs: own text, other text, position of the own
    # run. Sorting the keys groups them by pair.
    position_bits = len(own_texts.hashes).bit_length()
    text_bits = len(other_texts.whole).bit_length()
    owners = own_texts.owners[own].astype(np.int64)
    others = other_texts.owners[other].astype(np.int64)
    keys = ((owners << text_bits | others) << position_bits) | own
    keys.sort()
    positions = keys & ((1 << position_bits) - 1)
    pairs = keys >> position_bits
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))

    # (p,) the pairs: their texts, and the weight of the words that they share.
    pair_owners = pairs[firsts] >> text_bits
    pair_others = pairs[firsts] & ((1 << text_bits) - 1)
    rows = np.stack([pair_owners, pair_others], axis=1)
    weights = covered(running(own_texts.words), positions, firsts)
    is_long = own_texts.whole[pair_owners] > 0
    is_repeat = is_long & (weights >= own_texts.needed[pair_owners])
    counts = np.diff(firsts, append=len(keys))
    may_share = ~is_repeat & (counts >= PASSAGE_RUNS)
    return rows[is_repeat], rows[may_share]


def _equal_short_texts(
    of_known: Ints, of_new: Ints, known: KnownTexts, new: KnownTexts
) -> Ints:
    """Return the pairs of a known and a new text of the same few words."""
    a = known.texts.owners[of_known]
    b = new.texts.owners[of_new]
    is_short = np.flatnonzero(known.texts.whole[a] == 0)
    return np.stack([a[is_short], b[is_short]], axis=1).astype(np.int64)


_ALIKE: Final = np.ones(1, np.uint16)  # weights, which passages do not need
_NO_RUNS: Final = np.empty(0, np.uint64)
_NO_DOCUMENT: Final = ComparedDocument(_NO_RUNS, _NO_RUNS)


def _repeating_document(
    known: KnownTexts, document: ComparedDocument
) -> tuple[Bools, Bools]:
    """Return which texts, (k,), repeat a document by words, and which by a passage.

    Those of the latter repeat it by a passage only.
    """
    # Where the runs of the document are in the known texts, ascending, so by text.
    texts = known.texts
    runs = np.unique(document.runs)
    first = np.searchsorted(known.sorted_hashes, runs, side="left")
    last = np.searchsorted(known.sorted_hashes, runs, side="right")
    positions = np.sort(known.positions[ranges(first, last - first)])
    owners = texts.owners[positions]
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))

    sums = running(texts.words)
    weights = np.zeros(len(texts.whole), np.int64)
    weights[owners[firsts]] = covered(sums, positions, firsts)
    by_words: Bools = (texts.whole > 0) & (weights >= texts.needed)
    is_short = np.diff(texts.offsets) == 1
    numbers = texts.hashes[texts.offsets[:-1][is_short]]
    by_words[is_short] = np.isin(numbers, document.wholes)

    # A passage of the document is in as many successive positions of one text.
    by_passage = np.zeros(len(texts.whole), np.bool_)
    begins = np.arange(max(0, len(positions) - PASSAGE_RUNS + 1))
    ends = begins + PASSAGE_RUNS - 1
    is_unbroken = positions[ends] - positions[begins] == PASSAGE_RUNS - 1
    is_within = owners[ends] == owners[begins]
    likely = np.unique(owners[begins[is_unbroken & is_within]])
    likely = likely[~by_words[likely]]
    if len(likely):
        picked = Shingles(texts.hashes, texts.offsets).picked(likely)
        by_passage[likely] = _has_passage(picked, document)
    return by_words, by_passage


def _has_passage(texts: Shingles, document: ComparedDocument) -> Bools:
    """Return which texts, (n,), have a passage of the document."""
    hashes = np.concatenate([texts.hashes, document.runs])
    offsets = np.append(texts.offsets, len(hashes))
    a, b = _passages_among(Shingles(hashes, offsets)).T
    document_number = len(texts.offsets) - 1
    has_passage = np.zeros(document_number, np.bool_)
    has_passage[a[b == document_number]] = True
    return has_passage


def _passages_among(texts: Shingles) -> Ints:
    """Return the pairs a < b of texts that share a passage, (n, 2)."""
    weighed = Texts.of(texts, _ALIKE, 1.0)
    shared = shared_runs(weighed.hashes, weighed.owners)
    return repeated_passages(weighed, shared.kinds > 0)


def _reordered(pairs: Ints, order: Ints) -> Ints:
    """Return pairs in the `order` of their texts, a < b, without those of -1."""
    a = order[pairs[:, 0]]
    b = order[pairs[:, 1]]
    is_inside = np.flatnonzero((a >= 0) & (b >= 0))
    a = a[is_inside]
    b = b[is_inside]
    return np.stack([np.minimum(a, b), np.maximum(a, b)], axis=1)


def _ascending(pairs: Ints, count: int) -> Ints:
    """Return pairs of numbers below `count` in ascending order."""
    keys = pairs[:, 0] * count + pairs[:, 1]
    keys.sort()
    rows = np.divmod(keys, max(1, count))
    return np.stack(rows, axis=1)


def _distinct(pairs: Ints) -> Ints:
    """Return pairs in ascending order, each once."""
    count = int(pairs.max(initial=0)) + 1
    rows = np.divmod(np.unique(pairs[:, 0] * count + pairs[:, 1]), count)
    return np.stack(rows, axis=1)


def _without(pairs: Ints, others: Ints) -> Ints:
    """Return the pairs that are not among others."""
    count = int(max(pairs.max(initial=0), others.max(initial=0))) + 1
    keys = pairs[:, 0] * count + pairs[:, 1]
    is_other = np.isin(keys, others[:, 0] * count + others[:, 1])
    return pairs[~is_other]
