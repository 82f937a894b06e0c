"""ICLM: one path through the graph of similar documents, cut into sequences (In-Context Pretraining, arXiv 2310.10638).

The paper's algorithm (its §2.2, Algorithm 1) is a greedy tour of maximum similarity:

1. Near-duplicates fall out first: of two documents whose cosine is above `max_similarity` only the one that comes first in
   keyed order stays.
2. An undirected edge joins two documents where either is among the other's `k` nearest that remain; its weight is their
   cosine, the larger one if the two searches differ.
3. The path starts at a document of minimum degree and goes to the unvisited neighbour of highest weight. Where there is
   none it jumps to an unvisited document of minimum degree. A degree is the number of edges in the whole graph, visited
   ends included; it never changes, so all starts stand in one sorted list. The paper's reason: documents with few edges
   are most likely to end up with all neighbours visited.
4. The path is cut into stretches, and the stretches are shuffled.

Equal degrees and equal weights are decided by a keyed hash of the content. The authors' published sort.py differs from
their paper: it has a directed list, starts anywhere, closes a cluster at 21 documents and then merges small ones.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nextlong.methods.base import Citation, CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, Need, stretches
from nextlong.recipe import Section
from nextlong.recipe.keys import Positive
from nextlong.rng import rng_for, shuffled

_Ids = NDArray[np.int64]
_Cosines = NDArray[np.float32]

_NEAR_DUPLICATE_SPARES = 7  # neighbours searched beyond k, so that k remain where near-duplicates fall out


class Iclm(Section):
    """Options of `compose.method: iclm`: one path through the graph of similar documents."""

    neighbours: Positive = Field(10, description="k: an edge where either document is among the other's k nearest")
    max_similarity: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.95, description="of two documents with a higher cosine only one stays"
    )


class _IclmMethod(DocumentMethod[Iclm]):
    name = "iclm"
    citation = Citation(
        "shi2023incontext",
        "In-Context Pretraining: Language Modeling Beyond Document Boundaries",
        "Shi, Weijia and Min, Sewon and Lomeli, Maria and Zhou, Chunting and Li, Margaret and others",
        "2310.10638",
    )
    version = 2  # counts what it leaves out
    Options = Iclm
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS})
    scores = "the one before"

    def neighbours(self, options: Iclm) -> int:
        return options.neighbours + _NEAR_DUPLICATE_SPARES

    def draft(self, documents: CorpusArrays, options: Iclm, request: DraftRequest) -> Drafted:
        assert documents.neighbours is not None
        neighbours, cosines = documents.neighbours.table()
        order = shuffled(documents.content_hashes, seed=request.seed, stage=self.name)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        kept = _drop_near_duplicates(neighbours, cosines, ranks, max_similarity=options.max_similarity)
        path, weights = _walk(neighbours, cosines, ranks, kept=kept, k=options.neighbours)
        places = stretches(np.arange(len(path)), documents.tokens[path], enough=request.target_tokens)
        shuffle = rng_for(request.seed, "iclm.stretches").permutation(len(places))[: request.sequences]
        drafts = []
        for piece in (places[place] for place in shuffle.tolist()):
            weights[piece[0]] = np.nan  # the edge of its first document leads back into another sequence
            drafts.append(Draft(path[piece], weights[piece]))
        left_out = None if options.max_similarity is None else int((~kept).sum())
        return Drafted(drafts=drafts, near_duplicates=left_out)


def _drop_near_duplicates(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, max_similarity: float | None
) -> NDArray[np.bool_]:
    """Return which documents stay, shape (n,): no two of them are near-duplicates, the lowest rank of each group stays.

    `neighbours` and `cosines`, shape (n, K), descending, own document excluded, -1 where there are fewer.
    """
    above = np.inf if max_similarity is None else max_similarity  # of half-precision vectors a cosine may exceed 1
    rows, columns = np.nonzero((cosines > above) & (neighbours >= 0))
    pairs = np.stack([rows, neighbours[rows, columns]], axis=1)
    pairs = np.unique(np.sort(ranks[pairs], axis=1), axis=0)
    stays = np.ones(len(ranks), np.bool_)  # by rank; that of `first` is settled before it is asked for
    for first, later in pairs[np.argsort(pairs[:, 1], kind="stable")].tolist():
        if stays[first] and first != later:
            stays[later] = False
    return stays[ranks]


def _walk(
    neighbours: _Ids, cosines: _Cosines, ranks: _Ids, *, kept: NDArray[np.bool_], k: int
) -> tuple[_Ids, _Cosines]:
    """Return all kept documents in the order of the walk, and the weight of the edge to each, NaN for a jump; (kept,).

    The graph joins each kept document, shape (n,), to its `k` nearest kept ones, in both directions; equal weights by rank.
    """
    count = len(ranks)
    usable = (neighbours >= 0) & kept[neighbours] & kept[:, None]
    rows, columns = np.nonzero(usable & (np.cumsum(usable, axis=1) <= k))
    ends, edge_weights = neighbours[rows, columns], cosines[rows, columns]
    # An edge is one number, lower end · n + higher end, so that the two directions in which it is found are equal.
    edges = np.minimum(rows, ends) * count + np.maximum(rows, ends)
    by_edge = np.lexsort((-edge_weights, edges))  # so that the first of two is the larger cosine
    edges, firsts = np.unique(edges[by_edge], return_index=True)
    edge_weights = np.tile(edge_weights[by_edge][firsts].astype(np.float32), 2)
    low, high = np.divmod(edges, count)
    sources, targets = np.concatenate([low, high]), np.concatenate([high, low])
    best_first = np.lexsort((ranks[targets], -edge_weights, sources))
    # The neighbours of document i are targets[offsets[i] : offsets[i + 1]], best first; (n + 1,), (2 · edges,), (2 · edges,).
    degrees = np.bincount(sources, minlength=count)
    offsets, targets, edge_weights = np.append(0, np.cumsum(degrees)), targets[best_first], edge_weights[best_first]
    unvisited = kept.copy()
    path = np.empty(int(kept.sum()), np.int64)
    weights = np.full(len(path), np.nan, np.float32)
    done = 0
    for start in np.lexsort((ranks, degrees)).tolist():
        here = start if unvisited[start] else -1
        while here >= 0:
            path[done] = here
            done += 1
            unvisited[here] = False
            first = int(offsets[here])
            free = np.flatnonzero(unvisited[targets[first : offsets[here + 1]]])
            if len(free):
                weights[done] = edge_weights[first + free[0]]
            here = int(targets[first + free[0]]) if len(free) else -1
    return path, weights


METHOD = _IclmMethod()
