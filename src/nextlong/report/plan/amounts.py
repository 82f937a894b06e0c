"""Amounts of a plan: how much each step will have to do, from the recipe and the size of the corpus.

The same formulas serve the corpus and the samples that the steps are tried on, so that where they are off by a factor, a plan
is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nextlong.engine.estimate import Amounts
from nextlong.methods.base import DocumentMethod, Need, NeighbourSearch, method_of
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import SURE_SHARE, candidates_of, document_chars
from nextlong.recipe.keys import AUTO
from nextlong.report.plan.trial import Trial
from nextlong.retrieval.indexes import costs
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.indexes.costs import load_of
from nextlong.schemas import Layout

# A quarter more documents are drawn than asked for, a sixteenth more drafts named, and some; of meta-documents no more are drafted
# than have as many among them that are surely short enough.
_DRAWN_SHARE, _DRAWN_MORE = 1.25, 8
_NAMED_SHARE, _NAMED_MORE = 1.0625, 4


@dataclass(frozen=True)
class Corpus:
    """How much there is: all that ingest writes, then what select keeps. Numbers are exact if `is_whole`."""

    is_whole: bool
    documents: float
    text_bytes: float
    kept_documents: float
    kept_chars: float
    chunks: float
    eligible: float  # documents with at least compose.min_meta_chunks chunks
    meta_chunks: float  # the chunks of these
    too_long: float = 0.0  # of the eligible, those that are longer than a sequence
    too_little_room: float = 0.0  # … and those that leave no room for negatives between their chunks
    evaluation_bytes: float = 0.0  # of decontaminate.files

    def times(self, factor: float) -> Corpus:
        """Return a corpus like this one, so many times as large."""
        names = (
            "documents", "text_bytes", "kept_documents", "kept_chars", "chunks", "eligible", "meta_chunks", "too_long",
            "too_little_room",
        )  # fmt: skip
        return replace(self, is_whole=False, **{name: factor * getattr(self, name) for name in names})


def amounts_of(
    recipe: Recipe, corpus: Corpus, *, dimensions: int, chars_per_token: float, shards: float, has_gpu: bool = False
) -> Amounts:
    """Return how much there is to do."""
    is_chunks = Need.CHUNK_NEIGHBOURS in method_of(recipe).needs
    amounts = Amounts(
        shards=shards,
        text_bytes=corpus.text_bytes,
        documents=corpus.documents,
        kept_documents=corpus.kept_documents,
        kept_chars=corpus.kept_chars,
        chunks=corpus.chunks,
        evaluation_bytes=corpus.evaluation_bytes,
        dimensions=dimensions,
        vectors=corpus.chunks if is_chunks else corpus.kept_documents,
        neighbours=candidates_of(recipe) if is_chunks else _document_neighbours(recipe, corpus, chars_per_token),
    )
    return _with_index(recipe, _with_drafts(recipe, corpus, amounts, chars_per_token), has_gpu=has_gpu)


def of_trial(trial: Trial) -> Amounts:
    """Return how much there was to do in a trial."""
    corpus = Corpus(
        is_whole=True,
        documents=trial.documents,
        text_bytes=trial.chars,
        kept_documents=trial.documents,
        kept_chars=trial.chars,
        chunks=trial.chunks,
        eligible=trial.eligible,
        meta_chunks=trial.meta_chunks * trial.eligible / max(1, trial.drawn) if trial.drawn else trial.chunks,
    )
    return amounts_of(
        trial.recipe, corpus, dimensions=trial.dimensions, chars_per_token=trial.chars_per_token, shards=1
    )


def _search_of(recipe: Recipe) -> NeighbourSearch:
    """Return which documents' neighbours the method looks for at first, and how many."""
    method = method_of(recipe)
    if isinstance(method, DocumentMethod) and Need.DOCUMENT_NEIGHBOURS in method.needs:
        return method.search(recipe, recipe.options, attempt=0)
    return NeighbourSearch(neighbours=0, queries=0)


def _document_neighbours(recipe: Recipe, corpus: Corpus, chars_per_token: float) -> float:
    neighbours = _search_of(recipe).neighbours
    if neighbours is not None:
        return neighbours
    mean_chars = corpus.kept_chars / max(1.0, corpus.kept_documents)
    return math.ceil(4 * document_chars(recipe, chars_per_token) / max(1.0, mean_chars))


def _with_drafts(recipe: Recipe, corpus: Corpus, amounts: Amounts, chars_per_token: float) -> Amounts:
    """Fill in how many sequences there will be, from how many drafts, queries and chunks."""
    compose, method = recipe.compose, method_of(recipe)
    sequence_chars = recipe.sequence_tokens * chars_per_token
    is_extended = method.layout == Layout.EXTENDED
    a_document = corpus.kept_chars / max(1.0, corpus.kept_documents) / sequence_chars
    factor = compose.draft_factor if is_extended else 1 + a_document
    if is_extended:
        most = corpus.eligible
    elif Need.DOCUMENT_NEIGHBOURS in method.needs and method.repeats_documents(recipe.options):
        most = corpus.kept_documents
    else:  # each document stands in one sequence, or in few
        most = corpus.kept_chars / sequence_chars
    asked = most if compose.sequences == "all" else float(compose.sequences)
    drawn = min(most, asked * _DRAWN_SHARE + _DRAWN_MORE)
    named_drafts = min(drawn, asked * _NAMED_SHARE + _NAMED_MORE)
    if is_extended:
        a_meta_document = amounts.chunk_chars * corpus.meta_chunks / max(1.0, corpus.eligible)
        queries = drawn * corpus.meta_chunks / max(1.0, corpus.eligible)
        sure = -math.expm1(
            -SURE_SHARE * sequence_chars / max(1.0, a_meta_document)
        )  # as if lengths fell off exponentially
        drawn = min(drawn, named_drafts / max(1e-9, sure))
    else:
        limit = _search_of(recipe).queries
        queries = min(math.inf if limit is None else limit, corpus.kept_documents)
    a_draft = min(corpus.chunks, sequence_chars * factor / max(1.0, amounts.chunk_chars))
    # Drafts share chunks: so many different ones if each were drawn from all.
    named = corpus.chunks * -math.expm1(-named_drafts * a_draft / max(1.0, corpus.chunks))
    sequences = min(asked, most)
    return replace(
        amounts,
        queries=queries,
        drafts=drawn,
        drafted_chunks=drawn * a_draft,
        referenced_chunks=named,
        sequences=sequences,
        tokens=sequences * recipe.sequence_tokens,
    )


def _with_index(recipe: Recipe, amounts: Amounts, *, has_gpu: bool) -> Amounts:
    """Fill in which index is used, and which share of the vectors it looks into."""
    load = load_of(amounts, has_gpu=has_gpu)
    index = costs.choose(load)[0] if recipe.search.index == AUTO else recipe.search.index
    return replace(amounts, index=index, visited_share=costs.visited_share(load)) if is_built(index) else amounts
