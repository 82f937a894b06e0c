"""Ray: run tasks on a cluster whose nodes all see the run directory under the same path, or on one started on this machine.

Tasks are the same calls as in `local`. A task whose worker or node is lost is retried on another; a task that raises a
NextlongError is not.

A task that needs a GPU runs in an actor that owns one GPU for its whole life: the actor keeps its model loaded, and CUDA never
sees another device than at the start. Actors reserve no processor, so that queued CPU tasks never block a GPU. There is one
actor for each GPU of the cluster, which may grow and shrink during a run.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.engine.executor import (
    ONE_THREAD,
    Call,
    Executor,
    Resources,
    call_with_gpus,
)
from nextlong.errors import RunError
from nextlong.text import first_sentence

try:
    import ray
except ImportError:
    raise RunError(
        "executor=ray needs the package ray; pip install 'nextlong[ray]', or set executor=local"
    ) from None

_WAITING_PER_CPU = 2  # tasks submitted beyond the running ones: enough to keep workers busy, few enough to stop quickly
_REACH_S = 10.0
_LOOK_AGAIN_S = 1.0  # between two queries of the cluster's size
_KEPT_IDLE_S = 30.0  # before an idle actor, which blocks its GPU for others, is ended


@dataclass
class _Submitted:
    """A submitted task, its actor if it needs a GPU, and the number of retries left."""

    key: int
    label: str
    call: Callable[[], object]
    tries: int
    actor: _Actor | None = None


@dataclass(eq=False)
class _Actor:
    """A process that owns GPUs. `begun` is the Ray reference that resolves when the process runs; None after that."""

    handle: Any
    begun: Any
    is_busy: bool = False
    idle_since_s: float = field(default_factory=time.monotonic)


class RayExecutor(Executor):
    """Run tasks on the Ray cluster at `address`, or on one with `workers` processors on this machine that ends with the run."""

    def __init__(
        self,
        address: str | None,
        *,
        workers: int,
        retries: int,
        tell: Callable[[str], object],
    ) -> None:
        self._tell, self._address, self._workers, self._retries = (
            tell,
            address,
            workers,
            retries,
        )
        self._is_ours = (
            False  # whether this executor opened the connection and has to close it
        )
        self._running: dict[Any, _Submitted] = {}  # by object reference
        self._actors: list[_Actor] = []
        self._queue: list[
            _Submitted
        ] = []  # GPU tasks without an actor: new ones, and those whose actor was lost
        self._failed_starts = (
            0  # of actors in a row: their node was lost, or lacks a package
        )
        self._waits_for_gpu = False
        self.grows = address is not None
        self._total: dict[str, float] = {}  # resources of the cluster by kind
        self._looked_s = -math.inf

    def __enter__(self) -> RayExecutor:
        if not ray.is_initialized():
            self._is_ours = True
            handler = signal.getsignal(signal.SIGTERM)
            try:
                # Check the port first: Ray itself would retry for minutes.
                host, colon, port = (
                    (self._address or "").removeprefix("ray://").rpartition(":")
                )
                if colon and port.isdigit():
                    socket.create_connection(
                        (host.strip("[]"), int(port)), timeout=_REACH_S
                    ).close()
                ray.init(
                    address=self._address
                    or "local",  # None would connect to any cluster known on this machine
                    log_to_driver=False,
                    include_dashboard=False,
                    configure_logging=False,
                    num_cpus=self._workers if self._address is None else None,
                )
            except (OSError, ValueError, RuntimeError) as error:
                reason = first_sentence(error)
                raise RunError(
                    f"Ray does not start on this machine: {reason}; set executor=local"
                    if self._address is None
                    else f"no Ray cluster answers at ray.address={self._address}: {reason}; start one (`ray start --head`), "
                    "correct the address, or leave it out to start one here"
                ) from None
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(
                        signal.SIGTERM, handler
                    )  # Ray installs its own handler
        self._task, self._actor_class = ray.remote(_call), ray.remote(_GpuWorker)
        # Workers import the same packages as this process, also from a checkout.
        path = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
        self._environment = {"env_vars": ONE_THREAD | path}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for reference, task in self._running.items():
                if task.actor is None:
                    ray.cancel(reference, force=True)
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors.clear()
        self._running.clear()
        if self._is_ours:
            ray.shutdown()

    @property
    def cpus(self) -> int:  # type: ignore[override] # grows and shrinks
        """The number of processors of the cluster, which may have changed since the last query."""
        return max(1, self._count("CPU"))

    @property
    def gpus(self) -> int:
        return self._count("GPU")

    def _count(self, kind: str) -> int:
        if time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._total, self._looked_s = ray.cluster_resources(), time.monotonic()
        return int(self._total.get(kind, 0))

    def has_room(self, resources: Resources) -> bool:
        """Return whether few tasks wait in the cluster, or a GPU is free; Ray assigns processors itself."""
        if resources.gpu == "needed":
            self._start_queued()
            return not self._queue and self._free_actor() is not None
        on_processors = sum(task.actor is None for task in self._running.values())
        return (
            on_processors
            < max(1.0, self.cpus / max(resources.cpus, 1e-9)) * _WAITING_PER_CPU
        )

    def _free_actor(self) -> _Actor | None:
        """Return an idle actor. There is one actor per GPU of the cluster, or one that waits for the first GPU."""
        count = max(1, self.gpus)
        if not self.gpus and not self._waits_for_gpu:
            self._tell(
                "the Ray cluster has no GPU yet; waiting for a node that has one (`ray status` lists the nodes)"
            )
        self._waits_for_gpu = not self.gpus
        while len(self._actors) < count:
            handle = self._actor_class.options(
                num_gpus=1, num_cpus=0, runtime_env=self._environment
            ).remote()
            self._actors.append(_Actor(handle, handle.begin.remote()))
        for actor in list(self._actors):
            if actor.begun is not None and ray.wait([actor.begun], timeout=0)[0]:
                self._record_start(actor)
        return next(
            (
                actor
                for actor in self._actors
                if actor.begun is None and not actor.is_busy
            ),
            None,
        )

    def _record_start(self, actor: _Actor) -> None:
        """Record that an actor has started, or was lost before that."""
        try:
            ray.get(actor.begun)
            actor.begun, self._failed_starts = None, 0
        except ray.exceptions.RayError as error:
            self._actors.remove(actor)
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                raise RunError(_lost("a process for tasks on a GPU", error)) from None

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        task = _Submitted(key, label, partial(call, *arguments), self._retries)
        if resources.gpu == "needed":
            self._queue.append(task)
            self._start_queued()
            return
        with _explained(label):
            options = {
                "num_cpus": resources.cpus,
                "max_retries": self._retries,
                "runtime_env": self._environment,
            }
            reference = self._task.options(name=label, **options).remote(
                str(Path.cwd()), task.call
            )
        self._running[reference] = task

    def _start_queued(self) -> None:
        while self._queue and (actor := self._free_actor()) is not None:
            task = self._queue.pop(0)
            actor.is_busy, task.actor = True, actor
            with _explained(task.label):
                reference = actor.handle.run.remote(str(Path.cwd()), task.call)
            self._running[reference] = task

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each finished one; yields none if only an actor has started."""
        with _explained(
            ", ".join(sorted({task.label for task in self._running.values()}))
        ):
            begun = [actor.begun for actor in self._actors if actor.begun is not None]
            finished, _ = ray.wait([*self._running, *begun], num_returns=1)
        for reference in finished:
            if (task := self._running.pop(reference, None)) is None:
                self._record_start(
                    next(actor for actor in self._actors if actor.begun == reference)
                )
                continue
            actor, task.actor = task.actor, None
            try:
                with _explained(task.label):
                    result = ray.get(reference)
            except _ActorLostError as lost:
                if actor in self._actors:
                    self._actors.remove(actor)
                if not task.tries:
                    raise RunError(str(lost)) from None
                task.tries -= 1
                self._queue.append(task)
                continue
            if actor is not None:
                actor.is_busy, actor.idle_since_s = False, time.monotonic()
            yield task.key, result
        self._start_queued()
        for actor in list(self._actors):
            if (
                not actor.is_busy
                and actor.begun is None
                and time.monotonic() - actor.idle_since_s > _KEPT_IDLE_S
            ):
                self._actors.remove(actor)
                ray.kill(actor.handle)


class _ActorLostError(Exception):
    """An actor was lost together with its task."""


def _call(folder: str, call: Call) -> Any:
    """Run a task on a node, in the head's working directory; Ray shows a worker only its own GPUs, numbered from 0."""
    os.chdir(folder)
    return call_with_gpus(tuple(range(len(ray.get_gpu_ids()))), call)


class _GpuWorker:
    """Run tasks one after the other on the GPUs assigned at the start."""

    def begin(self) -> None:
        """Return as soon as the actor runs."""

    run = staticmethod(_call)


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Turn Ray's errors for a lost task into a RunError that names it; errors of the task itself are raised unchanged."""
    try:
        yield
    except ray.exceptions.RayActorError as error:
        raise _ActorLostError(_lost(label, error)) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.OutOfMemoryError as error:
        cure = "give tasks more memory (larger nodes, fewer processors a node), then run again: finished steps are kept"
        why = f"because its node ran out of memory, at every attempt: {first_sentence(error)}"
        raise RunError(f"{label} was killed {why}; {cure}") from None
    except ray.exceptions.RayError as error:
        raise RunError(_lost(label, error)) from None


def _lost(label: str, error: Exception) -> str:
    cure = "check the nodes (`ray status`), then run again: finished steps are kept"
    return f"{label} was lost at every attempt ({type(error).__name__}: {first_sentence(error)}); {cure}"
