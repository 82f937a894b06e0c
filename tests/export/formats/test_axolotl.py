import pyarrow.parquet as pq
import pytest

import nextlong
from nextlong.errors import NextlongError
from nextlong.runs import export as runs_export

T = 2048


def export(runs, **asked):
    """Export and return the finished steps."""
    return runs_export.export(runs, **asked).done


def rows_of(folder):
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def sequences(shared_run):
    return {sequence.id: sequence.input_ids.tolist() for sequence in nextlong.open(shared_run).sequences()}


def test_axolotl_gets_masks_and_labels_that_pass_over_a_first_token(own_run, sequences):
    done = export([own_run], formats=["axolotl"])
    rows = rows_of(done["axolotl"].folder)
    assert [row["input_ids"] for row in rows] == list(sequences.values())
    assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)
    assert all(row["attention_mask"] == [1] * T for row in rows)
    with pytest.raises(NextlongError, match="axolotl takes a packed row for one document"):
        export([own_run], formats=["axolotl"], overrides=["export.pack=4096"])
