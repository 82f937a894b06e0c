"""Thresholds: the values beyond which a warning is given.

docs/warnings.md has the measurements behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Thresholds:
    """The values beyond which a warning is given; shares unless a comment says more."""

    min_meta_share: float = 0.0025
    max_meta_share: float = 0.5
    # Of a sequence, for nine in ten of the distances between meta-chunks.
    min_distance: float = 0.01
    max_after_last: float = 0.3  # of the tokens, after the last meta-chunk
    max_short_last: float = 0.25  # of the sequences, whose last meta-chunk is short
    max_near_identical: float = 0.05
    # Of the negatives' tokens from one source, and this many times its share of the
    # meta-documents' tokens.
    source_share: float = 0.5
    source_lift: float = 2.0
    stand_in_tokens: int = 32_768
    max_cut_off: float = 0.25  # of the tokens of the documents that are taken
    max_uses: float = 4.0  # of a chunk, on average
    max_overused: float = 0.1
    max_of_corpus: float = 0.1  # documents that one sequence takes chunks from, of all
    min_bytes_per_token: float = 2.0
    max_near_duplicates: float = 0.5  # of all documents
    max_without_keywords: float = 0.05  # of a source's documents
    max_unshared: float = 0.4  # of all documents, without a keyword of another one
    min_in_parts: float = 0.05  # of the documents in the sequences
    min_fill: float = 0.95  # of packed rows
    max_in_train: float = 0.05  # of the chunks of validation


THRESHOLDS: Final = Thresholds()
