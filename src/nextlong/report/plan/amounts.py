"""Amounts: how much each step of a recipe has to do, from the size of its corpus.

The same formulas serve the corpus and the trials, so a formula that is off by a factor leaves the estimate as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nextlong.engine.step import Amounts
from nextlong.methods.base import DocumentMethod, Need, method_of
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import SURE_SHARE, candidates_of, document_chars, draws, sequence_limit, shortlist_chunks
from nextlong.recipe.keys import AUTO
from nextlong.retrieval.indexes import costs
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.shortlist import CONTROL_SHARE
from nextlong.schemas import Layout


def amounts_of(recipe: Recipe, corpus: Amounts, *, chars_per_token: float, has_gpu: bool = False) -> Amounts:
    """Return `corpus`, which holds the sizes up to `dimensions`, with what follows from them filled in."""
    method = method_of(recipe)
    is_chunks = Need.CHUNK_NEIGHBOURS in method.needs
    neighbours: float = candidates_of(recipe) if is_chunks else 0
    if not is_chunks and isinstance(method, DocumentMethod) and Need.DOCUMENT_NEIGHBOURS in method.needs:
        declared = method.neighbours(recipe.options)  # None: as many as fill a sequence several times
        mean_chars = max(1.0, corpus.kept_chars / max(1.0, corpus.kept_documents))
        filling = 4 * document_chars(recipe, chars_per_token) / mean_chars
        neighbours = math.ceil(filling) if declared is None else declared
    vectors = corpus.chunks if is_chunks else corpus.kept_documents
    amounts = replace(corpus, vectors=vectors, neighbours=neighbours)
    amounts = _with_drafts(recipe, amounts, sequence_chars=recipe.sequence_tokens * chars_per_token)
    if is_chunks and recipe.mine.shortlist is not None:
        return amounts  # searched exactly
    index = costs.choose(amounts, has_gpu=has_gpu)[0] if recipe.search.index == AUTO else recipe.search.index
    return replace(amounts, index=index, visited_share=costs.visited_share(amounts)) if is_built(index) else amounts


def different(among: float, drawn: float) -> float:
    """Return the expected number of distinct items after drawing `drawn` times from `among`, with replacement."""
    # Each is missed by all draws with a probability of (1 - 1 / among) ** drawn, nearly exp(-drawn / among).
    return among * -math.expm1(-drawn / max(1.0, among))


def _with_drafts(recipe: Recipe, amounts: Amounts, *, sequence_chars: float) -> Amounts:
    """Fill in how many queries, drafts, chunks and sequences there will be."""
    method = method_of(recipe)
    kept_documents = max(1.0, amounts.kept_documents)
    if method.layout == Layout.EXTENDED:
        most = amounts.eligible
        meta_chunks = amounts.meta_chunks / max(1.0, amounts.eligible)  # of a document
        drawn = min(most, draws(recipe.compose) or math.inf)
        queries, named = drawn * meta_chunks, min(drawn, sequence_limit(recipe.compose) or math.inf)
        # More are drafted than named, until enough are surely short enough; as if lengths fell off exponentially.
        sure = -math.expm1(-SURE_SHARE * sequence_chars / max(1.0, amounts.chunk_chars * meta_chunks))
        drafts = min(drawn, named / max(1e-9, sure))
        draft_chars = sequence_chars * recipe.compose.draft_factor
    else:
        is_repeating = Need.DOCUMENT_NEIGHBOURS in method.needs and method.repeats_documents(recipe.options)
        most = amounts.kept_documents if is_repeating else amounts.kept_chars / sequence_chars
        searches = getattr(method, "searches", "") if Need.DOCUMENT_NEIGHBOURS in method.needs else ""
        limit = draws(recipe.compose) if searches == "sampled documents" else None
        queries = min(limit or math.inf, amounts.kept_documents) if searches else 0
        drafts = min(most, draws(recipe.compose) or math.inf)
        named = min(drafts, sequence_limit(recipe.compose) or math.inf)
        draft_chars = sequence_chars + amounts.kept_chars / kept_documents
    draft_chunks = min(amounts.chunks, draft_chars / max(1.0, amounts.chunk_chars))
    sequences = most if recipe.compose.sequences == "all" else min(most, recipe.compose.sequences)
    embedded = amounts.chunks
    if Need.CHUNK_NEIGHBOURS in method_of(recipe).needs and recipe.mine.shortlist is not None:
        wanted = queries + drafts * shortlist_chunks(recipe, amounts.chunk_chars)
        shortlisted = amounts.chunks * -math.expm1(-wanted / max(1.0, amounts.chunks))  # each drawn from all
        embedded = shortlisted + CONTROL_SHARE * (amounts.chunks - shortlisted)
    return replace(
        amounts,
        embedded=embedded,
        queries=queries,
        drafts=drafts,
        drafted_chunks=drafts * draft_chunks,
        referenced_chunks=different(amounts.chunks, named * draft_chunks),
        sequences=sequences,
        tokens=sequences * recipe.sequence_tokens,
    )
