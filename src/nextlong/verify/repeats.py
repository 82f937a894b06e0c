"""Repeats: which of some texts repeat which others, each compared with all; the rule is docs/decisions/0005-near-copies.md.

In:  the words of the texts as numbers, and the weights of runs by slot. Out: pairs (a, b) of which a repeats b.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.verify.words import RUN_WORDS, Numbers, runs_within

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_WORDS = 10  # fewer are a copy of the same words only
_PASSAGE_WORDS = 100
_FULL_WEIGHT = 1024
_MILLION = 1_000_000
_SCREEN_SLOTS = 1 << 20
_ROWS_AT_ONCE = 1 << 18  # runs of a text that another one has


class Repeat(NamedTuple):
    """Text `a` repeats text `b`: `how` says it in words."""

    a: int
    b: int
    how: str


class Texts:
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

    def repeated(self, those: Sequence[int], others: Sequence[int]) -> Iterator[Repeat]:
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
        return np.where(self._follow(RUN_WORDS), self._over(rarity, np.maximum), 0)

    def _follow(self, count: int) -> Bools:
        """Return whether `count` runs from each on are of one text, shape (r,)."""
        follow: Bools = np.arange(len(self._text)) + count <= self._stops[self._text]
        return follow

    def _over(self, values: NDArray[Any], combine: np.ufunc) -> NDArray[Any]:
        """Return the values of each run and the two behind it, combined; meaningless where those are another text's."""
        combined = values.copy()
        for step in range(1, RUN_WORDS):
            combined[:-step] = combine(combined[:-step], values[step:])
        return combined

    def _total(self, values: Ids) -> Ids:
        total: Ids = np.bincount(self._text, values, len(self._words)).astype(np.int64)
        return total

    def _reaches(self, shared: Ids, texts: Ids) -> Bools:
        whole = self._whole[texts]
        reaches: Bools = (whole > 0) & (shared * _MILLION >= self._millionths * whole)
        return reaches

    def _same(self, wanted: Bools, offered: Bools) -> Iterator[Repeat]:
        """Yield the texts of fewer than ten words that have the same words."""
        short = [text for text, text_words in enumerate(self._words) if 0 < len(text_words) < LEAST_WORDS]
        by_words: defaultdict[bytes, list[int]] = defaultdict(list)
        for text in short:
            if offered[text]:
                by_words[self._words[text].tobytes()].append(text)
        for a in short:
            if wanted[a]:
                yield from (Repeat(a, b, "is the same as") for b in by_words[self._words[a].tobytes()] if a != b)

    def _passages(self, wanted: Bools, offered: Bools) -> Iterator[Repeat]:
        """Yield the texts that have the same 100 words in a row."""
        runs = _PASSAGE_WORDS - RUN_WORDS + 1
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
        yield from (Repeat(a, b, "has the same 100 words in a row as") for a, b in sorted(pairs))

    def _is_met(self, wanted: Bools, offered: Bools) -> Bools:
        """Return whether a run of a wanted text is met in another one that is offered, shape (r,)."""
        groups, texts = self._has
        count = np.bincount(groups[offered[texts]], minlength=len(groups))
        of_shared = self._text[self._shared]
        met = np.zeros(len(self._text), np.bool_)
        met[self._shared] = wanted[of_shared] & (count[self._group] > offered[of_shared])
        return met

    def _shares(self, wanted: Bools, offered: Bools) -> Iterator[Repeat]:
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

    def _sharing(self, rows: Ids, holders: Ids, weight_before: Ids) -> Iterator[Repeat]:
        """Yield the texts that share enough, from all rows, ascending, of theirs and which text each is met in, shape (n,)."""
        pairs = self._text[rows] * len(self._words) + holders
        order = np.argsort(pairs, kind="stable")
        rows, pairs = rows[order], pairs[order]
        first = np.maximum(rows - RUN_WORDS + 1, 0)  # its three words, but for what the run before has
        is_same = pairs[1:] == pairs[:-1]
        first[1:][is_same] = np.maximum(first[1:], rows[:-1] + 1)[is_same]
        starts = np.flatnonzero(np.append(True, ~is_same))
        shared = np.add.reduceat(weight_before[rows + 1] - weight_before[first], starts)
        a, b = np.divmod(pairs[starts], len(self._words))
        for place in np.flatnonzero(self._reaches(shared, a) & (a != b)).tolist():
            share = shared[place] / self._whole[a[place]]
            yield Repeat(int(a[place]), int(b[place]), f"has {share:.0%} of its words, by weight, in common with")


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
