"""Find near-duplicates: candidates that repeat the meta-document or another candidate.

In:  SHINGLES of some candidates; their meta-document; WEIGHTS, the rarity of each
     shingle.
Out: the candidates that repeat the meta-document, and the pairs of the other candidates
     that repeat each other.

The rule (docs/decisions/0005-near-duplicates.md): a text repeats another if `threshold`
of its words, by weight, are in three-word runs that the other text has too; or if both
share 100 consecutive words; or, under ten words, if both have the same words. It is
asymmetric: a part repeats the whole. Decisions are exact, based on 64-bit hashes and
integer weights.

Not all pairs are compared. Texts with the same words are compared once, and the
meta-document is one more text. No text shares more with one other text than with all
others together, so only texts that share enough with all are *suspects*. Another text
must have at least one of any words of a suspect that together weigh more than it may
lack, so only texts with a run of its rarest such words are compared. A shared passage
of 100 words is 98 consecutive three-word runs of both texts.

Arrays: the runs of all texts are flat, (s,), and text i has the runs from offsets[i] to
offsets[i + 1]. Equal runs that several texts share have one *kind*. `firsts` are the
starts of the groups of a sorted array. Pairs of texts are rows (a, b) of (n, 2).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.arrays import AnyArray, Bools, Hashes, Int32s, Ints
from nextlong.artifacts.corpus_files import ranges, runs_within
from nextlong.retrieval.near_duplicates import shingles
from nextlong.retrieval.near_duplicates.shingles import (
    SHINGLE_WORDS,
    ComparedDocument,
    Shingles,
    Weights,
)

_PASSAGE_WORDS: Final = 100
PASSAGE_RUNS: Final = _PASSAGE_WORDS - SHINGLE_WORDS + 1
_WEIGHT_BITS: Final = 11  # a weight is at most 1,024
# The share of a text's weight that is looked up beyond what the text may lack.
_RARE_SHARE: Final = 0.05
# Entries compared at a time: runs of one text that another may have.
_AT_ONCE: Final = 1 << 21
# Texts are dense if so many runs are shared, and so many by each pair: then it takes
# less to compare all of these pairs than to weigh the runs of each.
_DENSE_MATCHES: Final = 1 << 18
_DENSE_MATCHES_PER_PAIR: Final = 8
# Pairs of a suspect and a text that are marked at a time: 64 MB.
_MAX_MARKS: Final = 1 << 26
# Runs, and pairs, of the suspects compared at a time: a table of their kinds and texts
# has 16 MB at most.
_RUNS_AT_ONCE: Final = 1 << 12
# Runs of a suspect, times texts, compared at a time.
_CELLS_AT_ONCE: Final = 1 << 18
# Thresholds are rounded to millionths, so that comparisons use integers alone.
_MILLION: Final = 1_000_000

_Owners = Int32s
_Words = NDArray[np.uint16]


class SharedRuns(NamedTuple):
    """The runs of more than one text, and the texts that have them.

    The texts of kind k are holders[offsets[k]:offsets[k + 1]]; kind 0 has none.
    """

    kinds: Ints  # (s,) the kind of each run, 0 if only one text has it
    holders: _Owners  # (h,) texts, ascending and distinct within a kind
    offsets: Ints  # (g + 2,)
    counts: Ints  # (g + 1,) the number of texts that have each kind


def shared_runs(hashes: Hashes, owners: _Owners) -> SharedRuns:
    """Return the runs that several texts have.

    `owners`, (s,) ascending, is the text of each of the run `hashes`, (s,).
    """
    # The low bits of a key are the run's position: sorting integers is several times as
    # fast as argsort.
    bits = max(1, len(hashes).bit_length())
    position_bits = np.uint64(bits)
    keys = hashes >> position_bits
    keys <<= position_bits
    keys |= np.arange(len(hashes), dtype=np.uint64)
    keys.sort()
    position_limit = np.uint64(1 << bits)

    # Whether each key has the same hash bits as the key before it.
    is_again = np.zeros(len(hashes) + 1, np.bool_)
    is_again[1:-1] = (keys[1:] ^ keys[:-1]) < position_limit
    # The m runs that occur more than once, equal ones adjacent. Integer indices are
    # several times as fast as a mask.
    members = np.flatnonzero(is_again[:-1] | is_again[1:])
    positions = (keys[members] & (position_limit - np.uint64(1))).view(np.int64)
    begins_kind = ~is_again[members]
    runs = hashes[positions]

    # One pair in a billion differs only in the bits that the positions replaced.
    is_mixed = (runs[1:] != runs[:-1]) & ~begins_kind[1:]
    if is_mixed.any():
        order = np.argsort(runs, kind="stable")
        positions = positions[order]
        runs = runs[order]
        begins_kind[1:] = runs[1:] != runs[:-1]

    # A run may occur in a text several times: only the first makes the text a holder.
    texts = owners[positions]
    is_first = begins_kind.copy()
    is_first[1:] |= texts[1:] != texts[:-1]

    # Where each kind begins among the members, and among the holders.
    first_members = np.flatnonzero(begins_kind)
    first_holders = np.cumsum(is_first)[first_members] - 1
    holders = texts[np.flatnonzero(is_first)]
    offsets = np.concatenate([[0], first_holders, [len(holders)]])
    counts = np.diff(offsets)

    # Kinds of several texts are numbered from 1; runs that one text repeats have kind
    # 0.
    numbers = np.arange(1, len(first_members) + 1) * (counts[1:] > 1)
    sizes = np.diff(first_members, append=len(positions))
    kinds = np.zeros(len(hashes), np.int64)
    kinds[positions] = np.repeat(numbers, sizes)
    return SharedRuns(kinds, holders, offsets, counts)


class Texts(NamedTuple):
    """The s shingles of n texts, and the weights of their words."""

    hashes: Hashes  # (s,)
    offsets: Ints  # (n + 1,)
    owners: _Owners  # (s,) the text of the shingle
    words: _Words  # (s,) the weight of the shingle's last word
    whole: Ints  # (n,) the weight of all words of a text
    # (n,) the weight that another text must share for this text to repeat it
    needed: Ints

    @classmethod
    def of(cls, texts: Shingles, weights: Weights, threshold: float) -> Texts:
        """Return texts with the weights of their words."""
        # A word has the weight of the heaviest of the three shingles that contain it.
        slots = texts.hashes & np.uint64(len(weights) - 1)
        words: _Words = highest(weights[slots.view(np.int64)])

        # The first and last two words of a text are in fewer than three and weigh 0; so
        # does the only shingle of a text under ten words.
        sizes = np.diff(texts.offsets)
        ends = texts.offsets[1:][sizes > 0]
        for step in range(1, SHINGLE_WORDS):
            words[ends - step] = 0

        whole = _sums(words, texts.offsets)
        millionths = round(threshold * _MILLION)
        return cls(
            hashes=texts.hashes,
            offsets=texts.offsets,
            owners=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
            words=words,
            whole=whole,
            needed=-(-whole * millionths // _MILLION),  # rounded up
        )

    def picked(self, texts: Ints) -> Texts:
        """Return some texts, by their numbers."""
        sizes = np.diff(self.offsets)[texts]
        runs = ranges(self.offsets[texts], sizes)
        return Texts(
            hashes=self.hashes[runs],
            offsets=np.append(0, np.cumsum(sizes)),
            owners=np.repeat(np.arange(len(texts), dtype=np.int32), sizes),
            words=self.words[runs],
            whole=self.whole[texts],
            needed=self.needed[texts],
        )

    def followed_by(self, others: Texts) -> Texts:
        """Return these texts and others, which are numbered after them."""
        count = np.int32(len(self.whole))
        return Texts(
            hashes=np.concatenate([self.hashes, others.hashes]),
            offsets=np.append(self.offsets, others.offsets[1:] + self.offsets[-1]),
            owners=np.concatenate([self.owners, others.owners + count]),
            words=np.concatenate([self.words, others.words]),
            whole=np.concatenate([self.whole, others.whole]),
            needed=np.concatenate([self.needed, others.needed]),
        )

    def suspects(self, is_shared: Bools) -> Bools:
        """Return which texts, (n,), share enough of their words with any others.

        `is_shared`, (s,), marks the shingles that several texts have.
        """
        shared_words = self.words * highest(is_shared)
        shared_weight = _sums(shared_words, self.offsets)
        is_weighed = self.whole > 0
        return is_weighed & (shared_weight >= self.needed)


def highest(values: AnyArray) -> AnyArray:
    """Return, for each shingle's last word, the highest value of its shingles, (s,).

    `values`, (s,), are those of the shingles; of booleans, this is `any`.
    """
    # The last two words of a text also see values of the next text, but weigh nothing.
    highest_values = values.copy()
    for step in range(1, SHINGLE_WORDS):
        earlier = highest_values[:-step]
        np.maximum(earlier, values[step:], out=earlier)
    return highest_values


def running(words: NDArray[np.integer]) -> Ints:
    """Return the running sums of the weights of words, (s + 1,), for `covered`."""
    sums = np.zeros(len(words) + 1, np.int64)
    np.cumsum(words, out=sums[1:])
    return sums


def covered(sums: Ints, positions: Ints, firsts: Ints) -> Ints:
    """Return the weight of the words in the shingles at `positions`, by group, (g,).

    Words in several shingles count once. `sums`: the running sums of the weight of each
    shingle's last word. `firsts` start the groups; the positions of a group ascend and
    are of one text.
    """
    # The words of a shingle are its own last word and those of the two shingles before;
    # words before the text weigh 0.
    first_words = np.maximum(positions - SHINGLE_WORDS + 1, 0)
    after_previous = positions[:-1] + 1
    after_previous[firsts[1:] - 1] = 0  # belongs to the previous group
    np.maximum(first_words[1:], after_previous, out=first_words[1:])
    return np.add.reduceat(sums[positions + 1] - sums[first_words], firsts)


def _sums(words: _Words, offsets: Ints) -> Ints:
    """Return the total weight of each text's words, (n,)."""
    sums = np.zeros(len(offsets) - 1, np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    sums[filled] = np.add.reduceat(words, offsets[filled], dtype=np.int64)
    return sums


class Distinct(NamedTuple):
    """The d distinct texts among m, in the order of their first appearance."""

    texts: Shingles
    kinds: Ints  # (m,) the number of the distinct text

    def pairs(self, kinds: Ints) -> Ints:
        """Return the pairs a < b of the m texts whose distinct texts are paired.

        `kinds`, (n, 2), pairs distinct texts. The result is distinct and ascending.
        """
        texts_by_kind = np.argsort(self.kinds, kind="stable")
        counts = np.bincount(self.kinds, minlength=1)  # (d,) texts per kind
        firsts = np.cumsum(counts) - counts  # (d,) where each begins in texts_by_kind

        # List each pair of kinds in both orders, so that a < b below keeps each pair of
        # texts once.
        left, right = kinds.T
        forward = left * len(counts) + right
        backward = right * len(counts) + left
        both_orders = np.unique(np.concatenate([forward, backward]))
        left, right = np.divmod(both_orders, len(counts))

        # Every text of the left kind, paired with every text of the right kind.
        left_texts = texts_by_kind[ranges(firsts[left], counts[left])]
        right_kinds = np.repeat(right, counts[left])
        a = np.repeat(left_texts, counts[right_kinds])
        b = texts_by_kind[ranges(firsts[right_kinds], counts[right_kinds])]

        is_ascending = a < b
        keys = (a * len(texts_by_kind) + b)[is_ascending]
        keys.sort()
        rows = np.divmod(keys, max(1, len(texts_by_kind)))
        return np.stack(rows, axis=1)


def distinct_texts(texts: Shingles) -> Distinct:
    """Return the distinct texts: equal texts have the same hashes in the same order."""
    starts = texts.offsets[:-1]
    sizes = np.diff(texts.offsets)
    filled = np.flatnonzero(sizes)

    # Texts with equal hashes at the start, middle and end are probably equal.
    keys = sizes.astype(np.uint64)
    for share in (0, 0.5, 1):
        samples = starts[filled] + (share * (sizes[filled] - 1)).astype(np.int64)
        keys[filled] = shingles.mix(keys[filled] + texts.hashes[samples])
    _, key_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return Distinct(texts, np.arange(len(sizes)))

    # Those are compared by all of their hashes.
    first_alike: dict[bytes, int] = {}
    same_as = np.arange(len(sizes))
    is_likely_equal = (counts > 1)[key_of]
    for text in np.flatnonzero(is_likely_equal).tolist():
        hashes = texts.hashes[texts.offsets[text] : texts.offsets[text + 1]]
        same_as[text] = first_alike.setdefault(hashes.tobytes(), text)
    chosen, kinds = np.unique(same_as, return_inverse=True)
    return Distinct(texts.picked(chosen), kinds)


class _Suspects(NamedTuple):
    """The q texts that may repeat another, and all of their r runs, text by text."""

    texts: Ints  # (q,) ascending
    whole: Ints  # (q,) as in `Texts`
    needed: Ints  # (q,)
    offsets: Ints  # (q + 1,)
    owners: Ints  # (r,) the suspect of each run, from 0 to q - 1
    kinds: Ints  # (r,) as in `SharedRuns`
    words: _Words  # (r,) the weight of the run's last word

    @classmethod
    def among(cls, texts: Texts, shared: SharedRuns, is_suspect: Bools) -> _Suspects:
        chosen = np.flatnonzero(is_suspect)
        sizes = np.diff(texts.offsets)[chosen]
        runs = ranges(texts.offsets[chosen], sizes)
        return cls(
            texts=chosen,
            whole=texts.whole[chosen],
            needed=texts.needed[chosen],
            offsets=np.append(0, np.cumsum(sizes)),
            owners=np.repeat(np.arange(len(chosen)), sizes),
            kinds=shared.kinds[runs],
            words=texts.words[runs],
        )


def repeating(texts: Texts, shared: SharedRuns, is_suspect: Bools) -> Ints:
    """Return the pairs (a, b), (n, 2), where a repeats b by its share of words.

    Only suspects are a; b is any other text.
    """
    if not is_suspect.any():
        return np.empty((0, 2), np.int64)
    suspects = _Suspects.among(texts, shared, is_suspect)
    owners, others = _likely_pairs(suspects, shared, text_count=len(is_suspect))
    weights = _shared_weights(suspects, shared, owners, others)
    is_repeat = weights >= suspects.needed[owners]
    repeats = suspects.texts[owners[is_repeat]]
    return np.stack([repeats, others[is_repeat]], axis=1)


def _likely_pairs(
    suspects: _Suspects, shared: SharedRuns, *, text_count: int
) -> tuple[Ints, Ints]:
    """Return the pairs of a suspect and a text that it may repeat, (n,) each.

    They are the texts that have enough of a suspect's rare words for the rest of its
    words to decide.
    """
    # (r,) the number of texts that have each run. A word is as common as the most
    # common run that contains it.
    counts = shared.counts[suspects.kinds]
    commonness = highest(counts)
    max_holders = _max_holders(suspects, commonness)[suspects.owners]
    rare_words = suspects.words * (commonness <= max_holders)
    rare = np.add.reduceat(rare_words, suspects.offsets[:-1], dtype=np.int64)
    rare_runs = np.flatnonzero((counts > 0) & (counts <= max_holders))
    dense_pairs = _dense_pairs(suspects, shared, rare_runs, text_count=text_count)
    if dense_pairs is not None:
        return dense_pairs

    # One key for each rare run and text that has it: suspect, text, position of the
    # run. Sorting the keys groups them by pair. Weights are those of the rare words
    # that the texts of a pair share.
    position_bits = len(counts).bit_length()
    position_mask = (1 << position_bits) - 1
    rare_sums = running(rare_words)
    pair_parts = []
    weight_parts = []
    for first, last in runs_within(counts[rare_runs], _AT_ONCE):
        part = rare_runs[first:last]
        holder_counts = counts[part]
        first_holders = shared.offsets[suspects.kinds[part]]
        holders = shared.holders[ranges(first_holders, holder_counts)]
        owner_keys = np.repeat(suspects.owners[part] * text_count, holder_counts)
        positions = np.repeat(part, holder_counts)
        keys = (owner_keys + holders) << position_bits | positions
        keys.sort()
        pairs = keys >> position_bits
        firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
        pair_parts.append(pairs[firsts])
        weight_parts.append(covered(rare_sums, keys & position_mask, firsts))

    # The runs of a suspect may be in two parts, so its pairs too.
    pairs, which = np.unique(np.concatenate(pair_parts), return_inverse=True)
    rare_shared = np.bincount(which, np.concatenate(weight_parts))
    owners, others = np.divmod(pairs, text_count)
    max_shared = rare_shared + (suspects.whole - rare)[owners]
    is_likely = max_shared >= suspects.needed[owners]
    is_likely &= others != suspects.texts[owners]
    likely = np.flatnonzero(is_likely)
    return owners[likely], others[likely]


def _dense_pairs(
    suspects: _Suspects, shared: SharedRuns, rare_runs: Ints, *, text_count: int
) -> tuple[Ints, Ints] | None:
    """Return all pairs that share a rare run, (n,) each, if they share many.

    So do the copies of a few pages. None if pairs share few runs.
    """
    counts = shared.counts[suspects.kinds[rare_runs]]
    matches = int(counts.sum())
    marks = len(suspects.texts) * text_count
    if matches < _DENSE_MATCHES or marks > _MAX_MARKS:
        return None
    has_match = np.zeros(marks, np.bool_)
    for first, last in runs_within(counts, _AT_ONCE):
        part = rare_runs[first:last]
        first_holders = shared.offsets[suspects.kinds[part]]
        holders = shared.holders[ranges(first_holders, counts[first:last])]
        owner_keys = np.repeat(suspects.owners[part] * text_count, counts[first:last])
        has_match[owner_keys + holders] = True
    own_keys = np.arange(len(suspects.texts)) * text_count + suspects.texts
    has_match[own_keys] = False
    pairs = np.flatnonzero(has_match)
    if matches < _DENSE_MATCHES_PER_PAIR * len(pairs):
        return None
    owners, others = np.divmod(pairs, text_count)
    return owners, others


def _max_holders(suspects: _Suspects, commonness: Ints) -> Ints:
    """Return how many texts may have a run of each suspect's rare words, (q,).

    The rare words weigh more than a suspect may lack, so a text without any of them is
    not one that it repeats.
    """
    # Sorted by suspect, then by how common a word is. A key ends in the word's weight,
    # so the running sum of weights says where a suspect has enough rare words.
    span = int(commonness.max()) + 1
    ranks = suspects.owners * span + commonness
    by_rarity = np.sort(ranks << _WEIGHT_BITS | suspects.words)
    sums = np.cumsum(by_rarity & ((1 << _WEIGHT_BITS) - 1))
    sums_before = np.append(0, sums)[suspects.offsets[:-1]]

    may_lack = suspects.whole - suspects.needed
    margin = (suspects.whole * _RARE_SHARE).astype(np.int64)
    rare = np.minimum(may_lack + margin, suspects.whole - 1)
    reached = np.searchsorted(sums, sums_before + rare, side="right")
    max_holders: Ints = (by_rarity[reached] >> _WEIGHT_BITS) % span
    return max_holders


def _shared_weights(
    suspects: _Suspects, shared: SharedRuns, owners: Ints, others: Ints
) -> Ints:
    """Return the weight of a suspect's words in runs of another text, for pairs, (n,).

    `owners`, (n,) ascending, are suspects, from 0 to q - 1; `others`, (n,), are texts.
    """
    weights = np.zeros(len(owners), np.int64)
    # (p,) the suspects with pairs, and how many runs and pairs each has.
    paired, first_pairs = np.unique(owners, return_index=True)
    bounds = np.append(first_pairs, len(owners))
    run_counts = np.diff(suspects.offsets)[paired]
    sizes = np.maximum(run_counts, np.diff(bounds))
    # Where a kind is a row of the table below, and a text a column; else -1.
    row_of = np.full(len(shared.counts), -1)
    last_text = int(max(shared.holders.max(), others.max(initial=0)))
    column_of = np.full(last_text + 1, -1)
    for first, last in runs_within(sizes, _RUNS_AT_ONCE):
        runs = ranges(suspects.offsets[paired[first:last]], run_counts[first:last])
        row_of[suspects.kinds[runs]] = 0
        rows = np.flatnonzero(row_of == 0)
        row_of[rows] = np.arange(len(rows))
        texts = np.unique(others[bounds[first] : bounds[last]])
        column_of[texts] = np.arange(len(texts))

        # Whether a text has a kind, (rows, texts).
        holders = shared.holders[ranges(shared.offsets[rows], shared.counts[rows])]
        row_of_holder = np.repeat(np.arange(len(rows)), shared.counts[rows])
        column_of_holder = column_of[holders]
        is_column = np.flatnonzero(column_of_holder >= 0)
        has_kind = np.zeros((len(rows), len(texts)), np.bool_)
        has_kind[row_of_holder[is_column], column_of_holder[is_column]] = True

        for index in range(first, last):
            own = slice(*suspects.offsets[paired[index] : paired[index] + 2].tolist())
            own_rows = has_kind[row_of[suspects.kinds[own]]]
            # In float64 because NumPy multiplies integers slowly; sums are exact.
            words = suspects.words[own].astype(np.float64)
            step = max(1, _CELLS_AT_ONCE // len(words))
            for begin in range(bounds[index], bounds[index + 1], step):
                part = slice(begin, min(begin + step, bounds[index + 1]))
                has_word = highest(own_rows[:, column_of[others[part]]])
                weights[part] = words @ has_word
        row_of[rows] = -1
        column_of[texts] = -1
    return weights


def repeated_passages(texts: Texts, is_shared: Bools) -> Ints:
    """Return the pairs a < b of texts that share a passage of 100 words, (n, 2).

    `is_shared`, (s,), marks the shingles that several texts have.
    """
    # Imported here because it takes 0.1 s, which every start of nextlong would pay.
    from scipy import sparse

    starts = _passage_starts(texts, is_shared)
    if not len(starts):
        return np.empty((0, 2), np.int64)
    shared = shared_runs(_passage_hashes(texts, starts), texts.owners[starts])

    # The windows of a long passage are many kinds with the same holders: keep one kind
    # for each set of holders.
    several = np.flatnonzero(shared.counts > 1)
    counts = shared.counts[several]
    positions = ranges(shared.offsets[several], counts)
    numbers = shared.holders[positions].astype(np.uint64) + np.uint64(1)
    mixed = shingles.mix(numbers)
    set_hashes = np.add.reduceat(mixed, np.cumsum(counts) - counts)
    _, first_of_set = np.unique(set_hashes, return_index=True)
    several = several[first_of_set]

    # A sparse matrix (passages, texts), multiplied by itself: texts with any in common.
    counts = shared.counts[several]
    holders = shared.holders[ranges(shared.offsets[several], counts)]
    has_passage = sparse.csr_array(
        (np.ones(len(holders), np.bool_), holders, np.append(0, np.cumsum(counts))),
        shape=(len(several), len(texts.whole)),
    )
    a, b = (has_passage.T @ has_passage).nonzero()
    pairs = np.stack([a, b], axis=1)
    ascending: Ints = pairs[a < b].astype(np.int64)
    return ascending


def _passage_starts(texts: Texts, is_shared: Bools) -> Ints:
    """Return the first run of each passage whose runs are all shared, (n,)."""
    # Whether `length` consecutive shared runs begin at each position; doubled to 64,
    # then two overlapping ones give 98.
    begins = is_shared
    length = 1
    while 2 * length <= PASSAGE_RUNS:
        begins = begins[:-length] & begins[length:]
        length *= 2
    rest = PASSAGE_RUNS - length
    starts = np.flatnonzero(begins[:-rest] & begins[rest:])
    last_runs = starts + PASSAGE_RUNS - 1
    within_text = np.flatnonzero(texts.owners[starts] == texts.owners[last_runs])
    return starts[within_text]


def _passage_hashes(texts: Texts, starts: Ints) -> Hashes:
    """Return a hash of each passage, (n,), the same wherever in a text it begins."""
    # `runs`, (r,), are the concatenated runs of all texts that have a passage; `begins`
    # says where in them the 98 runs of each passage begin.
    owners = texts.owners[starts]
    texts_with_passage, which = np.unique(owners, return_inverse=True)
    sizes = np.diff(texts.offsets)[texts_with_passage]
    runs = texts.hashes[ranges(texts.offsets[texts_with_passage], sizes)]
    begins = (starts - texts.offsets[owners]) + (np.cumsum(sizes) - sizes)[which]

    # The hash is a polynomial of the runs, divided by the power at its start.
    up, down = shingles.powers(1 << len(runs).bit_length())
    sums = np.zeros(len(runs) + 1, np.uint64)
    np.cumsum(runs * up[: len(runs)], out=sums[1:])
    polynomials = (sums[begins + PASSAGE_RUNS] - sums[begins]) * down[begins]
    return shingles.mix(polynomials)


class NearDuplicates(NamedTuple):
    """The near-duplicates among m candidates."""

    of_document: Bools  # (m,) whether the candidate repeats the meta-document
    # (n, 2) candidates a < b, ascending, one of which repeats the other
    pairs: Ints
    # (m,) near-duplicates only because of a shared 100-word passage
    by_passage: Bools


class Compared(NamedTuple):
    """Candidates compared with the meta-document, of which pairs are not yet compared.

    In a corpus of near-identical pages nearly all texts repeat the document, so only
    the others are paired. `texts` are these, followed by the document as the last one.
    """

    distinct: Distinct
    by_words: Bools  # (d,) distinct texts that repeat the document by their words
    others: Ints  # the distinct texts that do not
    texts: Texts
    shared: SharedRuns
    suspects: Bools  # (texts,) which share enough with all others to repeat one

    def count_suspected(self) -> int:
        """Return how many candidates repeat the document, or may repeat another."""
        clean = len(self.others) - np.count_nonzero(self.suspects)
        return len(self.distinct.kinds) - int(clean)

    def pairs_of_equals(self) -> Ints:
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
    """Return the candidates that repeat the document, and the pairs of the others.

    A candidate repeats the document if it repeats a part of it.
    """
    compared = compare(
        candidates, document=document, weights=weights, threshold=threshold
    )
    return pair_up(compared)


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
    # (d,) the distinct texts that repeat the document, by their share of words or as
    # one of its short chunks.
    distinct = distinct_texts(candidates)
    weighed = Texts.of(distinct.texts, weights, threshold)
    is_covered = _covered_by(document, weighed) >= weighed.needed
    by_words: Bools = (weighed.whole > 0) & is_covered
    is_short = distinct.texts.is_short
    short_hashes = weighed.hashes[weighed.offsets[:-1][is_short]]
    by_words[is_short] = np.isin(short_hashes, document.wholes)

    # The texts that do not, followed by the document.
    others = np.flatnonzero(~by_words)
    runs = Shingles(document.runs, np.array([0, len(document.runs)]))
    texts = weighed.picked(others).followed_by(Texts.of(runs, weights, threshold))
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
    # Rows (a, b) of numbers in `texts`, where the document is `count`: a repeats b by
    # its share of words, or both have the same passage.
    repeats = repeating(texts, shared, suspects)
    passages = repeated_passages(texts, shared.kinds > 0)

    by_passage = np.zeros(count + 1, np.bool_)
    with_document = passages[:, 1] == count
    by_passage[passages[with_document, 0]] = True
    of_document = by_words.copy()
    of_document[others[by_passage[:-1]]] = True

    # Texts that repeat the document are removed from the draft, so only pairs of the
    # others matter.
    is_kept = ~by_passage
    is_kept[-1] = False
    pairs = np.concatenate([repeats, compared.pairs_of_equals()])
    pairs = pairs[is_kept[pairs].all(axis=1)]
    passages = passages[is_kept[passages].all(axis=1)]
    by_passage[passages] = True
    by_passage[pairs] = False  # also repeat each other by their share of words
    only_passage = np.zeros(len(by_words), np.bool_)
    only_passage[others] = by_passage[:-1]

    pairs_of_kinds = others[np.concatenate([pairs, passages])]
    return NearDuplicates(
        of_document=of_document[distinct.kinds],
        pairs=distinct.pairs(pairs_of_kinds),
        by_passage=only_passage[distinct.kinds],
    )


def _covered_by(document: ComparedDocument, texts: Texts) -> Ints:
    """Return the weight of each text's words that are in runs of the document, (m,)."""
    positions = shingles.positions_of(document.runs, texts.hashes)
    owners = texts.owners[positions]
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    sums = running(texts.words)
    weights = np.zeros(len(texts.whole), np.int64)
    weights[owners[firsts]] = covered(sums, positions, firsts)
    return weights
