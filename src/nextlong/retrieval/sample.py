"""Sample the meta-documents, or list all documents, and divide queries into tasks.

In:  CHUNKS, and the content hashes and lengths of all documents.
Out: META_DOCUMENTS (for NExtLong), or DOCS and the ids of the queries (for methods of
     whole documents).

Sampling is by a keyed hash of the content, so that neither file order nor sharding
matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools, Ints
from nextlong.artifacts.corpus_files import ranges, read_chunks
from nextlong.artifacts.results import IngestFiles, chunk_files
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
from nextlong.text import Json, counted

_Paths = Sequence[Path]

_MAX_DOCUMENTS = 256  # in one task
_SAMPLED_ORDER = ["key", "first_chunk"]
_DROPPED_EXAMPLES = 100  # recorded documents that are longer than a sequence


class DrawResult(TaskResult):
    """Counts of the documents that have chunks.

    `dropped`: sampled documents by reason, which are no queries. `dropped_examples`
    holds their first chunk, their chunks and 0, as their tokens are not counted in
    full.
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
    """Sample `draws` documents (None: all) of at least `min_meta_chunks` chunks.

    Writes `{out}.meta_documents.npy`.
    """
    drawn = np.empty(0, schemas.META_DOCUMENTS)
    unchecked = np.empty(0, schemas.META_DOCUMENTS)  # whose tokens are to be counted
    eligible = 0
    documents = 0
    shards = zip(chunks, hashes, chars, strict=True)
    for shard, (chunk_path, hash_path, chars_path) in enumerate(shards):
        shard_documents = _document_rows(shard, chunk_path, hash_path, seed=seed)
        documents += len(shard_documents)
        has_enough = shard_documents["chunks"] >= min_meta_chunks
        is_eligible = has_enough & _is_whole(chunk_path, chars_path)
        shard_documents = shard_documents[is_eligible]
        eligible += len(shard_documents)
        if length_check is not None:
            is_long = shard_documents["chars"] > length_check.chars
            unchecked = np.concatenate([unchecked, shard_documents[is_long]])
            shard_documents = shard_documents[~is_long]
        drawn = np.concatenate([drawn, shard_documents])
        # Keep the documents of the lowest keys.
        if draws is not None and len(drawn) > draws:
            drawn = drawn[np.argpartition(drawn["key"], draws - 1)[:draws]]
    drawn = np.sort(drawn, order=_SAMPLED_ORDER)
    dropped = unchecked[:0]
    if length_check is not None:
        drawn, dropped = _with_checked(
            drawn, unchecked, length_check.is_longer, draws=draws
        )
    np.save(f"{out}.meta_documents.npy", drawn)
    dropped_counts: dict[str, int] = {}
    examples: dict[str, tuple[tuple[int, int, int], ...]] = {}
    if len(dropped):
        reason = schemas.DropReason.TOO_LONG
        named = dropped[["first_chunk", "chunks"]][:_DROPPED_EXAMPLES].tolist()
        dropped_counts[reason] = len(dropped)
        examples[reason] = tuple((first, count, 0) for first, count in named)
    return DrawResult(
        documents=documents,
        eligible=eligible,
        drawn=len(drawn) + len(dropped),
        meta_chunks=int(drawn["chunks"].sum()),
        dropped=dropped_counts,
        dropped_examples=examples,
    )


def _is_whole(chunks: Path, chars: Path) -> Bools:
    """Return which documents with chunks have lost none of them to `decontaminate`.

    The others have a gap in their dependencies. Their remaining chunks have fewer
    characters than the document had.
    """
    table = read_chunks(chunks)
    doc_rows, firsts = np.unique(table["doc_row"], return_index=True)
    chars_in_chunks = np.add.reduceat(table["end"] - table["start"], firsts)
    is_whole: Bools = chars_in_chunks == np.load(chars)[doc_rows]
    return is_whole


def _with_checked(
    drawn: AnyArray,
    unchecked: AnyArray,
    is_longer: Callable[[int, int], bool],
    *,
    draws: int | None,
) -> tuple[AnyArray, AnyArray]:
    """Return the sample with the `unchecked` documents that fit, and those that do not.

    Only documents that come before the end of the sample are checked, because reading
    one takes as long as reading a whole sequence.
    """
    unchecked = np.sort(unchecked, order=_SAMPLED_ORDER)
    # (unchecked,) how many documents of `drawn` come before each.
    earlier = np.searchsorted(drawn["key"], unchecked["key"])
    fitting: list[Any] = []
    dropped: list[Any] = []
    for document, before in zip(unchecked, earlier.tolist(), strict=True):
        is_full = draws is not None and before + len(fitting) >= draws
        if is_full:
            break
        first_chunk = int(document["first_chunk"])
        is_long = is_longer(first_chunk, int(document["chunks"]))
        if is_long:
            dropped.append(document)
        else:
            fitting.append(document)
    sample = np.concatenate([drawn, np.array(fitting, schemas.META_DOCUMENTS)])
    sample = np.sort(sample, order=_SAMPLED_ORDER)[:draws]
    return sample, np.array(dropped, schemas.META_DOCUMENTS)


def _document_rows(shard: int, chunks: Path, hashes: Path, *, seed: int) -> AnyArray:
    """Return a META_DOCUMENTS row for every document of a shard that has chunks.

    In the order of the shard.
    """
    table = read_chunks(chunks)
    content_hashes = np.load(hashes, mmap_mode="r")
    doc_rows, first, count = np.unique(
        table["doc_row"], return_index=True, return_counts=True
    )
    documents = np.empty(len(doc_rows), schemas.META_DOCUMENTS)
    documents["content_hash"] = content_hashes[doc_rows]
    documents["key"] = keyed_hash(documents["content_hash"], seed=seed, stage="meta")
    documents["first_chunk"] = schemas.pack_ids(shard, first)
    documents["chunks"] = count
    documents["chars"] = table["end"][first + count - 1]
    return documents


def list_documents(
    out: Path, *, chunks: _Paths, hashes: _Paths, seeds: int | None, seed: int
) -> DrawResult:
    """List all documents, and `seeds` of them (None: all) as queries.

    Writes `{out}.docs.npy`, META_DOCUMENTS in shard order, and `{out}.queries.npy`, the
    ids of the queries' vectors.
    """
    docs = [np.empty(0, schemas.META_DOCUMENTS)]
    rows = [np.empty(0, np.int64)]
    for shard, paths in enumerate(zip(chunks, hashes, strict=True)):
        shard_documents = _document_rows(shard, *paths, seed=seed)
        docs.append(shard_documents)
        rows.append(np.arange(len(shard_documents)))
    documents = np.concatenate(docs)
    shards = schemas.shard_of(documents["first_chunk"])
    ids = schemas.pack_ids(shards, np.concatenate(rows))
    queries = ids
    if seeds is not None:  # in the order in which the documents start sequences
        order = shuffled(documents["content_hash"], seed=seed, stage="queries")
        queries = ids[order[:seeds]]
    np.save(f"{out}.docs.npy", documents)
    np.save(f"{out}.queries.npy", queries)
    return DrawResult(
        documents=len(documents),
        drawn=len(queries),
        eligible=len(documents),
        chars=int(documents["chars"].sum()),
    )


class Queries(NamedTuple):
    """Queries of some rows of a file.

    `ids` has shape (n,). `exclude`, shape (n, 2), has the range [first, last) of ids
    that each query excludes. `before` is the number of queries of earlier rows.
    """

    ids: Ints
    exclude: Ints
    before: int


def read_queries(path: Path, first: int = 0, last: int | None = None) -> Queries:
    """Return the queries of rows [first, last).

    They are all chunks of META_DOCUMENTS rows, or documents by the ids of their
    vectors.
    """
    stored = np.load(path, mmap_mode="r")
    rows: AnyArray = np.asarray(stored[first:last])
    if rows.dtype == np.int64:
        return Queries(rows, np.stack([rows, rows + 1], axis=1), first)
    # (queries,) each: the first chunk of the query's document, and its number of
    # chunks. A query excludes all of them.
    starts = np.repeat(rows["first_chunk"], rows["chunks"])
    counts = np.repeat(rows["chunks"], rows["chunks"])
    return Queries(
        ids=ranges(rows["first_chunk"], rows["chunks"]),
        exclude=np.stack([starts, starts + counts], axis=1),
        before=int(stored["chunks"][:first].sum()),
    )


def query_ranges(
    path: Path, *, max_queries: int = MOST_QUERIES
) -> list[tuple[int, int]]:
    """Return the ranges of rows of each task, each of about `max_queries` queries.

    Rows are META_DOCUMENTS or document ids.
    """
    rows = np.load(path, mmap_mode="r")
    is_documents = rows.dtype == np.int64
    # (rows + 1,): the number of queries before each row, and in all. The chunks of a
    # document are never divided.
    counts = np.ones(len(rows), np.int64) if is_documents else rows["chunks"]
    ends = np.append(0, np.cumsum(counts))
    per_block = math.ceil(int(ends[-1]) / BLOCKS)
    max_queries = min(max(1, per_block), max_queries)
    tasks = []
    first = 0
    while first < len(rows):
        fitting = np.searchsorted(ends, ends[first] + max_queries, side="right")
        last = max(first + 1, int(fitting) - 1)
        if not is_documents:
            last = min(last, first + _MAX_DOCUMENTS)
        tasks.append((first, last))
        first = last
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
    """Return the step that samples META_DOCUMENTS from CHUNKS.

    The chunks have at most `max_chars` characters.

    `long_documents`: None if no document is probably longer than a sequence. The sample
    is then the same for other lengths and tokenizers, which share the search for
    candidates.
    """
    min_meta_chunks = compose.min_meta_chunks
    sampling: Json = {
        "draws": draws(compose, attempt),
        "min_meta_chunks": min_meta_chunks,
        "seed": seed,
    }
    config: Json = dict(sampling)
    inputs: tuple[Step, ...] = (ingest, chunk)
    if long_documents is not None:
        config["checked_chars"] = long_documents.checked_chars
        config["longest_tokens"] = long_documents.tokens
        inputs = (ingest, chunk, long_documents.tokenizer)

    def tasks(done: Artifacts) -> list[Task]:
        length_check = None
        if long_documents is not None:
            length_check = LengthCheck(
                long_documents.checked_chars, long_documents.is_longer(done)
            )
        ingested = IngestFiles.of(done)
        sample = partial(
            sample_meta_documents,
            chunks=chunk_files(done).chunks,
            hashes=ingested.hashes,
            chars=ingested.chars,
            length_check=length_check,
            **sampling,
        )
        return [sample]

    def check(done: Artifact) -> None:
        sampled = done.result(DrawResult)
        if not sampled.drawn:
            raise none_long_enough(
                counted(sampled.documents, "document"),
                min_meta_chunks,
                max_chars=max_chars,
            )

    return Step(
        name="meta_documents",
        phase="search",
        version=1,
        config=config,
        inputs=inputs,
        tasks=tasks,
        result=DrawResult,
        check=check,
    )


def none_long_enough(
    documents: str, min_meta_chunks: int, *, max_chars: int
) -> CorpusError:
    """Return the error for a corpus without a document of enough chunks."""
    return CorpusError(
        where="compose.min_meta_chunks",
        value=min_meta_chunks,
        problem=(
            f"is too high: none of the {documents} has as many chunks of at most "
            f"chunk.max_chars={max_chars} characters"
        ),
        fix="lower one of the two keys, or add longer documents",
    )


def documents_step(
    ingest: Step, chunk: Step, *, queries: int | None, seed: int
) -> Step:
    """Return the step that lists all documents with chunks, and queries among them.

    `queries`: how many; None for all of them.
    """
    config: Json = {"seeds": queries, "seed": seed}

    def tasks(done: Artifacts) -> list[Task]:
        task = partial(
            list_documents,
            chunks=chunk_files(done).chunks,
            hashes=IngestFiles.of(done).hashes,
            **config,
        )
        return [task]

    return Step(
        name="documents",
        phase="read",
        version=2,
        config=config,
        inputs=(ingest, chunk),
        tasks=tasks,
        result=DrawResult,
    )
