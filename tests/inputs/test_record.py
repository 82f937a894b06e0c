"""What readers of all formats say of a document, of one that is none, and of a column that is not there."""

import pyarrow as pa
import pytest

from nextlong.errors import CorpusError
from nextlong.inputs.columns import ABSENT
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Reject, RejectKind, explained, problem, refuse_column, source_id
from nextlong.recipe import Source


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    (file,) = list_files(Source(path=str(tmp_path / "a.jsonl")), where="path")
    return file


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
    assert problem(text, 10) == found


def test_a_reject_says_its_kind_and_what_there_is_to_say_of_it():
    assert Reject("a", 1, RejectKind.NULL).reason == "text is null"
    assert Reject("a", 1, RejectKind.TOO_LONG, "11 characters").reason == "too long: 11 characters"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("k", "k"),
        (0, "0"),
        (False, "False"),
        (1.5, "1.5"),
        ("\ud800", "?"),
        *((no, "a:3") for no in (None, ABSENT, "", [], {})),
    ],
)
def test_an_id_is_a_scalar_as_text_or_the_place(value, told):
    assert source_id(value, "a", 3) == told


@pytest.mark.parametrize(
    ("column", "known", "asked_by", "message"),
    [
        ("text", ["txet", "id"], "text", "has no column 'text' for the text; it has txet, id; did you mean 'txet'?"),
        ("text", ["a", "b"], "text", "it has a, b; set the source's text to the one that holds the text"),
        (
            "lang",
            ["a"],
            "keep",
            "has no column 'lang' that keep names; it has a; set the source's keep to one of these",
        ),
        ("text", [], "text", "it has none; set the source's text"),
        (
            "body",
            ["body", "body"],
            "text",
            "has 2 columns 'body', so it is not clear which is meant by text; rename one",
        ),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_the_cure(file, column, known, asked_by, message):
    with pytest.raises(CorpusError) as caught:
        refuse_column(file, column, known, asked_by=asked_by)
    assert str(caught.value).startswith(f"{file.path} has ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            FileNotFoundError(2, "No such file"),
            "has vanished since it was listed; put it back, or run again without it",
        ),
        (PermissionError(13, "Permission denied"), "cannot be read (Permission denied); change its permissions"),
        (OSError("bad\n block"), "ends early or is damaged (bad block); re-download it"),
        (pa.ArrowInvalid("no magic"), "ends early or is damaged (no magic); re-download it"),
    ],
)
def test_errors_of_files_and_decoders_name_the_file_and_the_cure(file, error, message):
    with pytest.raises(CorpusError) as caught, explained(file):
        raise error
    assert str(caught.value).startswith(f"{file.path} {message}")


def test_of_a_file_that_changed_that_is_what_is_said(file, tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    with pytest.raises(CorpusError, match="changed while it was read"), explained(file):
        raise OSError("half a line")
