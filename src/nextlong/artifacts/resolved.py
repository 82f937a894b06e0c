"""Resolved: blocks of rows, looked up; joined, sliced and packed; and the texts of their spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import DOCUMENT, NO_CHUNK

TextOf = Callable[[NDArray[np.int64]], NDArray[np.object_]]


@dataclass(frozen=True)
class Resolved:
    """A block of n rows, looked up: S tokens, P spans, D synthesised documents in all; offsets have shape (n + 1,).

    A row is one sequence, its only synthesised document, or several packed together (`packed`).
    """

    sequence_ids: list[str]
    methods: list[str]
    domains: list[str]  # the source of each sequence's meta-document or first document
    token_offsets: NDArray[np.int64]
    input_ids: NDArray[np.int32]  # (S,)
    document_offsets: NDArray[np.int64]
    document_lengths: NDArray[np.int32]  # (D,) in tokens
    span_offsets: NDArray[np.int64]
    chunk_ids: NDArray[np.int64]  # (P,) as all below; -1 for separators and special tokens
    doc_ids: NDArray[np.int64]
    source_ids: NDArray[np.object_]
    metadata: NDArray[np.object_]  # of the document, as JSON; None where the source names no metadata columns
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]
    roles: NDArray[np.int8]
    groups: NDArray[np.int32]
    token_starts: NDArray[np.int32]  # within its row
    token_ends: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.sequence_ids)


def joined(blocks: Sequence[Resolved]) -> Resolved:
    """Return the rows of several blocks as one block."""
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        offsets_of = [getattr(block, column.name) for block in blocks]
        if column.name.endswith("_offsets"):
            firsts = np.cumsum([0, *(offsets[-1] for offsets in offsets_of)])
            moved = [offsets[1:] + first for offsets, first in zip(offsets_of, firsts, strict=False)]
            columns[column.name] = np.concatenate([offsets_of[0][:1], *moved])
        else:
            columns[column.name] = (
                list(chain(*offsets_of)) if isinstance(offsets_of[0], list) else np.concatenate(offsets_of)
            )
    return Resolved(**columns)


def sliced(block: Resolved, first: int, last: int) -> Resolved:
    """Return rows [first, last) of a block; what they hold is not copied."""
    within = {}
    for name in ("token", "document", "span"):
        offsets = getattr(block, f"{name}_offsets")[first : last + 1]
        within[name] = slice(*offsets[[0, -1]].tolist())
        within[f"{name}_offsets"] = offsets - offsets[0]
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        values = getattr(block, column.name)
        if column.name in within:
            columns[column.name] = within[column.name]
        elif isinstance(values, list):
            columns[column.name] = values[first:last]
        else:
            part = {"input_ids": "token", "document_lengths": "document"}.get(column.name, "span")
            columns[column.name] = values[within[part]]
    return Resolved(**columns)


def packed(block: Resolved, row_offsets: NDArray[np.int64]) -> Resolved:
    """Return the block's rows joined to r longer ones, rows row_offsets[i] to row_offsets[i + 1] to row i, shape (r + 1,).

    Names of several are joined: ids by a blank, methods and domains, each once, by a plus sign.
    """
    groups = [slice(first, last) for first, last in pairwise(row_offsets.tolist())]
    token_offsets = block.token_offsets[row_offsets]
    moved = block.token_offsets[:-1] - np.repeat(token_offsets[:-1], np.diff(row_offsets))
    moved_spans = np.repeat(moved, np.diff(block.span_offsets)).astype(np.int32)
    return replace(
        block,
        sequence_ids=[" ".join(block.sequence_ids[group]) for group in groups],
        methods=[joined_names(block.methods[group]) for group in groups],
        domains=[joined_names(block.domains[group]) for group in groups],
        token_offsets=token_offsets,
        document_offsets=block.document_offsets[row_offsets],
        span_offsets=block.span_offsets[row_offsets],
        token_starts=block.token_starts + moved_spans,
        token_ends=block.token_ends + moved_spans,
    )


def document_starts(
    lengths: NDArray[Any], *, roles: NDArray[Any], groups: NDArray[Any], starts: NDArray[Any]
) -> NDArray[np.int64]:
    """Return where the original documents of sequences begin, in tokens from the first; an extended sequence is one document.

    `lengths` are those of the sequences; the role, group and start of each span have shape (P,). What stands between two
    documents, such as a separator, belongs to the one before; a sequence may begin with a special token.
    """
    sequence_starts = np.cumsum(lengths, dtype=np.int64) - lengths
    whole = roles == DOCUMENT
    sequences = np.searchsorted(sequence_starts, starts[whole], side="right")
    begins = (np.diff(groups[whole]) != 0) & (np.diff(sequences) == 0)
    document_starts: NDArray[np.int64] = np.union1d(sequence_starts, starts[whole][1:][begins])
    return document_starts


def of_documents(block: Resolved) -> Resolved:
    """Return the rows with the original documents of concatenations as their documents; an extended sequence stays one."""
    first_of_row = np.repeat(block.token_offsets[:-1], np.diff(block.span_offsets))
    starts = document_starts(
        block.document_lengths, roles=block.roles, groups=block.groups, starts=first_of_row + block.token_starts
    )
    return replace(
        block,
        document_offsets=np.searchsorted(starts, block.token_offsets),
        document_lengths=np.diff(starts, append=block.token_offsets[-1]).astype(np.int32),
    )


def joined_names(names: Sequence[str]) -> str:
    """Return the names of several sequences, each once, as that of the row that they share."""
    return "+".join(dict.fromkeys(names))


def span_texts(
    block: Resolved, places: slice | NDArray[np.int64] = slice(None), *, text_of: TextOf, special_text: dict[int, str]
) -> list[str]:
    """Return the text of the spans at `places`: a chunk's, up to the cut, or that of a separator or special token."""
    chunk_ids = block.chunk_ids[places]
    is_chunk = chunk_ids != NO_CHUNK
    chunk_texts = iter(text_of(chunk_ids[is_chunk]).tolist())
    sizes = (block.char_ends[places] - block.char_starts[places]).tolist()
    return [
        next(chunk_texts)[:size] if chunk else special_text[role]
        for chunk, size, role in zip(is_chunk.tolist(), sizes, block.roles[places].tolist(), strict=True)
    ]
