"""Fit chunks of known token counts into sequences of exactly T tokens.

In:  for each meta-chunk its candidates, or a list of documents; only their lengths in
     tokens matter.
Out: spans that tile [0, T), or the reason why a draft is dropped.

`fit="exact"`: every meta-chunk first takes its nearest negatives up to
`min_gap_tokens`, so that no gap is empty. The rest of the token budget is then shared
evenly, and what one meta-chunk does not use goes to the next. Only the last negative of
the sequence is cut. `fit="paper"`: concatenate, cut at T, drop shorter sequences
(Algorithm 1, paper §3.1.2). Methods of whole documents do the same with documents. A
separator follows each chunk that does not end in a newline, except at the end of the
sequence. A `Cutter` decides where a chunk may be cut: here by lengths alone, in
`compose.py` by the text.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from nextlong import arguments, schemas
from nextlong.errors import ArgumentError
from nextlong.rng import rng_for
from nextlong.schemas import DropReason

Fit = Literal["exact", "paper"]
_Position = Literal["head", "tail", "random"]
# What follows the cut negative: a meta-chunk, or nothing, because it ends the sequence.
Following = Literal["meta-chunk", "nothing"]

_IDS_FIX: Final = "give lists of token ids"
# Candidates tried as the cut negative before other groups fill the rest.
_MAX_CUTS: Final = 16


class SizedChunk(NamedTuple):
    """A chunk and its length.

    `closed`: its text ends in a newline, or its document continues right after it.
    """

    chunk: int
    tokens: int
    closed: bool = False
    score: float = 1.0
    fill: int = 0  # additional separator tokens after a negative that was cut

    def cost(self, separator_tokens: int) -> int:
        """Return its tokens including the separators after it."""
        return self.tokens + self.fill + (0 if self.closed else separator_tokens)


class Group(NamedTuple):
    """A meta-chunk and the candidates for its negatives, best first."""

    meta: SizedChunk
    candidates: list[SizedChunk]


class TokenSpan(NamedTuple):
    """Tokens [start, end) of a sequence.

    They are the first end − start tokens of `chunk`, or a separator or special token.
    """

    chunk: int
    role: int
    group: int
    start: int
    end: int
    score: float


_Placed = tuple[SizedChunk, int, int]  # piece, role, group


class Cut(NamedTuple):
    """The number of tokens that a negative keeps; `closed`: no separator follows."""

    tokens: int
    closed: bool


@dataclass(frozen=True)
class Dropped:
    """The reason why a draft was dropped, and the tokens that it would have had."""

    reason: DropReason
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings of composing.

    The recipe's choices, and the tokens of separators and special tokens.
    """

    target_tokens: int
    fit: Fit = "exact"
    min_gap_tokens: int = 1
    position: _Position = "head"
    # "free": negatives may repeat, for the ablation `self-repeat`.
    reuse: Literal["never", "free"] = "never"
    separator_tokens: int = 0
    bos_tokens: int = 0
    eos_tokens: int = 0


class Composed(NamedTuple):
    """A sequence in memory: its token ids and the spans that tile it."""

    input_ids: list[int]
    spans: list[TokenSpan]


class Cutter:
    """Decide where chunks may be cut, by their lengths alone."""

    trimmed_tokens: int = 0  # how much shorter than the budget a cut may be

    def __init__(self, separator_tokens: int = 0) -> None:
        self.separator_tokens = separator_tokens

    def negative(
        self,
        piece: SizedChunk,
        budget: int,
        placed: Sequence[int],  # noqa: ARG002
        *,
        following: Following = "nothing",
    ) -> Cut | None:
        """Return the cut of a negative that fills `budget` tokens; None if no cut does.

        The negative follows the `placed` chunks. A cut before a meta-chunk leaves room
        for a separator.
        """
        with_separator = budget - self.separator_tokens
        if 1 <= with_separator < piece.tokens or (
            with_separator == piece.tokens and not piece.closed
        ):
            return Cut(with_separator, closed=False)
        ends_line = budget == piece.tokens and piece.closed
        if budget > piece.tokens or not (ends_line or self.may_join(following)):
            return None
        return Cut(budget, closed=True)

    def may_join(self, following: Following) -> bool:
        """Return whether a cut without a separator may end where no line ends."""
        return following == "nothing" or not self.separator_tokens

    def end(self, piece: SizedChunk, tokens: int) -> int:  # noqa: ARG002
        """Return how many of its first `tokens` tokens the last chunk keeps.

        Separators fill the rest of the sequence.
        """
        return tokens


def compose(
    meta_chunks: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[Sequence[int]]],
    *,
    target_tokens: int,
    fit: Fit = "exact",
    min_gap_tokens: int = 1,
    position: _Position = "head",
    separator: Sequence[int] = (),
    bos: Sequence[int] = (),
    eos: Sequence[int] = (),
    seed: int = 0,
) -> Composed | Dropped:
    """Compose one sequence from lists of token ids (arXiv 2501.12766 §3.1).

    `meta_chunks`: p lists of ids; `negatives`: for each of them its negatives, best
    first. Equal lists are the same chunk, which is used once, and never if it is a
    meta-chunk. In the spans, chunk i < p is meta-chunk i; other chunks are numbered in
    order of appearance. Returns `Dropped` with the reason if `target_tokens` cannot be
    reached. Raises ArgumentError for invalid arguments.
    """
    meta_chunks = _lists_of_ids(meta_chunks, "meta_chunks")
    fix = "give one list of negatives for each meta-chunk"
    lists = arguments.listed(negatives, "negatives", fix=fix)
    negatives = [
        _lists_of_ids(own, f"negatives[{index}]") for index, own in enumerate(lists)
    ]
    if len(meta_chunks) != len(negatives):
        raise ArgumentError(
            where="negatives",
            problem=f"there are {len(negatives)} for {len(meta_chunks)} meta-chunks",
            fix=fix,
        )
    if not meta_chunks:
        raise ArgumentError(
            where="meta_chunks",
            problem="it is empty",
            fix="give at least one, which the sequence extends",
        )
    arguments.word(fit, "fit", get_args(Fit))
    arguments.word(position, "position", get_args(_Position))
    seed = arguments.whole_number(
        seed, "seed", fix="give a whole number", min_value=None
    )
    min_gap_tokens = arguments.whole_number(
        min_gap_tokens,
        "min_gap_tokens",
        fix="a gap needs 1 token or more",
        min_value=1,
    )
    separator = arguments.whole_numbers(separator, "separator", fix=_IDS_FIX)
    bos = arguments.whole_numbers(bos, "bos", fix=_IDS_FIX)
    eos = arguments.whole_numbers(eos, "eos", fix=_IDS_FIX)
    target_tokens = arguments.whole_number(
        target_tokens, "target_tokens", fix="give a number of tokens"
    )
    if target_tokens <= len(bos) + len(eos):
        specials = f"{len(bos)} tokens of bos and {len(eos)} of eos"
        raise ArgumentError(
            where="target_tokens",
            value=target_tokens,
            problem=f"leaves no room beside {specials}",
            fix="raise it",
        )
    groups, tokens = _groups_of(meta_chunks, negatives)
    rules = Rules(
        target_tokens=target_tokens,
        fit=fit,
        min_gap_tokens=min_gap_tokens,
        position=position,
        separator_tokens=len(separator),
        bos_tokens=len(bos),
        eos_tokens=len(eos),
    )
    rng = rng_for(seed, "position")
    spans = compose_spans(groups, rules, rng=rng, blocked=range(len(meta_chunks)))
    if isinstance(spans, Dropped):
        return spans
    special = {schemas.SEPARATOR: separator, schemas.BOS: bos, schemas.EOS: eos}
    input_ids: list[int] = []
    for span in spans:
        is_special = span.chunk == schemas.NO_CHUNK
        ids = special[span.role] if is_special else tokens[span.chunk]
        input_ids += ids[: span.end - span.start]
    return Composed(input_ids, spans)


def _lists_of_ids(chunks: Sequence[Sequence[int]], name: str) -> list[list[int]]:
    return [
        arguments.whole_numbers(ids, f"{name}[{index}]", fix=_IDS_FIX)
        for index, ids in enumerate(arguments.listed(chunks, name, fix=_IDS_FIX))
    ]


def _groups_of(
    meta_chunks: Sequence[Sequence[int]], negatives: Sequence[Sequence[Sequence[int]]]
) -> tuple[list[Group], list[Sequence[int]]]:
    """Return the meta-chunks with their negatives, and the ids of each chunk.

    Equal lists of ids are the same chunk.
    """
    tokens: list[Sequence[int]] = list(meta_chunks)
    chunk_of = {tuple(ids): chunk for chunk, ids in enumerate(meta_chunks)}
    groups: list[Group] = []
    for meta, (ids, own_negatives) in enumerate(
        zip(meta_chunks, negatives, strict=True)
    ):
        group = Group(SizedChunk(meta, len(ids)), [])
        for negative_ids in own_negatives:
            chunk = chunk_of.setdefault(tuple(negative_ids), len(tokens))
            if chunk == len(tokens):
                tokens.append(negative_ids)
            group.candidates.append(SizedChunk(chunk, len(negative_ids)))
        groups.append(group)
    return groups, tokens


def compose_spans(
    groups: Sequence[Group],
    rules: Rules,
    *,
    rng: np.random.Generator | None = None,
    blocked: Container[int] = (),
    near_duplicates: Mapping[int, Sequence[int]] = MappingProxyType({}),
    cutter: Cutter | None = None,
) -> list[TokenSpan] | Dropped:
    """Return spans that tile exactly T tokens, or why there are none (§3.1.2).

    `rng` places the meta-chunks if `position="random"`. A chunk is used as a negative
    only once unless `reuse="free"`, never if it is `blocked`, and not if one of its
    `near_duplicates` is used. Under `fit="exact"`, each meta-chunk has at least
    `min_gap_tokens` tokens of negatives, and so does the gap between two meta-chunks,
    whatever the position.
    """
    cutter = cutter or Cutter(rules.separator_tokens)

    def arrange(following: Following) -> list[_Placed] | Dropped:
        used: set[int] | None = set() if rules.reuse == "never" else None
        walkers = [
            _Walker(
                candidates=group.candidates,
                used=used,
                blocked=blocked,
                near_duplicates=near_duplicates,
                cutter=cutter,
                following=following,
            )
            for group in groups
        ]
        dropped = _take_negatives(groups, walkers, rules)
        if dropped is not None:
            return dropped
        # A copy, so that a second arrangement draws the same places.
        draws = deepcopy(rng) if rules.position == "random" else None
        return _in_reading_order(groups, walkers, rules, rng=draws)

    ordered = arrange("meta-chunk" if rules.position == "tail" else "nothing")
    # Where the last meta-chunk is placed at random is known only now.
    is_random = rules.fit == "exact" and rules.position == "random"
    if is_random and not isinstance(ordered, Dropped) and _may_join(ordered):
        ordered = arrange("meta-chunk")
    if isinstance(ordered, Dropped):
        return ordered
    return _tile(ordered, rules, cutter, if_short=DropReason.TOO_FEW_NEGATIVES)


def _take_negatives(
    groups: Sequence[Group],
    walkers: Sequence[_Walker],
    rules: Rules,
) -> Dropped | None:
    if rules.fit == "exact":
        return _share_budget(groups, walkers, rules)
    for walker in walkers:
        walker.take_whole(None)
    return None


def _in_reading_order(
    groups: Sequence[Group],
    walkers: Sequence[_Walker],
    rules: Rules,
    *,
    rng: np.random.Generator | None,
) -> list[_Placed]:
    """Return all pieces, with meta-chunks where `position` says.

    At least `min_gap_tokens` tokens are between any two meta-chunks.
    """
    min_tokens = rules.min_gap_tokens if rules.fit == "exact" else 0
    ordered: list[_Placed] = []
    gap_tokens = min_tokens  # tokens of negatives since the last meta-chunk
    for index, (group, walker) in enumerate(zip(groups, walkers, strict=True)):
        placed = [(piece, schemas.NEGATIVE, index) for piece in walker.taken]
        # The tokens of the group's negatives before each place of its meta-chunk.
        sizes = (piece.tokens for piece in walker.taken)
        before = list(accumulate(sizes, initial=0))
        meta_place = 0 if rules.position == "head" else len(placed)
        if rules.position == "random":
            assert rng is not None
            first = next(
                place
                for place, tokens in enumerate(before)
                if gap_tokens + tokens >= min_tokens
            )
            meta_place = first + int(rng.integers(len(before) - first))
        gap_tokens = before[-1] - before[meta_place]
        placed.insert(meta_place, (group.meta, schemas.META, index))
        ordered += placed
    return ordered


def _may_join(ordered: Sequence[_Placed]) -> bool:
    """Return whether the last meta-chunk follows a negative without a separator.

    The negative may be whole or cut.
    """
    (negative, _, _), (_, last_role, _) = ordered[-2:]
    return last_role == schemas.META and negative.closed


def concatenate_spans(
    pieces: Sequence[SizedChunk],
    roles: Sequence[int],
    groups: Sequence[int],
    rules: Rules,
    *,
    cutter: Cutter,
) -> list[TokenSpan] | Dropped:
    """Return spans of concatenated documents, cut at T.

    `groups` has the document of each chunk, or the one that a context is for.
    """
    ordered = list(zip(pieces, roles, groups, strict=True))
    return _tile(ordered, rules, cutter, if_short=DropReason.TOO_FEW_DOCUMENTS)


@dataclass
class _Walker:
    """Walk the candidates of a group in order, skipping used ones.

    `taken` are its negatives so far.
    """

    candidates: Sequence[SizedChunk]
    # Chunks used by any group, and their near-duplicates; None: chunks may repeat.
    used: set[int] | None
    blocked: Container[int]
    near_duplicates: Mapping[int, Sequence[int]]
    cutter: Cutter
    following: Following  # what follows its last negative, if that is cut
    taken: list[SizedChunk] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)  # of `taken`, among the candidates
    index: int = 0  # of the next candidate
    tokens: int = 0  # of `taken` …
    cost: int = 0  # … including separators

    def free(self) -> SizedChunk | None:
        """Return the next candidate that may be used, or None."""
        used = self.used or ()
        while self.index < len(self.candidates):
            piece = self.candidates[self.index]
            if piece.chunk not in used and piece.chunk not in self.blocked:
                return piece
            self.index += 1
        return None

    def take_whole(self, budget: int | None) -> int:
        """Take free candidates up to the first that does not fit.

        Returns the rest of the budget (None: no limit).
        """
        left = budget or 0
        while (piece := self.free()) is not None:
            cost = piece.cost(self.cutter.separator_tokens)
            if budget is not None and cost > left:
                break
            self._take(piece)
            left -= cost
        return left

    def take_at_least(self, tokens: int) -> bool:
        """Take free candidates until they have `tokens` tokens; return if they do."""
        while self.tokens < tokens and (piece := self.free()) is not None:
            self._take(piece)
        return self.tokens >= tokens

    def take_truncated(self, budget: int, placed: Sequence[int]) -> bool:
        """Cut and take the first free candidate that fills the budget.

        Separators may follow it. Returns whether one does.
        """
        first = self.index
        tries = 0
        while tries < _MAX_CUTS and (piece := self.free()) is not None:
            cut = self.cutter.negative(piece, budget, placed, following=self.following)
            if cut is not None:
                fill = 0
                if not cut.closed:
                    fill = budget - cut.tokens - self.cutter.separator_tokens
                self._take(
                    piece._replace(tokens=cut.tokens, closed=cut.closed, fill=fill)
                )
                return True
            if piece.tokens >= budget:
                tries += 1
            self.index += 1
        self.index = first
        return False

    def keep(self, count: int) -> None:
        """Return all negatives but the first `count`, and continue from there."""
        self.taken = self.taken[:count]
        self.indices = self.indices[:count]
        self.index = self.indices[-1] + 1 if count else 0
        self.tokens = sum(piece.tokens for piece in self.taken)
        separator_tokens = self.cutter.separator_tokens
        self.cost = sum(piece.cost(separator_tokens) for piece in self.taken)

    def mark_used(self, pieces: Sequence[SizedChunk]) -> None:
        """Mark negatives and their near-duplicates as used."""
        if self.used is not None:
            for piece in pieces:
                self.used.add(piece.chunk)
                self.used.update(self.near_duplicates.get(piece.chunk, ()))

    def _take(self, piece: SizedChunk) -> None:
        self.mark_used([piece])
        self.taken.append(piece)
        self.indices.append(self.index)
        self.tokens += piece.tokens
        self.cost += piece.cost(self.cutter.separator_tokens)
        self.index += 1


def _share_budget(
    groups: Sequence[Group],
    walkers: Sequence[_Walker],
    rules: Rules,
) -> Dropped | None:
    """Take negatives that fill the sequence exactly beside the meta-chunks.

    Returns why this is not possible, or None.
    """
    room = rules.target_tokens - rules.bos_tokens - rules.eos_tokens
    separator_tokens = rules.separator_tokens
    min_tokens = rules.min_gap_tokens
    meta_tokens = sum(group.meta.cost(separator_tokens) for group in groups)
    left = room - meta_tokens
    if left < 1:
        return Dropped(DropReason.TOO_LONG, meta_tokens)
    if left < min_tokens * len(groups):
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    *others, last = walkers
    if not all(walker.take_at_least(min_tokens) for walker in others):
        return Dropped(DropReason.NO_NEGATIVES, meta_tokens)
    if left - sum(walker.cost for walker in others) < min_tokens:
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    # Reserve what later groups have taken already, and what the cut negative needs.
    reserve = min_tokens + separator_tokens + last.cutter.trimmed_tokens
    for index, walker in enumerate(others):
        # An even share of the rest, including what earlier groups did not use.
        share = left // (len(groups) - index)
        later = sum(other.cost for other in others[index + 1 :]) + reserve
        walker.take_whole(min(share, left - later) - walker.cost)
        left -= walker.cost
    left = last.take_whole(left)
    if others and left and not last.taken and last.free() is None:
        return Dropped(DropReason.NO_NEGATIVES, meta_tokens)
    left = _fill_up(last, others, left, min_tokens)
    if left:
        return Dropped(DropReason.TOO_FEW_NEGATIVES, room - left)
    if last.tokens < min_tokens:
        return Dropped(DropReason.TOO_LITTLE_ROOM, meta_tokens)
    return None


def _fill_up(  # noqa: C901 # one story: cut, pass on, cut again
    last: _Walker,
    others: Sequence[_Walker],
    left: int,
    min_tokens: int,
) -> int:
    """Fill the rest of the budget; return the tokens that could not be filled.

    The last negative of the last group is cut. First cut the next candidate of the last
    group. If none of its candidates fills the rest, let other groups take whole
    negatives before. If that fails as well, cut the last negative of the last group, or
    one of the candidates after it.
    """

    def cut(budget: int) -> bool:
        placed: list[int] = []
        for walker in (*others, last):
            placed += [piece.chunk for piece in walker.taken]
        return budget == 0 or last.take_truncated(budget, placed)

    def others_take(budget: int) -> int:
        for walker in reversed(others):
            budget = walker.take_whole(budget)
        return budget

    def restore() -> None:
        """Return the negatives beyond `counts`, and what they marked as used."""
        for walker, count in zip((*others, last), counts, strict=True):
            walker.keep(count)
        if last.used is not None:  # the set that all walkers share
            last.used.clear()
            for walker in (*others, last):
                walker.mark_used(walker.taken)

    counts = [len(walker.taken) for walker in (*others, last)]
    if cut(left):
        return 0
    short = others_take(left)
    if cut(short):
        return 0
    if not last.taken:
        return short
    back = last.cost
    counts[-1] -= 1
    restore()
    rest = left + back - last.cost
    kept = max(1, min_tokens - last.tokens)
    budget = kept + others_take(rest - kept)
    if cut(budget):
        return 0
    # The others may have left too little for a cut with a separator behind it.
    separated = last.cutter.separator_tokens + last.cutter.trimmed_tokens
    if budget > separated or last.cutter.may_join(last.following):
        return short
    restore()
    kept += separated
    return 0 if cut(kept + others_take(rest - kept)) else short


def _tile(
    ordered: Sequence[_Placed],
    rules: Rules,
    cutter: Cutter,
    *,
    if_short: DropReason,
) -> list[TokenSpan] | Dropped:
    """Return the spans of BOS, pieces with separators, and EOS.

    The piece that crosses the end is cut.
    """
    spans: list[TokenSpan] = []
    if rules.bos_tokens:
        bos = TokenSpan(schemas.NO_CHUNK, schemas.BOS, -1, 0, rules.bos_tokens, 0.0)
        spans.append(bos)
    reached = rules.bos_tokens
    end = rules.target_tokens - rules.eos_tokens
    for piece, role, group in ordered:
        tokens = piece.tokens
        separators = piece.cost(cutter.separator_tokens) - tokens
        # The piece that crosses the end: separators fill what its cut leaves.
        if tokens > end - reached:
            tokens = cutter.end(piece, end - reached)
            separators = end - reached - tokens
        # A cut may leave nothing of the piece.
        first = reached
        reached += tokens
        if tokens:
            span = TokenSpan(piece.chunk, role, group, first, reached, piece.score)
            spans.append(span)
        # At the end of the sequence, a separator may be cut as well.
        stop = min(reached + separators, end)
        while reached < stop:
            first = reached
            reached = min(reached + cutter.separator_tokens, stop)
            separator = schemas.SEPARATOR
            span = TokenSpan(schemas.NO_CHUNK, separator, group, first, reached, 0.0)
            spans.append(span)
        if reached == end:
            break
    if reached < end:
        return Dropped(if_short, reached)
    if rules.eos_tokens:
        target = rules.target_tokens
        spans.append(TokenSpan(schemas.NO_CHUNK, schemas.EOS, -1, end, target, 0.0))
    return spans
