"""Choose: in which precision, on how many threads and in how large tasks a model runs, by trying it.

In:  a model for sentence-transformers and some of the corpus' chunks.
Out: an ExecutionResult. The manifest of the encoder step keeps it, and every task of the run encodes by it, also where the run is
resumed on another machine: another choice gives vectors that differ in the last digits.

What a processor says of itself does not tell: of two that know bfloat16, one may be the slower in it and the other twice as
fast. Trials on a processor are timed by processor seconds: with every core at work it is chunks a processor second that
count, and a busy machine does not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.artifacts.lookup import count_chunks, iter_chunk_texts
from nextlong.artifacts.results import ExecutionResult
from nextlong.engine.executor import usable_cpus
from nextlong.retrieval.encoders.base import SLICE_CHUNKS, SLICE_S
from nextlong.retrieval.encoders.sentence_transformers import (
    SentenceTransformersEncoder,
    SentenceTransformersOptions,
)

_TRIAL_S: Final = 0.7  # of float32 on one thread
_FEWEST, _MOST = 2, 32  # chunks tried
_CLEARLY: Final = 1.2  # times as fast, so that noise does not choose
_LEAST_COSINE: Final = 0.999  # to the vectors in float32
_TRIED_CHUNKS: Final = 32
_CALL_CHUNKS: Final = 128  # on a processor
_GPU_CALL_CHUNKS: Final = 4096


def try_model(
    _out: Path, *, documents: Sequence[Path], chunks: Sequence[Path], encoder: recipe.Encoder
) -> ExecutionResult:
    """Return how the model runs best here, tried on chunks of all shards; writes no file."""
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        rows = np.arange(count_chunks(chunks_path))
        rows = rows[:: max(1, len(rows) * len(documents) // _TRIED_CHUNKS)]
        texts += (text for batch in iter_chunk_texts(documents_path, chunks_path, rows) for text in batch.texts)
    return choose_execution(encoder.name, encoder.options_as(SentenceTransformersOptions), texts[:_TRIED_CHUNKS])


def choose_execution(name: str, options: SentenceTransformersOptions, texts: Sequence[str]) -> ExecutionResult:
    """Return how to run the model. Raises EncoderError where it cannot be loaded."""
    encoder = SentenceTransformersEncoder(name, options, threads=1)
    if not texts or encoder.device != "cpu":
        rate = _rate(encoder, texts, time.perf_counter)
        return _execution(encoder, encoder.dtype, 1, rate, call_chunks=_GPU_CALL_CHUNKS)
    first_rate = _rate(encoder, texts[:_FEWEST], time.process_time)
    few = texts[: int(np.clip(first_rate * _TRIAL_S, _FEWEST, _MOST))]
    rate, vectors = _timed(encoder, few)
    dtype, threads = encoder.dtype, 1
    if options.dtype == "auto" and options.backend == "torch":
        encoder.convert("bfloat16")
        encoder.encode(few[:1])
        half_rate, half_vectors = _timed(encoder, few)
        if half_rate > _CLEARLY * rate and np.einsum("nd,nd->n", vectors, half_vectors).min() >= _LEAST_COSINE:
            dtype, rate = "bfloat16", half_rate
        encoder.convert(dtype)
    if options.backend == "torch" and usable_cpus() > 1:
        encoder.use_threads(usable_cpus())
        encoder.encode(few[:1])
        all_rate, _ = _timed(encoder, few)
        if all_rate > _CLEARLY * rate or not _fits(encoder.weight_bytes):
            threads, rate = usable_cpus(), all_rate
        encoder.use_threads(1)
    return _execution(encoder, dtype, threads, rate * threads, call_chunks=_CALL_CHUNKS)


def _execution(
    encoder: SentenceTransformersEncoder, dtype: str, threads: int, rate: float, *, call_chunks: int
) -> ExecutionResult:
    task_chunks = max(1, min(SLICE_CHUNKS, int(rate * SLICE_S)))
    if task_chunks >= call_chunks:
        task_chunks -= task_chunks % call_chunks
    else:
        call_chunks = task_chunks = 1 << (task_chunks.bit_length() - 1)
    return ExecutionResult(
        device=encoder.device,
        dtype=dtype,
        threads=threads,
        call_chunks=call_chunks,
        task_chunks=task_chunks,
        chunks_per_second=round(rate, 2),
        dimensions=encoder.dimensions,
    )


def _rate(encoder: SentenceTransformersEncoder, texts: Sequence[str], clock: Callable[[], float]) -> float:
    encoder.encode(texts[:1])  # the first call pays for setting up
    began = clock()
    encoder.encode(texts)
    return len(texts) / max(1e-9, clock() - began)


def _timed(encoder: SentenceTransformersEncoder, texts: Sequence[str]) -> tuple[float, NDArray[np.float32]]:
    """Return chunks a processor second, and the vectors."""
    began = time.process_time()
    vectors = encoder.encode(texts)
    return len(texts) / max(1e-9, time.process_time() - began), vectors


def _fits(weight_bytes: int) -> bool:
    """Say whether a copy of the model for each processor takes at most half of the memory that is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    return not free or weight_bytes * usable_cpus() <= free / 2
