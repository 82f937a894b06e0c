from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.export.formats.base import COLUMNS, rows_of, schema_of, to_table
from random_rows import joined, options, random_blocks

IGNORED = -100


def rows_with(block, columns=COLUMNS, **keys):
    """Return the rows of a block, through a table and back."""
    schema = schema_of(columns, keys)
    table = to_table(block, schema.names, options(**keys))
    assert table.schema.types == schema.types
    return [row for batch in table.to_batches() for row in rows_of(batch)]


@pytest.fixture
def block():
    return joined(random_blocks(3, rows=5, longest=40, per_row=2))


def test_columns_are_those_asked_for_of_the_types_that_were_promised(block):
    assert to_table(block, COLUMNS, options()).schema.types == schema_of(COLUMNS).types
    assert to_table(block, ("labels", "length"), options()).column_names == ["labels", "length"]


def test_each_row_has_its_ids_and_the_lengths_of_its_documents(block):
    for row, (first, last) in zip(rows_with(block), pairwise(block.token_offsets), strict=True):
        assert row["input_ids"].tolist() == block.input_ids[first:last].tolist()
        assert sum(row["seq_lengths"]) == row["length"] == len(row["input_ids"])
        assert row["spans"]["token_end"][-1] == row["length"]


def test_no_label_asks_what_a_document_begins_with(block):
    for row in rows_with(block, ("input_ids", "seq_lengths", "labels", "attention_mask")):
        begins = np.cumsum([0, *row["seq_lengths"]])[:-1].tolist()
        expected = [IGNORED if place in begins else token for place, token in enumerate(row["input_ids"].tolist())]
        assert row["labels"].tolist() == expected
        assert row["attention_mask"].tolist() == [1] * len(expected)


@given(seed=st.integers(0, 2**32), multiple=st.sampled_from([2, 4, 7, 16, 512]), eos_id=st.sampled_from([None, 9]))
def test_padding_moves_documents_apart_and_changes_nothing_in_them(seed, multiple, eos_id):
    block = joined(random_blocks(seed, rows=8, longest=40, per_row=3))
    columns = (*COLUMNS, "seq_lengths_padded", "labels")
    padded = options(eos_id=eos_id, pad_documents_to=multiple)
    (batch,) = to_table(block, columns, padded).to_batches()
    for row, plain in zip(rows_of(batch), rows_with(block, (*COLUMNS, "labels")), strict=True):
        assert row["seq_lengths"] == plain["seq_lengths"]
        assert all(room % multiple == 0 <= room - length < multiple for room, length in both_lengths(row))
        assert row["length"] == len(row["input_ids"]) == len(row["labels"]) == sum(row["seq_lengths_padded"])
        true = np.concatenate([[True] * length + [False] * (room - length) for room, length in both_lengths(row)])
        for name in ("input_ids", "labels"):
            assert row[name][true].tolist() == plain[name].tolist()
        assert set(row["input_ids"][~true].tolist()) <= {eos_id or 0}
        assert set(row["labels"][~true].tolist()) <= {IGNORED}
        for span in zip(*(spans[key] for spans in (row["spans"], plain["spans"]) for key in ENDS), strict=True):
            first, last, plain_first, plain_last = span
            assert row["input_ids"][first:last].tolist() == plain["input_ids"][plain_first:plain_last].tolist()
            assert true[first:last].all()
        others = row["spans"].keys() - {*ENDS, "score"}
        assert all(row["spans"][key] == plain["spans"][key] for key in others)


ENDS = ("token_start", "token_end")


def both_lengths(row):
    return list(zip(row["seq_lengths_padded"], row["seq_lengths"], strict=True))
