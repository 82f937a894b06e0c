"""Where tasks run: in this process, with one thread and the GPUs that they were given; what a step gets of an executor."""

import os
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from nextlong.engine.executor import (
    ONE_THREAD,
    Resources,
    SerialExecutor,
    call_with_gpus,
    environment,
    granted_gpus,
    one_thread,
)
from nextlong.engine.local import LocalExecutor
from nextlong.engine.step import Step, Work


def fail_after(call):
    call()
    raise ZeroDivisionError


def test_variables_are_as_before_whatever_happens_meanwhile(monkeypatch):
    monkeypatch.setenv("NEXTLONG_A", "before")
    monkeypatch.delenv("NEXTLONG_B", raising=False)
    meanwhile = {}
    with (
        pytest.raises(ZeroDivisionError),
        environment({"NEXTLONG_A": "1", "NEXTLONG_B": "2"}),
    ):
        fail_after(lambda: meanwhile.update(os.environ))
    assert (meanwhile["NEXTLONG_A"], meanwhile["NEXTLONG_B"]) == ("1", "2")
    assert os.environ["NEXTLONG_A"] == "before"
    assert "NEXTLONG_B" not in os.environ


def test_libraries_use_one_thread_meanwhile():
    def blas_threads():
        pools = threadpool_info()
        return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}

    with threadpool_limits(2):
        assert blas_threads() == {2}
        with one_thread():
            assert blas_threads() == {1}
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        assert blas_threads() == {2}


def test_a_task_has_its_gpus_while_it_runs_and_no_longer():
    assert call_with_gpus(
        (2,), lambda: (granted_gpus(), call_with_gpus((), granted_gpus), granted_gpus())
    ) == (
        (2,),
        (),
        (2,),
    )
    with pytest.raises(ZeroDivisionError):
        call_with_gpus((1,), lambda: 1 / 0)
    assert granted_gpus() == ()


def test_gpus_are_counted_when_a_step_uses_them_and_once():
    asked = []
    executor, work = (
        LocalExecutor(1, count_gpus=lambda: asked.append("") or 3),
        Work([]),
    )
    assert Step("a", 1, {}, (), list).needs(work, executor) == NOTHING
    assert asked == []
    on_gpu = Step("a", 1, {}, (), list, resources=Resources(gpu="optional"))
    assert (
        on_gpu.needs(work, executor)
        == on_gpu.needs(work, executor)
        == Resources(gpu="needed")
    )
    assert on_gpu.needs(Work([], gpu="unused"), executor) == NOTHING
    assert asked == [""]


@pytest.mark.parametrize(
    ("gpu", "grows", "given"),
    [
        ("optional", False, "unused"),
        ("optional", True, "unused"),
        ("needed", False, "unused"),
        ("needed", True, "needed"),
    ],
)
def test_a_cluster_is_waited_for_until_it_has_the_gpu_that_is_needed(gpu, grows, given):
    executor = SimpleNamespace(cpus=4, gpus=0, grows=grows)
    step = Step("a", 1, {}, (), list, resources=Resources(gpu=gpu))
    assert step.needs(Work([]), executor).gpu == given
    assert Step("a", 1, {}, (), list).needs(Work([], gpu=gpu), executor).gpu == given


NOTHING = Resources()


def test_one_task_runs_at_a_time_when_its_result_is_asked_for():
    done = []
    with SerialExecutor() as executor:
        assert executor.has_room(NOTHING)
        executor.submit(3, done.append, "a", resources=NOTHING, label="a")
        assert not executor.has_room(NOTHING)
        assert done == []
        assert list(executor.ended()) == [(3, None)]
        assert done == ["a"]
        assert executor.has_room(NOTHING)


def test_tasks_have_one_thread_and_no_gpu_and_the_environment_comes_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with SerialExecutor() as executor:
        executor.submit(
            0,
            lambda: (os.environ["OMP_NUM_THREADS"], granted_gpus()),
            resources=NOTHING,
            label="a",
        )
        assert list(executor.ended()) == [(0, (ONE_THREAD["OMP_NUM_THREADS"], ()))]
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_an_error_drops_what_waits():
    executor = SerialExecutor()

    def fail():
        executor.submit(0, lambda: None, resources=NOTHING, label="a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), executor:
        fail()
    assert executor.has_room(NOTHING)
