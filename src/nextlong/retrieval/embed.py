"""Embed chunks and documents as unit vectors.

In:  DOCUMENTS and CHUNKS, and an encoder, which its preparation step may have fitted or
     tried.
Out: VECTORS, float16 (rows, dimensions), row i for chunk row i, of unit length, so that
     the inner product is the cosine. Half precision changes a cosine by less than
     0.001. With a shortlist, the vectors of all other chunks are zero.

A shard may take a transformer hours, so its task embeds only a slice, and a joining
task follows the last slice of each shard. The last digits of a vector depend on which
texts are encoded together, so slices depend only on the shards and the
`ExecutionResult`, never on the workers.
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
from nextlong.arrays import Floats, Ints
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

# The DOCUMENTS, CHUNKS and SHORTLIST (if any) of a shard.
_Shard = tuple[Path, Path, Path | None]

# Encoded at a time: an encoder sorts them by length, or keeps several requests in
# flight.
_BLOCK_CHUNKS: Final = 4096
_LENGTH_TOLERANCE: Final = 1e-2
MIN_SLICES: Final = 16  # into which a small corpus is sliced
# Vectors held as float32 at a time: 32 MB at 256 dimensions.
_AVERAGED_CHUNKS: Final = 32_768
# Of a mean vector; a shorter one is rounding noise of chunks in opposite directions.
_MIN_LENGTH: Final = 1e-3


class EmbedResult(TaskResult):
    """The number of embedded chunks of a shard or slice, and the vectors' width."""

    chunks: int
    dimensions: int


def embed_rows(
    out: Path,
    shard: _Shard,
    encoder: recipe.Encoder,
    prepared: Prepared = None,
    part: slice = slice(None),
) -> EmbedResult:
    """Embed the chunks of a shard, all or the shortlisted, or a `part` of these.

    Writes `{out}.vectors.npy`, float16 (chunks, dimensions), or `{out}.slice.npy` if
    `prepared` is an ExecutionResult. Raises EncoderError, naming chunk and document,
    for a vector that is not finite, not of unit length or of the wrong width.
    """
    model = loaded_encoder(encoder, prepared)
    documents, chunks, shortlist = shard
    rows = embedded_rows(chunks, shortlist)[part]
    at_once = _BLOCK_CHUNKS
    if isinstance(prepared, ExecutionResult):
        at_once = prepared.chunks_at_once

    def blocks() -> Iterator[NDArray[np.float16]]:
        batches = iter_chunk_texts(documents, chunks, rows)
        texts = chain.from_iterable(batch.texts for batch in batches)
        for first in range(0, len(rows), at_once):
            block = list(islice(texts, at_once))
            vectors = model.encode(block)
            fault = _fault_in(vectors, (len(block), model.dimensions))
            if fault is not None:
                index, problem = fault
                chunk_id = rows[first + index : first + index + 1]
                raise _wrong_vector(encoder, shard, chunk_id, problem)
            yield vectors.astype("<f2")

    if not isinstance(prepared, ExecutionResult):
        return _write_vectors(out, blocks(), shard, model.dimensions)
    vectors = np.concatenate(list(blocks()))
    np.save(f"{out}.slice.npy", vectors)
    return EmbedResult(chunks=len(rows), dimensions=model.dimensions)


def _fault_in(vectors: Floats, shape: tuple[int, int]) -> tuple[int, str] | None:
    """Return the first wrong vector and what is wrong with it; None if none is."""
    if vectors.shape != shape:
        return 0, f"and those after it vectors of shape {vectors.shape}, not {shape}"
    lengths = np.linalg.norm(vectors, axis=1)
    is_unit = np.abs(lengths - 1) < _LENGTH_TOLERANCE  # NaN is not
    wrong = np.flatnonzero(~is_unit)
    if not len(wrong):
        return None
    index = int(wrong[0])
    return index, f"a vector of length {lengths[index]:.4g} where it must be 1"


def _wrong_vector(
    encoder: recipe.Encoder, shard: _Shard, chunk_id: Ints, problem: str
) -> EncoderError:
    documents, chunks, _ = shard
    names = chunk_names(chunk_id, documents=[documents], chunks=[chunks])
    ((document, ordinal),) = names
    return EncoderError(
        where="encoder.model",
        value=encoder.model,
        problem=f"gave {document} · chunk {ordinal} {problem}",
        fix=kind_of(encoder).fix,
    )


def join_slices(
    out: Path, shard: _Shard, *, tasks: Sequence[int], dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` of a shard from the slices of tasks, in order."""
    folder = out.parent.parent  # `out` is inside this task's private folder
    paths = [folder / f"part-{number:05d}.slice.npy" for number in tasks]
    slices = (np.load(path, mmap_mode="r") for path in paths)
    return _write_vectors(out, slices, shard, dimensions)


def _write_vectors(
    out: Path, blocks: Iterable[NDArray[np.float16]], shard: _Shard, dimensions: int
) -> EmbedResult:
    """Write `{out}.vectors.npy` block by block.

    It has the vectors of the embedded rows of a shard, and zeros for all others.
    """
    _, path, shortlist = shard
    rows = embedded_rows(path, shortlist)
    chunks = count_chunks(path)
    written = 0  # rows of the file
    embedded = 0
    with open(f"{out}.vectors.npy", "wb") as file:
        corpus_files.write_header(file, np.dtype("<f2"), chunks, dimensions)
        for block in blocks:
            positions = rows[embedded : embedded + len(block)] - written
            spread = np.zeros((int(positions[-1]) + 1, dimensions), "<f2")
            spread[positions] = block
            file.write(spread.data)
            written += len(spread)
            embedded += len(block)
        missing_rows = chunks - written
        file.truncate(file.tell() + 2 * dimensions * missing_rows)  # zeros
    return EmbedResult(chunks=embedded, dimensions=dimensions)


@lru_cache(maxsize=1)
def loaded_encoder(encoder: recipe.Encoder, prepared: Prepared) -> LoadedEncoder:
    """Return a prepared encoder.

    A worker has many tasks, and loads the model once. Raises EncoderError if it would
    give other vectors than those of the preparation.
    """
    model = kind_of(encoder).load(encoder, prepared)
    if not isinstance(prepared, ExecutionResult):
        return model
    device = getattr(model, "device", prepared.device)
    if device != prepared.device:
        raise EncoderError(
            where="encoder.model",
            value=encoder.model,
            problem=(
                f"was tried on {prepared.device}, but this task would run on {device}, "
                "which gives different vectors"
            ),
            fix=(
                f"run where {prepared.device} is available, or set "
                f"encoder.sentence_transformers.device={device}"
            ),
        )
    return model


def slices_of(
    row_counts: Sequence[int], execution: ExecutionResult
) -> list[tuple[int, slice]]:
    """Return the shard and the rows of each slice.

    A small corpus is cut into at least `MIN_SLICES` slices.
    """
    finest = -(-sum(row_counts) // MIN_SLICES)
    finest += -finest % execution.call_chunks
    size = max(execution.call_chunks, min(execution.task_chunks, finest))
    slices = []
    for shard, rows in enumerate(row_counts):
        for first in range(0, rows, size):
            last = min(first + size, rows)
            slices.append((shard, slice(first, last)))
    return slices


def average_shard(
    out: Path, *, chunks: Path, vectors: Path, vector: Literal["mean", "first"]
) -> TaskResult:
    """Write `{out}.document_vectors.npy`, float16 (documents, dimensions).

    The vector of a document is the mean of its chunk vectors, or the first one.
    """
    doc_rows, firsts, counts = np.unique(
        read_chunks(chunks)["doc_row"], return_index=True, return_counts=True
    )
    chunk_vectors = np.load(vectors, mmap_mode="r")
    ends = np.append(0, np.cumsum(counts))
    with open(f"{out}.document_vectors.npy", "wb") as file:
        shape = (len(doc_rows), chunk_vectors.shape[1])
        corpus_files.write_header(file, np.dtype("<f2"), *shape)
        for low, high in runs_within(counts, _AVERAGED_CHUNKS):
            units = chunk_vectors[firsts[low:high]]
            if vector == "mean":
                begin = int(ends[low])
                rows = chunk_vectors[begin : ends[high]].astype(np.float32)
                sums = np.add.reduceat(rows, firsts[low:high] - begin, axis=0)
                lengths = np.linalg.norm(sums, axis=1, keepdims=True)
                means = sums / np.maximum(lengths, _MIN_LENGTH)
                # Where the chunk vectors of a document cancel out, the mean has no
                # direction, and the first vector is used.
                has_direction = lengths > _MIN_LENGTH * counts[low:high, None]
                units = np.where(has_direction, means, units.astype(np.float32))
            rounded = units.astype("<f2")
            file.write(rounded.tobytes())
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
    """Return the step that prepares the encoder before the first chunk is embedded.

    Some encoders need none: it then has no tasks.
    """
    kind = kind_of(encoder)

    def tasks(done: Artifacts) -> list[Task]:
        return kind.prepare(encoder, corpus(done), seed=seed)

    depends_on = kind.depends_on(encoder, seed=seed)
    # The files of a local model say what it is; its path depends on the working
    # directory.
    is_local = "files" in depends_on
    model = f"{encoder.section}:" if is_local else encoder.model
    return Step(
        name="encoder",
        phase="encode",
        version=kind.version,
        config={"model": model} | encoder.options.identity() | depends_on,
        inputs=(ingest, chunk),
        tasks=tasks,
        result=kind.result,
        resources=kind.resources(encoder),
    )


def prepared_encoder(encoder: recipe.Encoder, done: Artifacts) -> Prepared:
    """Return what the finished step `encoder` gives to the encoder's `load`."""
    kind = kind_of(encoder)
    if kind.embeds == "slices":
        return done["encoder"].result(ExecutionResult)
    return done["encoder"].stem() if kind.needs_fit else None


def embed_step(
    encoder: recipe.Encoder,
    ingest: Step,
    chunk: Step,
    preparation: Step,
    shortlist: Step | None = None,
) -> Step:
    """Return the step from CHUNKS, all or the shortlisted, to VECTORS.

    Its tasks embed shards, or slices of them if the encoder needs that.
    """
    kind = kind_of(encoder)
    inputs: tuple[Step, ...] = (ingest, chunk, preparation)
    if shortlist is not None:
        inputs = (*inputs, shortlist)

    def tasks(done: Artifacts) -> Work:
        text = corpus(done)
        marks: Sequence[Path | None] = [None] * len(text.chunks)
        if shortlist is not None:
            marks = ShortlistFiles.of(done).marks
        shards = list(zip(text.documents, text.chunks, marks, strict=True))
        prepared = prepared_encoder(encoder, done)
        if isinstance(prepared, ExecutionResult):
            return _slice_work(encoder, shards, prepared)
        embed = partial(embed_rows, encoder=encoder, prepared=prepared)
        return Work([partial(embed, shard=shard) for shard in shards])

    return Step(
        name="embed",
        phase="encode",
        version=3 if kind.embeds == "slices" else 1,
        config={},
        inputs=inputs,
        tasks=tasks,
        result=EmbedResult,
        resources=kind.resources(encoder),
    )


def _slice_work(
    encoder: recipe.Encoder, shards: Sequence[_Shard], execution: ExecutionResult
) -> Work:
    """Return the tasks that embed slices of shards, and those that join them."""
    row_counts = [len(embedded_rows(chunks, mark)) for _, chunks, mark in shards]
    slices = slices_of(row_counts, execution)
    embed = partial(embed_rows, encoder=encoder, prepared=execution)
    tasks = [partial(embed, shard=shards[shard], part=rows) for shard, rows in slices]

    def join(shard: _Shard, members: range) -> Join:
        task = partial(
            join_slices, shard=shard, tasks=members, dimensions=execution.dimensions
        )
        return Join(members, lambda _: task, replaces=True)

    # (shards + 1,): the first slice of each shard; slices are ordered by shard.
    shard_of_slice = [shard for shard, _ in slices]
    bounds = np.searchsorted(shard_of_slice, np.arange(len(shards) + 1)).tolist()
    joins = [
        join(shard, range(first, last))
        for shard, (first, last) in zip(shards, pairwise(bounds), strict=True)
    ]
    return Work(
        tasks,
        joins,
        threads=execution.threads,
        gpu="needed" if execution.device == "cuda" else None,
    )


def document_vectors_step(
    chunk: Step, embed: Step, *, vector: Literal["mean", "first"]
) -> Step:
    """Return the step from VECTORS to one vector per document."""
    tasks = each_shard(
        partial(average_shard, vector=vector),
        chunks=(chunk, ChunkFiles.chunks),
        vectors=(embed, EmbedFiles.vectors),
    )
    return Step(
        name="document_vectors",
        phase="encode",
        version=2,
        config={"of": vector},
        inputs=(chunk, embed),
        tasks=tasks,
    )
