"""Reference: the rows that a reader must find in a run's latest export, taken from the run itself, not from exported files.

    python tests/support/reference_rows.py RUN INTO

writes INTO/train.json, and INTO/validation.json if there is such a split: a list of
{"input_ids", "seq_lengths", "text"}.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

import nextlong
from nextlong.export.arrange import RowsResult


def rows_of(run, split):
    """Yield each row of a split of what the run exported last."""
    index, offsets = (
        np.load(run.steps["rows"].file(f".{split}.{kind}.npy"))
        for kind in ("index", "offsets")
    )
    firsts = np.cumsum([0, *run.sequences_per_part])
    numbers = (firsts[index["part"]] + index["place"]).tolist()
    for first, last in pairwise(offsets.tolist()):
        sequences = [run.sequence(number) for number in numbers[first:last]]
        yield {
            "input_ids": np.concatenate(
                [sequence.input_ids for sequence in sequences]
            ).tolist(),
            "seq_lengths": [len(sequence.input_ids) for sequence in sequences],
            "text": "".join(sequence.text for sequence in sequences),
        }


def write_references(run, into):
    """Write one file a split."""
    for split in run.steps["rows"].result(RowsResult).splits:
        (into / f"{split}.json").write_text(
            json.dumps(list(rows_of(run, split))), encoding="utf-8"
        )


if __name__ == "__main__":
    write_references(nextlong.open(sys.argv[1]), Path(sys.argv[2]))
