"""Serial: run one task after the other in this process: for a debugger, for many small runs, and to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from threadpoolctl import threadpool_limits

from nextlong.engine.executor import ONE_THREAD, Capacity, Resources, call_with_gpus, environment


class SerialExecutor:
    """Carries out a task when its result is asked for."""

    capacity = Capacity(cpus=1)

    def __init__(self) -> None:
        self._next: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []

    def has_room(self, resources: Resources) -> bool:  # noqa: ARG002
        """Say whether no task is waiting."""
        return not self._next

    def submit(
        self,
        key: int,
        call: Callable[..., Any],
        *arguments: Any,
        resources: Resources,  # noqa: ARG002
        label: str,  # noqa: ARG002
    ) -> None:
        """Note what to do next."""
        self._next.append((key, call, arguments))

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Do it, and yield key and result."""
        key, call, arguments = self._next.pop()
        yield key, call_with_gpus((), call, *arguments)

    def release_memory(self) -> None:
        """Keep everything."""

    def __enter__(self) -> Self:
        # One thread, as a worker has, for what is loaded and what will be: the last bits of a product depend on it.
        self._limits = ExitStack()
        self._limits.enter_context(environment(ONE_THREAD))
        self._limits.enter_context(threadpool_limits(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next.clear()
        self._limits.close()
