"""Lengths: how long the documents of the corpus are, from their chunks alone; how many bytes a token holds."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from nextlong.artefacts.chunks import read_chunks
from nextlong.runs.opened import Run
from nextlong.runs.tally import Tally

_WEIGHED_SEQUENCES: Final = 16  # at most


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


def bytes_per_token(run: Run) -> float:
    """Return UTF-8 bytes per token of sequences spread over a run, all of a small one; their text is read."""
    spread = map(run.sequence, range(0, len(run), math.ceil(len(run) / _WEIGHED_SEQUENCES)))
    sizes = [(len(sequence.text.encode()), len(sequence.input_ids)) for sequence in spread]
    text_bytes, tokens = map(sum, zip(*sizes, strict=True))
    return text_bytes / tokens
