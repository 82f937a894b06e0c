import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods.base import Neighbours, stretches

TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def test_stretches_by_hand():
    tokens = np.array([3, 5, 2, 4, 1])
    pieces = stretches(np.array([4, 0, 1, 2, 3]), tokens, enough=4)
    assert [piece.tolist() for piece in pieces] == [[4, 0], [1], [2, 3]]
    assert [
        piece.tolist()
        for piece in stretches(np.arange(5), tokens, enough=4, sequences=1)
    ] == [[0, 1]]


@given(tokens=TOKENS, enough=st.integers(1, 20))
def test_each_stretch_just_reaches_what_is_enough_and_the_rest_does_not(tokens, enough):
    counts = np.array(tokens)
    pieces = stretches(np.arange(len(counts)), counts, enough=enough)
    for piece in pieces:
        assert counts[piece].sum() >= enough > counts[piece[:-1]].sum()
    placed = np.concatenate([np.empty(0, np.int64), *pieces])
    assert placed.tolist() == list(range(len(placed)))
    assert counts[len(placed) :].sum() < enough


def test_neighbours_as_rows_of_equal_length():
    near = Neighbours(
        queries=np.array([0, 2, 3]),
        offsets=np.array([0, 2, 2, 3]),
        documents=np.array([5, 1, 4]),
        cosines=np.array([0.9, 0.5, 0.7], np.float32),
    )
    documents, cosines = near.table()
    assert documents.tolist() == [[5, 1], [-1, -1], [4, -1]]
    assert cosines[:, 0].tolist() == np.array([0.9, -1, 0.7], np.float32).tolist()
