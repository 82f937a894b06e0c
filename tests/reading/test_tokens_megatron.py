"""Files of Megatron-LM: our own export, documents of several sequences, and damaged pairs."""

import numpy as np
import pytest
from tests.support.exported_runs import exported
from tests.support.tokenized import (
    TEXTS,
    megatron_index,
    read_tokens,
    texts_of_rows,
    tokenizer_at,
    with_ends,
)

import nextlong
from nextlong.errors import CorpusError
from nextlong.reading.tokens_megatron import FORMAT, read_index


@pytest.fixture
def pair(tmp_path):
    """Six documents; the first has two sequences, as of a split at sentences."""
    tokenizer = tokenizer_at(tmp_path / "tokenizer.json")
    documents = with_ends(tokenizer)
    lengths = [len(ids) for ids in documents]
    lengths[:1] = [3, lengths[0] - 3]
    index = megatron_index(lengths, [0, 2, 3, 4, 5, 6, 7])
    (tmp_path / "a.bin").write_bytes(np.concatenate(documents).astype("<u2").tobytes())
    (tmp_path / "a.idx").write_bytes(index)
    return tmp_path / "a.idx"


def test_documents_are_those_of_the_index(pair):
    items = read_tokens(pair, tokenizer=str(pair.parent))
    assert [item.text for item in items] == TEXTS


def test_what_lies_beside_is_no_document(pair):
    (pair.parent / "blend.txt").write_text("3 a\n")
    (pair.parent / "README.md").write_text("about")
    items = read_tokens(pair.parent, tokenizer=str(pair.parent), format="megatron")
    assert len(items) == 6


def test_an_export_has_the_texts_of_its_sequences(own_run):
    """As rows: the parts of a sequence were tokenized one by one, so as documents they are rejected."""
    run = nextlong.open(own_run)
    done = exported([own_run], formats=["megatron"], overrides=["workers=1"])
    texts = texts_of_rows(
        FORMAT, done["megatron"].folder, run.steps["tokenizer"].file(".tokenizer.json")
    )
    assert texts == [sequence.text for sequence in run.sequences()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.with_suffix(".bin").unlink(),
        lambda path: path.write_bytes(b"MMIDIDX"),
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b"other" * 20),
        lambda path: path.with_suffix(".bin").write_bytes(b"odd"),
        lambda path: path.write_bytes(megatron_index([5], [0, 1], code=6)),
    ],
)
def test_a_damaged_pair(pair, damage):
    damage(pair)
    with pytest.raises(CorpusError) as error:
        read_tokens(pair, tokenizer=str(pair.parent))
    assert error.value.where.endswith("a.idx")


@pytest.mark.parametrize(
    ("lengths", "bounds", "version", "value"),
    [
        ([2, 3], [0, 9], 1, "0 to 9, not 0 to 2"),
        ([2, 3], [0, 1], 1, "0 to 1, not 0 to 2"),
        ([2, 3], [1, 2], 1, "1 to 2, not 0 to 2"),
        ([2, 3], [0, 2, 1, 2], 1, "1 after 2"),
        ([2, 3], [0, -1, 2], 1, "-1 after 0"),
        ([2, 3], [], 1, "no bounds"),
        ([], [], 1, "no bounds"),
        ([7, -2], [0, 2], 1, "-2 ids"),
        ([2, 3], [0, 2], 7, "version 7"),
    ],
)
def test_an_index_whose_documents_are_not_all_sequences_in_order(
    pair, lengths, bounds, version, value
):
    index = megatron_index(lengths, bounds, version=version)
    pair.write_bytes(index)
    pair.with_suffix(".bin").write_bytes(bytes(2 * sum(lengths)))
    with pytest.raises(CorpusError, match=value) as error:
        read_tokens(pair, tokenizer=str(pair.parent))
    assert error.value.where.endswith("a.idx")


@pytest.mark.parametrize("count", [1 << 33, 1 << 60, (1 << 64) - 1])
@pytest.mark.parametrize("place", [18, 26])
def test_an_index_with_a_damaged_count(count, place):
    index = bytearray(megatron_index([2, 3], [0, 2]))
    index[place : place + 8] = count.to_bytes(8, "little")
    with pytest.raises(ValueError, match="it is truncated"):
        read_index(bytes(index))


def test_documents_without_sequences_are_empty():
    index = read_index(megatron_index([2, 3], [0, 1, 1, 2]))
    assert np.diff(index.ends[index.documents]).tolist() == [2, 0, 3]
