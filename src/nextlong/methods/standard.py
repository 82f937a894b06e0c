"""Standard: documents in random order, one after the other, until a sequence is full.

The baseline of every paper on long sequences: nothing in a sequence belongs together, and no document is in two. The shuffle
sorts keyed hashes of the documents' contents, so that another sharding or file order gives the same sequences.
"""

from __future__ import annotations

from nextlong.methods.base import CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, stretches
from nextlong.recipe import Section
from nextlong.rng import shuffled


class Standard(DocumentMethod[Section]):
    name = "standard"

    def draft(self, documents: CorpusArrays, options: Section, request: DraftRequest) -> Drafted:
        order = shuffled(documents.content_hashes, seed=request.seed, stage=self.name)
        pieces = stretches(order, documents.tokens, enough=request.target_tokens, sequences=request.sequences)
        return Drafted(drafts=[Draft(piece) for piece in pieces])


METHOD = Standard()
