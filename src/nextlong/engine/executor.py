"""Executor: run tasks, and describe the resources that a task needs.

The runner decides which task is next. An executor reports whether it has room, runs
tasks, and returns their results. The three executors (`serial`: this process, `local`:
processes of this machine, `ray`: a cluster) write the same bytes.

This module also handles signals. SIGTERM (from `kill`, `timeout`, Slurm or a container
runtime) would end the process at once and leave its semaphores behind, so it is turned
into an exception in the main thread, after which a run can clean up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Literal, Self

from threadpoolctl import threadpool_limits

# Every worker uses one thread, on any executor (docs/decisions/0004).
_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
ONE_THREAD = dict.fromkeys(_COUNTS, "1") | {"TOKENIZERS_PARALLELISM": "false"}
Call = Callable[..., object]
Gpu = Literal["unused", "optional", "needed"]  # optional: used if the executor has one


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one task needs.

    `at_once` limits how many tasks of the step run at the same time. A task that
    `uses_shared` waits for what `Executor.share` loads.
    """

    cpus: float = 1.0
    gpu: Gpu = "unused"
    at_once: int | None = None
    uses_shared: bool = False


def usable_cpus() -> int:
    """Return the number of cores that this process may use.

    On Linux those that it is bound to.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Executor(ABC):
    """Run tasks, as a context manager: leaving it with an error stops running tasks.

    `cpus` is the number of processors; `grows` says whether GPUs may be added later, as
    in a cluster that nodes join.
    """

    cpus: int
    grows = False

    @property
    def gpus(self) -> int:
        """The number of GPUs.

        Read only for steps that use them, because counting may import a framework.
        """
        return 0

    @abstractmethod
    def has_room(self, resources: Resources) -> bool:
        """Return whether a task with these resources should be submitted.

        It would start at once, or soon enough to be submitted already.
        """

    @abstractmethod
    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        """Start `call(*arguments)`; `ended` yields its result with `key`.

        Errors name the task by its label.
        """

    @abstractmethod
    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each finished one.

        Raises the error of a failed task.
        """

    def share(self, call: Call) -> None:  # noqa: B027 (most have nothing to share with)
        """Load something for all later tasks, by `call()`, while the first ones run.

        Where workers are forked from one process, it calls once for all of them.
        """

    def release_memory(self) -> None:  # noqa: B027 (an executor without workers holds none)
        """Free memory; called when no task is running."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in this process, also in libraries that are loaded later.

    The last bits of a matrix product depend on the number of threads. On the small
    matrices of a report, threads that wait for each other beside busy workers took 2.8
    s instead of 0.05 s.
    """
    # Libraries read the variables when they are loaded; those that are loaded already
    # have to be told.
    with environment(ONE_THREAD), threadpool_limits(1):
        yield


_granted_gpus: tuple[int, ...] = ()


def granted_gpus() -> tuple[int, ...]:
    """Return the CUDA device numbers that the running task has for itself.

    Empty for most tasks.
    """
    return _granted_gpus


def call_with_gpus(gpus: tuple[int, ...], call: Call, *arguments: object) -> Any:
    """Return `call(*arguments)`, during which `granted_gpus` returns `gpus`.

    Called in the process of the task.
    """
    global _granted_gpus
    before = _granted_gpus
    _granted_gpus = gpus
    try:
        return call(*arguments)
    finally:
        _granted_gpus = before


class SerialExecutor(Executor):
    """Run each task in this process, when its result is requested."""

    cpus = 1

    def __init__(self) -> None:
        self._next: list[tuple[int, Call, tuple[object, ...]]] = []

    def has_room(self, resources: Resources) -> bool:  # noqa: ARG002
        return not self._next

    def submit(
        self,
        key: int,
        call: Call,
        *arguments: object,
        resources: Resources,  # noqa: ARG002
        label: str,  # noqa: ARG002
    ) -> None:
        self._next.append((key, call, arguments))

    def ended(self) -> Iterator[tuple[int, Any]]:
        key, call, arguments = self._next.pop()
        yield key, call(*arguments)

    def __enter__(self) -> Self:
        self._limits = ExitStack()
        self._limits.enter_context(one_thread())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._next.clear()
        self._limits.close()


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM.

    A second SIGTERM does not interrupt the cleanup. A handler can be set in the main
    thread only; an ignored SIGTERM stays ignored.
    """
    is_ignored = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    if not _is_main_thread() or is_ignored:
        yield
        return

    # From the first SIGTERM on, the next one is ignored, so that the cleanup ends.
    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held_back() -> Iterator[None]:
    """Delay SIGINT and SIGTERM while processes start.

    A half-started process would outlive its pool and print tracebacks. The fork server
    and its workers inherit the blocked SIGINT, which this process handles for them. In
    this process blocking is not enough, because a thread of a library may receive the
    signal instead. SIGTERM is not blocked, because it ends the workers.
    """
    # Start multiprocessing's resource tracker, which removes the semaphores of a killed
    # run, without its warning. It must start first, because starting it unblocks the
    # signal.
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()
    caught: list[int] = []
    handlers: dict[int, Any] = {}
    # Signals never interrupt another thread than the main one.
    if _is_main_thread():
        for delayed in (signal.SIGINT, signal.SIGTERM):
            handlers[delayed] = signal.signal(
                delayed, lambda number, _: caught.append(number)
            )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        # The signal is raised again, now for the handler that was set before.
        if caught:
            signal.raise_signal(caught[0])


_RESET: Final = Path("/proc/self/clear_refs")
# Of the container's own control group, version 2 and 1; "max" means no limit.
_CONTAINER_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> int:
    """Return the memory limit in bytes.

    That of the container if there is one, or the memory of the machine.
    """
    limits = [int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))]
    # The machine may have more memory than the container may use.
    for path in _CONTAINER_LIMITS:
        if path.is_file():
            limit = path.read_text(encoding="ascii").strip()
            if limit.isdigit():
                limits.append(int(limit))
    return min(limits)


def peak_from_now() -> Callable[[], int | None]:
    """Return a function that returns the peak resident memory since this call in bytes.

    It returns None if that is unknown.
    """
    try:
        # proc(5): resets VmHWM to the current size.
        _RESET.write_text("5")
    except OSError:
        return lambda: None
    return partial(resident_bytes, of="VmHWM")


def resident_bytes(*, of: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Return the current (VmRSS) or peak (VmHWM) resident memory of this process.

    In bytes; None if it is unknown.
    """
    status = Path("/proc/self/status")
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{of}:"):
            return int(line.split()[1]) * 1024
    return None
