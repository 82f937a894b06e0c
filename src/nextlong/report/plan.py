"""Plan: what would run, what is done, and what it will take, before anything runs.

In:  a recipe. Out: a table: documents, chunks, and for every step its state, time, disk and memory.
What is not done yet is estimated from a small sample of the user's own files, read, chunked, encoded and tokenized here
and now; nothing is written. Times assume that all workers are as fast as this one core was on the sample.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from nextlong import pipeline
from nextlong.encoders import load_encoder
from nextlong.engine import runner
from nextlong.engine.step import Step
from nextlong.errors import CorpusError, RunError
from nextlong.recipe import Recipe
from nextlong.report import tables
from nextlong.stages.chunk import chunk_text
from nextlong.stages.ingest import content_hash
from nextlong.stages.records import Record, read_records
from nextlong.stages.sizes import estimate_text_bytes
from nextlong.stages.sources import InputFile
from nextlong.steps import candidates

T = TypeVar("T")

_SAMPLE_CHARS = 2_000_000
_SAMPLE_FILES = 4  # a source's files are often alike, sources are not
_MEASURED_CHUNKS = {"lsa": 1024, "sentence-transformers": 32}
_SEARCH_ROWS = 8192
_WORKER_MB = 130  # a worker with its libraries, measured (bench/README.md)
_MB = 1_000_000


@dataclass(frozen=True)
class Sample:
    """What one look at the user's files showed; times are seconds of one core."""

    documents: int
    chars: int
    chunk_chars: float
    queries_per_meta: float
    read_s_per_char: float
    chunk_s_per_char: float
    encode_s_per_chunk: float | None  # None: an endpoint is not asked for a plan
    fit_s_per_chunk: float
    dimensions: int
    search_s_per_pair: float
    tokenize_s_per_char: float
    chars_per_token: float


@dataclass(frozen=True)
class Cost:
    """What a step will take; seconds None: unknown."""

    seconds: float | None
    disk_bytes: float
    memory_mb: float


def show(recipe: Recipe, console: Console) -> None:
    """Print the plan of a recipe. Raises the user's errors that `run` would raise before its first step."""
    files = pipeline.input_files(recipe)
    steps = pipeline.route(recipe, files)
    run_dir = pipeline.run_dir_of(recipe)
    states = [_state(step, run_dir) for step in steps]
    costs: dict[str, Cost] = {}
    if any(not state.startswith("done") for state in states):
        _check_writable(run_dir)
        text_bytes = sum(
            estimate_text_bytes(own, source) for own, source in zip(files, recipe.ingest.sources, strict=True)
        )
        sample = measure(recipe, files)
        costs = estimate(recipe, sample, text_bytes)
        scale = text_bytes / max(1, sample.chars)
        console.print(
            f"about {sample.documents * scale:,.0f} documents, {text_bytes / _MB:,.1f} MB of text, "
            f"{text_bytes / sample.chunk_chars:,.0f} chunks of {sample.chunk_chars:,.0f} characters on average, "
            f"{sample.chars_per_token:.2f} characters per token; {pipeline.worker_count(recipe)} workers",
            highlight=False,
            soft_wrap=True,
        )
    _print(steps, states, costs, console)


def _check_writable(run_dir: Path) -> None:
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"run_dir={run_dir} cannot be written: {there} is no folder that you may write to")


def _state(step: Step, run_dir: Path) -> str:
    done = runner.find_done(step, run_dir)
    if done is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in {done.manifest['seconds']:,.1f} s"
    begun = runner.begun_tasks(step, run_dir)
    return f"begun, {begun} tasks done" if begun else "to do"


def _print(steps: Sequence[Step], states: Sequence[str], costs: dict[str, Cost], console: Console) -> None:
    table = tables.table()
    for heading in ("step", "state", "time", "disk", "memory"):
        table.add_column(heading, justify="left" if heading in ("step", "state") else "right", no_wrap=True)
    todo = []
    for step, state in zip(steps, states, strict=True):
        cost = None if state.startswith("done") else costs.get(step.name)
        if cost is not None:
            todo.append(cost)
        table.add_row(step.name, state, *(_cells(cost) if cost else ("", "", "")))
    if todo:
        seconds = None if any(cost.seconds is None for cost in todo) else sum(cost.seconds or 0 for cost in todo)
        whole = Cost(seconds, sum(cost.disk_bytes for cost in todo), max(cost.memory_mb for cost in todo))
        table.add_row("all to do", "", *_cells(whole), style="bold")
    tables.show(table, console)


def _cells(cost: Cost) -> tuple[str, str, str]:
    if cost.seconds is None:
        told = "the endpoint's"
    elif cost.seconds < 120:
        told = f"{max(0.1, cost.seconds):,.1f} s"
    else:
        told = f"{cost.seconds / 60:,.0f} min" if cost.seconds < 7200 else f"{cost.seconds / 3600:,.1f} h"
    return told, f"{cost.disk_bytes / _MB:,.1f} MB", f"{cost.memory_mb:,.0f} MB"


def measure(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Sample:
    """Read a sample of every source and time each kind of work on it. Raises CorpusError if it holds no document."""
    texts, read_s = _timed(lambda: list(_sample_texts(recipe, files)))
    if not texts:
        raise CorpusError(
            f"no document was found at the beginning of {files[0][0].path} or other files of ingest.sources: they are empty "
            "or cannot be read; `nextlong run` names every reject"
        )
    chars = sum(map(len, texts))
    options = recipe.chunk.model_dump()
    spans, chunk_s = _timed(lambda: [chunk_text(text, **options) for text in texts])
    chunks = [text[start:end] for text, own in zip(texts, spans, strict=True) for start, end in own]
    metas = [len(own) for own in spans if len(own) >= recipe.compose.min_meta_chunks]
    encode_s, fit_s, dimensions = _measure_encoder(recipe, chunks)
    tokenize_s, chars_per_token = _measure_tokenizer(recipe, chunks)
    return Sample(
        documents=len(texts),
        chars=chars,
        chunk_chars=chars / max(1, len(chunks)),
        queries_per_meta=sum(metas) / max(1, len(metas)),
        read_s_per_char=read_s / chars,
        chunk_s_per_char=chunk_s / chars,
        encode_s_per_chunk=encode_s,
        fit_s_per_chunk=fit_s,
        dimensions=dimensions,
        search_s_per_pair=_measure_search(dimensions),
        tokenize_s_per_char=tokenize_s,
        chars_per_token=chars_per_token,
    )


def _sample_texts(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Iterator[str]:
    places = [
        (source, file)
        for source, own in zip(recipe.ingest.sources, files, strict=True)
        for file in own[:: max(1, len(own) // _SAMPLE_FILES)][:_SAMPLE_FILES]
    ]
    budget = _SAMPLE_CHARS // len(places)
    for source, file in places:
        left = budget
        for record in read_records(file, source, max_document_chars=recipe.ingest.max_document_chars):
            if isinstance(record, Record) and record.text.strip():
                content_hash(record.text.encode())  # ingest hashes too
                yield record.text
                left -= len(record.text)
            if left <= 0:
                break


def _measure_encoder(recipe: Recipe, chunks: Sequence[str]) -> tuple[float | None, float, int]:
    """Return seconds per chunk encoded, seconds per chunk fitted, and the width of the vectors."""
    if recipe.encoder.kind == "openai":
        return None, 0.0, recipe.encoder.openai.dimensions or 1536
    few = list(chunks[: _MEASURED_CHUNKS[recipe.encoder.kind]])
    if recipe.encoder.kind == "lsa":
        from nextlong.encoders.lsa import fit_lsa

        options = recipe.encoder.lsa
        model, fit_s = _timed(lambda: fit_lsa(few, dimensions=options.dimensions, max_terms=options.max_terms, seed=0))
        _, encode_s = _timed(lambda: model.encode(few))
        return encode_s / max(1, len(few)), fit_s / max(1, len(few)), options.dimensions
    encoder = load_encoder(recipe.encoder)
    encoder.encode(few[:1])  # the first call pays for setting up
    _, encode_s = _timed(lambda: encoder.encode(few))
    return encode_s / max(1, len(few)), 0.0, encoder.dimensions


def _measure_search(dimensions: int) -> float:
    import faiss

    block = np.random.default_rng(0).standard_normal((_SEARCH_ROWS, dimensions), dtype=np.float32)
    _, seconds = _timed(lambda: faiss.knn(block[:256], block, 1024, metric=faiss.METRIC_INNER_PRODUCT))
    return seconds / (256 * _SEARCH_ROWS)


def _measure_tokenizer(recipe: Recipe, chunks: Sequence[str]) -> tuple[float, float]:
    """Return seconds per character and characters per token; a tokenizer that is yet to be trained is trained small."""
    from nextlong.stages.fast_bpe import TextEncoder
    from nextlong.stages.tokenizer import load_tokenizer, special_id, train_bpe

    few = list(itertools.islice(chunks, 512))
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        tokenizer = train_bpe(few, vocab_size=min(recipe.tokenizer.train, 4096))
    for key in ("bos", "eos"):
        special_id(tokenizer, getattr(recipe.tokenizer, key), key=f"tokenizer.{key}")
    encoder = TextEncoder(tokenizer)
    encoder.encode_batch(few)  # fills its cache, as a long run does
    (ids, _), seconds = _timed(lambda: encoder.encode_batch(few))
    chars = max(1, sum(map(len, few)))
    return seconds / chars, chars / max(1, len(ids))


def estimate(recipe: Recipe, sample: Sample, text_bytes: float) -> dict[str, Cost]:
    """Scale a sample up to the whole corpus: what each step of the route will take."""
    workers = pipeline.worker_count(recipe)
    base = _WORKER_MB * (workers + 1)
    chunks = text_bytes / sample.chunk_chars
    documents = sample.documents * text_bytes / sample.chars
    asked = recipe.compose.sequences
    sequences = documents if asked == "all" else min(asked, documents)
    queries = sequences * 1.25 * sample.queries_per_meta
    tokens = sequences * recipe.compose.target_tokens
    drafted_chars = min(text_bytes, tokens * sample.chars_per_token * recipe.compose.draft_factor)
    fit_chunks = min(chunks, recipe.encoder.lsa.fit_chunks) if recipe.encoder.kind == "lsa" else 0
    spans = tokens * sample.chars_per_token / sample.chunk_chars
    encode_s = None if sample.encode_s_per_chunk is None else chunks * sample.encode_s_per_chunk / workers
    fetched = candidates.fetch_of(recipe)
    costs = {
        "ingest": Cost(text_bytes * sample.read_s_per_char / workers, text_bytes * 0.4, base),
        "select": Cost(documents * 2e-7, documents, base),
        "chunk": Cost(text_bytes * sample.chunk_s_per_char / workers, chunks * 21, base),
        "encoder": Cost(
            fit_chunks * sample.fit_s_per_chunk,
            4 * sample.dimensions * recipe.encoder.lsa.max_terms * bool(fit_chunks),
            base + fit_chunks * 0.012,
        ),
        "embed": Cost(encode_s, chunks * sample.dimensions * 2, base),
        "metas": Cost(chunks * 2e-8, queries * 40, base),
        "mine": Cost(
            queries * chunks * sample.search_s_per_pair / workers,
            queries * fetched * 12,
            base + workers * 32_768 * sample.dimensions * 4 / _MB,
        ),
        "tokenizer": Cost(3.0, 5e6, base + 150),
        "draft": Cost(queries * fetched * 1e-7, spans * 1.5 * 20, base),
        "refer": Cost(chunks * 1e-8, chunks * 8, base),
        "tokens": Cost(
            drafted_chars * sample.tokenize_s_per_char / workers,
            drafted_chars / sample.chars_per_token * 4,
            base + workers * 150,
        ),
        "compose": Cost(spans * 1e-5 / workers, spans * 30, base),
    }
    for name in recipe.export.formats:
        size = tokens * (2.2 if name == "parquet" else sample.chars_per_token * 1.2)
        costs[name] = Cost(size / 100e6 / workers, size, base + workers * 150)
    return costs


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began
