"""Store: small files whole or absent, parts confirmed by hash, the lock, and what the operating system refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nextlong.engine import store
from nextlong.errors import RunError

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from nextlong.engine import store
path = Path(sys.argv[1])
for number in range(10**9):
    store.write_json(path, [number % 7] * (1 + number % 7 * 20_000))
"""

HOLD_FOR_EVER = """
import sys, time
from pathlib import Path
from nextlong.engine import store
with store.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def start(script, argument):
    return subprocess.Popen(
        [sys.executable, "-c", script, str(argument)], stdout=subprocess.PIPE, text=True
    )


def stop(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def commit(folder, index, **contents):
    """Commit one part with a file for each keyword, and return its marker."""
    work = folder / f".work-{index}"
    work.mkdir(parents=True)
    for suffix, text in contents.items():
        (work / f"part-{index:05d}.{suffix}").write_text(text)
    return store.commit_part(work, folder, index, {"rows": index}, 0.5)


def alter(path, raw):
    """Overwrite a file; the time of change differs even where the clock of the file system is coarse."""
    path.write_bytes(raw)
    os.utime(path, ns=(1, 1))


# small files


def test_reader_never_sees_half_a_file_and_a_killed_writer_leaves_a_whole_one(tmp_path):
    path = tmp_path / "numbers.json"
    store.write_json(path, [0])
    writer = start(WRITE_FOR_EVER, path)
    try:
        lengths = set()
        while len(lengths) < 5:
            numbers = store.read_json(path)
            assert numbers == [numbers[0]] * (1 + numbers[0] * 20_000)
            lengths.add(len(numbers))
    finally:
        stop(writer)
    numbers = store.read_json(path)
    assert len(numbers) == 1 + numbers[0] * 20_000
    store.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]


def test_write_that_fails_keeps_the_old_text_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    store.write_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        store.write_file(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_keeps_every_script_readable(tmp_path):
    store.write_json(tmp_path / "a.json", {"größe": ["漢", 1, None]})
    assert (tmp_path / "a.json").read_text(
        encoding="utf-8"
    ) == '{\n "größe": [\n  "漢",\n  1,\n  null\n ]\n}\n'


@pytest.mark.parametrize("raw", [b"", b'{"parts": [', b"\x00" * 64, b"\xff{}"])
def test_damaged_json_names_the_file_and_the_cure(tmp_path, raw):
    path = tmp_path / "manifest.json"
    path.write_bytes(raw)
    with pytest.raises(RunError) as error:
        store.read_json(path)
    assert error.value.where == str(path)
    assert "damaged" in error.value.problem


def test_missing_json_names_the_file_and_the_cure(tmp_path):
    path = tmp_path / "manifest.json"
    with pytest.raises(RunError) as error:
        store.read_json(path)
    assert error.value.where == str(path)
    assert "missing" in error.value.problem


def test_hash_is_xxh3_128_of_the_bytes(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert (
        store.hash_file(tmp_path / "empty") == "99aa06d3014798d86001c324468d497f"
    )  # the published vector


# parts


def test_committed_part_is_confirmed_with_its_counts(tmp_path):
    marker = commit(tmp_path, 3, txt="abc", npy="")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".part-00003.json",
        "part-00003.npy",
        "part-00003.txt",
    ]
    assert store.confirmed_parts(tmp_path, among=range(4)) == {3: marker}
    assert (marker["index"], marker["counts"], marker["seconds"]) == (
        3,
        {"rows": 3},
        0.5,
    )
    assert {name: record["bytes"] for name, record in marker["files"].items()} == {
        "part-00003.npy": 0,
        "part-00003.txt": 3,
    }


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "part-00001.b").unlink(),
        lambda folder: (folder / "part-00001.b").write_bytes(b"tw"),
        lambda folder: alter(folder / "part-00001.b", b"twO"),
        lambda folder: (folder / ".part-00001.json").write_bytes(b""),
        lambda folder: (folder / ".part-00001.json").write_bytes(
            (folder / ".part-00001.json").read_bytes()[:40]
        ),
        lambda folder: (folder / ".part-00001.json").write_text("{}"),
    ],
    ids=[
        "file missing",
        "file truncated",
        "file altered",
        "marker empty",
        "marker torn",
        "marker without files",
    ],
)
def test_part_whose_files_or_marker_were_torn_is_not_confirmed(tmp_path, harm):
    for index in range(3):
        commit(tmp_path, index, a="one", b="two")
    harm(tmp_path)
    assert sorted(store.confirmed_parts(tmp_path, among=range(3))) == [0, 2]


def test_files_reach_the_disk_before_the_marker_that_vouches_for_them(
    tmp_path, monkeypatch
):
    order = []
    replace = Path.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: order.append(Path(f"/proc/self/fd/{file}").readlink().name),
    )
    monkeypatch.setattr(
        Path,
        "replace",
        lambda path, to: (order.append(f"-> {to.name}"), replace(path, to))[1],
    )
    commit(tmp_path, 0, a="one", b="two")
    assert order == [
        "part-00000.a", "-> part-00000.a", "part-00000.b", "-> part-00000.b", "-> .part-00000.json",
    ]  # fmt: skip


def test_many_files_of_one_task_all_reach_the_disk_before_its_marker(
    tmp_path, monkeypatch
):
    synced, replace = set(), Path.replace

    def moved(path, to):
        if to.name.startswith(".part-"):
            assert len(synced) == 100
        return replace(path, to)

    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: synced.add(Path(f"/proc/self/fd/{file}").readlink().name),
    )
    monkeypatch.setattr(Path, "replace", moved)
    marker = commit(
        tmp_path, 0, **{f"{number:05d}": "x" * number for number in range(100)}
    )
    assert list(marker["files"]) == sorted(synced)
    assert store.confirmed_parts(tmp_path, among=[0]) == {0: marker}


def test_parts_are_confirmed_and_deleted_by_thousands(tmp_path):
    for index in range(200):
        commit(tmp_path, index, a=f"{index}")
    alter(tmp_path / "part-00007.a", b"8")
    assert sorted(store.confirmed_parts(tmp_path, among=range(200))) == [
        index for index in range(200) if index != 7
    ]
    assert sorted(store.confirmed_parts(tmp_path, among=(3, 7, 199))) == [3, 199]
    store.delete_parts(tmp_path, range(199))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".part-00199.json",
        "part-00199.a",
    ]


# finished steps


@pytest.fixture
def step_folder(tmp_path):
    """A finished step of two parts."""
    folder = tmp_path / "01-step-abc"
    parts = [
        commit(folder, index, a=f"one {index}", b=f"two {index}") for index in range(2)
    ]
    store.write_json(folder / store.MANIFEST, {"parts": parts})
    store.remove_leftovers(folder)
    return folder


def check(folder, **trust):
    store.check_files(folder, store.read_json(folder / store.MANIFEST), **trust)


def test_finished_step_holds_its_files_and_its_manifest_only(step_folder):
    check(step_folder)
    assert sorted(path.name for path in step_folder.iterdir()) == [
        "manifest.json", "part-00000.a", "part-00000.b", "part-00001.a", "part-00001.b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("harm", "state"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: os.truncate(path, 3), "altered"),
        (lambda path: alter(path, b"two X"), "altered"),
    ],
    ids=["missing", "truncated", "altered"],
)
def test_finished_step_with_a_harmed_file_is_refused_by_name_with_the_cure(
    step_folder, harm, state
):
    harm(step_folder / "part-00001.b")
    with pytest.raises(RunError) as error:
        check(step_folder)
    assert error.value.where == str(step_folder / "part-00001.b")
    assert state in error.value.problem
    assert str(step_folder) in error.value.fix


def test_copy_with_other_times_but_the_same_bytes_is_intact(step_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(step_folder, copy, copy_function=shutil.copyfile)
    for path in copy.iterdir():
        os.utime(path, ns=(1, 1))
    check(copy)
    alter(copy / "part-00000.a", b"one X")
    with pytest.raises(RunError, match=r"part-00000\.a: "):
        check(copy)


def test_files_are_read_as_far_as_they_are_not_trusted(step_folder):
    path = step_folder / "part-00000.a"
    mtime_ns = path.stat().st_mtime_ns
    path.write_text("one X")
    os.utime(path, ns=(1, mtime_ns))
    check(step_folder, trust="time")
    with pytest.raises(RunError, match=r"part-00000\.a: "):
        check(step_folder, trust="hash")
    os.utime(path, ns=(1, 1))
    check(step_folder, trust="size")
    with pytest.raises(RunError, match=r"part-00000\.a: "):
        check(step_folder, trust="time")
    os.truncate(path, 3)
    with pytest.raises(RunError, match=r"part-00000\.a: "):
        check(step_folder, trust="size")


def test_leftovers_of_killed_processes_go_and_everything_else_stays(tmp_path):
    commit(tmp_path, 0, a="one")
    (tmp_path / ".work-00001-dead").mkdir()
    (tmp_path / ".work-00001-dead" / "part-00001.a").write_text("half")
    (tmp_path / ".manifest.json.123.tmp").write_text("{")
    store.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".part-00000.json",
        "part-00000.a",
    ]
    (tmp_path / store.MANIFEST).write_text(
        "{}"
    )  # killed after the manifest, before its markers went
    store.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "part-00000.a",
    ]


# the lock


def test_second_process_is_refused_with_the_first_ones_pid_until_that_dies(tmp_path):
    run_dir = tmp_path / "new" / "run"
    holder = start(HOLD_FOR_EVER, run_dir)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError) as error, store.locked(run_dir):
            pass
        assert error.value.where == str(run_dir)
        assert str(holder.pid) in error.value.problem
    finally:
        stop(holder)
    with store.locked(run_dir):
        assert (run_dir / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_lock_is_held_against_this_process_too_and_free_again_after_an_error(tmp_path):
    held = store.locked(tmp_path)
    held.__enter__()
    with pytest.raises(RunError) as error, store.locked(tmp_path):
        pass
    assert str(os.getpid()) in error.value.problem
    assert not held.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with store.locked(tmp_path):
        pass


# what the operating system refuses


def fill_with_text(sink):
    sink.write(b"x" * 100_000)


def fill_with_numpy(sink):
    np.save(sink, np.zeros(100_000))


@pytest.mark.parametrize("fill", [fill_with_text, fill_with_numpy])
def test_full_disk_is_told_with_the_place(tmp_path, fill):
    with (
        pytest.raises(RunError) as error,
        store.explained(tmp_path),
        open("/dev/full", "wb", buffering=0) as sink,
    ):
        fill(sink)
    assert error.value.where == str(tmp_path)
    assert "full" in error.value.problem


def test_run_dir_below_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "run", tmp_path / "file"):
        with pytest.raises(RunError) as error, store.locked(path):
            pass
        assert error.value.where == str(path)
        assert "run_dir" in error.value.fix


@pytest.fixture
def without_rights():
    """Root may write anywhere, so be nobody for a while; anybody else stays who they are."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_folder_without_write_permission_is_told(tmp_path, request):
    tmp_path.chmod(0o555)
    request.getfixturevalue("without_rights")
    with pytest.raises(RunError) as error, store.locked(tmp_path / "run"):
        pass
    assert error.value.where == str(tmp_path / "run")
    assert "run_dir" in error.value.fix


def test_folder_that_vanishes_is_told(tmp_path):
    path = tmp_path / "gone" / "manifest.json"
    with pytest.raises(RunError) as error, store.explained(tmp_path):
        path.write_text("")
    assert error.value.where == str(path)
    assert "deleted" in error.value.problem


def test_other_errors_of_the_operating_system_pass(tmp_path):
    with pytest.raises(IsADirectoryError), store.explained(tmp_path):
        tmp_path.read_bytes()
    with pytest.raises(OSError, match="no errno"), store.explained(tmp_path):
        raise OSError("no errno")


def test_marker_is_json_that_other_tools_read(tmp_path):
    marker = commit(tmp_path, 0, a="one")
    assert json.loads((tmp_path / ".part-00000.json").read_text()) == marker
