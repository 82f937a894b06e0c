"""KNN: a document followed by the documents most similar to it, nearest first.

The published behaviour (the baseline of arXiv 2310.10638, 2405.19846 and 2501.12766) looks at each seed
alone, so a popular document comes back in many sequences: `reuse="across-sequences"`. `"never"` gives every document to
the first seed in draw order that reaches it, at the price of ever less similar neighbours for those that come later.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field

from nextlong.methods.base import CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, Need
from nextlong.recipe import Section


class Knn(Section):
    """Options of `compose.method: knn`: a document followed by its nearest."""

    reuse: Literal["across-sequences", "never"] = Field(
        "across-sequences", description="may a document stand in several sequences (as published)"
    )


class _KnnMethod(DocumentMethod[Knn]):
    name = "knn"
    Options = Knn
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS})
    searches = "sampled documents"  # those that start a sequence
    scores = "the first of the sequence"

    def repeats_documents(self, options: Knn) -> bool:
        return options.reuse == "across-sequences"

    def draft(self, documents: CorpusArrays, options: Knn, request: DraftRequest) -> Drafted:
        """Return a sequence for each seed, in draw order, whose free neighbours reach T; other seeds take no document."""
        near, tokens = documents.neighbours, documents.tokens
        assert near is not None
        free = np.ones(len(tokens), np.bool_)
        drafts: list[Draft] = []
        starved = 0
        for seed, (first, last) in zip(near.queries.tolist(), pairwise(near.offsets.tolist()), strict=True):
            if len(drafts) == request.sequences:
                break
            if not free[seed]:
                continue
            # The seed and those of its nearest that are free, nearest first; `count` of them reach the target.
            nearest = near.documents[first:last]
            sequence = np.concatenate([[seed], nearest[free[nearest]]])
            count = int(np.searchsorted(np.cumsum(tokens[sequence]), request.target_tokens)) + 1
            if count > len(sequence):
                starved += 1
                continue
            cosines = np.concatenate([np.array([np.nan], np.float32), near.cosines[first:last][free[nearest]]])
            drafts.append(Draft(sequence[:count], cosines[:count]))
            if options.reuse == "never":
                free[sequence[:count]] = False
        return Drafted(drafts=drafts, starved=starved)


METHOD = _KnnMethod()
