"""Embed: one unit vector a chunk, and one a document.

In:  DOCUMENTS and CHUNKS, and an encoder, which `prepare` may have fitted or tried.
Out: VECTORS, float16 (rows, dimensions), row i for chunk row i; unit length, so that inner product is cosine. Half precision
     is enough for mining: it moves a cosine by less than 0.001. With a shortlist, the vectors of all other chunks are zero.

A task of a transformer takes a slice of a shard: a shard may take hours. A task on the last of a shard's slices then joins them.
Which texts are encoded together shows in the last digits, so the slices depend on the shards and on the `ExecutionResult`,
never on the workers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.artifacts.finished import chunks_of
from nextlong.artifacts.lookup import chunk_name, count_chunks, iter_chunk_texts, read_chunks
from nextlong.artifacts.results import EmbedResult, ExecutionResult
from nextlong.engine.step import Artifacts, Estimate, Join, Step, Task, TaskResult, Work, each_shard, per_shard
from nextlong.errors import EncoderError
from nextlong.recipe import Recipe
from nextlong.retrieval.encoders.base import SLICE_CHUNKS, SLICE_S, LoadedEncoder, kind_of, load_encoder
from nextlong.retrieval.shortlist import embedded_rows
from nextlong.text import Json

_BLOCK_CHUNKS: Final = 4096  # encoded at once: an encoder sorts them by length, or keeps several requests under way
_LENGTH_TOLERANCE: Final = 1e-2
_LEAST_TASKS: Final = 16  # of a small corpus cut into slices
_AVERAGED_CHUNKS: Final = 32_768  # vectors held as float32 at a time: 32 MB at 256 dimensions
_LEAST_LENGTH: Final = 1e-3  # of a mean; below it chunks point in opposite directions and half precision is noise


def embed_shard(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    encoder: recipe.Encoder,
    fitted: Path | None,
    shortlist: Path | None = None,
) -> EmbedResult:
    """Embed one shard; writes `{out}.vectors.npy`, float16 (chunks, dimensions). Only chunks on the `shortlist`, if there is one.

    Raises EncoderError, naming chunk and document, where a vector is not finite, zero or of the wrong width.
    """
    model = _loaded(encoder, fitted, None)
    rows = embedded_rows(chunks, shortlist)
    blocks = _encode_rows(model, documents, chunks, rows, encoder=encoder, at_once=_BLOCK_CHUNKS)
    return _write_vectors(out, blocks, rows=rows, chunks=count_chunks(chunks), dimensions=model.dimensions)


def _write_vectors(
    out: Path, blocks: Iterable[NDArray[np.float16]], *, rows: NDArray[np.int64], chunks: int, dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` block by block: the vectors of ascending chunk `rows`, and zero for all others."""
    written = done = 0
    with open(f"{out}.vectors.npy", "wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (chunks, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            places = rows[done : done + len(block)] - written
            spread = np.zeros((int(places[-1]) + 1, dimensions), "<f2")
            spread[places] = block
            file.write(spread.data)
            written, done = written + len(spread), done + len(block)
        file.truncate(file.tell() + 2 * dimensions * (chunks - written))  # zeros
    return EmbedResult(chunks=done, dimensions=dimensions)


@functools.lru_cache(maxsize=1)
def _loaded(encoder: recipe.Encoder, fitted: Path | None, execution: ExecutionResult | None) -> LoadedEncoder:
    # One worker embeds many shards or slices; the model is loaded once.
    if execution is None:
        return load_encoder(encoder, fitted=fitted)
    model = load_encoder(encoder, dtype=execution.dtype, threads=execution.threads)
    device = getattr(model, "device", execution.device)
    if device != execution.device:
        raise EncoderError(
            f"encoder.model={encoder.model} was tried on {execution.device}, and this task would run it on {device}, which gives "
            f"other vectors; run where {execution.device} is available, or set encoder.sentence_transformers.device={device}"
        )
    return model


def _encode_rows(
    model: LoadedEncoder,
    documents: Path,
    chunks: Path,
    rows: NDArray[np.int64],
    *,
    encoder: recipe.Encoder,
    at_once: int,
) -> Iterator[NDArray[np.float16]]:
    """Yield the vectors of ascending chunk rows, `at_once` by `at_once`. Raises EncoderError, naming a chunk, if one is wrong."""
    done = 0
    waiting: list[str] = []

    def encoded(texts: list[str]) -> NDArray[np.float16]:
        vectors = model.encode(texts)
        place, what, shape = 0, "", (len(texts), model.dimensions)
        if vectors.shape != shape:
            what = f"and those after it vectors of shape {vectors.shape}, not {shape}"
        else:
            lengths = np.linalg.norm(vectors, axis=1)
            wrong = np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH_TOLERANCE))  # so that NaN is wrong
            if len(wrong):
                place = int(wrong[0])
                what = f"a vector of length {lengths[place]:.4g} where it must be 1"
        if what:
            where = chunk_name(int(rows[done + place]), documents=[documents], chunks=[chunks])
            raise EncoderError(f"encoder.model={encoder.model} gave {where} {what}; {kind_of(encoder).cure}")
        return vectors.astype("<f2")

    for batch in iter_chunk_texts(documents, chunks, rows):
        waiting += batch.texts
        while len(waiting) >= at_once:
            yield encoded(waiting[:at_once])
            waiting, done = waiting[at_once:], done + at_once
    if waiting:
        yield encoded(waiting)


def slices_of(row_counts: Sequence[int], execution: ExecutionResult) -> list[tuple[int, int, int]]:
    """Return shard, first and last of the rows of each slice; small corpora are cut finer, to give all workers something."""
    finest = -(-sum(row_counts) // _LEAST_TASKS)
    finest += -finest % execution.call_chunks
    size = max(execution.call_chunks, min(execution.task_chunks, finest))
    return [
        (shard, first, min(first + size, count))
        for shard, count in enumerate(row_counts)
        for first in range(0, count, size)
    ]


def embed_slice(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    first: int,
    last: int,
    encoder: recipe.Encoder,
    execution: ExecutionResult,
    shortlist: Path | None = None,
) -> EmbedResult:
    """Embed [first, last) of the rows of a shard that are embedded; writes `{out}.slice.npy`, float16."""
    model = _loaded(encoder, None, execution)
    rows = embedded_rows(chunks, shortlist)[first:last]
    parts = _encode_rows(model, documents, chunks, rows, encoder=encoder, at_once=execution.call_chunks)
    np.save(f"{out}.slice.npy", np.concatenate(list(parts)))
    return EmbedResult(chunks=len(rows), dimensions=model.dimensions)


def join_slices(
    out: Path, *, tasks: Sequence[int], chunks: Path, shortlist: Path | None, dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` of a shard of `chunks` from the slices that these tasks wrote, in their order."""
    folder = out.parent.parent  # this task's own is inside it
    slices = (np.load(folder / f"part-{number:05d}.slice.npy", mmap_mode="r") for number in tasks)
    rows = embedded_rows(chunks, shortlist)
    return _write_vectors(out, slices, rows=rows, chunks=count_chunks(chunks), dimensions=dimensions)


def average_shard(out: Path, *, chunks: Path, vectors: Path, of: Literal["mean", "first"]) -> TaskResult:
    """Write `{out}.document_vectors.npy`, float16 (documents, dimensions): a unit vector for each document with chunks.

    `of="mean"`: the mean of the document's chunk vectors at unit length. `"first"`: its first chunk's vector, which is what a
    model that truncates long texts would have given.
    """
    table = read_chunks(chunks)
    doc_rows, first, counts = np.unique(table["doc_row"], return_index=True, return_counts=True)
    chunk_vectors = np.load(vectors, mmap_mode="r")
    shape = (len(doc_rows), chunk_vectors.shape[1])
    with open(f"{out}.document_vectors.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
        for low, high in _document_ranges(counts):
            if of == "first":
                block_vectors = chunk_vectors[first[low:high]]
            else:
                block = chunk_vectors[first[low] : first[high - 1] + counts[high - 1]]
                block_vectors = average(block, first[low:high] - first[low])
            file.write(block_vectors.astype("<f2").tobytes())
    return TaskResult()


def average(vectors: NDArray[np.float16], first: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the unit mean, shape (documents, dimensions), of runs of rows that start at `first` and tile `vectors`.

    Where the rows of a document cancel out, the mean has no direction and its first row stands for it.
    """
    rows = vectors.astype(np.float32)
    sums = np.add.reduceat(rows, first, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    counts = np.diff(np.append(first, len(rows)))[:, None]
    unit: NDArray[np.float32] = np.where(
        lengths > _LEAST_LENGTH * counts, sums / np.maximum(lengths, _LEAST_LENGTH), rows[first]
    )
    return unit


def _document_ranges(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of documents that together have at most `_AVERAGED_CHUNKS` chunks, or of one that alone has more."""
    ends = np.cumsum(counts)
    low = 0
    while low < len(counts):
        begun = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, begun + _AVERAGED_CHUNKS, side="right")))
        yield low, high
        low = high


def encoder_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """The chunks → whatever the encoder needs of them before the first is embedded; nothing for some."""
    kind, encoder = kind_of(recipe.encoder), recipe.encoder

    def tasks(done: Artifacts) -> list[Task]:
        documents, chunks = done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow")
        return kind.prepare(encoder, documents=documents, chunks=chunks, seed=recipe.seed)

    config = {"model": encoder.model} | encoder.options.identity() | kind.depends_on(encoder, seed=recipe.seed)
    resources, estimate = kind.resources(encoder), kind.estimate(encoder)
    return Step(
        "encoder", kind.version, config, (ingest, chunk), tasks, kind.result, resources=resources, estimate=estimate
    )


def embed_step(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step, shortlist: Step | None = None) -> Step:
    """CHUNKS, all or those on the shortlist → VECTORS: by shards, or by slices of them where the encoder asks for that."""
    kind = kind_of(recipe.encoder)
    inputs = (ingest, chunk, encoder) if shortlist is None else (ingest, chunk, encoder, shortlist)
    estimate = Estimate(
        work="embedded",
        seconds=6e-5,
        disk=lambda amounts: amounts.chunks * amounts.dimensions,
        bytes=2,
        tasks=per_shard,
        rate=kind.rate,
    )
    resources = kind.resources(recipe.encoder)

    def shards(done: Artifacts) -> list[tuple[Path, Path, Path | None]]:
        documents, chunks = done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow")
        marks = [None] * len(chunks) if shortlist is None else done["shortlist"].files(".shortlist.npy")
        return list(zip(documents, chunks, marks, strict=True))

    def by_shards(done: Artifacts) -> list[Task]:
        fitted = done["encoder"].stem() if kind.needs_fit else None
        embed = partial(embed_shard, encoder=recipe.encoder, fitted=fitted)
        return [
            partial(embed, documents=documents, chunks=chunks, shortlist=marks)
            for documents, chunks, marks in shards(done)
        ]

    def by_slices(done: Artifacts) -> Work:
        execution = done["encoder"].result(ExecutionResult)
        of_shard = shards(done)
        counts = [len(embedded_rows(chunks, marks)) for _, chunks, marks in of_shard]
        embed = partial(embed_slice, encoder=recipe.encoder, execution=execution)
        each: list[Task] = []
        members: list[list[int]] = [[] for _ in of_shard]  # of each shard, the numbers of its tasks
        for number, (shard, first, last) in enumerate(slices_of(counts, execution)):
            documents, chunks, marks = of_shard[shard]
            each.append(partial(embed, documents=documents, chunks=chunks, first=first, last=last, shortlist=marks))
            members[shard].append(number)

        def join(shard: int) -> Join:
            _, chunks, marks = of_shard[shard]
            task = partial(
                join_slices, tasks=members[shard], chunks=chunks, shortlist=marks, dimensions=execution.dimensions
            )
            return Join(members[shard], lambda _: task, True)

        joins = [join(shard) for shard in range(len(of_shard))]
        return Work(each, joins, threads=execution.threads, gpu="needed" if execution.device == "cuda" else None)

    if kind.embeds == "shards":
        return Step("embed", 1, {}, inputs, by_shards, EmbedResult, resources=resources, estimate=estimate)
    estimate = replace(
        estimate, tasks=lambda amounts: max(_LEAST_TASKS, amounts.embedded / SLICE_CHUNKS), task_s=SLICE_S
    )
    return Step("embed", 3, {}, inputs, by_slices, EmbedResult, resources=resources, estimate=estimate)


def document_vectors_step(recipe: Recipe, chunk: Step, embed: Step) -> Step:
    """VECTORS → one vector a document."""
    config: Json = {"of": recipe.documents.vector}
    files = {"chunks": (chunk, ".chunks.arrow"), "vectors": (embed, ".vectors.npy")}
    tasks = each_shard(partial(average_shard, **config), **files)
    estimate = Estimate(
        work=lambda amounts: amounts.chunks * amounts.dimensions,
        seconds=2e-9,
        disk=lambda amounts: amounts.kept_documents * (amounts.dimensions + 8),
        bytes=2,
        tasks=per_shard,
    )
    return Step("document_vectors", 2, config, (chunk, embed), tasks, estimate=estimate)
