"""Ray with GPUs that nodes only claim to have: each process keeps its own, none waits for processors, nodes come and go."""

import os
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.engine.executor import Resources, granted_gpus
from nextlong.engine.step import Step, Work
from nextlong.errors import RunError

pytestmark = pytest.mark.heavy
ON_GPU, ON_CPU = Resources(gpu="needed"), Resources()


@pytest.fixture
def cluster(monkeypatch):
    """A head that runs no task, and what adds a node of so many processors and GPUs."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    here = str(Path(__file__).parent)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
    )
    monkeypatch.setattr("nextlong.engine.ray._LOOK_AGAIN_S", 0.0)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    yield cluster
    cluster.shutdown()


def executor_on(cluster, retries=1, tell=lambda _: None):
    from nextlong.engine.ray import RayExecutor

    return RayExecutor(cluster.address, workers=1, retries=retries, tell=tell)


def on_gpu(place):
    """Say which process on which node saw which GPU; wait while the file `place` is there."""
    import ray

    while place is not None and place.exists():
        time.sleep(0.01)
    node = ray.get_runtime_context().get_node_id()
    return "gpu", (
        node,
        os.getpid(),
        os.environ["CUDA_VISIBLE_DEVICES"],
        granted_gpus(),
    )


def on_cpu(place):
    """Wait until the file `place` is gone."""
    while place.exists():
        time.sleep(0.01)
    return "cpu", (None, os.getpid(), "", granted_gpus())


def hand_over(executor, calls, resources, label):
    """Submit calls as the runner does, while there is room; return those that are left."""
    while calls and executor.has_room(resources):
        executor.submit(0, *calls.pop(), resources=resources, label=label)


def test_each_process_keeps_its_gpu_and_none_waits_for_processors(cluster, tmp_path):
    cluster.add_node(num_cpus=4, num_gpus=2)
    cluster.add_node(num_cpus=4, num_gpus=2)
    cluster.wait_for_nodes()
    (gate := tmp_path / "gate").touch()
    gpu_calls, seen = [(on_gpu, None)] * 30, []
    with executor_on(cluster) as executor:
        cpu_calls = [(on_cpu, gate)] * 40
        hand_over(
            executor, cpu_calls, ON_CPU, "chunk"
        )  # every processor is taken, and more tasks wait
        while not executor.has_room(ON_GPU) or any(
            actor.begun is not None for actor in executor._actors
        ):
            time.sleep(0.01)
        while len(seen) < 30:
            hand_over(executor, gpu_calls, ON_GPU, "embed")
            seen += [what for _, (kind, what) in executor.ended() if kind == "gpu"]
        gate.unlink()
        while executor._running:
            assert all(what[3] == () for _, (_, what) in executor.ended())
    of_process = defaultdict(set)
    for node, process, visible, granted in seen:
        of_process[node, process].add(visible)
        assert granted == (0,)
    gpus = [(node, *visible) for (node, _), visible in of_process.items()]
    assert (
        len(gpus) == len(set(gpus)) == 4
    )  # four processes, each with one GPU of its own from first to last


def test_a_cluster_that_grows_and_shrinks_is_used_as_it_is(cluster, tmp_path):
    (gate := tmp_path / "gate").touch()
    calls, seen, told = [(on_gpu, gate)] * 6, [], []
    cluster.add_node(num_cpus=1)
    with executor_on(cluster, tell=told.append) as executor:
        assert (executor.cpus, executor.gpus, executor.grows) == (1, 0, True)
        assert not executor.has_room(ON_GPU)  # an actor waits for the first GPU
        first = cluster.add_node(num_cpus=1, num_gpus=1)
        while not executor.has_room(ON_GPU):
            assert list(executor.ended()) == []
        hand_over(executor, calls, ON_GPU, "embed")
        assert len(executor._running) == 1
        cluster.add_node(num_cpus=1, num_gpus=2)
        while len(executor._running) < 3:
            hand_over(executor, calls, ON_GPU, "embed")
            time.sleep(0.01)
        assert executor.gpus == 3
        cluster.remove_node(first, allow_graceful=False)
        while len(executor._running) == 3:
            assert list(executor.ended()) == []
        gate.unlink()
        while len(seen) < 6:
            hand_over(executor, calls, ON_GPU, "embed")
            seen += [what for _, (_, what) in executor.ended()]
        assert len(told) == 1
        assert told[0].startswith(
            "the Ray cluster has no GPU yet; waiting for a node that has one"
        )
        assert (
            len({node for node, *_ in seen}) == 1
        )  # what was lost with the first node ran on the second


def finish(executor):
    while executor._running or executor._queue:
        list(executor.ended())


def end_process():
    os._exit(1)


def test_a_task_that_ends_its_process_at_every_try_is_named(cluster):
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    with executor_on(cluster) as executor:
        executor.submit(0, end_process, resources=ON_GPU, label="embed task 7")
        with pytest.raises(
            RunError, match="embed task 7: it was lost at every attempt"
        ):
            finish(executor)


class BrokenWorker:
    """Ends as a worker does where a package is missing."""

    def __init__(self):
        raise ImportError("no module named torch")

    def begin(self):
        """Never reached."""


def test_processes_that_never_start_end_the_run_with_the_reason(cluster, monkeypatch):
    monkeypatch.setattr("nextlong.engine.ray._gpu_worker", lambda run: BrokenWorker)
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    with executor_on(cluster) as executor:
        executor.submit(0, on_gpu, None, resources=ON_GPU, label="embed")
        with pytest.raises(
            RunError, match="a process for tasks on a GPU: it was lost at every attempt"
        ):
            finish(executor)


def slow_worker(run):
    """Return the class of a process that takes a while to start."""

    class Slow:
        def __init__(self):
            time.sleep(3)

        def begin(self):
            """Return once it runs."""

    Slow.run = staticmethod(run)
    return Slow


def test_a_node_with_eight_gpus_that_is_lost_while_its_processes_start_counts_once(
    cluster, monkeypatch
):
    monkeypatch.setattr("nextlong.engine.ray._gpu_worker", slow_worker)
    large = cluster.add_node(num_cpus=1, num_gpus=8)
    cluster.wait_for_nodes()
    with executor_on(cluster, retries=1) as executor:
        for key in range(3):
            executor.submit(key, on_gpu, None, resources=ON_GPU, label="embed")
        assert len(executor._actors) == 8
        # Each of them starts, and none has started.
        assert all(actor.begun is not None for actor in executor._actors)
        cluster.remove_node(large, allow_graceful=False)
        cluster.add_node(num_cpus=1, num_gpus=1)
        finished = []
        while executor._running or executor._queue:
            finished += [key for key, _ in executor.ended()]
    assert sorted(finished) == [0, 1, 2]
    assert len(executor._lost_nodes) == 1


def test_an_idle_gpu_is_given_back(cluster, monkeypatch):
    monkeypatch.setattr("nextlong.engine.ray._KEPT_IDLE_S", 0.0)
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    with executor_on(cluster) as executor:
        executor.submit(0, on_gpu, None, resources=ON_GPU, label="embed")
        finish(executor)
        assert executor._actors == []


def test_tasks_of_several_threads_are_bounded_where_processors_are_not_counted():
    step, work = Step("embed", 1, {}, (), list), Work([], threads=3)
    assert step.needs(work, SimpleNamespace(cpus=8, grows=False)) == Resources(
        cpus=3, at_once=2
    )
    assert step.needs(work, SimpleNamespace(cpus=8, grows=True)) == Resources(cpus=3)
