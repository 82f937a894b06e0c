"""Mine candidates: the nearest chunks of each meta-chunk, or documents of a document.

In:  META_DOCUMENTS or ids of documents; VECTORS, of unit length, so that the inner
     product is the cosine; an index.
Out: CANDIDATES, descending by cosine. A query's own document, which would be nearest,
     is excluded (paper §3.1.2).

In a small corpus, a task searches all vectors for a range of queries (`_mine_block`).
Exact search of a large corpus reads the vectors once, block by block, for all queries
(docs/decisions/0008-search.md): `_find_min_scores` bounds what each query looks for,
`_scan_block` searches one block, and `_mine_block` merges what all blocks have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Floats, Ints
from nextlong.artifacts import corpus_files
from nextlong.engine.executor import Resources
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    Work,
)
from nextlong.recipe.keys import AUTO, EXACT, Search, queries_of_task
from nextlong.retrieval.index import (
    NeighbourCount,
    count_neighbours,
    index_files,
    is_exact,
    queries_of,
    vectors_of,
)
from nextlong.retrieval.indexes import exact_cpu
from nextlong.retrieval.indexes.base import (
    Index,
    IndexFiles,
    Neighbours,
    VectorShards,
    index_kind,
)
from nextlong.retrieval.indexes.exact import open_exact
from nextlong.retrieval.sample import query_ranges, read_queries
from nextlong.retrieval.shortlist import MineResult, ShortlistFiles, judge_shortlist

# Queries searched for at a time, which bounds memory for a document of a million
# chunks.
_BATCH = 8192
# Vectors that a task of a large exact search holds in memory.
BLOCK_BYTES = 1 << 31
# Vectors in the sample from which the score of a query's k-th nearest is guessed.
MIN_SAMPLE = 1 << 14
MAX_SAMPLE = 1 << 20
# How many of a query's k nearest a sample should contain. The guess allows for 6
# standard deviations of this number (`sampled_rank`), so that about 4 k vectors reach
# it. MAX_SAMPLE limits the sample of a corpus of more than MAX_SAMPLE / 8 · k vectors:
# it then contains fewer of the k, and more vectors reach the guess.
_SAMPLED_NEIGHBOURS = 8
# Queries of a `least_scores` task, which reads the whole sample (2 GB at 1,024
# dimensions) and multiplies it for a minute. With MOST_QUERIES per task, it took 31 %
# of the time at 10^8 chunks on 64 nodes (bench/simulate.py).
LEAST_SCORES_QUERIES = 2048

_Paths = Sequence[Path]
# A file of queries, and the range [first, last) of its rows.
_Queries = tuple[Path, int, int]


class _Scans(NamedTuple):
    """What a large exact search found, block by block."""

    min_scores: _Paths  # files of `_find_min_scores`, in the order of queries
    blocks: _Paths  # stems of the files of `_scan_block`


def _corpus_blocks(vectors: _Paths) -> list[range]:
    """Return the shards of each block of the corpus; no block if one holds them all."""
    sizes = [path.stat().st_size for path in vectors]
    bounds = corpus_files.runs_within(sizes, BLOCK_BYTES)
    blocks = [range(first, last) for first, last in bounds]
    return blocks if len(blocks) > 1 else []


def sample_size(k: float, total: float) -> int:
    """Return how many of `total` vectors are sampled to bound a query's k-th best."""
    size = np.clip(_SAMPLED_NEIGHBOURS * total // k, MIN_SAMPLE, MAX_SAMPLE)
    return int(size)


def _find_min_scores(
    out: Path, queries: _Queries, *, vectors: _Paths, k: int
) -> TaskResult:
    """Write `{out}.least.npy`, float32 (queries,).

    It has, for each query, a cosine that somewhat more than `k` vectors reach.
    """
    shards = VectorShards(vectors)
    ids, exclude, _ = read_queries(*queries)
    min_scores_Q = exact_cpu.guess_kth(
        corpus_files.vectors(ids, vectors),
        shards,
        k=k,
        exclude_Q2=exclude,
        sample=sample_size(k, sum(shards.rows)),
    )
    # Where sampling does not pay, every vector reaches the bound.
    if min_scores_Q is None:
        min_scores_Q = np.full(len(ids), -np.inf, np.float32)
    np.save(f"{out}.least.npy", min_scores_Q)
    return TaskResult()


def _scan_block(
    out: Path,
    *,
    queries: Path,
    min_scores: _Paths,
    vectors: _Paths,
    block: range,
    k: int,
) -> MineResult:
    """Search one block of the corpus, which is read into memory once, for all queries.

    Writes `{out}.ids.npy` and `{out}.scores.npy`, the neighbours of one query after
    those of another, and `{out}.ends.npy`: those of query q are [ends[q], ends[q + 1]).
    """
    index = open_exact(IndexFiles(EXACT, vectors), block=block)
    query_ids, exclude, _ = read_queries(queries)
    min_scores_Q = _read_min_scores(min_scores)
    ids = [np.empty(0, np.int64)]
    scores = [np.empty(0, np.float32)]
    for start in range(0, len(query_ids), _BATCH):
        part = slice(start, start + _BATCH)
        part_ids, part_scores = index.search(
            corpus_files.vectors(query_ids[part], vectors),
            k,
            exclude=exclude[part],
            min_scores_Q=min_scores_Q[part],
        )
        ids += part_ids
        scores += part_scores
    # (queries + 1,) from 0, because `ids` begins with an empty array.
    ends = np.cumsum([len(row) for row in ids])
    np.save(f"{out}.ids.npy", np.concatenate(ids))
    np.save(f"{out}.scores.npy", np.concatenate(scores))
    np.save(f"{out}.ends.npy", ends)
    return MineResult(queries=len(query_ids), candidates=int(ends[-1]))


def _read_min_scores(paths: _Paths) -> Floats:
    return np.concatenate([np.load(path) for path in paths])


def _mine_block(
    out: Path,
    queries: _Queries,
    files: IndexFiles,
    *,
    k: int,
    scans: _Scans | None = None,
    shortlist: _Paths = (),
) -> MineResult:
    """Find the candidates of `queries`: search the index, or merge those of `scans`.

    Writes `{out}.candidates.arrow`.
    """
    ids, exclude, queries_before = read_queries(*queries)
    index = index_kind(files.index).open(files)
    candidates = 0
    judged = 0
    shortlisted = 0
    with (
        pa.OSFile(f"{out}.candidates.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CANDIDATES) as writer,
    ):
        for start in range(0, len(ids), _BATCH):
            part = slice(start, start + _BATCH)
            queries_QD = corpus_files.vectors(ids[part], files.vectors)
            if scans is None:
                found = index.search(queries_QD, k, exclude=exclude[part])
            else:
                found = _merge(
                    scans,
                    first=queries_before + start,
                    queries_QD=queries_QD,
                    k=k,
                    index=index,
                    exclude=exclude[part],
                )
            if shortlist:
                found = _with_positive_cosine(found)
                part_judged, part_shortlisted = judge_shortlist(found[0], shortlist)
                judged += part_judged
                shortlisted += part_shortlisted
            writer.write_batch(_candidate_rows(ids[part], found))
            neighbours, _ = found
            candidates += sum(map(len, neighbours))
    return MineResult(
        queries=len(ids), candidates=candidates, judged=judged, shortlisted=shortlisted
    )


def _with_positive_cosine(found: Neighbours) -> Neighbours:
    """Return the neighbours with a positive cosine.

    Chunks that were not embedded have zero vectors, and are no candidates.
    """
    neighbours = []
    scores = []
    for row_ids, row_scores in zip(*found, strict=True):
        # Scores descend, so the positive ones come first.
        count = int(np.count_nonzero(row_scores > 0))
        neighbours.append(row_ids[:count])
        scores.append(row_scores[:count])
    return neighbours, scores


def _candidate_rows(query_ids: Ints, found: Neighbours) -> pa.RecordBatch:
    """Return CANDIDATES: the neighbours and cosines of each query."""
    neighbours, scores = found
    counts = [len(row) for row in neighbours]
    ends = pa.array(np.cumsum([0, *counts]), pa.int32())
    values = pa.array(np.concatenate(neighbours))
    cosines = pa.array(np.concatenate(scores))
    columns = [
        pa.array(query_ids),
        pa.ListArray.from_arrays(ends, values),
        pa.ListArray.from_arrays(ends, cosines),
    ]
    return pa.record_batch(columns, schema=schemas.CANDIDATES)


class _BlockNeighbours(NamedTuple):
    """The neighbours of some queries in one block of the corpus.

    `ends` has shape (queries + 1,): query i has the rows [ends[i], ends[i + 1]) of the
    two others.
    """

    ends: Ints
    ids: Ints
    scores: Floats

    @classmethod
    def read(cls, stem: Path, first: int, count: int) -> _BlockNeighbours:
        """Read the neighbours of `count` queries from `first` on."""
        all_ends = np.load(f"{stem}.ends.npy", mmap_mode="r")
        ends = all_ends[first : first + count + 1]
        rows = slice(ends[0], ends[-1])
        ids = corpus_files.opened(Path(f"{stem}.ids.npy"))
        scores = corpus_files.opened(Path(f"{stem}.scores.npy"))
        return cls(ends - ends[0], ids[rows], scores[rows])

    def rows_of(self, query: int) -> slice:
        return slice(self.ends[query], self.ends[query + 1])


def _merge(
    scans: _Scans,
    *,
    first: int,
    queries_QD: Floats,
    k: int,
    index: Index,
    exclude: Ints,
) -> Neighbours:
    """Return the k best neighbours, over all blocks, of the queries from `first` on.

    The other arrays are those of these queries; a query is searched for in `index` if
    the blocks may lack one of its neighbours.
    """
    count, dimensions = queries_QD.shape
    min_scores_Q = _read_min_scores(scans.min_scores)[first : first + count]
    blocks = [_BlockNeighbours.read(stem, first, count) for stem in scans.blocks]
    # Blocks compare rough scores with the bound, so only neighbours above it by more
    # than the rounding error are certain.
    error = exact_cpu.ROUNDING * exact_cpu.rounding_error(dimensions)
    neighbours = []
    cosines = []
    uncertain = []
    for query in range(count):
        ids = np.concatenate([block.ids[block.rows_of(query)] for block in blocks])
        scores = np.concatenate(
            [block.scores[block.rows_of(query)] for block in blocks]
        )
        # The highest scores, and of equal ones the lowest ids.
        best = np.lexsort((ids, -scores))[:k]
        neighbours.append(ids[best])
        cosines.append(scores[best])

        has_bound = min_scores_Q[query] > -np.inf
        kth_score = scores[best[-1]] if len(best) == k else -np.inf
        if has_bound and kth_score - error < min_scores_Q[query]:
            uncertain.append(query)

    # The bound was too high for these queries, about one in a billion.
    rows = np.array(uncertain, np.int64)
    searched = index.search(queries_QD[rows], k, exclude=exclude[rows])
    for query, row_ids, row_scores in zip(uncertain, *searched, strict=True):
        neighbours[query] = row_ids
        cosines[query] = row_scores
    return neighbours, cosines


class LeastScoresFiles(StepFiles):
    """The score that a neighbour needs at least, for each query of a task."""

    step = "least_scores"
    min_scores = ShardFiles(".least.npy")


class ScanFiles(StepFiles):
    """For each block of the corpus: where the neighbours of each query end."""

    step = "scan"
    ends = ShardFiles(".ends.npy")


class MineFiles(StepFiles):
    """The CANDIDATES of every task."""

    step = "mine"
    candidates = ShardFiles(".candidates.arrow")


def mine_steps(
    search: Search,
    name: str,
    vectors: Step,
    queries: Step,
    before: Sequence[Step],
    neighbours: NeighbourCount,
) -> list[Step]:
    """Return the steps from VECTORS to CANDIDATES of the queries; the last is `name`.

    The steps `before` built an index or a shortlist. The steps `least_scores` and
    `scan` search by blocks of the corpus; they have no tasks where one block holds all
    vectors.
    """
    inputs = (vectors, queries, *before)
    config: dict[str, Any] = dict(neighbours)
    # An index that is not built reads the stored vectors itself. It has no step of its
    # own, so the mining step has its name and version.
    unbuilt_index = None
    if search.index not in (AUTO, EXACT):
        kind = index_kind(search.index)
        if not kind.is_built:
            unbuilt_index = search.index
            config |= {"index": unbuilt_index, "version": kind.version}

    def least_scores_tasks(done: Artifacts) -> Work:
        find = partial(
            _find_min_scores,
            vectors=vectors_of(done),
            k=count_neighbours(neighbours, done),
        )
        tasks: list[Task] = []
        if is_exact(done) and _corpus_blocks(vectors_of(done)):
            path = queries_of(done)
            for rows in query_ranges(path, max_queries=LEAST_SCORES_QUERIES):
                tasks.append(partial(find, queries=(path, *rows)))
        return Work(tasks, gpu="unused")

    def scan_tasks(done: Artifacts) -> list[Task]:
        min_scores = LeastScoresFiles.of(done).min_scores
        if not min_scores:
            return []
        scan = partial(
            _scan_block,
            queries=queries_of(done),
            min_scores=min_scores,
            vectors=vectors_of(done),
            k=count_neighbours(neighbours, done),
        )
        blocks = _corpus_blocks(vectors_of(done))
        return [partial(scan, block=block) for block in blocks]

    def mine_tasks(done: Artifacts) -> Work:
        files = index_files(done)
        if unbuilt_index is not None:
            files = replace(files, index=unbuilt_index)
        scans = _scans_of(done)
        k = count_neighbours(neighbours, done)
        mine = partial(
            _mine_block,
            files=files,
            k=k,
            scans=scans,
            shortlist=_shortlist_of(done),
        )
        path = queries_of(done)
        ranges = query_ranges(path, max_queries=queries_of_task(k))
        tasks = [partial(mine, queries=(path, *rows)) for rows in ranges]
        # FAISS searches on the CPU, and merging needs no GPU.
        needs_no_gpu = index_kind(files.index).is_built or scans is not None
        return Work(tasks, gpu="unused" if needs_no_gpu else None)

    resources = Resources(gpu="unused" if search.device == "cpu" else "optional")
    scanning: list[Step] = []
    if search.index in (AUTO, EXACT):
        least_scores = Step(
            name="least_scores",
            phase="search",
            version=2,
            config=config,
            inputs=inputs,
            tasks=least_scores_tasks,
        )
        scan = Step(
            name="scan",
            phase="search",
            version=1,
            config=config,
            inputs=(*inputs, least_scores),
            tasks=scan_tasks,
            result=MineResult,
            resources=resources,
        )
        scanning = [least_scores, scan]
    mine = Step(
        name=name,
        phase="search",
        version=5,
        config=config,
        inputs=(*inputs, *scanning),
        tasks=mine_tasks,
        result=MineResult,
        resources=resources,
    )
    return [*scanning, mine]


def _scans_of(done: Artifacts) -> _Scans | None:
    """Return what the blocks of the corpus have; None where they were not searched."""
    if "scan" not in done:
        return None
    ends = ScanFiles.of(done).ends
    if not ends:
        return None
    suffix = ScanFiles.ends.suffix
    stems = [path.with_name(path.name.removesuffix(suffix)) for path in ends]
    return _Scans(LeastScoresFiles.of(done).min_scores, stems)


def _shortlist_of(done: Artifacts) -> _Paths:
    """Return the marks of the chunks in the shortlist; none without one."""
    if "shortlist" not in done:
        return ()
    return ShortlistFiles.of(done).marks
