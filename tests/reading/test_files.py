"""Retries: a file system that fails now and then gives the same run."""

import random
import zlib

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from nextlong import pipeline
from nextlong.errors import CorpusError
from nextlong.reading import files
from nextlong.reading.files import open_binary, retried
from nextlong.reading.listing import list_files
from nextlong.recipe import Source


class FlakyFile(MemoryFile):
    """Fails one read in `one_in`."""

    def read(self, *asked):
        Flaky.fail_now_and_then()
        return super().read(*asked)


class Flaky(MemoryFileSystem):
    """A file system of which one request in ten fails, by a seeded draw."""

    protocol = ("flaky",)
    store = {}  # noqa: RUF012 - as the class above has it
    pseudo_dirs = [""]  # noqa: RUF012
    draw = random.Random(0)
    failed = 0
    share = 0.1

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).replace("flaky://", "memory://", 1))

    @classmethod
    def fail_now_and_then(cls):
        if cls.draw.random() < cls.share:
            cls.failed += 1
            raise OSError("connection reset by peer")

    def info(self, path, **options):
        self.fail_now_and_then()
        return super().info(path, **options)

    def _open(self, path, mode="rb", **options):
        if mode != "rb":
            return super()._open(path, mode, **options)
        self.fail_now_and_then()
        return FlakyFile(self, path, self.store[path].getvalue())


@pytest.fixture
def flaky(monkeypatch, small_corpus):
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(files, "_PAUSE_S", 0)
    monkeypatch.setattr(Flaky, "share", 0.0)
    fs = fsspec.filesystem("flaky")
    for path in small_corpus.iterdir():
        fs.pipe_file(f"/corpus/{path.name}", path.read_bytes())
    monkeypatch.setattr(Flaky, "draw", random.Random(1))
    monkeypatch.setattr(Flaky, "failed", 0)
    yield fs
    Flaky.store.clear()


def test_a_file_system_that_fails_one_request_in_ten_gives_the_same_data(
    flaky, recipe_for, shared_run, hashes_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(Flaky, "share", 0.1)
    recipe = recipe_for(
        tmp_path / "run",
        "ingest.sources.0.path=flaky:///corpus",
        "executor=serial",
        "workers=1",
    )
    pipeline.run(recipe)
    assert Flaky.failed > 5

    def written(run_dir):
        return {
            name: value
            for name, value in hashes_of(run_dir).items()
            if "parquet-" in name or "jsonl-" in name
        }

    def unnamed(found):
        return sorted(found.values())

    assert unnamed(written(tmp_path / "run")) == unnamed(written(shared_run))


def test_a_read_goes_on_at_its_place(flaky, monkeypatch):
    content = bytes(range(256)) * 4_000
    flaky.pipe_file("/whole", content)
    monkeypatch.setattr(Flaky, "share", 0.1)
    with open_binary("flaky:///whole") as file:
        pieces = [file.read(1_000) for _ in range(1_025)]
        file.seek(-256, 2)
        assert file.read() == content[-256:]
    assert zlib.crc32(b"".join(pieces)) == zlib.crc32(content)
    assert Flaky.failed > 50


def test_a_file_system_that_always_fails_is_told_with_the_place(
    flaky, recipe_for, tmp_path, monkeypatch
):
    monkeypatch.setattr(Flaky, "share", 1.0)
    recipe = recipe_for(
        tmp_path / "run", "ingest.sources.0.path=flaky:///corpus", "executor=serial"
    )
    with pytest.raises(CorpusError, match="connection reset") as caught:
        pipeline.run(recipe)
    assert caught.value.value == "'flaky:///corpus'"


def test_what_will_not_pass_is_not_asked_again():
    calls = []

    def refuse(error):
        calls.append(error)
        raise error

    for error, times in (
        (FileNotFoundError("gone"), 1),
        (PermissionError("no"), 1),
        (ValueError("bug"), 1),
    ):
        calls.clear()
        with pytest.raises(type(error)):
            retried(lambda error=error: refuse(error), fs=fsspec.filesystem("memory"))
        assert len(calls) == times


def test_a_disk_of_this_machine_is_asked_once(tmp_path, monkeypatch):
    paused = []
    monkeypatch.setattr(files.time, "sleep", paused.append)
    with pytest.raises(CorpusError, match="be listed"):
        list_files(
            Source(path=str(tmp_path / ("x" * 300 + ".jsonl"))),
            where="ingest.sources[0].path",
        )
    assert not paused


def test_a_listing_that_fails_is_tried_so_often_and_no_more(flaky, monkeypatch):
    paused = []
    monkeypatch.setattr(files.time, "sleep", paused.append)
    monkeypatch.setattr(Flaky, "share", 1.0)
    with pytest.raises(CorpusError, match="be listed"):
        list_files(Source(path="flaky:///corpus"), where="ingest.sources[0].path")
    assert len(paused) == files._ATTEMPTS - 1
