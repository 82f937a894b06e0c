"""Processes: checks side by side, in processes of this machine, as many as it has processors.

In:  calls, those that take longest first. Out: what each returned, when it is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TypeVar

from threadpoolctl import threadpool_limits

from nextlong.errors import RunError

Result = TypeVar("Result")

# Forked from a server that has imported what all of them need, they start at once; Windows has no such server.
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def available() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def side_by_side(
    calls: Mapping[str, Callable[[], Result]], *, processes: int, preload: Sequence[str] = ()
) -> Iterator[Callable[[str], Result]]:
    """Start all calls, in their order; what this yields waits for the one of a name and returns its result.

    `preload` names the modules that all of them need.
    """
    context = multiprocessing.get_context(_METHOD)
    context.set_forkserver_preload(list(preload))
    pool = ProcessPoolExecutor(min(processes, len(calls)), mp_context=context, initializer=_prepare)
    try:
        with _ctrl_c_held_back():
            started = {name: pool.submit(call) for name, call in calls.items()}
        yield lambda name: started[name].result()
    except BrokenProcessPool:
        raise RunError(
            "a process that checked was killed, most likely because memory ran out; verify again with --workers 1"
        ) from None
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()  # a check may have minutes to go
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Let Ctrl-C wait while processes start: their server, cut short in its imports, would print a traceback.

    Server and processes inherit it blocked. Here a library's thread may receive it all the same.
    """
    if _METHOD != "forkserver" or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # beforehand, because starting it unblocks the signal
    caught: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threadpool_limits(1)
