"""Publishing to a folder and to file systems of fsspec, some of which fail."""

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from nextlong.errors import ExportError, RunError
from nextlong.export.publish import (
    RECORD,
    Destination,
    ExportFile,
    publish,
    publish_card,
)

CONTENTS = {
    "README.md": b"# A data set\n",
    "train/part-00000.parquet": b"first" * 1000,
    "train/part-00001.parquet": b"second" * 1000,
    "train/part-00002.parquet": b"third" * 1000,
}


class FlakyFileSystem(MemoryFileSystem):
    """Memory that refuses some transfers, and notes the order of those that it takes."""

    protocol = "flaky"
    store, pseudo_dirs = {}, [""]
    arrived, deleted, failures = [], [], []

    def put_file(self, lpath, rpath, **kwargs):
        failure = self.failures.pop(0) if self.failures else None
        if failure:
            raise failure
        super().put_file(lpath, rpath, **kwargs)

    def rm_file(self, path):
        super().rm_file(path)
        self.deleted.append(path.rpartition("/")[2])

    def mv(self, path1, path2, **kwargs):
        super().mv(path1, path2, **kwargs)
        self.arrived.append(path2.rpartition("/")[2])


@pytest.fixture
def flaky(monkeypatch):
    monkeypatch.setattr("nextlong.export.publish._FIRST_PAUSE_S", 0.001)
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    for held in (
        FlakyFileSystem.store,
        FlakyFileSystem.arrived,
        FlakyFileSystem.deleted,
        FlakyFileSystem.failures,
    ):
        held.clear()
    FlakyFileSystem.pseudo_dirs[:] = [""]
    return FlakyFileSystem()


def export(folder, contents=CONTENTS):
    """Write files as a run leaves them and return what it recorded."""
    files = []
    for name, content in contents.items():
        path = Path(folder) / "export" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(
            ExportFile(path, name, len(content), xxhash.xxh3_128(content).hexdigest())
        )
    return files


def held_at(url):
    fs, root = fsspec.core.url_to_fs(url)
    return {
        path.removeprefix(root).lstrip("/"): fs.cat_file(path) for path in fs.find(root)
    }


def data_at(url):
    return {name: content for name, content in held_at(url).items() if name != RECORD}


@pytest.fixture(params=["local", "file", "memory", "flaky"])
def destination(request, tmp_path, flaky):
    urls = {
        "local": str(tmp_path / "there"),
        "file": f"file://{tmp_path}/there",
        "memory": f"memory:/{tmp_path}/there",
        "flaky": "flaky://bucket/there",
    }
    return urls[request.param]


def test_files_arrive_and_are_not_sent_again(destination, tmp_path):
    files = export(tmp_path)
    assert publish(files, destination) == list(CONTENTS)
    assert data_at(destination) == CONTENTS
    before = held_at(destination)
    assert publish(files, destination) == []
    assert held_at(destination) == before


def test_the_record_names_every_file_and_its_hash(destination, tmp_path):
    files = export(tmp_path)
    publish(files, destination)
    record = json.loads(held_at(destination)[RECORD])
    assert record["files"] == {
        file.name: {"bytes": file.bytes, "xxh3": file.xxh3, "whole": True}
        for file in files
    }


def test_what_says_that_the_rest_is_there_comes_last(flaky, tmp_path):
    files = export(
        tmp_path,
        {
            "README.md": b"x",
            "index.json": b"{}",
            "tokens.idx": b"i",
            "a.mds": b"1",
            "tokens.bin": b"2",
        },
    )
    publish(files, "flaky://bucket/there", threads=1)
    assert flaky.arrived == [
        "a.mds",
        "tokens.bin",
        "README.md",
        "index.json",
        "tokens.idx",
    ]


def test_another_export_with_the_same_names_is_refused_or_replaced(
    destination, tmp_path
):
    publish(export(tmp_path), destination)
    changed = {
        **CONTENTS,
        "train/part-00001.parquet": b"SECOND" * 1000,
    }  # of the same size
    with pytest.raises(ExportError) as error:
        publish(export(tmp_path, changed), destination)
    assert error.value.where == destination
    assert "'train/part-00001.parquet'" in error.value.problem
    assert data_at(destination) == CONTENTS
    sent = publish(export(tmp_path, changed), destination, others="replace")
    assert sent == [
        "README.md",
        "train/part-00001.parquet",
    ]  # the card too, which says that all is there
    assert data_at(destination) == changed


def test_the_command_that_replaces_an_export_quotes_the_destination(tmp_path):
    there = str(tmp_path / "my data")
    publish(export(tmp_path), there)
    changed = {**CONTENTS, "train/part-00000.parquet": b"other"}
    with pytest.raises(ExportError, match=f"--into '{re.escape(there)}' --replace"):
        publish(export(tmp_path, changed), there)


def test_the_card_above_several_exports_is_sent_and_kept_up_to_date(destination):
    publish_card("# first", destination)
    publish_card("# second", destination)
    assert data_at(destination) == {"README.md": b"# second"}


def test_the_card_above_several_exports_spares_a_card_of_the_user(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    publish_card("# ours", str(tmp_path))
    assert data_at(str(tmp_path)) == {"README.md": b"mine"}


def test_a_card_told_anew_is_sent_again(destination, tmp_path):
    publish(export(tmp_path), destination)
    changed = {**CONTENTS, "README.md": b"# The same data\n"}
    assert publish(export(tmp_path, changed), destination) == ["README.md"]
    assert data_at(destination) == changed


def test_replacing_that_is_cut_short_leaves_nothing_that_looks_whole(
    flaky, tmp_path, monkeypatch
):
    monkeypatch.setattr("nextlong.export.publish._ATTEMPTS", 1)
    url = "flaky://bucket/there"
    publish(export(tmp_path), url)
    changed = {
        name: content + b"!"
        for name, content in CONTENTS.items()
        if "00002" not in name
    }
    flaky.failures[:] = [None, *[ConnectionError("gone")] * 3]
    with pytest.raises(ExportError, match="gone; try again"):
        publish(export(tmp_path, changed), url, others="replace", threads=1)
    assert [name for name in flaky.deleted if name[0] != "."] == [
        "README.md",
        "part-00002.parquet",
    ]  # in this order
    assert "README.md" not in data_at(url)
    flaky.failures.clear()
    publish(export(tmp_path, changed), url, others="replace")
    assert data_at(url) == changed


def test_a_file_of_another_size_or_gone_is_sent_again(tmp_path):
    files = export(tmp_path)
    publish(files, str(tmp_path / "there"))
    (tmp_path / "there/train/part-00000.parquet").write_bytes(b"cut")
    (tmp_path / "there/train/part-00001.parquet").unlink()
    assert len(publish(files, str(tmp_path / "there"))) == 2
    assert data_at(str(tmp_path / "there")) == CONTENTS


def test_a_push_that_failed_goes_on_where_it_was(flaky, tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.export.publish._ATTEMPTS", 1)
    files = export(tmp_path)
    url = "flaky://bucket/there"
    for arrived in (
        1,
        2,
        3,
    ):  # each push sends one more before the network is gone; the README comes last
        flaky.failures[:] = [None, *[ConnectionError("gone")] * 3]
        with pytest.raises(ExportError) as error:
            publish(files, url, threads=1)
        assert error.value.where == url
        assert error.value.problem.endswith(": gone")
        assert len(data_at(url)) == arrived
        assert "README.md" not in data_at(url)
    flaky.failures.clear()
    assert publish(files, url) == ["README.md"]
    assert data_at(url) == CONTENTS


def test_transient_errors_are_tried_again(flaky, tmp_path):
    flaky.failures[:] = [ConnectionError("reset"), TimeoutError("slow"), OSError("500")]
    assert len(publish(export(tmp_path), "flaky://bucket/there")) == 4
    assert data_at("flaky://bucket/there") == CONTENTS


def test_lasting_errors_are_not_tried_again(flaky, tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.export.publish._FIRST_PAUSE_S", 3600)
    flaky.failures[:] = [PermissionError("Access Denied")]
    with pytest.raises(ExportError) as error:
        publish(export(tmp_path), "flaky://bucket/there", threads=1)
    assert error.value.problem.endswith("Access Denied")
    assert "credentials" in error.value.fix


def test_no_file_is_there_in_part_while_a_push_runs(tmp_path):
    content = b"x" * (1 << 24)
    files = export(tmp_path, {"big.parquet": content})
    target, sizes, over = tmp_path / "there/big.parquet", set(), threading.Event()

    def watch():
        while not over.is_set():
            if target.exists():
                sizes.add(target.stat().st_size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        publish(files, str(tmp_path / "there"))
    finally:
        over.set()
        watcher.join()
    assert sizes <= {len(content)}
    assert [
        path.name for path in (tmp_path / "there").iterdir() if path.name != RECORD
    ] == ["big.parquet"]


def test_replacing_repairs_a_file_that_was_damaged_in_place(tmp_path):
    files, there = (
        export(tmp_path, {"a.bin": b"12", "b.bin": b"34"}),
        tmp_path / "there",
    )
    publish(files, str(there))
    (there / "a.bin").write_bytes(b"x2")
    assert publish(files, str(there)) == []  # what arrived is not read again
    assert publish(files, str(there), others="replace") == ["a.bin"]
    assert (there / "a.bin").read_bytes() == b"12"


def test_files_of_another_export_are_refused_or_replaced(destination, tmp_path):
    publish(export(tmp_path), destination)
    fewer = {name: content for name, content in CONTENTS.items() if "00002" not in name}
    with pytest.raises(ExportError) as error:
        publish(export(tmp_path, fewer), destination)
    assert "'train/part-00002.parquet'" in error.value.problem
    assert data_at(destination) == CONTENTS
    assert publish(export(tmp_path, fewer), destination, others="replace") == [
        "README.md"
    ]
    assert data_at(destination) == fewer


def test_files_that_no_push_put_there_are_left_alone(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.parquet").write_bytes(b"mine")
    for others in ("refuse", "replace"):
        with pytest.raises(ExportError) as error:
            publish(export(tmp_path), str(there), others=others)
        assert error.value.where == str(there)
        assert "'mine.parquet'" in error.value.problem
    assert held_at(str(there)) == {"mine.parquet": b"mine"}
    (there / "mine.parquet").rename(there / "README.md")
    with pytest.raises(ExportError, match="would be overwritten"):
        publish(export(tmp_path), str(there))


def test_a_licence_and_hidden_files_may_lie_there(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "LICENSE").write_bytes(b"all rights")
    (there / ".gitattributes").write_bytes(b"*")
    assert len(publish(export(tmp_path), str(there))) == 4
    assert (there / "LICENSE").read_bytes() == b"all rights"


def test_an_altered_file_is_not_published(tmp_path):
    files = export(tmp_path)
    files[1].path.write_bytes(b"fIrst" * 1000)
    with pytest.raises(RunError) as error:
        publish(files, str(tmp_path / "there"))
    assert error.value.where == str(files[1].path)
    assert "train/part-00000.parquet" not in data_at(str(tmp_path / "there"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "nosuch://x/y",
            r"the destination 'nosuch://x/y': .*use a local path or a URL that fsspec knows",
        ),
        ("FILE", "is a file"),
        ("UNDER", r"not be reached: .*check the path"),
        ("DAMAGED", r"damaged \.nextlong-push\.json; delete"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(url, message, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RECORD).write_text("[1]")
    names = {
        "FILE": tmp_path / "file",
        "UNDER": tmp_path / "file/below",
        "DAMAGED": tmp_path / "damaged",
    }
    with pytest.raises(ExportError, match=message):
        publish(export(tmp_path), str(names.get(url, url)))


def test_threads_change_nothing(tmp_path):
    contents = {
        f"part-{number:05}.parquet": bytes([number]) * 999 for number in range(40)
    }
    files = export(tmp_path, contents)
    for threads in (1, 4):
        publish(files, str(tmp_path / str(threads)), threads=threads)
    assert held_at(str(tmp_path / "1")) == held_at(str(tmp_path / "4"))


def test_a_killed_push_goes_on(tmp_path):
    files = export(tmp_path)
    plain = [(str(file.path), file.name, file.bytes, file.xxh3) for file in files]
    script = f"""
import os, signal
from pathlib import Path
from nextlong.export import publish
from nextlong.export.publish import ExportFile
put = publish.Destination.put
publish.Destination.put = lambda *given: (put(*given), os.kill(os.getpid(), signal.SIGKILL))
files = [ExportFile(Path(path), *rest) for path, *rest in {plain!r}]
publish.publish(files, {str(tmp_path / "there")!r}, threads=1)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert "README.md" not in data_at(str(tmp_path / "there"))
    publish(files, str(tmp_path / "there"))
    assert data_at(str(tmp_path / "there")) == CONTENTS


def test_replacing_leaves_no_empty_folder(tmp_path):
    there = tmp_path / "there"
    publish(
        export(
            tmp_path, {"a/b/part.bin": b"1", "a/kept.bin": b"2", "c/d/part.bin": b"3"}
        ),
        str(there),
    )
    publish(
        export(tmp_path, {"a/kept.bin": b"2", "part.bin": b"1"}),
        str(there),
        others="replace",
    )
    assert sorted(str(path.relative_to(there)) for path in there.rglob("*")) == [
        RECORD,
        "a",
        "a/kept.bin",
        "part.bin",
    ]


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    fsspec.filesystem("memory").store.clear()
    return Destination(
        str(tmp_path / "there") if request.param == "local" else "memory://there"
    )


def made(tmp_path, name, text):
    path = tmp_path / "made"
    path.write_text(text)
    return ExportFile(path, name, len(text), "0123456789abcdef")


def test_nothing_is_there_before_anything_was_put_there(place):
    assert (place.sizes(), place.read_record()) == ({}, {})


def test_files_are_there_under_their_names_and_hidden_ones_are_not_told(
    place, tmp_path
):
    place.put(made(tmp_path, "train/part-0.parquet", "abc"))
    place.write_record({})
    assert place.sizes() == {"train/part-0.parquet": 3}
    place.put(made(tmp_path, "train/part-0.parquet", "abcd"))
    assert place.sizes() == {"train/part-0.parquet": 4}
    place.delete("train/part-0.parquet")
    assert place.sizes() == {}


def test_the_record_comes_back(place):
    files = {
        "b": {"bytes": 1, "xxh3": "x", "whole": True},
        "a": {"bytes": 2, "xxh3": "é", "whole": False},
    }
    place.write_record(files)
    assert place.read_record() == files


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": {"a": {}}}', '{"files": {"a": 1}}']
)
def test_a_damaged_record_is_refused_with_its_cure(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(ExportError) as error:
        Destination(str(tmp_path)).read_record()
    assert error.value.where == str(tmp_path)
    assert RECORD in error.value.problem


def test_a_file_is_no_destination(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="is a file"):
        Destination(str(tmp_path / "file")).sizes()


def test_a_file_that_cannot_be_sent_leaves_nothing(tmp_path):
    place = Destination(str(tmp_path / "there"))
    with pytest.raises(FileNotFoundError):
        place.put(ExportFile(tmp_path / "none", "a", 1, "0" * 32))
    assert list((tmp_path / "there").iterdir()) == []


def test_writing_is_tried_without_a_trace(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for there in (
        Destination(str(tmp_path / "a/b")),
        Destination("memory://bucket/there"),
    ):
        there.try_writing()
        assert there.sizes() == {}
    assert list(tmp_path.iterdir()) == []
    assert list(fs.store) == []


def test_what_cannot_be_deleted_is_no_reason_to_refuse(monkeypatch):
    def refuse(*_, **__):
        raise OSError(5, "403: an object under retention")

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    place = Destination("memory://kept/there")
    place.try_writing()
    assert place.sizes() == {}


def test_what_cannot_be_written_is_found_out(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Destination(str(tmp_path / "file/below")).try_writing()

    def refuse(*_, **__):
        raise PermissionError("read only")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(PermissionError):
        Destination("memory://bucket/there").try_writing()
