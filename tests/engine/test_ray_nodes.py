"""Ray on two nodes: what is wrong on a node ends the run with its name, the task and the cure."""

import os
import re
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from nextlong.engine import runner
from nextlong.engine.executor import Resources
from nextlong.errors import RunError

pytestmark = pytest.mark.heavy
ON_CPU = Resources()


@contextmanager
def two_nodes(**config):
    """Start two nodes of one processor each, beside a head that runs no task."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def executor_at(address):
    from nextlong.engine.ray import RayExecutor

    with RayExecutor(address, workers=1, retries=1, tell=print) as executor:
        yield executor


@pytest.fixture(scope="module")
def python_path():
    """Let the workers import this module."""
    with pytest.MonkeyPatch.context() as patched:
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


@pytest.fixture(scope="module")
def address(python_path):
    with two_nodes() as address:
        yield address


@pytest.fixture
def executor(address):
    with executor_at(address) as executor:
        yield executor


def finish(executor):
    while executor._running:
        list(executor.ended())


def error_of(executor, call, *arguments):
    """Return the error that ends a task, which must name its step, shard and node."""
    executor.submit(0, call, *arguments, resources=ON_CPU, label="mine task 3")
    with pytest.raises(RunError) as caught:
        finish(executor)
    message = str(caught.value)
    assert "mine task 3" in message
    assert re.search(r"on node \S+", message)
    assert "node unknown" not in message
    assert "run again" in message
    return message


def raise_error(error):
    raise error


def test_a_node_without_the_run_directory_is_named(executor, tmp_path):
    folder = tmp_path / "run/08-mine-abc"
    message = error_of(executor, runner._run_task, time.sleep, folder, 3)
    assert str(folder) in message
    assert "same path on every node" in message


def test_a_node_without_the_working_directory_is_named(executor, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setattr("nextlong.engine.ray.Path.cwd", lambda: elsewhere)
    assert f"no folder {elsewhere}" in error_of(executor, time.sleep, 0)


def test_a_node_with_another_nextlong_is_named_before_it_runs_anything(
    executor, tmp_path, monkeypatch
):
    from nextlong.engine import ray

    own = ray.code_version()
    monkeypatch.setattr(ray, "code_version", lambda: "0.0.9, source 12345678")
    message = error_of(executor, Path.touch, tmp_path / "ran")
    assert own in message
    assert "0.0.9, source 12345678" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ImportError("torch")]
)
def test_a_task_that_always_fails_on_its_node_is_named(executor, error):
    message = error_of(executor, raise_error, error)
    assert str(error) in message
    assert socket.gethostname() in message


def test_a_task_whose_worker_always_ends_is_named(executor):
    message = error_of(executor, os._exit, 1)
    assert "lost at every attempt" in message
    assert socket.gethostname() in message


def test_a_fault_of_the_code_keeps_its_type_and_says_where_it_happened(executor):
    executor.submit(0, raise_error, KeyError("x"), resources=ON_CPU, label="mine")
    with pytest.raises(KeyError) as caught:
        finish(executor)
    (note,) = caught.value.__notes__
    assert f"in mine on node {socket.gethostname()}" in note
    assert "raise_error" in note


def test_a_worker_that_is_killed_for_memory_is_named(python_path):
    # Ray kills tasks as soon as one percent of the memory is in use.
    limits = {"memory_usage_threshold": 0.01, "memory_monitor_refresh_ms": 100}
    with two_nodes(**limits) as address, executor_at(address) as executor:
        assert "memory ran out" in error_of(executor, time.sleep, 100)
