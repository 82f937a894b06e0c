"""Costs: what follows from two samples and from declared rates, worked out by hand."""

import pytest

from nextlong.engine.estimate import Amounts, Estimate, per_shard
from nextlong.engine.step import Step
from nextlong.report.plan.costs import Machines, Rate, Sample, costs, line, total
from nextlong.report.plan.trial import Tried

SMALL, LARGE = Amounts(chunks=100), Amounts(chunks=400)
WHOLE = Amounts(chunks=10_000, shards=8)


def step(name, *inputs, **estimate):
    given = {
        "work": lambda amounts: amounts.chunks,
        "seconds": 1e-3,
        "disk": lambda amounts: amounts.chunks,
        "bytes": 5.0,
    }
    return Step(name, 1, {}, inputs, lambda _: [], estimate=Estimate(**{**given, **estimate}))


def told(one, small, large, rates=None, machines=Machines(2)):  # noqa: B008
    samples = (Sample(SMALL, {one.name: small} if small else {}), Sample(LARGE, {one.name: large} if large else {}))
    return costs([one], WHOLE, samples, rates or {}, machines=machines)[one.name]


def test_start_and_slope_come_from_the_two_samples():
    cost = told(step("a"), Tried(1.0, 2_000), Tried(1.6, 5_000))
    assert (cost.start_s, cost.seconds) == (pytest.approx(0.8), pytest.approx(20.0))
    assert cost.disk_bytes == pytest.approx(1_000 + 10 * 10_000)


def test_what_did_not_run_on_a_sample_is_taken_as_declared():
    cost = told(step("a"), None, None)
    assert (cost.start_s, cost.seconds, cost.disk_bytes) == (0.0, pytest.approx(10.0), pytest.approx(50_000))


def test_a_difference_too_small_to_tell_leaves_the_declared_rate_but_no_more_than_was_seen():
    assert line([(100, 0.001), (400, 0.001)], declared=1e-9, telling=0.01) == (pytest.approx(0.001, rel=1e-3), 1e-9)
    start, slope = line([(100, 0.001), (400, 0.002)], declared=1.0, telling=0.01)
    assert (start, slope) == (pytest.approx(0), pytest.approx(0.002 / 400))


def test_a_rate_measured_apart_beats_the_samples_and_may_be_unknown():
    one = step("a", rate="encoder")
    assert told(one, Tried(1, 1), Tried(2, 2), {"encoder": Rate(0.5)}).seconds == pytest.approx(5_000)
    unknown = told(one, None, None, {"encoder": Rate(None, "the endpoint's")})
    assert (unknown.seconds, unknown.unknown) == (None, "the endpoint's")


def test_one_task_keeps_one_worker_busy_and_shards_share():
    whole, shared = told(step("a"), None, None), told(step("a", tasks=per_shard), None, None)
    assert (whole.wall(Machines(4)), shared.wall(Machines(4))) == (pytest.approx(10.0), pytest.approx(2.5))
    assert shared.wall(Machines(64)) == pytest.approx(10 / 8)


def test_a_step_that_sizes_its_tasks_by_time_has_as_many_as_its_rate_says():
    one = step("a", rate="encoder", tasks=lambda _: 16, task_s=30.0)
    assert told(one, None, None, {"encoder": Rate(0.5)}).tasks == 167  # 5,000 s
    assert told(one, None, None, {"encoder": Rate(0.01)}).tasks == 16
    assert told(one, None, None, {"encoder": Rate(None, "the endpoint's")}).tasks == 16


def test_totals_add_disk_and_what_runs_at_once():
    first = step("a", memory=lambda _: 1e9, tasks=per_shard)
    second = step("b", first, memory=lambda _: 3e9)
    machines = Machines(2, head_s=0.0)
    both = costs([first, second], WHOLE, (Sample(SMALL, {}), Sample(LARGE, {})), {}, machines=machines)
    whole = total([first, second], both, machines)
    assert whole.seconds == pytest.approx(5 + 10)
    assert whole.disk_bytes == pytest.approx(100_000)
    assert whole.memory_bytes == pytest.approx(130e6 * 3 + 3e9)


def test_the_start_of_workers_is_in_the_total_once_where_anything_is_to_do():
    one, machines = step("a"), Machines(2, head_s=0.0, start_s=3.0)
    cost = told(one, None, None, machines=machines)
    assert total([one], {"a": cost}, machines).seconds == pytest.approx(13.0)
    assert total([one], {}, machines).seconds == 0.0
