"""Find near-duplicates: candidates that repeat the text of the meta-document or of another candidate.

In:  SHINGLES of some candidates; their meta-document; WEIGHTS, the rarity of each shingle.
Out: the candidates that repeat the meta-document, and the pairs of the other candidates that repeat each other.

The rule (docs/decisions/0005-near-duplicates.md): a text repeats another if `threshold` of its words, by weight, are in
three-word runs that the other text has too; or if both share 100 consecutive words; or, under ten words, if both have the same
words. It is asymmetric: a part repeats the whole. Decisions are exact, based on 64-bit hashes and integer weights.

Not all pairs are compared. Texts with the same words are compared once, and the meta-document is one more text. No text shares
more with one other text than with all others together, so only texts that share enough with all are *suspects*. Another text
must have at least one of any words of a suspect that together weigh more than it may lack, so only texts with a run of its
rarest such words are compared. A shared passage of 100 words is 98 consecutive three-word runs of both texts.

Arrays: the runs of all texts are flat, (s,), and text i has the runs from offsets[i] to offsets[i + 1]. Equal runs that several
texts share have one *kind*. `firsts` are the starts of the groups of a sorted array. Pairs of texts are rows (a, b) of (n, 2).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.lookup import ranges, runs_within
from nextlong.retrieval.near_duplicates import shingles
from nextlong.retrieval.near_duplicates.shingles import (
    SHINGLE_WORDS,
    U64,
    ComparedDocument,
    Shingles,
    Weights,
)

_PASSAGE_WORDS: Final = 100
PASSAGE_RUNS: Final = _PASSAGE_WORDS - SHINGLE_WORDS + 1
_WEIGHT_BITS: Final = 11
_RARE_SHARE: Final = (
    0.05  # of a text's weight that is looked up beyond what the text may lack
)
_AT_ONCE: Final = (
    1 << 21
)  # entries compared at a time: runs of one text that another may have
# Runs of pairs compared at a time, of 256 pairs at most: a table of their kinds and texts
# has 16 MB at most.
_RUNS_AT_ONCE: Final = 1 << 16
_LEAST_RUNS: Final = 1 << 8
_MILLION: Final = 1_000_000  # thresholds are rounded to millionths, so that comparisons use integers alone

_Bools = NDArray[np.bool_]
_Ints = NDArray[np.int64]
_Owners = NDArray[np.int32]


class _SharedRuns(NamedTuple):
    """Runs of more than one text: those of kind k are held by the texts holders[offsets[k]:offsets[k + 1]]; kind 0 is none."""

    kinds: _Ints  # (s,) the kind of each run, 0 if only one text has it
    holders: _Owners  # (h,) texts, ascending and distinct within a kind
    offsets: _Ints  # (g + 2,)
    held: _Ints  # (g + 1,) the number of texts that hold each kind


def shared_runs(hashes: U64, owners: _Owners) -> _SharedRuns:
    """Return the shared runs of texts; `owners`, (s,) ascending, is the text of each of the run `hashes`, (s,)."""
    # The low bits of a key are the run's place: sorting integers is several times as fast as argsort.
    bits = np.uint64(max(1, len(hashes).bit_length()))
    keys = hashes >> bits
    keys <<= bits
    keys |= np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    below = np.uint64(1 << int(bits))
    again = np.zeros(
        len(hashes) + 1, np.bool_
    )  # whether each key has the same hash bits as the key before it
    again[1:-1] = (keys[1:] ^ keys[:-1]) < below
    members = np.flatnonzero(
        again[:-1] | again[1:]
    )  # integer indices are several times as fast as a mask
    # `places` of the runs that occur more than once, equal runs adjacent; `begins`: whether a place begins a kind.
    places, begins = (
        (keys[members] & (below - np.uint64(1))).view(np.int64),
        ~again[members],
    )
    runs = hashes[places]
    if (
        (runs[1:] != runs[:-1]) & ~begins[1:]
    ).any():  # one in a billion differs only in the bits of places
        order = np.argsort(runs, kind="stable")
        places, runs = places[order], runs[order]
        begins[1:] = runs[1:] != runs[:-1]
    texts = owners[places]
    once = begins.copy()  # whether a place is the first of its run in its text: a run may occur in a text several times
    once[1:] |= texts[1:] != texts[:-1]
    # Starts in `places` of each kind, in `holders` of its distinct texts. Kinds of several texts are numbered from 1, others are 0.
    first_members = np.flatnonzero(begins)
    first_holders = np.cumsum(once)[first_members] - 1
    holders = texts[np.flatnonzero(once)]
    offsets = np.concatenate([[0], first_holders, [len(holders)]])
    held = np.diff(offsets)
    kinds = np.zeros(len(hashes), np.int64)
    numbers = np.arange(1, len(first_members) + 1) * (held[1:] > 1)
    kinds[places] = np.repeat(numbers, np.diff(first_members, append=len(places)))
    return _SharedRuns(kinds, holders, offsets, held)


class Texts(NamedTuple):
    """The s shingles of n texts, and the weights of their words."""

    hashes: U64  # (s,)
    offsets: _Ints  # (n + 1,)
    owners: _Owners  # (s,) the text of the shingle
    words: NDArray[np.uint16]  # (s,) the weight of the shingle's last word
    whole: _Ints  # (n,) the weight of all words of a text
    needed: (
        _Ints  # (n,) the weight that another text must share for this text to repeat it
    )

    @classmethod
    def of(cls, texts: Shingles, weights: Weights, threshold: float) -> Texts:
        """Return texts with the weights of their words."""
        # A word has the weight of the heaviest of the three shingles that contain it. The first and last two words of a text
        # are in fewer than three and weigh 0; so does the only shingle of a text under ten words.
        words: NDArray[np.uint16] = highest(
            weights[(texts.hashes & np.uint64(len(weights) - 1)).view(np.int64)]
        )
        sizes = np.diff(texts.offsets)
        ends = texts.offsets[1:][sizes > 0]
        for step in range(1, SHINGLE_WORDS):
            words[ends - step] = 0
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        whole = _sums(words, texts.offsets)
        needed = -(-whole * round(threshold * _MILLION) // _MILLION)
        return cls(texts.hashes, texts.offsets, owners, words, whole, needed)

    def suspects(self, is_shared: _Bools) -> _Bools:
        """Return which texts, (n,), share enough of their words with any others; `is_shared`, (s,), marks shared shingles."""
        return (self.whole > 0) & (
            _sums(self.words * highest(is_shared), self.offsets) >= self.needed
        )


def highest(of_shingles: NDArray[Any]) -> NDArray[Any]:
    """Return the highest value among the shingles that contain the last word of each shingle, (s,); `any` for booleans."""
    most = of_shingles.copy()  # the last two words of a text also see values of the next text, but weigh nothing
    for step in range(1, SHINGLE_WORDS):
        np.maximum(most[:-step], of_shingles[step:], out=most[:-step])
    return most


def running(words: NDArray[np.integer]) -> _Ints:
    """Return the running sums of the weights of words, (s + 1,), as `covered` needs them."""
    sums = np.zeros(len(words) + 1, np.int64)
    np.cumsum(words, out=sums[1:])
    return sums


def covered(sums: _Ints, places: _Ints, firsts: _Ints) -> _Ints:
    """Return the weight of the words in the shingles at `places`, by group, (g,); words in several shingles count once.

    `sums`: the running sums of the weight of each shingle's last word. `firsts` start the
    groups; the places of a group ascend and are of one text.
    """
    # The words of a shingle are its own last word and those of the two shingles before; words before the text weigh 0.
    since = np.maximum(places - SHINGLE_WORDS + 1, 0)
    before = places[:-1] + 1
    before[firsts[1:] - 1] = 0  # belongs to the previous group
    np.maximum(since[1:], before, out=since[1:])
    return np.add.reduceat(sums[places + 1] - sums[since], firsts)


def _sums(words: NDArray[np.uint16], offsets: _Ints) -> _Ints:
    """Return the total weight of each text's words, (n,)."""
    sums = np.zeros(len(offsets) - 1, np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    sums[filled] = np.add.reduceat(words, offsets[filled], dtype=np.int64)
    return sums


class Distinct(NamedTuple):
    """The d distinct texts among m, in the order of their first appearance."""

    texts: Shingles
    kinds: _Ints  # (m,) the number of the distinct text

    def pairs(self, kinds: _Ints) -> _Ints:
        """Return the pairs a < b of the m texts whose distinct texts are paired by `kinds`, (n, 2), distinct and ascending."""
        members, counts = (
            np.argsort(self.kinds, kind="stable"),
            np.bincount(self.kinds, minlength=1),
        )
        firsts, (left, right) = np.cumsum(counts) - counts, kinds.T
        # List each pair of kinds in both orders, so that the filter a < b keeps each pair of members once.
        both = np.unique(
            np.concatenate([left * len(counts) + right, right * len(counts) + left])
        )
        left, right = np.divmod(both, len(counts))
        a, other = (
            members[ranges(firsts[left], counts[left])],
            np.repeat(right, counts[left]),
        )
        a, b = (
            np.repeat(a, counts[other]),
            members[ranges(firsts[other], counts[other])],
        )
        return np.stack(
            np.divmod(np.sort((a * len(members) + b)[a < b]), max(1, len(members))),
            axis=1,
        )


def distinct_texts(texts: Shingles) -> Distinct:
    """Return the distinct texts: equal texts have the same hashes in the same order."""
    starts, sizes = texts.offsets[:-1], np.diff(texts.offsets)
    keys = sizes.astype(np.uint64)
    filled = np.flatnonzero(sizes)
    for share in (
        0,
        0.5,
        1,
    ):  # texts with equal hashes at the start, middle and end are probably equal
        places = starts[filled] + (share * (sizes[filled] - 1)).astype(np.int64)
        keys[filled] = shingles.mix(keys[filled] + texts.hashes[places])
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


def repeating(texts: Texts, shared: _SharedRuns, suspects: _Bools) -> _Ints:
    """Return the pairs (a, b), (n, 2), where a, one of the suspects, shares enough of its words with b."""
    if not suspects.any():
        return np.empty((0, 2), np.int64)
    # Arrays (q,) are of the suspects, arrays (r,) of their concatenated runs: the suspect, the kind, the last word's weight.
    chosen, count = np.flatnonzero(suspects), len(suspects)
    whole, needed, sizes = (
        texts.whole[chosen],
        texts.needed[chosen],
        np.diff(texts.offsets)[chosen],
    )
    runs = ranges(texts.offsets[chosen], sizes)
    starts, owner_of = (
        np.cumsum(sizes) - sizes,
        np.repeat(np.arange(len(chosen)), sizes),
    )
    kinds, words = shared.kinds[runs], texts.words[runs]
    # (r,) the number of texts that hold each run. A word is as common as the most common run that contains it.
    held = shared.held[kinds]
    commonest = highest(held)
    # Find `most`, (q,): the words of a suspect whose runs at most this many texts hold are its rare words. `by_rarity` is
    # sorted by suspect, then by how common a word is, and ends in the word's weight (at most 1,024), so the running sum of
    # weights says where a suspect's rare words together weigh more than it may lack.
    span = int(commonest.max()) + 1
    by_rarity = np.sort((owner_of * span + commonest) << _WEIGHT_BITS | words)
    sums = np.cumsum(by_rarity & ((1 << _WEIGHT_BITS) - 1))
    allowed = np.minimum(
        whole - needed + (whole * _RARE_SHARE).astype(np.int64), whole - 1
    )
    reached = np.searchsorted(sums, np.append(0, sums)[starts] + allowed, side="right")
    most = (by_rarity[reached] >> _WEIGHT_BITS) % span
    rare_words = words * (commonest <= most[owner_of])
    rare = np.add.reduceat(rare_words, starts, dtype=np.int64)
    places = np.flatnonzero((held > 0) & (held <= most[owner_of]))
    bits = len(held).bit_length()
    rare_sums = running(rare_words)
    pairs, weights = [], []
    for first, last in runs_within(held[places], _AT_ONCE):
        part = places[first:last]
        holders = shared.holders[ranges(shared.offsets[kinds[part]], held[part])]
        # One key per run and text that holds it: suspect, text, place of the run. Sorting the keys groups them by pair.
        keys = (
            np.repeat(owner_of[part] * count, held[part]) + holders
        ) << bits | np.repeat(part, held[part])
        keys.sort()
        pair = keys >> bits
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        pairs.append(pair[firsts])
        weights.append(covered(rare_sums, keys & ((1 << bits) - 1), firsts))
    keys, which = np.unique(np.concatenate(pairs), return_inverse=True)
    owners, others = np.divmod(keys, count)
    most_shared = np.bincount(which, np.concatenate(weights)) + (whole - rare)[owners]
    likely = np.flatnonzero(
        (most_shared >= needed[owners]) & (others != chosen[owners])
    )
    owners, others = owners[likely], others[likely]
    enough = (
        _shared(shared, kinds, words, np.append(starts, len(kinds)), owners, others)
        >= needed[owners]
    )
    return np.stack([chosen[owners[enough]], others[enough]], axis=1)


def _shared(
    shared: _SharedRuns,
    kinds: _Ints,
    words: NDArray[np.uint16],
    offsets: _Ints,
    owners: _Ints,
    others: _Ints,
) -> _Ints:
    """Return the weight of the words of a suspect that are in runs of the other text, for each of n pairs, (n,)."""
    places = np.flatnonzero(kinds)
    starts = np.searchsorted(places, offsets)
    sizes = np.diff(starts)[owners]
    weights = np.zeros(len(owners), np.int64)
    sums = running(words)
    # Where a kind is a row of the table below, and a text a column; else -1.
    row_of = np.full(len(shared.held), -1)
    column_of = np.full(int(max(shared.holders.max(), others.max(initial=0))) + 1, -1)
    for first, last in runs_within(np.maximum(sizes, _LEAST_RUNS), _RUNS_AT_ONCE):
        runs = ranges(starts[owners[first:last]], sizes[first:last])
        kinds_of_runs = kinds[places[runs]]
        row_of[kinds_of_runs] = 0
        rows = np.flatnonzero(row_of == 0)
        row_of[rows] = np.arange(len(rows))
        texts = np.unique(others[first:last])
        column_of[texts] = np.arange(len(texts))

        # `holds` is a table (rows, texts), flattened: whether a text has a kind.
        holders = shared.holders[ranges(shared.offsets[rows], shared.held[rows])]
        row_of_holder = np.repeat(np.arange(len(rows)), shared.held[rows])
        column_of_holder = column_of[holders]
        is_column = np.flatnonzero(column_of_holder >= 0)
        holds = np.zeros(len(rows) * len(texts), np.bool_)
        row_starts = row_of_holder[is_column] * len(texts)
        holds[row_starts + column_of_holder[is_column]] = True

        # Look up each run of the first text of a pair in the column of the second.
        columns = np.repeat(column_of[others[first:last]], sizes[first:last])
        cells = row_of[kinds_of_runs] * len(texts) + columns
        row_of[rows] = -1
        column_of[texts] = -1
        held_cells = np.flatnonzero(holds[cells])
        pair = np.repeat(np.arange(first, last), sizes[first:last])[held_cells]
        firsts = np.flatnonzero(np.diff(pair, prepend=-1))
        weights[pair[firsts]] = covered(sums, places[runs[held_cells]], firsts)
    return weights


def repeated_passages(texts: Texts, is_shared: _Bools) -> _Ints:
    """Return the pairs a < b of texts that share a passage of 100 words, (n, 2)."""
    from scipy import (
        sparse,
    )  # imported here because it takes 0.1 s, which every start of nextlong would pay

    # `run`: whether `length` consecutive shared runs begin at each place; doubled to 64, then two overlapping ones give 98.
    run, length = is_shared, 1
    while 2 * length <= PASSAGE_RUNS:
        run = run[:-length] & run[length:]
        length *= 2
    rest = PASSAGE_RUNS - length
    firsts = np.flatnonzero(
        run[:-rest] & run[rest:]
    )  # (n,) the first run of each passage
    owners = texts.owners[firsts]
    within = np.flatnonzero(owners == texts.owners[firsts + PASSAGE_RUNS - 1])
    if not len(within):
        return np.empty((0, 2), np.int64)
    firsts, owners = firsts[within], owners[within]
    # `runs`, (r,): the concatenated runs of all texts that have a passage; `begins`: the first of the 98 runs of a passage.
    texts_with_passage, which = np.unique(owners, return_inverse=True)
    sizes = np.diff(texts.offsets)[texts_with_passage]
    runs = texts.hashes[ranges(texts.offsets[texts_with_passage], sizes)]
    begins = (firsts - texts.offsets[owners]) + (np.cumsum(sizes) - sizes)[which]
    # Hash each passage as a polynomial of its 98 runs, divided by the power at its start, so equal passages are equal anywhere.
    up, down = shingles.powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    shared = shared_runs(
        shingles.mix((sums[begins + PASSAGE_RUNS] - sums[begins]) * down[begins]),
        owners,
    )
    several = np.flatnonzero(shared.held > 1)
    places = ranges(shared.offsets[several], shared.held[several])
    firsts = np.cumsum(shared.held[several]) - shared.held[several]
    # The windows of a long passage are many kinds with the same holders: keep one kind for each set of holders.
    mixed = shingles.mix(shared.holders[places].astype(np.uint64) + np.uint64(1))
    several = several[np.unique(np.add.reduceat(mixed, firsts), return_index=True)[1]]
    held = shared.held[several]
    holders = shared.holders[ranges(shared.offsets[several], held)]
    shape = (len(several), len(texts.whole))
    has = sparse.csr_array(
        (np.ones(len(holders), np.bool_), holders, np.append(0, np.cumsum(held))),
        shape=shape,
    )
    a, b = (has.T @ has).nonzero()
    pairs: _Ints = np.stack([a, b], axis=1)[a < b].astype(np.int64)
    return pairs


class NearDuplicates(NamedTuple):
    """The near-duplicates among m candidates."""

    of_document: _Bools  # (m,) whether the candidate repeats the meta-document
    pairs: _Ints  # (n, 2) ascending places a < b of candidates, one of which repeats the other
    by_passage: _Bools  # (m,) near-duplicates only because of a shared 100-word passage


class Compared(NamedTuple):
    """Candidates compared with the meta-document, of which pairs are not yet compared.

    In a corpus of near-identical pages nearly all texts repeat the document, so only
    the others are paired. `texts` are these, followed by the document as the last one.
    """

    distinct: Distinct
    by_words: _Bools  # (d,) distinct texts that repeat the document by their words
    others: _Ints  # the distinct texts that do not
    texts: Texts
    shared: _SharedRuns
    suspects: _Bools  # (texts,) which share enough with all others to repeat one

    def count_suspected(self) -> int:
        """Return how many candidates repeat the document, or may repeat another."""
        clean = len(self.others) - np.count_nonzero(self.suspects)
        return len(self.distinct.kinds) - int(clean)

    def pairs_of_equals(self) -> _Ints:
        """Return (n, 2): each of the others that several candidates have, twice.

        `Distinct.pairs` expands these to pairs of candidates.
        """
        counts = np.bincount(self.distinct.kinds, minlength=len(self.by_words))
        is_repeated = counts[self.others] > 1
        has_words = np.diff(self.texts.offsets)[:-1] > 0
        same = np.flatnonzero(is_repeated & has_words)
        return np.stack([same, same], axis=1)


def find_near_duplicates(
    candidates: Shingles,
    *,
    document: ComparedDocument,
    weights: Weights,
    threshold: float,
) -> NearDuplicates:
    """Return the candidates that repeat the document or a part of it, and the pairs of the others that repeat each other."""
    return pair_up(
        compare(candidates, document=document, weights=weights, threshold=threshold)
    )


def compare(
    candidates: Shingles,
    *,
    document: ComparedDocument,
    weights: Weights,
    threshold: float,
) -> Compared:
    """Compare candidates with the document, and find those that may repeat another.

    This takes time in proportion to the texts, unlike `pair_up`.
    """
    distinct = distinct_texts(candidates)
    # (d,) the distinct texts that repeat the document, by their share of words or as one of its short chunks.
    weighed = Texts.of(distinct.texts, weights, threshold)
    by_words: _Bools = (weighed.whole > 0) & (
        _covered_by(document, weighed) >= weighed.needed
    )
    is_short = distinct.texts.is_short
    by_words[is_short] = np.isin(
        weighed.hashes[weighed.offsets[:-1][is_short]], document.wholes
    )
    others = np.flatnonzero(~by_words)
    picked = distinct.texts.picked(others)
    hashes = np.concatenate([picked.hashes, document.runs])
    texts = Texts.of(
        Shingles(hashes, np.append(picked.offsets, len(hashes))), weights, threshold
    )
    shared = shared_runs(texts.hashes, texts.owners)
    suspects = texts.suspects(shared.kinds > 0)
    suspects[-1] = False  # the document
    return Compared(
        distinct=distinct,
        by_words=by_words,
        others=others,
        texts=texts,
        shared=shared,
        suspects=suspects,
    )


def pair_up(compared: Compared) -> NearDuplicates:
    """Return the near-duplicates among the candidates that were compared."""
    distinct, by_words, others, texts, shared, suspects = compared
    count = len(others)
    # Rows (a, b) of numbers in `texts`: a repeats b by its share of words, or both have the same passage.
    pairs = repeating(texts, shared, suspects)
    passages = repeated_passages(texts, shared.kinds > 0)
    by_passage = np.zeros(count + 1, np.bool_)
    by_passage[passages[passages[:, 1] == count, 0]] = True
    of_document = by_words.copy()
    of_document[others[by_passage[:-1]]] = True
    # Texts that repeat the document are removed from the draft, so only pairs of the others matter.
    kept = ~by_passage
    kept[-1] = False
    pairs = np.concatenate([pairs, compared.pairs_of_equals()])
    pairs, passages = (rows[kept[rows].all(axis=1)] for rows in (pairs, passages))
    by_passage[passages] = True
    by_passage[pairs] = False  # also repeat each other by their share of words
    only_passage = np.zeros(len(by_words), np.bool_)
    only_passage[others] = by_passage[:-1]
    of_candidates = distinct.pairs(others[np.concatenate([pairs, passages])])
    return NearDuplicates(
        of_document[distinct.kinds], of_candidates, only_passage[distinct.kinds]
    )


def _covered_by(document: ComparedDocument, texts: Texts) -> _Ints:
    """Return the weight of each text's words that are in runs of the document, (m,)."""
    places = np.flatnonzero(np.isin(texts.hashes, document.runs))
    firsts = np.flatnonzero(np.diff(texts.owners[places], prepend=-1))
    weights = np.zeros(len(texts.whole), np.int64)
    weights[texts.owners[places[firsts]]] = covered(
        running(texts.words), places, firsts
    )
    return weights
