"""Executor: where tasks run, and what a task needs there.

The runner decides what runs next; an executor says whether there is room, runs, and tells what has ended. One process
(`serial`), processes of this machine (`local`) and a cluster (`ray`) are three of them, and write the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

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
    """Set variables of the environment for a while."""
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
        """Say whether no task is waiting."""
        return not self._next

    def submit(self, key: int, call: Call, *arguments: object, resources: Resources, label: str) -> None:  # noqa: ARG002
        """Note what to do next."""
        self._next.append((key, call, arguments))

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Do it, and yield key and result."""
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
