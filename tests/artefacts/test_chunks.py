import numpy as np
import pyarrow as pa
import pytest

from nextlong import schemas
from nextlong.artefacts.chunks import iter_chunk_texts
from nextlong.corpus.chunk import chunk_shard


def write_documents(path, batches):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer:
        for texts in batches:
            columns = {"text": texts, "content_hash": range(len(texts)), "source": texts, "source_id": texts}
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=schemas.DOCUMENTS))


@pytest.fixture
def shard(tmp_path):
    write_documents(tmp_path / "d.arrow", [["aa\nbb\ncc", "dropped"], ["🎉🎉\nמה", "e\n"]])
    np.save(tmp_path / "keep.npy", np.array([True, False, True, True]))
    options = {"max_chars": 4, "length": "slice", "oversize": "split"}
    counts = chunk_shard(tmp_path / "s", documents=tmp_path / "d.arrow", keep=tmp_path / "keep.npy", **options)
    return tmp_path / "d.arrow", tmp_path / "s.chunks.arrow", counts


def test_iter_chunk_texts_streams_batches_of_documents(shard):
    documents, chunks, _ = shard
    first, second = iter_chunk_texts(documents, chunks)
    assert first.texts == ["aa\n", "bb\n", "cc"]
    assert second.texts == ["🎉🎉\n", "מה", "e\n"]
    assert second.rows.tolist() == [3, 4, 5]
    assert second.doc_rows.tolist() == [2, 2, 3]
    assert second.numbers.tolist() == [0, 1, 0]
    assert second.content_hashes.tolist() == [0, 0, 1]


def test_iter_chunk_texts_of_some_rows(shard):
    documents, chunks, _ = shard
    found = list(iter_chunk_texts(documents, chunks, np.array([1, 4])))
    assert [batch.texts for batch in found] == [["bb\n"], ["מה"]]
    assert [batch.numbers.tolist() for batch in found] == [[1], [1]]
    assert list(iter_chunk_texts(documents, chunks, np.array([], np.int64))) == []
