"""Local: run tasks in processes of this machine.

Workers are forked from a server process that has imported the heavy libraries once, so they share that memory and start
in milliseconds. Each runs on one thread: parallelism comes from tasks, and the last bits of a matrix product must not
depend on how many cores there are. Workers die with the process that started them, even if that one is killed. They
serve one step after the other, unless what they loaded and cached has made them grow: then new ones take over.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cached_property
from multiprocessing import forkserver
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from nextlong.engine import process
from nextlong.engine.executor import ONE_THREAD, Resources, call_with_gpus, environment
from nextlong.errors import RunError

# What a worker may carry into the next step. Starting new ones and reading a tokenizer again takes a small corpus longer
# than its steps; in a large one it is lost in minutes of work, and models of many steps would add up.
_CARRIED_MB = 50
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of getrusage

_AFTER_AN_EXCEPTION = 1  # the exit code
_LIKELY = "most likely because memory ran out"
_VMSTAT = Path("/proc/vmstat")

_GUARD = "in a script, nextlong.run must be called under `if __name__ == '__main__':`"


class LocalExecutor:
    """`cpus` processes on this machine; `preload` names the modules that each will need.

    A GPU is handed to one task at a time.
    """

    grows = False

    def __init__(self, cpus: int, *, count_gpus: Callable[[], int] = lambda: 0, preload: Sequence[str] = ()) -> None:
        self.cpus = cpus
        self._count_gpus = count_gpus
        self._preload = list(preload)
        self._pool: ProcessPoolExecutor | None = None
        self._pools_of_gpus: dict[int, ProcessPoolExecutor] = {}  # one process each, which keeps its model loaded
        self._grown_mb = 0.0  # the worker that has grown most since it started
        self._running: dict[Future[tuple[Any, float]], _Under] = {}
        self._kills_before = _kills_for_memory()

    @cached_property
    def gpus(self) -> int:
        """How many GPUs this machine has."""
        return self._count_gpus()

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in self._processes():
                process.terminate()  # a task may have minutes to go, and what it wrote so far is worth nothing
        self._close()

    def _pools(self) -> list[ProcessPoolExecutor]:
        return [*self._pools_of_gpus.values(), *([] if self._pool is None else [self._pool])]

    def _close(self) -> None:
        for pool in self._pools():
            pool.shutdown(wait=True, cancel_futures=True)
        self._pool, self._grown_mb = None, 0.0
        self._pools_of_gpus.clear()
        self._running.clear()

    def has_room(self, resources: Resources) -> bool:
        """Say whether a worker is free, or all but one task's worth: a spare task lets no worker idle in between.

        A task that needs a GPU, or of which only so many may run, is no spare: it would run at once where it must not.
        """
        if resources.gpu == "needed":
            return bool(self._free_gpus())
        on_processors = sum(not under.gpus for under in self._running.values())
        return on_processors < self.cpus + (resources.at_once is None)

    def _free_gpus(self) -> list[int]:
        taken = {gpu for under in self._running.values() for gpu in under.gpus}
        return [gpu for gpu in range(self.gpus) if gpu not in taken]

    def submit(
        self, key: int, call: Callable[..., object], *arguments: object, resources: Resources, label: str
    ) -> None:
        """Hand a task to the next worker that is free."""
        gpus = tuple(self._free_gpus()[:1]) if resources.gpu == "needed" else ()
        with process.held_back(), self._explained():
            future = self._started(gpus).submit(_with_growth, gpus, call, arguments)
        self._running[future] = _Under(key, label, gpus)

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each that has ended."""
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in finished:
            with self._explained():
                result, grown_mb = future.result()
            self._grown_mb = max(self._grown_mb, grown_mb)
            yield self._running.pop(future).key, result

    def release_memory(self) -> None:
        """Start new workers next time if these have grown."""
        if self._grown_mb > _CARRIED_MB:
            self._close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            labels = ", ".join(sorted({under.label for under in self._running.values()}))
            at_work = f", while these ran: {labels}" if labels else ""
            if self._failed_by_itself():
                raise RunError(
                    f"a worker process ended by an error of its own, which it wrote above{at_work}; mend that (nextlong doctor "
                    "says which package is missing) and run again: finished steps are kept"
                ) from None
            cause = "because the system had no memory left" if _kills_for_memory() > self._kills_before else _LIKELY
            cure = f"fewer workers (--set workers={self.cpus // 2})" if self.cpus > 1 else "more memory"
            raise RunError(
                f"a worker process was killed, {cause}{at_work}; run again with {cure}: finished steps are kept"
            ) from None

    def _failed_by_itself(self) -> bool:
        """Say whether a worker ended as Python does after an exception: it could not read its task, say. Ends the others."""
        processes = self._processes()
        for pool in self._pools():
            pool.shutdown(wait=True, cancel_futures=True)  # until then, another thread asks for the exit codes
        codes = {process.exitcode for process in processes}
        return _AFTER_AN_EXCEPTION in codes and -signal.SIGKILL not in codes

    def _processes(self) -> list[Any]:
        return [process for pool in self._pools() for process in list((pool._processes or {}).values())]

    def _started(self, gpus: tuple[int, ...] = ()) -> ProcessPoolExecutor:
        """Return the processes for a task that has these GPUs, started if need be."""
        if gpus:
            if gpus[0] not in self._pools_of_gpus:
                self._pools_of_gpus[gpus[0]] = self._start(1)
            return self._pools_of_gpus[gpus[0]]
        if self._pool is None:
            self._pool = self._start(self.cpus)
        return self._pool

    def _start(self, processes: int) -> ProcessPoolExecutor:
        start_server(self._preload)
        context = multiprocessing.get_context("forkserver")
        with environment(ONE_THREAD):
            pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_worker)
            try:
                pool.submit(os.getpid).result()
            except BrokenProcessPool:
                raise RunError(f"a worker process ended while it started; {_GUARD}") from None
        return pool


def start_server(preload: Sequence[str]) -> None:
    """Start the server that workers are forked from, if there is none, and return while it imports what they need."""
    forkserver.set_forkserver_preload(list(preload))
    with process.held_back(), environment(ONE_THREAD):
        forkserver.ensure_running()


def _kills_for_memory() -> int:
    """Return how many processes Linux has killed since it started because memory ran out; 0 where it does not say."""
    with suppress(OSError):
        for line in _VMSTAT.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def refuse_import_by_worker() -> None:
    """Raise RunError in a worker that is importing the user's script: a run there would start workers without end."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RunError(f"nextlong.run was called while a worker process imported your script; {_GUARD}")


class _Under(NamedTuple):
    """A task under way, and the GPUs that it has for itself."""

    key: int
    label: str
    gpus: tuple[int, ...]


def _with_growth(
    gpus: tuple[int, ...], call: Callable[..., object], arguments: tuple[object, ...]
) -> tuple[Any, float]:
    """Return the task's result, and by how many MB this worker's peak has grown since it started."""
    result = call_with_gpus(gpus, call, *arguments)
    grown_mb = _peak_mb() - _mb_at_start
    if grown_mb > _CARRIED_MB:
        with suppress(AttributeError):  # glibc keeps freed memory unless it is told to give it back; others do not
            ctypes.CDLL(None).malloc_trim(0)
    return result, grown_mb


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES / 1e6


_mb_at_start = 0.0


def _prepare_worker() -> None:
    global _mb_at_start
    _mb_at_start = _peak_mb()
    # What was imported stays, and tasks make few cycles: looking for them took 4 % of a run.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    # Both for a server that somebody else's code has started: ours is deaf to Ctrl-C and has one thread already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)
    parent = multiprocessing.parent_process()

    def die_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
