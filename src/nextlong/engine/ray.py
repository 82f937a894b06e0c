"""Ray: run tasks on a cluster whose nodes all see the run directory under the same path, or on one that is started here.

A task is the very call that `local` makes. One whose worker or node is lost is run again, elsewhere; one that raises a user's
error is not.

A task that needs a GPU runs in an actor that has one for its whole life: it keeps its model loaded, and CUDA never sees another
device than at its start. Actors ask for no processor, so that no queue of other tasks keeps a GPU waiting. The cluster may grow
and shrink meanwhile: there is an actor for each GPU that it has.
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

from nextlong.engine.executor import ONE_THREAD, Call, Executor, Resources, call_with_gpus
from nextlong.errors import RunError
from nextlong.text import first_sentence

try:
    import ray
except ImportError:
    raise RunError("executor=ray needs the package ray; pip install 'nextlong[ray]', or set executor=local") from None

_WAITING_PER_CPU = 2  # tasks handed over beyond what runs: enough that no worker idles, few enough to stop soon
_REACH_S = 10.0
_LOOK_AGAIN_S = 1.0  # at how large the cluster is
_KEPT_IDLE_S = 30.0  # an actor, which keeps its GPU from others


@dataclass
class _Submitted:
    """A task that is handed over, the actor it runs in if it needs a GPU, and how often it may still be lost."""

    key: int
    label: str
    call: Callable[[], object]
    tries: int
    actor: _Actor | None = None


@dataclass(eq=False)
class _Actor:
    """A process that has GPUs for its whole life. `begun` is the reference by which Ray says that it runs; None once it has."""

    handle: Any
    begun: Any
    is_busy: bool = False
    idle_since_s: float = field(default_factory=time.monotonic)


class RayExecutor(Executor):
    """Tasks on a Ray cluster: the one at `address`, or one of `workers` processors on this machine that ends with the run."""

    def __init__(self, address: str | None, *, workers: int, retries: int, tell: Callable[[str], object]) -> None:
        self._tell, self._address, self._workers, self._retries = tell, address, workers, retries
        self._is_ours = False  # the connection, which is then closed at the end
        self._running: dict[Any, _Submitted] = {}  # by object reference
        self._actors: list[_Actor] = []
        self._queue: list[_Submitted] = []  # for the next actor that idles: tasks whose own was lost
        self._failed_starts = 0  # of actors, one after the other: nodes that were lost, or lack a package
        self._waits_for_gpu = False
        self.grows = address is not None
        self._total: dict[str, float] = {}  # of the cluster, by kind of resource
        self._looked_s = -math.inf

    def __enter__(self) -> RayExecutor:
        if not ray.is_initialized():
            self._is_ours = True
            handler = signal.getsignal(signal.SIGTERM)
            try:
                # Ray itself would try for minutes where nothing listens.
                host, colon, port = (self._address or "").removeprefix("ray://").rpartition(":")
                if colon and port.isdigit():
                    socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
                ray.init(
                    address=self._address or "local",  # None would take any cluster that this machine knows of
                    log_to_driver=False,
                    include_dashboard=False,
                    configure_logging=False,
                    num_cpus=self._workers if self._address is None else None,
                )
            except (OSError, ValueError, RuntimeError) as error:
                said = first_sentence(error)
                raise RunError(
                    f"Ray does not start on this machine: {said}; set executor=local"
                    if self._address is None
                    else f"no Ray cluster answers at ray.address={self._address}: {said}; start one (`ray start --head`), "
                    "correct the address, or leave it out to start one here"
                ) from None
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, handler)  # Ray puts a handler of its own there
        self._task, self._actor_class = ray.remote(_call), ray.remote(_GpuWorker)
        # A worker can import what this process can, where it runs from a checkout.
        path = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
        self._environment = {"env_vars": ONE_THREAD | path}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for reference, task in self._running.items():
                if task.actor is None:
                    ray.cancel(reference, force=True)
        for actor in list(self._actors):
            self._end_actor(actor)
        self._running.clear()
        if self._is_ours:
            ray.shutdown()

    @property
    def cpus(self) -> int:  # type: ignore[override] # grows and shrinks
        """How many processors the cluster has now; it may have grown or shrunk since the last look."""
        return max(1, self._count("CPU"))

    @property
    def gpus(self) -> int:
        return self._count("GPU")

    def _count(self, kind: str) -> int:
        if time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._total, self._looked_s = ray.cluster_resources(), time.monotonic()
        return int(self._total.get(kind, 0))

    def has_room(self, resources: Resources) -> bool:
        """Say whether few enough tasks wait at the cluster, or a GPU is free; Ray finds it a processor."""
        if resources.gpu == "needed":
            self._start_queued()
            return not self._queue and self._free_actor() is not None
        on_processors = sum(task.actor is None for task in self._running.values())
        return on_processors < max(1.0, self.cpus / max(resources.cpus, 1e-9)) * _WAITING_PER_CPU

    def _free_actor(self) -> _Actor | None:
        """Return an actor that idles. There is one for each GPU of the cluster; where it has none, one waits for the first."""
        wanted = max(1, self.gpus)
        if not self.gpus and not self._waits_for_gpu:
            self._tell("the Ray cluster has no GPU yet; waiting for a node that has one (`ray status` lists the nodes)")
        self._waits_for_gpu = not self.gpus
        while len(self._actors) < wanted:
            options = {"num_gpus": 1, "num_cpus": 0, "runtime_env": self._environment}
            handle = self._actor_class.options(**options).remote()
            self._actors.append(_Actor(handle, handle.begin.remote()))
        for actor in list(self._actors):
            if actor.begun is not None and ray.wait([actor.begun], timeout=0)[0]:
                self._take_note_of(actor)
        return next((actor for actor in self._actors if actor.begun is None and not actor.is_busy), None)

    def _take_note_of(self, actor: _Actor) -> None:
        """Take note that an actor has begun, or has been lost before it did."""
        try:
            ray.get(actor.begun)
            actor.begun, self._failed_starts = None, 0
        except ray.exceptions.RayError as error:
            self._actors.remove(actor)
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                raise RunError(_lost("a process for tasks on a GPU", error)) from None

    def submit(self, key: int, call: Call, *arguments: object, resources: Resources, label: str) -> None:
        task = _Submitted(key, label, partial(call, *arguments), self._retries)
        if resources.gpu == "needed":
            self._queue.append(task)
            self._start_queued()
            return
        with _explained(label):
            reference = self._task.options(
                name=label, num_cpus=resources.cpus, max_retries=self._retries, runtime_env=self._environment
            ).remote(str(Path.cwd()), task.call)
        self._running[reference] = task

    def _start_queued(self) -> None:
        while self._queue and (actor := self._free_actor()) is not None:
            task = self._queue.pop(0)
            actor.is_busy, task.actor = True, actor
            with _explained(task.label):
                reference = actor.handle.run.remote(str(Path.cwd()), task.call)
            self._running[reference] = task

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each that has ended; of none where an actor has begun meanwhile."""
        with _explained(", ".join(sorted({task.label for task in self._running.values()}))):
            begun = [actor.begun for actor in self._actors if actor.begun is not None]
            finished, _ = ray.wait([*self._running, *begun], num_returns=1)
        for reference in finished:
            if (task := self._running.pop(reference, None)) is None:
                self._take_note_of(next(actor for actor in self._actors if actor.begun == reference))
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
            if not actor.is_busy and actor.begun is None and time.monotonic() - actor.idle_since_s > _KEPT_IDLE_S:
                self._end_actor(actor)

    def _end_actor(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        ray.kill(actor.handle)


class _ActorLostError(Exception):
    """An actor, or its node, was lost with the task that it ran."""


def _call(folder: str, call: Call) -> Any:
    """Run a task on a node, in the folder that the head was called in, from which relative paths count.

    Ray shows a worker its own GPUs alone, as number 0 and on.
    """
    os.chdir(folder)
    return call_with_gpus(tuple(range(len(ray.get_gpu_ids()))), call)


class _GpuWorker:
    """Runs tasks one after the other, on the GPUs that it was given at its start."""

    def begin(self) -> None:
        """Return once the actor runs."""

    run = staticmethod(_call)


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Turn what Ray says of a lost task into an error that names it; the task's own error passes as it was raised."""
    try:
        yield
    except ray.exceptions.RayActorError as error:
        raise _ActorLostError(_lost(label, error)) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.OutOfMemoryError as error:
        cure = "give tasks more memory (larger nodes, fewer processors a node), then run again: finished steps are kept"
        why = f"because its node ran out of memory, at every try: {first_sentence(error)}"
        raise RunError(f"{label} was killed {why}; {cure}") from None
    except ray.exceptions.RayError as error:
        raise RunError(_lost(label, error)) from None


def _lost(label: str, error: Exception) -> str:
    cure = "look at the nodes (`ray status`), then run again: finished steps are kept"
    return f"{label} was lost at every try ({type(error).__name__}: {first_sentence(error)}); {cure}"
