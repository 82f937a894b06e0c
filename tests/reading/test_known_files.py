"""Inputs that a run directory has read are recognised by their bytes, whatever their modification time."""

import json
import os
from pathlib import Path

import fsspec
import pytest

from nextlong.engine.step import Artifact
from nextlong.reading import known_files
from nextlong.reading.listing import list_files
from nextlong.recipe import Source


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"text of {name}")
    return folder


def listed(source):
    return [list_files(source, where="ingest.sources[0].path")]


def remember(source, run_dir, files=None):
    """Remember the files as an ingest does, in two tasks."""
    files = files or listed(source)
    told = {"documents": 1, "text_bytes": 1, "chars": 1, "rejects": 0, "reject_reasons": {}, "example": "", "shards": 1}
    parts = [{"counts": told | {"input_hashes": [known_files.hash_of(file)]}} for own in files for file in own]
    done = Artifact("ingest", run_dir, {"parts": parts})
    known_files.remember(done, sources=[source], files=files, run_dir=run_dir)


def recognise(source, run_dir):
    (files,), changes = known_files.recognise([source], listed(source), run_dir)
    return files, changes


def overwrite(path, text):
    path.write_text(text)
    os.utime(path, (1, 1))


def test_files_of_a_new_directory_are_as_they_were_listed(corpus, tmp_path):
    source = Source(path=str(corpus))
    assert recognise(source, tmp_path) == (listed(source)[0], [])


def test_a_file_of_another_time_keeps_its_identity(corpus, tmp_path):
    source = Source(path=str(corpus))
    before = [file.identity for file in listed(source)[0]]
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    files, changes = recognise(source, tmp_path)
    assert changes == []
    assert [file.identity for file in files] == before
    assert files[0].version == "9:1.0"


def test_a_touched_file_is_hashed_once(corpus, tmp_path, monkeypatch):
    source = Source(path=str(corpus))
    before = [file.identity for file in listed(source)[0]]
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    remember(source, tmp_path, files=[recognise(source, tmp_path)[0]])
    hashed = []
    monkeypatch.setattr(known_files, "hash_of", lambda file: hashed.append(file.name))
    files, changes = recognise(source, tmp_path)
    assert (hashed, changes) == ([], [])
    assert [file.identity for file in files] == before
    os.utime(corpus / "b.txt", (1, 1))
    recognise(source, tmp_path)
    assert hashed == ["b.txt"]


def test_each_change_is_told_in_words(corpus, tmp_path):
    source = Source(path=str(corpus))
    remember(source, tmp_path)
    overwrite(corpus / "a.txt", "text of b")
    (corpus / "b.txt").unlink()
    assert recognise(source, tmp_path)[1] == [
        f"{corpus}/a.txt has other content of the same size (9 bytes)",
        f"b.txt of {corpus} is gone, or no longer named",
    ]
    overwrite(corpus / "a.txt", "text of a and more")
    assert recognise(source, tmp_path)[1][0] == f"{corpus}/a.txt has 18 bytes and had 9"


def test_changed_content_under_the_first_time_is_a_change_too(corpus, tmp_path):
    source = Source(path=str(corpus / "a.txt"))
    os.utime(corpus / "a.txt", (5, 5))
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (6, 6))
    remember(source, tmp_path, files=[recognise(source, tmp_path)[0]])
    (corpus / "a.txt").write_text("text of z")
    os.utime(corpus / "a.txt", (5, 5))
    assert recognise(source, tmp_path)[1] == [f"{corpus}/a.txt has other content of the same size (9 bytes)"]


def test_a_source_of_one_file_is_named_once(corpus, tmp_path):
    source = Source(path=str(corpus / "a.txt"))
    remember(source, tmp_path)
    (corpus / "a.txt").rename(corpus / "c.txt")
    (files,), changes = known_files.recognise([source], [[]], tmp_path)
    assert (files, changes) == ([], [f"{corpus}/a.txt is gone, or no longer named"])


def test_files_elsewhere_go_by_their_version(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/inputs/a.txt", b"text")
    source = Source(path="memory://inputs/a.txt")
    remember(source, tmp_path)
    assert json.loads(Path(tmp_path, "inputs.json").read_text())[source.path]["a.txt"]["xxh3"] is None
    assert recognise(source, tmp_path)[1] == []
    memory.rm("/inputs/a.txt")
    memory.pipe("/inputs/a.txt", b"text")
    (change,) = recognise(source, tmp_path)[1]
    assert change.startswith("memory:///inputs/a.txt has another version (time or ETag ")


def test_other_sources_stay_remembered(corpus, tmp_path):
    first, second = Source(path=str(corpus / "a.txt")), Source(path=str(corpus / "b.txt"))
    remember(first, tmp_path)
    remember(second, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    files, changes = recognise(first, tmp_path)
    assert changes == []
    assert files[0].known_as is not None
