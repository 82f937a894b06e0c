"""Sample the meta-documents, or list all documents, and divide the queries into tasks.

In:  CHUNKS, and the content hashes and lengths of all documents.
Out: META_DOCUMENTS (for NExtLong), or DOCS and the ids of the queries (for methods of whole documents).
Sampling is by a keyed hash of the content, so that neither file order nor sharding matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.finished import IngestFiles, chunk_files
from nextlong.artifacts.lookup import ranges, read_chunks
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
)
from nextlong.errors import CorpusError
from nextlong.recipe.keys import BLOCKS, MOST_QUERIES, Compose, draws
from nextlong.rng import keyed_hash, shuffled
from nextlong.text import Json

_Paths = Sequence[Path]

_MOST_DOCUMENTS = 256  # documents in one task
_SAMPLED_ORDER = ["key", "first_chunk"]
_DROPPED_EXAMPLES = 100  # recorded documents that are longer than a sequence


class DrawResult(TaskResult):
    """Counts of the documents that have chunks.

    `dropped`: sampled documents by reason, which are no queries. `dropped_examples`
    holds their first chunk, their chunks and 0, as their tokens are not counted in full.
    """

    documents: int
    eligible: int  # documents that may be sampled
    drawn: int  # documents that were sampled, or that are queries
    meta_chunks: int = 0  # chunks of the sampled meta-documents
    chars: int = 0  # characters of all documents; 0 for meta-documents
    dropped: Mapping[str, int] = {}
    dropped_examples: Mapping[str, tuple[tuple[int, int, int], ...]] = {}


class LengthCheck(NamedTuple):
    """What finds documents that are longer than a sequence, before they are sampled."""

    chars: int  # documents of at most so many characters are not checked
    is_longer: Callable[[int, int], bool]  # of a document's first chunk and its chunks


class LongDocuments(NamedTuple):
    """How to find the documents of at least `tokens` tokens in a corpus that has some.

    `is_longer` returns the check of a `LengthCheck`, from the finished steps.
    """

    tokenizer: Step
    checked_chars: int
    tokens: int
    is_longer: Callable[[Artifacts], Callable[[int, int], bool]]


def sample_meta_documents(
    out: Path,
    *,
    chunks: _Paths,
    hashes: _Paths,
    chars: _Paths,
    draws: int | None,
    min_meta_chunks: int,
    seed: int,
    length_check: LengthCheck | None = None,
) -> DrawResult:
    """Sample `draws` documents (None: all) of at least `min_meta_chunks` chunks; write `{out}.meta_documents.npy`."""
    drawn = np.empty(0, schemas.META_DOCUMENTS)
    unchecked = np.empty(0, schemas.META_DOCUMENTS)  # whose tokens are to be counted
    eligible = documents = 0
    for shard, (chunk_path, hash_path, chars_path) in enumerate(
        zip(chunks, hashes, chars, strict=True)
    ):
        shard_documents = _document_rows(shard, chunk_path, hash_path, seed=seed)
        documents += len(shard_documents)
        # A document that lost a chunk to `decontaminate` has a gap in its dependencies, so it is not sampled. Its
        # remaining chunks have fewer characters than the document had.
        table = read_chunks(chunk_path)
        doc_rows, firsts = np.unique(table["doc_row"], return_index=True)
        is_whole = (
            np.add.reduceat(table["end"] - table["start"], firsts)
            == np.load(chars_path)[doc_rows]
        )
        shard_documents = shard_documents[
            (shard_documents["chunks"] >= min_meta_chunks) & is_whole
        ]
        eligible += len(shard_documents)
        if length_check is not None:
            is_long = shard_documents["chars"] > length_check.chars
            unchecked = np.concatenate([unchecked, shard_documents[is_long]])
            shard_documents = shard_documents[~is_long]
        drawn = np.concatenate([drawn, shard_documents])
        if draws is not None and len(drawn) > draws:
            drawn = drawn[np.argpartition(drawn["key"], draws - 1)[:draws]]
    drawn = np.sort(drawn, order=_SAMPLED_ORDER)
    dropped = unchecked[:0]
    if length_check is not None:
        is_longer = length_check.is_longer
        drawn, dropped = _with_checked(drawn, unchecked, is_longer, draws=draws)
    np.save(f"{out}.meta_documents.npy", drawn)
    dropped_counts: dict[str, int] = {}
    examples: dict[str, tuple[tuple[int, int, int], ...]] = {}
    if len(dropped):
        reason = schemas.DropReason.TOO_LONG
        named = dropped[["first_chunk", "chunks"]][:_DROPPED_EXAMPLES].tolist()
        dropped_counts[reason] = len(dropped)
        examples[reason] = tuple((first, chunks_in, 0) for first, chunks_in in named)
    return DrawResult(
        documents=documents,
        eligible=eligible,
        drawn=len(drawn) + len(dropped),
        meta_chunks=int(drawn["chunks"].sum()),
        dropped=dropped_counts,
        dropped_examples=examples,
    )


def _with_checked(
    drawn: NDArray[Any],
    unchecked: NDArray[Any],
    is_longer: Callable[[int, int], bool],
    *,
    draws: int | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sample with the `unchecked` documents that fit, and those that do not.

    Only documents that come before the end of the sample are checked, because reading one
    takes as long as reading a whole sequence.
    """
    unchecked = np.sort(unchecked, order=_SAMPLED_ORDER)
    # (unchecked,) how many documents of `drawn` come before each
    earlier = np.searchsorted(drawn["key"], unchecked["key"])
    fitting: list[Any] = []
    dropped: list[Any] = []
    for document, before in zip(unchecked, earlier.tolist(), strict=True):
        is_full = draws is not None and before + len(fitting) >= draws
        if is_full:
            break
        is_long = is_longer(int(document["first_chunk"]), int(document["chunks"]))
        if is_long:
            dropped.append(document)
        else:
            fitting.append(document)
    sample = np.concatenate([drawn, np.array(fitting, schemas.META_DOCUMENTS)])
    sample = np.sort(sample, order=_SAMPLED_ORDER)[:draws]
    return sample, np.array(dropped, schemas.META_DOCUMENTS)


def _document_rows(
    shard: int, chunks: Path, hashes: Path, *, seed: int
) -> NDArray[Any]:
    """Return a META_DOCUMENTS row for every document of a shard that has chunks, in the order of the shard."""
    table, hash_of = read_chunks(chunks), np.load(hashes, mmap_mode="r")
    doc_rows, first, count = np.unique(
        table["doc_row"], return_index=True, return_counts=True
    )
    documents = np.empty(len(doc_rows), schemas.META_DOCUMENTS)
    documents["content_hash"] = hash_of[doc_rows]
    documents["key"] = keyed_hash(documents["content_hash"], seed=seed, stage="meta")
    documents["first_chunk"] = schemas.pack_ids(shard, first)
    documents["chunks"] = count
    documents["chars"] = table["end"][first + count - 1]
    return documents


def list_documents(
    out: Path, *, chunks: _Paths, hashes: _Paths, seeds: int | None, seed: int
) -> DrawResult:
    """Write `{out}.docs.npy`, META_DOCUMENTS in shard order, and `{out}.queries.npy`, the vector ids of `seeds` (None: all)."""
    shards = enumerate(zip(chunks, hashes, strict=True))
    by_shard = [_document_rows(shard, *paths, seed=seed) for shard, paths in shards]
    docs = np.concatenate([np.empty(0, schemas.META_DOCUMENTS), *by_shard])
    rows = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(len(of_shard)) for of_shard in by_shard)]
    )
    ids = schemas.pack_ids(schemas.shard_of(docs["first_chunk"]), rows)
    order = np.arange(len(docs))
    if seeds is not None:  # in the order in which the documents start sequences
        order = shuffled(docs["content_hash"], seed=seed, stage="queries")[:seeds]
    np.save(f"{out}.docs.npy", docs)
    np.save(f"{out}.queries.npy", ids[order])
    return DrawResult(
        documents=len(docs),
        drawn=len(order),
        eligible=len(docs),
        chars=int(docs["chars"].sum()),
    )


class Queries(NamedTuple):
    """Queries: their ids (n,), the range [first, last) of ids that each excludes (n, 2), and the number before the first."""

    ids: NDArray[np.int64]
    exclude: NDArray[np.int64]
    before: int


def read_queries(path: Path, first: int = 0, last: int | None = None) -> Queries:
    """Return the queries of rows [first, last): all chunks of META_DOCUMENTS rows, or documents by the ids of their vectors."""
    stored = np.load(path, mmap_mode="r")
    rows: NDArray[Any] = np.asarray(stored[first:last])
    if rows.dtype == np.int64:
        return Queries(rows, np.stack([rows, rows + 1], axis=1), first)
    # (queries,) each: the first chunk of the query's document, and its number of chunks. A query excludes all of them.
    starts, counts = (
        np.repeat(rows[name], rows["chunks"]) for name in ("first_chunk", "chunks")
    )
    exclude = np.stack([starts, starts + counts], axis=1)
    return Queries(
        ranges(rows["first_chunk"], rows["chunks"]),
        exclude,
        int(stored["chunks"][:first].sum()),
    )


def query_ranges(path: Path, *, most: int = MOST_QUERIES) -> list[tuple[int, int]]:
    """Return the ranges of rows (META_DOCUMENTS or document ids) of each task, each of about `most` queries."""
    rows = np.load(path, mmap_mode="r")
    is_documents = rows.dtype == np.int64
    # (rows + 1,): the number of queries before each row, and in all. The chunks of a document are never divided.
    ends = np.append(
        0, np.arange(1, len(rows) + 1) if is_documents else np.cumsum(rows["chunks"])
    )
    most = min(max(1, math.ceil(int(ends[-1]) / BLOCKS)), most)
    tasks, first = [], 0
    while first < len(rows):
        last = max(
            first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1
        )
        tasks.append(
            (first, last if is_documents else min(last, first + _MOST_DOCUMENTS))
        )
        first = tasks[-1][1]
    return tasks


class MetaDocumentsFiles(StepFiles):
    """The documents that are extended, in the order in which they were drawn."""

    step = "meta_documents"
    meta_documents = OnlyFile(".meta_documents.npy")


class DocumentsFiles(StepFiles):
    """The documents that a method of whole documents uses, and its queries."""

    step = "documents"
    documents = ShardFiles(".docs.npy")
    queries = OnlyFile(".queries.npy")


def meta_documents_step(
    compose: Compose,
    ingest: Step,
    chunk: Step,
    *,
    attempt: int,
    seed: int,
    max_chars: int,
    long_documents: LongDocuments | None,
) -> Step:
    """Return the step that samples META_DOCUMENTS from CHUNKS of at most `max_chars` characters.

    `long_documents`: None if no document is probably longer than a sequence. The sample is
    then the same for other lengths and tokenizers, which share the search for candidates.
    """
    least = compose.min_meta_chunks
    sampling: Json = {
        "draws": draws(compose, attempt),
        "min_meta_chunks": least,
        "seed": seed,
    }
    config: Json = dict(sampling)
    inputs: tuple[Step, ...] = (ingest, chunk)
    if long_documents is not None:
        config["checked_chars"] = long_documents.checked_chars
        config["longest_tokens"] = long_documents.tokens
        inputs = (ingest, chunk, long_documents.tokenizer)

    def tasks(done: Artifacts) -> list[Task]:
        chunks = chunk_files(done).chunks
        ingested = IngestFiles.of(done)
        hashes, chars = ingested.hashes, ingested.chars
        length_check = None
        if long_documents is not None:
            is_longer = long_documents.is_longer(done)
            length_check = LengthCheck(long_documents.checked_chars, is_longer)
        return [
            partial(
                sample_meta_documents,
                chunks=chunks,
                hashes=hashes,
                chars=chars,
                length_check=length_check,
                **sampling,
            )
        ]

    def check(done: Artifact) -> None:
        if not (sampled := done.result(DrawResult)).drawn:
            raise CorpusError(
                none_long_enough(
                    f"{sampled.documents:,} documents", least, max_chars=max_chars
                )
            )

    return Step(
        "meta_documents",
        1,
        config,
        inputs,
        tasks,
        DrawResult,
        check=check,
    )


def none_long_enough(documents: str, min_meta_chunks: int, *, max_chars: int) -> str:
    """Return the error message for a corpus in which no document has enough chunks to be extended."""
    return (
        f"none of the {documents} has compose.{min_meta_chunks=} chunks of at most "
        f"chunk.max_chars={max_chars} characters; lower either, or add longer documents"
    )


def documents_step(
    ingest: Step, chunk: Step, *, queries: int | None, seed: int
) -> Step:
    """Return the step that lists all documents with chunks, and `queries` of them (None: all) as queries."""
    config: Json = {"seeds": queries, "seed": seed}

    def tasks(done: Artifacts) -> list[Task]:
        chunks, hashes = (
            chunk_files(done).chunks,
            IngestFiles.of(done).hashes,
        )
        return [partial(list_documents, chunks=chunks, hashes=hashes, **config)]

    return Step("documents", 2, config, (ingest, chunk), tasks, DrawResult)
