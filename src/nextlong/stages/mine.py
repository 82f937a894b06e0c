"""Mine: draw the meta-documents, and find the chunks nearest to each of their chunks.

In:  CHUNKS, VECTORS (unit length, so inner product is cosine).
Out: METAS (the drawn documents, in draw order), CANDIDATES (descending by cosine, own document removed).

The search is exact: FAISS brute force over blocks of memory-mapped vectors, merged on a heap, many queries at a time. A
document's own chunks are its nearest and must fall out (paper §3.1.2), so it fetches as many more as most documents have
chunks. A longer document is searched for by itself, with its own vectors left out from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.rng import keyed_hash
from nextlong.stages import gather
from nextlong.stages.chunk import read_chunks

# One row a drawn meta-document; its chunks are first_chunk … first_chunk + chunks - 1.
METAS = np.dtype([("key", "u8"), ("content_hash", "u8"), ("first_chunk", "i8"), ("chunks", "i8"), ("chars", "i8")])

_BLOCK_ROWS = 32_768  # vectors held as float32 at a time: 32 MB at 256 dimensions
_OVERFETCH = 64  # beyond `fetch`, for the own document; most documents have fewer chunks
_LONGEST_SHARED = 4096  # chunks of a document that is still searched together with others: 64 · 4³
_HEAP_CELLS = 1 << 24  # queries times neighbours held at a time: 200 MB


def draw_metas(
    out: Path,
    *,
    chunks: Sequence[Path],
    hashes: Sequence[Path],
    chars: Sequence[Path],
    draws: int | None,
    min_meta_chunks: int,
    seed: int,
) -> dict[str, Any]:
    """Draw documents of at least `min_meta_chunks` chunks by keyed hash (`draws=None`: all); writes `{out}.metas.npy`.

    A document that lost a chunk to `decontaminate` is not drawn: the dependency that it would teach has a hole. Its chunks
    then have fewer characters than `chars`, by document row, says.
    """
    drawn = np.empty(0, METAS)
    eligible = documents = 0
    for shard, (chunk_path, hash_path, chars_path) in enumerate(zip(chunks, hashes, chars, strict=True)):
        found = metas_of(shard, chunk_path, hash_path, seed=seed)
        documents += len(found)
        found = found[(found["chunks"] >= min_meta_chunks) & _is_whole(chunk_path, chars_path)]
        eligible += len(found)
        drawn = np.concatenate([drawn, found])
        if draws is not None and len(drawn) > draws:
            drawn = drawn[np.argpartition(drawn["key"], draws - 1)[:draws]]
    drawn = np.sort(drawn, order=["key", "first_chunk"])
    np.save(f"{out}.metas.npy", drawn)
    return {
        "documents": documents,
        "eligible": eligible,
        "drawn": len(drawn),
        "meta_chunks": int(drawn["chunks"].sum()),
    }


def _is_whole(chunks: Path, chars: Path) -> NDArray[np.bool_]:
    """Return whether each document of a shard that has chunks has them all, in the shard's order."""
    table = read_chunks(chunks)
    doc_rows, first = np.unique(table["doc_row"], return_index=True)
    if not len(first):
        return np.empty(0, np.bool_)
    whole: NDArray[np.bool_] = np.add.reduceat(table["end"] - table["start"], first) == np.load(chars)[doc_rows]
    return whole


def metas_of(shard: int, chunks: Path, hashes: Path, *, seed: int) -> NDArray[Any]:
    """Return a METAS row for every document of a shard that has chunks, in the shard's order."""
    table, hash_of = read_chunks(chunks), np.load(hashes, mmap_mode="r")
    doc_rows, first, count = np.unique(table["doc_row"], return_index=True, return_counts=True)
    metas = np.empty(len(doc_rows), METAS)
    metas["content_hash"] = hash_of[doc_rows]
    metas["key"] = keyed_hash(metas["content_hash"], seed=seed, stage="meta")
    metas["first_chunk"] = schemas.pack_ids(shard, first)
    metas["chunks"] = count
    metas["chars"] = table["end"][first + count - 1]
    return metas


def chunk_ids_of(metas: NDArray[Any]) -> NDArray[np.int64]:
    """Return the chunk ids of the given METAS rows, one after the other, shape (sum of chunks,)."""
    counts = metas["chunks"]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    ids: NDArray[np.int64] = np.repeat(metas["first_chunk"], counts) + within
    return ids


def mine_block(out: Path, *, metas: Path, first: int, last: int, vectors: Sequence[Path], fetch: int) -> dict[str, Any]:
    """Find the candidates of the drawn documents [first, last); writes `{out}.candidates.arrow`."""
    drawn = np.load(metas)[first:last]
    ids = chunk_ids_of(drawn)
    own_first = np.repeat(drawn["first_chunk"], drawn["chunks"])
    own_last = own_first + np.repeat(drawn["chunks"], drawn["chunks"])
    neighbours, scores = nearest(
        gather.vectors(ids, vectors), vectors, fetch=fetch, own_first=own_first, own_last=own_last
    )
    return _write_candidates(out, ids, neighbours, scores)


def mine_documents(
    out: Path, *, queries: Path, first: int, last: int, vectors: Sequence[Path], fetch: int
) -> dict[str, Any]:
    """Find the nearest documents of the documents [first, last) of `queries`; writes `{out}.candidates.arrow`.

    Ids are those of the document vectors: shard << 32 | row among the shard's document vectors.
    """
    ids = np.load(queries)[first:last]
    neighbours, scores = nearest(gather.vectors(ids, vectors), vectors, fetch=fetch, own_first=ids, own_last=ids + 1)
    return _write_candidates(out, ids, neighbours, scores)


def _write_candidates(
    out: Path, ids: NDArray[np.int64], neighbours: list[NDArray[np.int64]], scores: list[NDArray[np.float32]]
) -> dict[str, Any]:
    batch = pa.record_batch(
        [pa.array(ids), _lists(neighbours, pa.int64()), _lists(scores, pa.float32())], schema=schemas.CANDIDATES
    )
    with pa.OSFile(f"{out}.candidates.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.CANDIDATES) as writer:
        writer.write_batch(batch)
    return {
        "queries": len(ids),
        "candidates": sum(map(len, neighbours)),
        "fewest": min(map(len, neighbours), default=0),
    }


def nearest(
    queries_QD: NDArray[np.float32],
    vectors: Sequence[Path],
    *,
    fetch: int,
    own_first: NDArray[np.int64],
    own_last: NDArray[np.int64],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float32]]]:
    """Return for each query the ids and cosines of its `fetch` nearest chunks, outside [own_first, own_last) of each.

    Fewer only where the corpus has no more. Descending by cosine; equal cosines by id.
    """
    found_ids: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(queries_QD)
    found_scores: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(queries_QD)
    fetch = min(fetch, sum(np.load(path, mmap_mode="r").shape[0] for path in vectors))
    for queries, width, left_out in _searches(own_first, own_last, fetch=fetch):
        scores_QK, ids_QK = _search(queries_QD[queries], vectors, width=width, left_out=left_out)
        for query, ids, scores in zip(queries.tolist(), ids_QK, scores_QK, strict=True):
            foreign = (ids >= 0) & ((ids < own_first[query]) | (ids >= own_last[query]))
            order = np.lexsort((ids[foreign], -scores[foreign]))[:fetch]
            found_ids[query], found_scores[query] = ids[foreign][order], scores[foreign][order]
    return found_ids, found_scores


def _searches(
    own_first: NDArray[np.int64], own_last: NDArray[np.int64], *, fetch: int
) -> Iterator[tuple[NDArray[np.int64], int, tuple[int, int]]]:
    """Yield (queries, how many to fetch, chunks to leave out), each one pass over all vectors.

    Documents of like size share a search that is wide enough for the own chunks of each. One with more chunks than
    `_LONGEST_SHARED` is searched alone, with its own left out, so that the heap stays small.
    """
    own_counts = own_last - own_first
    groups: list[tuple[NDArray[np.int64], int, tuple[int, int]]] = []
    size, below = _OVERFETCH, 0
    while below < min(_LONGEST_SHARED, int(own_counts.max(initial=0))):
        groups.append((np.flatnonzero((own_counts > below) & (own_counts <= size)), fetch + size, (0, 0)))
        size, below = 4 * size, size
    for first in np.unique(own_first[own_counts > _LONGEST_SHARED]).tolist():
        own = np.flatnonzero(own_first == first)
        groups.append((own, fetch, (first, int(own_last[own[0]]))))
    for queries, width, left_out in groups:
        most = max(1, _HEAP_CELLS // width)
        for start in range(0, len(queries), most):
            yield queries[start : start + most], width, left_out


def _search(
    queries_QD: NDArray[np.float32], vectors: Sequence[Path], *, width: int, left_out: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the `width` best scores and chunk ids of each query over all shards, shape (Q, width), descending.

    Chunks [first, last) of `left_out` are passed over; ids are -1 where there are no more.
    """
    import faiss

    heap = faiss.ResultHeap(len(queries_QD), width, keep_max=True)
    for ids, block_BD in _blocks(vectors):
        stays = (ids < left_out[0]) | (ids >= left_out[1])
        if not stays.all():
            ids, block_BD = ids[stays], block_BD[stays]
        if len(ids):
            scores, rows = faiss.knn(queries_QD, block_BD, min(width, len(ids)), metric=faiss.METRIC_INNER_PRODUCT)
            heap.add_result(scores, np.where(rows < 0, -1, ids[rows]))
    heap.finalize()
    return heap.D, heap.I


def _blocks(vectors: Sequence[Path]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Stream all vectors as float32 blocks of at most `_BLOCK_ROWS` rows that may span shards, with their chunk ids."""
    ids: list[NDArray[np.int64]] = []
    pieces: list[NDArray[np.float16]] = []
    held = 0
    for shard, path in enumerate(vectors):
        rows_ND = np.load(path, mmap_mode="r")
        start = 0
        while start < len(rows_ND):
            stop = min(len(rows_ND), start + _BLOCK_ROWS - held)
            pieces.append(rows_ND[start:stop])
            ids.append(schemas.pack_ids(shard, np.arange(start, stop)))
            held += stop - start
            start = stop
            if held == _BLOCK_ROWS:
                yield np.concatenate(ids), np.concatenate(pieces).astype(np.float32)
                ids, pieces, held = [], [], 0
    if held:
        yield np.concatenate(ids), np.concatenate(pieces).astype(np.float32)


def _lists(rows: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    values = np.concatenate(rows) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))
