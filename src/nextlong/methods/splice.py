"""SPLiCe: a breadth-first tree of similar documents (arXiv 2312.17296).

The paper's Algorithm 1: sample a root; while the example is short and the queue is not empty, take a document from the
queue, append the k most similar unused documents, and queue them; then order, concatenate and trim to L. k = 1 gives a
path of similar documents, a larger k a shallow and wide tree. The paper's default is k = 1 in the order in which documents
were found (`identity`); it also tries the reverse and a random order.

Ours: similar documents are found with the vectors of this run, `_SEARCHED` for each document; if fewer than k of them are
unused, all unused documents are searched again, so that a tree ends only when it is full. No document is in two trees.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

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

_SEARCHED = 32  # neighbours of a document, or 4 k if that is more, because earlier trees use up the nearest


class Splice(Section):
    """Options of `compose.method: splice`: a tree of similar documents."""

    neighbours: Positive = Field(
        1,
        description="k: documents appended to each (the paper's default; it tries 1 to 3)",
    )
    order: Literal["identity", "reverse", "random"] = Field(
        "identity", description="as found | reverse | random"
    )


class _SpliceMethod(DocumentMethod[Splice]):
    name = "splice"
    citation = Citation(
        "staniszewski2023structured",
        "Structured Packing in LLM Training Improves Long Context Utilization",
        "Staniszewski, Konrad and Tworkowski, Szymon and Jaszczur, Sebastian and Zhao, Yu and Michalewski, Henryk and others",
        "2312.17296",
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
        """Return trees until the remaining documents fill no sequence; these are not used."""
        assert documents.neighbours is not None
        assert documents.vectors is not None
        near, near_cosines = documents.neighbours.table()
        k, tokens, enough = options.neighbours, documents.tokens, request.target_tokens
        drafts: list[Draft] = []
        free, left = np.ones(len(tokens), np.bool_), len(tokens)
        for root in shuffled(
            documents.content_hashes, seed=request.seed, stage="splice"
        ).tolist():
            if len(drafts) == request.sequences:
                break
            if not free[root]:
                continue
            free[root] = False
            left -= 1
            tree, scores, filled = [root], [np.nan], int(tokens[root])
            parents = iter(tree)  # breadth first: the list grows while it is iterated
            while filled < enough and left:
                parent = next(parents)
                # The k nearest unused documents: first among the listed neighbours, then by a search of all unused documents.
                listed = near[parent][near[parent] >= 0]
                places = np.flatnonzero(free[listed])[:k]
                children, cosines = listed[places], near_cosines[parent][places]
                if len(children) < k and len(listed) < len(tokens) - 1:
                    others = free.copy()
                    others[children] = False
                    more, more_cosines = documents.vectors.nearest(
                        parent, k - len(children), others
                    )
                    children, cosines = (
                        np.append(children, more),
                        np.append(cosines, more_cosines),
                    )
                for child, cosine in zip(
                    children.tolist(), cosines.tolist(), strict=True
                ):
                    if filled >= enough:
                        break
                    free[child] = False
                    left -= 1
                    tree.append(child)
                    scores.append(cosine)
                    filled += int(tokens[child])
            if filled < enough:
                break
            order = np.arange(len(tree))
            if options.order == "reverse":
                order = order[::-1]
            elif options.order == "random":
                order = rng_for(
                    request.seed, "splice.order", int(documents.content_hashes[root])
                ).permutation(order)
            drafts.append(
                Draft(
                    np.array(tree, np.int64)[order], np.array(scores, np.float32)[order]
                )
            )
        return Drafted(drafts=drafts)


METHOD = _SpliceMethod()
