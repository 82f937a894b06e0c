"""Candidates: which chunks each meta-chunk may take as negatives, and in what order.

In:  CANDIDATES of a block of meta-documents, and the recipe's choice of negatives (the paper's ablation, §4.4).
Out: for each meta-document one list a meta-chunk; drafting takes a prefix of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.flat_npy import opened
from nextlong.methods.nextlong import rules
from nextlong.recipe.negatives import NegativeChoice


class Candidates(NamedTuple):
    """The candidates of one meta-document; one array a meta-chunk, in the order in which drafts take them."""

    ids: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]
    chars: list[NDArray[np.int64]]

    def emptied(self, masks: Sequence[NDArray[np.bool_]]) -> Candidates:
        """Return the same with 0 characters for those, a mask for each meta-chunk, which will not serve."""
        return self._replace(chars=[np.where(mask, 0, chars) for mask, chars in zip(masks, self.chars, strict=True)])

    def picked(self, picks: Sequence[NDArray[Any]]) -> Candidates:
        """Return those that `picks`, places or a mask for each meta-chunk, choose."""
        return Candidates(
            [ids[pick] for ids, pick in zip(self.ids, picks, strict=True)],
            [scores[pick] for scores, pick in zip(self.scores, picks, strict=True)],
            [chars[pick] for chars, pick in zip(self.chars, picks, strict=True)],
        )


def ordered_candidates(
    meta: NDArray[Any],
    retrieved: Candidates,
    *,
    negatives: NegativeChoice,
    pool: int,
    max_similarity: float | None,
    drafted_chars: float,
    chunks: Sequence[Path],
    vectors: Sequence[Path],
    rng: np.random.Generator,
) -> Candidates:
    """Return the candidates of the meta-chunks of a META_DOCUMENTS row, in order; none scores above `max_similarity`."""
    if negatives.repeat_meta_chunk:
        return _repeated(meta, chunks, drafted_chars=drafted_chars)
    if negatives.origin == "corpus":
        retrieved = _from_corpus(meta, retrieved, chunks, vectors, rng)
    if max_similarity is not None:
        retrieved = retrieved.picked([scores <= max_similarity for scores in retrieved.scores])
    if negatives.origin == "corpus":
        return retrieved
    orders = [rules.order(len(ids), by=negatives.order, pool=pool, rng=rng) for ids in retrieved.ids]
    return retrieved.picked(orders)


def read_candidates(
    candidates: Path, chunks_per_meta: NDArray[np.int64], chunks: Sequence[Path]
) -> Iterator[Candidates]:
    """Yield the candidates of each meta-document of a block, with their lengths in characters."""
    with pa.ipc.open_file(pa.memory_map(str(candidates))) as reader:
        table = reader.read_all()
    neighbours, scores = (table.column(name).combine_chunks() for name in ("neighbour_ids", "scores"))
    offsets, ids, values = neighbours.offsets.to_numpy(), neighbours.values.to_numpy(), scores.values.to_numpy()
    chars = lookup.chunk_chars(ids, chunks) if len(ids) else ids
    query = 0
    for count in chunks_per_meta.tolist():
        pieces = [slice(offsets[q], offsets[q + 1]) for q in range(query, query + count)]
        yield Candidates([ids[p] for p in pieces], [values[p] for p in pieces], [chars[p] for p in pieces])
        query += count


def _from_corpus(
    meta: NDArray[Any],
    retrieved: Candidates,
    chunks: Sequence[Path],
    vectors: Sequence[Path],
    rng: np.random.Generator,
) -> Candidates:
    """Return as many random chunks of other documents as were retrieved, with their true cosines."""
    counts = np.array([opened(path).shape[0] for path in vectors])
    first_of_shard = np.cumsum(counts) - counts
    own_chunks = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    queries_QD = lookup.vectors(own_chunks, vectors)
    drawn = Candidates([], [], [])
    for query_D, like in zip(queries_QD, retrieved.ids, strict=True):
        places = rng.permutation(int(counts.sum()))[: len(like) + len(own_chunks)]
        shards = np.searchsorted(first_of_shard, places, side="right") - 1
        ids = shards << schemas.SHARD_BITS | (places - first_of_shard[shards])
        ids = ids[~np.isin(ids, own_chunks)][: len(like)]
        drawn.ids.append(ids)
        drawn.scores.append((lookup.vectors(ids, vectors) @ query_D).astype(np.float32))
        drawn.chars.append(lookup.chunk_chars(ids, chunks))
    return drawn


def _repeated(meta: NDArray[Any], chunks: Sequence[Path], *, drafted_chars: float) -> Candidates:
    """Return each meta-chunk as its own negative, often enough."""
    own_chunks = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    chars = lookup.chunk_chars(own_chunks, chunks)
    times = np.ceil(drafted_chars / len(own_chunks) / np.maximum(chars, 1)).astype(np.int64) + 1
    return Candidates(
        [np.full(n, chunk) for chunk, n in zip(own_chunks, times, strict=True)],
        [np.ones(n, np.float32) for n in times],
        [np.full(n, size) for size, n in zip(chars, times, strict=True)],
    )
