"""Local: run tasks in processes of this machine.

Workers are forked from a server process that has imported the heavy libraries once, so
they share its memory and start in milliseconds. Each worker uses one thread:
parallelism comes from tasks, because the last bits of a matrix product must not depend
on the number of cores. Workers end with the process that started them, even if it is
killed. They are reused by later steps, unless their memory has grown: then new workers
replace them. What takes long to load, the server can load once for all of its later
workers.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
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
from typing import Any, NamedTuple

from nextlong.engine import shared_call
from nextlong.engine.executor import (
    ONE_THREAD,
    Call,
    Executor,
    Resources,
    call_with_gpus,
    environment,
    held_back,
)
from nextlong.errors import RunError

# Memory growth up to which a worker is reused by the next step. Starting a worker and
# loading a tokenizer again takes longer than the steps of a small corpus and is
# negligible in a large one, where the models of many steps would add up.
_REUSABLE_MB = 50
_WITHOUT_SHARED = -1
_VMSTAT = Path("/proc/vmstat")
_GUARD = "in a script, call nextlong.run under `if __name__ == '__main__':`"
_KEPT = "finished steps are kept"


class _Running(NamedTuple):
    """A submitted task, and the number of the GPU that it has for itself."""

    key: int
    label: str
    gpu: int | None


class LocalExecutor(Executor):
    """Run tasks in `cpus` processes, and one more per GPU.

    Each imports the modules in `preload` at its start.
    """

    def __init__(
        self,
        cpus: int,
        *,
        count_gpus: Callable[[], int] = lambda: 0,
        preload: Sequence[str] = (),
    ) -> None:
        self.cpus = cpus
        self._count_gpus = count_gpus
        self._preload = list(preload)
        # The pool of all processors (key None), the one before it if the server has
        # shared something since, and one process per GPU, which keeps its model loaded.
        self._pools: dict[int | None, ProcessPoolExecutor] = {}
        self._grown_mb = 0.0  # largest memory growth of a worker since its start
        self._sharing: threading.Thread | None = None
        self._running: dict[Future[tuple[Any, float]], _Running] = {}
        self._kills_before = _kills_for_memory()

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs of this machine."""
        return self._count_gpus()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # A task may take minutes more, and its partial files are useless.
            for process in self._processes():
                process.terminate()
        self._close()

    def _close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self._pools = {}
        self._running = {}
        self._grown_mb = 0.0
        self._sharing = None

    def has_room(self, resources: Resources) -> bool:
        """Return whether a worker is free, or no more than all are busy.

        One spare task keeps workers from idling. A task that needs a GPU, or that
        `at_once` limits, is never a spare, because it would start where it must not.
        """
        if resources.uses_shared and self._is_sharing() and self._running:
            # Tasks of other steps run in the meantime.
            return False
        if resources.gpu == "needed":
            return bool(self._free_gpus())
        spare = 1 if resources.at_once is None else 0
        # A task on a GPU has a process of its own, beside the pool.
        on_processors = [task for task in self._running.values() if task.gpu is None]
        return len(on_processors) < self.cpus + spare

    def _free_gpus(self) -> list[int]:
        used = {task.gpu for task in self._running.values()}
        return [gpu for gpu in range(self.gpus) if gpu not in used]

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        """Start a task, in a pool of its own GPU if it needs one."""
        if resources.uses_shared and self._sharing is not None:
            self._sharing.join()
        gpu = None
        gpus: tuple[int, ...] = ()
        if resources.gpu == "needed":
            gpu = self._free_gpus()[0]
            gpus = (gpu,)
        with held_back(), self._explained():
            if self._sharing is not None and not self._is_sharing():
                # Its workers lack what the server shares; they end their tasks.
                self._pools[_WITHOUT_SHARED] = self._pools.pop(None)
                self._sharing = None
            if gpu not in self._pools:
                self._pools[gpu] = self._started_pool(1 if gpus else self.cpus)
            future = self._pools[gpu].submit(_with_growth, gpus, call, arguments)
        self._running[future] = _Running(key, label, gpu)

    def _started_pool(self, processes: int) -> ProcessPoolExecutor:
        """Return a pool whose first process runs."""
        start_server(self._preload)
        context = multiprocessing.get_context("forkserver")
        with environment(ONE_THREAD):
            pool = ProcessPoolExecutor(
                processes, mp_context=context, initializer=_prepare_worker
            )
            # A worker that imports a script without a guard ends here, before it gets a
            # task.
            try:
                started = [pool.submit(os.getpid) for _ in range(processes)]
                wait(started)
                started[0].result()
            except BrokenProcessPool:
                raise RunError(
                    where="a worker process",
                    problem="it ended while it started",
                    fix=_GUARD,
                ) from None
        return pool

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each finished one."""
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in finished:
            with self._explained():
                result, grown_mb = future.result()
            self._grown_mb = max(self._grown_mb, grown_mb)
            yield self._running.pop(future).key, result

    def share(self, call: Call) -> None:
        """Have the server make a call, once for all workers that it forks later."""
        start_server(self._preload)
        if _request is None:
            return
        # Forked before, so that the first tasks do not wait for the call.
        with held_back(), self._explained():
            self._pools[None] = self._started_pool(self.cpus)
        os.pwrite(_request, pickle.dumps(call), 0)
        # The server calls before it forks, so a process that does nothing is forked.
        context = multiprocessing.get_context("forkserver")
        waiting = context.Process(target=int)
        self._sharing = threading.Thread(target=waiting.start, daemon=True)
        self._sharing.start()

    def _is_sharing(self) -> bool:
        return self._sharing is not None and self._sharing.is_alive()

    def release_memory(self) -> None:
        """End the workers if their memory has grown; later tasks start new ones."""
        # While the server is busy, new ones would wait for it.
        if self._grown_mb > _REUSABLE_MB and not self._is_sharing():
            self._close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the end of a worker process into a RunError that says what it ran."""
        try:
            yield
        except BrokenProcessPool:
            labels = sorted({task.label for task in self._running.values()})
            at_work = f", while running {', '.join(labels)}" if labels else ""
            processes = self._processes()
            # Exit codes are final only after the pool's own thread has ended.
            self._close()
            codes = {process.exitcode for process in processes}
            raise self._of_worker(codes, at_work) from None

    def _of_worker(self, codes: set[int | None], at_work: str) -> RunError:
        """Return the error for workers that ended with these exit codes."""
        # Exit code 1 is Python's after an exception, for example if it cannot unpickle
        # its task.
        if 1 in codes and -signal.SIGKILL not in codes:
            return RunError(
                where="a worker process",
                problem=f"it exited with the error shown above{at_work}",
                fix=(
                    "fix its cause (nextlong doctor lists missing packages) and run "
                    f"again: {_KEPT}"
                ),
            )
        cause = "most likely because memory ran out"
        if _kills_for_memory() > self._kills_before:
            cause = "because the system ran out of memory"
        remedy = "more memory"
        if self.cpus > 1:
            remedy = f"fewer workers (--set workers={self.cpus // 2})"
        return RunError(
            where="a worker process",
            problem=f"it was killed, {cause}{at_work}",
            fix=f"run again with {remedy}: {_KEPT}",
        )

    def _processes(self) -> list[Any]:
        processes: list[Any] = []
        for pool in self._pools.values():
            processes += (pool._processes or {}).values()
        return processes


def start_server(preload: Sequence[str]) -> None:
    """Start the server that workers are forked from, if it is not running.

    It imports `preload` in the background.
    """
    global _request
    # Arrow's own pool keeps what it has freed: 40 MB more in a worker that encodes.
    variables = {**ONE_THREAD, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    # A file without a name, which is gone with this process. Only Linux has it.
    if _request is None and hasattr(os, "memfd_create"):
        _request = os.memfd_create("shared-call")
    if _request is not None:
        variables[shared_call.VARIABLE] = f"/proc/{os.getpid()}/fd/{_request}"
    forkserver.set_forkserver_preload([*preload, shared_call.__name__])
    with held_back(), environment(variables):
        forkserver.ensure_running()


_request: int | None = None  # the file with the call that the server is to make


def _kills_for_memory() -> int:
    """Return how many processes Linux has killed for lack of memory since its start.

    0 if it does not count them.
    """
    with suppress(OSError):
        for line in _VMSTAT.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def refuse_import_by_worker() -> None:
    """Raise RunError in a worker that imports the user's script.

    A run there would start workers endlessly.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RunError(
            where="nextlong.run",
            problem="it was called while a worker process imported your script",
            fix=_GUARD,
        )


def _with_growth(
    gpus: tuple[int, ...], call: Call, arguments: tuple[object, ...]
) -> tuple[Any, float]:
    """Return the task's result, and the growth of this worker's peak memory in MB.

    Since its start.
    """
    result = call_with_gpus(gpus, call, *arguments)
    grown_mb = _peak_mb() - _mb_at_start
    if grown_mb > _REUSABLE_MB:
        shared_call.return_freed_memory()
    return result, grown_mb


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return peak * unit / 1e6


_mb_at_start = 0.0


def _prepare_worker() -> None:
    global _mb_at_start
    _mb_at_start = _peak_mb()
    # Imported modules stay, and tasks create few reference cycles: looking for cycles
    # took 4 % of a run.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    # For a fork server that other code has started; ours ignores Ctrl-C and has one
    # thread already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)

    # No orphan may write into a run directory that a new run has locked.
    def die_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
