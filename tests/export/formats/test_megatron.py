"""Megatron pairs: bytes by hand, and random documents read back."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.random_rows import documents_of, options, random_blocks, read_back

from nextlong.artifacts.blocks import Resolved
from nextlong.export.formats import megatron


def block_of(*documents):
    """One packed row of documents; of its other columns nothing is read here."""
    lengths = np.array([len(document) for document in documents], np.int32)
    nothing = np.empty(0, np.int64)
    return Resolved(
        sequence_ids=["a b"],
        methods=["nextlong"],
        domains=["wiki"],
        token_offsets=np.array([0, lengths.sum()]),
        input_ids=np.concatenate(documents).astype(np.int32),
        document_offsets=np.array([0, len(documents)]),
        document_lengths=lengths,
        **dict.fromkeys(
            (
                "span_offsets",
                "chunk_ids",
                "doc_ids",
                "source_ids",
                "metadata",
                "char_starts",
                "char_ends",
                "roles",
                "groups",
            ),
            nothing,
        ),
        **dict.fromkeys(("token_starts", "token_ends", "scores"), nothing),
    )


def write(folder, blocks, name="part-00003", *, eod=None, **given):
    return megatron.FORMAT.write(
        folder / name, blocks, options(megatron_eod=eod, **given)
    )


def test_a_pair_byte_for_byte(tmp_path):
    counts = write(tmp_path, [block_of([7, 8, 128_255], [9])])
    assert (tmp_path / "part-00003.bin").read_bytes() == struct.pack(
        "<4i", 7, 8, 128_255, 9
    )
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3)
    expected += (
        struct.pack("<2i", 3, 1)
        + struct.pack("<2q", 0, 12)
        + struct.pack("<3q", 0, 1, 2)
    )
    assert (tmp_path / "part-00003.idx").read_bytes() == expected
    assert counts == megatron._MegatronShard(rows=1, tokens=4, prefix="part-00003")


@pytest.mark.parametrize(
    ("vocab_size", "code", "bytes_per_id"), [(65_499, 8, 2), (65_500, 4, 4)]
)
def test_ids_are_uint16_where_megatron_has_them_so(
    tmp_path, vocab_size, code, bytes_per_id
):
    write(tmp_path, [block_of([1, 65_498], [2, 3])], vocab_size=vocab_size)
    index = (tmp_path / "part-00003.idx").read_bytes()
    assert (index[17], struct.unpack_from("<2q", index, 42)) == (
        code,
        (0, 2 * bytes_per_id),
    )
    assert (tmp_path / "part-00003.bin").stat().st_size == 4 * bytes_per_id


def test_an_eod_ends_every_document_once_and_counts(tmp_path):
    counts = write(tmp_path, [block_of([7, 8], [9, 0]), block_of([5])], eod=0)
    megatron.FORMAT.close(tmp_path, [counts])
    rows = [row["input_ids"].tolist() for row in read_back(tmp_path, "megatron")]
    assert rows == [[7, 8, 0], [9, 0], [5, 0]]
    assert counts.tokens == 7


@given(
    seed=st.integers(0, 2**32),
    per_row=st.sampled_from([1, 4]),
    vocabulary=st.sampled_from([300, 128_256]),
)
@pytest.mark.parametrize("eod", [None, 299])
def test_documents_come_back(tmp_path_factory, seed, per_row, vocabulary, eod):
    folder = tmp_path_factory.mktemp("megatron")
    blocks = random_blocks(seed, rows=12, per_row=per_row, vocabulary=vocabulary)
    megatron.FORMAT.close(
        folder, [write(folder, blocks, vocab_size=vocabulary, eod=eod)]
    )
    expected = [
        ids + [eod] * (eod is not None and ids[-1] != eod)
        for ids in documents_of(blocks)
    ]
    assert [
        row["input_ids"].tolist() for row in read_back(folder, "megatron")
    ] == expected


def test_no_rows_are_an_empty_pair(tmp_path):
    counts = write(tmp_path, [])
    megatron.FORMAT.close(tmp_path, [counts])
    assert (counts.rows, counts.tokens) == (0, 0)
    assert read_back(tmp_path, "megatron") == []


def test_the_blend_lists_the_shards_by_their_tokens(tmp_path):
    counts = [
        write(tmp_path, [block_of(ids)], name)
        for name, ids in (("part-00000", [1, 2, 3]), ("part-00001", [4]))
    ]
    megatron.FORMAT.close(tmp_path, counts)
    assert (tmp_path / "blend.txt").read_text() == "3 part-00000\n1 part-00001\n"
