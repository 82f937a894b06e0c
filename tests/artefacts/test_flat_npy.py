import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nextlong.artefacts.flat_npy import opened, write_header


@given(
    stored=arrays.arrays(
        st.sampled_from([np.int64, np.uint32, np.float16]), arrays.array_shapes(min_dims=1, max_dims=2, min_side=0)
    )
)
def test_an_array_is_opened_as_numpy_loads_it(tmp_path_factory, stored):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    np.save(path, stored)
    for _ in range(2):  # the second time its header is known
        array = opened(path)
        assert (array.dtype, array.shape, array.tobytes()) == (stored.dtype, stored.shape, stored.tobytes())
    assert not stored.size or not array.flags.writeable


def test_a_file_that_took_anothers_place_is_read_anew(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    first = opened(path)
    np.save(tmp_path / "new.npy", np.arange(5.0))
    (tmp_path / "new.npy").replace(path)
    assert opened(path).tolist() == [0, 1, 2, 3, 4]
    assert first.tolist() == [0, 1, 2]


@pytest.mark.parametrize("rows", [0, 1, 2**40])
def test_a_header_is_as_long_for_any_number_of_rows(rows):
    sink, none = io.BytesIO(), io.BytesIO()
    write_header(sink, np.dtype(np.uint32), rows)
    write_header(none, np.dtype(np.uint32), 0)
    assert len(sink.getvalue()) == len(none.getvalue())
    sink.seek(6 + 2)
    assert np.lib.format.read_array_header_1_0(sink) == ((rows,), False, np.dtype(np.uint32))
