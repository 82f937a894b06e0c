"""Near-duplicates: find negatives that repeat their meta-document or another negative of their sequence.

In:  the texts of a sequence, and the run's table of weights. The rule is docs/decisions/0005-near-duplicates.md. Every negative is
compared with the whole meta-document and with every other negative, and there is no margin. This is a second implementation of
the rule: it shares no code with `nextlong.retrieval`. A word is a 64-bit number, equal for equal words whatever their case.

The weights are counted again, from the texts of all documents that the run says it counted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import META, NEGATIVE, SHARD_BITS, Layout
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, StoredRun
from nextlong.verify.sequences import texts_of_cuts

_Bools = NDArray[np.bool_]
_Numbers = NDArray[np.uint64]

_CHECK = "near-duplicates among negatives"
_THRESHOLD = 0.8  # of a count where the recipe asked for none
_LEAST_WORDS = 10  # fewer are a copy of the same words only
_PASSAGE_WORDS = 100
_FULL_WEIGHT = 1024
_MILLION = 1_000_000
_SCREEN_SLOTS = 1 << 20
_ROWS_AT_ONCE = 1 << 18  # runs of a text that another one has
# of the table of weights
_SLOTS = 1 << 22
_COMMON_LEAST = 16
_COMMON_SHARE = 1000
_ALL_COUNTED_CHARS = 48_000_000  # a corpus of no more than these is counted whole
_COUNTED_AT_ONCE = 1 << 20  # runs
# of words and runs
_RUN_WORDS = 3
_BASE = np.uint64(0xD1342543DE82EF95)
_BASE_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_BATCH_CHARS = 1 << 16
_LEAST_BITS = 17  # of a code point: letters of all scripts but rare Han are below
# Thai and Lao, Burmese, Khmer, kana, Han: written without blanks, so that each letter is a word.
_ALONE = (
    *(range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x3040, 0x3100)),
    *(range(0x3400, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x40000)),
)


class _SequenceWords(NamedTuple):
    """The words of chunks, by chunk id, and of whole meta-documents, by sequence number."""

    of_chunk: dict[int, _Numbers]
    of_document: dict[int, _Numbers]
    own_chunks: dict[int, Ids]

    def chunks(self, ids: Ids) -> list[_Numbers]:
        """Return the words of each chunk."""
        return [self.of_chunk[chunk] for chunk in ids.tolist()]

    def document(self, sequence: ResolvedSequence) -> list[_Numbers]:
        """Return the words of the whole meta-document, and of each of its chunks that has few."""
        chunks = self.chunks(self.own_chunks[sequence.number])
        return [self.of_document[sequence.number], *(words for words in chunks if len(words) < _LEAST_WORDS)]


def check_near_duplicates(run: StoredRun, found: Iterable[CheckOutcome] | None = None) -> list[CheckOutcome]:
    """Compare every negative, or take what was `found` of all sequences: a breach where the recipe asked for none, else a count."""
    outcome = CheckOutcome(_CHECK, "negatives", not_needed=_not_meant(run))
    if outcome.not_needed:
        return [outcome]
    for part in [find_copies(run, range(sum(run.takes)))] if found is None else found:
        outcome.add(part)
    if run.setting("mine", "near_duplicates") is None:
        count = f"{outcome.breaches:,} found, stock passages included"
        note = f"{count}; mine.near_duplicates is not set, so they are only counted"
        return [CheckOutcome(_CHECK, "negatives", checked=outcome.checked, note=note)]
    return [outcome]


def find_copies(run: StoredRun, numbers: range) -> CheckOutcome:
    """Compare every negative of the sequences of some numbers, and count those that repeat something, as breaches."""
    outcome = CheckOutcome(_CHECK, "negatives")
    for block in () if _not_meant(run) else run.blocks(numbers):
        words = _words_of(run, block)
        cuts = texts_of_cuts(run, block) if run.is_exact else {}
        for sequence in block:
            outcome.checked += int((sequence.role == NEGATIVE).sum())
            negatives, document = _negatives(sequence), words.document(sequence)
            # The negative that is cut is judged by its whole chunk, and by what the sequence holds of it.
            cut = [
                span
                for span in negatives[sequence.is_truncated[negatives]].tolist()
                if int(sequence.chunk[span]) in cuts
            ]
            visible = [
                cuts[int(sequence.chunk[span])].visible(int(sequence.end[span] - sequence.start[span])) for span in cut
            ]
            spans = [*negatives.tolist(), *cut]
            # The meta-document and its short chunks, then a text for each of `spans`.
            texts = [*document, *words.chunks(sequence.chunk[negatives]), *_numbers_of_words(visible)]
            first = len(document)
            found: dict[int, str] = {}  # by span
            for a, b, how in _texts(run, texts).repeated(range(first, len(texts)), range(len(texts))):
                span = spans[a - first]
                if b >= first and span == spans[b - first]:
                    continue  # a chunk and its own beginning
                other = "the meta-document" if b < first else chunk_name(sequence.chunk[spans[b - first]])
                what = sequence.where(span) + (", as cut," if a - first >= len(negatives) else "")
                found[span] = f"{what} {how} {other}"
            outcome.breach_each(found.values())
    return outcome


def _not_meant(run: StoredRun) -> str:
    """Say why sequences are not meant to be free of near-duplicates, "" if they are."""
    if run.layout == Layout.EXTENDED and not run.negatives.repeat_meta_chunk:
        return ""
    of = "repeated meta-chunks" if run.layout == Layout.EXTENDED else f"{run.layout} sequences"
    return f"{of} may contain near-duplicates"


def without_cause(run: StoredRun, passed_over: Mapping[int, Ids]) -> dict[int, Ids]:
    """Return which of the chunks that sequences, by number, passed over repeat neither meta-document nor negative of theirs.

    Nor does a negative of theirs repeat them.
    """
    unexplained = {}
    for block in run.blocks():
        wanted = [sequence for sequence in block if sequence.number in passed_over]
        if not wanted:
            continue
        chunks = [passed_over[sequence.number] for sequence in wanted]
        words = _words_of(run, wanted, *chunks)
        for sequence, candidate_chunks in zip(wanted, chunks, strict=True):
            document, negatives = words.document(sequence), _negatives(sequence)
            texts = [*document, *words.chunks(sequence.chunk[negatives]), *words.chunks(candidate_chunks)]
            placed, first = range(len(document), len(document) + len(negatives)), len(document) + len(negatives)
            others = range(first, len(texts))
            # In `texts`: the meta-document and its short chunks, the negatives, then the chunks that were passed over.
            compared = _texts(run, texts)
            repeats = {repeat.a for repeat in compared.repeated(others, range(first))}
            left = [text for text in others if text not in repeats]
            repeats |= {repeat.b for repeat in compared.repeated(placed, left)}
            unexplained[sequence.number] = candidate_chunks[[text not in repeats for text in others]]
    return unexplained


def _texts(run: StoredRun, words: Sequence[_Numbers]) -> _ComparedTexts:
    is_asked = run.setting("mine", "near_duplicates") is not None
    threshold = float(run.setting("mine", "near_duplicates", _THRESHOLD))
    return _ComparedTexts(words, weights=_weights(run) if is_asked else None, threshold=threshold)


def _negatives(sequence: ResolvedSequence) -> Ids:
    negatives: Ids = np.flatnonzero((sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN))
    return negatives


def _words_of(run: StoredRun, block: Sequence[ResolvedSequence], *further: Ids) -> _SequenceWords:
    """Return the words of the negatives and meta-documents of some sequences, and of further chunks, each read once."""
    own_chunks: dict[int, Ids] = {}  # all chunks of the meta-document, whether the sequence has them or not
    for sequence in block:
        (metas,) = np.nonzero((sequence.role == META) & (sequence.doc != UNKNOWN))
        bounds = (sequence.doc_first[metas[0]], sequence.doc_stop[metas[0]]) if len(metas) else (0, 0)
        own_chunks[sequence.number] = np.arange(*map(int, bounds))
    negatives = (sequence.chunk[_negatives(sequence)] for sequence in block)
    of_documents = set(np.concatenate([*own_chunks.values()]).tolist())
    own_texts: dict[int, str] = {}
    of_chunk: dict[int, _Numbers] = {}
    for shard, rows in run.by_shard(np.concatenate([*negatives, *own_chunks.values(), *further])):
        for part, texts in run.chunk_texts(shard, rows):
            names = (part | (shard << SHARD_BITS)).tolist()
            of_chunk.update(zip(names, _numbers_of_words(texts), strict=True))
            own_texts.update((name, text) for name, text in zip(names, texts, strict=True) if name in of_documents)
    documents = ("".join(own_texts[chunk] for chunk in chunks.tolist()) for chunks in own_chunks.values())
    of_document = {number: _numbers_of_words([text])[0] for number, text in zip(own_chunks, documents, strict=True)}
    return _SequenceWords(of_chunk, of_document, own_chunks)


# the table of weights


def _weights(run: StoredRun) -> NDArray[np.uint16]:
    (path,) = run.files("weights", ".weights.npy")
    weights: NDArray[np.uint16] = np.load(path, mmap_mode="r")
    return weights


def check_weights(run: StoredRun) -> list[CheckOutcome]:
    """Count again, from the texts, in how many of the counted documents the runs of each slot stand."""
    if "weights" not in run.steps:
        return []
    outcome = CheckOutcome("word weights counted again", "slots", checked=_SLOTS)
    (path,) = run.files("weights", ".counted.npy")
    counted, stored = np.load(path), _weights(run)
    if len(np.unique(counted)) != len(counted):
        outcome.breach("a document is counted twice")
    chars = documents = 0
    for shard in range(len(run.shards)):
        table = run.chunks(shard)
        chars += int((table["end"] - table["start"]).sum())
        documents += len(np.unique(table["doc_row"]))
    if chars <= _ALL_COUNTED_CHARS and documents != len(counted):  # a small corpus is counted whole
        outcome.breach(f"{len(counted):,} documents are counted of {documents:,} that have chunks")
    counts = np.zeros(_SLOTS, np.int64)
    for shard, rows in run.by_shard(counted):
        _count(run, shard, rows, counts)
    # A run of words in up to 1 of 1,000 documents (at least 16) has full weight; beyond, its weight falls as 1 / count.
    limit = max(_COMMON_LEAST * _COMMON_SHARE, len(counted))
    by_count = _FULL_WEIGHT * limit // (_COMMON_SHARE * np.maximum(np.arange(counts.max() + 1), 1))
    weights = np.clip(by_count, 1, _FULL_WEIGHT)[counts]
    if stored.shape != weights.shape:
        outcome.breach(f"the table of weights has the shape {stored.shape}, should have {weights.shape}")
        return [outcome]
    for slot in np.flatnonzero(stored != weights).tolist():
        outcome.breach(
            f"slot {slot} has the weight {stored[slot]}, its word runs are in {counts[slot]} documents, which gives {weights[slot]}"
        )
    return [outcome]


def _count(run: StoredRun, shard: int, doc_rows: Ids, counts: NDArray[np.int64]) -> None:
    """Add one to the slot of each run, once a document, for some documents of a shard."""
    owners = run.chunks(shard)["doc_row"]
    rows = np.flatnonzero(np.isin(owners, doc_rows))
    pieces: list[NDArray[np.uint64]] = []
    for part, texts in run.chunk_texts(shard, rows):
        words = [text if len(text) >= _LEAST_WORDS else text[:0] for text in _numbers_of_words(texts)]
        numbers, chunk = _runs_within(words)
        # Document and slot in one number, so that sorting makes a run that a document has twice count once.
        pieces.append(numbers % np.uint64(_SLOTS) | (owners[part][chunk].astype(np.uint64) << np.uint64(SHARD_BITS)))
        # No document is parted: a batch holds whole ones.
        if sum(map(len, pieces)) >= _COUNTED_AT_ONCE:
            _add(counts, pieces)
            pieces = []
    _add(counts, pieces)


def _add(counts: NDArray[np.int64], pieces: list[NDArray[np.uint64]]) -> None:
    if any(map(len, pieces)):
        ordered = np.sort(np.concatenate(pieces))  # half the time of np.unique
        slots = ordered[np.append(True, ordered[1:] != ordered[:-1])] % np.uint64(_SLOTS)
        np.add.at(counts, slots.astype(np.int64), 1)


# the rule


class _Repeat(NamedTuple):
    """Text `a` repeats text `b`: `how` says it in words."""

    a: int
    b: int
    how: str


class _ComparedTexts:
    """Some texts that are compared with each other; n of them, r runs of three words in those of ten words or more."""

    def __init__(self, words: Sequence[_Numbers], *, weights: NDArray[np.uint16] | None, threshold: float) -> None:
        """Number the runs that several texts may have: equal runs have equal numbers. Without `weights` all weigh the same."""
        self._words = words
        self._millionths = round(threshold * _MILLION)
        numbers, self._text = _runs_within([text if len(text) >= _LEAST_WORDS else text[:0] for text in words])  # (r,)
        self._stops = np.cumsum(np.bincount(self._text, minlength=len(words)))
        self._starts = np.append(0, self._stops[:-1])
        self._shared = np.flatnonzero(self._may_stand_in_two(numbers))  # (s,)
        self._group = np.unique(numbers[self._shared], return_inverse=True)[1]  # (s,)
        entries = np.sort(self._group * len(words) + self._text[self._shared])
        entries = entries[np.flatnonzero(np.diff(entries, prepend=-1))]
        self._has = np.divmod(entries, max(1, len(words)))  # which group stands in which text
        self._weight = self._word_weights(numbers, weights)
        self._whole = self._total(self._weight)

    def repeated(self, those: Sequence[int], others: Sequence[int]) -> Iterator[_Repeat]:
        """Yield every pair of a text among `those` that repeats one among `others`, not itself."""
        # (n,) whether each text may be the one that repeats, and the one that is repeated
        wanted, offered = (np.isin(np.arange(len(self._words)), list(texts)) for texts in (those, others))
        yield from self._same(wanted, offered)
        yield from self._passages(wanted, offered)
        yield from self._shares(wanted, offered)

    def _may_stand_in_two(self, numbers: _Numbers) -> _Bools:
        """Return which runs another text may have, too: it has one with the same last bits, shape (r,)."""
        slots = (numbers % np.uint64(_SCREEN_SLOTS)).astype(np.int64)
        lowest, highest = (np.empty(_SCREEN_SLOTS, np.min_scalar_type(len(self._words))) for _ in range(2))
        highest[slots] = self._text  # which are in order, and the last one stays
        lowest[slots[::-1]] = self._text[::-1]
        two: _Bools = lowest[slots] != highest[slots]
        return two

    def _word_weights(self, numbers: _Numbers, weights: NDArray[np.uint16] | None) -> Ids:
        """Return the weight of the last word of each run where that stands in three runs, else 0, shape (r,)."""
        if weights is None:
            rarity = np.full(len(numbers), _FULL_WEIGHT, np.int64)
        else:
            rarity = weights[(numbers % np.uint64(len(weights))).astype(np.int64)].astype(np.int64)
        return np.where(self._follow(_RUN_WORDS), self._over(rarity, np.maximum), 0)

    def _follow(self, count: int) -> _Bools:
        """Return whether `count` runs from each on are of one text, shape (r,)."""
        follow: _Bools = np.arange(len(self._text)) + count <= self._stops[self._text]
        return follow

    def _over(self, values: NDArray[Any], combine: np.ufunc) -> NDArray[Any]:
        """Return the values of each run and the two behind it, combined; meaningless where those are another text's."""
        combined = values.copy()
        for step in range(1, _RUN_WORDS):
            combined[:-step] = combine(combined[:-step], values[step:])
        return combined

    def _total(self, values: Ids) -> Ids:
        total: Ids = np.bincount(self._text, values, len(self._words)).astype(np.int64)
        return total

    def _reaches(self, shared: Ids, texts: Ids) -> _Bools:
        whole = self._whole[texts]
        reaches: _Bools = (whole > 0) & (shared * _MILLION >= self._millionths * whole)
        return reaches

    def _same(self, wanted: _Bools, offered: _Bools) -> Iterator[_Repeat]:
        """Yield the texts of fewer than ten words that have the same words."""
        short = [text for text, text_words in enumerate(self._words) if 0 < len(text_words) < _LEAST_WORDS]
        by_words: defaultdict[bytes, list[int]] = defaultdict(list)
        for text in short:
            if offered[text]:
                by_words[self._words[text].tobytes()].append(text)
        for a in short:
            if wanted[a]:
                yield from (_Repeat(a, b, "is the same as") for b in by_words[self._words[a].tobytes()] if a != b)

    def _passages(self, wanted: _Bools, offered: _Bools) -> Iterator[_Repeat]:
        """Yield the texts that have the same 100 words in a row."""
        runs = _PASSAGE_WORDS - _RUN_WORDS + 1
        alone = np.append(0, np.cumsum(~self._is_met(wanted | offered, wanted | offered)))
        first = np.flatnonzero(self._follow(runs))
        first = first[alone[first + runs] == alone[first]]
        texts = self._text[first]
        holders: defaultdict[bytes, list[int]] = defaultdict(list)
        passages = [
            (text, self._words[text][place : place + _PASSAGE_WORDS].tobytes())
            for text, place in zip(texts.tolist(), (first - self._starts[texts]).tolist(), strict=True)
        ]
        for text, passage in passages:
            if offered[text]:
                holders[passage].append(text)
        pairs = {(text, b) for text, passage in passages if wanted[text] for b in holders[passage] if text != b}
        yield from (_Repeat(a, b, "has the same 100 words in a row as") for a, b in sorted(pairs))

    def _is_met(self, wanted: _Bools, offered: _Bools) -> _Bools:
        """Return whether a run of a wanted text is met in another one that is offered, shape (r,)."""
        groups, texts = self._has
        count = np.bincount(groups[offered[texts]], minlength=len(groups))
        of_shared = self._text[self._shared]
        met = np.zeros(len(self._text), np.bool_)
        met[self._shared] = wanted[of_shared] & (count[self._group] > offered[of_shared])
        return met

    def _shares(self, wanted: _Bools, offered: _Bools) -> Iterator[_Repeat]:
        """Yield the texts enough of whose words stand in runs that the other has."""
        met = self._is_met(wanted, offered)
        suspects = wanted & self._reaches(
            self._total(self._weight * self._over(met, np.logical_or)), np.arange(len(wanted))
        )
        groups, holders = (column[offered[self._has[1]]] for column in self._has)
        counts = np.bincount(groups, minlength=int(self._group.max(initial=-1)) + 1)
        firsts = np.cumsum(counts) - counts
        of_suspects = (met & suspects[self._text])[self._shared]
        rows, groups = self._shared[of_suspects], self._group[of_suspects]
        weight_before = np.append(0, np.cumsum(self._weight))
        for part in _parts(self._text[rows], counts[groups]):
            reps = counts[groups[part]]
            stops = np.cumsum(reps)
            at = np.arange(stops[-1]) + np.repeat(firsts[groups[part]] - stops + reps, reps)
            yield from self._sharing(np.repeat(rows[part], reps), holders[at], weight_before)

    def _sharing(self, rows: Ids, holders: Ids, weight_before: Ids) -> Iterator[_Repeat]:
        """Yield the texts that share enough, from all rows, ascending, of theirs and which text each is met in, shape (n,)."""
        pairs = self._text[rows] * len(self._words) + holders
        order = np.argsort(pairs, kind="stable")
        rows, pairs = rows[order], pairs[order]
        first = np.maximum(rows - _RUN_WORDS + 1, 0)  # its three words, but for what the run before has
        is_same = pairs[1:] == pairs[:-1]
        first[1:][is_same] = np.maximum(first[1:], rows[:-1] + 1)[is_same]
        starts = np.flatnonzero(np.append(True, ~is_same))
        shared = np.add.reduceat(weight_before[rows + 1] - weight_before[first], starts)
        a, b = np.divmod(pairs[starts], len(self._words))
        for place in np.flatnonzero(self._reaches(shared, a) & (a != b)).tolist():
            share = shared[place] / self._whole[a[place]]
            yield _Repeat(int(a[place]), int(b[place]), f"has {share:.0%} of its words, by weight, in common with")


def _parts(texts: Ids, sizes: Ids) -> Iterator[slice]:
    """Yield slices of rows, shape (n,), whose sizes make no more than fits into memory at once; no text is parted."""
    starts = np.flatnonzero(np.diff(texts, prepend=-1))
    held = np.cumsum(np.add.reduceat(sizes, starts)) if len(starts) else starts
    bounds = [*starts.tolist(), len(texts)]
    first = 0
    while first < len(starts):
        before = held[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(held, before + _ROWS_AT_ONCE, side="right")))
        yield slice(bounds[first], bounds[last])
        first = last


def _numbers_of_words(texts: Sequence[str]) -> list[_Numbers]:
    """Return the numbers of the words of each text, in reading order."""
    numbers: list[_Numbers] = []
    first, held = 0, 0
    for place, text in enumerate(texts):
        held += len(text)
        if held >= _BATCH_CHARS or place == len(texts) - 1:
            numbers += _batch(texts[first : place + 1])
            first, held = place + 1, 0
    return numbers


def _runs_within(words: Sequence[_Numbers]) -> tuple[_Numbers, NDArray[np.int64]]:
    """Return the runs of three words of some texts, one text's after the other's, and which text each is of, shape (r,) each."""
    text_of_word = np.repeat(np.arange(len(words)), [*map(len, words)])
    is_within = text_of_word[_RUN_WORDS - 1 :] == text_of_word[: -_RUN_WORDS + 1]
    joined = np.concatenate([np.empty(0, np.uint64), *words])
    numbers = np.zeros(max(0, len(joined) - _RUN_WORDS + 1), np.uint64)
    for step in range(_RUN_WORDS):
        numbers = numbers * _BASE + joined[step : step + len(numbers)]
    numbers = _mixed(numbers ^ np.uint64(_RUN_WORDS))
    return numbers[is_within], text_of_word[: len(is_within)][is_within]


def _batch(texts: Sequence[str]) -> list[_Numbers]:
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    bits = max(_LEAST_BITS, int(codes.max(initial=0)).bit_length())
    term_of, is_alone = _terms(bits)
    terms = term_of[codes]
    begins = terms != 0
    begins[1:] &= terms[:-1] == 0
    high = np.flatnonzero(codes >= _ALONE[0].start)
    alone = high[is_alone[codes[high]]]
    after = alone[alone + 1 < len(codes)] + 1
    begins[alone], begins[after] = True, terms[after] != 0
    firsts = np.flatnonzero(begins)
    text_starts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    cuts = np.searchsorted(firsts, text_starts[1:])
    if not len(firsts):
        return [np.empty(0, np.uint64) for _ in texts]
    # Σ term · B^(place in the word): by the places in the batch, then divided by B^(place of the word); what parts words adds 0.
    powers = _powers(_BASE, len(codes).bit_length())[: len(codes)]
    sums = np.add.reduceat(terms * powers, firsts)
    return np.split(_mixed(sums * _powers(_BASE_INVERSE, len(codes).bit_length())[firsts]), cuts)


@cache
def _terms(bits: int) -> tuple[_Numbers, _Bools]:
    """Return what each code point below 2^bits adds to the number of its word, 0 if it parts words, and whether it is one.

    Both have the shape (2^bits,).
    Made for the largest code point that was met: all of Unicode takes half a second.
    """
    letters = np.zeros(1 << bits, np.bool_)
    lower = np.arange(1 << bits, dtype=np.uint64)
    for code, letter in enumerate(map(chr, range(min(1 << bits, sys.maxunicode + 1)))):
        if letter.isalnum():
            letters[code] = True
            if len(small := letter.lower()) == 1:
                lower[code] = ord(small)
    alone = np.zeros(1 << bits, np.bool_)
    for codes in _ALONE:
        alone[codes.start : codes.stop] = letters[codes.start : codes.stop]
    return _mixed(lower * _BASE) * letters, alone


@lru_cache(maxsize=4)  # a long text's need no less memory than the text's own arrays
def _powers(base: np.uint64, bits: int) -> _Numbers:
    """Return the powers of a base, modulo 2^64, from that of 0 on, shape (2^bits,)."""
    factors = np.full(1 << bits, base)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(numbers: _Numbers) -> _Numbers:
    """Return the numbers mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
