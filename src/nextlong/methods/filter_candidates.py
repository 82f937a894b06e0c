"""Filter near-duplicates out of the candidates of a meta-document.

In:  the candidates of each meta-chunk, and how a draft takes a prefix of them; SHINGLES
     and WEIGHTS.
Out: the candidates that do not repeat the meta-document, and the pairs in the prefixes
     that repeat each other.

Near-duplicates teach nothing: they are false negatives, or the same negative again.
Candidates that repeat the meta-document are removed. Of two candidates that repeat each
other both are kept, because only composing, which counts tokens, knows which one is
placed, if any. It never places both, so the draft counts the second one as empty. Only
candidates that a draft probably reaches are compared: slightly more than it would take
of unfiltered lists, and twice as many of a list that runs short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from nextlong.arrays import Bools, Ints
from nextlong.methods.candidates import Candidates, Prefixes
from nextlong.retrieval.near_duplicates.known import KnownCandidates, KnownPairs
from nextlong.retrieval.near_duplicates.rule import (
    NearDuplicates,
    compare,
    find_near_duplicates,
    pair_up,
)
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    ShingleStore,
    Weights,
)
from nextlong.rng import rng_for

# Candidates compared, as a multiple of the prefix that a draft of unfiltered lists
# takes, and some more, so that short prefixes have some to spare as well.
_EXAMINED = 1.125
_EXAMINED_MORE = 8
_MAX_EXAMPLES = 2  # recorded for one meta-document

# If most candidates may be near-duplicates, so many are sampled to estimate how many
# are not, which takes half as long as an ordinary draft of 128K tokens.
_SAMPLED_CANDIDATES = 256
# A draft is given up if its candidates probably hold less than this share of what it
# needs. The estimate is a lower bound, so the margin is large.
_HOPELESS_SHARE = 0.5
# It is also given up if less than this share of its candidates are no near-duplicates
# and the draft would take them all, because all copies would be compared to find them.
_FEW_USABLE = 0.1
# The pairs of its candidates are kept for other drafts if less than this share of them
# are no near-duplicates. In ordinary text, of which pages share only their frame,
# keeping them doubled the time of a draft.
_LEARNED_SHARE = 0.7

_Ids = Ints


class Filtered(NamedTuple):
    """The filtered candidates of a meta-document, and the prefixes of its draft."""

    candidates: Candidates
    prefixes: Prefixes
    # (n, 2) chunks in the prefixes that repeat each other.
    pairs: _Ids
    # Distinct chunks in the prefixes that repeat no earlier one.
    negatives: int = 0
    # Distinct chunks filtered out, and how many only because of a shared 100-word
    # passage.
    near_duplicates: int = 0
    by_passage: int = 0
    # Examples of filtered chunks, each with the candidate that it repeats (None: the
    # meta-document).
    examples: tuple[tuple[int, int | None], ...] = ()


class ComparisonRule(TypedDict):
    """What `compare` needs beside the texts."""

    document: ComparedDocument
    weights: Weights
    threshold: float


def filter_near_duplicates(
    candidates: Candidates,
    draft: Callable[[Candidates], Prefixes],
    document: ComparedDocument,
    shingles: ShingleStore,
    weights: Weights,
    threshold: float,
    *,
    known_pairs: KnownPairs,
    needed_chars: float = 0.0,
    drafted_chars: float = 0.0,
) -> Filtered | None:
    """Filter near-duplicates out of the candidates of a meta-document.

    These share `threshold` of their words. A sequence needs `needed_chars` characters
    of the others, of which a draft takes `drafted_chars`, some to spare. Return None if
    they probably hold far fewer, or if hardly any are left and they do not fill the
    draft.
    """
    # `chunks`, (c,): the distinct candidate ids, ascending. Below, a chunk is its
    # number in [0, c), so that sets of chunks are masks, (c,). `numbers`: for each
    # meta-chunk the numbers of its candidates, in order.
    chunks, inverse = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    sizes = [len(ids) for ids in candidates.ids]
    numbers = np.split(inverse, np.cumsum(sizes)[:-1])
    rule: ComparisonRule = {
        "document": document,
        "weights": weights,
        "threshold": threshold,
    }
    drafted = draft(candidates).lengths
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    # What is known of all candidates, once it is clear that they suffice.
    known: KnownCandidates | None = None
    is_estimated = False
    while True:
        walked = _walked(numbers, drafted, examined)
        if known is None:
            compared = compare(shingles.of(chunks[walked]), **rule)
            is_suspicious = 2 * compared.count_suspected() > len(walked)
            if is_suspicious and not is_estimated:
                is_estimated = True
                if known_pairs.knows(chunks):
                    known = known_pairs.against(document)
                usable = estimate_usable(chunks, shingles, rule, known)
                usable_chars = usable * np.concatenate(candidates.chars).mean()
                is_hopeless = usable_chars < _HOPELESS_SHARE * needed_chars
                are_copies = usable < _FEW_USABLE * len(chunks)
                if is_hopeless or (are_copies and usable_chars < drafted_chars):
                    return None
                # A draft of families of copies looks several times as far as others,
                # step by step, and so do the next ones over the same families.
                if known is None and usable < _LEARNED_SHARE * len(chunks):
                    known_pairs.learn(chunks, shingles, weights, threshold)
                    known = known_pairs.against(document)
        if known is None:
            copies = pair_up(compared)
        else:
            copies = known.find(chunks[walked])

        screened = _screen(candidates, numbers, draft, walked, copies, len(chunks))
        runs_short = _runs_short(screened, examined)
        if not any(runs_short):
            return _filtered(screened, numbers, chunks, walked, copies)
        examined = [
            2 * count if is_short else count
            for count, is_short in zip(examined, runs_short, strict=True)
        ]


def _walked(
    numbers: Sequence[_Ids], drafted: Sequence[int], examined: Sequence[int]
) -> _Ids:
    """Return the distinct numbers to compare, (w,), as composing probably walks.

    Group by group: first the prefixes of a draft of unfiltered lists, then the others.
    """
    prefixes = []
    others = []
    for own, length, count in zip(numbers, drafted, examined, strict=True):
        prefixes.append(own[:length])
        others.append(own[length:count])
    every = np.concatenate([*prefixes, *others])
    first_positions = np.unique(every, return_index=True)[1]
    return every[np.sort(first_positions)]


class _Screened(NamedTuple):
    """The candidates without those that repeat the document, and the draft of them.

    `is_kept` says which ones are, for each meta-chunk; `numbers` are those of the kept.
    """

    is_kept: list[Bools]
    candidates: Candidates
    numbers: list[_Ids]
    is_repeat: Bools  # (c,) whether a chunk repeats an earlier one
    prefixes: Prefixes


def _screen(
    candidates: Candidates,
    numbers: Sequence[_Ids],
    draft: Callable[[Candidates], Prefixes],
    walked: _Ids,
    copies: NearDuplicates,
    chunk_count: int,
) -> _Screened:
    """Remove the candidates that repeat the document, and draft the others.

    `copies` refers to positions in `walked`.
    """
    repeats_document = _marked(walked[copies.of_document], chunk_count)
    is_kept = [~repeats_document[own] for own in numbers]
    kept = candidates.picked(is_kept)
    kept_numbers = [own[mask] for own, mask in zip(numbers, is_kept, strict=True)]
    is_repeat = _marked(walked[_repeats(copies.pairs)], chunk_count)
    # Repeats will not be used, so they count as no characters.
    chars = [
        np.where(is_repeat[own], 0, own_chars)
        for own, own_chars in zip(kept_numbers, kept.chars, strict=True)
    ]
    prefixes = draft(kept._replace(chars=chars))
    return _Screened(is_kept, kept, kept_numbers, is_repeat, prefixes)


def _runs_short(screened: _Screened, examined: Sequence[int]) -> list[bool]:
    """Return for each group whether a prefix goes beyond the examined candidates."""
    runs_short = []
    for length, mask, count in zip(
        screened.prefixes.lengths, screened.is_kept, examined, strict=True
    ):
        examined_and_kept = int(mask[:count].sum())
        runs_short.append(length > examined_and_kept)
    return runs_short


def _filtered(
    screened: _Screened,
    numbers: Sequence[_Ids],
    chunks: _Ids,
    walked: _Ids,
    copies: NearDuplicates,
) -> Filtered:
    """Return what the draft takes, and what it passes over."""
    lengths = screened.prefixes.lengths
    drafted_numbers = [
        own[:length] for own, length in zip(screened.numbers, lengths, strict=True)
    ]
    is_reached = _marked(np.concatenate(drafted_numbers), len(chunks))
    are_reached = is_reached[walked][copies.pairs].all(axis=1)
    is_passed_over = screened.is_repeat & is_reached
    for own, mask, length in zip(numbers, screened.is_kept, lengths, strict=True):
        # Candidates that would be in the prefix if they did not repeat the
        # meta-document.
        reach = np.flatnonzero(mask)[length - 1] if length else len(own)
        is_removed = ~mask[:reach]
        is_passed_over[own[:reach][is_removed]] = True
    passed_over = chunks[is_passed_over]
    only_by_passage = is_passed_over[walked[copies.by_passage]]
    return Filtered(
        candidates=screened.candidates,
        prefixes=screened.prefixes,
        pairs=chunks[walked[copies.pairs[are_reached]]],
        negatives=int((is_reached & ~screened.is_repeat).sum()),
        near_duplicates=len(passed_over),
        by_passage=int(only_by_passage.sum()),
        examples=_examples(
            passed_over,
            repeats_document=chunks[walked[copies.of_document]],
            pairs=chunks[walked[copies.pairs]],
        ),
    )


def _examples(
    passed_over: _Ids, *, repeats_document: _Ids, pairs: _Ids
) -> tuple[tuple[int, int | None], ...]:
    """Return some filtered chunks, each with the one that it repeats."""
    examples: list[tuple[int, int | None]] = []
    for chunk in passed_over[:_MAX_EXAMPLES].tolist():
        if chunk in repeats_document:
            examples.append((chunk, None))
            continue
        earlier = pairs[pairs[:, 1] == chunk, 0]
        if len(earlier):
            examples.append((chunk, int(earlier[-1])))
    return tuple(examples)


def _marked(numbers: _Ids, count: int) -> Bools:
    """Return a mask, (count,), of the numbers that occur."""
    return np.bincount(numbers, minlength=count) > 0


def estimate_usable(
    chunks: _Ids,
    shingles: ShingleStore,
    rule: ComparisonRule,
    known: KnownCandidates | None = None,
) -> float:
    """Return about how many of the chunks repeat neither the document nor each other.

    A chunk and those that repeat it are one family. The families of a sample are
    counted. How many more there are follows from those with one or two members in the
    sample (the Chao1 estimator of the number of species), and is at most as many as if
    those with one member had no other. Copies of a few pages give a few large families,
    which are found without comparing all of their members.
    """
    count = min(_SAMPLED_CANDIDATES, len(chunks))
    rng = rng_for(0, "near_duplicates", len(chunks))
    sampled = np.sort(rng.permutation(len(chunks))[:count])
    if known is not None:
        copies = known.find(chunks[sampled])
    else:
        copies = find_near_duplicates(shingles.of(chunks[sampled]), **rule)
    is_repeat = np.zeros(count, np.bool_)
    is_repeat[_repeats(copies.pairs)] = True
    first, later = copies.pairs.T
    is_first = is_repeat[later] & ~is_repeat[first]
    family_of = np.arange(count)
    family_of[later[is_first]] = first[is_first]
    is_free = ~copies.of_document
    members = np.unique(family_of[is_free], return_counts=True)[1]
    if count == len(chunks):
        return float(len(members))
    singles = int((members == 1).sum())
    pairs = int((members == 2).sum())
    by_pairs = len(members) + singles * (singles - 1) / (2 * (pairs + 1))
    by_singles = len(members) - singles + singles * len(chunks) / count
    return min(by_pairs, by_singles)


def _repeats(pairs: _Ids) -> _Ids:
    """Return the candidates that repeat an earlier one that is no repeat, ascending.

    `pairs`, (n, 2), are a < b.
    """
    earlier, later = pairs.T
    count = int(later.max(initial=-1)) + 1
    is_repeat = np.zeros(count, np.bool_)
    # Candidates without an undecided earlier one are no repeats, those paired with them
    # are, and so on: two rounds for families whose members all repeat each other.
    is_decided = np.zeros(count, np.bool_)
    while len(later):
        is_first = ~is_decided
        is_first[later] = False
        is_repeat[later[is_first[earlier]]] = True
        is_decided |= is_first | is_repeat
        is_open = ~(is_decided[later] | is_repeat[earlier])
        earlier = earlier[is_open]
        later = later[is_open]
    return np.flatnonzero(is_repeat)
