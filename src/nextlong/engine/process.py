"""Process: what stops a run, at a moment when it can be cleaned up after; and the memory of a process that runs a task.

SIGTERM, as `kill`, `timeout`, Slurm and container runtimes send it, would end the process on the spot and leave its semaphores
behind; here it raises a KeyboardInterrupt of its own, wherever the main thread is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Final, Literal


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated in the main thread when SIGTERM comes; a second one does not disturb the cleaning up.

    Only that thread can set it up; where SIGTERM is ignored it stays so.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def held_back() -> Iterator[None]:
    """Let both wait while processes start: a half-started one would outlive its pool and print tracebacks.

    The server inherits the blocked Ctrl-C, and so do its workers: it is this process's to handle. Here blocking is not
    enough, because a library's thread may receive the signal in this one's stead. SIGTERM is not blocked: it is what ends
    the workers.
    """
    # The process that removes the semaphores of a killed run, without its warning that it had to: first, because starting it
    # unblocks the signal.
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()
    caught: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other thread is ever interrupted
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, lambda number, _: caught.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if caught:
            signal.raise_signal(caught[0])


_RESET: Final = Path("/proc/self/clear_refs")
_CONTAINER_LIMITS: Final = (  # as a container sees its own control group, of version 2 and 1; "max" is none
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container that this process may not leave."""
    installed = int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    limits = [path.read_text(encoding="ascii").strip() for path in _CONTAINER_LIMITS if path.is_file()]
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())])


@contextmanager
def peak() -> Iterator[Callable[[], int | None]]:
    """Yield what tells the largest resident memory since, in bytes; None where it is not known."""
    try:
        _RESET.write_text("5")  # proc(5): resets VmHWM to the present
    except OSError:
        yield lambda: None
    else:
        yield lambda: resident_bytes(of="VmHWM")


def resident_bytes(*, of: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Return what this process holds in memory now, or at most since its peak was set back; None where it is not known."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith(f"{of}:")]
    return int(sizes[0]) * 1024 if sizes else None
