"""Ray: run tasks on a cluster, or on one that is started here.

The run directory is a folder that every node sees under the same path. A task is the very call that `local` makes: it writes into
a private folder beside its destination and moves the files into place, so bytes, markers and manifests are the same. A task whose
worker or node is lost is run again, elsewhere; one that raises a user's error is not.

Workers keep what they have loaded (a model, a tokenizer) from task to task: Ray would start a new one for each GPU task.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from nextlong.engine.executor import ONE_THREAD, Capacity, Resources, call_with_gpus
from nextlong.errors import RunError

_WAITING_PER_CPU = 2  # tasks handed over beyond what runs: enough that no worker idles, few enough to stop soon
_REACH_S = 10.0


def check_installed() -> None:
    """Raise RunError if Ray is not installed; it is not imported, which takes seconds."""
    if importlib.util.find_spec("ray") is None:
        raise RunError("executor=ray needs the package ray; pip install 'nextlong[ray]', or set executor=local")


class RayExecutor:
    """Tasks on a Ray cluster: the one at `address`, or one of `workers` processors on this machine that ends with the run."""

    def __init__(self, address: str | None, *, workers: int, retries: int) -> None:
        check_installed()
        self._address = address
        self._workers = workers
        self._retries = retries
        self._is_ours = False  # the connection, which is then closed at the end
        self._running: dict[Any, tuple[int, str]] = {}  # object reference → key and label

    def __enter__(self) -> RayExecutor:
        import ray

        if not ray.is_initialized():
            self._is_ours = True
            here = {"num_cpus": self._workers} if self._address is None else {}
            try:
                _reach(self._address)
                with _handlers_kept():
                    ray.init(
                        address=self._address or "local",  # None would take any cluster that this machine knows of
                        log_to_driver=False,
                        include_dashboard=False,
                        configure_logging=False,
                        **here,
                    )
            except (OSError, ValueError, RuntimeError) as error:
                if self._address is None:
                    raise RunError(
                        f"Ray does not start on this machine: {_first_line(error)}; set executor=local"
                    ) from None
                raise RunError(
                    f"no Ray cluster answers at ray.address={self._address}: {_first_line(error)}; start one (`ray start --head`), "
                    "correct the address, or leave it out to start one here"
                ) from None
        total = ray.cluster_resources()
        self.capacity = Capacity(cpus=int(total.get("CPU", 1)), count_gpus=lambda: int(total.get("GPU", 0)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        if kind is not None:
            for reference in self._running:
                ray.cancel(reference, force=True)
        self._running.clear()
        if self._is_ours:
            ray.shutdown()

    def has_room(self, resources: Resources) -> bool:
        """Say whether few enough tasks wait at the cluster; Ray itself starts one where its resources are free."""
        scarce = (
            self.capacity.gpus / resources.gpus if resources.gpus else self.capacity.cpus / max(resources.cpus, 1e-9)
        )
        return len(self._running) < max(1.0, scarce) * _WAITING_PER_CPU

    def submit(self, key: int, call: Callable[..., Any], *arguments: Any, resources: Resources, label: str) -> None:
        """Hand a task to the cluster."""
        import ray

        options: dict[str, Any] = {
            "name": label,
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "max_retries": self._retries,
            "max_calls": 0,
            "runtime_env": {"env_vars": ONE_THREAD | _import_path()},
        }
        with _explained(label):
            reference = ray.remote(**options)(_call).remote(str(Path.cwd()), call, *arguments)
        self._running[reference] = (key, label)

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Wait for a task, and yield key and result of each that has ended."""
        import ray

        with _explained(", ".join(sorted({label for _, label in self._running.values()}))):
            finished, _ = ray.wait(list(self._running), num_returns=1)
        for reference in finished:
            key, label = self._running.pop(reference)
            with _explained(label):
                result = ray.get(reference)
            yield key, result

    def release_memory(self) -> None:
        """Leave the workers to Ray, which ends those that idle."""


def _call(folder: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task on a node, in the folder that the head was called in, from which relative paths count.

    Ray shows a worker its own GPUs alone, as number 0 and on.
    """
    import ray

    os.chdir(folder)
    return call_with_gpus(tuple(range(len(ray.get_gpu_ids()))), call, *arguments)


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Turn what Ray says of a lost task into an error that names it; the task's own error passes as it was raised."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.OutOfMemoryError as error:
        raise RunError(
            f"{label} was killed because its node ran out of memory, at every try: {_first_line(error)}; give tasks more memory "
            "(larger nodes, fewer processors a node), then run again: what is finished is kept"
        ) from None
    except ray.exceptions.RayError as error:
        raise RunError(
            f"{label} was lost at every try ({type(error).__name__}: {_first_line(error)}); look at the nodes (`ray status`), then "
            "run again: what is finished is kept"
        ) from None


def _reach(address: str | None) -> None:
    """Raise OSError if nothing listens at host:port; Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep what this process does on SIGTERM: Ray puts a handler of its own there."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _import_path() -> dict[str, str]:
    """Return what lets a worker import what this process can, where it runs from a checkout."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
