"""Document vectors, against means by hand."""

import numpy as np
import pyarrow as pa
import pytest

from nextlong import schemas
from nextlong.retrieval import embed as documents


def write_shard(folder, doc_rows, ends, vectors):
    """Chunks whose starts follow from their ends, and their vectors."""
    starts = [
        0 if place == 0 or doc_rows[place - 1] != row else ends[place - 1]
        for place, row in enumerate(doc_rows)
    ]
    columns = {
        "doc_row": doc_rows,
        "start": starts,
        "end": ends,
        "separator": [True] * len(doc_rows),
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=schemas.CHUNKS)
    with (
        pa.OSFile(str(folder / "a.chunks.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        writer.write_batch(batch)
    np.save(folder / "a.vectors.npy", np.array(vectors, np.float16))
    return {"chunks": folder / "a.chunks.arrow", "vectors": folder / "a.vectors.npy"}


def read(out):
    return np.load(f"{out}.document_vectors.npy")


def test_one_vector_for_each_document_with_chunks(tmp_path):
    # Document 0: two chunks at a right angle; 1 was dropped; 2: one chunk; 3: two that
    # cancel out.
    shard = write_shard(
        tmp_path,
        [0, 0, 2, 3, 3],
        [90, 120, 7, 50, 51],
        [[1, 0], [0, 1], [0.6, 0.8], [0, -1], [0, 1]],
    )
    documents.average_shard(tmp_path / "out", **shard, vector="mean")
    vectors = read(tmp_path / "out")
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(
        vectors, [[0.7071, 0.7071], [0.6, 0.8], [0, -1]], atol=1e-3
    )


def test_the_first_chunk_may_stand_for_its_document(tmp_path):
    shard = write_shard(tmp_path, [0, 0, 2], [90, 120, 7], [[1, 0], [0, 1], [0, -1]])
    documents.average_shard(tmp_path / "out", **shard, vector="first")
    vectors = read(tmp_path / "out")
    assert vectors.tolist() == [[1, 0], [0, -1]]


@pytest.mark.parametrize("block_chunks", [1, 5, 1000])
@pytest.mark.parametrize("vector", ["mean", "first"])
def test_blocks_do_not_show(tmp_path, monkeypatch, block_chunks, vector):
    monkeypatch.setattr(documents, "_AVERAGED_CHUNKS", block_chunks)
    rng = np.random.default_rng(5)
    doc_rows = np.sort(rng.integers(0, 30, 90))
    vectors = rng.standard_normal((90, 8))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
        np.float16
    )
    ends = [
        10 * (place + 1 - int(np.searchsorted(doc_rows, row)))
        for place, row in enumerate(doc_rows)
    ]
    shard = write_shard(tmp_path, doc_rows.tolist(), ends, vectors)
    documents.average_shard(tmp_path / "out", **shard, vector=vector)
    found = read(tmp_path / "out")
    own = [vectors[doc_rows == row].astype(np.float32) for row in np.unique(doc_rows)]
    expected = np.stack(
        [one[0] if vector == "first" else one.mean(axis=0) for one in own]
    )
    np.testing.assert_allclose(
        found, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-3
    )


@pytest.mark.parametrize("vector", ["mean", "first"])
def test_a_shard_without_chunks(tmp_path, vector):
    shard = write_shard(tmp_path, [], [], np.empty((0, 4)))
    documents.average_shard(tmp_path / "out", **shard, vector=vector)
    assert read(tmp_path / "out").shape == (0, 4)


@pytest.mark.parametrize(
    ("count", "rest", "falls_back"),
    [(2, 1e-3, True), (2, 4e-3, False), (200, 0.1, True), (200, 0.4, False)],
)
def test_chunks_that_nearly_cancel_out_have_no_mean(tmp_path, count, rest, falls_back):
    # What half precision leaves of a sum of opposite vectors points anywhere.
    rows = np.array([[0.0, 1.0], [0.0, -1.0]] * (count // 2), np.float32)
    rows[0, 0] = rest
    shard = write_shard(tmp_path, [0] * count, range(1, count + 1), rows)
    documents.average_shard(tmp_path / "out", **shard, vector="mean")
    (mean,) = read(tmp_path / "out")
    np.testing.assert_allclose(mean, rows[0] if falls_back else [1, 0], atol=1e-3)
