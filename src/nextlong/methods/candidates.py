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
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nextlong.arrays import AnyArray, Floats, Ints
from nextlong.artifacts import corpus_files
from nextlong.recipe.keys import NEGATIVES, Compose, Mine
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.rng import rng_for

_Ids = Ints
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

    ids: list[Ints]
    scores: list[Floats]
    chars: list[Ints]

    def picked(self, picks: Sequence[AnyArray]) -> Candidates:
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
    meta: AnyArray,
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
    counts = list(map(len, retrieved.ids))
    if negatives.origin == "meta-chunk":
        drafted_chars = target_chars * rules.compose.draft_factor
        return _repeated(own_chunks, chunks, drafted_chars=drafted_chars)
    retrieved = _without_too_similar(retrieved, rules)
    if negatives.order == "nearest":
        return retrieved
    if negatives.origin in ("corpus", "both"):
        drawn = _drawn(own_chunks, counts, rng, chunks, vectors)
        drawn = _without_too_similar(drawn, rules)
        if negatives.origin == "corpus":
            return drawn
        needed_chars = target_chars - int(meta["chars"])
        return mixed(
            retrieved,
            drawn,
            rng,
            hard_share=rules.compose.hard_share,
            used_chars=needed_chars / len(own_chunks),
        )

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


def _without_too_similar(candidates: Candidates, rules: Drafting) -> Candidates:
    """Return the candidates that are not above `mine.max_similarity`."""
    max_similarity = rules.mine.max_similarity
    if max_similarity is None:
        return candidates
    is_below = [scores <= max_similarity for scores in candidates.scores]
    return candidates.picked(is_below)


def mixed(
    retrieved: Candidates,
    drawn: Candidates,
    rng: np.random.Generator,
    *,
    hard_share: float,
    used_chars: float,
) -> Candidates:
    """Return candidates that are each hard with probability `hard_share`, else random.

    Hard ones are the nearest of `retrieved`, random ones the first of `drawn` that are
    not hard; each list has as many as were retrieved. A sequence will use about
    `used_chars` characters of each list, and uses a chunk once. Consecutive meta-chunks
    have many hard candidates in common, so later lists omit what earlier ones will
    probably use: if composing skipped these instead, too few negatives would be hard.
    """
    merged = Candidates([], [], [])
    probably_used = np.empty(0, np.int64)
    for group, hard_ids in enumerate(retrieved.ids):
        drawn_ids = drawn.ids[group]
        # (n,) for each place in the list.
        is_hard = rng.random(len(hard_ids)) < hard_share
        hard = np.flatnonzero(~np.isin(hard_ids, probably_used))
        hard = hard[: int(is_hard.sum())]
        is_excluded = np.isin(drawn_ids, hard_ids[hard])
        is_excluded |= np.isin(drawn_ids, probably_used)
        random = np.flatnonzero(~is_excluded)
        random = random[: int((~is_hard).sum())]

        # The k-th hard candidate goes to the k-th hard place.
        hard_places = np.flatnonzero(is_hard)[: len(hard)]
        random_places = np.flatnonzero(~is_hard)[: len(random)]
        order = np.argsort(np.append(hard_places, random_places))
        ids = np.append(hard_ids[hard], drawn_ids[random])
        scores = np.append(retrieved.scores[group][hard], drawn.scores[group][random])
        chars = np.append(retrieved.chars[group][hard], drawn.chars[group][random])
        merged.ids.append(ids[order])
        merged.scores.append(scores[order])
        merged.chars.append(chars[order])

        filled = np.cumsum(merged.chars[-1])
        used_length = int(np.searchsorted(filled, used_chars)) + 1
        used = merged.ids[-1][:used_length]
        probably_used = np.append(probably_used, used)
    return merged


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
