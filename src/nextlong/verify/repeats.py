"""Repeats: which of some texts repeat which others, each compared with all; the rule is docs/decisions/0005-near-copies.md.

In:  the words of the texts as numbers, and the weights of runs by slot. Out: pairs (a, b) of which a repeats b.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nextlong.verify.words import RUN_WORDS, Numbers, runs_of

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_WORDS = 10  # fewer are a copy of the same words only
_PASSAGE_WORDS = 100
_FULL_WEIGHT = 1024
_MILLION = 1_000_000


class Repeat(NamedTuple):
    """Text `a` repeats text `b`: `how` says it in words."""

    a: int
    b: int
    how: str


class Texts:
    """Some texts that are compared with each other; n of them, r runs of three words in those of ten words or more."""

    def __init__(self, words: Sequence[Numbers], *, weights: NDArray[np.uint16] | None, threshold: float) -> None:
        """Number their runs: equal runs have equal numbers. Without `weights` all weigh the same."""
        self._words = words
        self._millionths = round(threshold * _MILLION)
        runs = [runs_of(text_words) if len(text_words) >= LEAST_WORDS else text_words[:0] for text_words in words]
        sizes = np.array([len(text_runs) for text_runs in runs], np.int64)
        self._stops = np.cumsum(sizes)
        self._starts = self._stops - sizes
        self._text = np.repeat(np.arange(len(words)), sizes)  # (r,)
        numbers = np.concatenate([np.empty(0, np.uint64), *runs])
        self._group = np.unique(numbers, return_inverse=True)[1]  # (r,)
        self._groups = int(self._group.max(initial=-1)) + 1
        entries = np.unique(self._text * self._groups + self._group)
        self._has = (entries // max(1, self._groups), entries % max(1, self._groups))  # which text has which group
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
        texts, groups = self._has
        count = np.bincount(groups[offered[texts]], minlength=self._groups)
        met: Bools = wanted[self._text] & (count[self._group] > offered[self._text])
        return met

    def _shares(self, wanted: Bools, offered: Bools) -> Iterator[Repeat]:
        """Yield the texts enough of whose words stand in runs that the other has."""
        met = self._is_met(wanted, offered)
        suspects = np.flatnonzero(
            wanted & self._reaches(self._total(self._weight * self._over(met, np.logical_or)), np.arange(len(wanted)))
        )
        if not len(suspects):
            return
        # Each run that is met covers three words, so this is never less than what is covered.
        most = np.zeros(len(self._weight) + RUN_WORDS - 1, np.int64)
        for step in range(RUN_WORDS):
            most[step : step + len(self._weight)] += self._weight
        rows = np.flatnonzero(met & self._mask(suspects.tolist())[self._text])
        shape = (len(self._words), self._groups)
        of_suspects = sp.csr_array((most[rows], (self._text[rows], self._group[rows])), shape=shape)
        texts, groups = (column[offered[self._has[0]]] for column in self._has)
        has = sp.csr_array((np.ones(len(texts), np.int64), (texts, groups)), shape=shape)
        bounds = (of_suspects @ has.T).tocoo()
        likely = self._reaches(bounds.data, bounds.row) & (bounds.row != bounds.col)
        row, col = bounds.row[likely], bounds.col[likely]
        for a in np.unique(row).tolist():
            those = col[row == a]
            shared = self._shared(a, has[those])
            for place in np.flatnonzero(self._reaches(shared, np.full(len(those), a))).tolist():
                share = shared[place] / self._whole[a]
                yield Repeat(a, int(those[place]), f"has {share:.0%} of its words, by weight, in common with")

    def _shared(self, a: int, has: sp.csr_array) -> Ids:
        """Return the weight of the words of text a that stand in runs of some others, which `has` has in rows, shape (n,)."""
        runs_of_a = slice(self._starts[a], self._stops[a])
        there = (has[:, self._group[runs_of_a]].toarray() > 0).T
        covered: Ids = self._weight[runs_of_a] @ self._over(there, np.logical_or)
        return covered
