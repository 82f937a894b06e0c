"""Negatives: which documents they come from, and how many say nearly the same as the meta-chunk they stand beside.

In:  blocks of spans, in the order of the run's sequences. Out: tokens of negatives by document, and `NearIdentical`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from nextlong import schemas
from nextlong.runs.spans import Block
from nextlong.runs.tally import Tally

NEAR_IDENTICAL_COSINE: Final = 0.95  # docs/warnings.md has what corpora show


@dataclass(frozen=True)
class NearIdentical:
    """How many negatives have a cosine of at least `cosine`; `sequence`, counted from 0, holds the most of them, `most`."""

    cosine: float
    negatives: int
    share: float
    sequence: int | None
    most: int


class Negatives:
    """The sums over all blocks so far."""

    def __init__(self) -> None:
        self.tokens_of_document = Tally()
        self._negatives = self._near = self._most = self._sequences = 0
        self._sequence: int | None = None

    def add(self, block: Block) -> None:
        """Count the negatives of the next sequences."""
        negatives = block.of(schemas.NEGATIVE)
        self.tokens_of_document.add(negatives.doc_ids, negatives.lengths)
        held = int(block.sequence[-1]) + 1
        near = np.bincount(negatives.sequence[negatives.scores >= NEAR_IDENTICAL_COSINE], minlength=held)
        if near.max() > self._most:
            self._most, self._sequence = int(near.max()), self._sequences + int(near.argmax())
        self._negatives += len(negatives.roles)
        self._near += int(near.sum())
        self._sequences += held

    def near_identical(self) -> NearIdentical | None:
        """Return the counts, None where there are no negatives."""
        if not self._negatives:
            return None
        return NearIdentical(
            NEAR_IDENTICAL_COSINE, self._near, self._near / self._negatives, self._sequence, self._most
        )
