"""Measure: the rates of work that follow from a trial, or that no trial can tell.

In:  a recipe and a sample of its documents. Out: what the trial took, and how long the
user's tokenizer, its encoder and a product of exact search take, measured apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.long_documents import MIN_SCORED_TOKENS
from nextlong.engine.executor import resident_bytes
from nextlong.methods.base import Need, method_of
from nextlong.recipe import Recipe
from nextlong.report.plan.costs import WORKER_BYTES, Rate, Trial
from nextlong.report.plan.sample import CorpusSample
from nextlong.report.plan.trial import TRIAL_CHARS, try_route
from nextlong.retrieval.encoders.base import Speed, kind_of
from nextlong.retrieval.surprisal import known_scorer, load_scorer
from nextlong.sequences.tokenize import (
    SPEED_UP,
    TextEncoder,
    chars_before_loading,
    is_known_to_be_fast,
)
from nextlong.sequences.tokenizer import load_or_stand_in, lost_share, special_id

_MEASURED_CHUNKS: Final = 64  # that the tokenizer is timed on
_SCORED_TOKENS: Final = 512  # that the model which scores texts is timed on
_SEARCH_ROWS: Final = 8192
_SEARCH_QUERIES: Final = 256
# Of exact search over its products (bench/search.py).
_SEARCH_OVERHEAD: Final = 1.25


class Tokenizing(NamedTuple):
    """What is measured of a tokenizer.

    `lost_share` is the share of the characters that it loses; `rates` are the
    `tokenizer_rates`.
    """

    chars_per_token: float
    lost_share: float
    rates: Mapping[str, Rate]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A sample of the corpus, a trial on it, and what is measured apart from the steps.

    `product_s` is the time of a multiplication and addition of exact search, with its
    share of keeping the best. A process that has run every step has `process_bytes`:
    its libraries, and what they keep.
    """

    sample: CorpusSample
    trial: Trial
    tokenizing: Tokenizing
    encoding: Speed
    scoring: Rate
    dimensions: int
    product_s: float
    process_bytes: float = WORKER_BYTES


def measure(recipe: Recipe, sample: CorpusSample) -> Measured:
    """Run the trial, and measure what it cannot tell.

    Raises a NextlongError for a tokenizer that cannot be used.
    """
    chunks, begins = _some_chunks(recipe, sample)
    tokenizing = _measure_tokenizer(recipe, chunks, begins)
    encoding = kind_of(recipe.encoder).measure(recipe.encoder, chunks)
    documents = sample.drawn(TRIAL_CHARS)
    trial = try_route(recipe, documents, chars_per_token=tokenizing.chars_per_token)
    # Without those of a model, the dimensions that LSA found in the trial.
    dimensions = encoding.dimensions or max(1, round(trial.amounts.dimensions))
    # The trial has run every step in this process, with all of its libraries.
    process_bytes = resident_bytes() or WORKER_BYTES
    return Measured(
        sample=sample,
        trial=trial,
        tokenizing=tokenizing,
        encoding=encoding,
        scoring=_time_scorer(recipe),
        dimensions=dimensions,
        product_s=_time_product(dimensions),
        process_bytes=process_bytes,
    )


def _some_chunks(recipe: Recipe, sample: CorpusSample) -> tuple[list[str], list[bool]]:
    """Return some chunks, spread over the documents, and which begin their document."""
    options = recipe.chunk.model_dump()
    # Spread evenly over the documents.
    every_document = max(1, len(sample.looked_at) // _MEASURED_CHUNKS)
    chunks: list[str] = []
    begins: list[bool] = []
    for text in sample.looked_at[::every_document]:
        for start, end in chunk_text(text, **options):
            chunks.append(text[start:end])
            begins.append(start == 0)
    every_chunk = max(1, len(chunks) // _MEASURED_CHUNKS)
    return chunks[::every_chunk], begins[::every_chunk]


def _time_scorer(recipe: Recipe) -> Rate:
    """Return the seconds per token of the model that scores texts.

    Raises RecipeError if it cannot be loaded, or if its context is too short.
    """
    scores_sequences = recipe.compose.verify_dependence is not None
    finds_contexts = Need.CONTEXTS in method_of(recipe).needs
    scores_documents = finds_contexts or recipe.ingest.long_filter is not None
    if not (scores_sequences or scores_documents):
        return Rate(None)
    model = load_scorer(known_scorer(recipe.scorer))
    tokens = recipe.sequence_tokens if scores_sequences else MIN_SCORED_TOKENS
    model.check_length(tokens)
    row = np.zeros(min(_SCORED_TOKENS, tokens), np.int64)
    first = len(row) // 2  # about half of a row is predicted
    model.score([row[:16]])  # the first row takes longer, so it is not timed
    began = time.perf_counter()
    model.score([row], first=[first])
    token_s = (time.perf_counter() - began) / len(row)
    on_gpu = None if model.device == "cpu" else token_s
    return Rate(token_s, on_gpu=on_gpu)


def _time_product(dimensions: int) -> float:
    """Return the seconds of a multiplication and addition of exact search."""
    random = np.random.default_rng(0)
    shape = (_SEARCH_ROWS, dimensions)
    with threadpool_limits(1):
        # Half precision as vectors are stored, so that converting them is timed as
        # well.
        stored = random.standard_normal(shape, dtype=np.float32).astype(np.float16)
        queries = stored[:_SEARCH_QUERIES].astype(np.float32)
        queries @ queries.T  # the first product takes longer, so it is not timed
        began = time.process_time()
        queries @ stored.astype(np.float32).T
        searched_s = time.process_time() - began
    products = _SEARCH_QUERIES * _SEARCH_ROWS * dimensions
    return _SEARCH_OVERHEAD * searched_s / products


def tokenizer_rates(
    read_s: float, slow_s: float, worth_chars: float
) -> dict[str, Rate]:
    """Return the rates of tokenizing, and of measuring the tokenizer.

    They are keyed by the names in `Estimate.rate`. Reading its file takes `read_s`, a
    character `slow_s` by the reference. A worker with at least `worth_chars` (math.inf:
    none) loads fastokens, any other uses the reference.
    """
    char_s = slow_s if math.isinf(worth_chars) else slow_s / SPEED_UP

    def start_s(chars: float) -> float:
        # fastokens is loaded where that takes no longer than the reference takes for
        # `worth_chars`.
        return read_s + min(chars, worth_chars) * (slow_s - char_s)

    return {
        "tokens": Rate(char_s, start_s=start_s),
        "tokenizer": Rate(slow_s, start_s=lambda _: read_s),
    }


def _measure_tokenizer(
    recipe: Recipe, chunks: Sequence[str], begins: Sequence[bool]
) -> Tokenizing:
    """Time the tokenizer on some chunks; one that is to be trained is trained on them.

    `begins` tells which chunks begin their document.
    """
    settings = recipe.tokenizer
    began = time.process_time()
    tokenizer = load_or_stand_in(settings, chunks)
    read_s = time.process_time() - began if settings.train is None else 0.0
    for key in ("bos", "eos"):
        name = getattr(settings, key)
        if name is not None:
            special_id(tokenizer, name, key=f"tokenizer.{key}")

    chars = sum(map(len, chunks))
    chars = max(1, chars)
    began = time.process_time()
    # Every worker begins with the reference.
    encoder = TextEncoder(tokenizer, engine="reference")
    ids, _ = encoder.encode_chunks(chunks, begins)
    slow_s = (time.process_time() - began) / chars

    worth_chars = math.inf
    if settings.engine == "auto" and is_known_to_be_fast(tokenizer):
        worth_chars = chars_before_loading(tokenizer)
    return Tokenizing(
        chars_per_token=chars / max(1, len(ids)),
        lost_share=lost_share(tokenizer, chunks, begins),
        rates=tokenizer_rates(read_s, slow_s, worth_chars),
    )
