import os

import pytest

from nextlong.engine.executor import ONE_THREAD, Resources, granted_gpus
from nextlong.engine.serial import SerialExecutor

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
        executor.submit(0, lambda: (os.environ["OMP_NUM_THREADS"], granted_gpus()), resources=NOTHING, label="a")
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
