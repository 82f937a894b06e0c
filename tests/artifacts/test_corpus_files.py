"""Look-ups by id: aligned with the ids whatever their order, shards and repeats."""

import io
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.arrow_files import write_documents

import nextlong
from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import (
    iter_chunk_texts,
    opened,
    read_chunks,
    runs_within,
    write_header,
)
from nextlong.artifacts.sequence_files import TokenStore
from nextlong.corpus.chunk import _chunk_shard
from nextlong.errors import RunError


def chunk_id(shard, row):
    return (shard << 32) + row


@pytest.fixture
def chunks(tmp_path):
    paths = []
    for shard, rows in enumerate(
        [[(0, 0, 5, False), (0, 5, 7, True)], [(3, 0, 4, True)], []]
    ):
        paths.append(tmp_path / f"{shard}.chunks.arrow")
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
        batch = pa.RecordBatch.from_pydict(
            dict(zip(schemas.CHUNKS.names, columns, strict=True)), schema=schemas.CHUNKS
        )
        with (
            pa.OSFile(str(paths[-1]), "wb") as sink,
            pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
        ):
            writer.write_batch(batch)
    return paths


@pytest.fixture
def documents(tmp_path):
    paths = []
    for shard, batches in enumerate([[["a", "b"], ["c"]], [["d"]]]):
        paths.append(tmp_path / f"{shard}.documents.arrow")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            pa.OSFile(str(paths[-1]), "wb") as sink,
            pa.ipc.new_file(sink, schemas.DOCUMENTS, options=options) as writer,
        ):
            for ids in batches:
                hashes = [ord(name) for name in ids]
                columns = {
                    "text": ["long"] * len(ids),
                    "content_hash": hashes,
                    "source": ["s"] * len(ids),
                    "source_id": ids,
                }
                writer.write_batch(
                    pa.RecordBatch.from_pydict(columns, schema=schemas.DOCUMENTS)
                )
    return paths


def test_ids_pack_a_shard_and_a_row():
    ids = schemas.pack_ids(3, np.array([0, 7]))
    assert ids.tolist() == [3 * 2**32, 3 * 2**32 + 7]
    assert schemas.shard_of(ids).tolist() == [3, 3]
    assert schemas.row_of(ids).tolist() == [0, 7]


def test_by_shard_names_each_shard_once_with_distinct_sorted_rows():
    ids = np.array([chunk_id(2, 5), chunk_id(0, 1), chunk_id(2, 5), chunk_id(2, 3)])
    shards, places = corpus_files.by_shard(ids)
    assert [(shard, rows.tolist()) for shard, rows in shards] == [(0, [1]), (2, [3, 5])]
    assert np.concatenate([rows * 10 for _, rows in shards])[places].tolist() == [
        50,
        10,
        50,
        30,
    ]


def test_chunk_columns_and_lengths(chunks):
    ids = np.array([chunk_id(1, 0), chunk_id(0, 1), chunk_id(0, 0), chunk_id(0, 1)])
    doc_row, separator = corpus_files.chunk_columns(
        ids, chunks, ("doc_row", "separator")
    )
    assert doc_row.tolist() == [3, 0, 0, 0]
    assert separator.tolist() == [True, True, False, True]
    assert corpus_files.chunk_chars(ids, chunks).tolist() == [4, 2, 5, 2]


def test_document_columns_across_record_batches(documents):
    ids = np.array([chunk_id(1, 0), chunk_id(0, 2), chunk_id(0, 0), chunk_id(0, 2)])
    assert corpus_files.source_ids(ids, documents).tolist() == ["d", "c", "a", "c"]
    hashes, names = corpus_files.document_columns(
        ids, documents, ("content_hash", "source_id")
    )
    assert hashes.tolist() == [100, 99, 97, 99]
    assert names.tolist() == ["d", "c", "a", "c"]


def test_document_columns_come_in_the_order_asked_for(documents):
    names, hashes = corpus_files.document_columns(
        np.array([chunk_id(0, 1)]), documents, ("source_id", "content_hash")
    )
    assert (names.tolist(), hashes.tolist()) == (["b"], [98])


def test_documents_that_were_written_anew_are_read_anew(documents):
    ids = np.array([chunk_id(1, 0)])
    assert corpus_files.source_ids(ids, documents).tolist() == ["d"]
    documents[0].replace(documents[1])
    assert corpus_files.source_ids(ids, documents).tolist() == ["a"]


def test_columns_that_are_not_held_are_read_again(documents, monkeypatch):
    monkeypatch.setattr(corpus_files, "_MAX_CACHED_BYTES", 0)
    monkeypatch.setattr(corpus_files, "_cached_tables", {})
    assert corpus_files.source_ids(np.array([2, 0, 2]), documents).tolist() == [
        "c",
        "a",
        "c",
    ]
    assert corpus_files._cached_tables == {}


def test_vectors_are_read_as_float32(tmp_path):
    for shard in range(2):
        np.save(
            tmp_path / f"{shard}.npy", np.array([[shard, 1], [shard, 2]], np.float16)
        )
    found = corpus_files.vectors(
        np.array([chunk_id(1, 1), chunk_id(0, 0)]),
        [tmp_path / "0.npy", tmp_path / "1.npy"],
    )
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2], [0, 1]]


def test_the_place_of_a_chunk_in_its_document_counts_from_one(shared_run):
    corpus = nextlong.open(shared_run).corpus
    for shard, path in enumerate(corpus.chunks):
        doc_rows = read_chunks(path)["doc_row"]
        ids = schemas.pack_ids(shard, np.arange(len(doc_rows)))
        counted, expected = {}, []
        for doc in doc_rows.tolist():
            counted[doc] = counted.get(doc, 0) + 1
            expected.append(counted[doc])
        told = corpus_files.chunk_names(
            ids[::-1], documents=corpus.documents, chunks=corpus.chunks
        )
        assert [ordinal for _, ordinal in told] == expected[::-1]
        assert max(expected) > 1


def test_a_person_is_shown_the_document_and_the_ordinal_of_a_chunk(chunks, documents):
    assert corpus_files.chunk_names(
        np.array([1]), documents=documents, chunks=chunks
    ) == [("a", 2)]
    with pytest.raises(IndexError):
        corpus_files.chunk_names(
            np.array([chunk_id(1, 7)]), documents=documents, chunks=chunks
        )


@pytest.fixture
def shard(tmp_path):
    write_documents(
        tmp_path / "d.arrow", [["aa\nbb\ncc", "dropped"], ["🎉🎉\nמה", "e\n"]]
    )
    np.save(tmp_path / "keep.npy", np.array([True, False, True, True]))
    options = {"max_chars": 4, "length": "slice", "oversize": "split"}
    counts = _chunk_shard(
        tmp_path / "s",
        documents=tmp_path / "d.arrow",
        keep=tmp_path / "keep.npy",
        **options,
    )
    return tmp_path / "d.arrow", tmp_path / "s.chunks.arrow", counts


def test_iter_chunk_texts_streams_batches_of_documents(shard):
    documents, chunks, _ = shard
    first, second = iter_chunk_texts(documents, chunks)
    assert first.texts == ["aa\n", "bb\n", "cc"]
    assert second.texts == ["🎉🎉\n", "מה", "e\n"]
    assert second.rows.tolist() == [3, 4, 5]
    assert second.doc_rows.tolist() == [2, 2, 3]


def test_iter_chunk_texts_of_some_rows(shard):
    documents, chunks, _ = shard
    found = list(iter_chunk_texts(documents, chunks, np.array([1, 4])))
    assert [batch.texts for batch in found] == [["bb\n"], ["מה"]]
    assert list(iter_chunk_texts(documents, chunks, np.array([], np.int64))) == []


@given(
    stored=arrays.arrays(
        st.sampled_from([np.int64, np.uint32, np.float16]),
        arrays.array_shapes(min_dims=1, max_dims=2, min_side=0),
    )
)
def test_an_array_is_opened_as_numpy_loads_it(tmp_path_factory, stored):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    np.save(path, stored)
    for _ in range(2):  # the second time its header is known
        array = opened(path)
        assert (array.dtype, array.shape, array.tobytes()) == (
            stored.dtype,
            stored.shape,
            stored.tobytes(),
        )
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
    assert np.lib.format.read_array_header_1_0(sink) == (
        (rows,),
        False,
        np.dtype(np.uint32),
    )


@pytest.fixture
def store(tmp_path):
    shards = [([1, 4], [[7, 8, 9], [5]]), ([], []), ([0, 2, 3], [[1], [], [2, 3]])]
    paths = {"rows": [], "offsets": [], "ids": []}
    for number, (rows, texts) in enumerate(shards):
        arrays = {
            "rows": np.array(rows, np.int64),
            "offsets": np.cumsum([0, *map(len, texts)]),
            "ids": np.array([token for text in texts for token in text], np.uint32),
        }
        for name, array in arrays.items():
            paths[name].append(tmp_path / f"{number}.{name}.npy")
            np.save(paths[name][-1], array)
    return TokenStore(tokens=tuple(paths.values()))


IDS = np.array([(2 << 32) + 3, 4, (2 << 32) + 2, 1, 1])


def test_a_file_that_takes_the_place_of_another_is_read_anew(tmp_path):
    paths = {name: tmp_path / f"{name}.npy" for name in ("rows", "offsets", "ids")}

    def written(ids):
        for name, array in (("rows", [0]), ("offsets", [0, len(ids)]), ("ids", ids)):
            np.save(
                tmp_path / "new.npy",
                np.array(array, np.uint32 if name == "ids" else np.int64),
            )
            (tmp_path / "new.npy").replace(paths[name])
        return TokenStore(tokens=tuple([path] for path in paths.values()))

    first = np.zeros(1, np.int64)
    for ids in ([7, 8, 9], [5, 6, 4], [1]):
        tokens = written(ids)
        starts, stops = tokens.bounds(first)
        assert tokens.ids(first, starts=starts, stops=stops)[0].tolist() == ids


def test_counts_follow_the_ids(store):
    assert store.counts(IDS).tolist() == [2, 1, 0, 3, 3]


def test_bounds_are_places_in_a_shards_ids(store):
    starts, stops = store.bounds(IDS)
    assert starts.tolist() == [1, 3, 1, 0, 0]
    assert stops.tolist() == [3, 4, 1, 3, 3]


def test_copy_into_takes_the_first_tokens_of_each_chunk(store):
    target = np.full(8, -1, np.int32)
    starts, _ = store.bounds(IDS)
    store.copy_into(
        target,
        chunk_ids=IDS,
        starts=starts,
        at=np.array([0, 2, 3, 3, 6]),
        lengths=np.array([2, 1, 0, 3, 2]),
    )
    assert target.tolist() == [2, 3, 5, 7, 8, 9, 7, 8]


def test_ids_are_all_tokens_of_each_chunk(store):
    starts, stops = store.bounds(IDS)
    ids, offsets = store.ids(IDS, starts=starts, stops=stops)
    assert ids.tolist() == [2, 3, 5, 7, 8, 9, 7, 8, 9]
    assert offsets.tolist() == [0, 2, 3, 3, 6, 9]


@pytest.mark.parametrize("chunk", [2, 5, 1 << 32, 3 << 32])
def test_a_chunk_that_was_never_tokenized_was_put_there_by_an_altered_file(
    store, chunk
):
    with pytest.raises(RunError) as error:
        store.counts(np.array([chunk]))
    assert error.value.where == "a chunk that is not in the corpus"


def test_a_store_travels_to_a_worker(store):
    assert pickle.loads(pickle.dumps(store)).counts(IDS).tolist() == [2, 1, 0, 3, 3]


@given(sizes=st.lists(st.integers(0, 9), max_size=20), most=st.integers(1, 12))
def test_runs_hold_everything_once_in_order(sizes, most):
    runs = list(runs_within(sizes, most))
    assert [place for first, last in runs for place in range(first, last)] == list(
        range(len(sizes))
    )
    assert all(first < last for first, last in runs)
    assert all(
        sum(sizes[first:last]) <= most or last == first + 1 for first, last in runs
    )


@pytest.mark.parametrize(("row", "expected"), [(0, [0, 1]), (1, []), (3, [0]), (9, [])])
def test_the_chunks_of_a_document_are_neighbors(chunks, row, expected):
    shard = int(row == 3)
    rows = corpus_files.chunk_rows(chunks[shard], chunk_id(shard, row))
    assert list(rows) == expected
