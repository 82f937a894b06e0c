"""Mine candidates: the chunks nearest to each meta-chunk, or the documents nearest to a document (paper §3.1.2).

In:  META_DOCUMENTS or ids of documents; VECTORS, of unit length, so that the inner product is the cosine; an index.
Out: CANDIDATES, descending by cosine. A query's own document, which would be nearest, is excluded.

In a small corpus, a task searches all vectors for a range of queries. Exact search of a large corpus reads the vectors once,
block by block, for all queries (docs/decisions/0008-search.md): `_find_least_scores`, `_scan_block`, `_mine_block`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.engine.executor import Resources
from nextlong.engine.step import Artifacts, Step, Task, TaskResult, Work
from nextlong.recipe.keys import AUTO, EXACT, Search, queries_of_task
from nextlong.retrieval.index import (
    NeighbourCount,
    count_neighbours,
    index_files,
    is_exact,
    queries_of,
    vectors_of,
)
from nextlong.retrieval.indexes import exact
from nextlong.retrieval.indexes.base import (
    IndexFiles,
    Neighbours,
    VectorShards,
    index_kind,
)
from nextlong.retrieval.sample import query_ranges, read_queries
from nextlong.retrieval.shortlist import MineResult, judge_shortlist

_BATCH = 8192  # queries searched for at a time, which bounds memory for a document of a million chunks
BLOCK_BYTES = 1 << 31  # vectors that a task of a large exact search holds in memory
MIN_SAMPLE, MAX_SAMPLE = 1 << 14, 1 << 20
# Expected in a sample of a query's k nearest: with a margin of 6 standard deviations, about 4 k vectors reach the bound.
# For more than MAX_SAMPLE / 8 · k vectors the sample has fewer of the k, and the margin is larger.
_SAMPLED_NEIGHBOURS = 8
# Queries of a `least_scores` task, which reads the whole sample (2 GB at 1,024 dimensions) and multiplies it for a
# minute. With MOST_QUERIES a task, it took 31 % of the time at 10^8 chunks on 64 nodes (bench/simulate.py).
LEAST_SCORES_QUERIES = 2048

_Paths = Sequence[Path]
_Scans = tuple[
    _Paths, _Paths
]  # files of `_find_least_scores` in the order of queries, stems of `_scan_block`
_Queries = tuple[
    Path, int, int
]  # a file of queries, and the first and last of its rows


def _corpus_blocks(vectors: _Paths) -> list[range]:
    """Return the shards of each block of the corpus; none where one block holds all vectors."""
    blocks = [
        range(*run)
        for run in lookup.runs_within(
            [path.stat().st_size for path in vectors], BLOCK_BYTES
        )
    ]
    return blocks if len(blocks) > 1 else []


def sample_size(k: float, total: float) -> int:
    return int(np.clip(_SAMPLED_NEIGHBOURS * total // k, MIN_SAMPLE, MAX_SAMPLE))


def _find_least_scores(
    out: Path, queries: _Queries, *, vectors: _Paths, k: int
) -> TaskResult:
    """Write `{out}.least.npy`, float32 (queries,): a cosine that somewhat more than `k` vectors reach, for each query."""
    shards = VectorShards(vectors)
    ids, exclude, _ = read_queries(*queries)
    sample = sample_size(k, sum(shards.rows))
    guess_Q = exact.guess_kth(
        lookup.vectors(ids, vectors), shards, k=k, exclude_Q2=exclude, sample=sample
    )
    np.save(
        f"{out}.least.npy",
        np.full(len(ids), -np.inf, np.float32) if guess_Q is None else guess_Q,
    )
    return TaskResult()


def _scan_block(
    out: Path, *, queries: Path, least: _Paths, vectors: _Paths, block: range, k: int
) -> MineResult:
    """Search one block of the corpus, which is read into memory once, for all queries.

    Writes `{out}.ids.npy` and `{out}.scores.npy`, of all queries; those of query q are [ends[q], ends[q + 1]) (`{out}.ends.npy`).
    """
    index = exact.open_exact(IndexFiles(EXACT, vectors), block=block)
    query_ids, exclude, _ = read_queries(queries)
    least_Q = np.concatenate([np.load(path) for path in least])
    ids, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for low in range(0, len(query_ids), _BATCH):
        part = slice(low, low + _BATCH)
        queries_QD = lookup.vectors(query_ids[part], vectors)
        block_ids, block_scores = index.search(
            queries_QD, k, exclude=exclude[part], least_Q=least_Q[part]
        )
        ids += block_ids
        scores += block_scores
    ends = np.cumsum([*map(len, ids)])  # (queries + 1,), from 0 on
    for name, column in (
        ("ids", np.concatenate(ids)),
        ("scores", np.concatenate(scores)),
        ("ends", ends),
    ):
        np.save(f"{out}.{name}.npy", column)
    return MineResult(queries=len(query_ids), candidates=int(ends[-1]))


def _mine_block(
    out: Path,
    queries: _Queries,
    index: IndexFiles,
    *,
    k: int,
    scans: _Scans | None = None,
    shortlist: _Paths = (),
) -> MineResult:
    """Find the candidates of `queries`, or merge those of `scans`; write `{out}.candidates.arrow`."""
    ids, exclude, before = read_queries(*queries)
    opened_index = index_kind(index.index).open(index)
    candidates, judged, shortlisted = 0, 0, 0
    with (
        pa.OSFile(f"{out}.candidates.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CANDIDATES) as writer,
    ):
        for low in range(0, len(ids), _BATCH):
            part = slice(low, low + _BATCH)
            queries_QD = lookup.vectors(ids[part], index.vectors)
            if scans is None:
                neighbours, scores = opened_index.search(
                    queries_QD, k, exclude=exclude[part]
                )
            else:
                (neighbours, scores), again = _merge(
                    *scans, before + low, queries_QD, k
                )
                # The bound was too high for these queries, about one in a billion.
                searched_again = opened_index.search(
                    queries_QD[again], k, exclude=exclude[part][again]
                )
                for query, row_ids, row_scores in zip(
                    again.tolist(), *searched_again, strict=True
                ):
                    neighbours[query], scores[query] = row_ids, row_scores
            if shortlist:  # chunks that were not embedded have zero vectors, so candidates must have a positive cosine
                counts = [
                    int(np.count_nonzero(row > 0)) for row in scores
                ]  # descending
                neighbours = [
                    row[:count] for row, count in zip(neighbours, counts, strict=True)
                ]
                scores = [
                    row[:count] for row, count in zip(scores, counts, strict=True)
                ]
                of_part = judge_shortlist(neighbours, shortlist)
                judged, shortlisted = judged + of_part[0], shortlisted + of_part[1]
            ends = pa.array(np.cumsum([0, *map(len, neighbours)]), pa.int32())
            values = (
                pa.array(np.concatenate(neighbours)),
                pa.array(np.concatenate(scores)),
            )
            columns = [
                pa.array(ids[part]),
                *(pa.ListArray.from_arrays(ends, column) for column in values),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schemas.CANDIDATES))
            candidates += sum(map(len, neighbours))
    return MineResult(
        queries=len(ids), candidates=candidates, judged=judged, shortlisted=shortlisted
    )


def _merge(
    least: _Paths, blocks: _Paths, first: int, queries_QD: NDArray[np.float32], k: int
) -> tuple[Neighbours, NDArray[np.int64]]:
    """Return the k best of the queries from `first` on over all blocks, and the queries whose bound may have been too high."""
    count, dimensions = queries_QD.shape
    least_Q = np.concatenate([np.load(path) for path in least])[first : first + count]
    parts = []  # of each block: the ends of its neighbours by query, their ids and their scores
    for stem in blocks:
        ends = np.load(f"{stem}.ends.npy", mmap_mode="r")[first : first + count + 1]
        ids, scores = (
            lookup.opened(Path(f"{stem}.{name}.npy"))[ends[0] : ends[-1]]
            for name in ("ids", "scores")
        )
        parts.append((ends - ends[0], ids, scores))
    neighbours, cosines, again = [], [], []
    for query in range(count):
        bounds = [slice(*ends[query : query + 2]) for ends, _, _ in parts]
        ids = np.concatenate(
            [ids[bound] for bound, (_, ids, _) in zip(bounds, parts, strict=True)]
        )
        scores = np.concatenate(
            [scores[bound] for bound, (_, _, scores) in zip(bounds, parts, strict=True)]
        )
        best = np.lexsort((ids, -scores))[:k]
        neighbours.append(ids[best])
        cosines.append(scores[best])
        # Blocks compare rough scores with the bound, so only neighbours above it by more than the rounding error are certain.
        kth = scores[best[-1]] if len(best) == k else -np.inf
        if (
            kth - exact.ROUNDING * exact.rounding_error(dimensions) < least_Q[query]
            and least_Q[query] > -np.inf
        ):
            again.append(query)
    return (neighbours, cosines), np.array(again, np.int64)


def mine_steps(
    search: Search,
    name: str,
    vectors: Step,
    queries: Step,
    before: Sequence[Step],
    neighbours: NeighbourCount,
) -> list[Step]:
    """Return the steps from VECTORS to CANDIDATES of the queries; `before` built an index or a shortlist; the last is `name`.

    The others search by blocks of the corpus; they have no tasks where one block holds all vectors.
    """
    shared = (vectors, queries, *before)
    config: dict[str, Any] = dict(neighbours)
    unbuilt = (
        None  # an index of another package, which reads the stored vectors directly
    )
    if search.index not in (AUTO, EXACT) and not index_kind(search.index).is_built:
        unbuilt = search.index
        config |= {"index": unbuilt, "version": index_kind(unbuilt).version}

    def least_tasks(done: Artifacts) -> Work:
        has_blocks = is_exact(done) and _corpus_blocks(vectors_of(done))
        ranges = (
            query_ranges(queries_of(done), most=LEAST_SCORES_QUERIES)
            if has_blocks
            else []
        )
        find = partial(
            _find_least_scores,
            vectors=vectors_of(done),
            k=count_neighbours(neighbours, done),
        )
        return Work(
            [partial(find, queries=(queries_of(done), *rows)) for rows in ranges],
            gpu="unused",
        )

    def scan_tasks(done: Artifacts) -> list[Task]:
        least, k = (
            done["least_scores"].files(".least.npy"),
            count_neighbours(neighbours, done),
        )
        scan = partial(
            _scan_block,
            queries=queries_of(done),
            least=least,
            vectors=vectors_of(done),
            k=k,
        )
        return [
            partial(scan, block=block)
            for block in _corpus_blocks(vectors_of(done))
            if least
        ]

    def tasks(done: Artifacts) -> Work:
        files, scans, queries = index_files(done), None, queries_of(done)
        files = files if unbuilt is None else replace(files, index=unbuilt)
        marks = done["shortlist"].files(".shortlist.npy") if "shortlist" in done else ()
        if "scan" in done and (ends := done["scan"].files(".ends.npy")):
            stems = [
                path.with_name(path.name.removesuffix(".ends.npy")) for path in ends
            ]
            scans = done["least_scores"].files(".least.npy"), stems
        k = count_neighbours(neighbours, done)
        mine = partial(_mine_block, index=files, k=k, scans=scans, shortlist=marks)
        ranges = query_ranges(queries, most=queries_of_task(k))
        searches = [partial(mine, queries=(queries, *rows)) for rows in ranges]
        return Work(
            searches,
            gpu="unused" if index_kind(files.index).is_built or scans else None,
        )

    resources = Resources(gpu="unused" if search.device == "cpu" else "optional")
    scanning: list[Step] = []
    if search.index in (AUTO, EXACT):
        least = Step("least_scores", 2, config, shared, least_tasks)
        scan = Step(
            "scan",
            1,
            config,
            (*shared, least),
            scan_tasks,
            MineResult,
            resources=resources,
        )
        scanning = [least, scan]
    inputs = (*shared, *scanning)
    return [
        *scanning,
        Step(
            name,
            5,
            config,
            inputs,
            tasks,
            MineResult,
            resources=resources,
        ),
    ]
