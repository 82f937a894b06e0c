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
from nextlong.reading.tokens_megatron import FORMAT


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
