"""SPLiCe: a breadth-first tree of the documents most similar to one another (arXiv 2312.17296).

In:  the nearest documents of every document, with cosines.
Out: sequences of trees, flattened; no document stands in two of them.

The paper's Algorithm 1: draw a root; while the example is short and the queue is not empty, take a document from the queue,
append the k documents most similar to it that are not used yet, and queue them; order, concatenate, trim to L. k = 1
makes a path of similar documents, a larger one a shallow and wide tree; the paper's default is k = 1 in the order in
which documents were found (`identity`), beside which it tries the reverse and a random order.

Ours: documents are found by this run's vectors instead of BM25 or Contriever. They are searched once, `_SEARCHED` for each;
where fewer than k of these are still free, all free documents are searched again, so that a tree ends only when it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nextlong.methods.base import Citation, CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, Need
from nextlong.recipe import Positive, Section
from nextlong.rng import rng_for, shuffled
from nextlong.schemas import Layout

Order = Literal["identity", "reverse", "random"]
ORDERS: Final = get_args(Order)

_SEARCHED = 32  # neighbours of a document, or four times k: later trees find the nearest used


class Splice(Section):
    """Options of `compose.method: splice`: a tree of similar documents."""

    neighbours: Positive = Field(1, description="k: documents appended for each (the paper's default; it tries 1 to 3)")
    order: Order = Field("identity", description="of the documents of a tree: as found | reverse | random")


class _SpliceMethod(DocumentMethod[Splice]):
    """Structured Packing for Long Context."""

    name = "splice"
    citation = Citation(
        "staniszewski2023structured",
        "Structured Packing in LLM Training Improves Long Context Utilization",
        "Staniszewski, Konrad and Tworkowski, Szymon and Jaszczur, Sebastian and Zhao, Yu and Michalewski, Henryk and others",
        arxiv="2312.17296",
        year=2023,
    )
    Options = Splice
    layout = Layout.CONCATENATED
    version = 2  # searches again
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS, Need.DOCUMENT_VECTORS})
    scores = "the document that they were found for"

    def neighbours(self, options: Splice) -> int:
        """Return so many that every document is given enough neighbours that k of them are free."""
        return max(_SEARCHED, 4 * options.neighbours)

    def draft(self, documents: CorpusArrays, options: Splice, request: DraftRequest) -> Drafted:
        """Return trees until nothing is left that fills a sequence."""
        assert documents.neighbours is not None
        assert documents.vectors is not None
        roots = shuffled(documents.content_hashes, seed=request.seed, stage="splice")
        near, cosines = documents.neighbours.table()
        drafts: list[Draft] = []
        k, enough, search = options.neighbours, request.target_tokens, documents.vectors.nearest
        for tree in trees(roots, near, cosines, documents.tokens, search=search, k=k, enough=enough):
            key = int(documents.content_hashes[tree.documents[0]])
            drafts.append(ordered(tree, order=options.order, rng=rng_for(request.seed, "splice.order", key)))
            if len(drafts) == request.sequences:
                break
        return Drafted(drafts=drafts)


def trees(
    roots: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    cosines: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    search: Callable[[int, int, NDArray[np.bool_]], tuple[NDArray[np.int64], NDArray[np.float32]]],
    k: int,
    enough: int,
) -> Iterator[Draft]:
    """Yield lists of positions of at least `enough` tokens each, in the order in which documents were found.

    `roots`, shape (n,), says in which order documents start trees; `neighbours` and `cosines`, shape (n, K), descending,
    -1 where there are fewer; `tokens` (n,); `search`, as `Vectors.nearest`, is asked where these are used up. What is left at the
    end is left out.
    """
    free, left = np.ones(len(tokens), np.bool_), len(tokens)
    for root in roots.tolist():
        if not free[root]:
            continue
        free[root] = False
        left -= 1
        documents, scores, filled = [root], [np.nan], int(tokens[root])
        parents = iter(documents)  # breadth first: a list is read while it grows
        while filled < enough and left:
            parent = next(parents)
            # The k nearest that are free: of those listed for the document first, then by a search of all that are left.
            listed = neighbours[parent][neighbours[parent] >= 0]
            places = np.flatnonzero(free[listed])[:k]
            children, child_cosines = listed[places], cosines[parent][places]
            if len(children) < k and len(listed) < len(tokens) - 1:
                others = free.copy()
                others[children] = False
                more, more_cosines = search(parent, k - len(children), others)
                children, child_cosines = np.append(children, more), np.append(child_cosines, more_cosines)
            for child, cosine in zip(children.tolist(), child_cosines.tolist(), strict=True):
                if filled >= enough:
                    break
                free[child] = False
                left -= 1
                documents.append(child)
                scores.append(cosine)
                filled += int(tokens[child])
        if filled < enough:
            return
        yield Draft(np.array(documents, np.int64), np.array(scores, np.float32))


def ordered(tree: Draft, *, order: Order, rng: np.random.Generator) -> Draft:
    """Return the documents of a tree in the asked order, each with its score."""
    places = np.arange(len(tree.documents))
    if order == "reverse":
        places = places[::-1]
    elif order == "random":
        places = rng.permutation(places)
    return Draft(tree.documents[places], tree.scores[places])


METHOD = _SpliceMethod()
