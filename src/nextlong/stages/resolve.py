"""Resolve: turn references into token ids, character offsets and names.

In:  SEQUENCES (references), TOKENS, CHUNKS, DOCUMENTS.
Out: blocks of `Resolved` sequences: flat arrays over all of a block's tokens and spans, ready for any format.

A chunk that was cut keeps its first n tokens; how many characters these are is asked of the tokenizer itself, whose
offsets stay right where a token is a part of a character or a normalizer changed the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.schemas import Resolved
from nextlong.stages import gather
from nextlong.stages.chunk import iter_chunk_texts
from nextlong.stages.tokens import TokenStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BLOCK_TOKENS = 1 << 21  # resolved at a time: 8 MB of ids


@dataclass(frozen=True)
class Corpus:
    """Where the text lies: DOCUMENTS and CHUNKS, one file a shard, in shard order."""

    documents: tuple[Path, ...]
    chunks: tuple[Path, ...]

    def texts(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the text of each chunk, shape (n,)."""

        def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[np.object_]]:
            texts = [
                text
                for batch in iter_chunk_texts(self.documents[shard], self.chunks[shard], rows)
                for text in batch.texts
            ]
            column = np.empty(len(texts), object)
            column[:] = texts
            return [column]

        return gather.by_shard(chunk_ids, load)[0]


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of what stands between chunks."""

    joint: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def by_role(self) -> dict[int, NDArray[np.int32]]:
        """Return the ids of each role that is no chunk."""
        named = {schemas.JOINT: self.joint, schemas.BOS: self.bos, schemas.EOS: self.eos}
        return {role: np.array(ids, np.int32) for role, ids in named.items()}

    def copy_into(
        self, target: NDArray[Any], *, roles: NDArray[np.int8], at: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[at[j]:]`; spans of chunks are passed over."""
        for role, ids in self.by_role().items():
            own = np.flatnonzero(roles == role)
            for number, token in enumerate(ids):
                target[at[own[lengths[own] > number]] + number] = token


def resolve(
    sequences: Path,
    *,
    first: int = 0,
    take: int | None,
    corpus: Corpus,
    tokens: TokenStore,
    special: SpecialIds,
    tokenizer: Tokenizer,
) -> Iterator[Resolved]:
    """Yield the sequences [first, take) of a SEQUENCES file in blocks of about two million tokens."""
    with pa.ipc.open_file(pa.memory_map(str(sequences))) as reader:
        last = reader.num_record_batches if take is None else take
        block: list[pa.RecordBatch] = []
        held = 0
        for number in range(first, last):
            block.append(reader.get_batch(number))
            held += block[-1].column("token_end").values[-1].as_py()
            if held >= _BLOCK_TOKENS or number == last - 1:
                yield _resolve_block(pa.Table.from_batches(block), corpus, tokens, special, tokenizer)
                block, held = [], 0


def _resolve_block(
    table: pa.Table, corpus: Corpus, tokens: TokenStore, special: SpecialIds, tokenizer: Tokenizer
) -> Resolved:
    lists = {name: table.column(name).combine_chunks() for name in table.column_names[2:]}
    span_offsets = lists["role"].offsets.to_numpy().astype(np.int64)
    chunk_ids, roles, groups, starts, ends, scores = (
        lists[name].values.to_numpy() for name in ("chunk_id", "role", "group", "token_start", "token_end", "score")
    )
    token_offsets = np.concatenate([[0], np.cumsum(ends[span_offsets[1:] - 1].astype(np.int64))])
    at = starts + np.repeat(token_offsets[:-1], np.diff(span_offsets))
    is_chunk = chunk_ids != schemas.NO_CHUNK
    input_ids = np.empty(token_offsets[-1], np.int32)
    chunk_starts, chunk_stops = tokens.bounds(chunk_ids[is_chunk])
    lengths = (ends - starts).astype(np.int64)
    tokens.copy_into(
        input_ids, chunk_ids=chunk_ids[is_chunk], starts=chunk_starts, at=at[is_chunk], lengths=lengths[is_chunk]
    )
    special.copy_into(input_ids, roles=roles, at=at, lengths=lengths)
    spans = _locate(chunk_ids, is_chunk, lengths, chunk_stops - chunk_starts, corpus, tokenizer)
    return Resolved(
        table.column("sequence_id").to_pylist(),
        table.column("method").to_pylist(),
        _domains(roles, spans[0], span_offsets, corpus),
        token_offsets,
        input_ids,
        np.arange(table.num_rows + 1),
        np.diff(token_offsets).astype(np.int32),
        span_offsets,
        chunk_ids,
        *spans,
        roles,
        groups,
        starts,
        ends,
        scores,
    )


def _locate(
    chunk_ids: NDArray[np.int64],
    is_chunk: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    full_lengths: NDArray[np.int64],
    corpus: Corpus,
    tokenizer: Tokenizer,
) -> tuple[NDArray[np.int64], NDArray[np.object_], NDArray[np.int64], NDArray[np.int64]]:
    """Return doc_ids, source_ids, char_starts and char_ends of every span, shape (P,) each."""
    ids = chunk_ids[is_chunk]
    doc_rows, start, end = gather.chunk_columns(ids, corpus.chunks, ("doc_row", "start", "end"))
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    cut = np.flatnonzero(lengths[is_chunk] < full_lengths)
    if len(cut):
        texts = corpus.texts(ids[cut])
        for place, text in zip(cut.tolist(), texts.tolist(), strict=True):
            end[place] = start[place] + _chars_of(text, int(lengths[is_chunk][place]), tokenizer)
    doc_ids, char_starts, char_ends = (np.full(len(chunk_ids), -1, np.int64) for _ in range(3))
    source_ids = np.full(len(chunk_ids), "", object)
    doc_ids[is_chunk], char_starts[is_chunk], char_ends[is_chunk] = docs, start, end
    source_ids[is_chunk] = gather.source_ids(docs, corpus.documents)
    return doc_ids, source_ids, char_starts, char_ends


def _domains(
    roles: NDArray[np.int8], doc_ids: NDArray[np.int64], span_offsets: NDArray[np.int64], corpus: Corpus
) -> list[str]:
    """Return the source of each sequence's meta-document, or of its first document."""
    firsts = span_offsets[:-1]
    chunks = np.flatnonzero(doc_ids >= 0)
    leading = np.flatnonzero(np.isin(roles, (schemas.META, schemas.DOCUMENT)))
    leaders = chunks[np.searchsorted(chunks, firsts)]  # of a sequence that was cut before its first meta-chunk
    if len(leading):
        found = leading[np.minimum(np.searchsorted(leading, firsts), len(leading) - 1)]
        leaders = np.where((found >= firsts) & (found < span_offsets[1:]), found, leaders)
    sources: list[str] = gather.document_columns(doc_ids[leaders], corpus.documents, ("source",))[0].tolist()
    return sources


def _chars_of(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    """Return how many whole characters of `text` its first `tokens` tokens cover."""
    offsets: Sequence[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
    # A character of several tokens has the same offsets in each: if it goes on behind the cut, it is not covered.
    return min(offsets[tokens - 1][1], offsets[tokens][0]) if tokens < len(offsets) else offsets[-1][1]
