"""Sample: a random part of all chunks, the same whatever the shards and the order of files.

In:  DOCUMENTS and CHUNKS, a seed. Out: a key for each chunk, and the texts of the chunks whose keys are below a threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.lookup import iter_chunk_texts, read_chunks, read_content_hashes
from nextlong.rng import keyed_hash, threshold_for


def sample_texts(documents: Sequence[Path], chunks: Sequence[Path], *, fraction: float, seed: int) -> list[str]:
    """Return about this fraction of the chunks of all shards, ordered by key."""
    keys: list[NDArray[np.uint64]] = []
    texts: list[str] = []
    for documents_path, chunks_path in zip(documents, chunks, strict=True):
        key_of_row = chunk_keys(documents_path, chunks_path, seed=seed, stage="embed.fit")
        rows = np.flatnonzero(key_of_row < threshold_for(fraction)) if fraction < 1 else np.arange(len(key_of_row))
        keys.append(key_of_row[rows])
        for batch in iter_chunk_texts(documents_path, chunks_path, rows):
            texts += batch.texts
    order = np.argsort(np.concatenate([np.empty(0, np.uint64), *keys]), kind="stable")
    return [texts[place] for place in order]


def chunk_keys(documents: Path, chunks: Path, *, seed: int, stage: str) -> NDArray[np.uint64]:
    """Return a random number for each chunk, shape (rows,), by its document's content and its place there, never its shard."""
    doc_rows = read_chunks(chunks)["doc_row"]
    content_hashes = read_content_hashes(documents)[doc_rows]
    numbers = (np.arange(len(doc_rows)) - np.searchsorted(doc_rows, doc_rows)).astype(np.uint64)
    mixed = content_hashes ^ keyed_hash(numbers, seed=seed, stage="embed.number")
    return keyed_hash(mixed, seed=seed, stage=stage)
