"""Local: run tasks in processes of this machine.

Workers are forked from a server process that has imported the heavy libraries once, so they share that memory and start
in milliseconds. Each runs on one thread: parallelism comes from tasks, and the last bits of a matrix product must not
depend on how many cores there are. Workers die with the process that started them, even if that one is killed. A step's
workers serve the next one too, unless what they loaded and cached has made them grow: then new ones take over.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from nextlong.engine import interrupts
from nextlong.errors import RunError

T = TypeVar("T")

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


# What a worker may carry into the next step. Starting new ones and reading a tokenizer again takes a small corpus longer
# than its steps; in a large one it is lost in minutes of work, and models of many steps would add up.
_CARRIED_MB = 50
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of getrusage

_GUARD = "in a script, nextlong.run must be called under `if __name__ == '__main__':`"


class LocalExecutor:
    """Processes on this machine; `preload` names the modules that every worker will need."""

    def __init__(self, workers: int, *, preload: Sequence[str] = ()) -> None:
        self.workers = workers
        self._preload = list(preload)
        self._pool: ProcessPoolExecutor | None = None
        self._grown_mb = 0.0  # the worker that has grown most since it started

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None and kind is not None:
            for process in list(self._pool._processes.values()):
                process.terminate()  # a task may have minutes to go, and what it wrote so far is worth nothing
        self._close()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool, self._grown_mb = None, 0.0

    def map(
        self, call: Callable[..., T], arguments: Iterable[tuple[Any, ...]], *, lanes: int | None = None
    ) -> Iterator[T]:
        """Yield `call(*a)` for each of `arguments` as they finish, at most `lanes` at once. The first error ends it.

        Arguments are taken one by one, as workers become free.
        """
        # One spare, so that no worker idles between tasks; but a spare would run at once where lanes are fewer than workers.
        limit = lanes if lanes is not None and lanes < self.workers else self.workers + 1
        waiting = iter(arguments)
        running: set[Future[tuple[T, float]]] = set()
        try:
            while True:
                for item in waiting:
                    with interrupts.held_back():
                        running.add(self._started().submit(_with_growth, call, item))
                    if len(running) >= limit:
                        break
                if not running:
                    if self._grown_mb > _CARRIED_MB:
                        self._close()
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    result, grown_mb = future.result()
                    self._grown_mb = max(self._grown_mb, grown_mb)
                    yield result
        except BrokenProcessPool:
            cure = f"fewer workers (--set workers={self.workers // 2})" if self.workers > 1 else "more memory"
            raise RunError(
                f"a worker process was killed, most likely because memory ran out; run again with {cure}: what is "
                "finished is kept"
            ) from None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(self._preload)
            with _environment(_ONE_THREAD):
                self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_prepare_worker)
                try:
                    self._pool.submit(os.getpid).result()
                except BrokenProcessPool:
                    raise RunError(f"a worker process ended while it started; {_GUARD}") from None
        return self._pool


def refuse_import_by_worker() -> None:
    """Raise RunError in a worker that is importing the user's script: a run there would start workers without end."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RunError(f"nextlong.run was called while a worker process imported your script; {_GUARD}")


def _with_growth(call: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[T, float]:
    """Return the task's result, and by how many MB this worker's peak has grown since it started."""
    result = call(*arguments)
    return result, _peak_mb() - _mb_at_start


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES / 1e6


_mb_at_start = 0.0


def _prepare_worker() -> None:
    global _mb_at_start
    _mb_at_start = _peak_mb()
    # Both for a server that somebody else's code has started: ours is deaf to Ctrl-C and has one thread already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(_ONE_THREAD)
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
