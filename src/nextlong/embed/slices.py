"""Slices: a shard's chunks, encoded by a transformer a part at a time.

In:  DOCUMENTS and CHUNKS, a model, and the Execution that `choose` found for it.
Out: slices of VECTORS, one a task; once those of a shard are there, they are joined to its VECTORS and deleted.

A shard takes a transformer minutes to hours. In slices of half a minute all workers are busy to the end, and one that is
killed loses no more. Which chunks are encoded together shows in the last digits, so it depends on the shard and the Execution,
never on the workers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from nextlong import recipe
from nextlong.artefacts.chunks import iter_chunk_texts
from nextlong.embed.base import Encoder, load_encoder
from nextlong.embed.choose import Execution, choose_execution
from nextlong.embed.chunks import count_chunks, encode_rows
from nextlong.errors import EncoderError
from nextlong.results import EmbedResult, ExecutionResult

_TRIED_CHUNKS: Final = 32
_LEAST_TASKS: Final = 16  # of a corpus whose every shard is a task of its own otherwise


def try_model(
    _out: Path, *, documents: Sequence[Path], chunks: Sequence[Path], encoder: recipe.Encoder
) -> ExecutionResult:
    """Return the Execution that suits the model here, and the width of its vectors; no file is written."""
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        rows = np.arange(count_chunks(chunks_path))
        rows = rows[:: max(1, len(rows) * len(documents) // _TRIED_CHUNKS)]
        texts += (text for batch in iter_chunk_texts(documents_path, chunks_path, rows) for text in batch.texts)
    execution, dimensions = choose_execution(encoder.name, encoder.sentence_transformers, texts[:_TRIED_CHUNKS])
    return ExecutionResult(**execution._asdict(), dimensions=dimensions)


def slices_of(chunk_counts: Sequence[int], execution: Execution) -> list[tuple[int, int, int]]:
    """Return shard, first and last row of each slice; small corpora are cut finer, so that there is work for all workers."""
    finest = -(-sum(chunk_counts) // _LEAST_TASKS)
    finest += -finest % execution.call_chunks
    size = max(execution.call_chunks, min(execution.task_chunks, finest))
    return [
        (shard, first, min(first + size, count))
        for shard, count in enumerate(chunk_counts)
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
    execution: Execution,
) -> EmbedResult:
    """Embed the chunk rows [first, last) of a shard; writes `{out}.slice.npy`, float16, and returns what it is."""
    model = _loaded(encoder, execution)
    rows = np.arange(first, last)
    parts = encode_rows(model, documents, chunks, rows, encoder=encoder, at_once=execution.call_chunks)
    np.save(f"{out}.slice.npy", np.concatenate(list(parts)))
    return EmbedResult(chunks=len(rows), dimensions=model.dimensions)


def join_slices(out: Path, *, tasks: Sequence[int], slices: Sequence[EmbedResult], dimensions: int) -> EmbedResult:
    """Write `{out}.vectors.npy` of a shard from its slices, which these tasks wrote and returned, in their order."""
    folder = out.parent.parent  # this task's own is inside it
    chunks = sum(part.chunks for part in slices)
    with open(f"{out}.vectors.npy", "wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (chunks, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        for number in tasks:
            file.write(np.load(folder / f"part-{number:05d}.slice.npy", mmap_mode="r").data)
    return EmbedResult(chunks=chunks, dimensions=dimensions)


@functools.lru_cache(maxsize=1)
def _loaded(encoder: recipe.Encoder, execution: Execution) -> Encoder:
    # One worker embeds many slices; the model is loaded once.
    model = load_encoder(encoder, dtype=execution.dtype, threads=execution.threads)
    device = getattr(model, "device", execution.device)
    if device != execution.device:
        raise EncoderError(
            f"encoder.model={encoder.model} was tried on {execution.device}, and this task would run it on {device}, which gives "
            f"other vectors; run where {execution.device} is at hand, or set encoder.sentence_transformers.device={device}"
        )
    return model
