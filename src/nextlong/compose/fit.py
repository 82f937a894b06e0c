"""Fit: lay chunks of known lengths into exactly T tokens.

In:  for each meta-chunk its candidates, or a row of documents; only their lengths in tokens matter.
Out: spans that tile [0, T), or why there are none.

`fit="exact"`: the token budget is shared evenly by the meta-chunks, what one leaves over goes to the next; whole negatives
until the budget is full, and only the last is cut, so every meta-chunk is there and the length is T. `fit="paper"`:
concatenate, cut at T, drop what falls short (paper §3.1.2), which is also what the other methods do with documents.

A chunk that does not end in a newline is followed by a joint, so that no two texts run into each other.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.schemas import DropReason

Fit = Literal["exact", "paper"]
Position = Literal["head", "tail", "random"]
Reuse = Literal["never", "free"]


class Piece(NamedTuple):
    """A chunk as composing sees it: its id, its length in tokens, and whether its text ends in a newline."""

    chunk: int
    tokens: int
    closed: bool = False
    score: float = 1.0


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
    position: Position = "head",
    joint_tokens: int = 0,
    bos_tokens: int = 0,
    eos_tokens: int = 0,
    rng: np.random.Generator | None = None,
    reuse: Reuse = "never",
    blocked: Container[int] = (),
    near_copies: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> list[Span] | Dropped:
    """Return spans that tile exactly `target_tokens` tokens, or why there are none.

    `rng` places the meta-chunks if `position="random"`. A chunk serves as a negative once in the sequence unless
    `reuse="free"`, never if it is `blocked`, and not where one of its `near_copies` has served.
    Source: arXiv 2501.12766 §3.1.2 for `fit="paper"`.
    """
    room = target_tokens - bos_tokens - eos_tokens
    taking = _Taking(set() if reuse == "never" else None, blocked, near_copies, joint_tokens)
    chosen = _share_budget(groups, room, taking) if fit == "exact" else _all_free(groups, taking)
    if isinstance(chosen, Dropped):
        return chosen
    ordered = _arrange(groups, chosen, position, rng)
    return _fill(
        ordered,
        target_tokens=target_tokens,
        joint_tokens=joint_tokens,
        bos_tokens=bos_tokens,
        eos_tokens=eos_tokens,
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
) -> list[Span] | Dropped:
    """Return spans of documents one after the other, cut at `target_tokens`; `groups` says which document a chunk is of.

    A chunk whose document goes on right behind it is `closed`, so that no joint parts what belongs together.
    """
    ordered = [(piece, schemas.DOCUMENT, group) for piece, group in zip(pieces, groups, strict=True)]
    return _fill(
        ordered,
        target_tokens=target_tokens,
        joint_tokens=joint_tokens,
        bos_tokens=bos_tokens,
        eos_tokens=eos_tokens,
        if_short=DropReason.TOO_FEW_DOCUMENTS,
    )


def _fill(
    ordered: Sequence[tuple[Piece, int, int]],
    *,
    target_tokens: int,
    joint_tokens: int,
    bos_tokens: int,
    eos_tokens: int,
    if_short: DropReason,
) -> list[Span] | Dropped:
    room = target_tokens - bos_tokens - eos_tokens
    spans = _tile(ordered, bos_tokens=bos_tokens, end=bos_tokens + room, joint_tokens=joint_tokens)
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
    joint_tokens: int


def _share_budget(groups: Sequence[Group], room: int, taking: _Taking) -> list[list[Piece]] | Dropped:
    """Return the negatives of each group that, with the meta-chunks and joints, make `room` tokens exactly."""
    meta_tokens = sum(_cost(group.meta, taking.joint_tokens) for group in groups)
    left = room - meta_tokens
    if left < len(groups):  # not one token of a negative for each meta-chunk
        return Dropped(DropReason.TOO_LONG, meta_tokens)
    walkers = [_Walker(group.candidates, taking) for group in groups]
    for place, walker in enumerate(walkers):
        share = left // (len(groups) - place)  # an even share of what is left carries over what others did not use
        left += walker.take_whole(share) - share
    # The last group's next candidate is cut to fill the rest. Where it has none, those of the other groups serve.
    for walker in [walkers[-1], *walkers[:-1]]:
        left = walker.take_whole(left)
        if left == 0 or walker.take_truncated(left):
            return [walker.taken for walker in walkers]
    return Dropped(DropReason.TOO_FEW_NEGATIVES, room - left)


def _all_free(groups: Sequence[Group], taking: _Taking) -> list[list[Piece]]:
    walkers = [_Walker(group.candidates, taking) for group in groups]
    for walker in walkers:
        walker.take_whole(None)
    return [walker.taken for walker in walkers]


def _cost(piece: Piece, joint_tokens: int) -> int:
    return piece.tokens + (0 if piece.closed else joint_tokens)


class _Walker:
    """Walks a group's candidates in order, past those that any group has used; `taken` are its negatives so far."""

    def __init__(self, candidates: Sequence[Piece], taking: _Taking) -> None:
        self.taken: list[Piece] = []
        self._candidates = candidates
        self._used, self._blocked, self._near_copies, self._joint_tokens = taking
        self._next = 0

    def take_whole(self, budget: int | None) -> int:
        """Take free candidates up to the first that does not fit; return what is left of the budget (None: no bound)."""
        left = budget or 0
        while (piece := self._free()) is not None:
            cost = _cost(piece, self._joint_tokens)
            if budget is not None and cost > left:
                break
            self._take(piece)
            left -= cost
        return left

    def take_truncated(self, budget: int) -> bool:
        """Take the next free candidate cut to fill the budget, followed by a joint if there is room for one."""
        with_joint = budget - self._joint_tokens
        while (piece := self._free()) is not None:
            if 1 <= with_joint <= piece.tokens:
                self._take(piece._replace(tokens=with_joint, closed=False))
                return True
            if budget <= piece.tokens:
                self._take(piece._replace(tokens=budget, closed=True))
                return True
            self._next += 1
        return False

    def _take(self, piece: Piece) -> None:
        if self._used is not None:
            self._used.add(piece.chunk)
            self._used.update(self._near_copies.get(piece.chunk, ()))
        self.taken.append(piece)
        self._next += 1

    def _free(self) -> Piece | None:
        used, blocked = self._used or (), self._blocked
        while self._next < len(self._candidates):
            chunk = self._candidates[self._next].chunk
            if chunk not in used and chunk not in blocked:
                break
            self._next += 1
        return self._candidates[self._next] if self._next < len(self._candidates) else None


def _arrange(
    groups: Sequence[Group], negatives: Sequence[list[Piece]], position: Position, rng: np.random.Generator | None
) -> list[tuple[Piece, int, int]]:
    """Return (piece, role, group) in reading order."""
    ordered = []
    for number, (group, group_negatives) in enumerate(zip(groups, negatives, strict=True)):
        placed = [(piece, schemas.NEGATIVE, number) for piece in group_negatives]
        if position == "random":
            assert rng is not None
            at = int(rng.integers(len(group_negatives) + 1))
        else:
            at = 0 if position == "head" else len(group_negatives)
        placed.insert(at, (group.meta, schemas.META, number))
        ordered += placed
    return ordered


def _tile(ordered: Sequence[tuple[Piece, int, int]], *, bos_tokens: int, end: int, joint_tokens: int) -> list[Span]:
    """Lay pieces and joints one after the other from the BOS on; what crosses `end` is cut, what lies beyond is left out."""
    spans = [Span(schemas.NO_CHUNK, schemas.BOS, -1, 0, bos_tokens, 0.0)] if bos_tokens else []
    at = bos_tokens
    for piece, role, group in ordered:
        stop = min(at + piece.tokens, end)
        if stop > at:
            spans.append(Span(piece.chunk, role, group, at, stop, piece.score))
        at = stop
        if joint_tokens and not piece.closed and at < end:
            stop = min(at + joint_tokens, end)
            spans.append(Span(schemas.NO_CHUNK, schemas.JOINT, group, at, stop, 0.0))
            at = stop
        if at == end:
            break
    return spans
