"""Lengths: how long the documents of the corpus are, from their chunks alone."""

from __future__ import annotations

import numpy as np

from nextlong.artefacts.chunks import read_chunks
from nextlong.runs.opened import Run
from nextlong.runs.tally import Tally


def document_chars(run: Run) -> Tally:
    """Count the characters of every document's chunks, a shard at a time."""
    lengths = Tally()
    for path in run.corpus.chunks:
        columns = read_chunks(path, ("doc_row", "start", "end"))
        rows = columns["doc_row"]
        if len(rows):
            firsts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))
            lengths.add(np.add.reduceat(columns["end"] - columns["start"], firsts))
    return lengths
