"""SPLiCe: a breadth-first tree of similar documents (arXiv 2312.17296).

The paper's Algorithm 1: sample a root; while the example is short and the queue is not
empty, take a document from the queue, append the k most similar unused documents, and
queue them; then order, concatenate and trim to L. k = 1 gives a path of similar
documents, a larger k a shallow and wide tree. The paper's default is k = 1 in the order
in which documents were found (`identity`); it also tries the reverse and a random
order.

Ours: similar documents are found with the vectors of this run, `_SEARCHED` for each
document; if fewer than k of them are unused, all unused documents are searched again,
so that a tree ends only when it is full. No document is in two trees.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from nextlong.arrays import Floats, Ints
from nextlong.methods.base import (
    Citation,
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
)
from nextlong.recipe import Section
from nextlong.recipe.keys import Positive
from nextlong.rng import rng_for, shuffled

# Neighbours of a document, or 4 k if that is more, because earlier trees use up the
# nearest.
_SEARCHED = 32


class Splice(Section):
    """Options of `compose.method: splice`: a tree of similar documents."""

    neighbours: Positive = Field(
        1,
        description=(
            "k: documents appended to each (the paper's default; it tries 1 to 3)"
        ),
    )
    order: Literal["identity", "reverse", "random"] = Field(
        "identity", description="as found | reverse | random"
    )


class _SpliceMethod(DocumentMethod[Splice]):
    name = "splice"
    citation = Citation(
        key="staniszewski2023structured",
        title="Structured Packing in LLM Training Improves Long Context Utilization",
        authors=(
            "Staniszewski, Konrad and Tworkowski, Szymon and Jaszczur, Sebastian and "
            "Zhao, Yu and Michalewski, Henryk and others"
        ),
        arxiv="2312.17296",
    )
    Options = Splice
    version = 2  # searches again when neighbours are used up
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS, Need.DOCUMENT_VECTORS})
    scores = "their parent in the tree"

    def neighbours(self, options: Splice) -> int:
        return max(_SEARCHED, 4 * options.neighbours)

    def draft(
        self, documents: CorpusArrays, options: Splice, request: DraftRequest
    ) -> Drafted:
        """Return trees until the remaining documents fill no sequence.

        These are not used.
        """
        forest = _Forest(documents, neighbours=options.neighbours)
        drafts: list[Draft] = []
        roots = shuffled(documents.content_hashes, seed=request.seed, stage="splice")
        for root in roots.tolist():
            if len(drafts) == request.sequences:
                break
            if not forest.is_free[root]:
                continue
            tree, scores, filled = forest.grow(root, enough=request.target_tokens)
            if filled < request.target_tokens:
                break
            order = np.arange(len(tree))
            if options.order == "reverse":
                order = order[::-1]
            elif options.order == "random":
                root_hash = int(documents.content_hashes[root])
                rng = rng_for(request.seed, "splice.order", root_hash)
                order = rng.permutation(order)
            draft_documents = np.array(tree, np.int64)[order]
            draft_scores = np.array(scores, np.float32)[order]
            drafts.append(Draft(draft_documents, draft_scores))
        return Drafted(drafts=drafts)


class _Forest:
    """The documents that no tree has yet, and the trees that grow from them."""

    def __init__(self, documents: CorpusArrays, *, neighbours: int) -> None:
        assert documents.neighbours is not None
        assert documents.vectors is not None
        self._vectors = documents.vectors
        self._tokens = documents.tokens
        self._k = neighbours
        # (n, K) each, nearest first, padded with -1.
        self._near, self._near_cosines = documents.neighbours.table()
        self.is_free = np.ones(len(self._tokens), np.bool_)
        self._free_count = len(self._tokens)

    def grow(self, root: int, *, enough: int) -> tuple[list[int], list[float], int]:
        """Return a tree with the cosine of each document to its parent, and its tokens.

        It has `enough` tokens unless no document is left.
        """
        self._take(root)
        tree = [root]
        scores = [np.nan]
        filled = int(self._tokens[root])
        # Breadth first: the list grows while it is iterated.
        parents = iter(tree)
        while filled < enough and self._free_count:
            children, cosines = self._nearest_free(next(parents))
            for child, cosine in zip(children.tolist(), cosines.tolist(), strict=True):
                if filled >= enough:
                    break
                self._take(child)
                tree.append(child)
                scores.append(cosine)
                filled += int(self._tokens[child])
        return tree, scores, filled

    def _take(self, document: int) -> None:
        self.is_free[document] = False
        self._free_count -= 1

    def _nearest_free(self, parent: int) -> tuple[Ints, Floats]:
        """Return the k nearest free documents and their cosines.

        First among the listed neighbours, then by a search of all free documents.
        """
        listed = self._near[parent][self._near[parent] >= 0]
        positions = np.flatnonzero(self.is_free[listed])[: self._k]
        children = listed[positions]
        cosines = self._near_cosines[parent][positions]
        is_all_listed = len(listed) >= len(self._tokens) - 1
        if len(children) == self._k or is_all_listed:
            return children, cosines
        others = self.is_free.copy()
        others[children] = False
        more, more_cosines = self._vectors.nearest(
            parent, self._k - len(children), others
        )
        return np.append(children, more), np.append(cosines, more_cosines)


METHOD = _SpliceMethod()
