"""A command that is killed or stopped at a change of its files that is named beforehand: the same moment on any machine.

A test that watches a folder and kills when it sees a file may come too late. Here the process itself counts: each file of
a pattern that it is about to open for writing, rename to, make, remove or connect to, and each that it has brought to the disk.
"""

import os
import runpy
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
    ended = subprocess.run(command, env=environment, capture_output=True, check=False, start_new_session=True)
    assert ended.returncode == -signal.SIGKILL, f"ended before change {count} of {pattern}:\n{ended.stderr.decode()}"


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
    assert os.WIFSTOPPED(status), f"ended before change {count} of {pattern}:\n{process.stderr.read()}"
    return process


def _command(number, pattern, count, arguments):
    return [sys.executable, __file__, str(int(number)), pattern, str(count), *map(str, arguments)]


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
        # What a run connects to is the server that workers are forked from, which is there by then and imports.
        if event in {"os.rename", "socket.connect"}:
            changed(arguments[1])
        elif event in {"os.mkdir", "os.remove", "os.rmdir"} or (event == "open" and (arguments[2] or 0) & _WRITES):
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
    # As `python -m` does it, so that the processes which it starts are as they would be.
    runpy.run_module("nextlong", run_name="__main__", alter_sys=True)
