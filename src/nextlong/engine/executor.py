"""Executor: where tasks run, and what a task needs there.

The runner decides what runs next; an executor says whether there is room, runs, and tells what has ended. One process
(`serial`), processes of this machine (`local`) and a cluster (`ray`) are three of them, and write the same bytes.
Here is also what stops a run at a moment when it can be cleaned up after: SIGTERM, as `kill`, `timeout`, Slurm and container
runtimes send it, would end the process on the spot and leave its semaphores behind, so it raises an exception in the main thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Literal, Self

from threadpoolctl import threadpool_limits

# Every worker runs on one thread, wherever it runs (docs/decisions/0004).
_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_COUNTS, "1") | {"TOKENIZERS_PARALLELISM": "false"}
Call = Callable[..., object]
Gpu = Literal["unused", "optional", "needed"]  # optional: used where the executor has one


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one task needs; `at_once` bounds how many tasks of the step run together, wherever there is room for more."""

    cpus: float = 1.0
    gpu: Gpu = "unused"
    at_once: int | None = None


def usable_cpus() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process is bound to
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Executor:
    """Where tasks run. Used as a context: leaving it in an error stops what still runs."""

    cpus: int  # the processors that there are in all
    grows = False  # whether GPUs may be added later, as to a cluster that nodes join

    @property
    def gpus(self) -> int:
        """The GPUs that there are in all; read only for steps that use them, because counting may import a framework."""
        return 0

    def has_room(self, resources: Resources) -> bool:
        """Say whether a task that needs so much would be begun at once, or is worth handing over already."""
        raise NotImplementedError

    def submit(self, key: int, call: Call, *arguments: object, resources: Resources, label: str) -> None:
        """Begin `call(*arguments)`; its result comes out of `ended` beside `key`. Errors name the task by its label."""
        raise NotImplementedError

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait until a task has ended, and yield key and result of each that has. Raises the error of one that failed."""
        raise NotImplementedError

    def release_memory(self) -> None:
        """Take note that nothing runs: the moment to give back memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        raise NotImplementedError


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


_granted_gpus: tuple[int, ...] = ()


def granted_gpus() -> tuple[int, ...]:
    """Return the numbers of the GPUs, as CUDA counts them, that the running task has for itself; none for most tasks."""
    return _granted_gpus


def call_with_gpus(gpus: tuple[int, ...], call: Call, *arguments: object) -> Any:
    """Return `call(*arguments)`, during which `granted_gpus` says `gpus`; runs where the task does."""
    global _granted_gpus
    before, _granted_gpus = _granted_gpus, gpus
    try:
        return call(*arguments)
    finally:
        _granted_gpus = before


class SerialExecutor(Executor):
    """Carries out a task when its result is asked for."""

    cpus = 1

    def __init__(self) -> None:
        self._next: list[tuple[int, Call, tuple[object, ...]]] = []

    def has_room(self, resources: Resources) -> bool:  # noqa: ARG002
        return not self._next

    def submit(self, key: int, call: Call, *arguments: object, resources: Resources, label: str) -> None:  # noqa: ARG002
        self._next.append((key, call, arguments))

    def ended(self) -> Iterator[tuple[int, Any]]:
        key, call, arguments = self._next.pop()
        yield key, call_with_gpus((), call, *arguments)

    def __enter__(self) -> Self:
        # One thread, as a worker has, for what is loaded and what will be: the last bits of a product depend on it.
        self._limits = ExitStack()
        self._limits.enter_context(environment(ONE_THREAD))
        self._limits.enter_context(threadpool_limits(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._next.clear()
        self._limits.close()


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
