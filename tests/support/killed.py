"""A command that is killed or stopped at a change of its files that is named beforehand: the same moment on any machine.

A test that watches a folder and kills when it sees a file may come too late. Here the
process itself counts: each file of a pattern that it is about to open for writing,
rename to, make, remove or connect to, and each that it has brought to the disk.
"""

import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from fnmatch import fnmatchcase
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_at(arguments, pattern, count=1, *, environment=None):
    """Run `nextlong` and see it killed at the `count`-th change of a path that matches `pattern`, whose `*` spans folders."""
    command = _command(signal.SIGKILL, pattern, count, arguments)
    ended = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        check=False,
        start_new_session=True,
    )
    assert ended.returncode == -signal.SIGKILL, (
        f"ended before change {count} of {pattern}:\n{ended.stderr.decode()}"
    )


def kill_forked_at(arguments, pattern, count=1):
    """As `kill_at`, without an interpreter of its own: in a fork of the server that `warm_workers` has imports ready in."""
    _see_killed(_run_counted, [*map(str, arguments)], pattern, count)


def kill_at_removal(arguments, number):
    """As `kill_forked_at`, within the removal of the folder of this number, counted from 0."""
    _see_killed(_run_removing, [*map(str, arguments)], number)


def _see_killed(target, *arguments):
    process = multiprocessing.get_context("forkserver").Process(
        target=target, args=arguments
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, (
        f"ended with {process.exitcode} before it was to be killed: {arguments}"
    )


def _run_counted(arguments, pattern, count):
    _count_down(signal.SIGKILL, pattern, count)
    run_and_exit(arguments)


def _run_removing(arguments, left):
    remove = shutil.rmtree

    def removed(path, *rest, **named):
        nonlocal left
        left -= 1
        if left < 0:
            next(file for file in Path(path).rglob("*") if file.is_file()).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        remove(path, *rest, **named)

    shutil.rmtree = removed
    run_and_exit(arguments)


def run_and_exit(arguments):
    from nextlong.cli.main import main

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(main(arguments))


def stop_at(arguments, pattern, count=1):
    """Return the process of `nextlong`, head of a group, once it has stopped there; SIGCONT lets it go on."""
    process = subprocess.Popen(
        _command(signal.SIGSTOP, pattern, count, arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), (
        f"ended before change {count} of {pattern}:\n{process.stderr.read()}"
    )
    return process


def _command(number, pattern, count, arguments):
    return [
        sys.executable,
        __file__,
        str(int(number)),
        pattern,
        str(count),
        *map(str, arguments),
    ]


def _count_down(number, pattern, count):
    left = count
    one_at_a_time = threading.Lock()  # files are brought to the disk by several threads

    def changed(path):
        nonlocal left
        if isinstance(path, str | Path) and fnmatchcase(str(path), pattern):
            with one_at_a_time:
                left -= 1
                if not left:
                    os.kill(os.getpid(), number)

    def heard(event, arguments):
        # What a run connects to is the server that workers are forked from, which is
        # there by then and imports.
        if event in {"os.rename", "socket.connect"}:
            changed(arguments[1])
        elif event in {"os.mkdir", "os.remove", "os.rmdir"} or (
            event == "open" and (arguments[2] or 0) & _WRITES
        ):
            changed(arguments[0])

    real = os.fsync

    def fsync(file):
        real(file)
        number = file if isinstance(file, int) else file.fileno()
        changed(Path(f"/proc/self/fd/{number}").readlink())

    os.fsync = fsync
    sys.addaudithook(heard)


if __name__ == "__main__":
    _, sent, chosen, at, *sys.argv[1:] = sys.argv
    _count_down(int(sent), chosen, int(at))
    # As `python -m` does it, so that the processes which it starts are as they would
    # be.
    runpy.run_module("nextlong", run_name="__main__", alter_sys=True)
