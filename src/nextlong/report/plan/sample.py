"""Plan's sample: what the corpus holds, and how fast this machine is on it, from a small part of the user's files.

In:  a recipe and its files. Out: the size of the corpus before and after caps and weights, and seconds per unit of work.
Documents and text are counted in what `corpus.look` reads; chunks, and all rates, come from the texts that it keeps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import fsspec
import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.embed.choose import choose_execution
from nextlong.embed.sentence_transformers import is_installed
from nextlong.errors import CorpusError
from nextlong.inputs.files import InputFile
from nextlong.recipe import Recipe
from nextlong.similarity.words import hash_words

T = TypeVar("T")

_COMPRESSED_AT_ONCE = 1_000_000  # as ingest does
_MEASURED_CHUNKS = {"lsa": 1024, "sentence-transformers": 32}  # a second or so each
_FIT_SLOPE_SHARE = 4  # the fit is timed on all measured chunks and on a quarter of them, for its slope
_WARM_UP_CHUNKS = 16  # imports and tables are paid for once, and not by the measured call
_TOKENIZED_CHUNKS = 512
_HASHED_CHUNKS = 256
_COMPRESSED_SHARE = 0.3  # of JSON, by gzip or zstd
_TRAINED_ENTRIES = 4096  # trained in a second, and within a tenth of the characters per token of 32,000 entries
_SEARCH_ROWS, _SEARCH_QUERIES = 8192, 256
_SEARCH_OVERHEAD = 1.25  # of exact search over its products (bench/search.py)
_MODEL_DIMENSIONS = 1024  # of models such as the paper's; that is not asked either where its package is missing
_ENDPOINT, _NOT_INSTALLED = "the endpoint's", "needs its package"
_OPENAI_DIMENSIONS = 1536  # of the usual models; the server is not asked


@dataclass(frozen=True)
class Corpus:
    """How much there is: all that ingest writes, then what select keeps. Numbers are exact if `is_whole`."""

    is_whole: bool
    documents: float
    text_bytes: float
    stored_share: float  # bytes on disk per byte of text, compressed
    kept_documents: float
    kept_chars: float
    chunks: float
    eligible: float  # documents with at least compose.min_meta_chunks chunks
    meta_chunks: float  # the chunks of these
    evaluation_bytes: float = 0.0  # of decontaminate.files


@dataclass(frozen=True)
class Rates:
    """How long work takes on one core; `encode_s_per_chunk` None: an endpoint is not asked, or a package is missing."""

    read_s_per_byte: float
    chunk_s_per_char: float
    encode_s_per_chunk: float | None
    encode_unknown: str  # why it is None
    fit_base_s: float
    fit_s_per_chunk: float
    fit_terms: int
    fit_measured_chunks: int
    dimensions: int
    search_s_per_pair: float
    tokenize_s_per_char: float
    words_s_per_char: float  # to tell words apart and hash them
    chars_per_token: float
    lost_share: float = 0.0  # of the characters, by the tokenizer


def measure(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> tuple[Corpus, Rates]:
    """Read a sample of every source and time each kind of work on it. Raises CorpusError if it holds no document."""
    looks, read_s = _timed(lambda: look_at(recipe, files))
    if not looks:
        raise CorpusError(
            f"no document was found at the beginning of {files[0][0].path} or other files of ingest.sources: they are empty "
            "or cannot be read; `nextlong run` names every reject"
        )
    options = recipe.chunk.model_dump()
    spans, chunk_s = _timed(lambda: [[chunk_text(text, **options) for text in look.texts] for look in looks])
    chunks = [
        text[start:end]
        for look, of_texts in zip(looks, spans, strict=True)
        for text, own in zip(look.texts, of_texts, strict=True)
        for start, end in own
    ]
    stored_share, compress_s = _timed(lambda: _stored_share(looks))
    counts = [[len(own) for own in of_texts] for of_texts in spans]
    corpus = replace(size(recipe, looks, counts, stored_share=stored_share), evaluation_bytes=_evaluation_bytes(recipe))
    few = "\n".join(chunks[:_HASHED_CHUNKS])
    hash_words(few[:1])  # makes its tables
    _, words_s = _timed(lambda: hash_words(few))
    encode_s, fit, dimensions = _measure_encoder(recipe, chunks)
    tokenize_s, chars_per_token, lost = _measure_tokenizer(recipe, chunks)
    rates = Rates(
        read_s_per_byte=read_s / sum(look.read_bytes for look in looks) + compress_s / max(1, _bytes_of(looks)),
        chunk_s_per_char=chunk_s / sum(len(text) for look in looks for text in look.texts),
        encode_s_per_chunk=encode_s,
        encode_unknown=_ENDPOINT if recipe.encoder.kind == "openai" else _NOT_INSTALLED,
        fit_base_s=fit[0],
        fit_s_per_chunk=fit[1],
        fit_terms=fit[2],
        fit_measured_chunks=fit[3],
        dimensions=dimensions,
        search_s_per_pair=_measure_search(dimensions),
        tokenize_s_per_char=tokenize_s,
        words_s_per_char=words_s / max(1, len(few)),
        chars_per_token=chars_per_token,
        lost_share=lost,
    )
    return corpus, rates


def size(recipe: Recipe, looks: Sequence[Look], counts: Sequence[Sequence[int]], *, stored_share: float) -> Corpus:
    """Scale each source up by itself, cut it to its caps and weight, and add them up; `counts` are chunks a text."""
    found_chars = [look.scale * look.distinct_chars for look in looks]
    found_documents = [look.scale * look.distinct_documents for look in looks]
    kept = kept_shares(looks, found_documents, found_chars)
    least = recipe.compose.min_meta_chunks
    factors = [share * look.text_scale for share, look in zip(kept, looks, strict=True)]

    def total(number_of: Callable[[Sequence[int]], int]) -> float:
        return sum(factor * number_of(own) for factor, own in zip(factors, counts, strict=True))

    return Corpus(
        is_whole=all(look.is_whole for look in looks),
        documents=sum(look.scale * look.documents for look in looks),
        text_bytes=sum(look.text_bytes for look in looks),
        stored_share=stored_share,
        kept_documents=sum(share * count for share, count in zip(kept, found_documents, strict=True)),
        kept_chars=sum(share * chars for share, chars in zip(kept, found_chars, strict=True)),
        chunks=total(sum),
        eligible=total(lambda own: sum(count >= least for count in own)),
        meta_chunks=total(lambda own: sum(count for count in own if count >= least)),
    )


def _evaluation_bytes(recipe: Recipe) -> float:
    """Return how much there is to read in the evaluation files; those that are missing are the run's to refuse."""
    total = 0.0
    for file in recipe.decontaminate.files:
        system, path = fsspec.core.url_to_fs(file)
        if system.exists(path):
            total += (system.size(path) or 0) / (_COMPRESSED_SHARE if file.endswith((".gz", ".zst")) else 1)
    return total


def _stored_share(looks: Sequence[Look]) -> float:
    codec = pa.Codec("zstd", compression_level=1)
    stored = plain = 0.0
    for look in looks:
        text = "".join(look.texts).encode()
        pieces = [text[at : at + _COMPRESSED_AT_ONCE] for at in range(0, len(text), _COMPRESSED_AT_ONCE)]
        stored += look.text_scale * sum(codec.compress(piece).size for piece in pieces)
        plain += look.text_scale * len(text)
    return stored / max(1.0, plain)


def _bytes_of(looks: Sequence[Look]) -> int:
    return sum(len(text.encode()) for look in looks for text in look.texts)


def _measure_encoder(recipe: Recipe, chunks: Sequence[str]) -> tuple[float | None, tuple[float, float, int, int], int]:
    """Return seconds per chunk encoded; base, slope, terms and chunks of the fit; and the width of the vectors."""
    no_fit = (0.0, 0.0, 0, 0)
    if recipe.encoder.kind == "openai":
        return None, no_fit, recipe.encoder.openai.dimensions or _OPENAI_DIMENSIONS
    if recipe.encoder.kind == "sentence-transformers" and not is_installed():
        return None, no_fit, _MODEL_DIMENSIONS
    few = list(chunks[:: max(1, len(chunks) // _MEASURED_CHUNKS[recipe.encoder.kind])])
    few = few[: _MEASURED_CHUNKS[recipe.encoder.kind]]
    if recipe.encoder.kind == "lsa":
        return _measure_lsa(recipe, few)
    execution, dimensions = choose_execution(recipe.encoder.name, recipe.encoder.sentence_transformers, few)
    return execution.threads / execution.chunks_per_second, no_fit, dimensions


def _measure_lsa(recipe: Recipe, few: Sequence[str]) -> tuple[float, tuple[float, float, int, int], int]:
    from nextlong.embed.lsa import Lsa, fit_lsa

    options = recipe.encoder.lsa

    def fit(texts: Sequence[str]) -> Lsa:
        return fit_lsa(texts, dimensions=options.dimensions, max_terms=options.max_terms, seed=0)

    fit(few[:_WARM_UP_CHUNKS])
    part = few[::_FIT_SLOPE_SHARE]
    _, part_s = _timed(lambda: fit(part))
    model, whole_s = _timed(lambda: fit(few))
    _, encode_s = _timed(lambda: model.encode(few))
    slope = max(0.0, whole_s - part_s) / max(1, len(few) - len(part))
    # As wide as the sample has chunks: with more of them the vectors would be wider.
    dimensions = options.dimensions if model.dimensions == len(few) == _MEASURED_CHUNKS["lsa"] else model.dimensions
    return encode_s / max(1, len(few)), (whole_s - slope * len(few), slope, len(model.terms), len(few)), dimensions


def _measure_search(dimensions: int) -> float:
    """Return the seconds that a query and a vector take together: one product of blocks, and what keeps the best."""
    stored = np.random.default_rng(0).standard_normal((_SEARCH_ROWS, dimensions), dtype=np.float32).astype(np.float16)
    queries = stored[:_SEARCH_QUERIES].astype(np.float32)
    with threadpool_limits(1):  # as workers have
        _, seconds = _timed(lambda: queries @ stored.astype(np.float32).T)
    return _SEARCH_OVERHEAD * seconds / (_SEARCH_QUERIES * _SEARCH_ROWS)


def _measure_tokenizer(recipe: Recipe, chunks: Sequence[str]) -> tuple[float, float, float]:
    """Return seconds a character, characters a token, and the share of text lost; one yet to be trained is trained small."""
    from nextlong.tokens.encode import TextEncoder
    from nextlong.tokens.lost import lost_share
    from nextlong.tokens.tokenizer import load_tokenizer, special_id, train_bpe

    few = list(itertools.islice(chunks[:: max(1, len(chunks) // _TOKENIZED_CHUNKS)], _TOKENIZED_CHUNKS))
    others = chunks[1 :: max(2, len(chunks) // _TOKENIZED_CHUNKS)] or few
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        tokenizer = train_bpe(few, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    for key in ("bos", "eos"):
        special_id(tokenizer, getattr(recipe.tokenizer, key), key=f"tokenizer.{key}")
    encoder = TextEncoder(tokenizer, engine=recipe.tokenizer.engine)
    encoder.settle()
    encoder.encode_batch(others)  # fills its cache, as a long run does, but not with the words of these very chunks
    (ids, _), seconds = _timed(lambda: encoder.encode_batch(few))
    chars = max(1, sum(map(len, few)))
    return seconds / chars, chars / max(1, len(ids)), lost_share(tokenizer, few)


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its processor seconds on one thread, as workers have: a busy machine does not show."""
    with threadpool_limits(1):
        began = time.process_time()
        result = call()
        return result, time.process_time() - began
