"""Ray: two nodes of one cluster on this machine write the bytes of `local`; nodes, workers and the head may be lost."""

import os
import threading
import time

import pytest

from nextlong import pipeline
from nextlong.engine.executor import Resources
from nextlong.errors import CorpusError, RunError

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def ray_python_path():
    """Workers of a cluster are started by its nodes: they import this checkout and the tests' own modules."""
    before = os.environ.get("PYTHONPATH")
    here = os.path.dirname(__file__)  # noqa: PTH120
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, before]))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def cluster(ray_python_path):
    """Two raylets of one processor each, beside a head that runs no task."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    nodes = [
        cluster.add_node(num_cpus=1, resources={f"node{number}": 1})
        for number in range(2)
    ]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()


def ray_recipe(recipe_for, run_dir, cluster, *overrides):
    return recipe_for(
        run_dir, "executor=ray", f"ray.address={cluster.address}", *overrides
    )


def test_a_cluster_writes_the_same_bytes(
    cluster, recipe_for, shared_run, hashes_of, tmp_path
):
    pipeline.run(ray_recipe(recipe_for, tmp_path / "run", cluster[0]))
    assert hashes_of(tmp_path / "run") == hashes_of(shared_run)


@pytest.mark.parametrize("step", ["embed", "mine", "compose"])
def test_a_node_that_vanishes_costs_its_tasks_only(
    cluster, recipe_for, shared_run, hashes_of, tmp_path, step
):
    own, nodes = cluster
    run_dir = tmp_path / "run"

    def take_away():
        while not list(run_dir.glob(f"[0-9][0-9]-{step}-*")):
            time.sleep(0.005)
        own.remove_node(nodes[1], allow_graceful=False)

    thief = threading.Thread(target=take_away)
    thief.start()
    pipeline.run(ray_recipe(recipe_for, run_dir, own))
    thief.join()
    assert hashes_of(run_dir) == hashes_of(shared_run)


def test_the_next_run_goes_on_where_a_cluster_ended(
    cluster, recipe_for, shared_run, hashes_of, tmp_path
):
    run_dir = tmp_path / "run"
    with pipeline.session(ray_recipe(recipe_for, run_dir, cluster[0])) as session:
        session.run_before("mine")
    cluster[0].shutdown()
    (embedded,) = run_dir.glob("*-embed-*/manifest.json")
    before = embedded.stat().st_mtime_ns
    pipeline.run(recipe_for(run_dir))
    assert (hashes_of(run_dir), embedded.stat().st_mtime_ns) == (
        hashes_of(shared_run),
        before,
    )


@pytest.fixture
def executor(ray_python_path):
    pytest.importorskip("ray")
    from nextlong.engine.ray import RayExecutor

    with RayExecutor(None, workers=1, retries=1, tell=print) as executor:
        yield executor


def test_a_users_error_arrives_as_it_was_raised_and_a_lost_worker_is_named(executor):
    def refuse():  # a function of a function travels whole, whatever the workers can import
        raise CorpusError(where="a.jsonl", problem="no text at all", fix="add some")

    executor.submit(3, refuse, resources=Resources(), label="ingest task 0")
    with pytest.raises(CorpusError, match=r"^a\.jsonl: no text at all; add some$"):
        list(executor.ended())
    executor.submit(4, os._exit, 1, resources=Resources(), label="embed task 7")
    assert list(executor.ended()) == []  # it is started again
    with pytest.raises(RunError, match="embed task 7: it was lost at every attempt"):
        list(executor.ended())


def test_no_cluster_at_the_address(recipe_for, tmp_path, ray_python_path):
    pytest.importorskip("ray")
    with pytest.raises(
        RunError, match=r"ray\.address=127\.0\.0\.1:1 cannot be used: no Ray cluster"
    ):
        pipeline.run(
            recipe_for(tmp_path / "run", "executor=ray", "ray.address=127.0.0.1:1")
        )
