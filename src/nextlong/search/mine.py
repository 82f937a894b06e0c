"""Mine: find the chunks nearest to each chunk of the drawn documents, or the documents nearest to a document.

In:  META_DOCUMENTS or ids of documents, VECTORS (unit length, so inner product is cosine), an index over them.
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
from nextlong.results import MineResult
from nextlong.search.draw import chunk_ids_of
from nextlong.search.index import IndexFiles, open_index

_BATCH = 8192  # queries searched for at a time, so that a document of a million chunks stays within memory


def mine_block(out: Path, *, meta_documents: Path, first: int, last: int, index: IndexFiles, fetch: int) -> MineResult:
    """Find the candidates of the drawn documents [first, last); writes `{out}.candidates.arrow`."""
    return _mine(out, *chunk_queries(np.load(meta_documents)[first:last]), index, fetch)


def mine_documents(out: Path, *, queries: Path, first: int, last: int, index: IndexFiles, fetch: int) -> MineResult:
    """Find the nearest documents of the documents [first, last) of `queries`; writes `{out}.candidates.arrow`.

    Ids are those of the document vectors: shard << 32 | row among the shard's document vectors.
    """
    return _mine(out, *document_queries(np.load(queries)[first:last]), index, fetch)


def chunk_queries(meta_documents: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of all chunks of drawn documents, shape (n,), and the range [first, last) of ids each leaves out, (n, 2)."""
    first, count = (np.repeat(meta_documents[name], meta_documents["chunks"]) for name in ("first_chunk", "chunks"))
    return chunk_ids_of(meta_documents), np.stack([first, first + count], axis=1)


def document_queries(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of documents, shape (n,), and the range [first, last) of ids each leaves out, its own, (n, 2)."""
    return ids, np.stack([ids, ids + 1], axis=1)


def _mine(out: Path, ids: NDArray[np.int64], exclude: NDArray[np.int64], index: IndexFiles, fetch: int) -> MineResult:
    opened = open_index(index)
    candidates, fewest = 0, fetch if len(ids) else 0
    with pa.OSFile(f"{out}.candidates.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.CANDIDATES) as writer:
        for first in range(0, len(ids), _BATCH):
            part = slice(first, first + _BATCH)
            queries_QD = lookup.vectors(ids[part], index.vectors)
            neighbours, scores = opened.search(queries_QD, fetch, exclude=exclude[part])
            columns = [pa.array(ids[part]), _lists(neighbours, pa.int64()), _lists(scores, pa.float32())]
            writer.write_batch(pa.record_batch(columns, schema=schemas.CANDIDATES))
            candidates += sum(map(len, neighbours))
            fewest = min(fewest, *map(len, neighbours))
    return MineResult(queries=len(ids), candidates=candidates, fewest=fewest)


def _lists(rows: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    values = np.concatenate(rows) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))
