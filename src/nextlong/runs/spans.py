"""Spans: the SEQUENCES of a run as flat arrays, and what is counted in them.

In:  SEQUENCES files; CHUNKS, for the document of each chunk. Out: blocks of spans; `Counting`, the sums over all blocks, made of
`Tally`, counts of integers with their mean and quantiles.

Only extended sequences have meta-chunks, whose distance they stretch, and negatives; the others are documents as they were,
or their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import CorpusFiles
from nextlong.artifacts.resolve import document_starts

CHUNK_ROLES = (
    schemas.META,
    schemas.NEGATIVE,
    schemas.DOCUMENT,
)  # of spans that hold a document's text
ABOUT_ROLES = (
    schemas.META,
    schemas.DOCUMENT,
)  # … of documents that a sequence is about
_BLOCK_SPANS = 1 << 18  # read at a time
_PENDING = 1 << 20  # integers that a tally holds back, at least, before they are merged
COSINE_UNIT: Final = 1e-4  # quantiles of cosines are exact to half of this
NEAR_IDENTICAL_COSINE: Final = 0.95  # docs/warnings.md has what corpora show


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
        return Block._make(column[has_role] for column in self)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each span."""
        return self.ends - self.starts


def read_blocks(
    path: Path, take: int, corpus: CorpusFiles, *, first: int = 0
) -> Iterator[Block]:
    """Yield the sequences [first, take) of a SEQUENCES file."""
    reader = _reader(lookup.file_version(path))
    batches: list[pa.RecordBatch] = []
    held = 0
    for number in range(first, take):
        batches.append(reader.get_batch(number))
        held += len(batches[-1].column("role").values)
        if held >= _BLOCK_SPANS or number == take - 1:
            table = pa.Table.from_batches(batches)
            lists = {
                name: table.column(name).combine_chunks()
                for name in schemas.SPAN_COLUMNS
            }
            # Each column is a list per sequence: `sizes` (sequences,) spans in each, and the spans of all, one after the other.
            sizes = np.diff(lists["role"].offsets.to_numpy())
            chunk_ids, roles = (
                lists[name].values.to_numpy() for name in ("chunk_id", "role")
            )
            is_chunk = chunk_ids != schemas.NO_CHUNK
            doc_ids = np.full(len(chunk_ids), schemas.NO_CHUNK, np.int64)
            doc_ids[is_chunk] = lookup.documents_of(chunk_ids[is_chunk], corpus.chunks)
            names = ("group", "token_start", "token_end")
            groups, starts, ends = (
                lists[name].values.to_numpy().astype(np.int64) for name in names
            )
            # Vectors are kept in half precision, so that the cosine of a text to itself comes out as 1.0001.
            scores = lists["score"].values.to_numpy().astype(np.float64).clip(-1, 1)
            sequence = np.repeat(np.arange(len(sizes)), sizes)
            yield Block(
                sequence, chunk_ids, doc_ids, roles, groups, starts, ends, scores
            )
            batches, held = [], 0


# A file has a batch for each sequence, so opening one of a million takes milliseconds. Pages of a memory map would count as
# memory of the process once they were read.
@lru_cache(maxsize=1)
def _reader(file: lookup.FileVersion) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(
        pa.OSFile(str(file.path)), options=pa.ipc.IpcReadOptions(use_threads=False)
    )


@dataclass(frozen=True)
class Spread:
    """A distribution in six numbers. The quantiles are values that occurred: at least that share is no larger."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class Bin:
    """`count` values lay between `least` and `most`, both included."""

    least: float
    most: float
    count: int


class Tally:
    """How often each integer occurred, in any order; memory is that of the distinct values."""

    def __init__(self) -> None:
        self._values, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._held = 0

    def add(
        self, values: NDArray[np.int64], counts: NDArray[np.int64] | None = None
    ) -> None:
        """Count each of `values`, shape (n,), once, or `counts` (n,) times."""
        self._pending.append(
            (values, np.ones(len(values), np.int64) if counts is None else counts)
        )
        self._held += len(values)
        if self._held > max(_PENDING, len(self._values)):
            self._merge()

    def counted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct values, sorted, and how often each was counted, shape (d,) each."""
        self._merge()
        return self._values, self._counts

    def spread(self, *, unit: float = 1.0) -> Spread | None:
        """Return the distribution of the values times `unit`; None if nothing was counted."""
        values, counts = self.counted()
        total = int(counts.sum())
        if not total:
            return None
        # (d,) how many of what was counted are at most each value. Shares are counted in whole numbers, without rounding.
        upto = np.cumsum(counts)
        p10, p50, p90 = (
            values[np.searchsorted(upto, -(-percent * total // 100))] * unit
            for percent in (10, 50, 90)
        )
        mean = float(values @ counts) / total * unit
        return Spread(
            total, mean, float(p10), float(p50), float(p90), float(values[-1] * unit)
        )

    def histogram(
        self, *, edges: NDArray[np.int64], unit: float = 1.0
    ) -> tuple[Bin, ...]:
        """Return the values times `unit` by bins, the k-th of which begins at edges[k] and ends before edges[k + 1].

        Empty bins before the first value and behind the last are left out. Values outside of the edges are not counted.
        """
        values, counts = self.counted()
        # (d,) the bin of each distinct value; −1, or the last edge's number, lies outside.
        place = np.searchsorted(edges, values, side="right") - 1
        inside = (place >= 0) & (place < len(edges) - 1)
        sums = np.bincount(
            place[inside], weights=counts[inside], minlength=len(edges) - 1
        ).astype(np.int64)
        (filled,) = np.nonzero(sums)
        shown = range(filled[0], filled[-1] + 1) if len(filled) else range(0)
        return tuple(
            Bin(float(edges[k] * unit), float((edges[k + 1] - 1) * unit), int(sums[k]))
            for k in shown
        )

    def _merge(self) -> None:
        values, counts = zip((self._values, self._counts), *self._pending, strict=True)
        self._values, back = np.unique(np.concatenate(values), return_inverse=True)
        self._counts = np.zeros(len(self._values), np.int64)
        np.add.at(self._counts, back, np.concatenate(counts))
        self._pending, self._held = [], 0


class Counting:
    """What is counted in all blocks so far; cosines in units of COSINE_UNIT."""

    def __init__(self) -> None:
        self.document_lengths: list[
            NDArray[np.int64]
        ] = []  # of each sequence, in tokens, for the masks of attention
        self.cosines, self.cosines_of_document, self.scores_of_document = (
            Tally(),
            Tally(),
            Tally(),
        )
        self.rank_sums, self.rank_counts = (
            np.zeros(1),
            np.zeros(1, np.int64),
        )  # (ranks + 1,) by rank, from 1
        self.gaps, self.uses, self.documents, self.taken = (
            Tally(),
            Tally(),
            Tally(),
            Tally(),
        )
        self.chunk_tokens, self.tokens_of_document, self.negative_tokens_of_document = (
            Tally(),
            Tally(),
            Tally(),
        )
        self.role_tokens = np.zeros(len(schemas.ROLES), np.int64)
        self.near_identical: list[
            NDArray[np.int64]
        ] = []  # of each block (sequences,) the negatives that are so
        self.negatives = self.own_document = self.repeated = self.in_parts = (
            self.in_sequences
        ) = 0
        self.meta_chunks = Tally()  # of each sequence that has any
        self.tokens_after_last = 0  # meta-chunk
        self.last_chunk_tokens = Tally()  # of the last meta-chunk of each sequence

    @property
    def nearly_identical(self) -> tuple[int, float, int | None, int]:
        """The negatives that are nearly identical to their meta-chunk, their share, and which sequence has the most."""
        near = np.concatenate(self.near_identical)
        count, most = int(near.sum()), int(near.max())
        return count, count / self.negatives, int(near.argmax()) if most else None, most

    def add(self, block: Block) -> None:
        """Count the sequences of a block."""
        meta_spans, negatives, documents = map(
            block.of, (schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)
        )
        chunks, sequences = block.of(*CHUNK_ROLES), int(block.sequence[-1]) + 1
        groups = (
            documents.sequence << 32 | documents.groups
        )  # the documents of a sequence are its groups
        # The first span of each part of a document: the documents of a sequence may alternate.
        begins_part = np.diff(groups, prepend=groups[:1] - 1) != 0
        parts = np.flatnonzero(begins_part)

        # Rank, from 1, and cosine of each negative, and of each part of a document but the sequence's first, that has one,
        # with the meta-document of the negative, or the document itself.
        in_group = _run_places(negatives.sequence << 32 | negatives.groups) + 1
        ranks = np.concatenate([in_group, _run_places(documents.sequence[parts])])
        scores = np.concatenate([negatives.scores, documents.scores[parts]])
        meta_documents = np.full(sequences, schemas.NO_CHUNK)
        meta_documents[meta_spans.sequence] = meta_spans.doc_ids
        owners = np.concatenate(
            [meta_documents[negatives.sequence], documents.doc_ids[parts]]
        )
        known = np.isfinite(scores) & (ranks > 0)
        ranks, scores, owners = ranks[known], scores[known], owners[known]
        cosines = np.rint(scores / COSINE_UNIT).astype(np.int64)
        self.cosines.add(cosines)
        self.cosines_of_document.add(owners, cosines)
        self.scores_of_document.add(owners)
        if (more := int(ranks.max(initial=0)) + 1 - len(self.rank_sums)) > 0:
            self.rank_sums, self.rank_counts = (
                np.pad(self.rank_sums, (0, more)),
                np.pad(self.rank_counts, (0, more)),
            )
        self.rank_sums += np.bincount(
            ranks, weights=scores, minlength=len(self.rank_sums)
        )
        self.rank_counts += np.bincount(ranks, minlength=len(self.rank_counts))

        # Tokens between consecutive meta-chunks, by sequence, then by position; a difference across the border of two
        # sequences is no distance. The same between the spans of a document, where a new part begins: inside a part there is
        # a separator at most.
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        gaps = meta_spans.starts[order][1:] - meta_spans.ends[order][:-1]
        self.gaps.add(gaps[np.diff(meta_spans.sequence[order]) == 0])
        order = np.lexsort((documents.starts, groups))
        gaps = documents.starts[order][1:] - documents.ends[order][:-1]
        self.gaps.add(gaps[(np.diff(groups[order]) == 0) & begins_part[order][1:]])

        lengths = block.ends[np.flatnonzero(np.diff(block.sequence, append=-1))]
        self._count_meta_chunks(meta_spans, lengths)

        _, firsts, parts_of_document = np.unique(
            groups[parts], return_index=True, return_counts=True
        )
        self.taken.add(documents.doc_ids[parts[firsts]])
        self.in_parts += int((parts_of_document > 1).sum())
        self.in_sequences += len(firsts)
        # (P,) a number for each document, and for each chunk, of each sequence.
        ordinals = (
            np.unique(ids, return_inverse=True)[1]
            for ids in (chunks.doc_ids, chunks.chunk_ids)
        )
        doc_keys, chunk_keys = (chunks.sequence << 32 | ordinal for ordinal in ordinals)
        of_negatives, of_meta_spans = (
            doc_keys[chunks.roles == role] for role in (schemas.NEGATIVE, schemas.META)
        )
        self.own_document += int(np.isin(of_negatives, of_meta_spans).sum())
        self.repeated += len(chunk_keys) - len(np.unique(chunk_keys))
        self.documents.add(np.bincount(np.unique(doc_keys) >> 32, minlength=sequences))
        self.uses.add(block.of(schemas.NEGATIVE, schemas.DOCUMENT).chunk_ids)
        self.chunk_tokens.add(chunks.lengths)
        self.tokens_of_document.add(chunks.doc_ids, chunks.lengths)
        self.negative_tokens_of_document.add(negatives.doc_ids, negatives.lengths)
        np.add.at(self.role_tokens, block.roles, block.lengths)

        near = negatives.sequence[negatives.scores >= NEAR_IDENTICAL_COSINE]
        self.near_identical.append(np.bincount(near, minlength=sequences))
        self.negatives += len(negatives.roles)

        # (sequences,) the end of each one's last span, and where each would start if they stood one after the other, as
        # `document_starts` takes them. An extended sequence counts as one document.
        firsts = np.cumsum(lengths) - lengths
        of_spans = firsts[block.sequence] + block.starts
        starts = document_starts(
            lengths, roles=block.roles, groups=block.groups, starts=of_spans
        )
        self.document_lengths += np.split(
            np.diff(starts, append=lengths.sum()), np.searchsorted(starts, firsts[1:])
        )

    def _count_meta_chunks(self, meta_spans: Block, lengths: NDArray[np.int64]) -> None:
        """Count the meta-chunks of sequences of the given `lengths`, shape (sequences,), and the tokens after the last."""
        # (m,) the last meta-chunk of each sequence that has one.
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        sequences = meta_spans.sequence[order]
        last = order[np.flatnonzero(np.diff(sequences, append=-1))]
        counts = np.bincount(sequences, minlength=len(lengths))
        self.meta_chunks.add(counts[counts > 0])
        after_last = lengths[meta_spans.sequence[last]] - meta_spans.ends[last]
        self.tokens_after_last += int(after_last.sum())
        self.last_chunk_tokens.add(meta_spans.lengths[last])


def _run_places(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each element its place, from 0, in its run of equal keys."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    return np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))
