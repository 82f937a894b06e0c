"""Records, rejects and columns, whatever the format."""

import orjson
import pyarrow as pa
import pytest

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import format_of
from nextlong.reading.listing import list_files
from nextlong.reading.records import (
    ReadRequest,
    Record,
    Reject,
    RejectKind,
    explained,
    text_problem,
)
from nextlong.recipe import Source


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    (file,) = list_files(Source(path=str(tmp_path / "a.jsonl")), where="path")
    return file


def request(file):
    return ReadRequest(FilePart(file), Source(path=file.path), (), 10)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a tide", None),
        ("x" * 10, None),
        ("x" * 11, (RejectKind.TOO_LONG, "11 characters")),
        ("", (RejectKind.EMPTY, "")),
        (" \n\u3000\t", (RejectKind.EMPTY, "")),
    ],
)
def test_a_text_is_too_long_or_empty_or_a_document(text, found):
    assert text_problem(text, 10) == found


def test_a_reject_says_its_kind_and_what_there_is_to_say_of_it():
    assert Reject("a", 1, RejectKind.NULL).reason == "text is null"
    assert (
        Reject("a", 1, RejectKind.TOO_LONG, "11 characters").reason
        == "too long: 11 characters"
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("k", "k"),
        (0, "0"),
        (False, "False"),
        (1.5, "1.5"),
        ("\ud800", "?"),
        *((no, "a.jsonl:3") for no in (None, "", [], {})),
    ],
)
def test_an_id_is_a_scalar_as_text_or_the_place(file, value, told):
    assert request(file).record("a", value, 3, (1,)) == Record("a", told, 3, (1,))


def test_a_column_that_is_not_there_is_refused_with_the_nearest(file):
    with pytest.raises(CorpusError, match="'txet'") as caught:
        request(file).refuse_column("text", ["txet", "id"])
    assert caught.value.where == file.path


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file"),
        PermissionError(13, "Permission denied"),
        OSError("bad\n block"),
        pa.ArrowInvalid("no magic"),
    ],
)
def test_errors_of_files_and_decoders_name_the_file(file, error):
    with pytest.raises(CorpusError) as caught, explained(file):
        raise error
    assert caught.value.where == file.path


def test_of_a_file_that_changed_that_is_what_is_said(file, tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    with pytest.raises(CorpusError, match="changed while"), explained(file):
        raise OSError("half a line")


def test_of_a_head_that_is_cut_within_a_line_only_whole_lines_are_counted(tmp_path):
    rows = [
        orjson.dumps({"text": "tide " * 20, "other": "x" * 100}) + b"\n"
        for _ in range(40)
    ]
    (tmp_path / "a.jsonl").write_bytes(b"".join(rows))
    source = Source(path=str(tmp_path))
    (file,) = list_files(source, where="path")
    # Cut in the middle of the third line: its bytes hold as much text as those of the
    # lines before it.
    head_bytes = 2 * len(rows[0]) + len(rows[0]) // 2
    text_bytes, raw_bytes = format_of(file.name, source).text_bytes(
        file, source, head_bytes
    )
    assert (text_bytes, raw_bytes) == (
        200 * head_bytes // (2 * len(rows[0])),
        head_bytes,
    )
    whole_file = format_of(file.name, source).text_bytes(file, source, file.bytes)
    assert whole_file == (4000, file.bytes)
