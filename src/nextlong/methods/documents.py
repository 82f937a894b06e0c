"""Draft documents: whole documents, one after the other, for the methods that NExtLong is compared with.

In:  DOCS (all documents that have chunks) and what the method asks for: nothing, the neighbours of some or all
     documents, or their keywords.
Out: DRAFTS: the chunks of each sequence's documents, in order; a little more than T tokens of text, by characters.

Each method is one function over arrays, under `methods/`; this room only brings them their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.methods import iclm, knn, standard
from nextlong.methods.quest import quest
from nextlong.methods.quest.keywords import _read_keywords
from nextlong.recipe import Iclm, Knn, Quest
from nextlong.search.metas import chunk_ids_of

Method = Literal["standard", "knn", "iclm", "quest"]

_ROWS_PER_FILE = 64


def draft_documents(
    out: Path,
    *,
    method: Method,
    docs: Path,
    neighbours: Sequence[Path],
    keywords: Sequence[Path],
    drafted_chars: float,
    sequences: int | None,
    options: Knn | Iclm | Quest | None,
    seed: int,
) -> dict[str, Any]:
    """Draft all sequences of a method; writes `{out}.{n:05d}.drafts.arrow`, in draw order."""
    documents = np.load(docs)
    hashes, chars = documents["content_hash"], documents["chars"]
    common: dict[str, Any] = {"drafted_chars": drafted_chars, "sequences": sequences}
    cosines: dict[tuple[int, int], float] = {}
    if isinstance(options, Knn):
        seeds, near, scores = _read_neighbours(neighbours, documents)
        drafts = knn.draft(seeds, near, chars, reuse=options.reuse, **common)
        place_of = {int(own): place for place, own in enumerate(seeds)}
        cosines = {
            (number, int(other)): float(score)
            for number, positions in enumerate(drafts)
            for other, score in zip(near[place_of[int(positions[0])]], scores[place_of[int(positions[0])]], strict=True)
        }
    elif isinstance(options, Iclm):
        _, near, scores = _read_neighbours(neighbours, documents)
        drafts, weights = iclm.draft(
            _padded(near, -1, np.int64),
            _padded(scores, -1.0, np.float32),
            hashes,
            chars,
            seed=seed,
            k=options.neighbours,
            max_similarity=options.max_similarity,
            **common,
        )
        cosines = {
            (number, position): float(weights[position])
            for number, positions in enumerate(drafts)
            for position in positions[1:].tolist()
        }
    elif isinstance(options, Quest):
        index = quest.draw_keywords(_read_keywords(keywords), hashes, seed=seed)
        rarity: dict[str, Any] = {"split_ratio": options.split_ratio, "oversample": options.oversample}
        drafts = quest.draft(index, hashes, chars, seed=seed, **rarity, **common)
    else:
        drafts = standard.draft(hashes, chars, seed=seed, **common)
    _write(out, method, documents, drafts, cosines)
    return {"drafts": len(drafts), "dropped": {}}


def _write(
    out: Path,
    method: Method,
    documents: NDArray[Any],
    drafts: Sequence[NDArray[np.int64]],
    cosines: dict[tuple[int, int], float],
) -> None:
    for number, first in enumerate(range(0, max(1, len(drafts)), _ROWS_PER_FILE)):
        path = f"{out}.{number:05d}.drafts.arrow"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
            for place in range(first, min(first + _ROWS_PER_FILE, len(drafts))):
                own = documents[drafts[place]]
                scores = [cosines.get((place, position), np.nan) for position in drafts[place].tolist()]
                ids = chunk_ids_of(own)
                row = {
                    "sequence_id": f"{method}-{xxhash.xxh3_64_hexdigest(own['content_hash'].tobytes())}",
                    "chunk_id": ids,
                    "role": np.full(len(ids), schemas.DOCUMENT, np.int8),
                    "group": np.repeat(np.arange(len(own), dtype=np.int32), own["chunks"]),
                    "score": np.repeat(np.array(scores, np.float32), own["chunks"]),
                    "near_copies": [],
                }
                writer.write_batch(pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS))


def _read_neighbours(
    paths: Sequence[Path], documents: NDArray[Any]
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]], list[NDArray[np.float32]]]:
    """Return the queries, their neighbours and cosines, ids turned into positions among `documents`."""
    shards = schemas.shard_of(documents["first_chunk"])
    first_of_shard = np.searchsorted(shards, np.arange(shards.max(initial=0) + 2))
    queries: list[NDArray[np.int64]] = []
    near: list[NDArray[np.int64]] = []
    scores: list[NDArray[np.float32]] = []
    for path in paths:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            table = reader.read_all()
        ids = table.column("chunk_id").to_numpy()
        queries.append(first_of_shard[schemas.shard_of(ids)] + schemas.row_of(ids))
        lists = table.column("neighbour_ids").combine_chunks()
        offsets, found = lists.offsets.to_numpy(), lists.values.to_numpy()
        values = table.column("scores").combine_chunks().values.to_numpy()
        positions = first_of_shard[schemas.shard_of(found)] + schemas.row_of(found)
        for low, high in pairwise(offsets.tolist()):
            near.append(positions[low:high])
            scores.append(values[low:high])
    return np.concatenate([np.empty(0, np.int64), *queries]), near, scores


def _padded(rows: Sequence[NDArray[Any]], value: float, kind: type) -> NDArray[Any]:
    table: NDArray[Any] = np.full((len(rows), max(map(len, rows), default=0)), value, kind)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table
