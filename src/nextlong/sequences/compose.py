"""Compose: fit each draft to exactly T tokens.

In:  DRAFTS and the token count of every chunk that they name.
Out: SEQUENCES: spans that tile [0, T), each the first tokens of a chunk, a separator, or a special token.

`fit.py` has the rules; here the lengths are looked up. Only the text of chunks that are cut is read (`truncate.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import TokenStore
from nextlong.artifacts.results import ComposeResult
from nextlong.rng import rng_for
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.fit import (
    Dropped,
    Fit,
    Group,
    Piece,
    Position,
    Rules,
    Span,
    compose_spans,
    concatenate_spans,
)
from nextlong.sequences.truncate import ComposeInputs, TextCutter

_PIECES_HELD = 200_000  # about 60 MB
_DROPPED_EXAMPLES = 100  # for each reason and task: first chunk, chunks of the (meta-)documents, tokens
_SHORT = (DropReason.TOO_FEW_NEGATIVES, DropReason.TOO_FEW_DOCUMENTS)


class Composed(NamedTuple):
    """One sequence in memory: its token ids and the spans that tile it."""

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
    separator: Sequence[int] = (),
    bos: Sequence[int] = (),
    eos: Sequence[int] = (),
    seed: int = 0,
) -> Composed | Dropped:
    """Compose one sequence from plain lists of token ids.

    `meta_chunks`: p lists of ids; `negatives`: for each of them its negatives, best first. Equal lists count as the same
    chunk: it serves once, and never if it is a meta-chunk. In the spans, chunk i < p is meta-chunk i; others are
    numbered in order of appearance. Returns `Dropped` with the reason if `target_tokens` cannot be reached. Raises
    ValueError for arguments that fit no sequence. Source: arXiv 2501.12766 §3.1.
    """
    if len(meta_chunks) != len(negatives):
        raise ValueError(f"{len(meta_chunks)} meta-chunks but negatives for {len(negatives)}; give one list for each")
    if not meta_chunks:
        raise ValueError("meta_chunks is empty; a sequence extends at least one")
    for name, value, choices in (("fit", fit, get_args(Fit)), ("position", position, get_args(Position))):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is unknown; it must be one of {', '.join(choices)}")
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
    rules = Rules(
        target_tokens=target_tokens,
        fit=fit,
        min_gap_tokens=min_gap_tokens,
        position=position,
        separator_tokens=len(separator),
        bos_tokens=len(bos),
        eos_tokens=len(eos),
    )
    spans = compose_spans(groups, rules, rng=rng_for(seed, "position"), blocked=range(len(meta_chunks)))
    if isinstance(spans, Dropped):
        return spans
    special = {schemas.SEPARATOR: separator, schemas.BOS: bos, schemas.EOS: eos}
    input_ids: list[int] = []
    for span in spans:
        source = special[span.role] if span.chunk == schemas.NO_CHUNK else tokens[span.chunk]
        input_ids += source[: span.end - span.start]
    return Composed(input_ids, spans)


def compose_drafts(
    out: Path,
    *,
    drafts: Sequence[Path],
    take: Sequence[int],
    inputs: ComposeInputs,
    rules: Rules,
    method: str,
    seed: int,
    max_uses: int | None = None,
) -> ComposeResult:
    """Compose the first `take[i]` drafts of each file, and count what was dropped.

    Writes `{out}.sequences.arrow`, or `{out}.{i:05d}.sequences.arrow` where there are several files. With `max_uses`, a
    chunk is a negative in at most this many sequences, so one task must compose all files, in order; it remembers a number
    for each chunk that served.
    """
    uses: Counter[int] = Counter()
    blocked: set[int] = set()  # the chunks that have served `max_uses` times
    kept: list[int] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, list[tuple[int, int, int]]] = {}
    longest = 0
    for number, (path, taken) in enumerate(zip(drafts, take, strict=True)):
        kept.append(0)
        file_out = f"{out}.{number:05d}" if len(drafts) > 1 else f"{out}"
        with (
            pa.ipc.open_file(pa.memory_map(str(path))) as reader,
            pa.OSFile(f"{file_out}.sequences.arrow", "wb") as sink,
            pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
        ):
            for draft, pieces in _drafts_and_pieces(reader, taken, inputs.tokens, inputs.corpus.chunks):
                spans = _compose_draft(draft, pieces, inputs, rules, seed=seed, blocked=blocked)
                if isinstance(spans, Dropped):
                    dropped[spans.reason] += 1
                    if dropped[spans.reason] <= _DROPPED_EXAMPLES:
                        metas = int((draft.column("role").values.to_numpy() == schemas.META).sum())
                        example = (pieces[0].chunk, metas or len(pieces), spans.tokens)
                        examples.setdefault(spans.reason, []).append(example)
                    longest = max(longest, spans.tokens if spans.reason in _SHORT else 0)
                    continue
                if max_uses is not None:
                    negatives = {span.chunk for span in spans if span.role == schemas.NEGATIVE}
                    uses.update(negatives)
                    blocked.update(chunk for chunk in negatives if uses[chunk] >= max_uses)
                writer.write_batch(_sequence_batch(draft, method, spans))
                kept[-1] += 1
    return ComposeResult(
        sequences=sum(kept),
        sequences_per_file=tuple(kept),
        dropped=dict(dropped),
        dropped_examples={reason: tuple(of_reason) for reason, of_reason in examples.items()},
        longest_dropped_tokens=longest,
        chunks_at_max_uses=len(blocked),
    )


def _compose_draft(
    draft: pa.RecordBatch,
    pieces: list[Piece],
    inputs: ComposeInputs,
    rules: Rules,
    *,
    seed: int,
    blocked: Container[int],
) -> list[Span] | Dropped:
    starts = np.flatnonzero(draft.column("role").values.to_numpy() == schemas.META).tolist()
    meta_chunks = [pieces[place].chunk for place in starts]
    cutter = TextCutter(inputs, meta_chunks, separator_tokens=rules.separator_tokens)
    if draft.column("layout")[0].as_py() != Layout.EXTENDED:
        return concatenate_spans(pieces, draft.column("group").values.to_pylist(), rules, cutter=cutter)
    groups = [Group(pieces[a], pieces[a + 1 : b]) for a, b in zip(starts, [*starts[1:], len(pieces)], strict=True)]
    rng = rng_for(seed, "position", draft.column("sequence_id")[0].as_py())
    return compose_spans(
        groups, rules, rng=rng, blocked=blocked, near_duplicates=_near_duplicates(draft), cutter=cutter
    )


def _near_duplicates(draft: pa.RecordBatch) -> dict[int, list[int]]:
    """Return the near-duplicates of each chunk of a draft that has any."""
    # (2n,) each: every pair in both directions, then sorted by the first chunk, so that a chunk's partners are consecutive.
    pairs = draft.column("near_duplicates").values.to_numpy().reshape(-1, 2)
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
    """Yield the first `take` drafts and their chunks; lookups are made for blocks of drafts, to bound memory."""
    block: list[pa.RecordBatch] = []
    held = 0
    for number in range(take):
        block.append(reader.get_batch(number))
        held += len(block[-1].column("chunk_id").values)
        if held >= _PIECES_HELD or number == take - 1:
            yield from zip(block, _pieces_of(block, tokens, chunks), strict=True)
            block, held = [], 0


def _pieces_of(drafts: Sequence[pa.RecordBatch], tokens: TokenStore, chunks: Sequence[Path]) -> list[list[Piece]]:
    """Return the chunks of each draft with their token counts, and whether no separator follows them.

    None follows a chunk that ends in a newline, or whose document continues in the next piece of the draft: whole documents
    are put together as they are, except for passages that decontamination removed.
    """
    # (P,) each: the pieces of all drafts of the block, one draft after the other.
    ids, scores, roles = (
        np.concatenate([draft.column(name).values.to_numpy() for draft in drafts])
        for name in ("chunk_id", "score", "role")
    )
    separator, doc_row, start, end = lookup.chunk_columns(ids, chunks, ("separator", "doc_row", "start", "end"))
    continues = (roles[:-1] == schemas.DOCUMENT) & (ids[:-1] + 1 == ids[1:])
    continues &= (doc_row[:-1] == doc_row[1:]) & (end[:-1] == start[1:])
    closed = ~separator | np.append(continues, False)
    pieces = list(map(Piece, ids.tolist(), tokens.counts(ids).tolist(), closed.tolist(), scores.tolist()))
    ends = np.cumsum([len(draft.column("chunk_id").values) for draft in drafts]).tolist()
    return [pieces[first:last] for first, last in pairwise([0, *ends])]


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
