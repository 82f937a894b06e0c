"""Files of datatrove, against bytes that its TokenizedFile wrote."""

import numpy as np
import pytest
from tests.support.tokenized import TEXTS, read_tokens, tokenizer_at, with_ends

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.listing import list_files
from nextlong.reading.records import ReadRequest
from nextlong.reading.tokens_datatrove import FORMAT
from nextlong.recipe import Source

# datatrove 0.10.1: TokenizedFile(…, "hand.ds", save_final_metadata=True,
# tokenizer_name_or_path="gpt2", token_size=2), then write([1, 2, 3, 0]) and
# write([65535, 0]).
RECORDED = {
    "hand.ds": "0100020003000000ffff0000",
    "hand.ds.index": "04000000000000000600000000000000",
    "hand.ds.metadata": "677074327c320a360a362e30302054",
}


def rows_of(path, **options):
    source = Source(path=str(path), **options)
    (file,) = list_files(source, where="path")
    request = ReadRequest(FilePart(file), source, (), 100)
    with path.open("rb") as stream:
        return [row.ids.tolist() for row in FORMAT.token_rows(stream, request)]


def test_recorded_files_are_read(tmp_path):
    for name, content in RECORDED.items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    assert rows_of(tmp_path / "hand.ds") == [[1, 2, 3, 0], [65535, 0]]
    # Only the ids are documents.
    assert len(list_files(Source(path=str(tmp_path)), where="path")) == 1


def test_ids_of_four_bytes(tmp_path):
    (tmp_path / "a.ds").write_bytes(np.array([7, 70_000, 8], "<u4").tobytes())
    (tmp_path / "a.ds.index").write_bytes(np.array([2, 3], "<u8").tobytes())
    (tmp_path / "a.ds.metadata").write_text("some|name|4\n3\n3 T")
    assert rows_of(tmp_path / "a.ds") == [[7, 70_000], [8]]


def test_without_metadata_the_vocabulary_tells_the_width(tmp_path):
    tokenizer = tokenizer_at(tmp_path / "tokenizer.json")
    ids = np.concatenate(with_ends(tokenizer))
    (tmp_path / "a.ds").write_bytes(ids.astype("<u2").tobytes())
    items = read_tokens(tmp_path / "a.ds", tokenizer=str(tmp_path))
    assert [item.text for item in items] == TEXTS


def test_an_index_that_ends_early(tmp_path):
    for name, recorded in RECORDED.items():
        (tmp_path / name).write_bytes(bytes.fromhex(recorded))
    (tmp_path / "hand.ds.index").write_bytes(bytes.fromhex("0400000000000000060000"))
    with pytest.raises(CorpusError) as error:
        rows_of(tmp_path / "hand.ds")
    assert error.value.where.endswith("hand.ds")


@pytest.mark.parametrize("content", ["010002000300", "0100020003000000ffff000001"])
def test_a_file_that_ends_early_or_late(tmp_path, content):
    for name, recorded in RECORDED.items():
        (tmp_path / name).write_bytes(bytes.fromhex(recorded))
    (tmp_path / "hand.ds").write_bytes(bytes.fromhex(content))
    with pytest.raises(CorpusError) as error:
        rows_of(tmp_path / "hand.ds")
    assert error.value.where.endswith("hand.ds")


@pytest.mark.parametrize(
    ("ends", "value"),
    [([4, 2, 6], "4 to 2"), ([-5, 6], "0 to -5"), ([2, 9, 6], "9 to 6")],
)
def test_an_index_whose_ends_fall(tmp_path, ends, value):
    for name, recorded in RECORDED.items():
        (tmp_path / name).write_bytes(bytes.fromhex(recorded))
    (tmp_path / "hand.ds.index").write_bytes(np.array(ends, "<i8").tobytes())
    with pytest.raises(CorpusError, match=value) as error:
        rows_of(tmp_path / "hand.ds")
    assert error.value.where.endswith("hand.ds")


def test_an_empty_file_has_no_documents(tmp_path):
    (tmp_path / "a.ds").write_bytes(b"")
    (tmp_path / "a.ds.index").write_bytes(b"")
    (tmp_path / "a.ds.metadata").write_text("some|name|2\n0\n0 T")
    assert rows_of(tmp_path / "a.ds") == []
