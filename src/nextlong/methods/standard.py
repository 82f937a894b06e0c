"""Standard: documents in random order, one after the other, until a sequence is full.

In:  the content hash and the tokens of every document.
Out: stretches of one keyed shuffle: positions of documents, no document in two of them.

The baseline of every paper on long sequences: nothing in a sequence belongs together. The shuffle sorts keyed hashes of
the documents' contents, so that another sharding or file order gives the same sequences.
"""

from __future__ import annotations

from nextlong.methods.base import CorpusArrays, DocumentMethod, Draft, Drafted, DraftRequest, stretches
from nextlong.recipe import Section
from nextlong.rng import shuffled


class Standard(DocumentMethod[Section]):
    """Documents in random order."""

    name = "standard"

    def draft(self, documents: CorpusArrays, options: Section, request: DraftRequest) -> Drafted:
        """Return stretches of one shuffle."""
        order = shuffled(documents.content_hashes, seed=request.seed, stage=self.name)
        pieces = stretches(order, documents.tokens, enough=request.target_tokens, sequences=request.sequences)
        return Drafted(drafts=[Draft(piece) for piece in pieces])


METHOD = Standard()
