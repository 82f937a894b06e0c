"""Counting: what is counted in the spans of all sequences of a run.

In:  blocks of spans. Out: `Counting`, the sums over all blocks.

Only extended sequences have meta-chunks, whose distance they stretch, and negatives;
the others are documents as they were, or their parts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.blocks import document_starts
from nextlong.runs.statistics.spans import CHUNK_ROLES, Block
from nextlong.runs.statistics.tally import Tally

COSINE_UNIT: Final = 1e-4  # quantiles of cosines are exact to half of this
NEAR_IDENTICAL_COSINE: Final = 0.95  # docs/warnings.md has what corpora show


class Counting:
    """What is counted in all blocks so far; cosines in units of COSINE_UNIT."""

    def __init__(self) -> None:
        # Cosines of negatives to their meta-chunks, or of documents to the one before.
        self.cosines = Tally()
        # By doc_id of the meta-document (or the document): sum and number of cosines.
        self.cosines_of_document = Tally()
        self.scores_of_document = Tally()
        # (ranks + 1,) by rank, from 1.
        self.rank_sums = np.zeros(1)
        self.rank_counts = np.zeros(1, np.int64)

        # Tokens between the parts of a document, and uses of chunks.
        self.gaps = Tally()
        self.uses = Tally()
        self.chunk_tokens = Tally()
        self.repeated = 0

        # Documents of a sequence, by doc_id or as numbers.
        self.documents = Tally()
        self.taken = Tally()
        self.in_sequences = 0
        self.in_parts = 0

        self.role_tokens = np.zeros(len(schemas.ROLES), np.int64)
        self.tokens_of_document = Tally()
        self.negative_tokens_of_document = Tally()

        self.negatives = 0
        self.own_document = 0
        # Of each block (sequences,) its nearly identical negatives.
        self.near_identical: list[NDArray[np.int64]] = []

        # Meta-chunks of each sequence that has any, and what follows the last of them.
        self.meta_chunks = Tally()
        self.tokens_after_last = 0
        self.last_chunk_tokens = Tally()

        # Of each sequence, in tokens, for the masks of attention.
        self.document_lengths: list[NDArray[np.int64]] = []

    def add(self, block: Block) -> None:
        """Count the sequences of a block."""
        meta_spans = block.of(schemas.META)
        negatives = block.of(schemas.NEGATIVE)
        documents = block.of(schemas.DOCUMENT)
        num_sequences = int(block.sequence[-1]) + 1
        # (sequences,) tokens of each: the end of its last span.
        is_last = np.diff(block.sequence, append=-1) != 0
        lengths = block.ends[is_last]

        # (P,) a number for each document of each sequence: its group there. The
        # documents of a sequence may alternate, so one of them may have several parts.
        # One integer holds both, so that runs and distinct pairs are found at once.
        groups = documents.sequence << 32 | documents.groups
        begins_part = np.diff(groups, prepend=groups[:1] - 1) != 0
        parts = np.flatnonzero(begins_part)

        self._count_cosines(
            meta_spans=meta_spans,
            negatives=negatives,
            documents=documents,
            parts=parts,
            num_sequences=num_sequences,
        )
        self._count_gaps(meta_spans, documents, groups, begins_part)
        self._count_meta_chunks(meta_spans, lengths)
        self._count_parts(documents, groups, parts)
        self._count_chunks(block)
        self._count_negatives(negatives, num_sequences)
        self._count_documents_of_masks(block, lengths)

    def _count_cosines(
        self,
        *,
        meta_spans: Block,
        negatives: Block,
        documents: Block,
        parts: NDArray[np.int64],
        num_sequences: int,
    ) -> None:
        """Count the cosines of negatives and of documents, whose parts begin at `parts`.

        A negative has its rank, from 1, beside its meta-chunk, and counts for its
        meta-document. A part of a document has its rank behind the sequence's first,
        which has rank 0 and no cosine, and counts for itself.
        """
        gaps = negatives.sequence << 32 | negatives.groups
        negative_ranks = _positions_in_run(gaps) + 1
        document_ranks = _positions_in_run(documents.sequence[parts])
        ranks = np.concatenate([negative_ranks, document_ranks])
        scores = np.concatenate([negatives.scores, documents.scores[parts]])
        # (sequences,) the meta-document of each; its chunks all name the same one.
        meta_documents = np.full(num_sequences, schemas.NO_CHUNK)
        meta_documents[meta_spans.sequence] = meta_spans.doc_ids
        owners = np.concatenate(
            [meta_documents[negatives.sequence], documents.doc_ids[parts]]
        )

        # A document that was not found by search has no cosine.
        is_known = np.isfinite(scores) & (ranks > 0)
        ranks = ranks[is_known]
        scores = scores[is_known]
        owners = owners[is_known]
        cosines = np.rint(scores / COSINE_UNIT).astype(np.int64)
        self.cosines.add(cosines)
        self.cosines_of_document.add(owners, cosines)
        self.scores_of_document.add(owners)

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
        groups: NDArray[np.int64],
        begins_part: NDArray[np.bool_],
    ) -> None:
        """Count the tokens between consecutive chunks of a document of a sequence."""
        # Meta-chunks by sequence, then by position. A difference across the border of
        # two sequences is no distance.
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        gaps = meta_spans.starts[order][1:] - meta_spans.ends[order][:-1]
        is_in_sequence = np.diff(meta_spans.sequence[order]) == 0
        self.gaps.add(gaps[is_in_sequence])

        # The same between the spans of a document, where a new part begins: inside a
        # part there is a separator at most.
        order = np.lexsort((documents.starts, groups))
        gaps = documents.starts[order][1:] - documents.ends[order][:-1]
        is_in_document = np.diff(groups[order]) == 0
        self.gaps.add(gaps[is_in_document & begins_part[order][1:]])

    def _count_meta_chunks(self, meta_spans: Block, lengths: NDArray[np.int64]) -> None:
        """Count the meta-chunks of sequences of some `lengths`, and what follows them.

        `lengths` has shape (sequences,).
        """
        # (m,) the last meta-chunk of each sequence that has one.
        order = np.lexsort((meta_spans.starts, meta_spans.sequence))
        sequences = meta_spans.sequence[order]
        last = order[np.flatnonzero(np.diff(sequences, append=-1))]
        counts = np.bincount(sequences, minlength=len(lengths))
        self.meta_chunks.add(counts[counts > 0])
        after_last = lengths[meta_spans.sequence[last]] - meta_spans.ends[last]
        self.tokens_after_last += int(after_last.sum())
        self.last_chunk_tokens.add(meta_spans.lengths[last])

    def _count_parts(
        self, documents: Block, groups: NDArray[np.int64], parts: NDArray[np.int64]
    ) -> None:
        """Count the documents of sequences once each, and those in several parts."""
        _, firsts, parts_of_document = np.unique(
            groups[parts], return_index=True, return_counts=True
        )
        self.taken.add(documents.doc_ids[parts[firsts]])
        self.in_parts += int((parts_of_document > 1).sum())
        self.in_sequences += len(firsts)

    def _count_chunks(self, block: Block) -> None:
        """Count the chunks, their tokens, and the documents that they are from."""
        chunks = block.of(*CHUNK_ROLES)
        num_sequences = int(block.sequence[-1]) + 1
        # (P,) a number for each document, and for each chunk, of each sequence.
        _, documents = np.unique(chunks.doc_ids, return_inverse=True)
        _, distinct_chunks = np.unique(chunks.chunk_ids, return_inverse=True)
        doc_keys = chunks.sequence << 32 | documents
        chunk_keys = chunks.sequence << 32 | distinct_chunks

        documents_of_negatives = doc_keys[chunks.roles == schemas.NEGATIVE]
        documents_of_meta_spans = doc_keys[chunks.roles == schemas.META]
        is_own = np.isin(documents_of_negatives, documents_of_meta_spans)
        self.own_document += int(is_own.sum())
        self.repeated += len(chunk_keys) - len(np.unique(chunk_keys))

        sequence_of_document = np.unique(doc_keys) >> 32
        self.documents.add(np.bincount(sequence_of_document, minlength=num_sequences))
        self.uses.add(block.of(schemas.NEGATIVE, schemas.DOCUMENT).chunk_ids)
        self.chunk_tokens.add(chunks.lengths)
        self.tokens_of_document.add(chunks.doc_ids, chunks.lengths)
        np.add.at(self.role_tokens, block.roles, block.lengths)

    def _count_negatives(self, negatives: Block, num_sequences: int) -> None:
        """Count the negatives, and those nearly identical to their meta-chunk."""
        is_near = negatives.scores >= NEAR_IDENTICAL_COSINE
        near = negatives.sequence[is_near]
        self.near_identical.append(np.bincount(near, minlength=num_sequences))
        self.negatives += len(negatives.roles)
        self.negative_tokens_of_document.add(negatives.doc_ids, negatives.lengths)

    def _count_documents_of_masks(
        self, block: Block, lengths: NDArray[np.int64]
    ) -> None:
        """Keep the lengths of the documents of each sequence, for attention masks.

        `lengths` has shape (sequences,). An extended sequence counts as one document.
        """
        # `document_starts` takes positions as if the sequences stood one after the
        # other.
        firsts = np.cumsum(lengths) - lengths
        starts = document_starts(
            lengths,
            roles=block.roles,
            groups=block.groups,
            starts=firsts[block.sequence] + block.starts,
        )
        document_lengths = np.diff(starts, append=lengths.sum())
        borders = np.searchsorted(starts, firsts[1:])
        self.document_lengths += np.split(document_lengths, borders)


def _positions_in_run(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each element its position, from 0, in its run of equal keys."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    run_lengths = np.diff(begins, append=len(keys))
    return np.arange(len(keys)) - np.repeat(begins, run_lengths)
