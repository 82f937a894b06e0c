import pytest

from exported_runs import exported, parquet_rows
from nextlong.errors import NextlongError

T = 2048


def test_axolotl_gets_masks_and_labels_that_pass_over_a_first_token(own_run, shared_ids):
    done = exported([own_run], formats=["axolotl"])
    rows = parquet_rows(done["axolotl"].folder)
    assert [row["input_ids"] for row in rows] == list(shared_ids.values())
    assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)
    assert all(row["attention_mask"] == [1] * T for row in rows)
    with pytest.raises(NextlongError, match="axolotl takes a packed row for one document"):
        exported([own_run], formats=["axolotl"], overrides=["export.pack=4096"])
