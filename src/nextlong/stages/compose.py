"""Compose: fit each draft to exactly T tokens.

In:  DRAFTS and the token count of every chunk they name.
Out: SEQUENCES: spans that tile [0, T), each a chunk and how many of its tokens are used, a joint, or a special token.

`fit="exact"`: the token budget is shared evenly by the meta-chunks, what one leaves over goes to the next; whole negatives
until the budget is full, and only the last is cut, so every meta-chunk is there and the length is T. `fit="paper"`:
concatenate, cut at T, drop what falls short (paper §3.1.2). Nothing here looks at a token: lengths are enough.

A chunk that does not end in a newline is followed by a joint, so that no two texts run into each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.rng import rng_for
from nextlong.stages import gather
from nextlong.stages.tokens import TokenStore

Fit = Literal["exact", "paper"]
Position = Literal["head", "tail", "random"]

TOO_LONG = "the meta-document alone fills target_tokens"
TOO_SHORT = "too few negatives to reach target_tokens"


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

    reason: str
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
) -> list[Span] | Dropped:
    """Return spans that tile exactly `target_tokens` tokens, or why there are none.

    `rng` places the meta-chunks if `position="random"`. Source: arXiv 2501.12766 §3.1.2 for `fit="paper"`.
    """
    room = target_tokens - bos_tokens - eos_tokens
    chosen = _share_budget(groups, room, joint_tokens) if fit == "exact" else _all_free(groups)
    if isinstance(chosen, Dropped):
        return chosen
    ordered = _arrange(groups, chosen, position, rng)
    spans = _tile(ordered, bos_tokens=bos_tokens, end=bos_tokens + room, joint_tokens=joint_tokens)
    reached = spans[-1].end if spans else 0
    if reached < bos_tokens + room:
        return Dropped(TOO_SHORT, reached)
    if eos_tokens:
        spans.append(Span(schemas.NO_CHUNK, schemas.EOS, -1, target_tokens - eos_tokens, target_tokens, 0.0))
    return spans


def _share_budget(groups: Sequence[Group], room: int, joint_tokens: int) -> list[list[Piece]] | Dropped:
    """Return the negatives of each group that, with the meta-chunks and joints, make `room` tokens exactly."""
    own = sum(_cost(group.meta, joint_tokens) for group in groups)
    left = room - own
    if left < len(groups):  # not one token of a negative for each meta-chunk
        return Dropped(TOO_LONG, own)
    used: set[int] = set()
    walkers = [_Walker(group.candidates, used, joint_tokens) for group in groups]
    for place, walker in enumerate(walkers):
        share = left // (len(groups) - place)  # an even share of what is left carries over what others did not use
        left += walker.take_whole(share) - share
    # The last group's next candidate is cut to fill the rest. Where it has none, those of the other groups serve.
    for walker in [walkers[-1], *walkers[:-1]]:
        left = walker.take_whole(left)
        if left == 0 or walker.take_cut(left):
            return [walker.taken for walker in walkers]
    return Dropped(TOO_SHORT, room - left)


def _all_free(groups: Sequence[Group]) -> list[list[Piece]]:
    used: set[int] = set()
    walkers = [_Walker(group.candidates, used, 0) for group in groups]
    for walker in walkers:
        walker.take_whole(None)
    return [walker.taken for walker in walkers]


def _cost(piece: Piece, joint_tokens: int) -> int:
    return piece.tokens + (0 if piece.closed else joint_tokens)


class _Walker:
    """Walks a group's candidates in order, past those that any group has used; `taken` are its negatives so far."""

    def __init__(self, candidates: Sequence[Piece], used: set[int], joint_tokens: int) -> None:
        self.taken: list[Piece] = []
        self._candidates = candidates
        self._used = used
        self._joint_tokens = joint_tokens
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

    def take_cut(self, budget: int) -> bool:
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
        self._used.add(piece.chunk)
        self.taken.append(piece)
        self._next += 1

    def _free(self) -> Piece | None:
        while self._next < len(self._candidates) and self._candidates[self._next].chunk in self._used:
            self._next += 1
        return self._candidates[self._next] if self._next < len(self._candidates) else None


def _arrange(
    groups: Sequence[Group], negatives: Sequence[list[Piece]], position: Position, rng: np.random.Generator | None
) -> list[tuple[Piece, int, int]]:
    """Return (piece, role, group) in reading order."""
    ordered = []
    for number, (group, own) in enumerate(zip(groups, negatives, strict=True)):
        placed = [(piece, schemas.NEGATIVE, number) for piece in own]
        if position == "random":
            assert rng is not None
            at = int(rng.integers(len(own) + 1))
        else:
            at = 0 if position == "head" else len(own)
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


class Composed(NamedTuple):
    """One sequence for a notebook: its token ids and the spans that tile it."""

    input_ids: list[int]
    spans: list[Span]


def compose(
    meta_chunks: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[Sequence[int]]],
    *,
    target_tokens: int,
    fit: Fit = "exact",
    position: Position = "head",
    joint: Sequence[int] = (),
    bos: Sequence[int] = (),
    eos: Sequence[int] = (),
    seed: int = 0,
) -> Composed | Dropped:
    """Compose one sequence from plain lists of token ids.

    `meta_chunks`: p lists of ids; `negatives`: for each of them its negatives, best first; equal lists count as the same
    chunk and serve once. In the spans, chunk i < p is meta-chunk i, others are numbered in order of appearance. Returns
    `Dropped` with the reason if `target_tokens` cannot be reached. Source: arXiv 2501.12766 §3.1.
    """
    if len(meta_chunks) != len(negatives):
        raise ValueError(f"{len(meta_chunks)} meta-chunks but negatives for {len(negatives)}; give one list for each")
    tokens: list[Sequence[int]] = list(meta_chunks)
    numbers: dict[tuple[int, ...], int] = {}
    groups = []
    for number, (meta, own) in enumerate(zip(meta_chunks, negatives, strict=True)):
        pieces = []
        for ids in own:
            chunk = numbers.setdefault(tuple(ids), len(tokens))
            if chunk == len(tokens):
                tokens.append(ids)
            pieces.append(Piece(chunk, len(ids)))
        groups.append(Group(Piece(number, len(meta)), pieces))
    spans = compose_spans(
        groups,
        target_tokens=target_tokens,
        fit=fit,
        position=position,
        joint_tokens=len(joint),
        bos_tokens=len(bos),
        eos_tokens=len(eos),
        rng=rng_for(seed, "position"),
    )
    if isinstance(spans, Dropped):
        return spans
    special = {schemas.JOINT: joint, schemas.BOS: bos, schemas.EOS: eos}
    input_ids: list[int] = []
    for span in spans:
        source = special[span.role] if span.chunk == schemas.NO_CHUNK else tokens[span.chunk]
        input_ids += source[: span.end - span.start]
    return Composed(input_ids, spans)


def compose_block(
    out: Path,
    *,
    drafts: Path,
    take: int,
    tokens: TokenStore,
    chunks: Sequence[Path],
    method: str,
    target_tokens: int,
    fit: Fit,
    position: Position,
    joint_tokens: int,
    bos_tokens: int,
    eos_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Compose the first `take` drafts of a file; writes `{out}.sequences.arrow` and counts what was dropped and why."""
    dropped: dict[str, int] = {}
    kept = longest = 0
    with (
        pa.ipc.open_file(pa.memory_map(str(drafts))) as reader,
        pa.OSFile(f"{out}.sequences.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
    ):
        block = [reader.get_batch(number) for number in range(take)]
        for draft, groups in zip(block, _groups_of(block, tokens, chunks), strict=True):
            sequence_id = draft.column("sequence_id")[0].as_py()
            spans = compose_spans(
                groups,
                target_tokens=target_tokens,
                fit=fit,
                position=position,
                joint_tokens=joint_tokens,
                bos_tokens=bos_tokens,
                eos_tokens=eos_tokens,
                rng=rng_for(seed, "position", sequence_id),
            )
            if isinstance(spans, Dropped):
                dropped[spans.reason] = dropped.get(spans.reason, 0) + 1
                longest = max(longest, spans.tokens if spans.reason == TOO_SHORT else 0)
                continue
            writer.write_batch(_sequence_batch(sequence_id, method, spans))
            kept += 1
    return {"sequences": kept, "dropped": dropped, "longest_dropped_tokens": longest}


def _groups_of(drafts: Sequence[pa.RecordBatch], tokens: TokenStore, chunks: Sequence[Path]) -> list[list[Group]]:
    """Return the groups of each draft, with the token count and the closing newline of every chunk looked up."""
    if not drafts:
        return []
    ids = np.concatenate([draft.column("chunk_id").values.to_numpy() for draft in drafts])
    counts = tokens.counts(ids)
    (joint,) = gather.chunk_columns(ids, chunks, ("joint",))
    found, at = [], 0
    for draft in drafts:
        size = len(draft.column("chunk_id")[0])
        piece = slice(at, at + size)
        at += size
        scores = draft.column("score").values.to_numpy().tolist()
        pieces = list(map(Piece, ids[piece].tolist(), counts[piece].tolist(), (~joint[piece]).tolist(), scores))
        starts = np.flatnonzero(draft.column("role").values.to_numpy() == schemas.META).tolist()
        found.append([Group(pieces[a], pieces[a + 1 : b]) for a, b in zip(starts, [*starts[1:], size], strict=True)])
    return found


def _sequence_batch(sequence_id: str, method: str, spans: Sequence[Span]) -> pa.RecordBatch:
    chunk, role, group, start, end, score = zip(*spans, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "sequence_id": [sequence_id],
            "method": [method],
            "chunk_id": [chunk],
            "role": [role],
            "group": [group],
            "token_start": [start],
            "token_end": [end],
            "score": [score],
        },
        schema=schemas.SEQUENCES,
    )
