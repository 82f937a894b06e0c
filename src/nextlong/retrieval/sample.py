"""Sample: which documents are extended or searched for, and which ranges of them one task takes.

In:  CHUNKS, content hashes and lengths of all documents. Out: META_DOCUMENTS, or all documents and the ids of queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.finished import chunks_of
from nextlong.artifacts.lookup import ranges, read_chunks
from nextlong.engine.step import Amounts, Artifact, Artifacts, Estimate, Step, Task, TaskResult
from nextlong.errors import CorpusError
from nextlong.recipe.amounts import BLOCKS, MOST_QUERIES, draws
from nextlong.recipe.keys import Compose
from nextlong.rng import keyed_hash, shuffled
from nextlong.schemas import META_DOCUMENTS
from nextlong.text import Json

_Paths = Sequence[Path]

_MOST_DOCUMENTS = 256  # documents drafted at a time


class DrawResult(TaskResult):
    """What was counted of the documents that have chunks."""

    documents: int
    eligible: int  # those that may be drawn
    drawn: int  # … and those that were, or whose neighbours are wanted
    meta_chunks: int = 0  # of the drawn meta-documents
    chars: int = 0  # of all documents, where a method of documents asks


def sample_meta_documents(
    out: Path, *, chunks: _Paths, hashes: _Paths, chars: _Paths, draws: int | None, min_meta_chunks: int, seed: int
) -> DrawResult:
    """Sample documents of at least `min_meta_chunks` chunks by keyed hash (None: all); writes `{out}.meta_documents.npy`."""
    drawn = np.empty(0, META_DOCUMENTS)
    eligible = documents = 0
    for shard, (chunk_path, hash_path, chars_path) in enumerate(zip(chunks, hashes, chars, strict=True)):
        documents_of = _document_rows(shard, chunk_path, hash_path, seed=seed)
        documents += len(documents_of)
        # A document that lost a chunk to `decontaminate` is not sampled: the dependency that it would teach has a hole. Its chunks
        # then have fewer characters than the document had.
        if len(documents_of):
            table = read_chunks(chunk_path)
            doc_rows, firsts = np.unique(table["doc_row"], return_index=True)
            is_whole = np.add.reduceat(table["end"] - table["start"], firsts) == np.load(chars_path)[doc_rows]
            documents_of = documents_of[(documents_of["chunks"] >= min_meta_chunks) & is_whole]
        eligible += len(documents_of)
        drawn = np.concatenate([drawn, documents_of])
        if draws is not None and len(drawn) > draws:
            drawn = drawn[np.argpartition(drawn["key"], draws - 1)[:draws]]
    np.save(f"{out}.meta_documents.npy", np.sort(drawn, order=["key", "first_chunk"]))
    meta_chunks = int(drawn["chunks"].sum())
    return DrawResult(documents=documents, eligible=eligible, drawn=len(drawn), meta_chunks=meta_chunks)


def _document_rows(shard: int, chunks: Path, hashes: Path, *, seed: int) -> NDArray[Any]:
    """Return a META_DOCUMENTS row for every document of a shard that has chunks, in the shard's order."""
    table, hash_of = read_chunks(chunks), np.load(hashes, mmap_mode="r")
    doc_rows, first, count = np.unique(table["doc_row"], return_index=True, return_counts=True)
    documents = np.empty(len(doc_rows), META_DOCUMENTS)
    documents["content_hash"] = hash_of[doc_rows]
    documents["key"] = keyed_hash(documents["content_hash"], seed=seed, stage="meta")
    documents["first_chunk"] = schemas.pack_ids(shard, first)
    documents["chunks"] = count
    documents["chars"] = table["end"][first + count - 1]
    return documents


def list_documents(out: Path, *, chunks: _Paths, hashes: _Paths, seeds: int | None, seed: int) -> DrawResult:
    """Write `{out}.docs.npy`, META_DOCUMENTS of every document with chunks in shard order, and `{out}.queries.npy`, ids."""
    shards = enumerate(zip(chunks, hashes, strict=True))
    of_shards = [_document_rows(shard, *paths, seed=seed) for shard, paths in shards]
    docs = np.concatenate([np.empty(0, META_DOCUMENTS), *of_shards])
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(len(of_shard)) for of_shard in of_shards)])
    ids = schemas.pack_ids(schemas.shard_of(docs["first_chunk"]), rows)
    order = np.arange(len(docs))  # queries are the ids, among the document vectors, of `seeds` documents, or of all
    if seeds is not None:  # in the order in which they start sequences
        order = shuffled(docs["content_hash"], seed=seed, stage="queries")[:seeds]
    np.save(f"{out}.docs.npy", docs)
    np.save(f"{out}.queries.npy", ids[order])
    return DrawResult(documents=len(docs), drawn=len(order), eligible=len(docs), chars=int(docs["chars"].sum()))


class Queries(NamedTuple):
    """What is searched for: ids (n,), the range [first, last) of ids each excludes (n, 2), how many queries come before."""

    ids: NDArray[np.int64]
    exclude: NDArray[np.int64]
    before: int


def read_queries(path: Path, first: int = 0, last: int | None = None) -> Queries:
    """Return the queries of rows [first, last): all chunks of META_DOCUMENTS, or documents by the ids of their vectors."""
    stored = np.load(path, mmap_mode="r")
    rows: NDArray[Any] = np.asarray(stored[first:last])
    if rows.dtype == np.int64:
        return Queries(rows, np.stack([rows, rows + 1], axis=1), first)
    # (queries,) each: of every chunk the first one of its document, and how many that has; all of these are excluded.
    starts, counts = (np.repeat(rows[name], rows["chunks"]) for name in ("first_chunk", "chunks"))
    exclude = np.stack([starts, starts + counts], axis=1)
    return Queries(ranges(rows["first_chunk"], rows["chunks"]), exclude, int(stored["chunks"][:first].sum()))


def query_ranges(path: Path, *, most: int = MOST_QUERIES) -> list[tuple[int, int]]:
    """Return the ranges of rows of META_DOCUMENTS or document ids that one task takes, of about as many queries, about `most`."""
    rows = np.load(path, mmap_mode="r")
    is_documents = rows.dtype == np.int64
    # (rows + 1,): how many queries there are before each row, and in all. A document's chunks are never divided.
    ends = np.append(0, np.arange(1, len(rows) + 1) if is_documents else np.cumsum(rows["chunks"]))
    most = min(max(1, math.ceil(int(ends[-1]) / BLOCKS)), most)
    found, first = [], 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1)
        found.append((first, last if is_documents else min(last, first + _MOST_DOCUMENTS)))
        first = found[-1][1]
    return found


def meta_documents_step(
    compose: Compose, ingest: Step, chunk: Step, *, attempt: int, seed: int, max_chars: int
) -> Step:
    """CHUNKS, of at most `max_chars` characters each → the sampled meta-documents."""
    least = compose.min_meta_chunks
    config: Json = {"draws": draws(compose, attempt), "min_meta_chunks": least, "seed": seed}

    def tasks(done: Artifacts) -> list[Task]:
        chunks = chunks_of(done).files(".chunks.arrow")
        hashes, chars = (done["ingest"].files(suffix) for suffix in (".hashes.npy", ".chars.npy"))
        return [partial(sample_meta_documents, chunks=chunks, hashes=hashes, chars=chars, **config)]

    def check(done: Artifact) -> None:
        if not (sampled := done.result(DrawResult)).drawn:
            raise CorpusError(none_long_enough(f"{sampled.documents:,} documents", least, max_chars=max_chars))

    estimate = Estimate(work="chunks", seconds=6e-8, disk="drafts", bytes=40)
    return Step("meta_documents", 1, config, (ingest, chunk), tasks, DrawResult, check=check, estimate=estimate)


def none_long_enough(documents: str, min_meta_chunks: int, *, max_chars: int) -> str:
    """Return the message for a corpus in which no document has enough chunks to be extended."""
    return (
        f"none of the {documents} has compose.{min_meta_chunks=} chunks of at most "
        f"chunk.max_chars={max_chars} characters; lower either, or add longer documents"
    )


def documents_step(ingest: Step, chunk: Step, *, queries: int | None, seed: int) -> Step:
    """CHUNKS → DOCS: every document that has chunks, and the queries, so many of them or (None) all."""
    config: Json = {"seeds": queries, "seed": seed}

    def tasks(done: Artifacts) -> list[Task]:
        chunks, hashes = chunks_of(done).files(".chunks.arrow"), done["ingest"].files(".hashes.npy")
        return [partial(list_documents, chunks=chunks, hashes=hashes, **config)]

    def memory(amounts: Amounts) -> float:
        return 100 * amounts.kept_documents

    estimate = Estimate(work="chunks", seconds=6e-8, disk="kept_documents", bytes=48, memory=memory)
    return Step("documents", 2, config, (ingest, chunk), tasks, DrawResult, estimate=estimate)
