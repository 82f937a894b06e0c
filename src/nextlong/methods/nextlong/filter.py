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
    chunks, numbers = _numbered(candidates.ids)
    drafted = draft(candidates)
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    while True:
        walked = _walked(numbers, drafted, examined)
        copies = find(shingles.of(chunks[walked]), document=document, weights=weights, threshold=threshold)
        falls_out = _marked(walked[copies.of_document], count=len(chunks))
        keep = [~falls_out[those] for those in numbers]
        kept, kept_numbers = candidates.picked(keep), [those[kept] for those, kept in zip(numbers, keep, strict=True)]
        repeats = walked[_repeats(copies.pairs)]
        is_repeat = _marked(repeats, count=len(chunks))
        prefixes = draft(kept.emptied([is_repeat[those] for those in kept_numbers]))
        known = [int(mask[:most].sum()) for mask, most in zip(keep, examined, strict=True)]
        falls_short = [length > there for length, there in zip(prefixes, known, strict=True)]
        if not any(falls_short):
            break
        examined = [2 * most if short else most for most, short in zip(examined, falls_short, strict=True)]
    drafted_numbers = [those[:length] for those, length in zip(kept_numbers, prefixes, strict=True)]
    is_reached = _marked(np.concatenate(drafted_numbers), count=len(chunks))
    pairs = chunks[walked[copies.pairs[is_reached[walked][copies.pairs].all(axis=1)]]]
    is_passed_over = is_repeat & is_reached
    is_passed_over[_passed_over(numbers, keep, prefixes)] = True
    passed_over, by_passage = chunks[is_passed_over], is_passed_over[walked[copies.by_passage]]
    repeated = chunks[walked[copies.of_document]], chunks[walked[copies.pairs]]
    examples = tuple(_examples(passed_over, *repeated))
    return Filtered(kept, prefixes, pairs, len(passed_over), int(by_passage.sum()), examples)


def _numbered(lists: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """Return the distinct ids, ascending, and which of them each is: sets of these are masks, which are looked up at once."""
    distinct, numbers = np.unique(np.concatenate(lists), return_inverse=True)
    return distinct, np.split(numbers, np.cumsum([len(ids) for ids in lists])[:-1])


def _marked(numbers: Ids, *, count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[numbers] = True
    return mask


def _examples(passed_over: Ids, of_document: Ids, pairs: Ids) -> Iterator[tuple[int, int | None]]:
    """Yield the first few that were passed over, each with the candidate that it repeats, or None for the meta-document."""
    for chunk in passed_over[:_EXAMPLES].tolist():
        repeated = pairs[pairs[:, 1] == chunk, 0]
        if chunk in of_document:
            yield chunk, None
        elif len(repeated):
            yield chunk, int(repeated[-1])


def _walked(numbers: Sequence[Ids], drafted: Sequence[int], examined: Sequence[int]) -> Ids:
    """Return the distinct candidates to look at, in the order in which composing presumably walks.

    Group by group, in their order: first what a draft of unfiltered lists takes, then the others.
    """
    parts = [those[:length] for those, length in zip(numbers, drafted, strict=True)]
    parts += [those[length:most] for those, length, most in zip(numbers, drafted, examined, strict=True)]
    every = np.concatenate(parts)
    walked: Ids = every[np.sort(np.unique(every, return_index=True)[1])]
    return walked


def _repeats(pairs: Ids) -> Ids:
    """Return, ascending, which candidates repeat one before them that repeats none itself; `pairs` of places, a < b."""
    earlier, later = pairs[np.argsort(pairs[:, 1], kind="stable")].T
    is_repeat = np.zeros(int(later.max(initial=-1)) + 1, np.bool_)
    firsts = np.flatnonzero(np.diff(later, prepend=-1))
    for first, last in pairwise([*firsts.tolist(), len(later)]):
        is_repeat[later[first]] = not is_repeat[earlier[first:last]].all()
    return np.flatnonzero(is_repeat)


def _passed_over(numbers: Sequence[Ids], keep: Sequence[NDArray[np.bool_]], prefixes: Sequence[int]) -> Ids:
    """Return the candidates that would stand in the prefixes but fell out."""
    passed = []
    for those, mask, length in zip(numbers, keep, prefixes, strict=True):
        places = np.flatnonzero(mask)
        reach = places[length - 1] if length else len(those)
        passed.append(those[:reach][~mask[:reach]])
    return np.concatenate(passed)
