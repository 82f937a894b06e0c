import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exported_runs import TOKENS, breaches, change_json, folder_of, outcomes_of
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.sequences import check_sequences


def change_parquet(folder, change):
    path = min(folder.glob("*.parquet"))
    table = pq.read_table(path)
    rows = change(table.to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def in_row(number, change):
    """Return a change of one row that `change` alters in place."""

    def changed(rows):
        change(rows[number])
        return rows

    return changed


def test_torchtitans_rows_pass_as_written_and_are_known_when_altered(titan):
    assert breaches(titan) == {}
    held_out = outcomes_of(titan)["torchtitan-validation rows"].checked
    assert 0 < held_out < outcomes_of(titan)["torchtitan rows"].checked
    (sequences, *_) = check_sequences(Artefacts(titan))
    assert sequences.checked
    assert not sequences.breaches  # of TOKENS + 1 each
    change_parquet(folder_of(titan, "torchtitan"), in_row(1, lambda row: row["input_ids"].pop()))
    change = in_row(0, lambda row: row["input_ids"].__setitem__(5, 600))
    change_parquet(folder_of(titan, "torchtitan-validation"), change)
    change_parquet(
        folder_of(titan, "torchtitan"), in_row(2, lambda row: row.update(seq_lengths=[row["seq_lengths"][0]]))
    )
    found = breaches(titan)
    assert found["torchtitan-validation rows"][0].startswith("torchtitan-validation row 0: input_ids[5] is 600, should")
    assert "torchtitan row 1: 1,025 ids, should be 1,026" in found["torchtitan rows"]
    assert "torchtitan row 2: seq_lengths is [513], should be [513, 513]" in found["torchtitan rows"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row["input_ids"].__setitem__(7, 600), "input_ids[7] is 600, should be"),
        (lambda row: row["labels"].__setitem__(7, 600), "labels[7] is 600, should be"),
        (lambda row: row["labels"].__setitem__(7, -100), "labels[7] is -100, should be"),
        (lambda row: row["labels"].__setitem__(0, row["input_ids"][0]), "should be -100"),
        (lambda row: row["attention_mask"].__setitem__(7, 0), "attention_mask[7] is 0, should be 1"),
        (lambda row: row["attention_mask"].pop(), "511 attention_mask, should be 512"),
    ],
)
def test_an_altered_axolotl_row(run, change, problem):
    change_parquet(folder_of(run, "axolotl"), in_row(2, change))
    (wrong,) = breaches(run)["axolotl rows"]
    assert wrong.startswith("axolotl row 2: ")
    assert problem in wrong


def test_megatron_documents_without_the_end_that_the_recipe_asks_for(run):
    path = folder_of(run, "megatron") / "manifest.json"
    change_json(path, lambda manifest: manifest["config"].update(megatron_eod=None))
    assert breaches(run)["megatron rows"][0] == f"megatron row 0: {TOKENS + 1} ids, should be {TOKENS}"
    change_json(path, lambda manifest: manifest["config"].update(megatron_eod="<|nothing|>"))
    assert "'<|nothing|>', which should end each document, is not a token" in breaches(run)["megatron rows"][0]
