"""Partition the documents, so that a method holds the neighbours of one part at a time.

In:  the vectors of all documents, and how many neighbours each of them has.
Out: the cluster of each document, and the parts that neighbouring clusters make up.

A method that follows neighbours holds all of them in memory, 60 bytes each: 300 GB at
10^9 chunks. Above `documents.partition_size` neighbours, documents are therefore
partitioned by spherical k-means, about `CLUSTERS_PER_PART` neighbouring clusters to a
part, and each part is drafted like a corpus of its own. The papers do not do this
(docs/methods.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nextlong.arrays import AnyArray, Floats, Ints
from nextlong.artifacts.results import DraftResult
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
)
from nextlong.retrieval.embed import DocumentVectorsFiles
from nextlong.retrieval.index import NeighbourCount, count_neighbours
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres
from nextlong.retrieval.sample import DrawResult
from nextlong.text import Json

HELD_VECTORS = 65_536  # as float32 at a time
CLUSTERS_PER_PART = 64  # so many that parts have similar sizes even if clusters do not
SAMPLE_PER_CLUSTER = 256  # vectors to train a cluster on
ITERATIONS = 10


class ClustersResult(TaskResult):
    """The number of parts, and of the clusters that make them up."""

    parts: int
    clusters: int


class ClustersFiles(StepFiles):
    """The centres of the parts; no file if one part holds all documents."""

    step = "clusters"
    centres = ShardFiles(".centres.npy")


class PartitionFiles(StepFiles):
    """The part of each document of a shard."""

    step = "partition"
    clusters = ShardFiles(".clusters.npy")


class Part(NamedTuple):
    """A part of the documents, and what tells which documents it has."""

    number: int
    # How many parts there are.
    parts: int
    # The file of the centres of all clusters.
    centres: Path
    # The files with the cluster of each document, by shard.
    clusters: Sequence[Path]

    def choose(self, rows: AnyArray, sequences: int | None) -> tuple[Ints, int | None]:
        """Return the positions of the part's documents, and its share of the sequences.

        The positions are among `rows`; the share, of `sequences`, is by characters.
        """
        clusters = [np.load(path) for path in self.clusters]
        # (documents,)
        cluster_of = np.concatenate([np.empty(0, np.uint16), *clusters])
        counts = np.bincount(cluster_of)
        centres_CD = np.load(self.centres)
        part_of_cluster = parts_of_clusters(centres_CD, counts, parts=self.parts)
        part_of = part_of_cluster[cluster_of]
        members = np.flatnonzero(part_of == self.number)
        if sequences is None:
            return members, None
        chars = np.bincount(part_of, weights=rows["chars"], minlength=self.parts)
        # (parts + 1,): the share of all characters before each part. Rounded down at
        # both ends, the shares of all parts add up to the sequences.
        ends = np.append(0.0, np.cumsum(chars)) / max(1.0, chars.sum())
        first = math.floor(sequences * ends[self.number])
        last = math.floor(sequences * ends[self.number + 1])
        return members, last - first


def parts_of_clusters(centres_CD: Floats, counts: Ints, *, parts: int) -> Ints:
    """Return the part of each cluster, shape (clusters,).

    Neighbouring clusters share a part, and parts have similar `counts` of documents.
    """
    # Order the clusters greedily, each followed by the nearest unused one.
    counts = np.pad(counts, (0, len(centres_CD) - len(counts)))
    cosines_CC = centres_CD.astype(np.float64) @ centres_CD.T
    order: list[int] = []
    current = 0
    for _ in range(len(centres_CD)):
        order.append(current)
        cosines_CC[:, current] = -np.inf
        current = int(cosines_CC[current].argmax())

    # Cut the order into parts of equal counts. (clusters,): the number of documents
    # before the middle of each cluster, in this order.
    middles = np.cumsum(counts[order]) - counts[order] / 2
    part_of = np.empty(len(order), np.int64)
    documents = max(1, counts.sum())
    part_of[order] = np.minimum(parts * middles // documents, parts - 1)
    return part_of


def train_clusters(
    out: Path, *, vectors: Sequence[Path], parts: int, seed: int
) -> ClustersResult:
    """Write `{out}.centres.npy`, float32 (clusters, dimensions).

    They are trained on a sample of the documents' vectors.
    """
    shards = VectorShards(vectors)
    documents = sum(shards.rows)
    clusters = min(CLUSTERS_PER_PART * parts, documents, np.iinfo(np.uint16).max)
    sample = min(documents, SAMPLE_PER_CLUSTER * clusters)
    # Evenly spaced among all documents.
    sampled = np.arange(sample) * documents // sample
    ids = shards.ids_at(sampled)
    sample_SD = shards.take(ids).astype(np.float32)
    centres_CD = train_centres(
        sample_SD, count=clusters, iterations=ITERATIONS, seed=seed
    )
    np.save(f"{out}.centres.npy", centres_CD)
    return ClustersResult(parts=parts, clusters=clusters)


def assign_clusters(out: Path, *, vectors: Path, centres: Path) -> TaskResult:
    """Write `{out}.clusters.npy`, uint16 (documents of the shard,).

    That is the cluster whose centre is nearest to each document.
    """
    stored_ND = np.load(vectors, mmap_mode="r")
    centres_CD = np.load(centres)
    clusters = np.empty(len(stored_ND), np.uint16)
    for first in range(0, len(stored_ND), HELD_VECTORS):
        block_ND = stored_ND[first : first + HELD_VECTORS].astype(np.float32)
        nearest = nearest_centres(block_ND, centres_CD, count=1)
        clusters[first : first + len(block_ND)] = nearest[:, 0]
    np.save(f"{out}.clusters.npy", clusters)
    return TaskResult()


def count_parts(partition_size: int, neighbours: float) -> int:
    """Return the number of parts for documents with so many neighbours in all."""
    return max(1, math.ceil(neighbours / partition_size))


def parts_of(done: Artifacts) -> list[Part]:
    """Return the parts of a finished run's documents.

    None if all documents were drafted together.
    """
    if "partition" not in done or not done["partition"].manifest["parts"]:
        return []
    parts = done["clusters"].result(ClustersResult).parts
    (centres,) = ClustersFiles.of(done).centres
    clusters = PartitionFiles.of(done).clusters
    return [Part(number, parts, centres, clusters) for number in range(parts)]


def describe_partition(done: Artifacts) -> str:
    """Return a sentence on the partition of a finished run, "" if there is none.

    For summaries and cards.
    """
    drafted = done["draft"].results(DraftResult)
    sizes = [part.documents for part in drafted if part.documents is not None]
    if not sizes:
        return ""
    return (
        f"{len(sizes):,} partitions of similar documents, {min(sizes):,} to "
        f"{max(sizes):,} each; neighbours in another partition are not used "
        "(documents.partition_size), which the method's paper does not do"
    )


def partition_steps(
    documents: Step, vectors: Step, neighbours: NeighbourCount, *, size: int, seed: int
) -> list[Step]:
    """Return the steps that partition the documents.

    They have no tasks if one part holds all.
    """

    def train(done: Artifacts) -> list[Task]:
        searched = done["documents"].result(DrawResult).drawn
        all_neighbours = searched * count_neighbours(neighbours, done)
        parts = count_parts(size, all_neighbours)
        if parts == 1:
            return []
        paths = DocumentVectorsFiles.of(done).vectors
        return [partial(train_clusters, vectors=paths, parts=parts, seed=seed)]

    def assign(done: Artifacts) -> list[Task]:
        centres = ClustersFiles.of(done).centres
        if not centres:
            return []
        paths = DocumentVectorsFiles.of(done).vectors
        return [
            partial(assign_clusters, vectors=path, centres=centres[0]) for path in paths
        ]

    config: Json = {
        "partition_size": size,
        "neighbours": dict(neighbours),
        "seed": seed,
    }
    clusters = Step(
        name="clusters",
        phase="search",
        version=1,
        config=config,
        inputs=(documents, vectors),
        tasks=train,
        result=ClustersResult,
    )
    partition = Step(
        name="partition",
        phase="search",
        version=1,
        config={},
        inputs=(documents, vectors, clusters),
        tasks=assign,
    )
    return [clusters, partition]
