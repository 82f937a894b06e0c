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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.lookup import iter_chunk_texts, read_chunks
from nextlong.artifacts.results import DraftResult, LengthsResult
from nextlong.methods.base import DocumentMethod, Documents, Draft, Drafted, Neighbours, Request, Vectors
from nextlong.methods.keywords import read_keywords
from nextlong.methods.partition import Part
from nextlong.plugins import METHODS
from nextlong.recipe import Section
from nextlong.retrieval.sample import chunk_ids_of
from nextlong.sequences.encode import Engine, kept_encoder

_ROWS_PER_FILE = 64


def count_tokens(
    out: Path, *, documents: Path, chunks: Path, tokenizer: Path, engine: Engine, separator_tokens: int
) -> LengthsResult:
    """Write `{out}.lengths.npy` int32 (chunks,): the tokens of each chunk, with the separator that follows it, if any."""
    table, encoder = read_chunks(chunks), kept_encoder(tokenizer, engine)
    chars = int((table["end"] - table["start"]).sum())
    encoder.expect(chars)
    lengths = np.zeros(len(table["start"]), np.int32)
    for batch in iter_chunk_texts(documents, chunks):
        lengths[batch.rows] = encoder.encode_batch(batch.texts)[1]
    lengths += separator_tokens * separator_follows(table)
    np.save(f"{out}.lengths.npy", lengths)
    return LengthsResult(chars=chars, tokens=int(lengths.sum()))


def separator_follows(table: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return whether a separator follows each of the CHUNKS: its text neither ends in a newline nor goes on in the next one."""
    goes_on = (table["doc_row"][:-1] == table["doc_row"][1:]) & (table["end"][:-1] == table["start"][1:])
    follows: NDArray[np.bool_] = table["separator"] & ~np.append(goes_on, False)
    return follows


def draft_documents(
    out: Path,
    *,
    method: str,
    options: Section,
    docs: Path,
    lengths: Sequence[Path],
    neighbours: Sequence[Path] | None,
    vectors: Sequence[Path] | None,
    keywords: Sequence[Path] | None,
    request: Request,
    part: Part | None = None,
) -> DraftResult:
    """Draft all sequences of a method, or those of one part of the documents; writes `{out}.{n:05d}.drafts.arrow`, in draw order.

    The result says whether there may be more: `limited` if the method stopped at as many as were asked for, `starved` how
    many it gave up for want of neighbours that there are.
    """
    rows = np.load(docs)
    document_method: DocumentMethod[Section] = METHODS.load(method, DocumentMethod)
    members = np.arange(len(rows))
    if part is not None:
        members, share = part.choose(rows, request.sequences)
        request = replace(request, sequences=share)
    near, searched = (None, 0) if neighbours is None else _read_neighbours(neighbours, rows, members)
    documents = _documents(rows, members, lengths, near, vectors, keywords)
    nothing = not len(members) or request.sequences == 0
    drafted = Drafted() if nothing else document_method.draft(documents, options, request)
    _write(out, document_method, rows[members], drafted.drafts)
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


def _documents(
    rows: NDArray[Any],
    members: NDArray[np.int64],
    lengths: Sequence[Path],
    near: Neighbours | None,
    vectors: Sequence[Path] | None,
    keywords: Sequence[Path] | None,
) -> Documents:
    """Return the documents at the positions `members` of META_DOCUMENTS `rows`, ascending, and what is known of them."""
    counts = rows["chunks"][members]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    chunk_tokens = _tokens_of_chunks(rows, members, lengths)
    filled = np.concatenate([[0], np.cumsum(chunk_tokens, dtype=np.int64)])
    return Documents(
        content_hashes=rows["content_hash"][members],
        tokens=np.diff(filled[offsets]),
        chunk_offsets=offsets,
        chunk_tokens=chunk_tokens,
        neighbours=near,
        vectors=None if vectors is None else Vectors(vectors, members),
        keywords=None if keywords is None else read_keywords(keywords),
    )


def _tokens_of_chunks(rows: NDArray[Any], members: NDArray[np.int64], lengths: Sequence[Path]) -> NDArray[Any]:
    """Return the tokens of all chunks of the documents at the positions `members`, one after the other; a shard at a time."""
    firsts = np.searchsorted(schemas.shard_of(rows["first_chunk"]), np.arange(len(lengths) + 1))
    of_shards = [np.empty(0, np.int32)]
    for path, low, high in zip(lengths, *np.searchsorted(members, [firsts[:-1], firsts[1:]]), strict=True):
        of_shard = rows[members[low:high]]
        of_shards.append(np.load(path)[schemas.row_of(chunk_ids_of(of_shard))])
    return np.concatenate(of_shards)


def _read_neighbours(paths: Sequence[Path], rows: NDArray[Any], members: NDArray[np.int64]) -> tuple[Neighbours, int]:
    """Return the neighbours of those queries that are among `members`, and how many the queries had at most before.

    Ids become positions among the members, and neighbours that are no members are left out.
    """
    shards = schemas.shard_of(rows["first_chunk"])
    first_of_shard = np.searchsorted(shards, np.arange(shards.max(initial=0) + 2))
    place = np.full(len(rows), -1, np.int32)  # of each document among the members
    place[members] = np.arange(len(members))

    def places(ids: NDArray[np.int64]) -> NDArray[np.int32]:
        found: NDArray[np.int32] = place[first_of_shard[schemas.shard_of(ids)] + schemas.row_of(ids)]
        return found

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


def _write(out: Path, method: DocumentMethod[Section], rows: NDArray[Any], drafts: Sequence[Draft]) -> None:
    for number, first in enumerate(range(0, max(1, len(drafts)), _ROWS_PER_FILE)):
        path = f"{out}.{number:05d}.drafts.arrow"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
            for draft in drafts[first : first + _ROWS_PER_FILE]:
                writer.write_batch(pa.RecordBatch.from_pylist([_row(method, rows, draft)], schema=schemas.DRAFTS))


def _row(method: DocumentMethod[Section], rows: NDArray[Any], draft: Draft) -> schemas.DraftRow:
    """Return a DRAFTS row: each document's chunks, or those of its next part, one after the other."""
    documents, first_time, groups = np.unique(draft.documents, return_index=True, return_inverse=True)
    groups = np.argsort(np.argsort(first_time))[groups]  # numbered as they come up
    draft_rows = rows[draft.documents]
    sizes = draft_rows["chunks"] if draft.chunks is None else draft.chunks
    ids = np.repeat(draft_rows["first_chunk"] + _taken_before(groups, sizes), sizes) + _places(sizes)
    hashes = rows["content_hash"][documents[np.argsort(first_time)]]
    return {
        "sequence_id": f"{method.name}-{xxhash.xxh3_64_hexdigest(hashes.tobytes())}",
        "key": int(hashes[0]),
        "layout": method.layout.value,
        "chunk_id": ids,
        "role": np.full(len(ids), schemas.DOCUMENT, np.int8),
        "group": np.repeat(groups.astype(np.int32), sizes),
        "score": np.repeat(draft.scores.astype(np.float32), sizes),
        "near_duplicates": [],
    }


def _taken_before(groups: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many chunks of its document stand before each part, shape (parts,)."""
    by_group = np.argsort(groups, kind="stable")
    ends = np.cumsum(sizes[by_group])
    starts = ends - sizes[by_group]
    firsts = np.flatnonzero(np.diff(groups[by_group], prepend=-1))
    before = np.empty(len(groups), np.int64)
    before[by_group] = starts - np.repeat(starts[firsts], np.diff(firsts, append=len(groups)))
    return before


def _places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, … within each of several runs of the given sizes."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
