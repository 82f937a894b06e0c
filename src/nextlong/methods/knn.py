"""KNN: a document followed by the documents most similar to it, nearest first.

In:  seed documents in draw order and, for each, its neighbours in descending order of cosine, itself excluded.
Out: sequences, one a seed that has neighbours enough.

The published behaviour (the baseline of arXiv 2310.10638, 2405.19846 and 2501.12766) looks at each seed
alone, so a popular document comes back in many sequences: `reuse="across-sequences"`. `"never"` gives every document to
the first seed in draw order that reaches it, at the price of ever less similar neighbours for those that come later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nextlong.methods.base import CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, Need
from nextlong.recipe import Section

Reuse = Literal["across-sequences", "never"]


class Knn(Section):
    """Options of `compose.method: knn`: a document followed by its nearest."""

    reuse: Reuse = Field("across-sequences", description="may a document stand in several sequences (as published)")


class _KnnMethod(DocumentMethod[Knn]):
    """A document and its nearest."""

    name = "knn"
    Options = Knn
    needs = frozenset({Need.DOCUMENT_NEIGHBOURS})
    searches = "sampled documents"  # those that start a sequence
    scores = "the first of the sequence"

    def repeats_documents(self, options: Knn) -> bool:
        """Say what the user allows."""
        return options.reuse == "across-sequences"

    def draft(self, documents: CorpusArrays, options: Knn, request: DraftRequest) -> Drafted:
        """Return a sequence for each seed whose neighbours fill it."""
        near = documents.neighbours
        assert near is not None
        cosines = np.split(near.cosines, near.offsets[:-1])[1:]
        return follow(
            near.queries,
            near.lists(),
            cosines,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
            reuse=options.reuse,
        )


def follow(
    seeds: NDArray[np.int64],
    neighbours: Sequence[NDArray[np.int64]],
    cosines: Sequence[NDArray[np.float32]],
    tokens: NDArray[np.int64],
    *,
    enough: int,
    sequences: int | None,
    reuse: Reuse,
) -> Drafted:
    """Return at most `sequences` (None: all) drafts: a seed, then its nearest until `enough` tokens.

    `seeds` (s,) and the s `neighbours` are positions into `tokens` (n,). A seed whose neighbours do not reach `enough`
    gives no sequence and, under `reuse="never"`, takes no document from others.
    """
    free = np.ones(len(tokens), np.bool_)
    drafts: list[Draft] = []
    starved = 0
    for seed, nearest, scores in zip(seeds.tolist(), neighbours, cosines, strict=True):
        if len(drafts) == sequences:
            break
        if not free[seed]:
            continue
        # The seed and those of its nearest that are free, nearest first; `last` of them reach `enough`.
        documents = np.concatenate([[seed], nearest[free[nearest]]])
        last = int(np.searchsorted(np.cumsum(tokens[documents]), enough)) + 1
        if last > len(documents):
            starved += 1
            continue
        to_seed = np.concatenate([np.array([np.nan], np.float32), scores[free[nearest]]])
        drafts.append(Draft(documents[:last], to_seed[:last]))
        if reuse == "never":
            free[documents[:last]] = False
    return Drafted(drafts=drafts, starved=starved)


METHOD = _KnnMethod()
