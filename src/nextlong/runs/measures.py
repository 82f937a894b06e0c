"""Measures: parts of a run's statistics that need more than its spans.

In:  a run, and counts over its sequences. Out: reuse of chunks, tokens cut off at sequence ends, lengths of documents, costs,
the cosine of random chunks; which sequences of several runs are about the same document; attention work and left contexts.

Attention work is that of the busiest context-parallel rank over the mean (1 is even; a step takes that much longer). A row is cut
into 2n slices, and rank r of n takes slices r and 2n − 1 − r (head-tail balancing, as torch, Megatron-LM and Transformer Engine
do). One document a row is even; document masks make the ranks uneven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import special_ids
from nextlong.methods.documents import separator_follows
from nextlong.runs import spans
from nextlong.runs.run import Run
from nextlong.runs.spans import COSINE_UNIT, Bin, Spread, Tally

_RANDOM_CHUNKS: Final = (
    500  # whose pairs are the baseline of cosines: the mean is exact to about 0.005
)
_SAMPLED_SHARDS: Final = 48
_HUBS: Final = 10
_CANDIDATES: Final = (
    200  # documents of the first run that are looked for in the others …
)
_LOOKED_AT: Final = 4000  # … among this many of their sequences
OVERUSED: Final = (
    16  # uses of a chunk beyond which it teaches hardly anything (docs/warnings.md)
)

RANKS: Final = (2, 4, 8)
_BUCKETS: Final = 40
# (_BUCKETS + 1,) the first left context of each bucket: 1, 8, 16, 32 …
_EDGES: Final = np.concatenate([[1], 8 << np.arange(_BUCKETS, dtype=np.int64)])


@dataclass(frozen=True)
class _Uses:
    """`chunks` chunks were used between `least` and `most` times."""

    least: int
    most: int
    chunks: int


@dataclass(frozen=True)
class Hub:
    """A chunk that many sequences share, and its document; `ordinal` is its place in the document, from 1."""

    chunk_id: int
    source_id: str
    ordinal: int
    uses: int


@dataclass(frozen=True)
class Reuse:
    """How often a chunk is used, other than as a meta-chunk; `overused_share` of the uses are of chunks used over 16 times."""

    distinct_chunks: int
    mean: float | None
    max: int | None
    overused_share: float | None
    histogram: tuple[_Uses, ...]
    hubs: tuple[Hub, ...]


@dataclass(frozen=True)
class CutOff:
    """`tokens` of the `of_tokens` of the documents in sequences are cut off; a document counts once per sequence."""

    tokens: int
    of_tokens: int


@dataclass(frozen=True)
class StepCost:
    """What a step of the run took: seconds, bytes on disk, and the peak memory of its largest task where it was measured."""

    step: str
    seconds: float
    bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class RankWork:
    """The mean and the largest imbalance over all rows, for a mask and a number of context-parallel ranks."""

    mask: str
    ranks: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Exposure:
    """The targets by effective left context under a mask: `sequence`, or `document` where sequences hold several."""

    mask: str
    targets: int
    mean: float  # tokens
    histogram: tuple[Bin, ...]


def measure_reuse(run: Run, counted: Tally) -> Reuse:
    """Return how often the chunks of a run are used, from the count of each."""
    chunk_ids, uses = counted.counted()
    if not len(uses):
        return Reuse(0, None, None, None, (), ())
    # Uses 1, 2, 3-4, 5-8 …: bins that double.
    edges = [
        0,
        *(1 << power for power in range(max(0, int(uses.max()) - 1).bit_length() + 1)),
    ]
    histogram = tuple(
        _Uses(low + 1, high, int(((uses > low) & (uses <= high)).sum()))
        for low, high in pairwise(edges)
    )
    overused = float(uses[uses > OVERUSED].sum() / uses.sum())
    # The last key sorts first: the most used chunks, and of equally used ones those with the lowest ids.
    top = np.lexsort((chunk_ids, -uses))[:_HUBS]
    top = top[uses[top] > 1]
    ids, of_corpus = (
        chunk_ids[top],
        {"documents": run.corpus.documents, "chunks": run.corpus.chunks},
    )
    names = lookup.chunk_names(ids, **of_corpus) if len(top) else []
    each = zip(ids.tolist(), names, uses[top].tolist(), strict=True)
    hubs = tuple(Hub(chunk_id, *name, count) for chunk_id, name, count in each)
    return Reuse(
        len(uses), float(uses.mean()), int(uses.max()), overused, histogram, hubs
    )


def measure_cut_off(run: Run, taken: Tally, *, tokens: int) -> CutOff | None:
    """Return what is cut off where `tokens` tokens of the documents `taken` are in sequences; None if the method counted none."""
    doc_ids, uses = taken.counted()
    if "lengths" not in run.steps or not len(doc_ids):
        return None
    lengths, separator_tokens = (
        run.steps["lengths"].files(".lengths.npy"),
        len(special_ids(run.steps).separator),
    )
    shards, back = lookup.by_shard(doc_ids)
    document_tokens = []
    for shard, rows in shards:
        # The lengths hold each chunk's tokens (chunks,) with the separator behind it, which is no text of the document.
        table = lookup.read_chunks(run.corpus.chunks[shard])
        chunk_tokens = np.load(lengths[shard]) - separator_tokens * separator_follows(
            table
        )
        document_tokens.append(
            np.bincount(table["doc_row"], weights=chunk_tokens)[rows]
        )
    of_tokens = int(np.concatenate(document_tokens)[back] @ uses)
    return CutOff(of_tokens - tokens, of_tokens)


def corpus_chars(run: Run) -> tuple[Tally, dict[str, int]]:
    """Count the characters of every document's chunks, and those of each source, the largest first; a shard at a time."""
    lengths, of_source = Tally(), Counter[str]()
    for shard, path in enumerate(run.corpus.chunks):
        columns = lookup.read_chunks(path, ("doc_row", "start", "end"))
        rows, chars = columns["doc_row"], columns["end"] - columns["start"]
        if len(rows):
            # The chunks of a document are consecutive, so each new row of the documents begins a document.
            lengths.add(
                np.add.reduceat(
                    chars, np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))
                )
            )
            first = schemas.pack_ids(
                shard, rows[:1]
            )  # the documents of a shard are of one source
            (names,) = lookup.document_columns(first, run.corpus.documents, ("source",))
            of_source[str(names[0])] += int(chars.sum())
    return lengths, largest_first(of_source)


def largest_first(counts: Counter[str]) -> dict[str, int]:
    """Return counts, the largest first, equal ones by name."""
    return dict(Counter(dict(sorted(counts.items()))).most_common())


def sample_chunks(run: Run, most: int) -> NDArray[np.int64]:
    """Return the sorted ids of about `most` chunks, shape (n,), from at most 48 evenly spaced shards."""
    shards = np.unique(
        np.linspace(
            0, len(run.corpus.chunks) - 1, min(_SAMPLED_SHARDS, len(run.corpus.chunks))
        )
    )
    rng = np.random.default_rng(0)
    ids = []
    for shard in shards.astype(int).tolist():
        count = len(
            lookup.read_chunks(run.corpus.chunks[shard], ("doc_row",))["doc_row"]
        )
        rows = rng.choice(count, min(count, -(-most // len(shards))), replace=False)
        ids.append(schemas.pack_ids(shard, np.sort(rows)))
    return np.concatenate(ids)


def has_every_vector(run: Run) -> bool:
    """Say whether the run embedded its chunks, and all of them: with a shortlist, the vectors of most are zero."""
    return "embed" in run.steps and "shortlist" not in run.steps


def measure_random_similarity(run: Run) -> Spread | None:
    """Return the cosines of all pairs of 500 sampled chunks of different documents; None unless the run embedded all chunks."""
    if not has_every_vector(run):
        return None
    ids = sample_chunks(run, _RANDOM_CHUNKS)
    # (n, dimensions) float64, so that sums of any order round to the same multiple of COSINE_UNIT.
    vectors = lookup.vectors(ids, run.steps["embed"].files(".vectors.npy")).astype(
        np.float64
    )
    documents = lookup.documents_of(ids, run.corpus.chunks)
    # Every pair once, (n · (n − 1) / 2,). Chunks of one document are similar, so such pairs are no baseline.
    one, other = np.triu_indices(len(ids), 1)
    is_pair = documents[one] != documents[other]
    products = (vectors @ vectors.T)[one[is_pair], other[is_pair]]
    cosines = Tally()
    # Rounding to float16 makes some vectors longer than 1.
    cosines.add(np.rint(products.clip(-1, 1) / COSINE_UNIT).astype(np.int64))
    return cosines.spread(unit=COSINE_UNIT)


def common_document(runs: Sequence[Run]) -> tuple[int, dict[int, int]] | None:
    """Return the document that most runs have a sequence about (or hold), and that sequence's number by place of the run.

    None if they do not share their documents, or no two have a sequence about the same one.
    """
    corpora = [run.steps["ingest"].manifest["fingerprint"] for run in runs]
    alike = [
        place
        for place, run in enumerate(runs)
        if corpora[place] == corpora[0] and len(run)
    ]
    if len(alike) < 2:
        return None
    sequences_of = {place: _first_about(runs[place]) for place in alike}
    base = min(alike, key=lambda place: len(sequences_of[place]))
    # The document that most runs share; among equals, that of the earliest sequence of `base`, in whose order they are.
    candidates = list(sequences_of[base])[:_CANDIDATES]
    best = max(
        candidates,
        key=lambda doc: sum(doc in first_of for first_of in sequences_of.values()),
    )
    numbers = {
        place: first_of[best]
        for place, first_of in sequences_of.items()
        if best in first_of
    }
    return (best, numbers) if len(numbers) > 1 else None


def _first_about(run: Run) -> dict[int, int]:
    """Return the number of the first sequence about each document, by doc_id, in the order of the sequences."""
    firsts: dict[int, int] = {}
    number = 0
    for path, take in zip(
        run.steps["compose"].files(".sequences.arrow"),
        run.sequences_per_part,
        strict=True,
    ):
        for block in spans.read_blocks(
            path, min(take, _LOOKED_AT - number), run.corpus
        ):
            subject = block.of(*spans.ABOUT_ROLES)
            _, places = np.unique(subject.doc_ids, return_index=True)
            for place in np.sort(places).tolist():
                firsts.setdefault(
                    int(subject.doc_ids[place]), number + int(subject.sequence[place])
                )
            number += int(block.sequence[-1]) + 1
    return firsts


def imbalance(lengths: NDArray[np.int64], *, ranks: int) -> float:
    """Return the busiest rank's attention work over the mean, for a row of documents of these lengths (documents,)."""
    ends = np.cumsum(lengths)
    works = np.concatenate(
        [[0.0], np.cumsum(lengths * (lengths + 1.0) / 2)]
    )  # (documents + 1,) before each document
    # (2 · ranks + 1,) the borders of the slices: their token, the document that they cut, and the tokens of it before them.
    cuts = np.linspace(0, ends[-1], 2 * ranks + 1)
    document = np.minimum(np.searchsorted(ends, cuts, side="right"), len(lengths) - 1)
    inside = cuts - (ends - lengths)[document]
    # (2 · ranks,) the work of each slice. Rank r has slices r and −1 − r, the pairing of context-parallel attention.
    slices = np.diff(works[document] + inside * (inside + 1) / 2)
    of_ranks = slices[:ranks] + slices[: ranks - 1 : -1]
    return float(of_ranks.max() / of_ranks.mean())


def rank_work(
    sequences: Sequence[NDArray[np.int64]], *, per_row: int
) -> tuple[RankWork, ...]:
    """Return the imbalance by mask and number of ranks; `per_row` sequences fill a row, in their order."""
    imbalances: dict[tuple[str, int], list[float]] = {}
    for first in range(0, len(sequences), per_row):
        for (mask, lengths), ranks in product(
            _lengths_by_mask(sequences[first : first + per_row]).items(), RANKS
        ):
            imbalances.setdefault((mask, ranks), []).append(
                imbalance(lengths, ranks=ranks)
            )
    return tuple(
        RankWork(*key, float(np.mean(rows)), float(np.max(rows)))
        for key, rows in imbalances.items()
    )


def exposure(sequences: Sequence[NDArray[np.int64]]) -> tuple[Exposure, ...]:
    """Return the left contexts under each mask; under document masks only where a sequence holds several documents."""
    exposures = []
    for mask, lengths in _lengths_by_mask(sequences).items():
        values, counts = np.unique(lengths, return_counts=True)
        # (values, _BUCKETS) of a document of each length, the tokens in each bucket; the first token is no target.
        in_buckets = counts @ np.diff(np.minimum(values[:, None], _EDGES), axis=1)
        if targets := int(in_buckets.sum()):
            trimmed = np.trim_zeros(in_buckets, "b").tolist()
            bounds = zip(
                _EDGES.tolist(), (_EDGES[1:] - 1).tolist(), trimmed, strict=False
            )
            bins = tuple(
                Bin(float(least), float(most), count) for least, most, count in bounds
            )
            exposures.append(
                Exposure(
                    mask,
                    targets,
                    int(counts @ (values * (values - 1) // 2)) / targets,
                    bins,
                )
            )
    return tuple(exposures)


def _lengths_by_mask(
    sequences: Sequence[NDArray[np.int64]],
) -> dict[str, NDArray[np.int64]]:
    """Return the lengths of what attention sees as one under each mask, given the document lengths of each sequence."""
    masks = {"sequence": np.array([lengths.sum() for lengths in sequences], np.int64)}
    if any(len(lengths) > 1 for lengths in sequences):
        masks["document"] = np.concatenate(sequences)
    return masks
