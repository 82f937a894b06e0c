"""ICLM: one path through the graph of similar documents, cut into sequences.

In-Context Pretraining, arXiv 2310.10638.

The paper's algorithm (§2.2, Algorithm 1) is a greedy tour of maximum similarity:

1. Filter near-duplicates: of two documents whose cosine is above `max_similarity`, only
   the first in keyed order is kept.
2. Join two documents by an undirected edge if either is among the `k` nearest kept
   neighbours of the other. The weight of an edge is their cosine (the larger one if the
   two searches differ).
3. Start the path at a document of minimum degree, and always continue to the unvisited
   neighbour of the highest weight. If there is none, jump to an unvisited document of
   minimum degree. Degrees count the edges of the whole graph and never change, so all
   starts are in one sorted list. The paper's reason for minimum degrees: documents with
   few edges are the most likely to end up with all neighbours visited.
4. Cut the path into pieces of T tokens, and shuffle the pieces.

Ties of degree or weight are decided by a keyed hash of the content. The authors'
published sort.py differs from the paper: its graph is directed, it starts anywhere,
ends a cluster at 21 documents and then merges small clusters.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from nextlong.arrays import Bools, Floats, Ints
from nextlong.methods.base import (
    Citation,
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
    stretches,
)
from nextlong.recipe import Section
from nextlong.recipe.keys import Positive
from nextlong.rng import rng_for, shuffled

_Ids = Ints
_Cosines = Floats

# Neighbours searched beyond k, so that k remain after near-duplicates are filtered out.
_NEAR_DUPLICATE_SPARES = 7


class Iclm(Section):
    """Options of `compose.method: iclm`: a path through similar documents."""

    neighbours: Positive = Field(
        10,
        description="k: documents are joined if either is among the other's k nearest",
    )
    max_similarity: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.95, description="of two documents with a higher cosine, only one is kept"
    )


class _IclmMethod(DocumentMethod[Iclm]):
    name = "iclm"
    citation = Citation(
        key="shi2023incontext",
        title="In-Context Pretraining: Language Modeling Beyond Document Boundaries",
        authors=(
            "Shi, Weijia and Min, Sewon and Lomeli, Maria and Zhou, Chunting and "
            "Li, Margaret and others"
        ),
        arxiv="2310.10638",
    )
    version = 2  # counts the documents that it filters out
    Options = Iclm
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS})
    scores = "the previous document"

    def neighbours(self, options: Iclm) -> int:
        return options.neighbours + _NEAR_DUPLICATE_SPARES

    def draft(
        self, documents: CorpusArrays, options: Iclm, request: DraftRequest
    ) -> Drafted:
        assert documents.neighbours is not None
        neighbours, cosines = documents.neighbours.table()
        order = shuffled(documents.content_hashes, seed=request.seed, stage=self.name)
        # (n,): the position of each document in keyed order, by which ties are decided.
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        kept = _drop_near_duplicates(
            neighbours, cosines, ranks, max_similarity=options.max_similarity
        )
        path, weights = _walk(
            neighbours, cosines, ranks, kept=kept, k=options.neighbours
        )

        # Each piece has positions on the path.
        pieces = stretches(
            np.arange(len(path)), documents.tokens[path], enough=request.target_tokens
        )
        rng = rng_for(request.seed, "iclm.stretches")
        drawn = rng.permutation(len(pieces))[: request.sequences]
        drafts = []
        for index in drawn.tolist():
            piece = pieces[index]
            # The edge to the first document comes from another sequence.
            weights[piece[0]] = np.nan
            drafts.append(Draft(path[piece], weights[piece]))
        near_duplicates = None
        if options.max_similarity is not None:
            near_duplicates = int((~kept).sum())
        return Drafted(drafts=drafts, near_duplicates=near_duplicates)


def _drop_near_duplicates(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, max_similarity: float | None
) -> Bools:
    """Return which documents are kept, (n,): no two of them are near-duplicates.

    Of each pair the lower rank is kept first. `neighbours` and `cosines`, shape (n, K),
    are descending, exclude the document itself, and are padded with -1.
    """
    # Infinity, because cosines of float16 vectors may exceed 1.
    max_cosine = np.inf if max_similarity is None else max_similarity
    rows, columns = np.nonzero((cosines > max_cosine) & (neighbours >= 0))
    pairs = np.stack([rows, neighbours[rows, columns]], axis=1)
    # From here on, documents are ranks, the lower one of each pair first.
    pairs = np.unique(np.sort(ranks[pairs], axis=1), axis=0)
    # Sorted by the later one, so that `first` is decided before it is read.
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    is_kept = np.ones(len(ranks), np.bool_)
    for first, later in pairs.tolist():
        if is_kept[first] and first != later:
            is_kept[later] = False
    return is_kept[ranks]


class _Graph(NamedTuple):
    """A graph of n documents, with both directions of each edge.

    The neighbours of document i are `targets[offsets[i] : offsets[i + 1]]`, the highest
    weight first.
    """

    offsets: _Ids  # (n + 1,)
    targets: _Ids  # (m,)
    weights: _Cosines  # (m,)


def _graph(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, kept: Bools, k: int
) -> _Graph:
    """Join each kept document with its `k` nearest kept ones, in both directions.

    `kept` has shape (n,); neighbours of equal weight are sorted by rank.
    """
    count = len(ranks)
    is_usable = (neighbours >= 0) & kept[neighbours] & kept[:, None]
    is_nearest = is_usable & (np.cumsum(is_usable, axis=1) <= k)
    rows, columns = np.nonzero(is_nearest)
    ends = neighbours[rows, columns]
    found_weights = cosines[rows, columns]

    # An edge is one integer, lower end · n + higher end, so both directions of an edge
    # are equal. Of equal edges, the one with the larger cosine comes first and is kept.
    found_edges = np.minimum(rows, ends) * count + np.maximum(rows, ends)
    by_edge = np.lexsort((-found_weights, found_edges))
    edges, firsts = np.unique(found_edges[by_edge], return_index=True)
    edge_weights = found_weights[by_edge][firsts].astype(np.float32)

    low, high = np.divmod(edges, count)
    # Both directions of each edge.
    sources = np.concatenate([low, high])
    targets = np.concatenate([high, low])
    weights = np.tile(edge_weights, 2)
    best_first = np.lexsort((ranks[targets], -weights, sources))
    degrees = np.bincount(sources, minlength=count)
    return _Graph(
        offsets=np.append(0, np.cumsum(degrees)),
        targets=targets[best_first],
        weights=weights[best_first],
    )


def _walk(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, kept: Bools, k: int
) -> tuple[_Ids, _Cosines]:
    """Return the kept documents in the order of the path, (kept,).

    With the weight of the edge to each, NaN for a jump. The graph joins each kept
    document, of `kept` (n,), with its `k` nearest kept ones.
    """
    offsets, targets, edge_weights = _graph(neighbours, cosines, ranks, kept=kept, k=k)
    is_unvisited = kept.copy()
    path = np.empty(np.count_nonzero(kept), np.int64)
    weights = np.full(len(path), np.nan, np.float32)
    visited = 0
    # Degrees never change, so all starts are in one list.
    starts = np.lexsort((ranks, np.diff(offsets)))
    for start in starts.tolist():
        current = start if is_unvisited[start] else -1
        while current >= 0:
            path[visited] = current
            visited += 1
            is_unvisited[current] = False
            first = int(offsets[current])
            near = targets[first : offsets[current + 1]]
            free = np.flatnonzero(is_unvisited[near])
            if len(free):
                weights[visited] = edge_weights[first + free[0]]
            current = int(near[free[0]]) if len(free) else -1
    return path, weights


METHOD = _IclmMethod()
