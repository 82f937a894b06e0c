"""Local executor: results, how many tasks at once, and that no worker survives an error, a kill or its parent."""

import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
from tests.support.executing import carry_out

from nextlong.engine import local
from nextlong.engine.executor import Resources, granted_gpus
from nextlong.engine.local import LocalExecutor
from nextlong.errors import CorpusError, RunError

PATIENCE_S = 60
_PATHS = os.pathsep.join([str(Path(__file__).parent), *sys.path])
WITH_TESTS = os.environ | {"PYTHONPATH": _PATHS}

PARENT = """
import sys
from tests.support.executing import carry_out
from nextlong.engine.local import LocalExecutor
from test_local import say_pid_and_wait
if __name__ == "__main__":
    with LocalExecutor(2) as executor:
        list(carry_out(executor, say_pid_and_wait, [(sys.argv[1], number) for number in range(2)]))
"""

SHARING = """
import os
import sys
from functools import partial
from pathlib import Path
from nextlong.engine.local import LocalExecutor
from test_local import USES_SHARED, fail_to_load
if __name__ == "__main__":
    calls = {"touch": Path(sys.argv[2]).touch, "fail": fail_to_load}
    with LocalExecutor(1) as executor:
        executor.share(calls[sys.argv[1]])
        executor.submit(0, int, resources=USES_SHARED, label="step task 0")
        print(dict(executor.ended()))
"""

UNGUARDED = """
import sys
import nextlong
print(len(nextlong.run(nextlong.Recipe.load(sys.argv[1]))))
"""


def square(number):
    return number, number * number, os.getpid()


def read_environment(name):
    return os.environ.get(name)


def meet(folder, number, others):
    """Return once as many tasks are at work at the same time."""
    (Path(folder) / str(number)).touch()
    wait_for(lambda: len(list(Path(folder).iterdir())) == others)


def count_neighbours(folder, number):
    """Return how many tasks are at work at this moment, itself among them."""
    own = Path(folder) / str(number)
    own.touch()
    time.sleep(0.02)
    beside = len(list(Path(folder).iterdir()))
    own.unlink()
    return beside


def hold_mb(megabytes):
    """Touch so much memory for a moment; return which process it was."""
    bytearray(b"x" * (megabytes * 1_000_000))
    return os.getpid()


def say_pid_and_wait(folder, number):
    path = Path(folder) / f"{number}.pid"
    path.with_suffix(".tmp").write_text(str(os.getpid()))
    path.with_suffix(".tmp").rename(path)
    time.sleep(600)


def fail_when_others_wait(folder, number):
    if number:
        say_pid_and_wait(folder, number)
    wait_for(lambda: len(pids_in(folder)) == 2)
    raise CorpusError(where="corpus", problem="it is at fault", fix="mend it")


def die(_ballast):
    os.kill(os.getpid(), signal.SIGKILL)


LOADED = {}  # the process that loaded something, by name


def load(name):
    LOADED[name] = os.getpid()


def fail_to_load():
    raise CorpusError(where="corpus", problem="it is at fault", fix="mend it")


def wait_for_file(path):
    wait_for(path.exists)


def process_that_loaded(name, _number):
    return LOADED.get(name)


def wait_for(condition):
    """Return once the condition holds; fail after a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.01)


def pids_in(folder):
    return [int(path.read_text()) for path in Path(folder).glob("*.pid")]


def is_alive(pid):
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_result_comes_once_from_other_processes():
    with LocalExecutor(2) as executor:
        results = list(carry_out(executor, square, [(number,) for number in range(40)]))
        assert list(carry_out(executor, square, [])) == []
    assert sorted(result[:2] for result in results) == [
        (number, number * number) for number in range(40)
    ]
    assert os.getpid() not in {pid for _, _, pid in results}
    assert all(not is_alive(pid) for _, _, pid in results)


def test_executor_that_maps_nothing_starts_nothing():
    before = multiprocessing.active_children()
    with LocalExecutor(2) as executor:
        assert list(carry_out(executor, square, [])) == []
        assert multiprocessing.active_children() == before


def test_worker_serves_the_next_step_until_it_has_grown():
    with LocalExecutor(1) as executor:
        first, second, third = (
            list(carry_out(executor, hold_mb, [(megabytes,)]))
            for megabytes in (1, 300, 1)
        )
    assert first == second
    assert second != third


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"],
)
def test_workers_have_one_thread_and_the_parent_keeps_its_own(name, monkeypatch):
    monkeypatch.setenv(name, "7")
    with LocalExecutor(1) as executor:
        assert list(carry_out(executor, read_environment, [(name,)])) == ["1"]
    assert os.environ[name] == "7"


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_tasks_at_once_than_asked(tmp_path, at_once):
    with LocalExecutor(3) as executor:
        list(
            carry_out(executor, meet, [(tmp_path, number, 3) for number in range(3)])
        )  # so that three workers are there
        for path in tmp_path.iterdir():
            path.unlink()
        beside = list(
            carry_out(
                executor,
                count_neighbours,
                [(tmp_path, number) for number in range(12)],
                at_once=at_once,
            )
        )
    assert len(beside) == 12
    assert max(beside) <= at_once


def test_first_error_ends_it_and_leaves_no_worker(tmp_path):
    with (
        pytest.raises(CorpusError, match="^corpus: it is at fault; mend it$"),
        LocalExecutor(3) as executor,
    ):
        list(
            carry_out(
                executor,
                fail_when_others_wait,
                [(tmp_path, number) for number in range(3)],
            )
        )
    pids = pids_in(tmp_path)
    assert len(pids) == 2
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("workers", "cure"), [(1, "more memory"), (2, "--set workers=1")]
)
def test_killed_worker_is_told_with_its_cure(workers, cure):
    ballast = (
        "x" * 1_000_000
    )  # more than a pipe holds, as the tasks of a large corpus are
    with pytest.raises(RunError) as error, LocalExecutor(workers) as executor:
        list(carry_out(executor, die, [(ballast,)] * 6))
    assert "killed" in error.value.problem
    assert cure in error.value.fix


class Unreadable:
    """What only the process that made it can read, as where a package is missing in the worker."""

    def __reduce__(self):
        return importlib.import_module, ("no_such_package",)


def test_a_worker_that_fails_before_its_task_begins_is_not_told_as_killed():
    told = r"exited with the error shown above, while running embed task 7; fix its cause \(nextlong doctor"
    with LocalExecutor(1) as executor:
        executor.submit(
            0, len, Unreadable(), resources=Resources(), label="embed task 7"
        )
        with pytest.raises(RunError, match=told):
            list(executor.ended())


@pytest.mark.parametrize(
    ("kills", "cause"),
    [(3, "most likely"), (4, "the system")],
)
def test_a_worker_that_the_system_killed_for_its_memory_is_told_as_such(
    tmp_path, monkeypatch, kills, cause
):
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 17\noom_kill 3\n")
    monkeypatch.setattr(local, "_VMSTAT", counters)
    with LocalExecutor(1) as executor:
        executor.submit(0, die, "", resources=Resources(), label="embed task 7")
        counters.write_text(f"nr_free_pages 17\noom_kill {kills}\n")
        with pytest.raises(RunError) as error:
            list(executor.ended())
    assert cause in error.value.problem
    assert error.value.problem.endswith("embed task 7")


def test_workers_die_with_a_parent_that_was_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, script, tmp_path],
        env=WITH_TESTS,
    )
    try:
        wait_for(lambda: len(pids_in(tmp_path)) == 2)
        assert all(map(is_alive, pids_in(tmp_path)))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not any(map(is_alive, pids_in(tmp_path))))


def test_script_without_a_main_guard_is_told_what_to_write(tmp_path, recipe_for):
    (tmp_path / "my.yaml").write_text(
        recipe_for(tmp_path / "run", "executor=local").dump(), encoding="utf-8"
    )
    (tmp_path / "my.py").write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, tmp_path / "my.py", tmp_path / "my.yaml"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1
    assert re.search(
        r"RunError: a worker process: it ended while it started; in a script, .*__main__",
        ended.stderr,
    )


def test_the_server_that_workers_are_forked_from_has_one_thread(monkeypatch):
    given = []
    monkeypatch.setattr(forkserver, "set_forkserver_preload", given.append)
    monkeypatch.setattr(
        forkserver,
        "ensure_running",
        lambda: given.append(os.environ["OMP_NUM_THREADS"]),
    )
    local.start_server(["pyarrow"])
    assert given == [["pyarrow", "nextlong.engine.shared_call"], "1"]


needs_memfd = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="only Linux has it"
)
USES_SHARED = Resources(uses_shared=True)


def loaders(executor, name):
    calls = [(name, number) for number in range(6)]
    return set(carry_out(executor, process_that_loaded, calls))


@needs_memfd
def test_workers_have_what_was_loaded_once_for_all_of_them():
    with LocalExecutor(2) as executor:
        executor.share(partial(load, "shared"))
        executor.submit(0, square, 3, resources=USES_SHARED, label="step task 0")
        assert dict(executor.ended())[0][0] == 3
        (loader,) = loaders(executor, "shared")
        workers = {pid for *_, pid in carry_out(executor, square, [(1,), (2,)])}
        assert loader not in {None, os.getpid(), *workers}
        executor.share(fail_to_load)
        assert loaders(executor, "shared") == {loader}


@needs_memfd
def test_a_task_waits_for_what_is_being_loaded_and_others_run(tmp_path):
    path = tmp_path / "loaded"
    with LocalExecutor(2) as executor:
        executor.share(partial(wait_for_file, path))
        assert executor.has_room(Resources())
        executor.submit(0, square, 3, resources=Resources(), label="step task 0")
        assert not executor.has_room(USES_SHARED)
        ((_, (number, *_)),) = executor.ended()
        assert number == 3
        assert executor.has_room(USES_SHARED)
        assert executor._sharing.is_alive()  # it has not waited
        path.touch()
        executor.submit(1, path.exists, resources=USES_SHARED, label="step task 1")
        assert dict(executor.ended()) == {1: True}


@needs_memfd
@pytest.mark.parametrize("call", ["touch", "fail"])
def test_the_first_executor_of_a_process_shares_and_prints_no_error(call, tmp_path):
    script = tmp_path / "sharing.py"
    script.write_text(SHARING)
    path = tmp_path / "touched"
    done = subprocess.run(
        [sys.executable, str(script), call, str(path)],
        env=WITH_TESTS,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("{0: 0}\n", "")
    assert path.exists() == (call == "touch")


def test_each_gpu_is_handed_to_one_task_at_a_time():
    on_gpu = Resources(gpu="needed")
    with LocalExecutor(1, count_gpus=lambda: 2) as executor:
        for key in range(2):
            assert executor.has_room(on_gpu)
            executor.submit(
                key, granted_gpus, resources=on_gpu, label=f"embed task {key}"
            )
        assert not executor.has_room(on_gpu)
        ended = dict(executor.ended())
        while len(ended) < 2:
            ended |= dict(executor.ended())
    assert ended == {0: (0,), 1: (1,)}
