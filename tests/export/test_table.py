import numpy as np
import pytest

from nextlong.export.table import IGNORED, SCHEMA, TRAINING, to_table
from random_rows import joined, random_blocks


@pytest.fixture
def block():
    return joined(random_blocks(3, rows=5, longest=40, per_row=2))


def test_columns_are_those_asked_for_of_the_types_that_were_promised(block):
    assert to_table(block).schema.types == SCHEMA.types
    asked = to_table(block, ("labels", "length"))
    assert asked.column_names == ["labels", "length"]
    assert asked.schema.field("labels").type == TRAINING.field("labels").type


def test_each_row_has_its_ids_and_the_lengths_of_its_documents(block):
    for row, (first, last) in zip(
        to_table(block).to_pylist(), zip(block.token_offsets, block.token_offsets[1:], strict=False), strict=True
    ):
        assert row["input_ids"] == block.input_ids[first:last].tolist()
        assert sum(row["seq_lengths"]) == row["length"] == len(row["input_ids"])
        assert row["spans"][-1]["token_end"] == row["length"]


def test_no_label_asks_what_a_document_begins_with(block):
    for row in to_table(block, ("input_ids", "seq_lengths", "labels", "attention_mask")).to_pylist():
        begins = np.cumsum([0, *row["seq_lengths"]])[:-1].tolist()
        expected = [IGNORED if place in begins else token for place, token in enumerate(row["input_ids"])]
        assert row["labels"] == expected
        assert row["attention_mask"] == [1] * len(expected)
