"""Thresholds: the values beyond which a warning is given.

docs/warnings.md has the measurements behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Thresholds:
    """The values beyond which a warning is given; shares unless a comment says more."""

    # At 131,072 tokens, 0.25 % is less than one chunk of 2,048 characters, so there is
    # hardly any dependency to learn.
    min_meta_share: float = 0.0025
    # Beyond it, chunks move apart by less than their own length.
    max_meta_share: float = 0.5
    # Of a sequence, for nine in ten of the distances between meta-chunks.
    min_distance: float = 0.01
    max_after_last: float = 0.3  # of the tokens, after the last meta-chunk
    max_short_last: float = 0.25  # of the sequences, whose last meta-chunk is short
    # Tables that differ in numbers have 8 to 13 %, other corpora at most 0.2 %.
    max_near_identical: float = 0.05
    # Of the negatives' tokens from one source, and this many times its share of the
    # meta-documents' tokens.
    source_share: float = 0.5
    source_lift: float = 2.0
    # Models trained from scratch rarely use longer sequences.
    stand_in_tokens: int = 32_768
    max_cut_off: float = 0.25  # of the tokens of the documents that are taken
    # Of a chunk, on average: up to four repetitions are nearly as good as new data
    # (arXiv 2305.16264).
    max_uses: float = 4.0
    max_overused: float = 0.1
    # Documents that one sequence takes chunks from, of all: as the share grows, the mean
    # cosine of the negatives falls.
    max_of_corpus: float = 0.1
    min_bytes_per_token: float = 2.0
    max_near_duplicates: float = 0.5  # of all documents
    max_without_keywords: float = 0.05  # of a source's documents
    max_unshared: float = 0.4  # of all documents, without a keyword of another one
    min_in_parts: float = 0.05  # of the documents in the sequences
    min_fill: float = 0.95  # of packed rows
    max_in_train: float = 0.05  # of the chunks of validation


THRESHOLDS: Final = Thresholds()
