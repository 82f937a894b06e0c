"""Plan's sample: what the corpus holds, from a small part of the user's files; and what no trial of the steps tells.

In:  a recipe and its files. Out: the size of the corpus before and after caps and weights, and texts that stand for it.
Documents and text are counted in what `corpus.look` reads; chunks come from the texts that it keeps.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import fsspec
import numpy as np
from threadpoolctl import threadpool_limits

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.errors import CorpusError, EncoderError
from nextlong.reading.files import InputFile
from nextlong.reading.records import RejectKind
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import MIN_GAP_CHUNKS
from nextlong.report.plan.amounts import Corpus
from nextlong.report.plan.cluster import shape_of
from nextlong.retrieval.encoders.base import Speed, kind_of
from nextlong.sequences.steps import has_gaps
from nextlong.text import counted
from nextlong.workers import preloaded

_TOKENIZED_CHUNKS = 512
_COMPRESSED_SHARE = 0.3  # of JSON, by gzip or zstd
_TRAINED_ENTRIES = 4096  # trained in a second, and within a tenth of the characters per token of 32,000 entries
_SEARCH_ROWS, _SEARCH_QUERIES = 8192, 256
_SEARCH_OVERHEAD = 1.25  # of exact search over its products (bench/search.py)


class Tokenizing(NamedTuple):
    """What tokenizing takes: a task of fewer than `worth_chars` goes slowly, any other fast, after loading."""

    chars_per_token: float
    lost_share: float  # of the characters, by the tokenizer
    read_s: float  # the tokenizer's file
    worth_chars: float
    slow_s: float  # a character
    load_s: float
    fast_s: float  # a character

    def start_s(self, chars: float) -> float:
        """Return what a worker that tokenizes so much takes beyond `fast_s`."""
        is_fast = chars >= self.worth_chars
        return self.read_s + (self.load_s if is_fast else chars * (self.slow_s - self.fast_s))


@dataclass(frozen=True)
class Measured:
    """What a sample says: the corpus, texts that stand for it, and what is measured apart from the steps."""

    corpus: Corpus
    texts: list[str]
    tokenizing: Tokenizing
    dimensions: int | None  # of the vectors; None: those of LSA, which the trial tells
    encode_s: float | None  # a chunk; None: LSA, or not known
    encode_unknown: str  # why it is not known
    rejects: Mapping[RejectKind, float]  # of the whole corpus, and by kind
    product_s: float  # a multiplication and addition of exact search
    start_s: float  # Python and its libraries, before the first task


def measure(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Measured:
    """Read a sample of every source. Raises CorpusError if it holds no document."""
    every = look_at(recipe, files)
    looks = [look for look in every if look.documents]
    if not looks:
        rejects = sum((look.rejects for look in every), Counter[RejectKind]())
        why = ", ".join(f"{counted(count, 'record')}: {kind}" for kind, count in rejects.most_common(3))
        raise CorpusError(
            f"no document was found in a sample of {files[0][0].path} or other files of ingest.sources "
            f"({why or 'they are empty'}); correct ingest.sources; `nextlong run` names every reject"
        )
    options = recipe.chunk.model_dump()
    spans = [[chunk_text(text, **options) for text in look.texts] for look in looks]
    chunks = [
        text[start:end]
        for look, of_texts in zip(looks, spans, strict=True)
        for text, text_spans in zip(look.texts, of_texts, strict=True)
        for start, end in text_spans
    ]
    encoding = _measure_encoder(recipe, chunks)
    tokenizing = _measure_tokenizer(recipe, chunks)
    counts = [[len(text_spans) for text_spans in of_texts] for of_texts in spans]
    corpus = size(recipe, looks, counts, chars_per_token=tokenizing.chars_per_token)
    return Measured(
        corpus=replace(corpus, evaluation_bytes=_evaluation_bytes(recipe)),
        texts=_mixed(looks),
        tokenizing=tokenizing,
        dimensions=encoding.dimensions,
        encode_s=encoding.chunk_s,
        encode_unknown=encoding.unknown,
        rejects=_rejects(every),
        product_s=_measure_search(encoding.dimensions or int(getattr(recipe.encoder.options, "dimensions", 256))),
        start_s=_measure_start(recipe),
    )


def _rejects(looks: Sequence[Look]) -> dict[RejectKind, float]:
    """Return about how many records of the corpus are no documents, by kind."""
    counts: dict[RejectKind, float] = {}
    for look in looks:
        for kind, count in look.rejects.items():
            counts[kind] = counts.get(kind, 0.0) + look.scale * count
    return counts


def _mixed(looks: Sequence[Look]) -> list[str]:
    """Return texts of every source, as many of each as the corpus has after caps and weights, in random order."""
    kept = kept_shares(
        looks,
        [look.scale * look.distinct_documents for look in looks],
        [look.scale * look.distinct_chars for look in looks],
    )
    factors = [share * look.text_scale for share, look in zip(kept, looks, strict=True)]
    draw = random.Random(0)
    texts = [
        text
        for look, factor in zip(looks, factors, strict=True)
        for text in look.texts
        if draw.random() < factor / max(factors)
    ] or [looks[0].texts[0]]
    draw.shuffle(texts)
    return texts


def size(recipe: Recipe, looks: Sequence[Look], counts: Sequence[Sequence[int]], *, chars_per_token: float) -> Corpus:
    """Scale each source up by itself, cut it to its caps and weight, and add them up; `counts` are chunks a text."""
    found_chars = [look.scale * look.distinct_chars for look in looks]
    found_documents = [look.scale * look.distinct_documents for look in looks]
    kept = kept_shares(looks, found_documents, found_chars)
    least, longest = recipe.compose.min_meta_chunks, recipe.sequence_tokens * chars_per_token
    factors = [share * look.text_scale for share, look in zip(kept, looks, strict=True)]

    def total(number_of: Callable[[Sequence[int]], int]) -> float:
        return sum(factor * number_of(chunk_counts) for factor, chunk_counts in zip(factors, counts, strict=True))

    def of_documents(is_one: Callable[[int, int], bool]) -> float:
        return sum(
            factor * sum(is_one(len(text), chunks) for text, chunks in zip(look.texts, of_texts, strict=True))
            for factor, look, of_texts in zip(factors, looks, counts, strict=True)
        )

    seen_chars = sum(len(text) for look in looks for text in look.texts)
    seen_chunks = sum(sum(of_texts) for of_texts in counts)
    between = _chars_between(recipe, seen_chars / max(1, seen_chunks), chars_per_token)
    return Corpus(
        is_whole=all(look.is_whole for look in looks),
        documents=sum(look.scale * look.documents for look in looks),
        text_bytes=sum(look.text_bytes for look in looks),
        kept_documents=sum(share * count for share, count in zip(kept, found_documents, strict=True)),
        kept_chars=sum(share * chars for share, chars in zip(kept, found_chars, strict=True)),
        chunks=total(sum),
        eligible=total(lambda chunk_counts: sum(count >= least for count in chunk_counts)),
        meta_chunks=total(lambda chunk_counts: sum(count for count in chunk_counts if count >= least)),
        too_long=of_documents(lambda chars, chunks: chunks >= least and chars >= longest),
        too_little_room=of_documents(
            lambda chars, chunks: chunks >= least and chars < longest <= chars + between(chunks)
        ),
    )


def _chars_between(recipe: Recipe, chunk_chars: float, chars_per_token: float) -> Callable[[int], float]:
    """Return what tells the characters of negatives that a document of so many chunks has to have room for, about.

    All but the last negative are whole chunks, and one is seldom enough only where `compose.min_gap_tokens` asks for more.
    """
    if not has_gaps(recipe.compose):
        return lambda _: 0.0
    asked = recipe.compose.min_gap_tokens
    gap = MIN_GAP_CHUNKS * chunk_chars if asked == "auto" else asked * chars_per_token
    return lambda chunks: (chunks - 1) * max(gap, chunk_chars) + gap


def _evaluation_bytes(recipe: Recipe) -> float:
    """Return how much there is to read in the evaluation files; those that are missing are the run's to refuse."""
    total = 0.0
    for file in recipe.decontaminate.files:
        system, path = fsspec.core.url_to_fs(file)
        if system.exists(path):
            total += (system.size(path) or 0) / (_COMPRESSED_SHARE if file.endswith((".gz", ".zst")) else 1)
    return total


def _measure_encoder(recipe: Recipe, chunks: Sequence[str]) -> Speed:
    """Return how fast chunks are encoded; a model whose shape is known need not be here: it may be where the run will be."""
    try:
        return kind_of(recipe.encoder).measure(recipe.encoder, chunks)
    except EncoderError:
        if (shape := shape_of(recipe.encoder)) is None:
            raise
        return Speed(None, "no model here", shape.width)


def _measure_search(dimensions: int) -> float:
    """Return the seconds that a multiplication and addition of exact search takes, with what keeps the best."""
    stored = np.random.default_rng(0).standard_normal((_SEARCH_ROWS, dimensions), dtype=np.float32).astype(np.float16)
    queries = stored[:_SEARCH_QUERIES].astype(np.float32)
    queries @ queries.T
    _, seconds = _timed(lambda: queries @ stored.astype(np.float32).T)
    return _SEARCH_OVERHEAD * seconds / (_SEARCH_QUERIES * _SEARCH_ROWS * dimensions)


def _measure_start(recipe: Recipe) -> float:
    """Return what the run takes to import its libraries, and again for the server that its workers are forked from."""
    import_s = _import_s(("nextlong.cli.main", "nextlong.pipeline"))
    return import_s + (_import_s(tuple(preloaded(recipe))) if recipe.executor == "local" else 0.0)


@lru_cache
def _import_s(modules: tuple[str, ...]) -> float:
    """Return the processor seconds of a Python that imports modules; one that is missing ends it early."""
    before = os.times()
    subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], check=False, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _measure_tokenizer(recipe: Recipe, chunks: Sequence[str]) -> Tokenizing:
    """Return how tokenizing goes here; a tokenizer that is yet to be trained is trained small."""
    from nextlong.sequences.encode import TextEncoder, chars_before_loading
    from nextlong.sequences.token_chars import lost_share
    from nextlong.sequences.tokenizer import load_tokenizer, special_id, train_bpe

    few = list(itertools.islice(chunks[:: max(1, len(chunks) // _TOKENIZED_CHUNKS)], _TOKENIZED_CHUNKS))
    others = chunks[1 :: max(2, len(chunks) // _TOKENIZED_CHUNKS)] or few
    read_s = 0.0
    if recipe.tokenizer.train is None:
        tokenizer, read_s = _timed(lambda: load_tokenizer(recipe.tokenizer))
    else:
        tokenizer = train_bpe(few, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    for key in ("bos", "eos"):
        special_id(tokenizer, getattr(recipe.tokenizer, key), key=f"tokenizer.{key}")
    encoder = TextEncoder(tokenizer, engine=recipe.tokenizer.engine)
    chars = max(1, sum(map(len, few)))
    (ids, _), slow = _timed(lambda: encoder.encode_batch(few))
    kind, load = _timed(encoder.settle)
    encoder.encode_batch(others)  # fills its cache, as a long run does, but not with the words of these very chunks
    _, fast = _timed(lambda: encoder.encode_batch(few))
    return Tokenizing(
        chars_per_token=chars / max(1, len(ids)),
        lost_share=lost_share(tokenizer, few),
        read_s=read_s,
        worth_chars=chars_before_loading(tokenizer) if kind == "fastokens" else math.inf,
        slow_s=slow / chars,
        load_s=load,
        fast_s=(fast if kind == "fastokens" else slow) / chars,
    )


T = TypeVar("T")


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its processor seconds on one thread, as workers have: a busy machine does not show."""
    with threadpool_limits(1):
        began = time.process_time()
        result = call()
        return result, time.process_time() - began
