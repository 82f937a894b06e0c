"""Meta-documents: which documents are drawn, and where their chunks are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.chunks import read_chunks
from nextlong.results import DocumentsResult, MetaDocumentsResult
from nextlong.rng import keyed_hash, shuffled
from nextlong.schemas import META_DOCUMENTS


def draw_meta_documents(
    out: Path,
    *,
    chunks: Sequence[Path],
    hashes: Sequence[Path],
    chars: Sequence[Path],
    draws: int | None,
    min_meta_chunks: int,
    seed: int,
) -> MetaDocumentsResult:
    """Draw documents of at least `min_meta_chunks` chunks by keyed hash (`draws=None`: all); writes `{out}.meta_documents.npy`.

    A document that lost a chunk to `decontaminate` is not drawn: the dependency that it would teach has a hole. Its chunks
    then have fewer characters than `chars`, by document row, says.
    """
    drawn = np.empty(0, META_DOCUMENTS)
    eligible = documents = 0
    for shard, (chunk_path, hash_path, chars_path) in enumerate(zip(chunks, hashes, chars, strict=True)):
        documents_of = document_rows(shard, chunk_path, hash_path, seed=seed)
        documents += len(documents_of)
        documents_of = documents_of[(documents_of["chunks"] >= min_meta_chunks) & _is_whole(chunk_path, chars_path)]
        eligible += len(documents_of)
        drawn = np.concatenate([drawn, documents_of])
        if draws is not None and len(drawn) > draws:
            drawn = drawn[np.argpartition(drawn["key"], draws - 1)[:draws]]
    drawn = np.sort(drawn, order=["key", "first_chunk"])
    np.save(f"{out}.meta_documents.npy", drawn)
    return MetaDocumentsResult(
        documents=documents, eligible=eligible, drawn=len(drawn), meta_chunks=int(drawn["chunks"].sum())
    )


def _is_whole(chunks: Path, chars: Path) -> NDArray[np.bool_]:
    """Return whether each document of a shard that has chunks has them all, in the shard's order."""
    table = read_chunks(chunks)
    doc_rows, first = np.unique(table["doc_row"], return_index=True)
    if not len(first):
        return np.empty(0, np.bool_)
    whole: NDArray[np.bool_] = np.add.reduceat(table["end"] - table["start"], first) == np.load(chars)[doc_rows]
    return whole


def document_rows(shard: int, chunks: Path, hashes: Path, *, seed: int) -> NDArray[Any]:
    """Return a META_DOCUMENTS row for every document of a shard that has chunks, in the shard's order."""
    table, hash_of = read_chunks(chunks), np.load(hashes, mmap_mode="r")
    doc_rows, first, count = np.unique(table["doc_row"], return_index=True, return_counts=True)
    documents = np.empty(len(doc_rows), META_DOCUMENTS)
    documents["content_hash"] = hash_of[doc_rows]
    documents["key"] = keyed_hash(documents["content_hash"], seed=seed, stage="meta")
    documents["first_chunk"] = schemas.pack_ids(shard, first)
    documents["chunks"] = count
    documents["chars"] = table["end"][first + count - 1]
    return documents


def chunk_ids_of(documents: NDArray[Any]) -> NDArray[np.int64]:
    """Return the chunk ids of the given META_DOCUMENTS rows, one after the other, shape (sum of chunks,)."""
    counts = documents["chunks"]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    ids: NDArray[np.int64] = np.repeat(documents["first_chunk"], counts) + within
    return ids


def list_documents(
    out: Path, *, chunks: Sequence[Path], hashes: Sequence[Path], seeds: int | None, seed: int
) -> DocumentsResult:
    """Write `{out}.docs.npy`, META_DOCUMENTS of every document with chunks in shard order, and `{out}.queries.npy`.

    The queries are the documents whose neighbours are wanted, by their ids among the document vectors: `seeds` of them
    in the order in which they start sequences, or all (None).
    """
    of_shards = [
        document_rows(shard, *paths, seed=seed) for shard, paths in enumerate(zip(chunks, hashes, strict=True))
    ]
    docs = np.concatenate([np.empty(0, META_DOCUMENTS), *of_shards])
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(len(of_shard)) for of_shard in of_shards)])
    ids = schemas.shard_of(docs["first_chunk"]) << schemas.SHARD_BITS | rows
    order = draw_seeds(docs["content_hash"], seed=seed)[:seeds] if seeds is not None else np.arange(len(docs))
    np.save(f"{out}.docs.npy", docs)
    np.save(f"{out}.queries.npy", ids[order])
    chars = int(docs["chars"].sum())
    return DocumentsResult(documents=len(docs), drawn=len(order), eligible=len(docs), chars=chars)


def draw_seeds(content_hashes: NDArray[np.uint64], *, seed: int) -> NDArray[np.int64]:
    """Return all positions, shape (n,), in the order in which they start sequences."""
    return shuffled(content_hashes, seed=seed, stage="queries")
