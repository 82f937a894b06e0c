"""Thresholds: the values beyond which a warning is given.

docs/warnings.md has the measurements behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Thresholds:
    """The values beyond which a warning is given; shares unless a comment says more."""

    # Meta-documents, of all tokens. At 131,072 tokens, 0.25 % is less than one chunk of
    # 2,048 characters, so there is hardly any dependency to learn.
    min_meta_share: float = 0.0025
    # Beyond it, chunks move apart by less than their own length.
    max_meta_share: float = 0.5
    # The distance that nine in ten meta-chunks must have to the one before, over the
    # length of a sequence.
    min_distance: float = 0.01
    # Tokens after the last meta-chunk of their sequence, of all tokens.
    max_after_last: float = 0.3
    # Sequences whose last meta-chunk is short.
    max_short_last: float = 0.25
    # Negatives that are nearly identical to their meta-chunk. Tables that differ in
    # numbers have 8 to 13 %, other corpora at most 0.2 %.
    max_near_identical: float = 0.05
    # The negatives' tokens that come from one source. They must also be so many times
    # its share of the meta-documents' tokens.
    source_share: float = 0.5
    source_lift: float = 2.0
    # The tokens of a sequence: models trained from scratch rarely use longer ones.
    stand_in_tokens: int = 32_768
    # Tokens that are cut off, of those of the documents in the sequences.
    max_cut_off: float = 0.25
    # The uses of a chunk on average: up to four repetitions are nearly as good as new
    # data (arXiv 2305.16264).
    max_uses: float = 4.0
    # The uses that go to chunks used more than 16 times, of all uses.
    max_overused: float = 0.1
    # Documents that one sequence takes chunks from, of all: as the share grows, the
    # mean cosine of the negatives falls.
    max_of_corpus: float = 0.1
    # Not a share.
    min_bytes_per_token: float = 2.0
    # Documents that were filtered out as near-duplicates, of all.
    max_near_duplicates: float = 0.5
    # Documents of a source that have no keyword.
    max_without_keywords: float = 0.05
    # Documents that share no keyword with another one, of all.
    max_unshared: float = 0.4
    # Documents in the sequences that are split into several parts.
    min_in_parts: float = 0.05
    # Tokens of the rows, of those that they can hold.
    min_fill: float = 0.95
    # Chunks of a validation split that are also in the training split.
    max_in_train: float = 0.05


THRESHOLDS: Final = Thresholds()
