"""Fit: lay chunks of known lengths into exactly T tokens.

In:  for each meta-chunk its candidates, or a row of documents; only their lengths in tokens matter.
Out: spans that tile [0, T), or why there are none.

`fit="exact"`: every meta-chunk first takes its nearest negatives up to `min_gap_tokens`, so that no gap between two
meta-chunks is empty; then the rest of the token budget is shared evenly, what one meta-chunk leaves over goes to the next.
Negatives are whole, and only the last one of the sequence is cut, so every meta-chunk is there and the length is T.
`fit="paper"`: concatenate, cut at T, drop what falls short (paper §3.1.2), which is also what the other methods do with documents.

A chunk that does not end in a newline is followed by a joint, so that no two texts run into each other. Where a chunk may be
cut is for a `Cutter` to say: by lengths alone here, by the text in `cut.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.schemas import DropReason

Fit = Literal["exact", "paper"]
Position = Literal["head", "tail", "random"]
Reuse = Literal["never", "free"]

_MOST_CUTS: Final = 16  # candidates whose beginning is judged before others fill the rest


class Piece(NamedTuple):
    """A chunk as composing sees it: its id, its length in tokens, and whether its text ends in a newline.

    `fill`: tokens of joints that follow it beside the one that any open chunk has, where it was cut between two characters.
    """

    chunk: int
    tokens: int
    closed: bool = False
    score: float = 1.0
    fill: int = 0


class Group(NamedTuple):
    """A meta-chunk and the candidates for the negatives that belong to it, best first."""

    meta: Piece
    candidates: Sequence[Piece]


class Span(NamedTuple):
    """Tokens [start, end) of a sequence: the first end - start tokens of `chunk`, or a joint or special token."""

    chunk: int
    role: int
    group: int
    start: int
    end: int
    score: float


class Cut(NamedTuple):
    """How many of its tokens a negative keeps, and whether they end in a newline or are to stand without a joint."""

    tokens: int
    closed: bool


class Cutter:
    """Where chunks may be cut, by their lengths alone."""

    trimmed_tokens: int = 0  # by which a cut may be shorter than asked

    def __init__(self, joint_tokens: int = 0) -> None:
        """Set how many tokens a joint has."""
        self.joint_tokens = joint_tokens

    def negative(self, piece: Piece, budget: int, placed: Sequence[int]) -> Cut | None:  # noqa: ARG002
        """Return how a negative fills a budget of tokens beside the chunks that are placed, None if it does not."""
        with_joint = budget - self.joint_tokens
        if 1 <= with_joint < piece.tokens or (with_joint == piece.tokens and not piece.closed):
            return Cut(with_joint, closed=False)
        return Cut(budget, closed=True) if budget <= piece.tokens else None

    def end(self, piece: Piece, tokens: int) -> int:  # noqa: ARG002
        """Return how many of its first `tokens` tokens the last chunk of a sequence keeps; joints fill the rest."""
        return tokens


@dataclass(frozen=True)
class Dropped:
    """Why a draft became no sequence, and how many tokens it would have had."""

    reason: DropReason
    tokens: int


def compose_spans(
    groups: Sequence[Group],
    *,
    target_tokens: int,
    fit: Fit = "exact",
    min_gap_tokens: int = 1,
    position: Position = "head",
    joint_tokens: int = 0,
    bos_tokens: int = 0,
    eos_tokens: int = 0,
    rng: np.random.Generator | None = None,
    reuse: Reuse = "never",
    blocked: Container[int] = (),
    near_copies: Mapping[int, Sequence[int]] = MappingProxyType({}),
    cutter: Cutter | None = None,
) -> list[Span] | Dropped:
    """Return spans that tile exactly `target_tokens` tokens, or why there are none.

    `rng` places the meta-chunks if `position="random"`. A chunk serves as a negative once in the sequence unless
    `reuse="free"`, never if it is `blocked`, and not where one of its `near_copies` has served. Under `fit="exact"` each
    meta-chunk has `min_gap_tokens` tokens of negatives or more, and so has the gap between each two, whatever the position.
    Source: arXiv 2501.12766 §3.1.2 for `fit="paper"`.
    """
    room = target_tokens - bos_tokens - eos_tokens
    cutter = cutter or Cutter(joint_tokens)
    taking = _Taking(set() if reuse == "never" else None, blocked, near_copies, cutter)
    least = min_gap_tokens if fit == "exact" else 0
    chosen = _share_budget(groups, room, taking, least) if fit == "exact" else _all_free(groups, taking)
    if isinstance(chosen, Dropped):
        return chosen
    return _fill(
        _arrange(groups, chosen, position, rng, least),
        target_tokens=target_tokens,
        bos_tokens=bos_tokens,
        eos_tokens=eos_tokens,
        cutter=cutter,
        if_short=DropReason.TOO_FEW_NEGATIVES,
    )


def concatenate_spans(
    pieces: Sequence[Piece],
    groups: Sequence[int],
    *,
    target_tokens: int,
    joint_tokens: int = 0,
    bos_tokens: int = 0,
    eos_tokens: int = 0,
    cutter: Cutter | None = None,
) -> list[Span] | Dropped:
    """Return spans of documents one after the other, cut at `target_tokens`; `groups` says which document a chunk is of.

    A chunk whose document goes on right behind it is `closed`, so that no joint parts what belongs together.
    """
    ordered = [(piece, schemas.DOCUMENT, group) for piece, group in zip(pieces, groups, strict=True)]
    return _fill(
        ordered,
        target_tokens=target_tokens,
        bos_tokens=bos_tokens,
        eos_tokens=eos_tokens,
        cutter=cutter or Cutter(joint_tokens),
        if_short=DropReason.TOO_FEW_DOCUMENTS,
    )


def _fill(
    ordered: Sequence[tuple[Piece, int, int]],
    *,
    target_tokens: int,
    bos_tokens: int,
    eos_tokens: int,
    cutter: Cutter,
    if_short: DropReason,
) -> list[Span] | Dropped:
    room = target_tokens - bos_tokens - eos_tokens
    spans = _tile(ordered, bos_tokens=bos_tokens, end=bos_tokens + room, cutter=cutter)
    reached = spans[-1].end if spans else 0
    if reached < bos_tokens + room:
        return Dropped(if_short, reached)
    if eos_tokens:
        spans.append(Span(schemas.NO_CHUNK, schemas.EOS, -1, target_tokens - eos_tokens, target_tokens, 0.0))
    return spans


class _Taking(NamedTuple):
    """What all groups of a sequence share.

    `used`: the chunks taken so far, and what repeats them (None: they may serve again); `blocked`: those that must not serve.
    """

    used: set[int] | None
    blocked: Container[int]
    near_copies: Mapping[int, Sequence[int]]
    cutter: Cutter


def _share_budget(groups: Sequence[Group], room: int, taking: _Taking, least: int) -> list[list[Piece]] | Dropped:
    """Return the negatives of each group, `least` tokens or more, that fill `room` tokens exactly beside the meta-chunks."""
    joint_tokens = taking.cutter.joint_tokens
    meta_tokens = sum(_cost(group.meta, joint_tokens) for group in groups)
    left = room - meta_tokens
    if left < 1:
        return Dropped(DropReason.TOO_LONG, meta_tokens)
    if left < least * len(groups):
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    walkers = [_Walker(group.candidates, taking) for group in groups]
    *others, last = walkers
    if not all(walker.take_least(least) for walker in others):
        return Dropped(DropReason.NO_NEGATIVES, meta_tokens)
    if left - sum(walker.cost for walker in others) < least:
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    for place, walker in enumerate(others):
        share = left // (len(groups) - place)  # an even share of what is left carries over what others did not use
        later = sum(other.cost for other in others[place + 1 :]) + least + joint_tokens + taking.cutter.trimmed_tokens
        walker.take_whole(min(share, left - later) - walker.cost)
        left -= walker.cost
    left = last.take_whole(left)
    if others and left and not last.has_any():
        return Dropped(DropReason.NO_NEGATIVES, meta_tokens)
    left = _fill_up(last, others, left, taking.used, least)
    if left:
        return Dropped(DropReason.TOO_FEW_NEGATIVES, room - left)
    if last.tokens < least:
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    return [walker.taken for walker in walkers]


def _fill_up(last: _Walker, others: Sequence[_Walker], left: int, used: set[int] | None, least: int) -> int:
    """Fill what is left of the budget; return what could not be filled. The cut negative is the last of the last group.

    The last group's next candidate is cut. Where none of its candidates fills the rest, others take whole ones before; then
    the last group's own last negative, or one behind it, is cut.
    """

    def cut(budget: int) -> bool:
        placed = [piece.chunk for walker in (*others, last) for piece in walker.taken]
        return budget == 0 or last.take_truncated(budget, placed)

    def others_take(budget: int) -> int:
        for walker in reversed(others):
            budget = walker.take_whole(budget)
        return budget

    counts = [len(walker.taken) for walker in others]
    short = left
    if cut(left) or cut(short := others_take(left)):
        return 0
    if not last.taken:
        return short
    back = last.cost
    for walker, count in zip((*others, last), (*counts, len(last.taken) - 1), strict=True):
        walker.keep(count)
    if used is not None:
        used.clear()
        for walker in (*others, last):
            walker.mark_used()
    kept = max(1, least - last.tokens)
    return 0 if cut(kept + others_take(left + back - last.cost - kept)) else short


def _all_free(groups: Sequence[Group], taking: _Taking) -> list[list[Piece]]:
    walkers = [_Walker(group.candidates, taking) for group in groups]
    for walker in walkers:
        walker.take_whole(None)
    return [walker.taken for walker in walkers]


def _cost(piece: Piece, joint_tokens: int) -> int:
    return piece.tokens + piece.fill + (0 if piece.closed else joint_tokens)


class _Walker:
    """Walks a group's candidates in order, past those that any group has used; `taken` are its negatives so far.

    `tokens` and `cost` count these, without and with their joints.
    """

    def __init__(self, candidates: Sequence[Piece], taking: _Taking) -> None:
        self.taken: list[Piece] = []
        self._places: list[int] = []  # of these among the candidates
        self.tokens = self.cost = 0
        self._candidates = candidates
        self._used, self._blocked, self._near_copies, self._cutter = taking
        self._next = 0

    def take_whole(self, budget: int | None) -> int:
        """Take free candidates up to the first that does not fit; return what is left of the budget (None: no bound)."""
        left = budget or 0
        while (piece := self._free()) is not None:
            cost = _cost(piece, self._cutter.joint_tokens)
            if budget is not None and cost > left:
                break
            self._take(piece)
            left -= cost
        return left

    def take_least(self, tokens: int) -> bool:
        """Take free candidates until they hold so many tokens; say whether they do."""
        while self.tokens < tokens and (piece := self._free()) is not None:
            self._take(piece)
        return self.tokens >= tokens

    def take_truncated(self, budget: int, placed: Sequence[int]) -> bool:
        """Take the first free candidate that fills the budget, cut, with joints behind it; say whether there is one."""
        before, tries = self._next, 0
        while tries < _MOST_CUTS and (piece := self._free()) is not None:
            cut = self._cutter.negative(piece, budget, placed)
            if cut is not None:
                fill = 0 if cut.closed else budget - cut.tokens - self._cutter.joint_tokens
                self._take(piece._replace(tokens=cut.tokens, closed=cut.closed, fill=fill))
                return True
            tries += piece.tokens >= budget
            self._next += 1
        self._next = before
        return False

    def has_any(self) -> bool:
        """Say whether it has negatives, or could have one."""
        return bool(self.taken) or self._free() is not None

    def keep(self, count: int) -> None:
        """Put all but the first `count` of its negatives back, and walk on from there."""
        self.taken, self._places = self.taken[:count], self._places[:count]
        self._next = self._places[-1] + 1 if count else 0
        self.tokens = sum(piece.tokens for piece in self.taken)
        self.cost = sum(_cost(piece, self._cutter.joint_tokens) for piece in self.taken)

    def mark_used(self) -> None:
        """Mark its negatives, and what repeats them, as used."""
        for piece in self.taken:
            self._mark(piece.chunk)

    def _take(self, piece: Piece) -> None:
        self._mark(piece.chunk)
        self.taken.append(piece)
        self._places.append(self._next)
        self.tokens += piece.tokens
        self.cost += _cost(piece, self._cutter.joint_tokens)
        self._next += 1

    def _mark(self, chunk: int) -> None:
        if self._used is not None:
            self._used.add(chunk)
            self._used.update(self._near_copies.get(chunk, ()))

    def _free(self) -> Piece | None:
        used, blocked = self._used or (), self._blocked
        while self._next < len(self._candidates):
            chunk = self._candidates[self._next].chunk
            if chunk not in used and chunk not in blocked:
                break
            self._next += 1
        return self._candidates[self._next] if self._next < len(self._candidates) else None


def _arrange(
    groups: Sequence[Group],
    negatives: Sequence[list[Piece]],
    position: Position,
    rng: np.random.Generator | None,
    least: int,
) -> list[tuple[Piece, int, int]]:
    """Return (piece, role, group) in reading order; each two meta-chunks have `least` tokens of negatives between them."""
    ordered = []
    behind = least  # tokens of negatives since the last meta-chunk
    for number, (group, group_negatives) in enumerate(zip(groups, negatives, strict=True)):
        placed = [(piece, schemas.NEGATIVE, number) for piece in group_negatives]
        before = list(accumulate((piece.tokens for piece in group_negatives), initial=0))
        if position == "random":
            assert rng is not None
            first = next(place for place, tokens in enumerate(before) if behind + tokens >= least)
            at = first + int(rng.integers(len(before) - first))
        else:
            at = 0 if position == "head" else len(group_negatives)
        behind = before[-1] - before[at]
        placed.insert(at, (group.meta, schemas.META, number))
        ordered += placed
    return ordered


def _tile(ordered: Sequence[tuple[Piece, int, int]], *, bos_tokens: int, end: int, cutter: Cutter) -> list[Span]:
    """Lay pieces and joints one after the other from the BOS on; what crosses `end` is cut, what lies beyond is left out."""
    spans = [Span(schemas.NO_CHUNK, schemas.BOS, -1, 0, bos_tokens, 0.0)] if bos_tokens else []
    at = bos_tokens
    for piece, role, group in ordered:
        tokens, joints = piece.tokens, piece.fill + (0 if piece.closed else cutter.joint_tokens)
        if piece.tokens > end - at:
            tokens = cutter.end(piece, end - at)
            joints = end - at - tokens
        if tokens:
            spans.append(Span(piece.chunk, role, group, at, at + tokens, piece.score))
        at += tokens
        stop = min(at + joints, end)
        while at < stop:
            length = min(cutter.joint_tokens, stop - at)
            spans.append(Span(schemas.NO_CHUNK, schemas.JOINT, group, at, at + length, 0.0))
            at += length
        if at == end:
            break
    return spans
