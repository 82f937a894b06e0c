"""NExtLong: a document's chunks, and between them the chunks of other documents most similar to them (arXiv 2501.12766).

In:  a meta-document's chunks and, for each, its candidates in descending order of cosine (CANDIDATES), and the recipe's choice
     of negatives (the paper's ablation, §4.4).
Out: for each meta-chunk its candidates in the order in which they serve, and how long a prefix of them a draft takes.

A draft does not decide which candidate goes where; it has some to spare. Composing walks each prefix in order and skips what an
earlier meta-chunk has used, so that the negatives of a sequence are exactly the nearest that were still free. Here are the
method and the paper's formulas; `extend.py` drafts with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import opened
from nextlong.engine.step import Step
from nextlong.methods.base import Need
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import NegativeChoice
from nextlong.schemas import Layout


class Nextlong:
    """Negative Document Extension. Its options are the sections `mine` and `compose` of the recipe."""

    name = "nextlong"
    Options: type[Section] = Section
    layout = Layout.EXTENDED
    needs = frozenset({Need.CHUNK_NEIGHBOURS})
    scores = "their meta-chunk"

    def describe(self, options: Section) -> str:  # noqa: ARG002
        """Return the name."""
        return self.name

    def repeats_documents(self, options: Section) -> bool:  # noqa: ARG002
        """Say that each meta-document makes one sequence."""
        return False

    def steps(self, recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
        """Return the steps from the chunks to the drafts."""
        from nextlong.methods.extend import extension_steps  # what searches is not loaded to read a recipe

        return extension_steps(recipe, ingest, chunk, tokenizer, attempt=attempt)


METHOD = Nextlong()


def negatives_per_meta_chunk(
    *,
    target_tokens: int,
    chars_per_token: float,
    draft_factor: float,
    document_chars: int,
    meta_chunks: int,
    max_chars: int,
) -> int:
    """Return k = (Q − S) / (p·s) with Q = T·E·w, rounded up, at least 1 (paper §3.1.2)."""
    drafted_chars = target_tokens * chars_per_token * draft_factor
    return max(1, math.ceil((drafted_chars - document_chars) / (meta_chunks * max_chars)))


def draft_prefixes(
    candidate_ids: Sequence[NDArray[np.int64]],
    candidate_chars: Sequence[NDArray[np.int64]],
    *,
    fit: Literal["exact", "paper"],
    needed_chars: float,
    drafted_chars: float,
    negatives: int,
) -> list[int]:
    """Return how long a prefix of each meta-chunk's candidates the draft takes.

    `fit="paper"`: as long as it holds `negatives` that no earlier meta-chunk has taken. `"exact"`: as long as it holds
    `drafted_chars / p` characters besides what earlier meta-chunks will presumably use, which is their first
    `needed_chars / p`. A prefix is the whole list where the candidates run out. A candidate of 0 characters will not serve.
    """
    # A chunk is a number in [0, d) among the d distinct candidates, so that those taken are a mask (d,).
    distinct, numbers = np.unique(np.concatenate(candidate_ids), return_inverse=True)
    firsts = np.cumsum([len(ids) for ids in candidate_ids])[:-1]
    is_taken = np.zeros(len(distinct), np.bool_)
    lengths = []
    for ids, chars in zip(np.split(numbers, firsts), candidate_chars, strict=True):
        free = ~is_taken[ids] & (chars > 0)
        if fit == "paper":
            filled, enough, used = np.cumsum(free), negatives, negatives
        else:
            filled = np.cumsum(chars * free)
            enough, used = math.ceil(drafted_chars / len(candidate_ids)), math.ceil(needed_chars / len(candidate_ids))
        lengths.append(min(len(ids), int(np.searchsorted(filled, enough)) + 1))
        is_taken[ids[: int(np.searchsorted(filled, used)) + 1]] = True
    return lengths


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
    reorder_top: int,
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
    # The nearest first; or the `reorder_top` nearest in random order, or the farthest of these first (the paper's ablation,
    # §4.4). The others follow, nearest first, for sequences that need more.
    orders = []
    for ids in retrieved.ids:
        places = np.arange(len(ids))
        nearest, others = places[:reorder_top], places[reorder_top:]
        if negatives.order == "random":
            nearest = rng.permutation(nearest)
        elif negatives.order == "farthest":
            nearest = nearest[::-1]
        orders.append(np.concatenate([nearest, others]))
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
    meta: NDArray[Any], retrieved: Candidates, chunks: Sequence[Path], vectors: Sequence[Path], rng: np.random.Generator
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
