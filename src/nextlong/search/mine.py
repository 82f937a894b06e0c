"""Mine: draw the meta-documents, and find the chunks nearest to each of their chunks.

In:  CHUNKS, VECTORS (unit length, so inner product is cosine).
Out: METAS (the drawn documents, in draw order), CANDIDATES (descending by cosine, own document removed).

The search is exact: FAISS brute force over blocks of memory-mapped vectors, merged on a heap, many queries at a time. A
document's own chunks are its nearest and must fall out (paper §3.1.2), so it fetches as many more as most documents have
chunks. A longer document is searched for by itself, with its own vectors left out from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.search.exact import nearest
from nextlong.search.metas import chunk_ids_of


def mine_block(out: Path, *, metas: Path, first: int, last: int, vectors: Sequence[Path], fetch: int) -> dict[str, Any]:
    """Find the candidates of the drawn documents [first, last); writes `{out}.candidates.arrow`."""
    drawn = np.load(metas)[first:last]
    ids = chunk_ids_of(drawn)
    own_first = np.repeat(drawn["first_chunk"], drawn["chunks"])
    own_last = own_first + np.repeat(drawn["chunks"], drawn["chunks"])
    neighbours, scores = nearest(
        lookup.vectors(ids, vectors), vectors, fetch=fetch, own_first=own_first, own_last=own_last
    )
    return _write_candidates(out, ids, neighbours, scores)


def mine_documents(
    out: Path, *, queries: Path, first: int, last: int, vectors: Sequence[Path], fetch: int
) -> dict[str, Any]:
    """Find the nearest documents of the documents [first, last) of `queries`; writes `{out}.candidates.arrow`.

    Ids are those of the document vectors: shard << 32 | row among the shard's document vectors.
    """
    ids = np.load(queries)[first:last]
    neighbours, scores = nearest(lookup.vectors(ids, vectors), vectors, fetch=fetch, own_first=ids, own_last=ids + 1)
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


def _lists(rows: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    values = np.concatenate(rows) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))
