"""Compose: fit each draft to exactly T tokens.

In:  DRAFTS and the token count of every chunk they name.
Out: SEQUENCES: spans that tile [0, T), each a chunk and how many of its tokens are used, a joint, or a special token.

`fit.py` has the rules; here the lengths are looked up. Text is read of the one chunk that is cut (`cut.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.tokens import TokenStore
from nextlong.compose.cut import TextCutter, Texts
from nextlong.compose.fit import (
    Cutter,
    Dropped,
    Fit,
    Group,
    Piece,
    Position,
    Reuse,
    Span,
    compose_spans,
    concatenate_spans,
)
from nextlong.results import ComposeResult, Examples
from nextlong.rng import rng_for
from nextlong.schemas import DropReason, Layout

_PIECES_HELD = 200_000  # about 60 MB
_DROPPED_EXAMPLES = 100  # of each reason that a task remembers: first chunk, chunks of the (meta-)documents, tokens


_SHORT = (DropReason.TOO_FEW_NEGATIVES, DropReason.TOO_FEW_DOCUMENTS)


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
    min_gap_tokens: int = 1,
    position: Position = "head",
    joint: Sequence[int] = (),
    bos: Sequence[int] = (),
    eos: Sequence[int] = (),
    seed: int = 0,
) -> Composed | Dropped:
    """Compose one sequence from plain lists of token ids.

    `meta_chunks`: p lists of ids; `negatives`: for each of them its negatives, best first; equal lists count as the same
    chunk: they serve once, and never if they are a meta-chunk. In the spans, chunk i < p is meta-chunk i, others are
    numbered in order of appearance. Returns `Dropped` with the reason if `target_tokens` cannot be reached. Raises
    ValueError for arguments that fit no sequence. Source: arXiv 2501.12766 §3.1.
    """
    if len(meta_chunks) != len(negatives):
        raise ValueError(f"{len(meta_chunks)} meta-chunks but negatives for {len(negatives)}; give one list for each")
    if not meta_chunks:
        raise ValueError("meta_chunks is empty; a sequence extends at least one")
    if fit not in get_args(Fit):
        raise ValueError(f"fit={fit!r} is not known; it must be one of {', '.join(get_args(Fit))}")
    if position not in get_args(Position):
        raise ValueError(f"position={position!r} is not known; it must be one of {', '.join(get_args(Position))}")
    if min_gap_tokens < 1:
        raise ValueError(f"min_gap_tokens={min_gap_tokens} would leave gaps empty; give 1 or more")
    if target_tokens <= len(bos) + len(eos):
        raise ValueError(
            f"target_tokens={target_tokens} leaves no room beside {len(bos)} tokens of bos and {len(eos)} of eos; raise it"
        )
    tokens: list[Sequence[int]] = list(meta_chunks)
    numbers = {tuple(meta): number for number, meta in enumerate(meta_chunks)}
    groups = []
    for number, (meta, meta_negatives) in enumerate(zip(meta_chunks, negatives, strict=True)):
        pieces = []
        for ids in meta_negatives:
            chunk = numbers.setdefault(tuple(ids), len(tokens))
            if chunk == len(tokens):
                tokens.append(ids)
            pieces.append(Piece(chunk, len(ids)))
        groups.append(Group(Piece(number, len(meta)), pieces))
    spans = compose_spans(
        groups,
        target_tokens=target_tokens,
        fit=fit,
        min_gap_tokens=min_gap_tokens,
        position=position,
        joint_tokens=len(joint),
        bos_tokens=len(bos),
        eos_tokens=len(eos),
        rng=rng_for(seed, "position"),
        blocked=range(len(meta_chunks)),
    )
    if isinstance(spans, Dropped):
        return spans
    special = {schemas.JOINT: joint, schemas.BOS: bos, schemas.EOS: eos}
    input_ids: list[int] = []
    for span in spans:
        source = special[span.role] if span.chunk == schemas.NO_CHUNK else tokens[span.chunk]
        input_ids += source[: span.end - span.start]
    return Composed(input_ids, spans)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How drafts become sequences: the recipe's choices and the lengths, in tokens, of what stands between chunks."""

    method: str
    target_tokens: int
    fit: Fit
    min_gap_tokens: int
    position: Position
    reuse: Reuse
    joint_tokens: int
    bos_tokens: int
    eos_tokens: int
    seed: int


def compose_block(
    out: Path, *, drafts: Path, take: int, tokens: TokenStore, texts: Texts, rules: Rules
) -> ComposeResult:
    """Compose the first `take` drafts of a file; writes `{out}.sequences.arrow` and counts what was dropped and why."""
    return _compose_file(Path(f"{out}.sequences.arrow"), drafts, take, tokens, texts, rules, uses=None)


def compose_capped(
    out: Path,
    *,
    drafts: Sequence[Path],
    take: Sequence[int],
    tokens: TokenStore,
    texts: Texts,
    rules: Rules,
    max_uses: int,
) -> ComposeResult:
    """Compose all drafts in order, each chunk a negative in at most `max_uses` sequences; one file for each of `drafts`.

    One task, because what a sequence may take depends on those before it. Memory: a number for each chunk that served.
    """
    uses = _Uses(max_uses)
    files = [
        _compose_file(Path(f"{out}.{number:05d}.sequences.arrow"), path, taken, tokens, texts, rules, uses=uses)
        for number, (path, taken) in enumerate(zip(drafts, take, strict=True))
    ]
    return ComposeResult(
        sequences=sum(file.sequences for file in files),
        sequences_per_file=tuple(file.sequences for file in files),
        dropped=sum((Counter(file.dropped) for file in files), Counter[str]()),
        dropped_examples=_first_examples(files),
        longest_dropped_tokens=max((file.longest_dropped_tokens for file in files), default=0),
        chunks_at_max_uses=len(uses.blocked),
    )


def _first_examples(files: Sequence[ComposeResult]) -> dict[str, Examples]:
    """Return the first examples of each reason of several files."""
    first: dict[str, Examples] = {}
    for file in files:
        for reason, examples in file.dropped_examples.items():
            first[reason] = (*first.get(reason, ()), *examples)[:_DROPPED_EXAMPLES]
    return first


class _Uses:
    """In how many sequences each chunk has served as a negative; `blocked` are those that have served enough."""

    def __init__(self, max_uses: int) -> None:
        self.blocked: set[int] = set()
        self._max_uses = max_uses
        self._counts: Counter[int] = Counter()

    def count(self, spans: Sequence[Span]) -> None:
        """Count the negatives of one more sequence."""
        negatives = {span.chunk for span in spans if span.role == schemas.NEGATIVE}
        self._counts.update(negatives)
        self.blocked.update(chunk for chunk in negatives if self._counts[chunk] >= self._max_uses)


def _compose_file(
    path: Path,
    drafts: Path,
    take: int,
    tokens: TokenStore,
    texts: Texts,
    rules: Rules,
    *,
    uses: _Uses | None,
) -> ComposeResult:
    dropped: Counter[str] = Counter()
    examples: dict[str, list[tuple[int, int, int]]] = {}
    kept = longest = 0
    with (
        pa.ipc.open_file(pa.memory_map(str(drafts))) as reader,
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
    ):
        for draft, pieces in _drafts_and_pieces(reader, take, tokens, texts.corpus.chunks):
            sequence_id = draft.column("sequence_id")[0].as_py()
            metas = [piece.chunk for piece, role in zip(pieces, _roles(draft), strict=True) if role == schemas.META]
            cutter = TextCutter(texts, tokens, metas, joint_tokens=rules.joint_tokens)
            spans = _compose_one(draft, pieces, sequence_id, rules, cutter, blocked=uses.blocked if uses else ())
            if isinstance(spans, Dropped):
                dropped[spans.reason] += 1
                if dropped[spans.reason] <= _DROPPED_EXAMPLES:
                    examples.setdefault(spans.reason, []).append((pieces[0].chunk, len(metas or pieces), spans.tokens))
                longest = max(longest, spans.tokens if spans.reason in _SHORT else 0)
                continue
            if uses is not None:
                uses.count(spans)
            writer.write_batch(_sequence_batch(draft, rules.method, spans))
            kept += 1
    return ComposeResult(
        sequences=kept,
        sequences_per_file=(kept,),
        dropped=dict(dropped),
        dropped_examples={reason: tuple(of_reason) for reason, of_reason in examples.items()},
        longest_dropped_tokens=longest,
    )


def _compose_one(
    draft: pa.RecordBatch,
    pieces: list[Piece],
    sequence_id: str,
    rules: Rules,
    cutter: Cutter,
    *,
    blocked: Container[int],
) -> list[Span] | Dropped:
    lengths: dict[str, Any] = {
        "cutter": cutter,
        "target_tokens": rules.target_tokens,
        "joint_tokens": rules.joint_tokens,
        "bos_tokens": rules.bos_tokens,
        "eos_tokens": rules.eos_tokens,
    }
    if draft.column("layout")[0].as_py() != Layout.EXTENDED:
        return concatenate_spans(pieces, draft.column("group").values.to_pylist(), **lengths)
    starts = np.flatnonzero(np.array(_roles(draft)) == schemas.META).tolist()
    return compose_spans(
        [Group(pieces[a], pieces[a + 1 : b]) for a, b in zip(starts, [*starts[1:], len(pieces)], strict=True)],
        fit=rules.fit,
        min_gap_tokens=rules.min_gap_tokens,
        position=rules.position,
        rng=rng_for(rules.seed, "position", sequence_id),
        reuse=rules.reuse,
        blocked=blocked,
        near_copies=_near_copies(draft),
        **lengths,
    )


def _roles(draft: pa.RecordBatch) -> list[int]:
    roles: list[int] = draft.column("role").values.to_pylist()
    return roles


def _near_copies(draft: pa.RecordBatch) -> dict[int, list[int]]:
    """Return for each chunk of a draft that repeats others which these are."""
    pairs = draft.column("near_copies").values.to_numpy().reshape(-1, 2)
    one, others = np.concatenate([pairs, pairs[:, ::-1]]).T
    order = np.argsort(one, kind="stable")
    firsts = np.flatnonzero(np.diff(one[order], prepend=schemas.NO_CHUNK))
    bounds = pairwise([*firsts.tolist(), len(order)])
    return {
        chunk: others[order[a:b]].tolist() for chunk, (a, b) in zip(one[order[firsts]].tolist(), bounds, strict=True)
    }


def _drafts_and_pieces(
    reader: pa.RecordBatchFileReader, take: int, tokens: TokenStore, chunks: Sequence[Path]
) -> Iterator[tuple[pa.RecordBatch, list[Piece]]]:
    """Yield the first `take` drafts and their chunks, looked up for as many drafts at a time as memory is meant to hold."""
    block: list[pa.RecordBatch] = []
    held = 0
    for number in range(take):
        block.append(reader.get_batch(number))
        held += len(block[-1].column("chunk_id").values)
        if held >= _PIECES_HELD or number == take - 1:
            yield from zip(block, _pieces_of(block, tokens, chunks), strict=True)
            block, held = [], 0


def _pieces_of(drafts: Sequence[pa.RecordBatch], tokens: TokenStore, chunks: Sequence[Path]) -> list[list[Piece]]:
    """Return the chunks of each draft, with the token count of every chunk looked up, and whether it is closed.

    It is if it ends in a newline, or if its document goes on: whole documents are put together as they are, but for what
    decontaminating took out of them.
    """
    ids, scores, roles = (
        np.concatenate([draft.column(name).values.to_numpy() for draft in drafts])
        for name in ("chunk_id", "score", "role")
    )
    joint, doc_row, start, end = lookup.chunk_columns(ids, chunks, ("joint", "doc_row", "start", "end"))
    goes_on = (roles[:-1] == schemas.DOCUMENT) & (ids[:-1] + 1 == ids[1:])
    goes_on &= (doc_row[:-1] == doc_row[1:]) & (end[:-1] == start[1:])
    closed = ~joint | np.append(goes_on, False)
    pieces = list(map(Piece, ids.tolist(), tokens.counts(ids).tolist(), closed.tolist(), scores.tolist()))
    ends = np.cumsum([len(draft.column("chunk_id").values) for draft in drafts]).tolist()
    return [pieces[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def _sequence_batch(draft: pa.RecordBatch, method: str, spans: Sequence[Span]) -> pa.RecordBatch:
    chunk, role, group, start, end, score = zip(*spans, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            **{name: draft.column(name) for name in ("sequence_id", "key", "layout")},
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
