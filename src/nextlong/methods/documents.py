"""Draft documents: the arrays that a method of whole documents, or parts of them, gets; and its drafts as files.

In:  DOCS (all documents that have chunks), the tokens of every chunk, and what the method needs: the neighbours of some or
     all documents, or their keywords.
Out: DRAFTS: the chunks of each sequence's documents, in order; no fewer than T tokens.

Lengths are counted with the run's tokenizer, not estimated: how many characters make a token differs threefold between
languages, and a draft that falls short of T is lost, so an estimate fills a data set with what it favours. Counting is
exact at the price of estimating: 77 MB/s a core by fastokens, against 64 to class characters by script, from which tokens
follow to within 20 % of a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.finished import chunks_of, special_ids
from nextlong.artifacts.lookup import iter_chunk_texts, read_chunks
from nextlong.artifacts.results import DraftResult
from nextlong.engine.step import Amounts, Artifact, Artifacts, Estimate, Step, Task, TaskResult, per_shard
from nextlong.errors import CorpusError
from nextlong.methods.base import CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, Need, Neighbours
from nextlong.methods.keywords import keywords_step, read_keywords
from nextlong.methods.partition import Part, count_parts, partition_steps, parts_of
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.amounts import TOKENIZER_BYTES, draws, sequence_limit
from nextlong.retrieval.embed import document_vectors_step, embed_step, encoder_step
from nextlong.retrieval.index import document_neighbours, index_steps
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.mine import mine_steps
from nextlong.retrieval.sample import chunk_ids_of, documents_step
from nextlong.sequences.encode import Engine, kept_encoder
from nextlong.text import Json

_ROWS_PER_FILE = 64
_SEARCHED_AT_ONCE = 65_536  # vectors, held as float32


def document_steps(
    method: DocumentMethod[Any], recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int
) -> list[Step]:
    """Return the steps that give a method what it needs, and the one that drafts."""
    queries = draws(recipe.compose, attempt) if method.searches == "sampled documents" else None
    documents = documents_step(recipe, ingest, chunk, queries=queries)
    needed = [documents, _lengths_step(recipe.tokenizer.engine, ingest, chunk, tokenizer)]
    on_the_way = []
    if Need.DOCUMENT_NEIGHBOURS in method.needs:
        encoder = encoder_step(recipe, ingest, chunk)
        embed = embed_step(recipe, ingest, chunk, encoder)
        vectors = document_vectors_step(recipe, chunk, embed)
        neighbours = document_neighbours(recipe, neighbours=method.neighbours(recipe.options), attempt=attempt)
        index = index_steps(recipe, vectors, documents, neighbours)
        *scanning, mine = mine_steps(recipe, "neighbours", vectors, documents, index, neighbours)
        size = recipe.documents.partition_size
        parts = partition_steps(documents, vectors, neighbours, partition_size=size, seed=recipe.seed)
        on_the_way = [encoder, embed, vectors, *parts, *index, *scanning]
        needed += [*parts, mine, *([vectors] if Need.DOCUMENT_VECTORS in method.needs else [])]
    if Need.KEYWORDS in method.needs:
        needed.append(keywords_step(recipe.compose.method, recipe.options, ingest, chunk))
    draft = _draft_step(method, recipe, needed, tokenizer, attempt=attempt)
    return [documents, *on_the_way, *(step for step in needed[1:] if step not in on_the_way), draft]


def _lengths_step(engine: Engine, ingest: Step, chunk: Step, tokenizer_step: Step) -> Step:
    """CHUNKS → how many tokens each takes."""

    def tasks(done: Artifacts) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        separator_tokens = len(special_ids(done).separator)
        tokenizer = done["tokenizer"].file(".tokenizer.json")
        task = partial(_count_tokens, tokenizer=tokenizer, engine=engine, separator_tokens=separator_tokens)
        return [partial(task, documents=documents, chunks=chunks) for documents, chunks in shards]

    estimate = Estimate(
        work="kept_chars",
        seconds=1.3e-8,
        disk="chunks",
        bytes=4,
        tasks=per_shard,
        memory=lambda _: TOKENIZER_BYTES,
        rate="tokens",
    )
    inputs = (ingest, chunk, tokenizer_step)
    return Step("lengths", 1, {"engine": engine}, inputs, tasks, estimate=estimate)


def _draft_step(
    method: DocumentMethod[Any], recipe: Recipe, needed: Sequence[Step], tokenizer: Step, *, attempt: int
) -> Step:
    """Documents, their lengths, neighbours or keywords (`needed`) → DRAFTS."""
    limit = sequence_limit(recipe.compose, attempt)
    config: Json = {
        **method.promises(recipe.options),
        "version": method.version,
        "target_tokens": recipe.sequence_tokens,
        "sequences": limit,
        "seed": recipe.compose_seed,
        "options": recipe.options.identity(),
    }
    suffixes = {
        "lengths": ".lengths.npy",
        "neighbours": ".candidates.arrow",
        "document_vectors": ".document_vectors.npy",
        "keywords": ".keywords.arrow",
    }
    read = [step.name for step in needed if step.name in suffixes]

    def tasks(done: Artifacts) -> list[Task]:
        special = special_ids(done)
        room = recipe.sequence_tokens - len(special.bos) - len(special.eos)
        request = DraftRequest(target_tokens=room, sequences=limit, seed=recipe.compose_seed)
        docs = done["documents"].file(".docs.npy")
        files: dict[str, Any] = {name: done[name].files(suffixes[name]) for name in read}
        draft = partial(_draft_documents, method=method.name, options=recipe.options, docs=docs, **files)
        if not (parts := parts_of(done)):
            return [partial(draft, request=request)]
        # Sequences are taken from the first task on, so spare ones would displace those of the last parts.
        asked = None if recipe.compose.sequences == "all" else recipe.compose.sequences << attempt
        return [partial(draft, request=replace(request, sequences=asked), part=part) for part in parts]

    def check(done: Artifact) -> None:
        drafted = done.results(DraftResult)
        if not any(part.drafts or part.starved for part in drafted):
            raise CorpusError(
                f"compose.method={method.name} finds no sequence of compose.target_tokens="
                f"{recipe.compose.target_tokens:,}: the documents that it puts together are too few or too short; add "
                "documents or lower it"
            )

    def parts(amounts: Amounts) -> int:
        return count_parts(recipe.documents.partition_size, amounts.all_neighbours)

    # Bytes of a document, measured: what is read of its row; with ten keywords, which are hashes, flags and what draws one.
    document_bytes = 150 if Need.KEYWORDS in method.needs else 65
    estimate = Estimate(
        work=lambda amounts: amounts.chunks + amounts.drafted_chunks,
        seconds=6e-7,
        disk="drafted_chunks",
        bytes=21,  # id, role, group and score, and a share of the header
        tasks=parts,
        # Beside that, lengths, and the neighbours as a graph and as what it is made from.
        memory=lambda amounts: (
            document_bytes * amounts.kept_documents
            + (10 * amounts.chunks + 60 * amounts.all_neighbours) / parts(amounts)
        ),
    )
    return Step("draft", 4, config, (*needed, tokenizer), tasks, DraftResult, check=check, estimate=estimate)


def _count_tokens(
    out: Path, *, documents: Path, chunks: Path, tokenizer: Path, engine: Engine, separator_tokens: int
) -> TaskResult:
    """Write `{out}.lengths.npy` int32 (chunks,): the tokens of each chunk, with the separator that follows it, if any."""
    table, encoder = read_chunks(chunks), kept_encoder(tokenizer, engine)
    encoder.expect(int((table["end"] - table["start"]).sum()))
    lengths = np.zeros(len(table["start"]), np.int32)
    for batch in iter_chunk_texts(documents, chunks):
        lengths[batch.rows] = encoder.encode_batch(batch.texts)[1]
    lengths += separator_tokens * separator_follows(table)
    np.save(f"{out}.lengths.npy", lengths)
    return TaskResult()


def separator_follows(table: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return whether a separator follows each of the CHUNKS: its text neither ends in a newline nor goes on in the next one."""
    # (chunks − 1,): whether the next chunk goes on where each one ends.
    goes_on = (table["doc_row"][:-1] == table["doc_row"][1:]) & (table["end"][:-1] == table["start"][1:])
    follows: NDArray[np.bool_] = table["separator"] & ~np.append(goes_on, False)
    return follows


class Vectors:
    """The unit vectors of n documents, in float16 files of one shard each, read block by block."""

    def __init__(self, paths: Sequence[Path], members: NDArray[np.int64]) -> None:
        """The documents are those of the files' rows, one after the other, that `members` (n,), ascending, names."""
        self._shards, self._members = VectorShards(paths), members

    def nearest(self, document: int, k: int, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return at most `k` documents of `among`, shape (n,), and their cosines, nearest first, by exact search."""
        query = self._rows(np.array([document]))[0]
        searched = np.flatnonzero(among)
        found, cosines = np.empty(0, np.int64), np.empty(0, np.float32)
        for first in range(0, len(searched), _SEARCHED_AT_ONCE):
            block = searched[first : first + _SEARCHED_AT_ONCE]
            found, cosines = np.append(found, block), np.append(cosines, self._rows(block) @ query)
            best = np.argsort(-cosines, kind="stable")[:k]
            found, cosines = found[best], cosines[best]
        return found, cosines

    def _rows(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._shards.take(self._shards.ids_at(self._members[documents])).astype(np.float32)


def _draft_documents(
    out: Path,
    *,
    method: str,
    options: Section,
    docs: Path,
    lengths: Sequence[Path],
    neighbours: Sequence[Path] | None = None,
    document_vectors: Sequence[Path] | None = None,
    keywords: Sequence[Path] | None = None,
    request: DraftRequest,
    part: Part | None = None,
) -> DraftResult:
    """Draft all sequences of a method, or those of one part of the documents; writes `{out}.{n:05d}.drafts.arrow`, in draw order.

    The result says whether there may be more: `limited` if the method stopped at as many as were asked for, `starved` how
    many it gave up for want of neighbours that there are.
    """
    rows = np.load(docs, mmap_mode="r")
    document_method: DocumentMethod[Section] = METHODS.load(method, DocumentMethod)
    members = np.arange(len(rows))
    if part is not None:
        members, share = part.choose(rows, request.sequences)
        request = replace(request, sequences=share)
    near, searched = (None, 0) if neighbours is None else _read_neighbours(neighbours, rows, members)
    counts = rows["chunks"][members]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # (chunks of all members,), one document after the other, read a shard at a time; `firsts`: each shard's first document.
    firsts = np.searchsorted(schemas.shard_of(rows["first_chunk"]), np.arange(len(lengths) + 1))
    of_shards = [np.empty(0, np.int32)]
    for path, low, high in zip(lengths, *np.searchsorted(members, [firsts[:-1], firsts[1:]]), strict=True):
        of_shards.append(np.load(path)[schemas.row_of(chunk_ids_of(rows[members[low:high]]))])
    chunk_tokens: NDArray[Any] = np.concatenate(of_shards)
    del of_shards
    documents = CorpusArrays(
        content_hashes=rows["content_hash"][members],
        tokens=np.add.reduceat(chunk_tokens, offsets[:-1], dtype=np.int64) if len(members) else counts,
        chunk_offsets=offsets,
        chunk_tokens=chunk_tokens,
        neighbours=near,
        vectors=None if document_vectors is None else Vectors(document_vectors, members),
        keywords=None if keywords is None else read_keywords(keywords),
    )
    nothing = not len(members) or request.sequences == 0
    drafted = Drafted() if nothing else document_method.draft(documents, options, request)
    for number, first in enumerate(range(0, max(1, len(drafted.drafts)), _ROWS_PER_FILE)):
        with (
            pa.OSFile(f"{out}.{number:05d}.drafts.arrow", "wb") as sink,
            pa.ipc.new_file(sink, schemas.DRAFTS) as writer,
        ):
            for draft in drafted.drafts[first : first + _ROWS_PER_FILE]:
                row = _row(document_method, rows[members[draft.documents]], draft)
                writer.write_batch(pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS))
    return DraftResult(
        drafts=len(drafted.drafts),
        dropped={},
        limited=len(drafted.drafts) == request.sequences,
        # More neighbours make more and smaller partitions, which would starve more of them.
        starved=drafted.starved if part is None and searched < len(rows) - 1 else 0,
        near_duplicate_documents=drafted.near_duplicates,
        unshared_keywords=drafted.unshared_keywords,
        documents=None if part is None else len(members),
    )


def _read_neighbours(paths: Sequence[Path], rows: NDArray[Any], members: NDArray[np.int64]) -> tuple[Neighbours, int]:
    """Return the neighbours of those queries that are among `members`, and how many the queries had at most before.

    Ids become positions among the members, and neighbours that are no members are left out.
    """
    shards = schemas.shard_of(rows["first_chunk"])
    first_of_shard = np.searchsorted(shards, np.arange(shards.max(initial=0) + 2))
    place = np.full(len(rows), -1, np.int32)  # of each document among the members
    place[members] = np.arange(len(members))

    def places(ids: NDArray[np.int64]) -> Any:
        return place[first_of_shard[schemas.shard_of(ids)] + schemas.row_of(ids)]

    queries, counts, documents, cosines = ([np.empty(0, kind)] for kind in (np.int64, np.int64, np.int64, np.float32))
    searched = 0
    for path in paths:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                offsets = batch.column("neighbour_ids").offsets.to_numpy()
                query = places(batch.column("chunk_id").to_numpy())
                near = places(batch.column("neighbour_ids").values.to_numpy())
                of_query = np.repeat(np.arange(len(query)), np.diff(offsets))
                stays = (near >= 0) & (query[of_query] >= 0)
                queries.append(query[query >= 0])
                counts.append(np.bincount(of_query[stays], minlength=len(query))[query >= 0])
                documents.append(near[stays])
                cosines.append(batch.column("scores").values.to_numpy()[stays])
                searched = max(searched, int(np.diff(offsets).max(initial=0)))
    return Neighbours(
        queries=np.concatenate(queries),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        documents=np.concatenate(documents),
        cosines=np.concatenate(cosines),
    ), searched


def _row(method: DocumentMethod[Section], rows: NDArray[Any], draft: Draft) -> Json:
    """Return a DRAFTS row, of the META_DOCUMENTS `rows` of its documents: the chunks of each, or of its next part, in turn."""
    _, first_time, groups = np.unique(draft.documents, return_index=True, return_inverse=True)
    groups = np.argsort(np.argsort(first_time))[groups]  # numbered as they come up
    sizes = rows["chunks"] if draft.chunks is None else draft.chunks
    # `before` (parts,): how many chunks of its document stand before each part; `places` (chunks,): 0, 1, … within each part.
    by_group = np.argsort(groups, kind="stable")
    starts = np.cumsum(sizes[by_group]) - sizes[by_group]
    firsts = np.flatnonzero(np.diff(groups[by_group], prepend=-1))
    before = np.empty(len(groups), np.int64)
    before[by_group] = starts - np.repeat(starts[firsts], np.diff(firsts, append=len(groups)))
    places = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids = np.repeat(rows["first_chunk"] + before, sizes) + places
    scores = np.full(len(rows), np.nan, np.float32) if draft.scores is None else draft.scores.astype(np.float32)
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
    }
