"""Untie the Knots: the parts of documents shuffled across their window.

UtK, arXiv 2409.04774.

The paper packs documents into windows as usual, splits each document into parts, and
shuffles the parts of a window, so that a model must attend far back to find how a part
continues. As in the authors' released code, the parts of each document take random
places but keep their order (`preserve_partial_order`), and the last part of the last
document of a window, which the end of the window truncates, stays last.

Ours (docs/methods.md): parts begin at chunk borders, and there are neither knot tokens
nor the backtracing task. The paper leaves some windows unshuffled (it shuffles 30 % or
80 %): set `share`, or mix with a `standard` run.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from nextlong.arrays import Ints
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
    """Options of `compose.method: untie_the_knots`: shuffled parts of documents."""

    parts: Annotated[int, Field(ge=2)] = Field(
        3, description="parts of a document, split at chunks; fewer if needed"
    )
    cuts: Literal["random", "even"] = Field(
        "random", description="split at random chunks, or into parts of equal size"
    )
    share: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0,
        description=(
            "share of the sequences that are shuffled (paper: 0.3 or 0.8); the others "
            "equal those of standard"
        ),
    )


class _UntieTheKnotsMethod(DocumentMethod[UntieTheKnots]):
    name = "untie_the_knots"
    citation = Citation(
        key="tian2024untie",
        title=(
            "Untie the Knots: An Efficient Data Augmentation Strategy for Long-Context "
            "Pre-Training in Language Models"
        ),
        authors=(
            "Tian, Junfeng and Zheng, Da and Cheng, Yang and Wang, Rui and "
            "Zhang, Colin and others"
        ),
        arxiv="2409.04774",
    )
    Options = UntieTheKnots
    layout = Layout.INTERLEAVED

    def draft(
        self, documents: CorpusArrays, options: UntieTheKnots, request: DraftRequest
    ) -> Drafted:
        order = shuffled(
            documents.content_hashes, seed=request.seed, stage="untie_the_knots"
        )
        chunk_counts = np.diff(documents.chunk_offsets)
        windows = stretches(
            order,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
        )
        drafts = []
        for window in windows:
            first_hash = int(documents.content_hashes[window[0]])
            rng = rng_for(request.seed, "untie_the_knots.window", first_hash)
            # (documents of the window,): only as many chunks of the last one as it
            # takes to reach T.
            chunks = chunk_counts[window]
            first, stop = documents.chunk_offsets[window[-1] : window[-1] + 2].tolist()
            left = request.target_tokens - int(documents.tokens[window[:-1]].sum())
            filled = np.cumsum(documents.chunk_tokens[first:stop])
            needed = int(np.searchsorted(filled, left)) + 1
            chunks[-1] = min(stop - first, needed)
            if rng.random() < options.share:
                labels, chunks = _interleaved(chunks.tolist(), options, rng)
                # From here on, the document of each part.
                window = window[labels]
            drafts.append(Draft(window, chunks=chunks))
        return Drafted(drafts=drafts)


def _interleaved(
    chunks: list[int], options: UntieTheKnots, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Split documents of so many chunks, and interleave their parts.

    Returns the document and the number of chunks of each part, shape (parts,) each. The
    parts of a document are in order, and the last part of the last document is last;
    all such interleavings are equally likely.
    """
    # For each document, the number of chunks of its parts.
    sizes = [_part_sizes(count, options, rng) for count in chunks]
    part_counts = [len(document_sizes) for document_sizes in sizes]
    labels = np.repeat(np.arange(len(sizes)), part_counts)
    labels[:-1] = rng.permutation(labels[:-1])
    # The n-th occurrence of a document is its n-th part.
    chunks_of_part = np.empty(len(labels), np.int64)
    chunks_of_part[np.argsort(labels, kind="stable")] = np.concatenate(sizes)
    return labels, chunks_of_part


def _part_sizes(count: int, options: UntieTheKnots, rng: np.random.Generator) -> Ints:
    """Return the numbers of chunks, none of them 0, of the parts of a document."""
    parts = min(options.parts, count)
    if options.cuts == "even":
        cuts = np.arange(1, parts) * count // parts
    elif parts > 1:
        cuts = np.sort(rng.choice(np.arange(1, count), parts - 1, replace=False))
    else:
        cuts = np.arange(0)
    return np.diff(np.concatenate([[0], cuts, [count]]))


METHOD = _UntieTheKnotsMethod()
