"""Local: run tasks in processes of this machine.

Workers are forked from a server process that has imported the heavy libraries once, so they share that memory and start
in milliseconds. Each runs on one thread: parallelism comes from tasks, and the last bits of a matrix product must not
depend on how many cores there are. Workers die with the process that started them, even if that one is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from nextlong.errors import RunError

T = TypeVar("T")

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class LocalExecutor:
    """Processes on this machine; `preload` names the modules that every worker will need."""

    def __init__(self, workers: int, *, preload: Sequence[str] = ()) -> None:
        self.workers = workers
        self._preload = list(preload)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:  # a task may have minutes to go: what it wrote so far is worth nothing
            for process in list(self._pool._processes.values()):
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def map(
        self, call: Callable[..., T], arguments: Sequence[tuple[Any, ...]], *, lanes: int | None = None
    ) -> Iterator[T]:
        """Yield `call(*a)` for each of `arguments` as they finish, at most `lanes` at once. The first error ends it."""
        limit = min(self.workers, lanes or self.workers)
        waiting = iter(arguments)
        running: set[Future[T]] = set()
        try:
            while True:
                for item in waiting:
                    running.add(self._started().submit(call, *item))
                    if len(running) >= limit + 1:  # one spare, so that no worker idles between tasks
                        break
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was killed, most likely because memory ran out; run again with fewer workers "
                f"(--set workers={max(1, self.workers // 2)}): what is finished is kept"
            ) from None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            if multiprocessing.parent_process() is not None:
                raise RunError(
                    "nextlong.run was called while a worker process imported your script; put the call under "
                    "`if __name__ == '__main__':`"
                )
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(self._preload)
            with _environment(_ONE_THREAD):
                self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_prepare_worker)
                self._pool.submit(os.getpid).result()  # the server inherits its environment now
        return self._pool


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()

    def die_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
