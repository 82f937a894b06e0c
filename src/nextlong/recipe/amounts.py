"""Amounts: how many documents, neighbours and characters a recipe asks for; and what each step of it has to do."""

from __future__ import annotations

import math

from nextlong.recipe.keys import Compose, Mine

_FEWEST_CANDIDATES = 1024  # enough for target_tokens of 131,072 at 2,048 characters a chunk: shorter mine nothing anew
TYPICAL_CHARS_PER_TOKEN = 4.5  # of English; only bounds how many neighbours may be needed
_DOCUMENT_MARGIN = 1.2
_SHORTLISTED = 2  # times the chunks of a draft: docs/search.md has what fewer and more find
MIN_GAP_CHUNKS = 0.5  # of a mean chunk, that compose.min_gap_tokens: auto asks for (docs/decisions/0003-exact-fit.md)
SURE_SHARE = 0.5  # of T·E: a document of so few characters hardly turns out to be too long, whatever its language
TOKENIZER_BYTES = 150e6  # a tokenizer and its cache
BLOCKS = 16  # tasks, enough that small data sets parallelise …
MOST_QUERIES = 8_192  # … each of which stays within memory: their neighbours are some 100 MB


def draws(compose: Compose, attempt: int = 0) -> int | None:
    """Return how many documents to draw: a quarter more than sequences at first, for those that turn out not to fit."""
    return None if compose.sequences == "all" else (compose.sequences * 5 // 4 + 8) << attempt


def candidates_of(compose: Compose, mine: Mine, *, max_chars: int) -> int:
    """Return how many candidates each meta-chunk of at most `max_chars` characters gets.

    One meta-chunk may need as many as the whole sequence holds. `auto` doubles the paper's count for chunks that are
    shorter than s, as most are, and rounds to a power of two.
    """
    if mine.candidates != "auto":
        return mine.candidates
    return max(_FEWEST_CANDIDATES, 2 << math.ceil(math.log2(max(1.0, _draft_chunks(compose, max_chars)))))


def shortlist_chunks(compose: Compose, mine: Mine, chunk_chars: float) -> int:
    """Return how many chunks, of so many characters on average, the shortlist has for each meta-document."""
    if mine.shortlist_chunks != "auto":
        return mine.shortlist_chunks
    return math.ceil(_SHORTLISTED * _draft_chunks(compose, chunk_chars))


def _draft_chunks(compose: Compose, chunk_chars: float) -> float:
    """Return how many chunks, of so many characters on average, the draft of a sequence has."""
    return compose.target_tokens * TYPICAL_CHARS_PER_TOKEN * compose.draft_factor / max(1.0, chunk_chars)


def sequence_limit(compose: Compose, attempt: int = 0) -> int | None:
    """Return how many drafts to make: a few to spare for those that do not fit T after all; None for as many as there are."""
    return None if compose.sequences == "all" else (compose.sequences * 17 // 16 + 4) << attempt


def blocks(documents: float, queries: float) -> float:
    """Return about how many tasks search for `queries` of so many documents, or draft or compose them."""
    return max(1.0, min(BLOCKS, documents), queries / MOST_QUERIES)


def document_chars(sequence_tokens: int, chars_per_token: float) -> float:
    """Return how much text fills a sequence, T·E and a margin, because E is a mean; only to look for neighbours by."""
    return sequence_tokens * chars_per_token * _DOCUMENT_MARGIN
