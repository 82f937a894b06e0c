"""Mine: find the chunks nearest to each chunk of the drawn documents, or the documents nearest to a document.

In:  METAS or ids of documents, VECTORS (unit length, so inner product is cosine), an index over them.
Out: CANDIDATES, descending by cosine. The own document, which would be nearest, is left out (paper §3.1.2).
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
from nextlong.search.index import IndexFiles, open_index
from nextlong.search.metas import chunk_ids_of


def mine_block(out: Path, *, metas: Path, first: int, last: int, index: IndexFiles, fetch: int) -> dict[str, Any]:
    """Find the candidates of the drawn documents [first, last); writes `{out}.candidates.arrow`."""
    drawn = np.load(metas)[first:last]
    first_chunk, count = (np.repeat(column, drawn["chunks"]) for column in (drawn["first_chunk"], drawn["chunks"]))
    return _mine(out, chunk_ids_of(drawn), index, fetch, exclude=np.stack([first_chunk, first_chunk + count], axis=1))


def mine_documents(out: Path, *, queries: Path, first: int, last: int, index: IndexFiles, fetch: int) -> dict[str, Any]:
    """Find the nearest documents of the documents [first, last) of `queries`; writes `{out}.candidates.arrow`.

    Ids are those of the document vectors: shard << 32 | row among the shard's document vectors.
    """
    ids = np.load(queries)[first:last]
    return _mine(out, ids, index, fetch, exclude=np.stack([ids, ids + 1], axis=1))


def _mine(
    out: Path, ids: NDArray[np.int64], index: IndexFiles, fetch: int, *, exclude: NDArray[np.int64]
) -> dict[str, Any]:
    queries_QD = lookup.vectors(ids, index.vectors)
    neighbours, scores = open_index(index).search(queries_QD, fetch, exclude=exclude)
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
