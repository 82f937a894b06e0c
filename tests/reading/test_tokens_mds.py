"""Shards of MosaicML streaming: our own export (whose bytes are those of MDSWriter), other encodings, and text."""

import numpy as np
import pytest
import zstandard
from tests.support.exported_runs import exported
from tests.support.tokenized import (
    TEXTS,
    array_bytes,
    ids_of,
    mds_shard,
    read_tokens,
    texts_of_rows,
    tokenizer_at,
    with_ends,
)

import nextlong
from nextlong.errors import CorpusError
from nextlong.reading.records import RejectKind
from nextlong.reading.tokens_mds import FORMAT


@pytest.fixture
def tokenizer(tmp_path):
    return tokenizer_at(tmp_path / "tokenizer.json")


def prolong_shard(tokenizer):
    """Two rows, each of three documents that `indices` divides."""
    documents = with_ends(tokenizer)
    samples = []
    for row, domain in ((documents[:3], b"web"), (documents[3:], b"books")):
        ends = np.cumsum([len(ids) for ids in row])
        starts = np.append(0, ends[:-1])
        bounds = np.stack([starts, ends], axis=1).astype(np.uint32)
        ids = np.concatenate(row).astype(np.uint32)
        samples.append([domain, array_bytes(bounds), array_bytes(ids)])
    encodings = {
        "domain": "str",
        "indices": "ndarray:uint32",
        "input_ids": "ndarray:uint32",
    }
    return mds_shard(samples, encodings, [None, None, None])


def test_rows_of_prolong_are_divided_by_their_indices(tmp_path, tokenizer):
    (tmp_path / "shard.00000.mds").write_bytes(prolong_shard(tokenizer))
    (tmp_path / "index.json").write_text('{"version": 2}')
    items = read_tokens(
        tmp_path,
        tokenizer=str(tmp_path),
        metadata=["domain"],
        filter=None,
        format="mds",
    )
    assert [item.text for item in items] == TEXTS
    assert [item.values for item in items] == [("web",)] * 3 + [("books",)] * 3


def test_a_compressed_shard(tmp_path, tokenizer):
    shard = zstandard.compress(prolong_shard(tokenizer))
    (tmp_path / "shard.00000.mds.zstd").write_bytes(shard)
    (tmp_path / "index.json").write_text('{"version": 2}')
    (tmp_path / "tokenizer.json").rename(tmp_path.parent / "tokenizer.json")
    items = read_tokens(tmp_path, tokenizer=str(tmp_path.parent))
    assert [item.text for item in items] == TEXTS


@pytest.mark.parametrize(
    ("encoding", "size", "encode"),
    [
        ("bytes", None, lambda ids: np.array(ids, "<i8").tobytes()),
        (
            "ndarray",
            None,
            lambda ids: array_bytes(np.array(ids, np.int32), has_type=False),
        ),
        ("ndarray:uint16", None, lambda ids: array_bytes(np.array(ids, np.uint16))),
        ("ndarray:uint16:8", 16, lambda ids: np.array(ids, np.uint16).tobytes()),
    ],
)
def test_ids_in_every_encoding(tmp_path, tokenizer, encoding, size, encode):
    ids = ids_of(tokenizer, TEXTS[0])[:8]
    shard = mds_shard([[encode(ids)]], {"tokens": encoding}, [size])
    (tmp_path / "a.mds").write_bytes(shard)
    (item,) = read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert item.text == tokenizer.decode(ids)


def test_samples_of_text_need_no_tokenizer(tmp_path):
    samples = [
        [np.int64(number).tobytes(), text.encode()] for number, text in enumerate(TEXTS)
    ]
    shard = mds_shard(samples, {"id": "int", "body": "str"}, [8, None])
    (tmp_path / "a.mds").write_bytes(shard)
    items = read_tokens(tmp_path / "a.mds", text="body")
    assert [(item.source_id, item.text) for item in items] == [
        (str(number), text) for number, text in enumerate(TEXTS)
    ]
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.mds")
    assert error.value.where.endswith("a.mds")


def test_text_goes_before_ids(tmp_path, tokenizer):
    samples = [
        [array_bytes(np.array(ids, np.uint16)), text.encode()]
        for ids, text in zip(with_ends(tokenizer), TEXTS, strict=True)
    ]
    encodings = {"input_ids": "ndarray:uint16", "text": "str"}
    (tmp_path / "a.mds").write_bytes(mds_shard(samples, encodings, [None, None]))
    assert [item.text for item in read_tokens(tmp_path / "a.mds")] == TEXTS
    of_ids = read_tokens(tmp_path / "a.mds", text="input_ids", tokenizer=str(tmp_path))
    assert [item.text for item in of_ids] == TEXTS


def test_an_export_has_the_texts_of_its_sequences(own_run):
    """As rows: the parts of a sequence were tokenized one by one, so as documents they are rejected."""
    run = nextlong.open(own_run)
    done = exported([own_run], formats=["mds"], overrides=["workers=1"])
    texts = texts_of_rows(
        FORMAT, done["mds"].folder, run.steps["tokenizer"].file(".tokenizer.json")
    )
    assert texts == [sequence.text for sequence in run.sequences()]


@pytest.mark.parametrize("content", [b"\x01", b"\0" * 40, b"no shard at all" * 9])
def test_another_file(tmp_path, tokenizer, content):
    (tmp_path / "a.mds").write_bytes(content)
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert error.value.where.endswith("a.mds")


def test_a_shard_that_ends_early(tmp_path, tokenizer):
    (tmp_path / "a.mds").write_bytes(prolong_shard(tokenizer)[:-3])
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert error.value.where.endswith("a.mds")


@pytest.mark.parametrize(
    ("encoding", "encode", "value"),
    [
        (
            "ndarray",
            lambda: b"\x22\x04\x02" + np.array([1.5, 2], "<f4").tobytes(),
            [1.5, 2],
        ),
        ("str_int", lambda: b"123456789012345678901", "123456789012345678901"),
        ("json", lambda: b'{"a": 1}', {"a": 1}),
        ("pkl", lambda: b"\x80", b"\x80"),
    ],
)
def test_other_columns(tmp_path, encoding, encode, value):
    samples = [[b"text", encode()]]
    shard = mds_shard(samples, {"text": "str", "other": encoding}, [None, None])
    (tmp_path / "a.mds").write_bytes(shard)
    (item,) = read_tokens(tmp_path / "a.mds", metadata=["other"], filter=None)
    (found,) = item.values
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == value


@pytest.mark.parametrize("sample", [[b"\xff"], [b""]])
def test_a_sample_that_is_not_what_its_encoding_says(tmp_path, sample):
    encoding = "str" if sample[0] else "ndarray"
    shard = mds_shard([sample], {"text": encoding}, [None])
    (tmp_path / "a.mds").write_bytes(shard)
    tokenizer_at(tmp_path / "tokenizer.json")
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert error.value.where.endswith("a.mds")


@pytest.mark.parametrize(
    ("encoding", "content", "value"),
    [
        ("ndarray", b"\x00\x04\x01\x05", "<u0"),  # a type of no bytes
        ("ndarray", b"\x3f\x04\x01\x05", "index out of range"),
        ("ndarray:xyz", b"\x04\x01ab", "xyz"),
        ("int7", b"\x01", "int7"),
        ("float8", b"\x01", "float8"),
    ],
)
def test_a_type_that_does_not_exist(tmp_path, encoding, content, value):
    shard = mds_shard(
        [[b"text", content]], {"text": "str", "other": encoding}, [None, None]
    )
    (tmp_path / "a.mds").write_bytes(shard)
    with pytest.raises(CorpusError, match=value) as error:
        read_tokens(tmp_path / "a.mds", metadata=["other"], filter=None)
    assert error.value.where.endswith("a.mds")


@pytest.mark.parametrize(
    ("encoding", "content", "value"),
    [
        (
            "ndarray:uint32",
            b"\4\2" + np.array([0, 3], "<u4").tobytes(),
            "uint32 of the shape",
        ),
        (
            "ndarray:float32:1,2",
            np.array([0, 3], "<f4").tobytes(),
            "float32 of the shape",
        ),
        ("ndarray:int32:1,2", np.array([0, 9999], "<i4").tobytes(), "0 to 9,999"),
        ("ndarray:int32:1,2", np.array([3, 1], "<i4").tobytes(), "3 to 1"),
        ("ndarray:int32:1,2", np.array([-1, 1], "<i4").tobytes(), "-1 to 1"),
        ("str", b"0:3", "<U3 of the shape"),
    ],
)
def test_bounds_that_are_none_of_the_row(tmp_path, tokenizer, encoding, content, value):
    ids = np.array(ids_of(tokenizer, TEXTS[0]), np.uint32)
    encodings = {"indices": encoding, "input_ids": "ndarray:uint32"}
    shard = mds_shard([[content, array_bytes(ids)]], encodings, [None, None])
    (tmp_path / "a.mds").write_bytes(shard)
    with pytest.raises(CorpusError, match=value) as error:
        read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert error.value.where.endswith("a.mds")


def test_offsets_that_fall(tmp_path):
    shard = bytearray(mds_shard([[b"one"], [b"two"]], {"text": "str"}, [None]))
    # Behind the count: where both samples begin, and the end of the second.
    first = int.from_bytes(shard[4:8], "little")
    shard[8:12] = (first - 3).to_bytes(4, "little")
    (tmp_path / "a.mds").write_bytes(shard)
    with pytest.raises(CorpusError, match="-3 bytes") as error:
        read_tokens(tmp_path / "a.mds")
    assert error.value.where.endswith("a.mds")


@pytest.mark.parametrize("id_", [-1, 1 << 40])
def test_an_id_that_no_tokenizer_has(tmp_path, tokenizer, id_):
    ids = np.array([*ids_of(tokenizer, TEXTS[0]), id_], np.int64)
    shard = mds_shard([[array_bytes(ids)]], {"tokens": "ndarray:int64"}, [None])
    (tmp_path / "a.mds").write_bytes(shard)
    (item,) = read_tokens(tmp_path / "a.mds", tokenizer=str(tmp_path))
    assert item.kind is RejectKind.OTHER_IDS
