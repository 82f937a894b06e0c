"""Amounts: how much data a corpus has at each stage, and what a step's cost grows with.

In:  the sizes that a sample shows, and the recipe. Out: the `Amounts` that follow:
queries, drafts, sequences and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from nextlong.methods.base import DocumentMethod, Need, method_of
from nextlong.methods.contexts import (
    ANCHOR_SHARE,
    DOCUMENT_SHARE,
    OVER_FETCHED,
    Screening,
)
from nextlong.recipe import Recipe, keys
from nextlong.recipe.keys import AUTO, SURE_SHARE, candidates_of, draws, sequence_limit
from nextlong.retrieval import index as search_index
from nextlong.retrieval.index import SearchLoad
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.shortlist import CONTROL_SHARE
from nextlong.schemas import Layout

TRIED = "tried"  # the rate measured in the trial


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts of data in a corpus or a sample, from which plans estimate costs."""

    shards: float = 1.0
    text_bytes: float = 0.0  # of all documents that ingest reads
    documents: float = 0.0
    kept_documents: float = 0.0  # after select, as all amounts below
    kept_chars: float = 0.0
    long_chars: float = 0.0  # of these, in documents that filters of long ones judge
    chunks: float = 0.0
    embedded: float = 0.0  # chunks to encode: all of them without a shortlist
    eligible: float = 0.0  # documents with at least compose.min_meta_chunks chunks …
    meta_chunks: float = 0.0  # … and their chunks
    dimensions: float = 0.0
    vectors: float = 0.0  # searched vectors: of chunks or documents
    queries: float = 0.0
    neighbours: float = 0.0  # per query
    index: str = "exact"  # or a FAISS factory string
    visited_share: float = 1.0  # fraction of the vectors that a query is compared with
    drafts: float = 0.0
    drafted_chunks: float = 0.0  # in all drafts, with repeats
    referenced_chunks: float = 0.0  # distinct ones of these
    sequences: float = 0.0
    tokens: float = 0.0  # in all sequences

    def of(self, amount: Amount) -> float:
        """Evaluate an amount: a number, a field, or a function of all amounts."""
        if isinstance(amount, int | float):
            return float(amount)
        if isinstance(amount, str):
            value: float = getattr(self, amount)
            return float(value)
        return amount(self)

    def times(self, factor: float) -> Amounts:
        """Return the amounts of a corpus like this one, `factor` times as large."""
        # Dimensions stay; queries, drafts and sequences follow from the recipe again.
        grown = (
            "text_bytes",
            "documents",
            "kept_documents",
            "kept_chars",
            "long_chars",
            "chunks",
            "eligible",
            "meta_chunks",
        )
        return replace(self, **{name: factor * getattr(self, name) for name in grown})

    @property
    def chunk_chars(self) -> float:
        return self.kept_chars / max(1.0, self.chunks)

    @property
    def referenced_chars(self) -> float:
        return self.referenced_chunks * self.chunk_chars

    @property
    def search(self) -> SearchLoad:
        return SearchLoad(
            vectors=self.vectors,
            dimensions=self.dimensions,
            queries=self.queries,
            neighbours=self.neighbours,
        )

    @property
    def all_neighbours(self) -> float:
        return self.search.all_neighbours


# A number, the name of a field, or a function of all amounts.
Amount = float | str | Callable[[Amounts], float]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How the time, disk and memory of a step grow with the corpus.

    A step does `work` units of about `seconds` core-seconds each, and writes `disk`
    units of `bytes` each. A trial on the user's files measures both rates; the declared
    ones are used if the sample is too small, and for costs that no sample shows (a
    server, evaluation files, an index). `rate` names a rate that is measured apart; ""
    means the declared one.

    The work is divided into `tasks` tasks, or more if one would take over `task_s`
    seconds. Each uses `memory` bytes beyond those of any worker. Together they read
    `reads` bytes of the input files; None means all of them.
    """

    work: Amount
    seconds: float
    disk: Amount = 0
    bytes: float = 0.0
    tasks: Amount = 1
    memory: Amount = 0
    rate: str = TRIED
    task_s: float = 0.0
    reads: Amount | None = None


class _Drafting(NamedTuple):
    """The drafts of a run, before the search is known."""

    max_sequences: float  # that the corpus has enough documents for
    drafts: float
    used_drafts: float  # of which sequences are made
    chars: float  # of a draft
    queries: float = 0.0  # meta-chunks


def amounts_of(
    recipe: Recipe, corpus: Amounts, *, chars_per_token: float, has_gpu: bool = False
) -> Amounts:
    """Return `corpus`, which has the sizes up to `dimensions`, with all that follows.

    The same formulas serve the corpus and the trial, so a formula that is off by a
    factor leaves the estimate as it is.
    """
    method = method_of(recipe)
    if method.layout == Layout.EXTENDED:
        drafting = _extended(recipe, corpus, chars_per_token=chars_per_token)
    else:
        drafting = _concatenated(recipe, corpus, chars_per_token=chars_per_token)
    # No draft has more chunks than the corpus.
    draft_chunks = min(corpus.chunks, drafting.chars / max(1.0, corpus.chunk_chars))
    wanted = recipe.compose.sequences
    sequences = drafting.max_sequences
    if wanted != "all":
        sequences = min(sequences, wanted)

    amounts = replace(
        corpus,
        # Replaced below by methods that search for chunks.
        vectors=corpus.kept_documents,
        queries=drafting.queries,
        embedded=corpus.chunks,
        drafts=drafting.drafts,
        drafted_chunks=drafting.drafts * draft_chunks,
        referenced_chunks=different(corpus.chunks, drafting.used_drafts * draft_chunks),
        sequences=sequences,
        tokens=sequences * recipe.sequence_tokens,
    )
    amounts = _with_document_search(recipe, amounts, chars_per_token=chars_per_token)
    if Need.CONTEXTS in method.needs:
        amounts = _with_context_search(recipe, amounts)
    if Need.CHUNK_NEIGHBOURS in method.needs:
        amounts = _with_chunk_search(recipe, amounts)
        if recipe.mine.shortlist is not None:
            return amounts  # a shortlist is searched exactly
    return _with_index(recipe, amounts, has_gpu=has_gpu)


def different(among: float, drawn: float) -> float:
    """Return the expected distinct items of `drawn` draws with replacement."""
    # All draws miss an item with a probability of (1 - 1 / among) ** drawn, nearly
    # exp(-drawn / among).
    return among * -math.expm1(-drawn / max(1.0, among))


def _extended(recipe: Recipe, corpus: Amounts, *, chars_per_token: float) -> _Drafting:
    """Return the drafts of a method that extends documents."""
    sequence_chars = recipe.sequence_tokens * chars_per_token
    meta_chunks = corpus.meta_chunks / max(1.0, corpus.eligible)  # of a document
    drawn = min(corpus.eligible, _max_drawn(recipe))
    used = min(drawn, _max_used(recipe))
    # More are drafted than used, until enough are surely short enough; as if lengths
    # fell off exponentially.
    document_chars = corpus.chunk_chars * meta_chunks
    sure_chars = SURE_SHARE * sequence_chars
    sure_share = -math.expm1(-sure_chars / max(1.0, document_chars))
    return _Drafting(
        max_sequences=corpus.eligible,
        drafts=min(drawn, used / max(1e-9, sure_share)),
        used_drafts=used,
        chars=sequence_chars * recipe.compose.draft_factor,
        queries=drawn * meta_chunks,
    )


def _concatenated(
    recipe: Recipe, corpus: Amounts, *, chars_per_token: float
) -> _Drafting:
    """Return the drafts of a method that concatenates documents."""
    method = method_of(recipe)
    sequence_chars = recipe.sequence_tokens * chars_per_token
    # Where documents are used once, they last for so many sequences.
    max_sequences = corpus.kept_chars / sequence_chars
    is_searching = Need.DOCUMENT_NEIGHBOURS in method.needs
    if is_searching and method.repeats_documents(recipe.options):
        max_sequences = corpus.kept_documents
    drafts = min(max_sequences, _max_drawn(recipe))
    return _Drafting(
        max_sequences=max_sequences,
        drafts=drafts,
        used_drafts=min(drafts, _max_used(recipe)),
        chars=sequence_chars + _document_chars(corpus),
    )


def _max_drawn(recipe: Recipe) -> float:
    return draws(recipe.compose) or math.inf


def _max_used(recipe: Recipe) -> float:
    return sequence_limit(recipe.compose) or math.inf


def _document_chars(corpus: Amounts) -> float:
    return max(1.0, corpus.kept_chars / max(1.0, corpus.kept_documents))


def _with_document_search(
    recipe: Recipe, amounts: Amounts, *, chars_per_token: float
) -> Amounts:
    """Return the amounts with the search of a method that searches for documents."""
    method = method_of(recipe)
    if not isinstance(method, DocumentMethod):
        return amounts
    if Need.DOCUMENT_NEIGHBOURS not in method.needs:
        return amounts
    neighbours = method.neighbours(recipe.options)
    if neighbours is None:  # as many as fill a sequence several times
        chars = keys.document_chars(recipe.sequence_tokens, chars_per_token)
        neighbours = math.ceil(4 * chars / _document_chars(amounts))
    # Methods search for the neighbours of all documents, or of those that are sampled
    # as first documents.
    queries = amounts.kept_documents
    if method.searches == "sampled documents":
        queries = min(queries, _max_drawn(recipe))
    return replace(amounts, neighbours=neighbours, queries=queries)


def _with_chunk_search(recipe: Recipe, amounts: Amounts) -> Amounts:
    """Return the amounts with the search for the neighbours of meta-chunks."""
    compose = recipe.compose
    mine = recipe.mine
    chunk_chars = amounts.chunk_chars
    embedded = amounts.chunks
    if mine.shortlist is not None:
        per_draft = keys.shortlist_chunks(
            compose,
            mine,
            chunks=amounts.chunks,
            chunk_chars=chunk_chars,
            meta_documents=amounts.drafts,
        )
        wanted = amounts.queries + amounts.drafts * per_draft
        # The lists of several documents share chunks. Of all others, a random share is
        # embedded as controls (docs/retrieval.md).
        shortlisted = different(amounts.chunks, wanted)
        embedded = shortlisted + CONTROL_SHARE * (amounts.chunks - shortlisted)
    return replace(
        amounts,
        vectors=amounts.chunks,
        neighbours=candidates_of(compose, mine, chunk_chars=chunk_chars),
        embedded=embedded,
    )


def _with_context_search(recipe: Recipe, amounts: Amounts) -> Amounts:
    """Return the amounts with the search for the contexts of uncertain tokens."""
    options = recipe.options
    assert isinstance(options, Screening)
    limit = keys.sequence_limit(recipe.compose)
    tokens = amounts.kept_chars / keys.TYPICAL_CHARS_PER_TOKEN
    if limit is not None:
        tokens = min(tokens, DOCUMENT_SHARE * limit * recipe.sequence_tokens)
    return replace(
        amounts,
        vectors=amounts.chunks,
        queries=ANCHOR_SHARE * tokens,
        neighbours=OVER_FETCHED * options.candidates,
    )


def _with_index(recipe: Recipe, amounts: Amounts, *, has_gpu: bool) -> Amounts:
    """Return the amounts with the index of the recipe, or that of `auto`."""
    index = recipe.search.index
    if index == AUTO:
        index, _ = search_index.choose(amounts.search, has_gpu=has_gpu)
    if not index_kind(index).is_built:
        return amounts
    visited_share = search_index.visited_share(amounts.search)
    return replace(amounts, index=index, visited_share=visited_share)
