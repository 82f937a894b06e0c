"""Processes: checks side by side, in processes of this machine, as many as it has processors.

In:  calls, those that take longest first. Out: what each returned, when it is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import threadpool_limits

from nextlong.engine import interrupts
from nextlong.errors import RunError

Result = TypeVar("Result")


@contextmanager
def side_by_side(
    calls: Mapping[str, Callable[[], Result]], *, processes: int, preload: Sequence[str] = ()
) -> Iterator[Callable[[str], Result]]:
    """Start all calls, in their order; what this yields waits for the one of a name and returns its result.

    `preload` names the modules that all of them need.
    """
    # Forked from a server that has imported what all of them need, they start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    pool = ProcessPoolExecutor(min(processes, len(calls)), mp_context=context, initializer=_prepare)
    try:
        with interrupts.held_back():
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


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threadpool_limits(1)
