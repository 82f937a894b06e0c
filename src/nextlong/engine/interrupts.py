"""Interrupts: what a person or a scheduler stops a run with, at a moment when it can be cleaned up after.

Ctrl-C raises KeyboardInterrupt wherever the main thread is. SIGTERM, as `kill`, `timeout`, Slurm and container runtimes send
it, would end the process on the spot and leave its semaphores behind; here it raises one of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated in the main thread when SIGTERM comes; a second one does not disturb the cleaning up.

    Only that thread can set it up; where SIGTERM is ignored it stays so.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
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


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def start_tracker() -> None:
    """Start the process that removes the semaphores of a killed run, without its warning that it had to."""
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


@contextmanager
def held_back() -> Iterator[None]:
    """Let both wait while processes start: a half-started one would outlive its pool and print tracebacks.

    The server inherits the blocked Ctrl-C, and so do its workers: it is this process's to handle. Here blocking is not
    enough, because a library's thread may receive the signal in this one's stead. SIGTERM is not blocked: it is what ends
    the workers.
    """
    start_tracker()  # beforehand, because starting it unblocks the signal
    caught: list[int] = []
    interrupted = _SIGNALS if _in_main_thread() else ()  # no other thread ever is
    handlers = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in interrupted}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if caught:
            signal.raise_signal(caught[0])
