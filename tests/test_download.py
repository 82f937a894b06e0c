"""Downloads from a local server: resumed by range after a broken connection or a kill, checked, and no longer than needed."""

import hashlib
import io
import random
import subprocess
import sys
import tarfile
import time

import pytest

from nextlong import download as downloads
from nextlong.download import DamagedError, RemoteFile, download, download_members
from tests.support.file_server import requested, served_files

CONTENT = random.Random(0).randbytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(downloads, "_FIRST_WAIT_S", 0.0)


def archive(members):
    """Return the bytes of a .tar.gz."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


MEMBERS = {f"data/{n}.bin": random.Random(n).randbytes(300_000) for n in range(8)}
ARCHIVE = archive(MEMBERS)


def test_a_connection_that_breaks_is_resumed_where_it_broke(tmp_path):
    with served_files({"/a": CONTENT}, drop_after=1 << 18) as server:
        assert download(RemoteFile(f"{server.url}/a"), tmp_path / "x/a") == SHA256
        starts = requested(server, "/a")
    assert starts == [0, 1 << 18, 2 << 18, 3 << 18]
    assert (tmp_path / "x/a").read_bytes() == CONTENT
    assert names_in(tmp_path) == ["a"]


def test_a_server_without_ranges_is_read_from_its_start(tmp_path):
    with served_files({"/a": CONTENT}, ranges=False) as server:
        remote = RemoteFile(f"{server.url}/a")
        remote.part(tmp_path).write_bytes(CONTENT[:700_001])
        assert download(remote, tmp_path / "a") == SHA256
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [1, 999_999, 1_000_000])
def test_what_was_kept_is_not_asked_again(kept, tmp_path):
    with served_files({"/a": CONTENT}) as server:
        remote = RemoteFile(f"{server.url}/a")
        remote.part(tmp_path).write_bytes(CONTENT[:kept])
        assert download(remote, tmp_path / "a") == SHA256
        assert requested(server, "/a") == [kept]


def test_a_changed_file_is_not_mixed_with_what_was_kept(tmp_path):
    with served_files({"/a": CONTENT}) as server:
        old = RemoteFile(f"{server.url}/a", version="1")
        old.part(tmp_path).write_bytes(b"other bytes")
        new = RemoteFile(f"{server.url}/a", version="2")
        assert download(new, tmp_path / "a") == SHA256


def test_a_file_of_another_hash_never_gets_its_place(tmp_path):
    with (
        served_files({"/a": CONTENT}) as server,
        pytest.raises(DamagedError, match=f"{SHA256}, not 00"),
    ):
        download(RemoteFile(f"{server.url}/a", sha256="00"), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_refused_request_is_not_repeated_and_a_dead_server_only_some_times(tmp_path):
    with served_files({}) as server, pytest.raises(OSError, match="404"):
        download(RemoteFile(f"{server.url}/a"), tmp_path / "a")
    with served_files({"/a": CONTENT}, drop_after=0) as server:
        with pytest.raises(OSError, match="closed"):
            download(RemoteFile(f"{server.url}/a"), tmp_path / "a")
        assert requested(server, "/a") == [0] * 5


def wanted(folder, *numbers):
    return {f"data/{n}.bin": folder / f"out/{n}" for n in numbers}


def test_only_the_members_that_are_needed_are_written_and_read(tmp_path):
    with served_files({"/t": ARCHIVE}, delay_s=0.001) as server:
        remote = RemoteFile(f"{server.url}/t")
        digests = download_members(remote, wanted(tmp_path, 0, 2), folder=tmp_path)
        sent = server.sent
    assert digests == {
        name: hashlib.sha256(MEMBERS[name]).hexdigest()
        for name in ("data/0.bin", "data/2.bin")
    }
    assert names_in(tmp_path) == ["0", "2"]
    assert (tmp_path / "out/2").read_bytes() == MEMBERS["data/2.bin"]
    # The first three members are enough; a block and some buffers may follow.
    assert sent < len(ARCHIVE)


def test_a_member_that_is_missing_is_left_out_and_the_archive_checked(tmp_path):
    paths = wanted(tmp_path, 1, 99)
    with served_files({"/t": ARCHIVE}) as server:
        digest = hashlib.sha256(ARCHIVE).hexdigest()
        remote = RemoteFile(f"{server.url}/t", sha256=digest)
        assert list(download_members(remote, paths, folder=tmp_path)) == ["data/1.bin"]
        wrong = RemoteFile(f"{server.url}/t", sha256="00")
        with pytest.raises(DamagedError):
            download_members(wrong, paths, folder=tmp_path)


def test_a_damaged_archive_is_told_and_not_resumed(tmp_path):
    damaged = ARCHIVE[:2000] + bytes(500_000)
    with served_files({"/t": damaged}) as server:
        digest = hashlib.sha256(ARCHIVE).hexdigest()
        remote = RemoteFile(f"{server.url}/t", sha256=digest)
        with pytest.raises(DamagedError, match="damaged"):
            download_members(remote, wanted(tmp_path, 7), folder=tmp_path)
        assert not remote.part(tmp_path).exists()


KILLED = """
import sys
from pathlib import Path
from nextlong.download import RemoteFile, download_members
url, folder = sys.argv[1], Path(sys.argv[2])
paths = {f"data/{n}.bin": folder / f"out/{n}" for n in (0, 5)}
download_members(RemoteFile(url), paths, folder=folder)
"""


def test_a_killed_download_of_an_archive_resumes_with_a_range(tmp_path):
    with served_files({"/t": ARCHIVE}, delay_s=0.02) as server:
        remote = RemoteFile(f"{server.url}/t")
        part = remote.part(tmp_path)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, remote.url, str(tmp_path)]
        )
        deadline = time.monotonic() + 60
        while not part.exists() or part.stat().st_size < 600_000:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.wait()
        kept = part.stat().st_size
        assert 0 < kept < len(ARCHIVE)
        digests = download_members(remote, wanted(tmp_path, 0, 5), folder=tmp_path)
        assert requested(server, "/t") == [0, kept]
    assert set(digests) == {"data/0.bin", "data/5.bin"}
    assert (tmp_path / "out/5").read_bytes() == MEMBERS["data/5.bin"]
    assert names_in(tmp_path) == ["0", "5"]
