"""Embed chunks and documents as unit vectors.

In:  DOCUMENTS and CHUNKS, and an encoder, which its preparation step may have fitted or tried.
Out: VECTORS, float16 (rows, dimensions), row i for chunk row i, of unit length, so that the inner product is the cosine.
     Half precision changes a cosine by less than 0.001. With a shortlist, the vectors of all other chunks are zero.

A shard may take a transformer hours, so its task embeds only a slice, and a joining task follows the last slice of each
shard. The last digits of a vector depend on which texts are encoded together, so slices depend only on the shards and
the `ExecutionResult`, never on the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import (
    chunk_names,
    corpus,
    count_chunks,
    iter_chunk_texts,
    read_chunks,
    runs_within,
)
from nextlong.artifacts.results import ChunkFiles, ExecutionResult
from nextlong.engine.step import (
    Artifacts,
    Join,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    Work,
    each_shard,
)
from nextlong.errors import EncoderError
from nextlong.retrieval.encoders.base import (
    LoadedEncoder,
    Prepared,
    kind_of,
)
from nextlong.retrieval.shortlist import ShortlistFiles, embedded_rows
from nextlong.text import Json

_Shard = tuple[
    Path, Path, Path | None
]  # the DOCUMENTS, CHUNKS and SHORTLIST (if any) of a shard

_BLOCK_CHUNKS: Final = 4096  # encoded at a time: an encoder sorts them by length, or keeps several requests in flight
_LENGTH_TOLERANCE: Final = 1e-2
MIN_SLICES: Final = 16  # into which a small corpus is sliced
_AVERAGED_CHUNKS: Final = (
    32_768  # vectors held as float32 at a time: 32 MB at 256 dimensions
)
_LEAST_LENGTH: Final = 1e-3  # of a mean vector; a shorter one is rounding noise of chunks in opposite directions


class EmbedResult(TaskResult):
    """The number of embedded chunks of a shard or slice, and the width of their vectors."""

    chunks: int
    dimensions: int


def embed_rows(
    out: Path,
    shard: _Shard,
    encoder: recipe.Encoder,
    prepared: Prepared = None,
    some_rows: slice = slice(None),
) -> EmbedResult:
    """Embed the chunks of a shard that are embedded (all, or the shortlisted), or `some_rows` of these.

    Writes `{out}.vectors.npy`, float16 (chunks, dimensions), or `{out}.slice.npy` if `prepared` is an ExecutionResult. Raises
    EncoderError, naming chunk and document, for a vector that is not finite, not of unit length or of the wrong width.
    """
    model, (documents, chunks, shortlist) = _loaded(encoder, prepared), shard
    rows = embedded_rows(chunks, shortlist)[some_rows]
    at_once = _BLOCK_CHUNKS
    if isinstance(prepared, ExecutionResult):
        at_once = prepared.chunks_at_once

    def blocks() -> Iterator[NDArray[np.float16]]:
        texts = chain.from_iterable(
            batch.texts for batch in iter_chunk_texts(documents, chunks, rows)
        )
        for done in range(0, len(rows), at_once):
            some = list(islice(texts, at_once))
            vectors, place, what = model.encode(some), 0, ""
            if vectors.shape != (shape := (len(some), model.dimensions)):
                what = (
                    f"and those after it vectors of shape {vectors.shape}, not {shape}"
                )
            else:
                lengths = np.linalg.norm(vectors, axis=1)
                wrong = np.flatnonzero(
                    ~(np.abs(lengths - 1) < _LENGTH_TOLERANCE)
                )  # so that NaN is wrong
                if len(wrong):
                    place = int(wrong[0])
                    what = f"a vector of length {lengths[place]:.4g} where it must be 1"
            if what:
                ids = rows[done + place : done + place + 1]
                ((document, ordinal),) = chunk_names(
                    ids, documents=[documents], chunks=[chunks]
                )
                source = f"{document} · chunk {ordinal}"
                raise EncoderError(
                    f"encoder.model={encoder.model} gave {source} {what}; {kind_of(encoder).cure}"
                )
            yield vectors.astype("<f2")

    if not isinstance(prepared, ExecutionResult):
        return _write_vectors(out, blocks(), shard, model.dimensions)
    np.save(f"{out}.slice.npy", np.concatenate(list(blocks())))
    return EmbedResult(chunks=len(rows), dimensions=model.dimensions)


def join_slices(
    out: Path, shard: _Shard, *, tasks: Sequence[int], dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` of a shard from the slices that the given tasks wrote, in order."""
    folder = out.parent.parent  # `out` is inside this task's private folder
    slices = (
        np.load(folder / f"part-{number:05d}.slice.npy", mmap_mode="r")
        for number in tasks
    )
    return _write_vectors(out, slices, shard, dimensions)


def _write_vectors(
    out: Path, blocks: Iterable[NDArray[np.float16]], shard: _Shard, dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` block by block: the vectors of the embedded rows of a shard, and zeros for all others."""
    _, path, shortlist = shard
    rows, chunks = embedded_rows(path, shortlist), count_chunks(path)
    written = done = 0
    with open(f"{out}.vectors.npy", "wb") as file:
        corpus_files.write_header(file, np.dtype("<f2"), chunks, dimensions)
        for block in blocks:
            places = rows[done : done + len(block)] - written
            spread = np.zeros((int(places[-1]) + 1, dimensions), "<f2")
            spread[places] = block
            file.write(spread.data)
            written, done = written + len(spread), done + len(block)
        file.truncate(file.tell() + 2 * dimensions * (chunks - written))  # zeros
    return EmbedResult(chunks=done, dimensions=dimensions)


@lru_cache(maxsize=1)
def _loaded(encoder: recipe.Encoder, prepared: Prepared) -> LoadedEncoder:
    # A worker embeds many shards or slices, and loads the model once.
    model = kind_of(encoder).load(encoder, prepared)
    if not isinstance(prepared, ExecutionResult):
        return model
    if (device := getattr(model, "device", prepared.device)) != prepared.device:
        cure = f"run where {prepared.device} is available, or set encoder.sentence_transformers.device={device}"
        tried = f"was tried on {prepared.device}, but this task would run on {device}, which gives different vectors"
        raise EncoderError(f"encoder.model={encoder.model} {tried}; {cure}")
    return model


def slices_of(
    row_counts: Sequence[int], execution: ExecutionResult
) -> list[tuple[int, slice]]:
    """Return the shard and the rows of each slice; a small corpus is cut into at least `MIN_SLICES` slices."""
    finest = -(-sum(row_counts) // MIN_SLICES)
    finest += -finest % execution.call_chunks
    size, counts = (
        max(execution.call_chunks, min(execution.task_chunks, finest)),
        enumerate(row_counts),
    )
    return [
        (shard, slice(first, min(first + size, rows)))
        for shard, rows in counts
        for first in range(0, rows, size)
    ]


def average_shard(
    out: Path, *, chunks: Path, vectors: Path, of: Literal["mean", "first"]
) -> TaskResult:
    """Write `{out}.document_vectors.npy`, float16 (documents, dimensions): the mean of the chunk vectors, or the first one."""
    doc_rows, first, counts = np.unique(
        read_chunks(chunks)["doc_row"], return_index=True, return_counts=True
    )
    chunk_vectors = np.load(vectors, mmap_mode="r")
    with open(f"{out}.document_vectors.npy", "wb") as file:
        corpus_files.write_header(
            file, np.dtype("<f2"), len(doc_rows), chunk_vectors.shape[1]
        )
        ends = np.append(0, np.cumsum(counts))
        for low, high in runs_within(counts, _AVERAGED_CHUNKS):
            begun = int(ends[low])
            units = chunk_vectors[first[low:high]]
            if of == "mean":
                rows = chunk_vectors[begun : ends[high]].astype(np.float32)
                sums = np.add.reduceat(rows, first[low:high] - begun, axis=0)
                lengths = np.linalg.norm(sums, axis=1, keepdims=True)
                # Where the chunk vectors of a document cancel out, the mean has no direction, and the first vector is used.
                has_direction = lengths > _LEAST_LENGTH * counts[low:high, None]
                units = np.where(
                    has_direction,
                    sums / np.maximum(lengths, _LEAST_LENGTH),
                    units.astype(np.float32),
                )
            file.write(units.astype("<f2").tobytes())
    return TaskResult()


class EmbedFiles(StepFiles):
    """The VECTORS of every shard, float16 (chunks, dimensions)."""

    step = "embed"
    vectors = ShardFiles(".vectors.npy")


class DocumentVectorsFiles(StepFiles):
    """One vector per document of every shard."""

    step = "document_vectors"
    vectors = ShardFiles(".document_vectors.npy")


def encoder_step(
    encoder: recipe.Encoder, ingest: Step, chunk: Step, *, seed: int
) -> Step:
    """Return the step that prepares the encoder before the first chunk is embedded; some encoders need none."""
    kind = kind_of(encoder)

    def tasks(done: Artifacts) -> list[Task]:
        return kind.prepare(encoder, corpus(done), seed=seed)

    depends_on = kind.depends_on(encoder, seed=seed)
    # The files of a local model say what it is; its path depends on the working directory.
    is_local = "files" in depends_on
    model = f"{encoder.section}:" if is_local else encoder.model
    config = {"model": model} | encoder.options.identity() | depends_on
    needs = kind.resources(encoder)
    return Step(
        "encoder",
        kind.version,
        config,
        (ingest, chunk),
        tasks,
        kind.result,
        resources=needs,
    )


def embed_step(
    encoder: recipe.Encoder,
    ingest: Step,
    chunk: Step,
    prepared: Step,
    shortlist: Step | None = None,
) -> Step:
    """Return the step from CHUNKS, all or the shortlisted, to VECTORS: by shards, or by slices if the encoder needs them."""
    kind = kind_of(encoder)
    inputs = (
        (ingest, chunk, prepared)
        if shortlist is None
        else (ingest, chunk, prepared, shortlist)
    )

    def tasks(done: Artifacts) -> Work:
        text = corpus(done)
        marks = (
            [None] * len(text.chunks)
            if shortlist is None
            else ShortlistFiles.of(done).marks
        )
        shards = [*zip(text.documents, text.chunks, marks, strict=True)]
        if kind.embeds == "shards":
            fitted = done["encoder"].stem() if kind.needs_fit else None
            return Work(
                [
                    partial(embed_rows, shard=shard, encoder=encoder, prepared=fitted)
                    for shard in shards
                ]
            )
        execution = done["encoder"].result(ExecutionResult)
        embed = partial(embed_rows, encoder=encoder, prepared=execution)
        slices = slices_of(
            [len(embedded_rows(chunks, mark)) for _, chunks, mark in shards], execution
        )
        each = [
            partial(embed, shard=shards[number], some_rows=rows)
            for number, rows in slices
        ]
        # (shards + 1,): the first slice of each shard; slices are ordered by shard.
        bounds = np.searchsorted(
            [number for number, _ in slices], np.arange(len(shards) + 1)
        ).tolist()

        def join(shard: _Shard, members: range) -> Join:
            task = partial(
                join_slices, shard=shard, tasks=members, dimensions=execution.dimensions
            )
            return Join(members, lambda _: task, replaces=True)

        joins = [
            join(shard, range(*of_shard))
            for shard, of_shard in zip(shards, pairwise(bounds), strict=True)
        ]
        return Work(
            each,
            joins,
            threads=execution.threads,
            gpu="needed" if execution.device == "cuda" else None,
        )

    needs = kind.resources(encoder)
    version = 3 if kind.embeds == "slices" else 1
    return Step(
        "embed",
        version,
        {},
        inputs,
        tasks,
        EmbedResult,
        resources=needs,
    )


def document_vectors_step(chunk: Step, embed: Step, *, of: str) -> Step:
    """Return the step from VECTORS to one vector a document."""
    config: Json = {"of": of}
    files = {
        "chunks": (chunk, ChunkFiles.chunks),
        "vectors": (embed, EmbedFiles.vectors),
    }
    tasks = each_shard(partial(average_shard, **config), **files)
    return Step("document_vectors", 2, config, (chunk, embed), tasks)
