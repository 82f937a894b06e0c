"""Draft sequences of whole documents: compute the arrays that a `DocumentMethod` needs, and write its drafts to files.

In:  DOCS, the tokens of every chunk, and what the method needs: neighbours of some or all documents, or keywords.
Out: DRAFTS: the chunks of the documents of each sequence, in order, with at least T tokens.

Lengths are counted with the run's tokenizer. An estimate would bias the data: characters per token differ threefold between
languages, and a draft shorter than T is lost, so estimates favour some languages. Counting takes no longer than estimating:
77 MB/s a core by fastokens, against 64 MB/s to classify characters by script, which gives the tokens of a document within 20 %.

A method that follows neighbours holds all of them in memory, 60 bytes each: 300 GB at 10^9 chunks. Above
`documents.partition_size` neighbours, documents are therefore partitioned by spherical k-means, about `CLUSTERS_PER_PART`
neighbouring clusters to a part, and each part is drafted like a corpus of its own. The papers do not do this (docs/methods.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.finished import DraftResult, corpus, special_ids
from nextlong.artifacts.lookup import (
    ranges,
    read_chunks,
    record_batches,
)
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    Step,
    Task,
    TaskResult,
)
from nextlong.errors import CorpusError
from nextlong.methods.base import (
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
    Neighbours,
)
from nextlong.methods.keywords import keywords_step, read_keywords
from nextlong.methods.vectors import Vectors
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import (
    TYPICAL_CHARS_PER_TOKEN,
    document_chars,
    draws,
    sequence_limit,
)
from nextlong.retrieval.embed import document_vectors_step, embed_step, encoder_step
from nextlong.retrieval.index import (
    NeighbourCount,
    count_neighbours,
    index_steps,
)
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres
from nextlong.retrieval.mine import mine_steps
from nextlong.retrieval.sample import DrawResult, documents_step
from nextlong.sequences.tokenize import (
    VERSIONS,
    Engine,
    TokensResult,
    check_ids,
    tokenize_shard,
)
from nextlong.text import Json, counted

_Files = Mapping[str, Sequence[Path]]  # of the steps that a method reads, by name

_ROWS_PER_FILE = 64
HELD_VECTORS = 65_536  # vectors held as float32 at a time
CLUSTERS_PER_PART = 64  # so many that parts have similar sizes even if clusters do not
SAMPLE_PER_CLUSTER = 256  # vectors to train a cluster on
ITERATIONS = 10


def drafting_steps(
    method: DocumentMethod[Any],
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    tokenizer: Step,
    *,
    attempt: int,
) -> list[Step]:
    """Return the steps that compute what a method needs, and the step that drafts."""
    queries = (
        draws(recipe.compose, attempt)
        if method.searches == "sampled documents"
        else None
    )
    documents = documents_step(ingest, chunk, queries=queries, seed=recipe.compose_seed)
    needed = [
        documents,
        _lengths_step(recipe.tokenizer.engine, ingest, chunk, tokenizer),
    ]
    preparation = []
    if Need.DOCUMENT_NEIGHBOURS in method.needs:
        encoder = encoder_step(recipe.encoder, ingest, chunk, seed=recipe.seed)
        embed = embed_step(recipe.encoder, ingest, chunk, encoder)
        vectors = document_vectors_step(chunk, embed, of=recipe.documents.vector)
        # Neighbours of short documents are short too. Each further attempt, after neighbours ran out, doubles the characters.
        chars = (
            4
            * document_chars(recipe.sequence_tokens, TYPICAL_CHARS_PER_TOKEN)
            * 2**attempt
        )
        number = method.neighbours(recipe.options)
        neighbours = {"chars": chars} if number is None else {"neighbours": number}
        index = index_steps(
            recipe.search, vectors, documents, neighbours, seed=recipe.seed
        )
        *scanning, mine = mine_steps(
            recipe.search, "neighbours", vectors, documents, index, neighbours
        )
        parts = _partition_steps(
            documents,
            vectors,
            neighbours,
            size=recipe.documents.partition_size,
            seed=recipe.seed,
        )
        preparation = [encoder, embed, vectors, *parts, *index, *scanning]
        needed += [
            *parts,
            mine,
            *([vectors] if Need.DOCUMENT_VECTORS in method.needs else []),
        ]
    if Need.KEYWORDS in method.needs:
        needed.append(
            keywords_step(recipe.compose.method, recipe.options, ingest, chunk)
        )
    draft = _draft_step(method, recipe, needed, tokenizer, attempt=attempt)
    return [
        documents,
        *preparation,
        *(step for step in needed[1:] if step not in preparation),
        draft,
    ]


def _lengths_step(
    engine: Engine, ingest: Step, chunk: Step, tokenizer_step: Step
) -> Step:
    """Return the step that tokenizes all CHUNKS and counts their tokens; `tokens` copies the ids from it."""

    def tasks(done: Artifacts) -> list[Task]:
        text = corpus(done)
        task = partial(
            _count_tokens,
            tokenizer=done["tokenizer"].file(".tokenizer.json"),
            engine=engine,
            separator_tokens=len(special_ids(done).separator),
        )
        return [
            partial(task, documents=one, chunks=its)
            for one, its in zip(text.documents, text.chunks, strict=True)
        ]

    return Step(
        "lengths",
        VERSIONS["lengths"],
        {"engine": engine},
        (ingest, chunk, tokenizer_step),
        tasks,
        TokensResult,
        check=check_ids,
    )


def _draft_step(
    method: DocumentMethod[Any],
    recipe: Recipe,
    needed: Sequence[Step],
    tokenizer: Step,
    *,
    attempt: int,
) -> Step:
    """Return the step from the documents and what the method needs of them (`needed`) to DRAFTS."""
    compose, limit = recipe.compose, sequence_limit(recipe.compose, attempt)
    config: Json = method.promises(recipe.options) | {
        "version": method.version,
        "options": recipe.options.identity(),
    }
    config |= {
        "target_tokens": recipe.sequence_tokens,
        "sequences": limit,
        "seed": recipe.compose_seed,
    }
    read = [
        step.name
        for step in needed
        if step.name in ("lengths", "neighbours", "document_vectors", "keywords")
    ]

    def tasks(done: Artifacts) -> list[Task]:
        special = special_ids(done)
        room = recipe.sequence_tokens - len(special.bos) - len(special.eos)
        request = DraftRequest(
            target_tokens=room, sequences=limit, seed=recipe.compose_seed
        )
        files = {"documents": done["documents"].files(".docs.npy")}
        suffixes = {"lengths": ".lengths.npy"}
        files |= {
            name: done[name].files(suffixes.get(name, (".npy", ".arrow")))
            for name in read
        }
        draft = partial(
            _draft_documents, method=method.name, options=recipe.options, files=files
        )
        if not (parts := parts_of(done)):
            return [partial(draft, request=request)]
        # Sequences are used in the order of the tasks, so spare ones of the first parts would displace those of the last.
        requested = None if compose.sequences == "all" else compose.sequences << attempt
        return [
            partial(draft, request=replace(request, sequences=requested), part=part)
            for part in parts
        ]

    def check(done: Artifact) -> None:
        drafted = done.results(DraftResult)
        if not any(part.drafts or part.starved for part in drafted):
            unshared = sum(part.unshared_keywords or 0 for part in drafted)
            without = (
                f" ({counted(unshared, 'document')} shared no keyword with another one)"
                if unshared
                else ""
            )
            raise CorpusError(
                f"compose.method={method.name} gives no sequence of compose.target_tokens={compose.target_tokens:,}: the documents "
                f"that it concatenates are too few or too short{without}; add documents or lower it"
            )

    return Step(
        "draft",
        5,
        config,
        (*needed, tokenizer),
        tasks,
        DraftResult,
        check=check,
    )


def _count_tokens(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    tokenizer: Path,
    engine: Engine,
    separator_tokens: int,
) -> TokensResult:
    """Write `{out}.lengths.npy`, int32 (chunks,): the tokens of each chunk, including a separator after it if there is one.

    Also writes the ids of all chunks as `tokenize_shard` does, so that no chunk is encoded twice.
    """
    result, lengths = tokenize_shard(
        out, documents=documents, chunks=chunks, tokenizer=tokenizer, engine=engine
    )
    lengths += separator_tokens * separator_follows(read_chunks(chunks))
    np.save(f"{out}.lengths.npy", lengths.astype(np.int32))
    return result


def separator_follows(table: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return whether a separator follows each chunk: not after a newline, nor if the document continues in the next chunk."""
    # (chunks − 1,): whether the document of each chunk continues in the next one.
    goes_on = (table["doc_row"][:-1] == table["doc_row"][1:]) & (
        table["end"][:-1] == table["start"][1:]
    )
    follows: NDArray[np.bool_] = table["separator"] & ~np.append(goes_on, False)
    return follows


def _draft_documents(
    out: Path,
    *,
    method: str,
    options: Section,
    files: _Files,
    request: DraftRequest,
    part: Part | None = None,
) -> DraftResult:
    """Draft the sequences of a method, or of one part of the documents; write `{out}.{n:05d}.drafts.arrow`, in sampled order."""
    rows = np.load(files["documents"][0], mmap_mode="r")
    document_method: DocumentMethod[Section] = METHODS.load(method, DocumentMethod)
    members = np.arange(len(rows))
    if part is not None:
        members, share = part.choose(rows, request.sequences)
        request = replace(request, sequences=share)
    near, searched = (
        _read_neighbours(files["neighbours"], rows, members)
        if "neighbours" in files
        else (None, 0)
    )
    counts = rows["chunks"][members]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # (chunks of all members,), document after document, read a shard at a time; `firsts`: the first document of each shard.
    firsts = np.searchsorted(
        schemas.shard_of(rows["first_chunk"]), np.arange(len(files["lengths"]) + 1)
    )
    of_shards = [np.empty(0, np.int32)]
    for path, low, high in zip(
        files["lengths"],
        *np.searchsorted(members, [firsts[:-1], firsts[1:]]),
        strict=True,
    ):
        of_shard = rows[members[low:high]]
        of_shards.append(
            np.load(path)[
                schemas.row_of(ranges(of_shard["first_chunk"], of_shard["chunks"]))
            ]
        )
    chunk_tokens: NDArray[Any] = np.concatenate(of_shards)
    del of_shards
    documents = CorpusArrays(
        content_hashes=rows["content_hash"][members],
        tokens=np.add.reduceat(chunk_tokens, offsets[:-1], dtype=np.int64)
        if len(members)
        else counts,
        chunk_offsets=offsets,
        chunk_tokens=chunk_tokens,
        neighbours=near,
        vectors=Vectors(files["document_vectors"], members)
        if "document_vectors" in files
        else None,
        keywords=read_keywords(files["keywords"]) if "keywords" in files else None,
    )
    is_empty = not len(members) or request.sequences == 0
    drafted = (
        Drafted() if is_empty else document_method.draft(documents, options, request)
    )
    for number, first in enumerate(
        range(0, max(1, len(drafted.drafts)), _ROWS_PER_FILE)
    ):
        path = f"{out}.{number:05d}.drafts.arrow"
        with (
            pa.OSFile(path, "wb") as sink,
            pa.ipc.new_file(sink, schemas.DRAFTS) as writer,
        ):
            for draft in drafted.drafts[first : first + _ROWS_PER_FILE]:
                row = _row(document_method, rows[members[draft.documents]], draft)
                writer.write_batch(
                    pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS)
                )
    return DraftResult(
        drafts=len(drafted.drafts),
        dropped={},
        limited=len(drafted.drafts) == request.sequences,
        # More neighbours would make more and smaller parts, which would run out of neighbours more often.
        starved=drafted.starved if part is None and searched < len(rows) - 1 else 0,
        near_duplicate_documents=drafted.near_duplicates,
        unshared_keywords=drafted.unshared_keywords,
        documents=None if part is None else len(members),
    )


def _read_neighbours(
    paths: Sequence[Path], rows: NDArray[Any], members: NDArray[np.int64]
) -> tuple[Neighbours, int]:
    """Return the neighbours among the members, as positions, of queries that are members; and the most that a query had."""
    shards = schemas.shard_of(rows["first_chunk"])
    first_of_shard = np.searchsorted(shards, np.arange(shards.max(initial=0) + 2))
    position_of = np.full(
        len(rows), -1, np.int32
    )  # the position of each document among the members
    position_of[members] = np.arange(len(members))

    def places(ids: NDArray[np.int64]) -> Any:
        return position_of[first_of_shard[schemas.shard_of(ids)] + schemas.row_of(ids)]

    queries, counts, documents, cosines = (
        [np.empty(0, kind)] for kind in (np.int64, np.int64, np.int64, np.float32)
    )
    searched = 0
    for path in paths:
        for _, batch in record_batches(path):
            offsets = batch.column("neighbour_ids").offsets.to_numpy()
            query = places(batch.column("chunk_id").to_numpy())
            neighbours = places(batch.column("neighbour_ids").values.to_numpy())
            of_query = np.repeat(np.arange(len(query)), np.diff(offsets))
            is_kept = (neighbours >= 0) & (query[of_query] >= 0)
            queries.append(query[query >= 0])
            counts.append(
                np.bincount(of_query[is_kept], minlength=len(query))[query >= 0]
            )
            documents.append(neighbours[is_kept])
            cosines.append(batch.column("scores").values.to_numpy()[is_kept])
            searched = max(searched, int(np.diff(offsets).max(initial=0)))
    return Neighbours(
        queries=np.concatenate(queries),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        documents=np.concatenate(documents),
        cosines=np.concatenate(cosines),
    ), searched


def _row(method: DocumentMethod[Section], rows: NDArray[Any], draft: Draft) -> Json:
    """Return a DRAFTS row; `rows` are the META_DOCUMENTS rows of the draft's documents, or of its parts in order."""
    _, first_time, groups = np.unique(
        draft.documents, return_index=True, return_inverse=True
    )
    groups = np.argsort(np.argsort(first_time))[
        groups
    ]  # numbered in the order of first appearance
    sizes = rows["chunks"] if draft.chunks is None else draft.chunks
    # `before`, (parts,): the number of chunks of the document before each part.
    by_group = np.argsort(groups, kind="stable")
    starts = np.cumsum(sizes[by_group]) - sizes[by_group]
    firsts = np.flatnonzero(np.diff(groups[by_group], prepend=-1))
    before = np.empty(len(groups), np.int64)
    before[by_group] = starts - np.repeat(
        starts[firsts], np.diff(firsts, append=len(groups))
    )
    ids = ranges(rows["first_chunk"] + before, sizes)
    scores = (
        np.full(len(rows), np.nan, np.float32)
        if draft.scores is None
        else draft.scores.astype(np.float32)
    )
    hashes = rows["content_hash"][np.sort(first_time)]
    return {
        "sequence_id": f"{method.name}-{xxhash.xxh3_64_hexdigest(hashes.tobytes())}",
        "key": int(hashes[0]),
        "layout": method.layout.value,
        "chunk_id": ids,
        "role": np.full(len(ids), schemas.DOCUMENT, np.int8),
        "group": np.repeat(groups.astype(np.int32), sizes),
        "score": np.repeat(scores, sizes),
        "near_duplicates": [],
        "shortage": "",
    }


class _ClustersResult(TaskResult):
    """The number of parts, and of the clusters that make them up."""

    parts: int
    clusters: int


class Part(NamedTuple):
    """A part of the documents: its number, the number of parts, the centres of all clusters, and the clusters by shard."""

    number: int
    parts: int
    centres: Path
    clusters: Sequence[Path]

    def choose(
        self, rows: NDArray[Any], sequences: int | None
    ) -> tuple[NDArray[np.int64], int | None]:
        """Return the positions of the part's documents among `rows`, and its share, by characters, of the `sequences`."""
        cluster_of = np.concatenate(
            [np.empty(0, np.uint16), *map(np.load, self.clusters)]
        )  # (documents,)
        part_of = _parts_of_clusters(
            np.load(self.centres), np.bincount(cluster_of), parts=self.parts
        )[cluster_of]
        chars = np.bincount(part_of, weights=rows["chars"], minlength=self.parts)
        # (parts + 1,): the share of all characters before each part.
        ends = np.concatenate([[0.0], np.cumsum(chars) / max(1.0, chars.sum())])
        share = None
        if sequences is not None:
            share = math.floor(sequences * ends[self.number + 1]) - math.floor(
                sequences * ends[self.number]
            )
        return np.flatnonzero(part_of == self.number), share


def _parts_of_clusters(
    centres_CD: NDArray[np.float32], counts: NDArray[np.int64], *, parts: int
) -> NDArray[np.int64]:
    """Return the part of each cluster, shape (clusters,): neighbouring clusters share a part, and parts have similar sizes."""
    # Order the clusters greedily, each followed by the nearest unused one, and cut the order into parts of equal `counts`.
    counts = np.pad(counts, (0, len(centres_CD) - len(counts)))
    cosines_CC = centres_CD.astype(np.float64) @ centres_CD.T
    order, current = [], 0
    for _ in range(len(centres_CD)):
        order.append(current)
        cosines_CC[:, current] = -np.inf
        current = int(cosines_CC[current].argmax())
    # (clusters,): the number of documents before the middle of each cluster, in this order.
    middles = np.cumsum(counts[order]) - counts[order] / 2
    part_of = np.empty(len(order), np.int64)
    part_of[order] = np.minimum(parts * middles // max(1, counts.sum()), parts - 1)
    return part_of


def _train_clusters(
    out: Path, *, vectors: Sequence[Path], parts: int, seed: int
) -> _ClustersResult:
    """Write `{out}.centres.npy`, float32 (clusters, dimensions), trained on a sample of the documents' vectors."""
    shards = VectorShards(vectors)
    total = sum(shards.rows)
    clusters = min(CLUSTERS_PER_PART * parts, total, np.iinfo(np.uint16).max)
    sample = min(total, SAMPLE_PER_CLUSTER * clusters)
    sample_SD = shards.take(shards.ids_at(np.arange(sample) * total // sample)).astype(
        np.float32
    )
    np.save(
        f"{out}.centres.npy",
        train_centres(sample_SD, count=clusters, iterations=ITERATIONS, seed=seed),
    )
    return _ClustersResult(parts=parts, clusters=clusters)


def _assign_clusters(out: Path, *, vectors: Path, centres: Path) -> TaskResult:
    """Write `{out}.clusters.npy`, uint16 (documents,): the cluster whose centre is nearest to each document of a shard."""
    stored, centres_CD = np.load(vectors, mmap_mode="r"), np.load(centres)
    numbers = np.empty(len(stored), np.uint16)
    for first in range(0, len(stored), HELD_VECTORS):
        block_ND = stored[first : first + HELD_VECTORS].astype(np.float32)
        numbers[first : first + len(block_ND)] = nearest_centres(
            block_ND, centres_CD, count=1
        )[:, 0]
    np.save(f"{out}.clusters.npy", numbers)
    return TaskResult()


def count_parts(partition_size: int, neighbours: float) -> int:
    """Return the number of parts for documents with `neighbours` neighbours in total."""
    return max(1, math.ceil(neighbours / partition_size))


def parts_of(done: Artifacts) -> list[Part]:
    """Return the parts of a finished run's documents; none if all documents were drafted together."""
    if "partition" not in done or not done["partition"].manifest["parts"]:
        return []
    trained = done["clusters"].result(_ClustersResult)
    centres, clusters = (
        done["clusters"].file(".centres.npy"),
        done["partition"].files(".clusters.npy"),
    )
    return [
        Part(number, trained.parts, centres, clusters)
        for number in range(trained.parts)
    ]


def describe_partition(done: Artifacts) -> str:
    """Return a sentence on the partition of a finished run, for summaries and cards; "" if there is none."""
    sizes = [
        part.documents
        for part in done["draft"].results(DraftResult)
        if part.documents is not None
    ]
    if not sizes:
        return ""
    return (
        f"{len(sizes):,} partitions of similar documents, {min(sizes):,} to {max(sizes):,} each; neighbours in another partition "
        "are not used (documents.partition_size), which the method's paper does not do"
    )


def _partition_steps(
    documents: Step, vectors: Step, neighbours: NeighbourCount, *, size: int, seed: int
) -> list[Step]:
    """Return the steps that partition the documents; they have no tasks if one part holds all."""

    def train(done: Artifacts) -> list[Task]:
        parts = count_parts(
            size,
            done["documents"].result(DrawResult).drawn
            * count_neighbours(neighbours, done),
        )
        vectors = done["document_vectors"].files(".document_vectors.npy")
        return (
            [partial(_train_clusters, vectors=vectors, parts=parts, seed=seed)]
            if parts > 1
            else []
        )

    def assign(done: Artifacts) -> list[Task]:
        centres = done["clusters"].files(
            ".centres.npy"
        )  # empty if one part holds all documents
        vectors = (
            done["document_vectors"].files(".document_vectors.npy") if centres else []
        )
        return [
            partial(_assign_clusters, vectors=path, centres=centres[0])
            for path in vectors
        ]

    config: Json = {
        "partition_size": size,
        "neighbours": dict(neighbours),
        "seed": seed,
    }
    trained = Step(
        "clusters",
        1,
        config,
        (documents, vectors),
        train,
        _ClustersResult,
    )
    return [
        trained,
        Step(
            "partition",
            1,
            {},
            (documents, vectors, trained),
            assign,
        ),
    ]
