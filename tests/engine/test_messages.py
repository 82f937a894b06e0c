"""The wording of errors about files, folders and worker processes."""

import re

import pytest

from nextlong.engine import store
from nextlong.engine.local import LocalExecutor
from nextlong.engine.step import Artifact
from nextlong.errors import RunError


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "ENOSPC",
            "it could not be written, because the disk is full, or your quota is "
            "exceeded; free space (`nextlong plan` estimates it), then run again: "
            "finished steps are kept",
        ),
        (
            "EACCES",
            "it cannot be written (Permission denied); set run_dir to a folder that "
            "you can write to",
        ),
        (
            "ENOENT",
            "it was deleted during the run; do not change run_dir meanwhile, then run "
            "again",
        ),
        (
            "EMFILE",
            "it cannot be opened: too many open files; raise the limit (`ulimit -n`), "
            "then run again",
        ),
    ],
)
def test_what_the_system_refuses_is_told_with_the_fix(tmp_path, code, message):
    number = getattr(store.errno, code)
    reason = store.os.strerror(number)
    with pytest.raises(RunError) as error, store.explained(tmp_path):
        raise OSError(number, reason)
    assert str(error.value) == f"{tmp_path}: {message}"


def test_damaged_and_missing_files_are_told_with_how_to_rebuild_them(tmp_path):
    path = tmp_path / "manifest.json"
    with pytest.raises(RunError) as error:
        store.read_json(path)
    assert str(error.value) == f"{path}: it is missing; run again to rebuild it"
    path.write_text("{")
    with pytest.raises(RunError) as error:
        store.read_json(path)
    message = str(error.value)
    assert message.startswith(f"{path}: it is damaged (")
    assert message.endswith("; delete this file and run again to rebuild it")


def test_a_step_of_an_earlier_version_is_told_as_such(tmp_path):
    manifest = {"parts": [], "versions": {"nextlong": "0.0.1"}}
    error = Artifact("embed", tmp_path, manifest).of_earlier_version(".vectors.npy")
    assert str(error) == (
        f"{tmp_path}: it has no .vectors.npy, because its step embed was made by an "
        "earlier version (nextlong 0.0.1); run the recipe again; unchanged steps are "
        "reused"
    )


@pytest.mark.parametrize(
    ("cpus", "codes", "message"),
    [
        (
            1,
            {-9},
            "it was killed, .*ran out of memory|it was killed, most likely because "
            "memory ran out, while running x; run again with more memory: finished "
            "steps are kept",
        ),
        (
            4,
            {1},
            "it exited with the error shown above, while running x; fix its cause "
            r"\(nextlong doctor lists missing packages\) and run again",
        ),
    ],
)
def test_a_worker_that_ends_is_told_with_what_it_ran(cpus, codes, message):
    error = LocalExecutor(cpus)._of_worker(codes, ", while running x")
    assert re.search(f"a worker process: ({message})", str(error))
