"""Rows joined to longer ones keep every token and say where each sequence lies."""

import numpy as np

from nextlong.artifacts.blocks import Resolved, joined, packed, sliced

BLOCK = Resolved(
    sequence_ids=["a", "b", "c"],
    methods=["nextlong", "knn", "nextlong"],
    domains=["wiki", "wiki", "law"],
    token_offsets=np.array([0, 4, 6, 9]),
    input_ids=np.arange(9, dtype=np.int32),
    document_offsets=np.array([0, 1, 2, 3]),
    document_lengths=np.array([4, 2, 3], np.int32),
    span_offsets=np.array([0, 2, 3, 4]),
    chunk_ids=np.array([5, 6, 7, 8]),
    doc_ids=np.array([1, 2, 3, 4]),
    source_ids=np.array(list("wxyz"), object),
    metadata=np.array(["{}", None, None, None], object),
    char_starts=np.array([0, 1, 2, 3]),
    char_ends=np.array([4, 5, 6, 7]),
    roles=np.array([0, 1, 2, 0], np.int8),
    groups=np.array([0, 0, 0, 0], np.int32),
    token_starts=np.array([0, 3, 0, 0], np.int32),
    token_ends=np.array([3, 4, 2, 3], np.int32),
    scores=np.ones(4, np.float32),
)


def test_packed_rows_keep_boundaries_and_shift_spans():
    rows = packed(BLOCK, np.array([0, 2, 3]))
    assert (rows.sequence_ids, rows.methods, rows.domains) == (
        ["a b", "c"],
        ["nextlong+knn", "nextlong"],
        ["wiki", "law"],
    )
    assert rows.token_offsets.tolist() == [0, 6, 9]
    assert rows.document_offsets.tolist() == [0, 2, 3]
    assert rows.document_lengths.tolist() == [4, 2, 3]
    assert rows.span_offsets.tolist() == [0, 3, 4]
    assert rows.token_starts.tolist() == [0, 3, 4, 0]
    assert rows.token_ends.tolist() == [3, 4, 6, 3]
    assert (rows.token_starts.dtype, rows.input_ids is BLOCK.input_ids) == (
        np.int32,
        True,
    )


def test_one_row_each_changes_nothing():
    rows = packed(BLOCK, np.arange(4))
    assert rows.sequence_ids == BLOCK.sequence_ids
    assert rows.token_starts.tolist() == BLOCK.token_starts.tolist()
    assert rows.token_offsets.tolist() == BLOCK.token_offsets.tolist()


def test_joined_blocks_hold_the_rows_of_each_in_turn():
    twice = joined([BLOCK, packed(BLOCK, np.array([0, 3]))])
    assert twice.sequence_ids == ["a", "b", "c", "a b c"]
    assert twice.token_offsets.tolist() == [0, 4, 6, 9, 18]
    assert twice.document_offsets.tolist() == [0, 1, 2, 3, 6]
    assert twice.span_offsets.tolist() == [0, 2, 3, 4, 8]
    assert twice.token_starts.tolist() == [0, 3, 0, 0, 0, 3, 4, 6]
    assert twice.source_ids.tolist() == list("wxyzwxyz")


def test_a_slice_holds_its_rows_alone_and_slices_join_to_the_whole():
    rows = sliced(BLOCK, 1, 3)
    assert (
        rows.sequence_ids,
        rows.token_offsets.tolist(),
        rows.input_ids.tolist(),
    ) == (
        ["b", "c"],
        [0, 2, 5],
        [4, 5, 6, 7, 8],
    )
    assert (
        rows.document_lengths.tolist(),
        rows.span_offsets.tolist(),
        rows.chunk_ids.tolist(),
    ) == (
        [2, 3],
        [0, 1, 2],
        [7, 8],
    )
    whole = joined([sliced(BLOCK, 0, 1), rows])
    for name, column in vars(BLOCK).items():
        assert list(getattr(whole, name)) == list(column), name
