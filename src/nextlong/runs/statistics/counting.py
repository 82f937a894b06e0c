"""Counting: what is counted in the spans of all sequences of a run.

In:  blocks of spans. Out: `Counting`, the sums over all blocks.

Extended sequences have meta-chunks and negatives, which stand between the meta-chunks;
all others have documents, whole or in parts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nextlong import schemas
from nextlong.arrays import Bools, Ints
from nextlong.artifacts.blocks import document_starts
from nextlong.runs.statistics.spans import CHUNK_ROLES, Block
from nextlong.runs.statistics.tally import Tally

# Cosines are counted as multiples of this, so their quantiles are exact to half of it.
COSINE_UNIT: Final = 1e-4
# docs/warnings.md has the shares of such negatives in some corpora.
NEAR_IDENTICAL_COSINE: Final = 0.95


class Counting:
    """What is counted in all blocks so far."""

    def __init__(self) -> None:
        # In units of COSINE_UNIT: the cosines of negatives to their meta-chunks, or of
        # documents to the one that their method compares them with.
        self.cosines = Tally()
        # By doc_id of the meta-document (or the document): the sum of its cosines, in
        # the same unit, and their number.
        self.cosine_sums_of_document = Tally()
        self.cosine_counts_of_document = Tally()
        # (ranks + 1,) by rank, from 1: the sum of the cosines, not rounded, and their
        # number.
        self.rank_sums = np.zeros(1)
        self.rank_counts = np.zeros(1, np.int64)

        # The tokens between two parts of a document.
        self.gaps = Tally()

        # By chunk_id, how often a chunk is used other than as a meta-chunk.
        self.uses = Tally()
        self.chunk_tokens = Tally()
        # Chunks that their sequence had before.
        self.repeated = 0

        # The number of documents of each sequence, those of its negatives included.
        self.documents = Tally()
        # By doc_id, how many sequences are made of a document: negatives do not count.
        self.taken = Tally()
        # The sum of `taken`, and how many of these documents are in several parts.
        self.in_sequences = 0
        self.in_parts = 0

        # (roles,) and by doc_id.
        self.role_tokens = np.zeros(len(schemas.ROLES), np.int64)
        self.tokens_of_document = Tally()
        self.negative_tokens_of_document = Tally()

        self.negatives = 0
        # Negatives that are chunks of their own meta-document.
        self.own_document = 0
        # For each block, (sequences,): how many negatives are nearly identical to their
        # meta-chunk.
        self.near_identical: list[Ints] = []

        # The number of meta-chunks of each sequence that has any.
        self.meta_chunks = Tally()
        # The tokens behind the last meta-chunks, and those of each last meta-chunk.
        self.tokens_after_last = 0
        self.last_chunk_tokens = Tally()

        # The inserted texts of tasks, by doc_id, and the sequences that have some.
        self.task_documents = Tally()
        self.task_sequences = 0
        self.contexts = 0

        # For each sequence, (documents,): the tokens of each document, which attention
        # masks separate.
        self.document_lengths: list[Ints] = []

    def add(self, block: Block) -> None:
        """Count the sequences of a block."""
        meta_spans = block.of(schemas.META)
        negatives = block.of(schemas.NEGATIVE)
        documents = block.of(schemas.DOCUMENT)
        num_sequences = int(block.sequence[-1]) + 1
        # (sequences,) tokens of each: the end of its last span.
        is_last = np.diff(block.sequence, append=-1) != 0
        lengths = block.ends[is_last]

        # (P,) one integer for each pair of a sequence and a group, which stands for a
        # document of a sequence. The documents of a sequence may alternate: each run of
        # equal keys is one part of a document.
        keys = _pair_keys(documents.sequence, documents.groups)
        begins_part = np.diff(keys, prepend=keys[:1] - 1) != 0
        parts = np.flatnonzero(begins_part)

        self._count_cosines(
            meta_spans=meta_spans,
            negatives=negatives,
            documents=documents,
            parts=parts,
            num_sequences=num_sequences,
        )
        self._count_gaps(meta_spans, documents, keys, begins_part)
        self._count_meta_chunks(meta_spans, lengths)
        self._count_parts(documents, keys, parts)
        self._count_chunks(block)
        self._count_negatives(negatives, num_sequences)
        self._count_documents_of_masks(block, lengths)
        self.contexts += int(np.count_nonzero(block.roles == schemas.CONTEXT))
        tasks = block.of(schemas.TASK)
        self.task_documents.add(tasks.doc_ids)
        self.task_sequences += len(np.unique(tasks.sequence))

    def _count_cosines(
        self,
        *,
        meta_spans: Block,
        negatives: Block,
        documents: Block,
        parts: Ints,
        num_sequences: int,
    ) -> None:
        """Count the cosines of negatives and of documents.

        `parts` are the spans at which a part of a document begins.

        The negatives of a meta-chunk have the ranks 1, 2, …, and count for their
        meta-document. The parts of documents in a sequence have the ranks 0, 1, …, and
        count for their own document; the first, of rank 0, has no cosine.
        """
        # The negatives of a meta-chunk follow each other, and share its group.
        negative_keys = _pair_keys(negatives.sequence, negatives.groups)
        negative_ranks = _positions_in_run(negative_keys) + 1
        document_ranks = _positions_in_run(documents.sequence[parts])
        ranks = np.concatenate([negative_ranks, document_ranks])
        scores = np.concatenate([negatives.scores, documents.scores[parts]])
        # (sequences,) the meta-document of each; its chunks all name the same one.
        meta_documents = np.full(num_sequences, schemas.NO_CHUNK)
        meta_documents[meta_spans.sequence] = meta_spans.doc_ids
        of_negatives = meta_documents[negatives.sequence]
        # Negatives of a sequence without meta-chunks count for their own document.
        has_none = of_negatives == schemas.NO_CHUNK
        of_negatives = np.where(has_none, negatives.doc_ids, of_negatives)
        owners = np.concatenate([of_negatives, documents.doc_ids[parts]])

        # A document that was not found by search has no cosine.
        is_known = np.isfinite(scores) & (ranks > 0)
        ranks = ranks[is_known]
        scores = scores[is_known]
        owners = owners[is_known]
        cosines = np.rint(scores / COSINE_UNIT).astype(np.int64)
        self.cosines.add(cosines)
        self.cosine_sums_of_document.add(owners, cosines)
        self.cosine_counts_of_document.add(owners)

        # Later blocks may have more ranks than the blocks before them.
        new_ranks = int(ranks.max(initial=0)) + 1 - len(self.rank_sums)
        if new_ranks > 0:
            self.rank_sums = np.pad(self.rank_sums, (0, new_ranks))
            self.rank_counts = np.pad(self.rank_counts, (0, new_ranks))
        num_ranks = len(self.rank_sums)
        self.rank_sums += np.bincount(ranks, weights=scores, minlength=num_ranks)
        self.rank_counts += np.bincount(ranks, minlength=num_ranks)

    def _count_gaps(
        self,
        meta_spans: Block,
        documents: Block,
        keys: Ints,
        begins_part: Bools,
    ) -> None:
        """Count the tokens between consecutive parts of a document of a sequence.

        Each meta-chunk is a part. `keys` and `begins_part` are those of `documents`.
        """
        # Meta-chunks by sequence, then by position. A difference across the border of
        # two sequences is no gap.
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        gaps = meta_spans.starts[order][1:] - meta_spans.ends[order][:-1]
        is_in_sequence = np.diff(meta_spans.sequence[order]) == 0
        self.gaps.add(gaps[is_in_sequence])

        # The same for the spans of documents, but only where a part begins: inside a
        # part there is a separator at most.
        order = np.lexsort((documents.starts, keys))
        gaps = documents.starts[order][1:] - documents.ends[order][:-1]
        is_in_document = np.diff(keys[order]) == 0
        self.gaps.add(gaps[is_in_document & begins_part[order][1:]])

    def _count_meta_chunks(self, meta_spans: Block, lengths: Ints) -> None:
        """Count the meta-chunks of each sequence, and the tokens behind the last one.

        `lengths` are the tokens of the sequences, shape (sequences,).
        """
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        sequences = meta_spans.sequence[order]
        # (m,) the last meta-chunk of each sequence that has one.
        last = order[np.flatnonzero(np.diff(sequences, append=-1))]
        counts = np.bincount(sequences, minlength=len(lengths))
        self.meta_chunks.add(counts[counts > 0])
        after_last = lengths[meta_spans.sequence[last]] - meta_spans.ends[last]
        self.tokens_after_last += int(after_last.sum())
        self.last_chunk_tokens.add(meta_spans.lengths[last])

    def _count_parts(self, documents: Block, keys: Ints, parts: Ints) -> None:
        """Count the documents of sequences once each, and those in several parts."""
        _, firsts, parts_of_document = np.unique(
            keys[parts], return_index=True, return_counts=True
        )
        self.taken.add(documents.doc_ids[parts[firsts]])
        self.in_parts += int((parts_of_document > 1).sum())
        self.in_sequences += len(firsts)

    def _count_chunks(self, block: Block) -> None:
        """Count the chunks, their tokens, and the documents that they are from."""
        chunks = block.of(*CHUNK_ROLES)
        num_sequences = int(block.sequence[-1]) + 1
        # (P,) one integer for each pair of a sequence and a document, and of a sequence
        # and a chunk. Ids need more than 32 bits, so they are numbered first.
        _, doc_numbers = np.unique(chunks.doc_ids, return_inverse=True)
        _, chunk_numbers = np.unique(chunks.chunk_ids, return_inverse=True)
        doc_keys = _pair_keys(chunks.sequence, doc_numbers)
        chunk_keys = _pair_keys(chunks.sequence, chunk_numbers)

        docs_of_negatives = doc_keys[chunks.roles == schemas.NEGATIVE]
        docs_of_meta_spans = doc_keys[chunks.roles == schemas.META]
        is_own = np.isin(docs_of_negatives, docs_of_meta_spans)
        self.own_document += int(is_own.sum())
        self.repeated += len(chunk_keys) - len(np.unique(chunk_keys))

        # (distinct pairs,) the sequence of each document of each sequence.
        sequence_of_document = np.unique(doc_keys) >> 32
        self.documents.add(np.bincount(sequence_of_document, minlength=num_sequences))
        is_used = chunks.roles != schemas.META
        self.uses.add(chunks.chunk_ids[is_used])
        self.chunk_tokens.add(chunks.lengths)
        self.tokens_of_document.add(chunks.doc_ids, chunks.lengths)
        np.add.at(self.role_tokens, block.roles, block.lengths)

    def _count_negatives(self, negatives: Block, num_sequences: int) -> None:
        """Count the negatives, and those nearly identical to their meta-chunk."""
        is_near = negatives.scores >= NEAR_IDENTICAL_COSINE
        sequences = negatives.sequence[is_near]
        self.near_identical.append(np.bincount(sequences, minlength=num_sequences))
        self.negatives += len(negatives.roles)
        self.negative_tokens_of_document.add(negatives.doc_ids, negatives.lengths)

    def _count_documents_of_masks(self, block: Block, lengths: Ints) -> None:
        """Keep the lengths of the documents of each sequence, for attention masks.

        `lengths` has shape (sequences,). An extended sequence counts as one document.
        """
        # `document_starts` takes positions as if the sequences stood one after the
        # other, and returns the beginnings of documents in the same way.
        sequence_starts = np.cumsum(lengths) - lengths
        starts = document_starts(
            lengths,
            roles=block.roles,
            groups=block.groups,
            starts=sequence_starts[block.sequence] + block.starts,
        )
        document_lengths = np.diff(starts, append=lengths.sum())
        borders = np.searchsorted(starts, sequence_starts[1:])
        self.document_lengths += np.split(document_lengths, borders)


def _pair_keys(sequences: Ints, numbers: Ints) -> Ints:
    """Return one integer for each pair of a sequence and a number below 2^32."""
    return (sequences << 32) | numbers


def _positions_in_run(keys: Ints) -> Ints:
    """Return for each element its position, from 0, in its run of equal keys."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    run_lengths = np.diff(begins, append=len(keys))
    return np.arange(len(keys)) - np.repeat(begins, run_lengths)
