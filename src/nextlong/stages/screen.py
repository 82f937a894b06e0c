"""Screen: leave near-copies out of what meta-chunks are offered.

In:  the offers of some meta-documents, and how to draft from them.
Out: the same without the candidates that repeat the meta-document, or another candidate that composing walks past before
     them, and the drafted prefixes. Near-copies teach nothing: they are false negatives, or the same negative again.

Only what a draft is likely to reach is looked at: half again as much as it would take of unscreened lists, and twice that
where too much of it falls out. Texts are read for several meta-documents at once, one pass a shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.stages.mine import chunk_ids_of
from nextlong.stages.near_copies import copies_among, copies_of, shingles
from nextlong.stages.offers import Candidates
from nextlong.stages.resolve import Corpus

_EXAMINED = 1.5  # times the prefix that a draft of unscreened lists takes …
_EXAMINED_MORE = 8  # … and these, so that short prefixes have some to spare too

Draft = Callable[[int, Candidates], list[int]]  # number of the meta-document and its offers → prefix of each list
Ids = NDArray[np.int64]


class Screened(NamedTuple):
    """What one meta-document is offered after all, the prefixes drafted of it, and how many chunks fell out of these."""

    offers: Candidates
    prefixes: list[int]
    near_copies: int


class _Texts(NamedTuple):
    ids: Ids  # distinct, ascending
    texts: NDArray[np.object_]

    def of(self, ids: Ids) -> list[str]:
        found: list[str] = self.texts[np.searchsorted(self.ids, ids)].tolist()
        return found


def screen(
    metas: NDArray[Any],
    offers: Sequence[Candidates],
    draft: Draft,
    *,
    corpus: Corpus,
    weights: NDArray[np.float16],
    threshold: float,
) -> list[Screened]:
    """Return the screened offers of each METAS row; near-copies share `threshold` of their words, by `weights`."""
    done: dict[int, Screened] = {}
    drafted = [draft(number, offered) for number, offered in enumerate(offers)]
    examined = [[math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in own] for own in drafted]
    while pending := [number for number in range(len(offers)) if number not in done]:
        own_ids = [chunk_ids_of(metas[number : number + 1]) for number in pending]
        walked = [_walked(offers[number], drafted[number], examined[number]) for number in pending]
        ids = np.unique(np.concatenate([*own_ids, *walked]))
        texts = _Texts(ids, corpus.texts(ids))
        for number, own, walk in zip(pending, own_ids, walked, strict=True):
            copies = walk[_copies(texts.of(walk), document=texts.of(own), weights=weights, threshold=threshold)]
            keep = [~np.isin(ids, copies) for ids in offers[number].ids]
            kept = offers[number].picked(keep)
            prefixes = draft(number, kept)
            known = [int(mask[:most].sum()) for mask, most in zip(keep, examined[number], strict=True)]
            if any(length > there for length, there in zip(prefixes, known, strict=True)):
                examined[number] = [2 * most for most in examined[number]]
            else:
                done[number] = Screened(kept, prefixes, _passed_over(offers[number].ids, keep, prefixes))
    return [done[number] for number in range(len(offers))]


def _walked(offers: Candidates, drafted: Sequence[int], examined: Sequence[int]) -> Ids:
    """Return the distinct candidates to look at, in the order in which composing presumably walks.

    Group by group, as offered: first what a draft of unscreened lists takes, so that nothing in it gives way to what is not.
    """
    parts = [own[:length] for own, length in zip(offers.ids, drafted, strict=True)]
    parts += [own[length:most] for own, length, most in zip(offers.ids, drafted, examined, strict=True)]
    ids = np.concatenate(parts)
    walked: Ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return walked


def _copies(
    candidates: list[str], *, document: list[str], weights: NDArray[np.float16], threshold: float
) -> NDArray[np.bool_]:
    """Return which candidates are near-copies of the document, of one before them, or a part of one behind them.

    Both directions, because a candidate of several meta-chunks may serve later than where it first stands.
    """
    found = shingles(candidates)
    copies = copies_of(found, document=shingles(document), weights=weights, threshold=threshold)
    copies |= copies_among(found, weights=weights, threshold=threshold, taken=~copies)
    back = copies_among(shingles(candidates[::-1]), weights=weights, threshold=threshold, taken=~copies[::-1])
    return copies | back[::-1]


def _passed_over(ids: Sequence[Ids], keep: Sequence[NDArray[np.bool_]], prefixes: Sequence[int]) -> int:
    """Return how many distinct chunks would stand in the prefixes but fell out."""
    passed = []
    for own, mask, length in zip(ids, keep, prefixes, strict=True):
        places = np.flatnonzero(mask)
        reach = places[length - 1] if length else len(own)
        passed.append(own[:reach][~mask[:reach]])
    return len(np.unique(np.concatenate(passed)))
