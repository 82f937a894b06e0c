"""Ray: run tasks on a cluster whose nodes see the run directory at one path.

Or on one started on this machine. Tasks are the same calls as in `local`. A task whose
worker or node is lost is retried on another; a task that raises an error is not. What
runs on a node first checks that the node has the code and the folders of the head: it
is sent by value, because the node may import another version of this module, or none.

A task that needs a GPU runs in an actor that owns one GPU for its whole life: the actor
keeps its model loaded, and CUDA never sees another device than at the start. Actors
reserve no processor, so that queued CPU tasks never block a GPU. There is one actor for
each GPU of the cluster, which may grow and shrink during a run.
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
from typing import Any, NamedTuple

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
        where="executor=ray",
        problem="it needs the package ray",
        fix="pip install 'nextlong[ray]', or set executor=local",
    ) from None

# Tasks submitted beyond the running ones: enough to keep workers busy, few enough to
# stop quickly.
_WAITING_PER_CPU = 2
_REACH_S = 10.0
_LOOK_AGAIN_S = 1.0  # between two queries of the cluster's size
_KEPT_IDLE_S = 30.0  # before an idle actor, which blocks its GPU for others, is ended
# In the message of Ray about what a lost node ran.
_NODE_ID = re.compile(r"Node Id: (\w+)", re.IGNORECASE)
_NODE_IP = re.compile(r"\bip: (\S+)|\bIP: ([^\s,)]+)")
_KEPT = "then run again: finished steps are kept"


@dataclass(eq=False)
class _Submitted:
    """A submitted task, its actor if it needs a GPU, and the number of retries left.

    `call` is pickled.
    """

    key: int
    label: str
    call: bytes
    cpus: float
    tries: int
    actor: _Actor | None = None


@dataclass(eq=False)
class _Actor:
    """A process that owns GPUs.

    `begun` is the Ray reference that resolves when the process runs; None after that.
    """

    handle: Any
    begun: Any
    is_busy: bool = False
    idle_since_s: float = field(default_factory=time.monotonic)


class RayExecutor(Executor):
    """Run tasks on the Ray cluster at `address`.

    Without an address, on one with `workers` processors on this machine that ends with
    the run.
    """

    def __init__(
        self,
        address: str | None,
        *,
        workers: int,
        retries: int,
        tell: Callable[[str], object],
    ) -> None:
        self._address = address
        self._workers = workers
        self._retries = retries
        self._tell = tell
        # Whether this executor opened the connection and has to close it.
        self._is_ours = False
        self._places = f"nextlong-{uuid.uuid4().hex}-"
        self._running: dict[Any, _Submitted] = {}  # by object reference
        self._actors: list[_Actor] = []
        # GPU tasks without an actor: new ones, and those whose actor was lost.
        self._queue: list[_Submitted] = []
        # Of actors in a row: their node was lost, or lacks a package. The actors of one
        # lost node, of which each GPU has one, count once.
        self._failed_starts = 0
        self._lost_nodes: set[str] = set()
        self._waits_for_gpu = False
        self.grows = address is not None
        self._total: dict[str, float] = {}  # resources of the cluster by kind
        self._looked_s = -math.inf

    def __enter__(self) -> RayExecutor:
        if not ray.is_initialized():
            self._is_ours = True
            self._connect()
        run = _runner_of_tasks()
        self._task = ray.remote(run)
        self._actor_class = ray.remote(_gpu_worker(run))
        # Workers import the same packages as this process, also from a checkout.
        variables = dict(ONE_THREAD)
        if "PYTHONPATH" in os.environ:
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self._environment = {"env_vars": variables}
        return self

    def _connect(self) -> None:
        """Connect to the cluster, or start one. Raises RunError if that fails."""
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._check_port()
            ray.init(
                # None would connect to any cluster known on this machine.
                address=self._address or "local",
                log_to_driver=False,
                include_dashboard=False,
                configure_logging=False,
                num_cpus=self._workers if self._address is None else None,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise self._not_connected(first_sentence(error)) from None
        finally:
            # Ray installs its own handler.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)

    def _check_port(self) -> None:
        """Raise OSError if nothing answers; Ray itself would retry for minutes."""
        address = (self._address or "").removeprefix("ray://")
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit():
            reached = (host.strip("[]"), int(port))
            socket.create_connection(reached, timeout=_REACH_S).close()

    def _not_connected(self, reason: str) -> RunError:
        if self._address is None:
            return RunError(
                where="Ray",
                problem=f"it does not start on this machine: {reason}",
                fix="set executor=local",
            )
        return RunError(
            where="ray.address",
            value=self._address,
            problem=f"cannot be used: no Ray cluster answers there: {reason}",
            fix=(
                "start a cluster (`ray start --head`), correct the address, or remove "
                "it to start a cluster on this machine"
            ),
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for reference, task in self._running.items():
                if task.actor is None:
                    ray.cancel(reference, force=True)
        # Ending an actor frees its GPU for others.
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors.clear()
        self._running.clear()
        # The cluster may have ended.
        with suppress(Exception):
            internal_kv._internal_kv_del(self._places, del_by_prefix=True)
        if self._is_ours:
            ray.shutdown()

    @property
    def cpus(self) -> int:  # type: ignore[override] # grows and shrinks
        """The number of processors of the cluster.

        It may have changed since the last query.
        """
        return max(1, self._count("CPU"))

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster."""
        return self._count("GPU")

    def _count(self, kind: str) -> int:
        if time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._total = ray.cluster_resources()
            self._looked_s = time.monotonic()
        return int(self._total.get(kind, 0))

    def has_room(self, resources: Resources) -> bool:
        """Return whether few tasks wait in the cluster, or a GPU is free.

        Ray assigns processors itself.
        """
        if resources.gpu == "needed":
            self._start_queued()
            return not self._queue and self._free_actor() is not None
        on_processors = sum(task.actor is None for task in self._running.values())
        running_at_once = max(1.0, self.cpus / max(resources.cpus, 1e-9))
        return on_processors < running_at_once * _WAITING_PER_CPU

    def _free_actor(self) -> _Actor | None:
        """Return an idle actor.

        There is one actor per GPU of the cluster, or one that waits for the first GPU.
        """
        # The cluster may have grown or shrunk since the last look.
        gpus = self.gpus
        if not gpus and not self._waits_for_gpu:
            self._tell(
                "the Ray cluster has no GPU yet; waiting for a node that has one "
                "(`ray status` lists the nodes)"
            )
        self._waits_for_gpu = not gpus
        while len(self._actors) < max(1, gpus):
            self._actors.append(self._new_actor())
        for actor in list(self._actors):
            if actor.begun is not None and ray.wait([actor.begun], timeout=0)[0]:
                self._record_start(actor)
        for actor in self._actors:
            if actor.begun is None and not actor.is_busy:
                return actor
        return None

    def _new_actor(self) -> _Actor:
        actor_class = self._actor_class.options(
            num_gpus=1, num_cpus=0, runtime_env=self._environment
        )
        handle = actor_class.remote()
        return _Actor(handle, handle.begin.remote())

    def _record_start(self, actor: _Actor) -> None:
        """Record that an actor has started, or was lost before that."""
        try:
            ray.get(actor.begun)
            actor.begun = None
            self._failed_starts = 0
        except ray.exceptions.RayError as error:
            self._actors.remove(actor)
            # Each GPU of a lost node had an actor, whose losses are one failure.
            node_id = _NODE_ID.search(str(error))
            if node_id is not None:
                if node_id[1] in self._lost_nodes:
                    return
                self._lost_nodes.add(node_id[1])
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                label = "a process for tasks on a GPU"
                raise _lost(label, error, _node_in(error)) from None

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        """Start a task; one that needs a GPU waits for a free actor."""
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
        """Start a task on processors.

        It is retried here, not by Ray, which retries without end if memory runs out.
        """
        options = {
            "num_cpus": task.cpus,
            "max_retries": 0,
            "runtime_env": self._environment,
        }
        remote = self._task.options(name=task.label, **options)
        reference = remote.remote(*self._arguments_of(task))
        self._running[reference] = task

    def _arguments_of(self, task: _Submitted) -> tuple[str, str, bytes, str]:
        return str(Path.cwd()), code_version(), task.call, self._place_of(task)

    def _place_of(self, task: _Submitted) -> str:
        """Return the key under which the cluster stores where a task was started."""
        return f"{self._places}{task.label}"

    def _start_queued(self) -> None:
        while self._queue:
            actor = self._free_actor()
            if actor is None:
                return
            task = self._queue.pop(0)
            actor.is_busy = True
            task.actor = actor
            reference = actor.handle.run.remote(*self._arguments_of(task))
            self._running[reference] = task

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each finished one.

        Yields none if only an actor has started.
        """
        begun = [actor.begun for actor in self._actors if actor.begun is not None]
        finished, _ = ray.wait([*self._running, *begun], num_returns=1)
        for reference in finished:
            task = self._running.pop(reference, None)
            if task is None:
                for actor in list(self._actors):
                    if actor.begun == reference:
                        self._record_start(actor)
                continue
            outcome = self._outcome_of(task, reference)
            if outcome is not None:
                yield task.key, outcome.value
        self._start_queued()
        self._end_idle_actors()

    def _outcome_of(self, task: _Submitted, reference: Any) -> _Outcome | None:
        """Return how a task ended; None if it was lost and is tried again.

        Raises the error of a task that did not end well.
        """
        actor = task.actor
        task.actor = None
        try:
            outcome = _Outcome(*ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            # Not of the task, whose errors are values, but of what surrounds it.
            raise _lost(task.label, error, _node_in(error)) from None
        except ray.exceptions.RayError as error:
            if actor in self._actors:
                self._actors.remove(actor)
            self._retry(task, error, needs_gpu=actor is not None)
            return None
        if actor is not None:
            actor.is_busy = False
            actor.idle_since_s = time.monotonic()
        if outcome.kind != "done":
            raise _error_of(task.label, outcome)
        return outcome

    def _end_idle_actors(self) -> None:
        for actor in list(self._actors):
            is_idle = not actor.is_busy and actor.begun is None
            if is_idle and time.monotonic() - actor.idle_since_s > _KEPT_IDLE_S:
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
            raise _lost(task.label, error, node) from None
        task.tries -= 1
        if needs_gpu:
            self._queue.append(task)
        else:
            self._start(task)


class _Outcome(NamedTuple):
    """How a task ended, on which node, and its result or what went wrong.

    `kind` is "done", "error", "other code" or "no folder".
    """

    kind: str
    node: str
    value: Any


@cache
def code_version() -> str:
    """Return the version of nextlong, with a hash of its source.

    A checkout has the version of its last release.
    """
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
    """Return the function that runs tasks on nodes.

    A nested function is pickled by value.
    """

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
    """Return the class of a process that runs tasks on the GPUs assigned at its start.

    One after the other.
    """

    class GpuWorker:
        def begin(self) -> None:
            """Return as soon as the actor runs."""

    # A class made here is pickled by value, like the function.
    GpuWorker.run = staticmethod(run)  # type: ignore[attr-defined]
    return GpuWorker


def _error_of(label: str, outcome: _Outcome) -> Exception:
    """Return the error of a task that did not end well on a node."""
    node = outcome.node
    if outcome.kind == "other code":
        return RunError(
            where=label,
            problem=(
                f"it cannot run on node {node}, which has another nextlong "
                f"({outcome.value}) than this machine ({code_version()})"
            ),
            fix=f"install the same nextlong on every node, {_KEPT}",
        )
    if outcome.kind == "no folder":
        return RunError(
            where=label,
            problem=f"it cannot run on node {node}, which has no folder "
            f"{outcome.value}",
            fix=f"mount it under the same path on every node, {_KEPT}",
        )
    # An error that cannot be pickled, or not be read here, is shown as text.
    pickled, shown = outcome.value
    error: Exception
    try:
        error = pickle.loads(pickled)
    except Exception:
        error = RuntimeError(shown)
    if isinstance(error, RunError):
        return type(error)(
            where=f"{label} on node {node}: {error.where}",
            value=error.value,
            problem=error.problem,
            fix=error.fix,
        )
    if isinstance(error, NextlongError):
        # A mistake in the recipe or the documents, on any node.
        return error
    if isinstance(error, OSError | ImportError | MemoryError):
        return RunError(
            where=label,
            problem=f"it failed on node {node} ({_reason(error)})",
            fix=(
                "check the disk, memory and packages of this node (nextlong doctor), "
                f"{_KEPT}"
            ),
        )
    error.add_note(f"in {label} on node {node}:\n{shown}")
    return error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_sentence(error)}"


def _node_in(error: Exception) -> str:
    """Return the address of the node in a message of Ray, or that it is unknown."""
    found = _NODE_IP.search(str(error))
    return "unknown" if found is None else found[1] or found[2]


def _lost(label: str, error: Exception, node: str) -> RunError:
    """Return the error for a task or process that was lost at every attempt.

    The last one was on a node.
    """
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return RunError(
            where=label,
            problem=(
                f"it was killed at every attempt, last on node {node}, because its "
                "memory ran out"
            ),
            fix=(
                "give tasks more memory (larger nodes, fewer processors per node), "
                f"{_KEPT}"
            ),
        )
    return RunError(
        where=label,
        problem=f"it was lost at every attempt, last on node {node} ({_reason(error)})",
        fix=f"check the nodes (`ray status`) and their memory, {_KEPT}",
    )
