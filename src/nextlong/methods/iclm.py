"""ICLM: one path through the graph of similar documents, cut into sequences (In-Context Pretraining, arXiv 2310.10638).

The paper's algorithm (§2.2, Algorithm 1) is a greedy tour of maximum similarity:

1. Filter near-duplicates: of two documents whose cosine is above `max_similarity`, only the first in keyed order is kept.
2. Join two documents by an undirected edge if either is among the `k` nearest kept neighbours of the other. The weight of
   an edge is their cosine (the larger one if the two searches differ).
3. Start the path at a document of minimum degree, and always continue to the unvisited neighbour of the highest weight. If
   there is none, jump to an unvisited document of minimum degree. Degrees count the edges of the whole graph and never
   change, so all starts are in one sorted list. The paper's reason for minimum degrees: documents with few edges are the
   most likely to end up with all neighbours visited.
4. Cut the path into pieces of T tokens, and shuffle the pieces.

Ties of degree or weight are decided by a keyed hash of the content. The authors' published sort.py differs from the
paper: its graph is directed, it starts anywhere, ends a cluster at 21 documents and then merges small clusters.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

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

_Ids = NDArray[np.int64]
_Cosines = NDArray[np.float32]

_NEAR_DUPLICATE_SPARES = 7  # neighbours searched beyond k, so that k remain after near-duplicates are filtered out


class Iclm(Section):
    """Options of `compose.method: iclm`: a path through the graph of similar documents."""

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
        "shi2023incontext",
        "In-Context Pretraining: Language Modeling Beyond Document Boundaries",
        "Shi, Weijia and Min, Sewon and Lomeli, Maria and Zhou, Chunting and Li, Margaret and others",
        "2310.10638",
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
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        kept = _drop_near_duplicates(
            neighbours, cosines, ranks, max_similarity=options.max_similarity
        )
        path, weights = _walk(
            neighbours, cosines, ranks, kept=kept, k=options.neighbours
        )
        places = stretches(
            np.arange(len(path)), documents.tokens[path], enough=request.target_tokens
        )
        shuffle = rng_for(request.seed, "iclm.stretches").permutation(len(places))[
            : request.sequences
        ]
        drafts = []
        for piece in (places[place] for place in shuffle.tolist()):
            weights[piece[0]] = (
                np.nan
            )  # the edge to the first document comes from another sequence
            drafts.append(Draft(path[piece], weights[piece]))
        return Drafted(
            drafts=drafts,
            near_duplicates=None
            if options.max_similarity is None
            else int((~kept).sum()),
        )


def _drop_near_duplicates(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, max_similarity: float | None
) -> NDArray[np.bool_]:
    """Return which documents are kept, (n,): no two are near-duplicates, and of each pair the lower rank is kept first.

    `neighbours` and `cosines`, shape (n, K), are descending, exclude the document itself, and are padded with -1.
    """
    above = (
        np.inf if max_similarity is None else max_similarity
    )  # inf: cosines of float16 vectors may exceed 1
    rows, columns = np.nonzero((cosines > above) & (neighbours >= 0))
    pairs = np.stack([rows, neighbours[rows, columns]], axis=1)
    pairs = np.unique(np.sort(ranks[pairs], axis=1), axis=0)
    is_kept = np.ones(
        len(ranks), np.bool_
    )  # by rank; pairs are sorted so that `first` is decided before it is read
    for first, later in pairs[np.argsort(pairs[:, 1], kind="stable")].tolist():
        if is_kept[first] and first != later:
            is_kept[later] = False
    return is_kept[ranks]


def _walk(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, kept: NDArray[np.bool_], k: int
) -> tuple[_Ids, _Cosines]:
    """Return the kept documents in the order of the path, and the weight of the edge to each (NaN for a jump), (kept,).

    The graph joins each kept document, of `kept` (n,), with its `k` nearest kept ones in both directions; ties by rank.
    """
    count = len(ranks)
    usable = (neighbours >= 0) & kept[neighbours] & kept[:, None]
    rows, columns = np.nonzero(usable & (np.cumsum(usable, axis=1) <= k))
    ends, edge_weights = neighbours[rows, columns], cosines[rows, columns]
    # An edge is one integer, lower end · n + higher end, so both directions of an edge are equal.
    edges = np.minimum(rows, ends) * count + np.maximum(rows, ends)
    by_edge = np.lexsort(
        (-edge_weights, edges)
    )  # so that the first of equal edges has the larger cosine
    edges, firsts = np.unique(edges[by_edge], return_index=True)
    edge_weights = np.tile(edge_weights[by_edge][firsts].astype(np.float32), 2)
    low, high = np.divmod(edges, count)
    sources, targets = np.concatenate([low, high]), np.concatenate([high, low])
    best_first = np.lexsort((ranks[targets], -edge_weights, sources))
    # CSR graph: the neighbours of document i are targets[offsets[i] : offsets[i + 1]], highest weight first.
    degrees = np.bincount(sources, minlength=count)
    offsets, targets, edge_weights = (
        np.append(0, np.cumsum(degrees)),
        targets[best_first],
        edge_weights[best_first],
    )
    unvisited = kept.copy()
    path = np.empty(int(kept.sum()), np.int64)
    weights = np.full(len(path), np.nan, np.float32)
    visited = 0
    for start in np.lexsort((ranks, degrees)).tolist():
        current = start if unvisited[start] else -1
        while current >= 0:
            path[visited] = current
            visited += 1
            unvisited[current] = False
            first = int(offsets[current])
            free = np.flatnonzero(unvisited[targets[first : offsets[current + 1]]])
            if len(free):
                weights[visited] = edge_weights[first + free[0]]
            current = int(targets[first + free[0]]) if len(free) else -1
    return path, weights


METHOD = _IclmMethod()
