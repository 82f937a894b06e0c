"""Schedule: how long steps take together, against figures worked out by hand."""

import pytest

from nextlong.report.plan.schedule import Load, schedule


def load(name, tasks, seconds, *needs, **more):
    return Load(name=name, needs=frozenset(needs), tasks=tasks, seconds=seconds, **more)


def test_tasks_share_the_workers_and_steps_wait_for_those_they_need():
    when = schedule([load("a", 4, 8.0), load("b", 1, 3.0, "a")], workers=2)
    assert when == {"a": (0.0, 4.0), "b": (4.0, 7.0)}


def test_a_step_that_waits_for_nothing_runs_beside_others():
    when = schedule([load("a", 1, 5.0), load("b", 3, 3.0)], workers=2)
    assert when == {"a": (0.0, 5.0), "b": (0.0, 3.0)}


def test_gpus_are_no_workers():
    when = schedule([load("a", 4, 8.0, on_gpus=True), load("b", 2, 2.0)], workers=1, gpus=2)
    assert when == {"a": (0.0, 4.0), "b": (0.0, 2.0)}


def test_no_more_at_once_than_a_step_allows():
    assert schedule([load("a", 4, 4.0, at_once=1)], workers=8)["a"] == (0.0, 4.0)


def test_each_worker_pays_the_start_once():
    assert schedule([load("a", 4, 4.0, start_s=2.0)], workers=2)["a"] == (0.0, 4.0)


def test_more_workers_than_the_head_can_serve_are_idle():
    when = schedule([load("a", 1000, 1.0)], workers=512, head_s=0.01)
    assert when["a"][1] == pytest.approx(10.0, rel=0.01)


def test_steps_without_work_end_at_once():
    assert schedule([load("a", 1, 0.0), load("b", 1, 0.0, "a")], workers=1) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}
