"""Ray: run tasks on a cluster whose nodes all see the run directory under the same path, or on one started on this machine.

Tasks are the same calls as in `local`. A task whose worker or node is lost is retried on another; a task that raises an
error is not. What runs on a node first checks that the node has the code and the folders of the head: it is sent by value,
because the node may import another version of this module, or none.

A task that needs a GPU runs in an actor that owns one GPU for its whole life: the actor keeps its model loaded, and CUDA never
sees another device than at the start. Actors reserve no processor, so that queued CPU tasks never block a GPU. There is one
actor for each GPU of the cluster, which may grow and shrink during a run.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from nextlong.engine.executor import (
    ONE_THREAD,
    Call,
    Executor,
    Resources,
)
from nextlong.errors import NextlongError, RunError
from nextlong.text import first_sentence

try:
    import ray
    from ray import cloudpickle
    from ray.experimental import internal_kv
except ImportError:
    raise RunError(
        "executor=ray needs the package ray; pip install 'nextlong[ray]', or set executor=local"
    ) from None

_WAITING_PER_CPU = 2  # tasks submitted beyond the running ones: enough to keep workers busy, few enough to stop quickly
_REACH_S = 10.0
_LOOK_AGAIN_S = 1.0  # between two queries of the cluster's size
_KEPT_IDLE_S = 30.0  # before an idle actor, which blocks its GPU for others, is ended


# In the message of Ray about what a lost node ran.
_NODE_ID = re.compile(r"Node Id: (\w+)", re.IGNORECASE)
_NODE_IP = re.compile(r"\bip: (\S+)|\bIP: ([^\s,)]+)")
_KEPT = "then run again: finished steps are kept"


@dataclass(eq=False)
class _Submitted:
    """A submitted task, its actor if it needs a GPU, and the number of retries left."""

    key: int
    label: str
    call: bytes  # pickled
    cpus: float
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
        self._places = f"nextlong-{uuid.uuid4().hex}-"
        self._running: dict[Any, _Submitted] = {}  # by object reference
        self._actors: list[_Actor] = []
        self._queue: list[
            _Submitted
        ] = []  # GPU tasks without an actor: new ones, and those whose actor was lost
        # Of actors in a row: their node was lost, or lacks a package. The actors of one lost node, of which each
        # GPU has one, count once.
        self._failed_starts = 0
        self._lost_nodes: set[str] = set()
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
        run = _runner_of_tasks()
        self._task = ray.remote(run)
        self._actor_class = ray.remote(_gpu_worker(run))
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
        with suppress(Exception):  # the cluster may have ended
            internal_kv._internal_kv_del(self._places, del_by_prefix=True)
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
            node_id = _NODE_ID.search(str(error))
            if node_id is not None:
                if node_id[1] in self._lost_nodes:
                    return
                self._lost_nodes.add(node_id[1])
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                label = "a process for tasks on a GPU"
                raise RunError(_lost(label, error, _node_in(error))) from None

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        task = _Submitted(
            key=key,
            label=label,
            call=cloudpickle.dumps(partial(call, *arguments)),
            cpus=resources.cpus,
            tries=self._retries,
        )
        if resources.gpu == "needed":
            self._queue.append(task)
            self._start_queued()
        else:
            self._start(task)

    def _start(self, task: _Submitted) -> None:
        """Start a task on processors. It is retried here, not by Ray, which retries without end if memory runs out."""
        options = {
            "num_cpus": task.cpus,
            "max_retries": 0,
            "runtime_env": self._environment,
        }
        started = self._task.options(name=task.label, **options)
        self._running[started.remote(*self._arguments_of(task))] = task

    def _arguments_of(self, task: _Submitted) -> tuple[str, str, bytes, str]:
        return str(Path.cwd()), code_version(), task.call, self._place_of(task)

    def _place_of(self, task: _Submitted) -> str:
        """Return the key under which the cluster stores where a task was started."""
        return f"{self._places}{task.label}"

    def _start_queued(self) -> None:
        while self._queue and (actor := self._free_actor()) is not None:
            task = self._queue.pop(0)
            actor.is_busy, task.actor = True, actor
            reference = actor.handle.run.remote(*self._arguments_of(task))
            self._running[reference] = task

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each finished one; yields none if only an actor has started."""
        begun = [actor.begun for actor in self._actors if actor.begun is not None]
        finished, _ = ray.wait([*self._running, *begun], num_returns=1)
        for reference in finished:
            task = self._running.pop(reference, None)
            if task is None:
                self._record_start(
                    next(actor for actor in self._actors if actor.begun == reference)
                )
                continue
            actor, task.actor = task.actor, None
            try:
                outcome, node, value = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                # Not of the task, whose errors are values, but of what surrounds it.
                raise RunError(_lost(task.label, error, _node_in(error))) from None
            except ray.exceptions.RayError as error:
                if actor in self._actors:
                    self._actors.remove(actor)
                self._retry(task, error, needs_gpu=actor is not None)
                continue
            if actor is not None:
                actor.is_busy, actor.idle_since_s = False, time.monotonic()
            if outcome != "done":
                raise _error_of(task.label, outcome, node, value)
            yield task.key, value
        self._start_queued()
        for actor in list(self._actors):
            if (
                not actor.is_busy
                and actor.begun is None
                and time.monotonic() - actor.idle_since_s > _KEPT_IDLE_S
            ):
                self._actors.remove(actor)
                ray.kill(actor.handle)

    def _retry(self, task: _Submitted, error: Exception, *, needs_gpu: bool) -> None:
        """Start a lost task again. Raises RunError after too many attempts."""
        if not task.tries:
            stored = internal_kv._internal_kv_get(self._place_of(task))
            started_on = (stored or b"unknown").decode()
            node = _node_in(error)
            # The stored one may be of an earlier attempt, but has the name of the host.
            if node == "unknown" or node in started_on:
                node = started_on
            raise RunError(_lost(task.label, error, node)) from None
        task.tries -= 1
        if needs_gpu:
            self._queue.append(task)
        else:
            self._start(task)


@cache
def code_version() -> str:
    """Return the version of nextlong, with a hash of its source: a checkout has the version of its last release."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    try:
        release = metadata.version("nextlong")
    except metadata.PackageNotFoundError:
        release = "not installed"
    return f"{release}, source {digest.hexdigest()[:8]}"


def _runner_of_tasks() -> Callable[..., tuple[str, str, Any]]:
    """Return the function that runs tasks on nodes. A nested function is pickled by value."""

    def run(folder: str, code: str, pickled: bytes, place: str) -> tuple[str, str, Any]:
        """Run a task; return its outcome, the node, and its result or what went wrong.

        Ray shows a worker only its own GPUs, numbered from 0.
        """
        import os
        import socket
        import traceback

        import ray
        from ray import cloudpickle
        from ray.experimental import internal_kv

        address = ray.util.get_node_ip_address()
        node = f"{socket.gethostname()} ({address})"
        internal_kv._internal_kv_put(place, node)
        try:
            from nextlong.engine.executor import call_with_gpus
            from nextlong.engine.ray import code_version

            own = code_version()
        except ImportError as error:
            return "other code", node, f"none that it can import ({error})"
        if own != code:
            return "other code", node, own
        if not os.path.isdir(folder):  # noqa: PTH112
            return "no folder", node, folder
        os.chdir(folder)
        try:
            gpus = tuple(range(len(ray.get_gpu_ids())))
            return "done", node, call_with_gpus(gpus, cloudpickle.loads(pickled))
        except Exception as error:
            shown = traceback.format_exc()
            try:
                return "error", node, (cloudpickle.dumps(error), shown)
            except Exception:
                return "error", node, (b"", shown)

    return run


def _gpu_worker(run: Callable[..., tuple[str, str, Any]]) -> type:
    """Return the class of a process that runs tasks one after the other on the GPUs assigned at its start."""

    class GpuWorker:
        def begin(self) -> None:
            """Return as soon as the actor runs."""

    # A class made here is pickled by value, like the function.
    GpuWorker.run = staticmethod(run)  # type: ignore[attr-defined]
    return GpuWorker


def _error_of(label: str, outcome: str, node: str, value: Any) -> Exception:
    """Return the error of a task that did not end well on a node."""
    if outcome == "other code":
        cure = f"install the same nextlong on every node, {_KEPT}"
        problem = (
            f"which has another nextlong ({value}) than this machine ({code_version()})"
        )
        return RunError(f"{label} cannot run on node {node}, {problem}; {cure}")
    if outcome == "no folder":
        return RunError(
            f"{label} cannot run on node {node}: it has no folder {value}; {_SHARE_FOLDER}"
        )
    pickled, shown = value
    error: Exception
    try:
        error = pickle.loads(pickled)
    except Exception:
        error = RuntimeError(shown)
    if isinstance(error, NextlongError) and not isinstance(error, RunError):
        # A mistake in the recipe or the documents, on any node.
        return error
    if isinstance(error, RunError):
        return RunError(f"{label} on node {node}: {error}")
    if isinstance(error, OSError | ImportError | MemoryError):
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        cure = f"check the disk, memory and packages of this node (nextlong doctor), {_KEPT}"
        return RunError(f"{label} failed on node {node} ({reason}); {cure}")
    error.add_note(f"in {label} on node {node}:\n{shown}")
    return error


_SHARE_FOLDER = f"mount it under the same path on every node, {_KEPT}"


def _node_in(error: Exception) -> str:
    """Return the address of the node in a message of Ray, or that it is unknown."""
    found = _NODE_IP.search(str(error))
    return "unknown" if found is None else found[1] or found[2]


def _lost(label: str, error: Exception, node: str) -> str:
    """Return the message for a task or process that was lost at every attempt, last on a node."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        cure = (
            f"give tasks more memory (larger nodes, fewer processors a node), {_KEPT}"
        )
        why = "because its memory ran out"
        return (
            f"{label} was killed at every attempt, last on node {node}, {why}; {cure}"
        )
    reason = f"{type(error).__name__}: {first_sentence(error)}"
    cure = f"check the nodes (`ray status`) and their memory, {_KEPT}"
    return f"{label} was lost at every attempt, last on node {node} ({reason}); {cure}"
