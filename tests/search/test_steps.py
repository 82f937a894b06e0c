import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.recipe.amounts import BLOCKS, MOST_QUERIES
from nextlong.schemas import META_DOCUMENTS
from nextlong.search.steps import document_blocks, meta_blocks


def tiles(ranges, count):
    return [first for first, _ in ranges] == [0, *(last for _, last in ranges)][: len(ranges)] and (
        not count or ranges[-1][1] == count
    )


@given(count=st.integers(0, 10**6))
def test_blocks_of_documents_tile_them(count):
    ranges = document_blocks(count)
    assert tiles(ranges, count)
    assert all(0 < last - first <= MOST_QUERIES for first, last in ranges)
    assert len(ranges) <= max(BLOCKS, -(-count // MOST_QUERIES))


@given(chunks=st.lists(st.integers(1, 3 * MOST_QUERIES), max_size=400))
def test_a_meta_document_is_never_divided_and_no_block_holds_many_chunks(tmp_path_factory, chunks):
    drawn = np.zeros(len(chunks), META_DOCUMENTS)
    drawn["chunks"] = chunks
    path = tmp_path_factory.mktemp("blocks") / "drawn.npy"
    np.save(path, drawn)
    ranges = meta_blocks(path)
    assert tiles(ranges, len(chunks))
    for first, last in ranges:
        assert last > first
        assert last == first + 1 or sum(chunks[first:last]) <= MOST_QUERIES
