"""A destination, local and in memory: whole files alone show, and what an earlier push said is read or refused."""

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from nextlong.errors import ExportError
from nextlong.export.publish import RECORD, Destination, ExportFile


@pytest.fixture(params=["local", "memory"])
def destination(request, tmp_path):
    fsspec.filesystem("memory").store.clear()
    return Destination(str(tmp_path / "there") if request.param == "local" else "memory://there")


def made(tmp_path, name, text):
    path = tmp_path / "made"
    path.write_text(text)
    return ExportFile(path, name, len(text), "0123456789abcdef")


def test_nothing_is_there_before_anything_was_put_there(destination):
    assert (destination.sizes(), destination.read_record()) == ({}, {})


def test_files_are_there_under_their_names_and_hidden_ones_are_not_told(destination, tmp_path):
    destination.put(made(tmp_path, "train/part-0.parquet", "abc"))
    destination.write_record({})
    assert destination.sizes() == {"train/part-0.parquet": 3}
    destination.put(made(tmp_path, "train/part-0.parquet", "abcd"))
    assert destination.sizes() == {"train/part-0.parquet": 4}
    destination.delete("train/part-0.parquet")
    assert destination.sizes() == {}


def test_the_record_comes_back(destination):
    files = {"b": {"bytes": 1, "xxh3": "x", "whole": True}, "a": {"bytes": 2, "xxh3": "é", "whole": False}}
    destination.write_record(files)
    assert destination.read_record() == files


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": {}}}', '{"files": {"a": 1}}'])
def test_a_damaged_record_is_refused_with_its_cure(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(
        ExportError, match="holds a damaged .*delete that file, and the files that are to be sent again"
    ):
        Destination(str(tmp_path)).read_record()


def test_a_file_is_no_destination(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="is a file; name a folder"):
        Destination(str(tmp_path / "file")).sizes()


def test_a_file_that_cannot_be_sent_leaves_nothing(tmp_path):
    destination = Destination(str(tmp_path / "there"))
    with pytest.raises(FileNotFoundError):
        destination.put(ExportFile(tmp_path / "none", "a", 1, "0" * 32))
    assert list((tmp_path / "there").iterdir()) == []


def test_writing_is_tried_without_a_trace(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for there in (Destination(str(tmp_path / "a/b")), Destination("memory://bucket/there")):
        there.try_writing()
        assert there.sizes() == {}
    assert list(tmp_path.iterdir()) == []
    assert list(fs.store) == []


def test_what_cannot_be_deleted_is_no_reason_to_refuse(monkeypatch):
    def refuse(*_, **__):
        raise OSError(5, "403: an object under retention")

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    destination = Destination("memory://kept/there")
    destination.try_writing()
    assert destination.sizes() == {}


def test_what_cannot_be_written_is_found_out(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Destination(str(tmp_path / "file/below")).try_writing()

    def refuse(*_, **__):
        raise PermissionError("read only")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(PermissionError):
        Destination("memory://bucket/there").try_writing()
