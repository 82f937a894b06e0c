"""Untie the Knots: the parts of documents shuffled across their window (UtK, arXiv 2409.04774).

The paper packs documents into windows as usual, splits each document into parts, and shuffles the parts of a window, so
that a model must attend far back to find how a part continues. As in the authors' released code, the parts of each document
take random places but keep their order (`preserve_partial_order`), and the last part of the last document of a window,
which the end of the window truncates, stays last.

Ours (docs/methods.md): parts begin at chunk borders, and there are neither knot tokens nor the backtracing task. The paper
leaves some windows unshuffled (it shuffles 30 % or 80 %): set `share`, or mix with a `standard` run.
"""

from __future__ import annotations

from typing import Annotated, Literal

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
    stretches,
)
from nextlong.recipe import Section
from nextlong.rng import rng_for, shuffled
from nextlong.schemas import Layout


class UntieTheKnots(Section):
    """Options of `compose.method: untie_the_knots`: parts of documents, shuffled across the sequence."""

    parts: Annotated[int, Field(ge=2)] = Field(
        3, description="parts of a document, split at chunks; fewer if needed"
    )
    cuts: Literal["random", "even"] = Field(
        "random", description="split at random chunks, or into parts of equal size"
    )
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0,
        description="share of the sequences that are shuffled (paper: 0.3 or 0.8); the others equal those of standard",
    )


class _UntieTheKnotsMethod(DocumentMethod[UntieTheKnots]):
    name = "untie_the_knots"
    citation = Citation(
        "tian2024untie",
        "Untie the Knots: An Efficient Data Augmentation Strategy for Long-Context Pre-Training in Language Models",
        "Tian, Junfeng and Zheng, Da and Cheng, Yang and Wang, Rui and Zhang, Colin and others",
        "2409.04774",
    )
    Options = UntieTheKnots
    layout = Layout.INTERLEAVED

    def draft(
        self, documents: CorpusArrays, options: UntieTheKnots, request: DraftRequest
    ) -> Drafted:
        order = shuffled(
            documents.content_hashes, seed=request.seed, stage="untie_the_knots"
        )
        drafts = []
        for window in stretches(
            order,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
        ):
            rng = rng_for(
                request.seed,
                "untie_the_knots.window",
                int(documents.content_hashes[window[0]]),
            )
            chunks = np.diff(documents.chunk_offsets)[
                window
            ]  # (documents of the window,)
            # Only as many chunks of the window's last document as it takes to reach T.
            first, stop = documents.chunk_offsets[window[-1] : window[-1] + 2].tolist()
            left = request.target_tokens - int(documents.tokens[window[:-1]].sum())
            filled = np.cumsum(documents.chunk_tokens[first:stop])
            chunks[-1] = min(stop - first, int(np.searchsorted(filled, left)) + 1)
            if rng.random() < options.share:
                labels, chunks = _interleaved(chunks.tolist(), options, rng)
                window = window[labels]  # the document of each part
            drafts.append(Draft(window, chunks=chunks))
        return Drafted(drafts=drafts)


def _interleaved(
    chunks: list[int], options: UntieTheKnots, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split documents of so many chunks; return the document and the number of chunks of each part, shape (parts,) each.

    The parts of a document are in order, and the last part of the last document is last; all such interleavings are equally
    likely.
    """
    sizes = []
    for count in chunks:
        parts = min(options.parts, count)  # none of them empty
        if options.cuts == "even":
            cuts = np.arange(1, parts) * count // parts
        else:
            cuts = (
                np.sort(rng.choice(np.arange(1, count), parts - 1, replace=False))
                if parts > 1
                else np.arange(0)
            )
        sizes.append(np.diff(np.concatenate([[0], cuts, [count]])))
    labels = np.repeat(
        np.arange(len(sizes)), [len(of_document) for of_document in sizes]
    )
    labels[:-1] = rng.permutation(labels[:-1])
    # The n-th occurrence of a document is its n-th part.
    chunks_of_part = np.empty(len(labels), np.int64)
    chunks_of_part[np.argsort(labels, kind="stable")] = np.concatenate(sizes)
    return labels, chunks_of_part


METHOD = _UntieTheKnotsMethod()
