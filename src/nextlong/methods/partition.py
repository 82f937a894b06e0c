"""Partition: the documents of a large corpus in parts of similar ones, so that no task holds the neighbours of all.

In:  the vectors of all documents. Out: for each document the number of its cluster, and from these the number of its part.

A method that walks along neighbours holds them all, 60 bytes each: 300 GB at 10^9 chunks. Above `documents.partition_size`
neighbours, documents are put into parts by spherical k-means, some `_CLUSTERS_OF_A_PART` clusters to a part, clusters whose centres
are near each other in the same one; each part is drafted as if it were the corpus. That is ours. The authors of In-Context
Pretraining hold every neighbour on one machine (sort/sort.py), and end a path after 21 documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.results import DraftResult
from nextlong.engine.step import Amounts, Artifacts, Estimate, Step, Task, TaskResult, per_shard
from nextlong.retrieval.index import NeighbourCount, count_neighbours
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.costs import PRODUCT_S
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres
from nextlong.retrieval.sample import DrawResult
from nextlong.text import Json

_CLUSTERS_OF_A_PART = 64  # so that parts are of about the same size, whatever the sizes of the clusters
_SAMPLED_OF_A_CLUSTER = 256  # vectors that k-means sees
_ITERATIONS = 10
_ASSIGNED_AT_ONCE = 65_536  # vectors, held as float32


class _ClustersResult(TaskResult):
    """In how many parts documents are drafted, and how many clusters make these up."""

    parts: int
    clusters: int


class Part(NamedTuple):
    """One of several parts: its number, how many there are, the centres of all clusters and the documents' clusters by shard."""

    number: int
    parts: int
    centres: Path
    clusters: Sequence[Path]

    def choose(self, rows: NDArray[Any], sequences: int | None) -> tuple[NDArray[np.int64], int | None]:
        """Return the positions of the part's documents among META_DOCUMENTS `rows`, and its share of `sequences` by characters."""
        cluster_of = np.concatenate([np.empty(0, np.uint16), *map(np.load, self.clusters)])  # (documents,)
        part_of = _parts_of_clusters(np.load(self.centres), np.bincount(cluster_of), parts=self.parts)[cluster_of]
        chars = np.bincount(part_of, weights=rows["chars"], minlength=self.parts)
        # (parts + 1,): the share of all characters that the parts before each hold.
        ends = np.concatenate([[0.0], np.cumsum(chars) / max(1.0, chars.sum())])
        share = None
        if sequences is not None:
            share = math.floor(sequences * ends[self.number + 1]) - math.floor(sequences * ends[self.number])
        return np.flatnonzero(part_of == self.number), share


def _parts_of_clusters(centres_CD: NDArray[np.float32], counts: NDArray[np.int64], *, parts: int) -> NDArray[np.int64]:
    """Return the part of each cluster, shape (clusters,): clusters near each other share one, and parts have like `counts`.

    The clusters stand in a row, each followed by the nearest that is left; the row is cut where a part's share is full.
    """
    counts = np.pad(counts, (0, len(centres_CD) - len(counts)))
    cosines_CC = centres_CD.astype(np.float64) @ centres_CD.T
    row, here = [], 0
    for _ in range(len(centres_CD)):
        row.append(here)
        cosines_CC[:, here] = -np.inf
        here = int(cosines_CC[here].argmax())
    # (clusters,): how many documents stand in the row before the middle of each of its clusters.
    middles = np.cumsum(counts[row]) - counts[row] / 2
    part_of = np.empty(len(row), np.int64)
    part_of[row] = np.minimum(parts * middles // max(1, counts.sum()), parts - 1)
    return part_of


def _train_clusters(out: Path, *, vectors: Sequence[Path], parts: int, seed: int) -> _ClustersResult:
    """Write `{out}.centres.npy`, float32 (clusters, dimensions), trained on a sample of the documents' vectors."""
    shards = VectorShards(vectors)
    total = sum(shards.rows)
    count = min(_CLUSTERS_OF_A_PART * parts, total, np.iinfo(np.uint16).max)
    sample = min(total, _SAMPLED_OF_A_CLUSTER * count)
    sample_SD = shards.take(shards.ids_at(np.arange(sample) * total // sample)).astype(np.float32)
    np.save(f"{out}.centres.npy", train_centres(sample_SD, count=count, iterations=_ITERATIONS, seed=seed))
    return _ClustersResult(parts=parts, clusters=count)


def _assign_clusters(out: Path, *, vectors: Path, centres: Path) -> TaskResult:
    """Write `{out}.clusters.npy`, uint16 (documents,): the cluster whose centre is nearest to each document of a shard."""
    stored, centres_CD = np.load(vectors, mmap_mode="r"), np.load(centres)
    numbers = np.empty(len(stored), np.uint16)
    for first in range(0, len(stored), _ASSIGNED_AT_ONCE):
        block_ND = stored[first : first + _ASSIGNED_AT_ONCE].astype(np.float32)
        numbers[first : first + len(block_ND)] = nearest_centres(block_ND, centres_CD, count=1)[:, 0]
    np.save(f"{out}.clusters.npy", numbers)
    return TaskResult()


def count_parts(partition_size: int, neighbours: float) -> int:
    """Return in how many parts documents are drafted that have so many neighbours together."""
    return max(1, math.ceil(neighbours / partition_size))


def parts_of(done: Artifacts) -> list[Part]:
    """Return the parts that a finished run's documents were put into; none where they are drafted together."""
    if "partition" not in done or not done["partition"].manifest["parts"]:
        return []
    trained = done["clusters"].result(_ClustersResult)
    centres, clusters = done["clusters"].file(".centres.npy"), done["partition"].files(".clusters.npy")
    return [Part(number, trained.parts, centres, clusters) for number in range(trained.parts)]


def describe_partition(done: Artifacts) -> str:
    """Return how the documents of a finished run were partitioned, as summaries and cards say it; "" if they were not."""
    sizes = [part.documents for part in done["draft"].results(DraftResult) if part.documents is not None]
    if not sizes:
        return ""
    return (
        f"{len(sizes):,} partitions of similar documents, {min(sizes):,} to {max(sizes):,} each; neighbours in another partition "
        "are not used (documents.partition_size), which the method's paper does not do"
    )


def partition_steps(
    documents: Step, vectors: Step, neighbours: NeighbourCount, *, partition_size: int, seed: int
) -> list[Step]:
    """Return the steps that put the documents into parts; without tasks where one part holds all."""

    def parts(done: Artifacts) -> int:
        drawn = done["documents"].result(DrawResult).drawn
        return count_parts(partition_size, drawn * count_neighbours(neighbours, done))

    def train(done: Artifacts) -> list[Task]:
        paths = done["document_vectors"].files(".document_vectors.npy")
        train = partial(_train_clusters, vectors=paths, parts=parts(done), seed=seed)
        return [train] if parts(done) > 1 else []

    def assign(done: Artifacts) -> list[Task]:
        paths = done["document_vectors"].files(".document_vectors.npy") if parts(done) > 1 else []
        return [
            partial(_assign_clusters, vectors=path, centres=done["clusters"].file(".centres.npy")) for path in paths
        ]

    def clusters(amounts: Amounts) -> float:
        count = count_parts(partition_size, amounts.all_neighbours)
        return 0.0 if count == 1 else min(_CLUSTERS_OF_A_PART * count, amounts.vectors)

    config: Json = {"partition_size": partition_size, "neighbours": dict(neighbours), "seed": seed}
    training = Estimate(
        work=lambda amounts: _ITERATIONS * _SAMPLED_OF_A_CLUSTER * clusters(amounts) ** 2 * amounts.dimensions,
        seconds=PRODUCT_S,
        disk=lambda amounts: clusters(amounts) * amounts.dimensions,
        bytes=4,
        memory=lambda amounts: 6.0 * _SAMPLED_OF_A_CLUSTER * clusters(amounts) * amounts.dimensions,
        rate="products",
    )
    assigning = Estimate(
        work=lambda amounts: clusters(amounts) * amounts.vectors * amounts.dimensions,
        seconds=PRODUCT_S,
        disk=lambda amounts: amounts.vectors if clusters(amounts) else 0.0,
        bytes=2,
        tasks=per_shard,
        memory=lambda amounts: 4.0 * _ASSIGNED_AT_ONCE * amounts.dimensions if clusters(amounts) else 0.0,
        rate="products",
    )
    trained = Step("clusters", 1, config, (documents, vectors), train, _ClustersResult, estimate=training)
    return [trained, Step("partition", 1, {}, (documents, vectors, trained), assign, estimate=assigning)]
