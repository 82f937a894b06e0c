"""LiteLong: documents about one topic, found by BM25 (arXiv 2509.15568).

The paper's method (§3) and its published data steps (caskcsg/longcontext, 88fbeb8):
topics are searched for with BM25, 20 documents each; equal texts are removed; the
others are shuffled and joined until a sequence is full, at most 4 sequences a topic.

Ours: sequences have exactly T tokens. The document at which a sequence is full is cut,
and the next one begins the next sequence; the published loop skips a document at each
limit. A topic whose documents do not fill a sequence is followed by the next topic,
and that sequence counts for the first of them. A document of several topics may be in
several sequences, but never twice in one. The paper's topics come from a debate of
models; see `topics.py` for ours. How the authors combine this with NExtLong is not
published, and nothing here claims to do so.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from nextlong.arrays import Hashes, Ints
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
from nextlong.methods.topics import CLUSTERS, Topics
from nextlong.recipe.keys import Positive
from nextlong.rng import rng_for, shuffled


class LiteLong(Topics):
    """Options of `compose.method: litelong`: documents about one topic."""

    rows: Positive = Field(
        4, description="maximum number of sequences that begin with a topic"
    )


class _LiteLongMethod(DocumentMethod[LiteLong]):
    name = "litelong"
    citation = Citation(
        key="jia2025litelong",
        title="LiteLong: Resource-Efficient Long-Context Data Synthesis for LLMs",
        authors="Jia, Junlong and Wu, Xing and Gao, Chaochen and others",
        arxiv="2509.15568",
    )
    Options = LiteLong
    needs = frozenset({Need.TOPICS})

    def describe(self, options: LiteLong) -> str:
        """Return the name and the origin of the topics, which decides the quality."""
        if options.topics == CLUSTERS:
            return f"{self.name} (topics: words of the corpus's clusters)"
        return f"{self.name} (topics: {options.topics})"

    def repeats_documents(self, options: LiteLong) -> bool:
        return True  # a document may be a hit of several topics

    def draft(
        self, documents: CorpusArrays, options: LiteLong, request: DraftRequest
    ) -> Drafted:
        found = documents.topic_hits
        assert found is not None
        drafts: list[Draft] = []
        hashes = documents.content_hashes
        # Documents that fill no sequence yet, each once.
        waiting = np.empty(0, np.int64)
        for topic in shuffled(found.keys, seed=request.seed, stage=self.name).tolist():
            if len(drafts) == request.sequences:
                break
            order = rng_for(request.seed, "litelong.order", int(found.keys[topic]))
            hits = order.permutation(_distinct(found.of(topic), hashes))
            carried = len(waiting)
            is_new = ~np.isin(hits, waiting)
            waiting = np.concatenate([waiting, hits[is_new]])
            wanted = options.rows + (1 if carried else 0)
            if request.sequences is not None:
                wanted = min(wanted, request.sequences - len(drafts))
            pieces = stretches(
                waiting,
                documents.tokens,
                enough=request.target_tokens,
                sequences=wanted,
            )
            drafts += [Draft(piece) for piece in pieces]
            waiting = waiting[sum(map(len, pieces)) :]
            # What more sequences of the topic would hold is not used.
            if len(pieces) == wanted:
                waiting = waiting[:0]
        return Drafted(drafts=drafts)


def _distinct(hits: Ints, content_hashes: Hashes) -> Ints:
    """Return the documents of a topic without repeated contents, sorted by them."""
    _, firsts = np.unique(content_hashes[hits], return_index=True)
    return hits[firsts]


METHOD = _LiteLongMethod()
