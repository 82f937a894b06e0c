"""Amounts: how many documents, candidates and characters a recipe needs, from its settings alone.

In:  sections of a recipe. Out: numbers that steps and `nextlong plan` share.
"""

from __future__ import annotations

import math

from nextlong.recipe.keys import Compose, Mine

# Enough for 131,072 tokens at 2,048 characters per chunk: shorter sequences reuse the same candidates.
_FEWEST_CANDIDATES = 1024
TYPICAL_CHARS_PER_TOKEN = 4.5  # of English; limits the number of neighbours, and serves plans for models
_DOCUMENT_MARGIN = 1.2
_SHORTLISTED = 2  # times the chunks of a draft; docs/search.md compares other values
# Of all chunks, in the shortlists of all meta-documents: these overlap, so less than a fifth of the chunks is embedded.
_LISTED_SHARE = 0.25
MIN_GAP_CHUNKS = 0.5  # mean chunks in compose.min_gap_tokens: auto (docs/decisions/0003-exact-fit.md)
SURE_SHARE = 0.5  # of T·E: a document of at most so many characters almost never exceeds T, in any language
TOKENIZER_BYTES = 150e6  # memory of a tokenizer and its cache
BLOCKS = 16  # tasks, so that small data sets use several cores
MOST_QUERIES = 8_192  # per task, whose neighbours take about 100 MB of memory


def draws(compose: Compose, attempt: int = 0) -> int | None:
    """Return how many documents to sample: initially a quarter more than sequences, for those that do not fit."""
    return None if compose.sequences == "all" else (compose.sequences * 5 // 4 + 8) << attempt


def candidates_of(compose: Compose, mine: Mine, *, max_chars: int) -> int:
    """Return how many candidates each meta-chunk of at most `max_chars` characters gets.

    One meta-chunk may need as many as the whole sequence has. `auto` doubles the paper's count, because most chunks are
    shorter than s, and rounds up to a power of two.
    """
    if mine.candidates != "auto":
        return mine.candidates
    return max(_FEWEST_CANDIDATES, 2 << math.ceil(math.log2(max(1.0, _draft_chunks(compose, max_chars)))))


def shortlist_chunks(compose: Compose, mine: Mine, *, chunks: float, chunk_chars: float, meta_documents: float) -> int:
    """Return the number of chunks in the shortlist of each meta-document, for a corpus of `chunks` with this mean length."""
    if mine.shortlist_chunks != "auto":
        return mine.shortlist_chunks
    drafted, fitting = _draft_chunks(compose, chunk_chars), _LISTED_SHARE * chunks / max(1.0, meta_documents)
    return math.ceil(min(_SHORTLISTED * drafted, max(drafted, fitting)))


def _draft_chunks(compose: Compose, chunk_chars: float) -> float:
    """Return the number of chunks in the draft of a sequence, for chunks with this mean length."""
    return compose.target_tokens * TYPICAL_CHARS_PER_TOKEN * compose.draft_factor / max(1.0, chunk_chars)


def sequence_limit(compose: Compose, attempt: int = 0) -> int | None:
    """Return the number of drafts: slightly more than sequences, for those that do not fit T; None for all."""
    return None if compose.sequences == "all" else (compose.sequences * 17 // 16 + 4) << attempt


def blocks(documents: float, queries: float) -> float:
    """Return the approximate number of tasks that search for `queries` of these documents, or draft or compose them."""
    return max(1.0, min(BLOCKS, documents), queries / MOST_QUERIES)


def document_chars(sequence_tokens: int, chars_per_token: float) -> float:
    """Return the characters that fill a sequence, T·E and a margin, because E is a mean; only used to find neighbours."""
    return sequence_tokens * chars_per_token * _DOCUMENT_MARGIN
