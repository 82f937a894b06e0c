"""Amounts: how many documents, neighbours and characters a recipe asks for; and what each step of it has to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nextlong.recipe import Recipe
from nextlong.recipe.search import EXACT

_LEAST_FETCH = (
    1024  # covers target_tokens up to 131,072 at 2,048 characters a chunk, so shorter targets mine nothing anew
)
TYPICAL_CHARS_PER_TOKEN = 4.5  # of English; only bounds how many neighbours may be needed
_DOCUMENT_MARGIN = 1.2
MIN_GAP_CHUNKS = 0.5  # of a mean chunk, that compose.min_gap_tokens: auto asks for (docs/decisions/0003-exact-fit.md)
SURE_SHARE = 0.5  # of T·E: a document of so few characters hardly turns out to be too long, whatever its language
TOKENIZER_BYTES = 150e6  # a tokenizer and its cache
BLOCKS = 16  # tasks, enough that small data sets parallelise …
MOST_QUERIES = 8_192  # … each of which stays within memory: their neighbours are some 100 MB


def draws(recipe: Recipe, attempt: int = 0) -> int | None:
    """Return how many documents to draw: a quarter more than sequences at first, for those that turn out not to fit."""
    count = recipe.compose.sequences
    return None if count == "all" else (count + count // 4 + 8) << attempt


def fetch_of(recipe: Recipe) -> int:
    """Return how many candidates each meta-chunk gets.

    One meta-chunk may need as many as the whole sequence holds. `auto` doubles the paper's count for chunks that are
    shorter than s, as most are, and rounds to a power of two.
    """
    if recipe.mine.fetch != "auto":
        return recipe.mine.fetch
    drafted_chars = recipe.compose.target_tokens * TYPICAL_CHARS_PER_TOKEN * recipe.compose.draft_factor
    return max(_LEAST_FETCH, 2 << math.ceil(math.log2(max(1.0, drafted_chars / recipe.chunk.max_chars))))


def sequence_limit(recipe: Recipe, attempt: int = 0) -> int | None:
    """Return how many drafts to make: a few to spare for those that do not fit T after all; None for as many as there are."""
    count = recipe.compose.sequences
    return None if count == "all" else (count + count // 16 + 4) << attempt


def blocks(documents: float, queries: float) -> float:
    """Return about how many tasks search for `queries` of so many documents, or draft or compose them."""
    return max(1.0, min(BLOCKS, documents), queries / MOST_QUERIES)


def document_chars(recipe: Recipe, chars_per_token: float) -> float:
    """Return how much text fills a sequence, T·E and a margin, because E is a mean; only to look for neighbours by."""
    return recipe.sequence_tokens * chars_per_token * _DOCUMENT_MARGIN


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much there is to do, of a corpus or of a sample; what a plan is made of (`engine/estimate.py`)."""

    shards: float = 1.0
    text_bytes: float = 0.0  # of all documents that ingest reads
    documents: float = 0.0
    kept_documents: float = 0.0  # what select leaves, and from here on
    kept_chars: float = 0.0
    chunks: float = 0.0
    evaluation_bytes: float = 0.0
    dimensions: float = 0.0
    vectors: float = 0.0  # what is searched: chunks or documents
    queries: float = 0.0
    neighbours: float = 0.0  # of each query
    index: str = EXACT  # or a FAISS factory string
    looked_into: float = 1.0  # the share of the vectors that a query is compared with
    drafts: float = 0.0
    drafted_chunks: float = 0.0  # of all drafts, one after the other
    named_chunks: float = 0.0  # those of them that are different
    sequences: float = 0.0
    tokens: float = 0.0  # of all sequences

    @property
    def chunk_chars(self) -> float:
        """Characters of a chunk, on average."""
        return self.kept_chars / max(1.0, self.chunks)

    @property
    def named_chars(self) -> float:
        """Characters of the chunks that drafts name."""
        return self.named_chunks * self.chunk_chars

    @property
    def all_neighbours(self) -> float:
        """Neighbours of all queries."""
        return self.queries * min(self.neighbours, self.vectors)
