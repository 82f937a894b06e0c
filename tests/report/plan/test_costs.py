"""Costs: what follows from a trial and from declared rates, and how long steps take together, worked out by hand."""

import pytest

from nextlong.engine.step import Step
from nextlong.report.plan.amounts import Amounts, Estimate
from nextlong.report.plan.costs import (
    Cost,
    Machines,
    Rate,
    Trial,
    costs,
    schedule,
    total,
)

WHOLE = Amounts(chunks=10_000, shards=8)


def step(name, *inputs):
    return Step(name, 1, {}, inputs, lambda _: [])


def estimate(**declared):
    default = {"work": "chunks", "seconds": 1e-3, "disk": "chunks", "bytes": 5.0}
    return Estimate(**(default | declared))


def told(one, seconds=None, size=0, rates=None, machines=Machines(2)):  # noqa: B008
    """Return the cost of the step "a" with such an estimate; None: it did not run in the trial."""
    trial = Trial(
        Amounts(chunks=400),
        {} if seconds is None else {"a": seconds},
        {} if seconds is None else {"a": size},
    )
    given = {"estimates": {"a": one}, "machines": machines}
    return costs([step("a")], WHOLE, trial, rates or {}, **given)["a"]


def test_a_step_takes_as_much_a_unit_of_work_as_in_the_trial():
    cost = told(estimate(), 1.6, 5_000)
    assert (cost.start_s, cost.seconds) == (0.0, pytest.approx(1.6 / 400 * 10_000))
    assert cost.disk_bytes == pytest.approx(5_000 / 400 * 10_000)


def test_what_did_not_run_in_the_trial_is_taken_as_declared():
    cost = told(estimate())
    assert (cost.start_s, cost.seconds, cost.disk_bytes) == (
        0.0,
        pytest.approx(10.0),
        pytest.approx(50_000),
    )


def test_a_step_too_short_to_tell_takes_what_is_declared_but_no_more_than_was_seen():
    assert told(estimate(seconds=1e-6), 0.02).seconds == pytest.approx(0.01)
    assert told(estimate(seconds=1.0), 0.02).seconds == pytest.approx(0.5)
    assert told(estimate(seconds=0.0), 0.02).seconds == pytest.approx(
        0.5
    )  # declares nothing


def test_a_rate_measured_apart_beats_the_trial_and_may_be_unknown():
    one = estimate(rate="encoder")
    cost = told(one, 1, 1, {"encoder": Rate(0.5, start_s=lambda work: work / 1000)})
    assert (cost.seconds, cost.start_s) == (pytest.approx(5_000), pytest.approx(10))
    unknown = told(one, None, 0, {"encoder": Rate(None, "the endpoint's")})
    assert (unknown.seconds, unknown.unknown) == (None, "the endpoint's")


def test_one_task_keeps_one_worker_busy_and_shards_share():
    whole, shared = told(estimate()), told(estimate(tasks="shards"))

    def alone(cost, workers):
        return total([step("a")], {"a": cost}, Machines(workers, head_s=0.0)).seconds

    assert [alone(one, 4) for one in (whole, shared)] == [
        pytest.approx(10.0),
        pytest.approx(2.5),
    ]
    assert alone(shared, 64) == pytest.approx(10 / 8)
    odd = Cost(seconds=3.0, disk_bytes=0.0, start_s=1.0, tasks=3)  # two tasks, then one
    assert alone(odd, 2) == pytest.approx(1.0 + 2.0)


def test_a_step_whose_time_is_unknown_needs_its_memory():
    cost = Cost(seconds=None, disk_bytes=0.0, memory_bytes=5.0, tasks=3, unknown="why")
    alone = total([step("a")], {"a": cost}, Machines(2, head_s=0.0, process_bytes=1.0))
    assert (alone.seconds, alone.unknown, alone.memory_bytes) == (None, "why", 11.0)


def test_a_step_that_sizes_its_tasks_by_time_has_as_many_as_its_rate_says():
    one = estimate(rate="encoder", tasks=lambda _: 16, task_s=30.0)
    assert told(one, rates={"encoder": Rate(0.5)}).tasks == 167  # 5,000 s
    assert told(one, rates={"encoder": Rate(0.01)}).tasks == 16
    assert told(one, rates={"encoder": Rate(None, "the endpoint's")}).tasks == 16


def test_totals_add_disk_and_what_runs_at_once():
    first = step("a")
    second = step("b", first)
    estimates = {
        "a": estimate(memory=1e9, tasks="shards"),
        "b": estimate(memory=3e9),
    }
    machines = Machines(2, head_s=0.0, process_bytes=4e8)
    both = costs(
        [first, second],
        WHOLE,
        Trial(Amounts(), {}, {}),
        {},
        estimates=estimates,
        machines=machines,
    )
    whole = total([first, second], both, machines)
    assert whole.seconds == pytest.approx(5 + 10)
    assert whole.disk_bytes == pytest.approx(100_000)
    assert whole.memory_bytes == pytest.approx(4e8 + 3e9)


def test_the_start_of_workers_is_in_the_total_once_where_anything_is_to_do():
    one, machines = step("a"), Machines(2, head_s=0.0, start_s=3.0)
    cost = told(estimate(), machines=machines)
    assert total([one], {"a": cost}, machines).seconds == pytest.approx(13.0)
    assert total([one], {}, machines).seconds == 0.0


def scheduled(*named, workers, gpus=0, head_s=0.0):
    """Return when steps run; each is its name, tasks, seconds, the names of those it needs, and more of its cost."""
    steps, cost_of = {}, {}
    for name, tasks, seconds, *needs in named:
        more = needs.pop() if needs and isinstance(needs[-1], dict) else {}
        steps[name] = step(name, *(steps[one] for one in needs))
        cost_of[name] = Cost(seconds=seconds, tasks=tasks, disk_bytes=0.0, **more)
    return schedule(list(steps.values()), cost_of, Machines(workers, gpus, head_s))


def test_tasks_share_the_workers_and_steps_wait_for_those_they_need():
    when = scheduled(("a", 4, 8.0), ("b", 1, 3.0, "a"), workers=2)
    assert when == {"a": (0.0, 4.0), "b": (4.0, 7.0)}


def test_a_step_that_waits_for_nothing_runs_beside_others():
    assert scheduled(("a", 1, 5.0), ("b", 3, 3.0), workers=2) == {
        "a": (0.0, 5.0),
        "b": (0.0, 3.0),
    }


def test_gpus_are_no_workers():
    when = scheduled(("a", 4, 8.0, {"on_gpus": True}), ("b", 2, 2.0), workers=1, gpus=2)
    assert when == {"a": (0.0, 4.0), "b": (0.0, 2.0)}


def test_no_more_at_once_than_a_step_allows():
    assert scheduled(("a", 4, 4.0, {"at_once": 1}), workers=8)["a"] == (0.0, 4.0)


def test_each_worker_pays_the_start_once():
    assert scheduled(("a", 4, 4.0, {"start_s": 2.0}), workers=2)["a"] == (0.0, 4.0)


def test_more_workers_than_the_head_can_serve_are_idle():
    when = scheduled(("a", 1000, 1.0), workers=512, head_s=0.01)
    assert when["a"][1] == pytest.approx(10.0, rel=0.01)


def test_steps_without_work_end_at_once():
    assert scheduled(("a", 1, 0.0), ("b", 1, 0.0, "a"), workers=1) == {
        "a": (0.0, 0.0),
        "b": (0.0, 0.0),
    }
