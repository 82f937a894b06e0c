"""Filter: find the near-copies among the candidates of meta-chunks.

In:  a meta-document, its candidates in order, and how to draft from them.
Out: the candidates without those that repeat the meta-document, the drafted prefixes, and which chunks in these repeat
     each other. Near-copies teach nothing: they are false negatives, or the same negative again.

Of two candidates that repeat each other neither falls out here: which of them composing places, if any, is known only in
tokens. It never places both, so that the draft counts the second one as empty.

Only what a draft is likely to reach is looked at: a little more than it would take of unfiltered lists, and twice that
of each list of which too much falls out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.methods.nextlong.candidates import Candidates
from nextlong.similarity.near_copies import find
from nextlong.similarity.shingles import Document, ShingleStore, Weights

_EXAMINED = 1.125  # times the prefix that a draft of unfiltered lists takes …
_EXAMPLES = 2  # of a meta-document
_EXAMINED_MORE = 8  # … and these, so that short prefixes have some to spare too

Ids = NDArray[np.int64]


class Filtered(NamedTuple):
    """What is left of the candidates of one meta-document, and the prefixes drafted of it."""

    candidates: Candidates
    prefixes: list[int]
    pairs: Ids  # (n, 2) chunks in the prefixes that repeat each other
    near_copies: int = 0  # distinct chunks that are passed over
    by_passage: int = 0  # … of these, for nothing but 100 words in a row
    examples: tuple[
        tuple[int, int | None], ...
    ] = ()  # some of these, and the candidate repeated; None: the meta-document


def filter_near_copies(
    candidates: Candidates,
    draft: Callable[[Candidates], list[int]],
    *,
    document: Document,
    shingles: ShingleStore,
    weights: Weights,
    threshold: float,
) -> Filtered:
    """Return the candidates of a meta-document without its near-copies, which share `threshold` of their words."""
    drafted = draft(candidates)
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    while True:
        walked = _walked(candidates.ids, drafted, examined)
        copies = find(shingles.of(walked), document=document, weights=weights, threshold=threshold)
        keep = [~np.isin(ids, walked[copies.of_document]) for ids in candidates.ids]
        kept = candidates.picked(keep)
        repeats = walked[_repeats(copies.pairs)]
        prefixes = draft(kept.emptied(repeats))
        known = [int(mask[:most].sum()) for mask, most in zip(keep, examined, strict=True)]
        falls_short = [length > there for length, there in zip(prefixes, known, strict=True)]
        if not any(falls_short):
            break
        examined = [2 * most if short else most for most, short in zip(examined, falls_short, strict=True)]
    reached = np.concatenate([ids[:length] for ids, length in zip(kept.ids, prefixes, strict=True)])
    pairs = walked[copies.pairs[np.isin(walked, reached)[copies.pairs].all(axis=1)]]
    passed_over = np.union1d(_passed_over(candidates.ids, keep, prefixes), repeats[np.isin(repeats, reached)])
    by_passage = np.intersect1d(passed_over, walked[copies.by_passage])
    examples = tuple(_examples(passed_over, walked[copies.of_document], walked[copies.pairs]))
    return Filtered(kept, prefixes, pairs, len(passed_over), len(by_passage), examples)


def _examples(passed_over: Ids, of_document: Ids, pairs: Ids) -> Iterator[tuple[int, int | None]]:
    """Yield the first few that were passed over, each with the candidate that it repeats, or None for the meta-document."""
    for chunk in passed_over[:_EXAMPLES].tolist():
        repeated = pairs[pairs[:, 1] == chunk, 0]
        if chunk in of_document:
            yield chunk, None
        elif len(repeated):
            yield chunk, int(repeated[-1])


def _walked(candidates: Sequence[Ids], drafted: Sequence[int], examined: Sequence[int]) -> Ids:
    """Return the distinct candidates to look at, in the order in which composing presumably walks.

    Group by group, in their order: first what a draft of unfiltered lists takes, then the others.
    """
    parts = [ids[:length] for ids, length in zip(candidates, drafted, strict=True)]
    parts += [ids[length:most] for ids, length, most in zip(candidates, drafted, examined, strict=True)]
    ids = np.concatenate(parts)
    walked: Ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return walked


def _repeats(pairs: Ids) -> Ids:
    """Return, ascending, which candidates repeat one before them that repeats none itself; `pairs` of places, a < b."""
    earlier, later = pairs[np.argsort(pairs[:, 1], kind="stable")].T
    is_repeat = np.zeros(int(later.max(initial=-1)) + 1, np.bool_)
    firsts = np.flatnonzero(np.diff(later, prepend=-1))
    for first, last in pairwise([*firsts.tolist(), len(later)]):
        is_repeat[later[first]] = not is_repeat[earlier[first:last]].all()
    return np.flatnonzero(is_repeat)


def _passed_over(ids: Sequence[Ids], keep: Sequence[NDArray[np.bool_]], prefixes: Sequence[int]) -> Ids:
    """Return the distinct chunks that would stand in the prefixes but fell out."""
    passed = []
    for candidate_ids, mask, length in zip(ids, keep, prefixes, strict=True):
        places = np.flatnonzero(mask)
        reach = places[length - 1] if length else len(candidate_ids)
        passed.append(candidate_ids[:reach][~mask[:reach]])
    return np.unique(np.concatenate(passed))
