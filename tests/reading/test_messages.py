"""The words of refused input files: where, which value, and what to do."""

import shlex
import subprocess
import sys

import pyarrow as pa
import pytest

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import ReadRequest, explained
from nextlong.recipe import Source


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A listed file that is called a.jsonl."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n")
    (file,) = list_files(Source(path=str(tmp_path / "a.jsonl")), where="path")
    return file


@pytest.mark.parametrize(
    ("column", "known", "key", "message"),
    [
        (
            "text",
            ["txet", "id"],
            "text",
            "it has no column 'text' for the text, only txet, id; did you mean 'txet'?",
        ),
        (
            "text",
            ["a", "b"],
            "text",
            "it has no column 'text' for the text, only a, b; set the source's text to "
            "the one that holds the text",
        ),
        (
            "lang",
            ["a"],
            "metadata",
            "it has no column 'lang' that metadata names, only a; set the source's "
            "metadata to one of these",
        ),
        (
            "text",
            [],
            "text",
            "it has no column 'text' for the text, nor any other; set the source's text "
            "to the one that holds the text",
        ),
        (
            "body",
            ["body", "body"],
            "text",
            "it has 2 columns 'body', so text is ambiguous; rename one of them",
        ),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_the_cure(
    file, column, known, key, message
):
    request = ReadRequest(FilePart(file), Source(path=file.path), (), 1000)
    with pytest.raises(CorpusError) as caught:
        request.refuse_column(column, known, key=key)
    assert str(caught.value) == f"{file.path}: {message}"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            FileNotFoundError(2, "No such file"),
            "it was deleted after it was listed; restore it, or run again without it",
        ),
        (
            PermissionError(13, "Permission denied"),
            "it cannot be read (Permission denied); change its permissions",
        ),
        (
            OSError("bad\n block"),
            "it is truncated or damaged (bad block); download it again, or rename it if "
            "its content has another format than its suffix",
        ),
        (
            pa.ArrowInvalid("no magic"),
            "it is truncated or damaged (no magic); download it again, or rename it if "
            "its content has another format than its suffix",
        ),
    ],
)
def test_errors_of_files_and_decoders_name_the_file_and_the_cure(file, error, message):
    with pytest.raises(CorpusError) as caught, explained(file):
        raise error
    assert str(caught.value) == f"{file.path}: {message}"


QUOTED = '"id";"text"\n"1";"a text, with a comma"\n'
COMMA_IN_A_NAME = 'id;title, short;text\n1;a;"a text"\n'


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("content", ["id;text\n1;ä x\n", QUOTED, COMMA_IN_A_NAME])
def test_a_csv_file_with_another_separator_is_refused_with_its_name(
    tmp_path, content, encoding
):
    path = tmp_path / "a.csv"
    path.write_text(content, encoding=encoding)
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    with pytest.raises(CorpusError) as caught:
        list(read_records(FilePart(file), source, max_document_chars=1000))
    told = str(caught.value)
    assert told.startswith(
        f"{path}: the delimiter is ';' instead of ','; rewrite it with commas: python -c"
    )
    # The command of the message makes the file readable.
    command = told.partition("commas: ")[2]
    python = shlex.quote(sys.executable)
    subprocess.run(command.replace("python", python, 1), shell=True, cwd=tmp_path)
    rewritten = Source(path=str(tmp_path / "NEW.csv"), encoding=encoding)
    (file,) = list_files(rewritten, where="path")
    (record,) = list(read_records(FilePart(file), rewritten, max_document_chars=1000))
    assert record.text in ("ä x", "a text, with a comma", "a text")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", "does not exist; correct the path"),
        ("*.md", "matches no file; check the pattern (** matches nested folders)"),
        ("empty", "is an empty folder; put files there (.jsonl, "),
        ("*.bin", "has no file of a supported format, only files such as 'x.bin'; "),
        ("x.bin", "has an unsupported extension; supported: .jsonl, "),
        ("a.tar.gz", "is an archive of files; unpack it (tar -xf a.tar.gz) and name "),
    ],
)
def test_a_source_without_a_file_is_refused_with_its_key(tmp_path, path, message):
    (tmp_path / "x.bin").touch()
    (tmp_path / "a.tar.gz").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError) as caught:
        list_files(Source(path=f"{tmp_path}/{path}"), where="ingest.sources[0].path")
    start = f"ingest.sources[0].path='{tmp_path}/{path}' "
    assert str(caught.value).startswith(start + message)
