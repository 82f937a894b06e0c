"""Draft: say which chunks may stand in each sequence, counted in characters and generous.

In:  METAS and CANDIDATES of a block of meta-documents; E, the measured characters per token.
Out: DRAFTS, in draw order; then, by `refer`, the chunk rows of each shard that any chosen draft names.

Counting characters needs no tokenizer, so only the chunks that drafts name are ever tokenized, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.methods import nextlong
from nextlong.rng import rng_for
from nextlong.stages import gather
from nextlong.stages.fast_bpe import TextEncoder
from nextlong.stages.fit import TOO_LONG
from nextlong.stages.mine import chunk_ids_of
from nextlong.stages.resolve import Corpus


class Candidates(NamedTuple):
    """The candidates of one meta-document; one array a meta-chunk, descending by cosine."""

    ids: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]
    chars: list[NDArray[np.int64]]


def draft_block(
    out: Path,
    *,
    metas: Path,
    first: int,
    last: int,
    candidates: Path,
    documents: Sequence[Path],
    chunks: Sequence[Path],
    tokenizer: Path,
    target_tokens: int,
    chars_per_token: float,
    draft_factor: float,
    fit: Literal["exact", "paper"],
    max_chars: int,
    negatives: nextlong.Negatives,
    pool: int,
    vectors: Sequence[Path],
    seed: int,
) -> dict[str, Any]:
    """Draft the meta-documents [first, last); writes `{out}.drafts.arrow` and counts those that cannot fit."""
    drawn = np.load(metas)[first:last]
    rows = []
    own_counts = _count_tokens(drawn, Corpus(tuple(documents), tuple(chunks)), tokenizer)
    neighbourhoods = read_candidates(candidates, drawn["chunks"], chunks)
    for meta, own_tokens, retrieved in zip(drawn, own_counts, neighbourhoods, strict=True):
        if own_tokens >= target_tokens:
            continue
        # Its negatives are in its own language and style: where it takes fewer tokens than the mean, so do they.
        target_chars = target_tokens * max(chars_per_token, float(meta["chars"]) / max(1, own_tokens))
        rng = rng_for(seed, f"negatives.{negatives}", int(meta["content_hash"]))
        if negatives == "random-corpus":
            neighbours = _from_corpus(meta, retrieved, chunks, vectors, rng)
        elif negatives == "self-repeat":
            neighbours = _repeated(meta, chunks, drafted_chars=target_chars * draft_factor)
        else:
            neighbours = Candidates([], [], [])
            for ids, scores, chars in zip(*retrieved, strict=True):
                order = nextlong.order(len(ids), negatives=negatives, pool=pool, rng=rng)
                neighbours.ids.append(ids[order])
                neighbours.scores.append(scores[order])
                neighbours.chars.append(chars[order])
        prefixes = nextlong.draft(
            neighbours.ids,
            neighbours.chars,
            fit=fit,
            needed_chars=target_chars - float(meta["chars"]),
            drafted_chars=target_chars * draft_factor - float(meta["chars"]),
            negatives=nextlong.negatives_per_meta_chunk(
                target_tokens=target_tokens,
                chars_per_token=target_chars / target_tokens,
                draft_factor=draft_factor,
                document_chars=int(meta["chars"]),
                meta_chunks=int(meta["chunks"]),
                max_chars=max_chars,
            ),
        )
        rows.append(_draft_row(meta, neighbours, prefixes))
    with pa.OSFile(f"{out}.drafts.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
        for row in rows:
            writer.write_batch(pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS))
    return {"drafts": len(rows), "dropped": {TOO_LONG: len(drawn) - len(rows)}}


def read_candidates(
    candidates: Path, chunks_per_meta: NDArray[np.int64], chunks: Sequence[Path]
) -> Iterator[Candidates]:
    """Yield the candidates of each meta-document of a block, with their lengths in characters."""
    with pa.ipc.open_file(pa.memory_map(str(candidates))) as reader:
        table = reader.read_all()
    neighbours, scores = (table.column(name).combine_chunks() for name in ("neighbour_ids", "scores"))
    offsets, ids, values = neighbours.offsets.to_numpy(), neighbours.values.to_numpy(), scores.values.to_numpy()
    chars = gather.chunk_chars(ids, chunks) if len(ids) else ids
    query = 0
    for count in chunks_per_meta.tolist():
        pieces = [slice(offsets[q], offsets[q + 1]) for q in range(query, query + count)]
        yield Candidates([ids[p] for p in pieces], [values[p] for p in pieces], [chars[p] for p in pieces])
        query += count


def _count_tokens(drawn: NDArray[Any], corpus: Corpus, tokenizer: Path) -> list[int]:
    """Return how many tokens each drawn document has."""
    if not len(drawn):
        return []
    texts = corpus.texts(chunk_ids_of(drawn)).tolist()
    counts = _encoder(tokenizer).encode_batch(texts)[1]
    of_document: list[int] = np.add.reduceat(counts, np.cumsum(drawn["chunks"]) - drawn["chunks"]).tolist()
    return of_document


@lru_cache(maxsize=1)
def _encoder(tokenizer: Path) -> TextEncoder:
    return TextEncoder.from_file(tokenizer)


def _from_corpus(
    meta: NDArray[Any],
    retrieved: Candidates,
    chunks: Sequence[Path],
    vectors: Sequence[Path],
    rng: np.random.Generator,
) -> Candidates:
    """Return as many random chunks of other documents as were retrieved, with their true cosines."""
    counts = np.array([np.load(path, mmap_mode="r").shape[0] for path in vectors])
    first_of_shard = np.cumsum(counts) - counts
    own = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    queries_QD = gather.vectors(own, vectors)
    drawn = Candidates([], [], [])
    for query_D, like in zip(queries_QD, retrieved.ids, strict=True):
        places = rng.permutation(int(counts.sum()))[: len(like) + len(own)]
        shards = np.searchsorted(first_of_shard, places, side="right") - 1
        ids = shards << schemas.SHARD_BITS | (places - first_of_shard[shards])
        ids = ids[~np.isin(ids, own)][: len(like)]
        drawn.ids.append(ids)
        drawn.scores.append((gather.vectors(ids, vectors) @ query_D).astype(np.float32))
        drawn.chars.append(gather.chunk_chars(ids, chunks))
    return drawn


def _repeated(meta: NDArray[Any], chunks: Sequence[Path], *, drafted_chars: float) -> Candidates:
    """Return each meta-chunk as its own negative, often enough."""
    own = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    chars = gather.chunk_chars(own, chunks)
    times = np.ceil(drafted_chars / len(own) / np.maximum(chars, 1)).astype(np.int64) + 1
    return Candidates(
        [np.full(n, chunk) for chunk, n in zip(own, times, strict=True)],
        [np.ones(n, np.float32) for n in times],
        [np.full(n, size) for size, n in zip(chars, times, strict=True)],
    )


def _draft_row(meta: NDArray[Any], neighbours: Candidates, prefixes: list[int]) -> dict[str, Any]:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    ids, roles, groups, scores = [], [], [], []
    for group, length in enumerate(prefixes):
        ids += [np.array([int(meta["first_chunk"]) + group]), neighbours.ids[group][:length]]
        scores += [np.array([1.0], np.float32), neighbours.scores[group][:length]]
        roles += [np.array([schemas.META], np.int8), np.full(length, schemas.NEGATIVE, np.int8)]
        groups.append(np.full(length + 1, group, np.int32))
    return {
        "sequence_id": f"nextlong-{int(meta['content_hash']):016x}",
        "chunk_id": np.concatenate(ids),
        "role": np.concatenate(roles),
        "group": np.concatenate(groups),
        "score": np.concatenate(scores),
    }


def refer(out: Path, *, drafts: Sequence[Path], chunks: Sequence[Path], limit: int | None) -> dict[str, Any]:
    """Choose the first `limit` drafts and list the chunks they name; writes `{out}.{shard}.rows.npy`, sorted, per shard.

    `take` in the counts says how many drafts of each file are chosen. Memory: one byte a chunk.
    """
    named = [np.zeros(_chunk_count(path), np.bool_) for path in chunks]
    take, left = [], limit
    for path in drafts:
        taken = 0
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches if left is None else min(left, reader.num_record_batches)):
                ids = np.unique(reader.get_batch(number).column("chunk_id").values.to_numpy())
                for shard in np.unique(schemas.shard_of(ids)).tolist():
                    named[shard][schemas.row_of(ids[schemas.shard_of(ids) == shard])] = True
                taken += 1
        take.append(taken)
        left = None if left is None else left - taken
    for shard, rows in enumerate(named):
        np.save(f"{out}.{shard:05d}.rows.npy", np.flatnonzero(rows))
    return {"take": take, "drafts": sum(take), "chunks": sum(int(rows.sum()) for rows in named)}


def _chunk_count(chunks: Path) -> int:
    with pa.ipc.open_file(pa.memory_map(str(chunks))) as reader:
        return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
