"""Spans: the SEQUENCES of a run as flat arrays, and what is counted in them.

In:  SEQUENCES files; CHUNKS, for the document of each chunk. Out: blocks of spans; ranks, distances, leaks of a block.

Only extended sequences have meta-chunks, whose distance they stretch, and negatives; the others are documents as they were,
or their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import CorpusFiles

CHUNK_ROLES = (schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)  # of spans that hold a document's text
ABOUT_ROLES = (schemas.META, schemas.DOCUMENT)  # … of documents that a sequence is about
_BLOCK_SPANS = 1 << 18  # read at a time


class Block(NamedTuple):
    """The spans of some sequences, one after the other; all arrays have shape (P,)."""

    sequence: NDArray[np.int64]  # its number within the block
    chunk_ids: NDArray[np.int64]
    doc_ids: NDArray[np.int64]  # -1 for separators and special tokens, as chunk_ids
    roles: NDArray[np.int8]
    groups: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    scores: NDArray[np.float64]

    def of(self, *roles: int) -> Block:
        """Return the spans of the given roles."""
        has_role = np.isin(self.roles, roles)
        kept: list[Any] = [column[has_role] for column in self]
        return Block(*kept)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each span."""
        return self.ends - self.starts

    @property
    def group_keys(self) -> NDArray[np.int64]:
        """A number for each group of each sequence."""
        return self.sequence << 32 | self.groups


def read_blocks(path: Path, take: int, corpus: CorpusFiles, *, first: int = 0) -> Iterator[Block]:
    """Yield the sequences [first, take) of a SEQUENCES file."""
    reader = _reader(lookup.file_version(path))
    batches: list[pa.RecordBatch] = []
    held = 0
    for number in range(first, take):
        batches.append(reader.get_batch(number))
        held += len(batches[-1].column("role").values)
        if held >= _BLOCK_SPANS or number == take - 1:
            yield _block(pa.Table.from_batches(batches), corpus)
            batches, held = [], 0


# A file has a batch for each sequence, so opening one of a million takes milliseconds. Pages of a memory map would count as
# memory of the process once they were read.
@lru_cache(maxsize=1)
def _reader(file: lookup.FileVersion) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(pa.OSFile(str(file.path)), options=pa.ipc.IpcReadOptions(use_threads=False))


def _block(table: pa.Table, corpus: CorpusFiles) -> Block:
    lists = {name: table.column(name).combine_chunks() for name in schemas.SPAN_COLUMNS}
    # Each column is a list per sequence: `sizes` (sequences,) spans in each, and the spans of all, one after the other.
    sizes = np.diff(lists["role"].offsets.to_numpy())
    chunk_ids = lists["chunk_id"].values.to_numpy()
    is_chunk = chunk_ids != schemas.NO_CHUNK
    doc_ids = np.full(len(chunk_ids), schemas.NO_CHUNK, np.int64)
    (doc_rows,) = lookup.chunk_columns(chunk_ids[is_chunk], corpus.chunks, ("doc_row",))
    # A document's id is packed as a chunk's: the shard's number, which both share, above the row.
    doc_ids[is_chunk] = schemas.shard_of(chunk_ids[is_chunk]) << schemas.SHARD_BITS | doc_rows
    groups, starts, ends = (
        lists[name].values.to_numpy().astype(np.int64) for name in ("group", "token_start", "token_end")
    )
    # Vectors are kept in half precision, so that the cosine of a text to itself comes out as 1.0001.
    scores = lists["score"].values.to_numpy().astype(np.float64).clip(-1, 1)
    roles = lists["role"].values.to_numpy()
    return Block(np.repeat(np.arange(len(sizes)), sizes), chunk_ids, doc_ids, roles, groups, starts, ends, scores)


def ranked_scores(block: Block) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return rank, from 1, cosine and doc_id of each negative, and of each document but its sequence's first, that has one.

    The doc_id is that of the meta-document of a negative, and of the document itself.
    """
    negatives, documents, meta_spans = (block.of(role) for role in (schemas.NEGATIVE, schemas.DOCUMENT, schemas.META))
    # The first span of each document or part; the first of a sequence has rank 0 and is left out below.
    firsts = np.flatnonzero(_run_places(documents.group_keys) == 0)
    ranks = np.concatenate([_run_places(negatives.group_keys) + 1, _run_places(documents.sequence[firsts])])
    scores = np.concatenate([negatives.scores, documents.scores[firsts]])
    meta_documents = np.full(int(block.sequence[-1]) + 1, schemas.NO_CHUNK)  # (sequences,)
    meta_documents[meta_spans.sequence] = meta_spans.doc_ids
    owners = np.concatenate([meta_documents[negatives.sequence], documents.doc_ids[firsts]])
    known = np.isfinite(scores) & (ranks > 0)
    return ranks[known], scores[known], owners[known]


def distances(block: Block) -> NDArray[np.int64]:
    """Return the tokens between each two consecutive meta-chunks, and parts of a document with others in between."""
    meta_spans = block.of(schemas.META)
    # By sequence, then by position; a difference across the border of two sequences is no distance and is left out.
    order = np.lexsort((meta_spans.starts, meta_spans.sequence))
    gaps = meta_spans.starts[order][1:] - meta_spans.ends[order][:-1]
    of_meta_chunks = gaps[np.diff(meta_spans.sequence[order]) == 0]
    documents = block.of(schemas.DOCUMENT)
    owner = documents.group_keys  # the documents of a sequence are its groups
    begins_part = np.diff(owner, prepend=owner[:1] - 1) != 0
    order = np.lexsort((documents.starts, owner))
    # Between consecutive spans of one document. Inside a part that is a separator at most; gaps before a new part are kept.
    gaps = documents.starts[order][1:] - documents.ends[order][:-1]
    return np.concatenate([of_meta_chunks, gaps[(np.diff(owner[order]) == 0) & begins_part[order][1:]]])


def _run_places(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each element its place, from 0, in its run of equal keys."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    sizes = np.diff(begins, append=len(keys))
    places: NDArray[np.int64] = np.arange(len(keys)) - np.repeat(begins, sizes)
    return places


def own_document_negatives(block: Block) -> int:
    """Return how many negatives come from the meta-document of their sequence."""
    meta_spans, negatives = block.of(schemas.META), block.of(schemas.NEGATIVE)
    keys = _pair_keys(
        np.concatenate([meta_spans.sequence, negatives.sequence]),
        np.concatenate([meta_spans.doc_ids, negatives.doc_ids]),
    )
    # The keys of both kinds of spans come from one call, which numbers the documents densely.
    return int(np.isin(keys[len(meta_spans.roles) :], keys[: len(meta_spans.roles)]).sum())


def repeated_chunks(block: Block) -> int:
    """Return how many spans hold a chunk that an earlier span of their sequence holds too."""
    spans = block.of(schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)
    return len(spans.roles) - len(np.unique(_pair_keys(spans.sequence, spans.chunk_ids)))


def documents_per_sequence(block: Block) -> NDArray[np.int64]:
    """Return how many documents each sequence takes chunks from, shape (sequences,)."""
    spans = block.of(schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)
    _, firsts = np.unique(_pair_keys(spans.sequence, spans.doc_ids), return_index=True)
    counts: NDArray[np.int64] = np.bincount(spans.sequence[firsts], minlength=int(block.sequence[-1]) + 1)
    return counts


def documents_taken(block: Block) -> NDArray[np.int64]:
    """Return the id of each document that a sequence is made of, once for each sequence."""
    documents = block.of(schemas.DOCUMENT)
    _, firsts = np.unique(documents.group_keys, return_index=True)
    return documents.doc_ids[firsts]


def documents_in_parts(block: Block) -> tuple[int, int]:
    """Return how many of the documents of the sequences stand in parts, with others between, and how many documents there are."""
    owner = block.of(schemas.DOCUMENT).group_keys
    # Where the document changes, a part begins: how many parts each document of each sequence has.
    parts = np.unique(owner[np.diff(owner, prepend=owner[:1] - 1) != 0], return_counts=True)[1]
    return int((parts > 1).sum()), len(parts)


def _pair_keys(sequence: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    _, dense = np.unique(ids, return_inverse=True)  # ids have up to 63 bits; their ranks fit into the lower 32
    return sequence << 32 | dense
