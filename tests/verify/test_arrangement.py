"""Rows that hold a sequence twice or not at all, or whose splits are not apart, are found out."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import total
from exported_runs import FORMATS, SEQUENCES, breaches, change_json, folder_of
from nextlong.export.arrange import packed as packed_rows
from nextlong.runs import export as runs_export
from nextlong.schemas import SEQUENCE_INDEX
from nextlong.verify.exports import _row_problems, _SplitRows


@pytest.fixture(scope="session")
def finished(exported_run):
    return exported_run


def change_rows(run, change, split="train"):
    """Alter index and offsets of a split of the recorded rows; `change` gets both and returns both."""
    paths = [folder_of(run, "rows") / f"part-00000.{split}.{kind}.npy" for kind in ("index", "offsets")]
    for path, array in zip(paths, change(*map(np.load, paths)), strict=True):
        np.save(path, array)


def row_breaches(run):
    return breaches(run)["rows hold each sequence once"]


def with_field(field, at, value):
    def change(index, offsets):
        index[field][at] = value
        return index, offsets

    return change


def test_rows_of_wrong_sequences_lengths_and_keys(run):
    change_rows(run, with_field("length", 3, 511))
    assert "train: length of sequence 3 is 511, should be 512" in row_breaches(run)[0]
    change_rows(run, with_field("length", 3, 512))
    change_rows(run, with_field("key", 3, 5))
    assert "train: key of sequence 3 is 0000000000000005, should be " in row_breaches(run)[0]


def test_a_sequence_twice_and_one_in_no_row(run):
    def change(index, offsets):
        index[1] = index[0]
        return index, offsets

    change_rows(run, change)
    found = "\n".join(row_breaches(run))
    assert "sequence 0 is in the rows 2 times" in found
    assert "1 sequences are in no row, its manifest says 0" in found
    assert ": sequence 1 is in no row" in found
    assert len(breaches(run)) == 1 + len(FORMATS)  # and every export has another second row


def test_a_sequence_that_is_not_of_the_data_set(run):
    change_rows(run, with_field("place", 0, 1000))
    assert "index[0] names sequence 1000 of part 0, which is not of the data set" in row_breaches(run)[0]


def test_rows_that_are_swapped(run):
    change_rows(run, lambda index, offsets: (index[[1, 0, *range(2, SEQUENCES)]], offsets))
    assert row_breaches(run)[0].endswith("row 1 begins with sequence 0, the row before with 1")


def test_rows_packed_too_full_or_not_full_enough(packed):
    change_rows(packed, lambda index, offsets: (index, np.delete(offsets, 1)))
    assert "train: row 0 has 2,048 tokens, more than pack=1,024" in row_breaches(packed)[0]
    change_rows(packed, lambda index, offsets: (index, np.concatenate([[0, 1, 2, 3, 4], offsets[2:]])))
    found = "\n".join(row_breaches(packed))
    assert "rows 0 and 1 have 512 and 512 tokens, which fit into one of 1,024" in found
    assert "its manifest records {'rows'" in found


def test_offsets_that_are_none(run):
    change_rows(run, lambda index, offsets: (index, offsets[:-1]))
    assert "does not divide 12 sequences into rows" in row_breaches(run)[0]


def test_a_sequence_of_validation_in_train(packed):
    held_out = np.load(folder_of(packed, "rows") / "part-00000.validation.index.npy")

    def change(index, offsets):
        index[0] = held_out[0]
        return index, offsets

    change_rows(packed, change)
    (found,) = breaches(packed)["train and validation apart"]
    number = f"{held_out['key'][0]:016x}"
    assert f"of train is made of document {number}, as is one of validation" in found


@pytest.fixture
def parted(exported_run, tmp_path):
    """A copy divided by chunk too, to damage: some sequences share a chunk with validation and are in neither split."""
    run_dir = Path(shutil.copytree(exported_run, tmp_path / "parted"))
    asked = ["export.validation=0.4", "export.shared_chunks=leave-out", "workers=1"]
    done = runs_export.export([run_dir], formats=["axolotl"], overrides=asked).done
    assert total(done["rows"], "left_out")
    assert len(read_index(run_dir, "train"))
    return run_dir


def read_index(run, split):
    return np.load(folder_of(run, "rows") / f"part-00000.{split}.index.npy")


def test_what_shares_a_chunk_is_left_out_and_nothing_else(parted):
    assert breaches(parted) == {}
    drawn = np.load(min(parted.glob("*-rows-*/part-00000.train.index.npy")))  # undivided, of the run itself
    train, validation = read_index(parted, "train"), read_index(parted, "validation")
    left_out, *_ = np.flatnonzero(~np.isin(drawn, np.concatenate([train, validation])))
    (kept,) = np.flatnonzero(drawn == train[-1])

    def change(index, offsets):
        index[-1] = drawn[left_out]
        return index, offsets

    change_rows(parted, change)
    found = breaches(parted)["train and validation apart"]
    assert len(found) == 2
    assert any(f"sequence {left_out} of train has " in example for example in found)
    assert any(f"sequence {kept} is left out, but shares no chunk with validation" in example for example in found)


def test_a_split_that_keeps_shared_chunks_leaves_nothing_out(parted):
    path = folder_of(parted, "rows") / "manifest.json"
    change_json(path, lambda manifest: manifest["config"].update(shared_chunks="keep"))
    assert row_breaches(parted)[0].endswith("is in no row")


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_rows_packed_best_fit_are_sound_whatever_the_lengths(lengths):
    index = np.zeros(len(lengths), SEQUENCE_INDEX)
    index["length"], index["place"] = lengths, np.arange(len(lengths))
    split = _SplitRows(*packed_rows(index, row_tokens=100))
    assert list(_row_problems(split, 100, split.index["place"].astype(np.int64))) == []
