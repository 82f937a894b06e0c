"""Cut off: what the ends of sequences leave away of the documents that a method puts one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts import lookup
from nextlong.artefacts.chunks import read_chunks
from nextlong.artefacts.finished import special_ids
from nextlong.methods.documents import joint_follows
from nextlong.runs.opened import Run
from nextlong.runs.tally import Tally


@dataclass(frozen=True)
class CutOff:
    """Of the `of_tokens` of the documents that sequences take, each counted as often as it is taken, so many are in none."""

    tokens: int
    of_tokens: int

    @property
    def share(self) -> float:
        """Return what part of the documents' tokens is cut off."""
        return self.tokens / max(1, self.of_tokens)


def measure_cut_off(run: Run, taken: Tally, *, tokens: int) -> CutOff | None:
    """Return what is cut off where `tokens` of documents stand in sequences; None of a method that counted no whole documents.

    `taken` counts each document, by its id, once for every sequence that it stands in.
    """
    doc_ids, uses = taken.counted()
    if "lengths" not in run.steps or not len(doc_ids):
        return None
    lengths, joint_tokens = run.steps["lengths"].files(".lengths.npy"), len(special_ids(run.steps).joint)

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        table = read_chunks(run.corpus.chunks[shard])
        chunk_tokens = np.load(lengths[shard]) - joint_tokens * joint_follows(table)
        return [np.bincount(table["doc_row"], weights=chunk_tokens)[rows]]

    (document_tokens,) = lookup.by_shard(doc_ids, load)
    of_tokens = int(document_tokens @ uses)
    return CutOff(of_tokens - tokens, of_tokens)
