"""Draft sequences of whole documents, by a `DocumentMethod`.

In:  DOCS, the tokens of every chunk, and what the method needs: neighbours of some or
     all documents, or keywords.
Out: DRAFTS: the chunks of the documents of each sequence, in order, with at least T
     tokens.

Lengths are counted with the run's tokenizer. An estimate would bias the data:
characters per token differ threefold between languages, and a draft shorter than T is
lost, so estimates favour some languages. Counting takes no longer than estimating: 77
MB/s per core by fastokens, against 64 MB/s to classify characters by script, which
gives the tokens of a document within 20 %.

Many documents are drafted part by part (`partition.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools, Int32s, Ints
from nextlong.artifacts.corpus_files import ranges, read_chunks, record_batches
from nextlong.artifacts.results import (
    ChunkFiles,
    DraftResult,
    IngestFiles,
    TokenizerFiles,
    TokensFiles,
)
from nextlong.artifacts.sequence_files import special_ids
from nextlong.engine.executor import Resources
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    ShardFiles,
    Step,
    Task,
    each_shard,
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
from nextlong.methods.contexts import (
    CONTEXTS_STEPS,
    ContextsFiles,
    context_steps,
    read_contexts,
)
from nextlong.methods.keywords import KeywordsFiles, keywords_step, read_keywords
from nextlong.methods.partition import Part, partition_steps, parts_of
from nextlong.methods.topics import (
    TopicHitsFiles,
    TopicsFiles,
    read_topic_hits,
    topic_steps,
)
from nextlong.methods.vectors import Vectors
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import (
    TYPICAL_CHARS_PER_TOKEN,
    document_chars,
    draws,
    sequence_limit,
)
from nextlong.retrieval.embed import (
    DocumentVectorsFiles,
    document_vectors_step,
    embed_step,
    encoder_step,
)
from nextlong.retrieval.index import NeighbourCount, index_steps
from nextlong.retrieval.mine import MineFiles, mine_steps
from nextlong.retrieval.sample import DocumentsFiles, documents_step
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

# What helps if most documents were dropped for a reason.
_FIXES: Final[Mapping[str, str]] = {
    schemas.DropReason.OVER_HALF: "raise it, or add shorter documents",
    schemas.DropReason.NO_CONTEXTS: (
        "use a better encoder or scorer.model, raise the method's candidates, or add "
        "documents"
    ),
}


class LengthsFiles(TokensFiles):
    """The tokens of each chunk of a shard, with a separator, and their TOKENS."""

    step = "lengths"
    lengths = ShardFiles(".lengths.npy")


# What a method reads beside the documents, by the step that a need of it adds.
_FILES_READ: Final = {
    "lengths": LengthsFiles.lengths,
    "neighbours": MineFiles.candidates,
    "document_vectors": DocumentVectorsFiles.vectors,
    "keywords": KeywordsFiles.keywords,
    "topics": TopicsFiles.topics,
    "topic_hits": TopicHitsFiles.hits,
    "contexts": ContextsFiles.contexts,
}


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
    queries = None
    if method.searches == "sampled documents":
        queries = draws(recipe.compose, attempt)
    documents = documents_step(ingest, chunk, queries=queries, seed=recipe.compose_seed)
    lengths = _lengths_step(recipe.tokenizer.engine, ingest, chunk, tokenizer)
    needed = [documents, lengths]

    searching: list[Step] = []
    if Need.DOCUMENT_NEIGHBOURS in method.needs:
        encoder = encoder_step(recipe.encoder, ingest, chunk, seed=recipe.seed)
        embed = embed_step(recipe.encoder, ingest, chunk, encoder)
        vectors = document_vectors_step(chunk, embed, vector=recipe.documents.vector)
        neighbours = _neighbour_count(method, recipe, attempt)
        index = index_steps(
            recipe.search, vectors, documents, neighbours, seed=recipe.seed
        )
        *scanning, mine = mine_steps(
            recipe.search, "neighbours", vectors, documents, index, neighbours
        )
        partition = partition_steps(
            documents,
            vectors,
            neighbours,
            size=recipe.documents.partition_size,
            seed=recipe.seed,
        )
        searching = [encoder, embed, vectors, *partition, *index, *scanning]
        needed += [*partition, mine]
        if Need.DOCUMENT_VECTORS in method.needs:
            needed.append(vectors)
    if Need.KEYWORDS in method.needs:
        keywords = keywords_step(recipe.compose.method, recipe.options, ingest, chunk)
        needed.append(keywords)
    if Need.TOPICS in method.needs:
        finding, found = topic_steps(recipe, ingest, chunk)
        searching += finding
        needed += [finding[-1], *found]

    if Need.CONTEXTS in method.needs:
        preparing, finding = context_steps(
            recipe, ingest, chunk, documents, tokenizer, attempt=attempt
        )
        searching += preparing
        needed += finding

    draft = _draft_step(method, recipe, needed, tokenizer, attempt=attempt)
    others = [step for step in needed[1:] if step not in searching]
    return [documents, *searching, *others, draft]


def _neighbour_count(
    method: DocumentMethod[Any], recipe: Recipe, attempt: int
) -> NeighbourCount:
    """Return how many neighbours to search for: a number, or characters of them."""
    neighbours = method.neighbours(recipe.options)
    if neighbours is not None:
        return {"neighbours": neighbours}
    # Neighbours of short documents are short too. Each further attempt, after
    # neighbours ran out, doubles the characters.
    sequence_chars = document_chars(recipe.sequence_tokens, TYPICAL_CHARS_PER_TOKEN)
    return {"chars": 4 * sequence_chars * 2**attempt}


def _lengths_step(engine: Engine, ingest: Step, chunk: Step, tokenizer: Step) -> Step:
    """Return the step that tokenizes all CHUNKS and counts their tokens.

    `tokens` copies the ids from it.
    """

    def given(done: Artifacts) -> Json:
        return {
            "tokenizer": TokenizerFiles.of(done).tokenizer,
            "separator_tokens": len(special_ids(done).separator),
        }

    return Step(
        name="lengths",
        phase="read",
        version=VERSIONS["lengths"],
        config={"engine": engine},
        inputs=(ingest, chunk, tokenizer),
        tasks=each_shard(
            partial(_count_tokens, engine=engine),
            given=given,
            documents=(ingest, IngestFiles.documents),
            chunks=(chunk, ChunkFiles.chunks),
        ),
        result=TokensResult,
        check=check_ids,
        resources=Resources(uses_shared=True),
    )


def _draft_step(
    method: DocumentMethod[Any],
    recipe: Recipe,
    needed: Sequence[Step],
    tokenizer: Step,
    *,
    attempt: int,
) -> Step:
    """Return the step from what the method needs (`needed`) to DRAFTS."""
    compose = recipe.compose
    limit = sequence_limit(compose, attempt)
    config: Json = method.promises(recipe.options) | {
        "version": method.version,
        "options": recipe.options.identity(),
        "target_tokens": recipe.sequence_tokens,
        "sequences": limit,
        "seed": recipe.compose_seed,
    }
    read = [step.name for step in needed if _kind_of(step.name) in _FILES_READ]

    def tasks(done: Artifacts) -> list[Task]:
        special = special_ids(done)
        room = recipe.sequence_tokens - len(special.bos) - len(special.eos)
        request = DraftRequest(
            target_tokens=room, sequences=limit, seed=recipe.compose_seed
        )
        files: dict[str, Sequence[Path]] = {
            "documents": DocumentsFiles.of(done).documents
        }
        for name in read:
            kind = _kind_of(name)
            paths = _FILES_READ[kind].of(done[name])
            files[kind] = [*files.get(kind, ()), *paths]
        draft = partial(
            _draft_documents, method=method.name, options=recipe.options, files=files
        )
        parts = parts_of(done)
        if not parts:
            return [partial(draft, request=request)]
        # Sequences are used in the order of the tasks, so spare ones of the first parts
        # would displace those of the last.
        requested = None if compose.sequences == "all" else compose.sequences << attempt
        request = replace(request, sequences=requested)
        return [partial(draft, request=request, part=part) for part in parts]

    def check(done: Artifact) -> None:
        drafted = done.results(DraftResult)
        if any(part.drafts or part.starved or part.limited for part in drafted):
            return
        why, fix = _why_none(drafted)
        length = f"compose.target_tokens={compose.target_tokens:,}"
        raise CorpusError(
            where="compose.method",
            value=method.name,
            problem=f"gives no sequence of {length}: {why}",
            fix=fix,
        )

    return Step(
        name="draft",
        phase="compose",
        version=5,
        config=config,
        inputs=(*needed, tokenizer),
        tasks=tasks,
        result=DraftResult,
        check=check,
    )


def _why_none(drafted: Sequence[DraftResult]) -> tuple[str, str]:
    """Return why documents gave no sequence, and what to do."""
    dropped: Counter[str] = Counter()
    for part in drafted:
        dropped.update(part.dropped)
    if dropped:
        reasons = [
            f"{counted(count, 'document')} dropped: {reason}"
            for reason, count in dropped.most_common()
        ]
        ((most, _),) = dropped.most_common(1)
        return f"too few documents are left ({'; '.join(reasons)})", _FIXES[most]
    without = ""
    unshared = sum(part.unshared_keywords or 0 for part in drafted)
    if unshared:
        documents = counted(unshared, "document")
        without = f" ({documents} shared no keyword with another one)"
    why = f"the documents that it concatenates are too few or too short{without}"
    return why, "add documents or lower it"


def _kind_of(name: str) -> str:
    """Return the name of a step without the number of its attempt."""
    return ContextsFiles.step if name in CONTEXTS_STEPS else name


def _count_tokens(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    tokenizer: Path,
    engine: Engine,
    separator_tokens: int,
) -> TokensResult:
    """Write `{out}.lengths.npy`, int32 (chunks,): the tokens of each chunk.

    They include a separator after the chunk if there is one. Also writes the ids of all
    chunks as `tokenize_shard` does, so that no chunk is encoded twice.
    """
    result, lengths = tokenize_shard(
        out, documents=documents, chunks=chunks, tokenizer=tokenizer, engine=engine
    )
    follows = separator_follows(read_chunks(chunks))
    lengths += separator_tokens * follows
    np.save(f"{out}.lengths.npy", lengths.astype(np.int32))
    return result


def separator_follows(table: Mapping[str, AnyArray]) -> Bools:
    """Return whether a separator follows each chunk.

    Not after a newline, nor if the document continues in the next chunk.
    """
    # (chunks − 1,) each, of a chunk and the next one.
    is_same_document = table["doc_row"][:-1] == table["doc_row"][1:]
    is_adjacent = table["end"][:-1] == table["start"][1:]
    continues = np.append(is_same_document & is_adjacent, False)
    follows: Bools = table["separator"] & ~continues
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
    """Draft the sequences of a method, of all documents or of one part of them.

    Writes `{out}.{n:05d}.drafts.arrow`, in the order in which sequences are used.
    """
    rows = np.load(files["documents"][0], mmap_mode="r")
    document_method: DocumentMethod[Section] = METHODS.load(method, DocumentMethod)
    members = np.arange(len(rows))
    if part is not None:
        members, share = part.choose(rows, request.sequences)
        request = replace(request, sequences=share)

    documents, max_neighbours = _read_documents(files, rows, members)
    drafted = Drafted()
    if len(members) and request.sequences != 0:
        drafted = document_method.draft(documents, options, request)
    _write_drafts(out, document_method, drafted.drafts, rows=rows, members=members)

    # More neighbours would help, except where every document was found already. They
    # would also make more and smaller parts, which would run out of them more often.
    may_search_further = part is None and max_neighbours < len(rows) - 1
    dropped: dict[str, int] = {}
    if drafted.too_long:
        dropped[schemas.DropReason.OVER_HALF] = drafted.too_long
    if drafted.without_contexts:
        dropped[schemas.DropReason.NO_CONTEXTS] = drafted.without_contexts
    return DraftResult(
        drafts=len(drafted.drafts),
        dropped=dropped,
        limited=drafted.limited or len(drafted.drafts) == request.sequences,
        starved=drafted.starved if may_search_further else 0,
        near_duplicate_documents=drafted.near_duplicates,
        unshared_keywords=drafted.unshared_keywords,
        documents=None if part is None else len(members),
    )


def _read_documents(
    files: _Files, rows: AnyArray, members: Ints
) -> tuple[CorpusArrays, int]:
    """Return the arrays of the members, and the most neighbours that a document has.

    `rows` are those of all documents, and `members`, (n,), positions among them.
    """
    neighbours = None
    max_neighbours = 0
    if "neighbours" in files:
        neighbours, max_neighbours = _read_neighbours(
            files["neighbours"], rows, members
        )
    vectors = None
    if "document_vectors" in files:
        vectors = Vectors(files["document_vectors"], members)
    keywords = None
    if "keywords" in files:
        keywords = read_keywords(files["keywords"])
    topic_hits = None
    if "topic_hits" in files:
        paths = files["topic_hits"]
        firsts = _first_of_shards(rows, shards=len(paths))[:-1]
        topic_hits = read_topic_hits(files["topics"][0], paths, firsts)
    contexts = None
    if "contexts" in files:
        contexts = read_contexts(files["contexts"], rows)

    chunk_counts = rows["chunks"][members]
    chunk_offsets = np.concatenate([[0], np.cumsum(chunk_counts)])
    chunk_tokens = _read_chunk_tokens(files["lengths"], rows, members)
    tokens = chunk_counts
    # `reduceat` refuses an empty array.
    if len(members):
        tokens = np.add.reduceat(chunk_tokens, chunk_offsets[:-1], dtype=np.int64)
    documents = CorpusArrays(
        content_hashes=rows["content_hash"][members],
        tokens=tokens,
        chunk_offsets=chunk_offsets,
        chunk_tokens=chunk_tokens,
        neighbours=neighbours,
        vectors=vectors,
        keywords=keywords,
        topic_hits=topic_hits,
        contexts=contexts,
    )
    return documents, max_neighbours


def _first_of_shards(rows: AnyArray, *, shards: int) -> Ints:
    """Return the position of the first document of each shard, and the end, (n + 1,).

    `rows` are those of all documents, sorted by shard.
    """
    return np.searchsorted(schemas.shard_of(rows["first_chunk"]), np.arange(shards + 1))


def _read_chunk_tokens(
    paths: Sequence[Path], rows: AnyArray, members: Ints
) -> AnyArray:
    """Return the tokens of the chunks of all members, document after document.

    Read a shard at a time, so that only the members' lengths are held.
    """
    # Documents are sorted by shard, and so are members: members[low:high] are those of
    # one shard, between the first document of it and that of the next one.
    first_documents = _first_of_shards(rows, shards=len(paths))
    lows = np.searchsorted(members, first_documents[:-1])
    highs = np.searchsorted(members, first_documents[1:])
    tokens_by_shard = [np.empty(0, np.int32)]
    for path, low, high in zip(paths, lows, highs, strict=True):
        shard_rows = rows[members[low:high]]
        ids = ranges(shard_rows["first_chunk"], shard_rows["chunks"])
        tokens_by_shard.append(np.load(path)[schemas.row_of(ids)])
    tokens: AnyArray = np.concatenate(tokens_by_shard)
    return tokens


def _read_neighbours(
    paths: Sequence[Path], rows: AnyArray, members: Ints
) -> tuple[Neighbours, int]:
    """Return the neighbours among the members of queries that are members.

    Both are positions among the members. Also returns the most neighbours that a query
    had among all documents.
    """
    shards = schemas.shard_of(rows["first_chunk"])
    first_of_shard = _first_of_shards(rows, shards=shards.max(initial=0) + 1)
    # (documents,): the position of each among the members, -1 for none.
    position_of = np.full(len(rows), -1, np.int32)
    position_of[members] = np.arange(len(members))

    def positions(ids: Ints) -> Int32s:
        first_rows = first_of_shard[schemas.shard_of(ids)]
        found: Int32s = position_of[first_rows + schemas.row_of(ids)]
        return found

    no_ids = np.empty(0, np.int64)
    queries: list[AnyArray] = [no_ids]
    counts: list[AnyArray] = [no_ids]
    documents: list[AnyArray] = [no_ids]
    cosines: list[AnyArray] = [np.empty(0, np.float32)]
    max_neighbours = 0
    for path in paths:
        for _, batch in record_batches(path):
            neighbour_ids = batch.column("neighbour_ids")
            scores = batch.column("scores").values.to_numpy()
            offsets = neighbour_ids.offsets.to_numpy()
            query_ids = batch.column("chunk_id").to_numpy()
            found_counts = np.diff(offsets)
            query = positions(query_ids)
            neighbour = positions(neighbour_ids.values.to_numpy())
            # (neighbours of the batch,): the row of each one's query.
            row_of = np.repeat(np.arange(len(query)), found_counts)
            is_member = query >= 0
            is_kept = (neighbour >= 0) & is_member[row_of]
            kept_counts = np.bincount(row_of[is_kept], minlength=len(query))
            queries.append(query[is_member])
            counts.append(kept_counts[is_member])
            documents.append(neighbour[is_kept])
            cosines.append(scores[is_kept])
            most_found = int(found_counts.max(initial=0))
            max_neighbours = max(max_neighbours, most_found)

    ends = np.cumsum(np.concatenate(counts))
    neighbours = Neighbours(
        queries=np.concatenate(queries),
        offsets=np.append(0, ends),
        documents=np.concatenate(documents),
        cosines=np.concatenate(cosines),
    )
    return neighbours, max_neighbours


def _write_drafts(
    out: Path,
    method: DocumentMethod[Section],
    drafts: Sequence[Draft],
    *,
    rows: AnyArray,
    members: Ints,
) -> None:
    """Write the drafts to files of `_ROWS_PER_FILE`; an empty one for no drafts."""
    chunk_counts = rows["chunks"][members]
    firsts = range(0, max(1, len(drafts)), _ROWS_PER_FILE)
    for index, first in enumerate(firsts):
        path = f"{out}.{index:05d}.drafts.arrow"
        with (
            pa.OSFile(path, "wb") as sink,
            pa.ipc.new_file(sink, schemas.DRAFTS) as writer,
        ):
            for draft in drafts[first : first + _ROWS_PER_FILE]:
                _check_draft(method, chunk_counts, draft)
                row = _draft_row(method, rows[members[draft.documents]], draft)
                batch = pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS)
                writer.write_batch(batch)


def _check_draft(
    method: DocumentMethod[Section], chunk_counts: Ints, draft: Draft
) -> None:
    """Raise PluginError for a draft of documents or chunks that do not exist.

    `chunk_counts` has shape (n,): the chunks of each document that the method was
    given.
    """
    documents = draft.documents
    problem = ""
    if len(documents) == 0:
        problem = "has no documents"
    elif documents.min() < 0 or documents.max() >= len(chunk_counts):
        problem = f"names a document that is not among the {len(chunk_counts):,}"
    elif draft.chunks is not None:
        # (d,): the distinct documents, and the chunks of all parts of each.
        distinct, part_of = np.unique(documents, return_inverse=True)
        used = np.bincount(part_of, weights=draft.chunks).astype(np.int64)
        excess = used - chunk_counts[distinct]
        most = int(np.argmax(excess))
        if draft.chunks.min() < 1:
            problem = "has a part without chunks"
        elif excess[most] > 0:
            problem = (
                f"takes {used[most]} chunks of document {distinct[most]}, which has "
                f"{chunk_counts[distinct[most]]}"
            )
    if problem:
        raise METHODS.broken(method.name, f"made a draft that {problem}")


def _draft_row(method: DocumentMethod[Section], rows: AnyArray, draft: Draft) -> Json:
    """Return a DRAFTS row.

    `rows` are the META_DOCUMENTS rows of the draft's documents, or of its parts in
    order.
    """
    sizes = rows["chunks"] if draft.chunks is None else draft.chunks
    if draft.firsts is None or draft.roles is None:
        first_parts, groups, chunks_before = _in_order(draft.documents, sizes)
        roles = np.full(len(sizes), schemas.DOCUMENT, np.int8)
    else:
        # A document has the group of what stands before it.
        roles = draft.roles
        chunks_before = draft.firsts
        is_document = roles == schemas.DOCUMENT
        first_parts = np.flatnonzero(is_document)
        groups = np.cumsum(is_document) - is_document
    ids = ranges(rows["first_chunk"] + chunks_before, sizes)
    if draft.scores is None:
        scores = np.full(len(rows), np.nan, np.float32)
    else:
        scores = draft.scores.astype(np.float32)
    hashes = rows["content_hash"][first_parts]
    digest = xxhash.xxh3_64_hexdigest(hashes.tobytes())
    return {
        "sequence_id": f"{method.name}-{digest}",
        "key": int(hashes[0]),
        "layout": method.layout.value,
        "chunk_id": ids,
        "role": np.repeat(roles, sizes),
        "group": np.repeat(groups.astype(np.int32), sizes),
        "score": np.repeat(scores, sizes),
        "near_duplicates": [],
        "shortage": "",
    }


def _in_order(documents: Ints, sizes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return where parts of documents stand, given the document and size of each.

    Which parts are the first of a document, (d,), and of each part, (parts,), its group
    and the number of chunks of its document before it.
    """
    # (parts,): the document of each part, numbered in the order of first appearance.
    _, first_parts, groups = np.unique(
        documents, return_index=True, return_inverse=True
    )
    by_appearance = np.argsort(first_parts)
    groups = np.argsort(by_appearance)[groups]

    # (parts,): the number of chunks of the document before each part. In the order of
    # groups, that is a running sum that begins again with each group.
    by_group = np.argsort(groups, kind="stable")
    starts = np.cumsum(sizes[by_group]) - sizes[by_group]
    firsts = np.flatnonzero(np.diff(groups[by_group], prepend=-1))
    parts_per_group = np.diff(firsts, append=len(groups))
    chunks_before = np.empty(len(groups), np.int64)
    chunks_before[by_group] = starts - np.repeat(starts[firsts], parts_per_group)
    return np.sort(first_parts), groups, chunks_before
