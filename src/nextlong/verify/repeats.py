"""Repeats: which of some texts repeat which others, each compared with all; the rule is docs/decisions/0005-near-duplicates.md.

In:  texts. Out: their words, one 64-bit number per word (equal for equal words whatever their case), and the pairs (a, b) of which
a repeats b. This is a second implementation of the rule: it shares no code with `nextlong.retrieval`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_WORDS = 10  # fewer are a copy of the same words only
_PASSAGE_WORDS = 100
_FULL_WEIGHT = 1024
_MILLION = 1_000_000
_SCREEN_SLOTS = 1 << 20
_ROWS_AT_ONCE = 1 << 18  # runs of a text that another one has


class _Repeat(NamedTuple):
    """Text `a` repeats text `b`: `how` says it in words."""

    a: int
    b: int
    how: str


class ComparedTexts:
    """Some texts that are compared with each other; n of them, r runs of three words in those of ten words or more."""

    def __init__(self, words: Sequence[Numbers], *, weights: NDArray[np.uint16] | None, threshold: float) -> None:
        """Number the runs that several texts may have: equal runs have equal numbers. Without `weights` all weigh the same."""
        self._words = words
        self._millionths = round(threshold * _MILLION)
        numbers, self._text = runs_within([text if len(text) >= LEAST_WORDS else text[:0] for text in words])  # (r,)
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
        wanted, offered = (self._mask(texts) for texts in (those, others))
        yield from self._same(wanted, offered)
        yield from self._passages(wanted, offered)
        yield from self._shares(wanted, offered)

    def repeating(self, those: Sequence[int], others: Sequence[int]) -> set[int]:
        """Return which of the texts `those` repeat any of `others` beside itself; sooner than all pairs are."""
        wanted, offered = (self._mask(texts) for texts in (those, others))
        repeating: set[int] = set()
        for pairs_of in (self._same, self._passages, self._shares):
            repeating |= {repeat.a for repeat in pairs_of(wanted, offered)}
            wanted[list(repeating)] = False
        return repeating

    def _mask(self, texts: Sequence[int]) -> Bools:
        mask = np.zeros(len(self._words), np.bool_)
        mask[list(texts)] = True
        return mask

    def _may_stand_in_two(self, numbers: Numbers) -> Bools:
        """Return which runs another text may have, too: it has one with the same last bits, shape (r,)."""
        slots = (numbers % np.uint64(_SCREEN_SLOTS)).astype(np.int64)
        lowest, highest = (np.empty(_SCREEN_SLOTS, np.min_scalar_type(len(self._words))) for _ in range(2))
        highest[slots] = self._text  # which are in order, and the last one stays
        lowest[slots[::-1]] = self._text[::-1]
        two: Bools = lowest[slots] != highest[slots]
        return two

    def _word_weights(self, numbers: Numbers, weights: NDArray[np.uint16] | None) -> Ids:
        """Return the weight of the last word of each run where that stands in three runs, else 0, shape (r,)."""
        if weights is None:
            rarity = np.full(len(numbers), _FULL_WEIGHT, np.int64)
        else:
            rarity = weights[(numbers % np.uint64(len(weights))).astype(np.int64)].astype(np.int64)
        return np.where(self._follow(_RUN_WORDS), self._over(rarity, np.maximum), 0)

    def _follow(self, count: int) -> Bools:
        """Return whether `count` runs from each on are of one text, shape (r,)."""
        follow: Bools = np.arange(len(self._text)) + count <= self._stops[self._text]
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

    def _reaches(self, shared: Ids, texts: Ids) -> Bools:
        whole = self._whole[texts]
        reaches: Bools = (whole > 0) & (shared * _MILLION >= self._millionths * whole)
        return reaches

    def _same(self, wanted: Bools, offered: Bools) -> Iterator[_Repeat]:
        """Yield the texts of fewer than ten words that have the same words."""
        short = [text for text, text_words in enumerate(self._words) if 0 < len(text_words) < LEAST_WORDS]
        by_words: defaultdict[bytes, list[int]] = defaultdict(list)
        for text in short:
            if offered[text]:
                by_words[self._words[text].tobytes()].append(text)
        for a in short:
            if wanted[a]:
                yield from (_Repeat(a, b, "is the same as") for b in by_words[self._words[a].tobytes()] if a != b)

    def _passages(self, wanted: Bools, offered: Bools) -> Iterator[_Repeat]:
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

    def _is_met(self, wanted: Bools, offered: Bools) -> Bools:
        """Return whether a run of a wanted text is met in another one that is offered, shape (r,)."""
        groups, texts = self._has
        count = np.bincount(groups[offered[texts]], minlength=len(groups))
        of_shared = self._text[self._shared]
        met = np.zeros(len(self._text), np.bool_)
        met[self._shared] = wanted[of_shared] & (count[self._group] > offered[of_shared])
        return met

    def _shares(self, wanted: Bools, offered: Bools) -> Iterator[_Repeat]:
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


Numbers = NDArray[np.uint64]

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


def words_of(texts: Sequence[str]) -> list[Numbers]:
    """Return the numbers of the words of each text, in reading order."""
    numbers: list[Numbers] = []
    first, held = 0, 0
    for place, text in enumerate(texts):
        held += len(text)
        if held >= _BATCH_CHARS or place == len(texts) - 1:
            numbers += _batch(texts[first : place + 1])
            first, held = place + 1, 0
    return numbers


def _runs_of(words: Numbers) -> Numbers:
    """Return the number of each run of three words, shape (w − 2,)."""
    numbers = np.zeros(max(0, len(words) - _RUN_WORDS + 1), np.uint64)
    for step in range(_RUN_WORDS):
        numbers = numbers * _BASE + words[step : step + len(numbers)]
    return _mixed(numbers ^ np.uint64(_RUN_WORDS))


def runs_within(words: Sequence[Numbers]) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the runs of some texts, one text's after the other's, and which of the texts each is of, shape (r,) each."""
    text_of_word = np.repeat(np.arange(len(words)), [*map(len, words)])
    is_within = text_of_word[_RUN_WORDS - 1 :] == text_of_word[: -_RUN_WORDS + 1]
    numbers = _runs_of(np.concatenate([np.empty(0, np.uint64), *words]))
    return numbers[is_within], text_of_word[: len(is_within)][is_within]


def _batch(texts: Sequence[str]) -> list[Numbers]:
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    bits = max(_LEAST_BITS, int(codes.max(initial=0)).bit_length())
    terms = _terms(bits)[codes]
    begins = terms != 0
    begins[1:] &= terms[:-1] == 0
    high = np.flatnonzero(codes >= _ALONE[0].start)
    alone = high[_is_alone(bits)[codes[high]]]
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
def _terms(bits: int) -> Numbers:
    """Return what each code point below 2^bits adds to the number of its word, 0 if it parts words, shape (2^bits,).

    Made for the largest code point that was met: all of Unicode takes half a second.
    """
    letters = np.zeros(1 << bits, np.bool_)
    lower = np.arange(1 << bits, dtype=np.uint64)
    for code, letter in enumerate(map(chr, range(min(1 << bits, sys.maxunicode + 1)))):
        if letter.isalnum():
            letters[code] = True
            if len(small := letter.lower()) == 1:
                lower[code] = ord(small)
    return _mixed(lower * _BASE) * letters


@cache
def _is_alone(bits: int) -> NDArray[np.bool_]:
    """Return which code points below 2^bits are a word by themselves, shape (2^bits,)."""
    alone = np.zeros(1 << bits, np.bool_)
    for codes in _ALONE:
        alone[codes.start : codes.stop] = _terms(bits)[codes.start : codes.stop] != 0
    return alone


@lru_cache(maxsize=4)  # a long text's need no less memory than the text's own arrays
def _powers(base: np.uint64, bits: int) -> Numbers:
    """Return the powers of a base, modulo 2^64, from that of 0 on, shape (2^bits,)."""
    factors = np.full(1 << bits, base)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(numbers: Numbers) -> Numbers:
    """Return the numbers mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
