"""Local: run tasks in processes of this machine.

Workers are forked from a server process that has imported the heavy libraries once, so they share its memory and start in
milliseconds. Each worker uses one thread: parallelism comes from tasks, because the last bits of a matrix product must not
depend on the number of cores. Workers end with the process that started them, even if it is killed. They are reused by later
steps, unless their memory has grown: then new workers replace them.
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
from typing import Any

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

# Memory growth up to which a worker is reused by the next step. Starting a worker and loading a tokenizer again takes longer
# than the steps of a small corpus and is negligible in a large one, where the models of many steps would add up.
_REUSABLE_MB = 50
_VMSTAT = Path("/proc/vmstat")
_GUARD = "in a script, nextlong.run must be called under `if __name__ == '__main__':`"


class LocalExecutor(Executor):
    """Run tasks in `cpus` processes, and one more per GPU; each imports the modules in `preload` at its start."""

    def __init__(
        self,
        cpus: int,
        *,
        count_gpus: Callable[[], int] = lambda: 0,
        preload: Sequence[str] = (),
    ) -> None:
        self.cpus, self._count_gpus, self._preload = cpus, count_gpus, list(preload)
        # The pool of all processors (key None), and one process per GPU, which keeps its model loaded.
        self._pools: dict[int | None, ProcessPoolExecutor] = {}
        self._grown_mb = 0.0  # largest memory growth of a worker since its start
        self._running: dict[
            Future[tuple[Any, float]], tuple[int, str, int | None]
        ] = {}  # key, label, own GPU
        self._kills_before = _kills_for_memory()

    @cached_property
    def gpus(self) -> int:
        return self._count_gpus()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for process in self._processes():
                process.terminate()  # a task may take minutes more, and its partial files are useless
        self._close()

    def _close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self._pools, self._running, self._grown_mb = {}, {}, 0.0

    def has_room(self, resources: Resources) -> bool:
        """Return whether a worker is free, or no more than all are busy: one spare task keeps workers from idling.

        A task that needs a GPU, or that `at_once` limits, is never a spare, because it would start where it must not.
        """
        if resources.gpu == "needed":
            return bool(self._free_gpus())
        return sum(gpu is None for _, _, gpu in self._running.values()) < self.cpus + (
            resources.at_once is None
        )

    def _free_gpus(self) -> list[int]:
        return sorted(
            {*range(self.gpus)} - {gpu for _, _, gpu in self._running.values()}
        )

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        gpu = self._free_gpus()[0] if resources.gpu == "needed" else None
        with held_back(), self._explained():
            if gpu not in self._pools:
                start_server(self._preload)
                context = multiprocessing.get_context("forkserver")
                with environment(ONE_THREAD):
                    processes = self.cpus if gpu is None else 1
                    pool = ProcessPoolExecutor(
                        processes, mp_context=context, initializer=_prepare_worker
                    )
                    try:
                        pool.submit(os.getpid).result()
                    except BrokenProcessPool:
                        raise RunError(
                            f"a worker process ended while it started; {_GUARD}"
                        ) from None
                self._pools[gpu] = pool
            future = self._pools[gpu].submit(
                _with_growth, () if gpu is None else (gpu,), call, arguments
            )
        self._running[future] = (key, label, gpu)

    def ended(self) -> Iterator[tuple[int, Any]]:
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in finished:
            with self._explained():
                result, grown_mb = future.result()
            self._grown_mb = max(self._grown_mb, grown_mb)
            yield self._running.pop(future)[0], result

    def release_memory(self) -> None:
        if self._grown_mb > _REUSABLE_MB:
            self._close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            labels = ", ".join(
                sorted({label for _, label, _ in self._running.values()})
            )
            at_work = f", while running {labels}" if labels else ""
            processes = self._processes()
            self._close()  # exit codes are final only after the pool's own thread has ended
            codes = {process.exitcode for process in processes}
            # Exit code 1 is Python's after an exception, for example if it cannot unpickle its task.
            if 1 in codes and -signal.SIGKILL not in codes:
                cure = "fix its cause (nextlong doctor lists missing packages) and run again"
                why = f"a worker process exited with the error shown above{at_work}"
                raise RunError(f"{why}; {cure}: finished steps are kept") from None
            is_out_of_memory = _kills_for_memory() > self._kills_before
            cause = (
                "because the system ran out of memory"
                if is_out_of_memory
                else "most likely because memory ran out"
            )
            cure = (
                f"fewer workers (--set workers={self.cpus // 2})"
                if self.cpus > 1
                else "more memory"
            )
            advice = f"run again with {cure}: finished steps are kept"
            raise RunError(
                f"a worker process was killed, {cause}{at_work}; {advice}"
            ) from None

    def _processes(self) -> list[Any]:
        return [
            process
            for pool in self._pools.values()
            for process in list((pool._processes or {}).values())
        ]


def start_server(preload: Sequence[str]) -> None:
    """Start the server that workers are forked from, if it is not running; it imports `preload` in the background."""
    forkserver.set_forkserver_preload(list(preload))
    with held_back(), environment(ONE_THREAD):
        forkserver.ensure_running()


def _kills_for_memory() -> int:
    """Return how many processes Linux has killed for lack of memory since its start; 0 if it does not count them."""
    with suppress(OSError, KeyError):
        return int(
            dict(
                line.split()
                for line in _VMSTAT.read_text(encoding="ascii").splitlines()
            )["oom_kill"]
        )
    return 0


def refuse_import_by_worker() -> None:
    """Raise RunError in a worker that imports the user's script: a run there would start workers endlessly."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RunError(
            f"nextlong.run was called while a worker process imported your script; {_GUARD}"
        )


def _with_growth(
    gpus: tuple[int, ...], call: Call, arguments: tuple[object, ...]
) -> tuple[Any, float]:
    """Return the task's result, and the growth of this worker's peak memory since its start in MB."""
    result = call_with_gpus(gpus, call, *arguments)
    grown_mb = _peak_mb() - _mb_at_start
    if grown_mb > _REUSABLE_MB:
        with suppress(
            AttributeError
        ):  # only glibc has malloc_trim, which returns freed memory to the system
            ctypes.CDLL(None).malloc_trim(0)
    return result, grown_mb


def _peak_mb() -> float:
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024)
        / 1e6
    )


_mb_at_start = 0.0


def _prepare_worker() -> None:
    global _mb_at_start
    _mb_at_start = _peak_mb()
    # Imported modules stay, and tasks create few reference cycles: looking for cycles took 4 % of a run.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    # For a fork server that other code has started; ours ignores Ctrl-C and has one thread already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)

    def die_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
