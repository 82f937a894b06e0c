"""Reuse: how often the same chunk serves in a data set, and which chunks serve most."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.runs.opened import Run
from nextlong.runs.tally import Tally

_HUBS = 10
_OVERUSED = 16  # more than so many uses of a chunk teach hardly anything (docs/warnings.md)


@dataclass(frozen=True)
class Uses:
    """`chunks` chunks were used between `least` and `most` times."""

    least: int
    most: int
    chunks: int


@dataclass(frozen=True)
class Hub:
    """A chunk that many sequences share, and the document that it comes from; `ordinal` is its place in that, from 1."""

    chunk_id: int
    source_id: str
    ordinal: int
    uses: int

    @property
    def name(self) -> str:
        """What a person is shown."""
        return f"{self.source_id} · chunk {self.ordinal}"


@dataclass(frozen=True)
class Reuse:
    """How often a chunk serves, as a negative or in a document, over all sequences; meta-chunks are not counted.

    `overused_share` is the share of all uses that goes to chunks used more than 16 times.
    """

    distinct_chunks: int
    mean: float | None
    max: int | None
    overused_share: float | None
    histogram: tuple[Uses, ...]
    hubs: tuple[Hub, ...]


def measure_reuse(run: Run, counted: Tally) -> Reuse:
    """Return how often the chunks of a run serve, from how often each was counted."""
    chunk_ids, uses = counted.counted()
    most = int(uses.max(initial=0))
    edges = [0, *(1 << power for power in range(max(0, most - 1).bit_length() + 1))] if most else [0]
    histogram = tuple(
        Uses(low + 1, high, int(((uses > low) & (uses <= high)).sum())) for low, high in itertools.pairwise(edges)
    )
    mean = float(uses.mean()) if most else None
    overused = float(uses[uses > _OVERUSED].sum() / uses.sum()) if most else None
    return Reuse(len(uses), mean, most or None, overused, histogram, _hubs(run, chunk_ids, uses))


def _hubs(run: Run, chunk_ids: NDArray[np.int64], uses: NDArray[np.int64]) -> tuple[Hub, ...]:
    top = np.lexsort((chunk_ids, -uses))[:_HUBS]
    top = top[uses[top] > 1]
    if not len(top):
        return ()
    ids = chunk_ids[top]
    (doc_rows,) = lookup.chunk_columns(ids, run.corpus.chunks, ("doc_row",))
    names = lookup.source_ids(schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows, run.corpus.documents)
    ordinals = lookup.chunk_ordinals(ids, run.corpus.chunks)
    return tuple(map(Hub, ids.tolist(), names.tolist(), ordinals.tolist(), uses[top].tolist()))
