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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.lookup import iter_chunk_texts, read_chunks
from nextlong.artifacts.results import DraftResult, LengthsResult
from nextlong.methods.base import DocumentMethod, Documents, Draft, Neighbours, Request, Vectors
from nextlong.methods.keywords import read_keywords
from nextlong.plugins import METHODS
from nextlong.recipe import Section
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
) -> DraftResult:
    """Draft all sequences of a method; writes `{out}.{n:05d}.drafts.arrow`, in draw order.

    The result says whether there may be more: `limited` if the method stopped at as many as were asked for, `starved` how
    many it gave up for want of neighbours that there are.
    """
    rows = np.load(docs)
    document_method: DocumentMethod[Section] = METHODS.load(method, DocumentMethod)
    documents = _documents(rows, lengths, neighbours, vectors, keywords)
    drafted = document_method.draft(documents, options, request)
    _write(out, document_method, rows, drafted.drafts)
    near = documents.neighbours
    searched = 0 if near is None else int(np.diff(near.offsets).max(initial=0))
    return DraftResult(
        drafts=len(drafted.drafts),
        dropped={},
        limited=len(drafted.drafts) == request.sequences,
        starved=drafted.starved if searched < len(rows) - 1 else 0,
        near_duplicate_documents=drafted.near_duplicates,
        unshared_keywords=drafted.unshared_keywords,
    )


def _documents(
    rows: NDArray[Any],
    lengths: Sequence[Path],
    neighbours: Sequence[Path] | None,
    vectors: Sequence[Path] | None,
    keywords: Sequence[Path] | None,
) -> Documents:
    chunk_tokens = np.concatenate([np.empty(0, np.int32), *(np.load(path) for path in lengths)])
    offsets = np.concatenate([[0], np.cumsum(rows["chunks"])])
    filled = np.concatenate([[0], np.cumsum(chunk_tokens, dtype=np.int64)])
    return Documents(
        content_hashes=rows["content_hash"],
        tokens=np.diff(filled[offsets]),
        chunk_offsets=offsets,
        chunk_tokens=chunk_tokens,
        neighbours=None if neighbours is None else _read_neighbours(neighbours, rows),
        vectors=None if vectors is None else Vectors(vectors),
        keywords=None if keywords is None else read_keywords(keywords),
    )


def _read_neighbours(paths: Sequence[Path], rows: NDArray[Any]) -> Neighbours:
    """Return the queries and their neighbours, ids turned into positions among the documents `rows`."""
    shards = schemas.shard_of(rows["first_chunk"])
    first_of_shard = np.searchsorted(shards, np.arange(shards.max(initial=0) + 2))

    def positions(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        document_positions: NDArray[np.int64] = first_of_shard[schemas.shard_of(ids)] + schemas.row_of(ids)
        return document_positions

    tables = []
    for path in paths:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            tables.append(reader.read_all())
    candidates = pa.concat_tables([pa.Table.from_batches([], schemas.CANDIDATES), *tables]).combine_chunks()
    lists = candidates.column("neighbour_ids").combine_chunks()
    return Neighbours(
        queries=positions(candidates.column("chunk_id").to_numpy()),
        offsets=lists.offsets.to_numpy().astype(np.int64),
        documents=positions(lists.values.to_numpy()),
        cosines=candidates.column("scores").combine_chunks().values.to_numpy(),
    )


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
