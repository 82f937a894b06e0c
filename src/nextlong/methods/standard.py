"""Standard: concatenate documents in random order until a sequence is full.

This is the standard baseline: the documents of a sequence are unrelated, and no
document is in two sequences. Documents are shuffled by keyed hashes of their contents,
so another sharding or file order gives the same sequences.
"""

from __future__ import annotations

from nextlong.methods.base import (
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    stretches,
)
from nextlong.recipe import Section
from nextlong.rng import shuffled


class Standard(DocumentMethod[Section]):
    name = "standard"

    def draft(
        self, documents: CorpusArrays, options: Section, request: DraftRequest
    ) -> Drafted:
        order = shuffled(documents.content_hashes, seed=request.seed, stage=self.name)
        pieces = stretches(
            order,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
        )
        return Drafted(drafts=[Draft(piece) for piece in pieces])


METHOD = Standard()
