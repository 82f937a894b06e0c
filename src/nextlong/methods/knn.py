"""KNN: a document followed by its nearest neighbours, nearest first.

The published baseline (of arXiv 2310.10638, 2405.19846 and 2501.12766) drafts each seed
document independently, so popular documents are in many sequences:
`reuse="across-sequences"`. With `"never"`, a document is used only by the first seed,
in sampled order, that reaches it, so the neighbours of later seeds are less and less
similar.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field

from nextlong.methods.base import (
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
)
from nextlong.recipe import Section


class Knn(Section):
    """Options of `compose.method: knn`: a document, then its nearest neighbours."""

    reuse: Literal["across-sequences", "never"] = Field(
        "across-sequences",
        description="whether a document may be in several sequences (as published)",
    )


class _KnnMethod(DocumentMethod[Knn]):
    name = "knn"
    Options = Knn
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS})
    searches = "sampled documents"  # the seeds
    scores = "the first document of the sequence"

    def repeats_documents(self, options: Knn) -> bool:
        return options.reuse == "across-sequences"

    def draft(
        self, documents: CorpusArrays, options: Knn, request: DraftRequest
    ) -> Drafted:
        """Return a sequence for each seed, in sampled order.

        Its unused neighbours reach T; other seeds use no documents.
        """
        near = documents.neighbours
        assert near is not None
        is_free = np.ones(len(documents.tokens), np.bool_)
        no_cosine = np.array([np.nan], np.float32)
        drafts: list[Draft] = []
        starved = 0
        seeds = near.queries.tolist()
        bounds = pairwise(near.offsets.tolist())
        for seed, (first, last) in zip(seeds, bounds, strict=True):
            if len(drafts) == request.sequences:
                break
            if not is_free[seed]:
                continue
            # The seed and its unused neighbours, nearest first; the first `count` of
            # them reach the target.
            nearest = near.documents[first:last]
            is_unused = is_free[nearest]
            sequence = np.concatenate([[seed], nearest[is_unused]])
            filled = np.cumsum(documents.tokens[sequence])
            count = int(np.searchsorted(filled, request.target_tokens)) + 1
            if count > len(sequence):
                starved += 1
                continue
            cosines = np.concatenate([no_cosine, near.cosines[first:last][is_unused]])
            drafts.append(Draft(sequence[:count], cosines[:count]))
            if options.reuse == "never":
                is_free[sequence[:count]] = False
        return Drafted(drafts=drafts, starved=starved)


METHOD = _KnnMethod()
