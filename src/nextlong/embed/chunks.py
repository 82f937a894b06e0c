"""Embed: one unit vector a chunk.

In:  DOCUMENTS and CHUNKS, and an encoder, which for `lsa` is first fitted on a random sample of all chunks.
Out: VECTORS, float16 (rows, dimensions), row i for chunk row i; unit length, so that inner product is cosine.

The fit's sample is drawn by keyed hash of a document's content and a chunk's place in it, and put in the order of that
hash, so that another sharding or order of files fits the same encoder. Half precision is enough for mining: it moves a
cosine by less than 0.001.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.artefacts.chunks import iter_chunk_texts, read_chunks, read_content_hashes
from nextlong.embed.base import Encoder, kind_of, load_encoder
from nextlong.errors import EncoderError
from nextlong.results import EmbedResult
from nextlong.rng import keyed_hash, threshold_for

# Enough for an encoder to sort by length, or to keep several requests under way.
BLOCK_CHUNKS: Final = 4096
LENGTH_TOLERANCE: Final = 1e-2


def draw_texts(documents: Sequence[Path], chunks: Sequence[Path], *, share: float, seed: int) -> list[str]:
    """Return about this share of the chunks of all shards, drawn and ordered by content, whatever the shards."""
    keys: list[NDArray[np.uint64]] = []
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        key_of_row = _sample_keys(documents_path, chunks_path, seed=seed)
        rows = np.flatnonzero(key_of_row < threshold_for(share)) if share < 1 else np.arange(len(key_of_row))
        keys.append(key_of_row[rows])
        for batch in iter_chunk_texts(documents_path, chunks_path, rows):
            texts += batch.texts
    order = np.argsort(np.concatenate([np.empty(0, np.uint64), *keys]), kind="stable")
    return [texts[place] for place in order]


def embed_shard(
    out: Path, *, documents: Path, chunks: Path, encoder: recipe.Encoder, fitted: Path | None
) -> EmbedResult:
    """Embed one shard; writes `{out}.vectors.npy`, float16 (chunks, dimensions).

    Raises EncoderError, naming chunk and document, where a vector is not finite, zero or of the wrong width.
    """
    model = _loaded(encoder, fitted)
    rows = np.arange(count_chunks(chunks))
    shape = (len(rows), model.dimensions)
    with open(f"{out}.vectors.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
        for vectors in encode_rows(model, documents, chunks, rows, encoder=encoder, at_once=BLOCK_CHUNKS):
            file.write(vectors.tobytes())
    return EmbedResult(chunks=shape[0], dimensions=shape[1])


@functools.lru_cache(maxsize=1)
def _loaded(encoder: recipe.Encoder, fitted: Path | None) -> Encoder:
    # One worker embeds many shards; the model is loaded once.
    return load_encoder(encoder, fitted=fitted)


def encode_rows(
    model: Encoder,
    documents: Path,
    chunks: Path,
    rows: NDArray[np.int64],
    *,
    encoder: recipe.Encoder,
    at_once: int,
) -> Iterator[NDArray[np.float16]]:
    """Yield the vectors of consecutive chunk rows, `at_once` by `at_once`. Raises EncoderError, naming a chunk, if one is wrong."""
    done = 0
    for texts in _blocks(documents, chunks, rows, at_once=at_once):
        vectors = model.encode(texts)
        if wrong := _first_wrong(vectors, shape=(len(texts), model.dimensions)):
            place, what = wrong
            where = _name_chunk(documents, chunks, row=int(rows[done + place]))
            raise EncoderError(f"encoder.model={encoder.model} gave {where} {what}; {kind_of(encoder).cure}")
        done += len(texts)
        yield vectors.astype("<f2")


def _blocks(documents: Path, chunks: Path, rows: NDArray[np.int64], *, at_once: int) -> Iterator[list[str]]:
    waiting: list[str] = []
    for batch in iter_chunk_texts(documents, chunks, rows):
        waiting += batch.texts
        while len(waiting) >= at_once:
            yield waiting[:at_once]
            waiting = waiting[at_once:]
    if waiting:
        yield waiting


def _first_wrong(vectors: NDArray[np.float32], *, shape: tuple[int, int]) -> tuple[int, str] | None:
    """Return the place of the first vector that cannot be right, and what is wrong with it."""
    if vectors.shape != shape:
        return 0, f"and those after it vectors of shape {vectors.shape}, not {shape}"
    lengths = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~(np.abs(lengths - 1) < LENGTH_TOLERANCE))  # so that NaN is wrong
    if not len(wrong):
        return None
    place = int(wrong[0])
    return place, f"a vector of length {lengths[place]:.4g} where it must be 1"


def _name_chunk(documents: Path, chunks: Path, *, row: int) -> str:
    doc_rows = read_chunks(chunks)["doc_row"]
    doc_row = int(doc_rows[row])
    ordinal = row - int(np.searchsorted(doc_rows, doc_row)) + 1
    with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            if doc_row < batch.num_rows:
                source, source_id = batch.column("source")[doc_row], batch.column("source_id")[doc_row]
                break
            doc_row -= batch.num_rows
    return f"{source_id.as_py()} · chunk {ordinal} (source {source.as_py()!r})"


def _sample_keys(documents: Path, chunks: Path, *, seed: int) -> NDArray[np.uint64]:
    """Return one key a chunk, shape (rows,), from its document's content and its number there, never from its shard."""
    doc_rows = read_chunks(chunks)["doc_row"]
    content_hashes = read_content_hashes(documents)[doc_rows]
    numbers = (np.arange(len(doc_rows)) - np.searchsorted(doc_rows, doc_rows)).astype(np.uint64)
    mixed = content_hashes ^ keyed_hash(numbers, seed=seed, stage="embed.number")
    return keyed_hash(mixed, seed=seed, stage="embed.fit")


def count_chunks(chunks: Path) -> int:
    """Return how many chunks a shard has."""
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        return sum(int(reader.get_batch(number).num_rows) for number in range(reader.num_record_batches))
