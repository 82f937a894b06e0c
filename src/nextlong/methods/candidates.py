"""Candidates: the negatives that a draft may take, in order, and how many it takes.

In:  CANDIDATES of a block of meta-documents, as mining found them.
Out: the candidates of each meta-chunk in the order of `compose.negatives`, and the
     length of the prefix that a draft takes of them (paper §3.1.2).

Candidates are counted in characters, so only the chunks that drafts refer to are ever
tokenized.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.artifacts import corpus_files
from nextlong.recipe.keys import NEGATIVES, Compose, Mine
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.rng import rng_for

_Ids = NDArray[np.int64]
_Paths = Sequence[Path]


class Drafting(NamedTuple):
    """The settings that all drafts of a run share."""

    compose: Compose
    mine: Mine
    target_tokens: int
    chars_per_token: float  # of the corpus
    max_chars: int  # of a chunk
    candidates: int  # searched for, for each meta-chunk
    seed: int


class Candidates(NamedTuple):
    """The candidates of a meta-document, in the order in which drafts take them.

    One array for each meta-chunk.
    """

    ids: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]
    chars: list[NDArray[np.int64]]

    def picked(self, picks: Sequence[NDArray[Any]]) -> Candidates:
        """Return the selected candidates: positions or a mask for each meta-chunk."""
        return Candidates(
            ids=[own[pick] for own, pick in zip(self.ids, picks, strict=True)],
            scores=[own[pick] for own, pick in zip(self.scores, picks, strict=True)],
            chars=[own[pick] for own, pick in zip(self.chars, picks, strict=True)],
        )


class Prefixes(NamedTuple):
    """The prefixes of the candidates that a draft takes, one for each meta-chunk."""

    lengths: list[int]
    ran_out: list[bool]  # whether the candidates ended before the prefix was full


def read_candidates(
    path: Path, chunks_per_meta: _Ids, chunks: _Paths
) -> Iterator[Candidates]:
    """Yield the candidates of each meta-document of a block.

    CANDIDATES has a row for each meta-chunk, in the order of the meta-documents.
    """
    mapped = pa.memory_map(str(path))
    with pa.ipc.open_file(mapped) as reader:
        table = reader.read_all()
    neighbours = table.column("neighbour_ids").combine_chunks()
    offsets = neighbours.offsets.to_numpy()
    ids = neighbours.values.to_numpy()
    scores = table.column("scores").combine_chunks().values.to_numpy()
    chars = corpus_files.chunk_chars(ids, chunks) if len(ids) else ids
    first = 0
    for count in chunks_per_meta.tolist():
        bounds = offsets[first : first + count + 1]
        pieces = [slice(start, stop) for start, stop in pairwise(bounds)]
        yield Candidates(
            ids=[ids[piece] for piece in pieces],
            scores=[scores[piece] for piece in pieces],
            chars=[chars[piece] for piece in pieces],
        )
        first += count


def ordered_candidates(
    meta: NDArray[Any],
    retrieved: Candidates,
    rules: Drafting,
    target_chars: float,
    chunks: _Paths,
    vectors: _Paths,
) -> Candidates:
    """Return the candidates of each meta-chunk in the order of `compose.negatives`.

    None is above `mine.max_similarity`.
    """
    negatives = NEGATIVES[rules.compose.negatives]
    stage = f"negatives.{rules.compose.negatives}"
    rng = rng_for(rules.seed, stage, int(meta["content_hash"]))
    own_chunks = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    if negatives.origin == "meta-chunk":
        drafted_chars = target_chars * rules.compose.draft_factor
        return _repeated(own_chunks, chunks, drafted_chars=drafted_chars)
    if negatives.origin == "corpus":
        counts = list(map(len, retrieved.ids))
        retrieved = _drawn(own_chunks, counts, rng, chunks, vectors)
    max_similarity = rules.mine.max_similarity
    if max_similarity is not None:
        is_below = [scores <= max_similarity for scores in retrieved.scores]
        retrieved = retrieved.picked(is_below)
    if negatives.order == "nearest" or negatives.origin == "corpus":
        return retrieved

    # The `mine.reorder_top` nearest in random order, or the farthest of these first
    # (the paper's ablation, §4.4). The others follow, nearest first, for sequences that
    # need more.
    orders = []
    for ids in retrieved.ids:
        nearest = np.arange(min(rules.mine.reorder_top, len(ids)))
        others = np.arange(len(nearest), len(ids))
        if negatives.order == "random":
            reordered = rng.permutation(nearest)
        else:
            reordered = nearest[::-1]
        orders.append(np.append(reordered, others))
    return retrieved.picked(orders)


def _repeated(own_chunks: _Ids, chunks: _Paths, *, drafted_chars: float) -> Candidates:
    """Return each meta-chunk as its own negative, as often as the draft needs."""
    sizes = corpus_files.chunk_chars(own_chunks, chunks)
    chars_per_meta_chunk = drafted_chars / len(own_chunks)
    times = np.ceil(chars_per_meta_chunk / np.maximum(sizes, 1)).astype(np.int64) + 1
    repeated = Candidates([], [], [])
    for chunk, size, count in zip(own_chunks, sizes, times, strict=True):
        repeated.ids.append(np.full(count, chunk))
        repeated.scores.append(np.ones(count, np.float32))
        repeated.chars.append(np.full(count, size))
    return repeated


def _drawn(
    own_chunks: _Ids,
    counts: Sequence[int],
    rng: np.random.Generator,
    chunks: _Paths,
    vectors: _Paths,
) -> Candidates:
    """Return random chunks of other documents, with their cosines.

    As many for each meta-chunk as were retrieved.
    """
    shards = VectorShards(vectors)
    corpus_chunks = sum(shards.rows)
    drawn = Candidates([], [], [])
    queries_PD = corpus_files.vectors(own_chunks, vectors)
    for query_D, count in zip(queries_PD, counts, strict=True):
        # Enough that as many remain without the document's own.
        positions = rng.permutation(corpus_chunks)[: count + len(own_chunks)]
        ids = shards.ids_at(positions)
        ids = ids[~np.isin(ids, own_chunks)][:count]
        cosines = corpus_files.vectors(ids, vectors) @ query_D
        drawn.ids.append(ids)
        drawn.scores.append(cosines.astype(np.float32))
        drawn.chars.append(corpus_files.chunk_chars(ids, chunks))
    return drawn


def draft_prefixes(
    candidates: Candidates,
    rules: Drafting,
    *,
    target_chars: float,
    document_chars: int,
) -> Prefixes:
    """Return the prefixes of the candidates that the draft takes.

    For a document of S characters in p meta-chunks, under `fit="paper"`: so long that
    it holds k = (Q − S) / (p·s) negatives that no earlier meta-chunk has taken, with Q
    = T·E·w (paper §3.1.2), rounded up, at least 1. Under `"exact"`: so long that it
    holds (Q − S) / p characters beyond those that earlier meta-chunks will probably
    use, their first (T·E − S) / p. Candidates of 0 characters are not counted.
    """
    meta_chunks = len(candidates.ids)
    is_paper = rules.compose.fit == "paper"
    needed_chars = target_chars - document_chars
    drafted_chars = target_chars * rules.compose.draft_factor - document_chars
    # `enough` fill a prefix, of which a sequence uses the first `used`: negatives for
    # the paper, else characters.
    if is_paper:
        enough = max(1, math.ceil(drafted_chars / (meta_chunks * rules.max_chars)))
        used = enough
    else:
        enough = math.ceil(drafted_chars / meta_chunks)
        used = math.ceil(needed_chars / meta_chunks)

    # Number the d distinct candidates, so that the set of taken chunks is a mask, (d,).
    distinct, numbers = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    sizes = [len(ids) for ids in candidates.ids]
    numbers_of_metas = np.split(numbers, np.cumsum(sizes)[:-1])
    is_taken = np.zeros(len(distinct), np.bool_)
    lengths: list[int] = []
    ran_out: list[bool] = []
    for ids, chars in zip(numbers_of_metas, candidates.chars, strict=True):
        is_free = ~is_taken[ids] & (chars > 0)
        filled = np.cumsum(is_free if is_paper else chars * is_free)
        full_length = int(np.searchsorted(filled, enough)) + 1
        lengths.append(min(len(ids), full_length))
        ran_out.append(full_length > len(ids))
        used_length = int(np.searchsorted(filled, used)) + 1
        is_taken[ids[:used_length]] = True
    return Prefixes(lengths, ran_out)
