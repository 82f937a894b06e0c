import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import RecipeError
from nextlong.export.pack import pack


def rows_of(packed):
    return [part.tolist() for part in np.split(packed.order, packed.offsets[1:-1])]


def test_eight_of_65536_fill_a_row():
    packed = pack(np.full(20, 65_536), row_tokens=524_288)
    assert rows_of(packed) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_each_goes_where_the_least_room_suffices():
    packed = pack(np.array([3, 6, 5, 4, 2]), row_tokens=10)
    assert rows_of(packed) == [[0, 2, 4], [1, 3]]


def test_a_sequence_longer_than_a_row():
    with pytest.raises(RecipeError, match="pack=10 tokens a row cannot hold sequence 1, which has 11"):
        pack(np.array([1, 11]), row_tokens=10)


def test_nothing_to_pack():
    packed = pack(np.empty(0, np.int64), row_tokens=10)
    assert (packed.order.tolist(), packed.offsets.tolist()) == ([], [0])


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 90))
def test_packing_loses_nothing_and_overfills_no_row(lengths, row_tokens):
    lengths = np.array(lengths, np.int64)
    packed = pack(lengths, row_tokens=row_tokens)
    rows = rows_of(packed) if len(lengths) else []
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    tokens = np.array([lengths[row].sum() for row in rows])
    assert all((tokens > 0) & (tokens <= row_tokens))
    assert [row[0] for row in rows] == sorted(min(row) for row in rows)
    assert len(rows) < 2 or np.sort(tokens)[:2].sum() > row_tokens  # no two rows would fit into one
