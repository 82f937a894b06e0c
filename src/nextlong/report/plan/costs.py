"""Costs: what each step will take, from what it declares, what it took on a sample, and how much there is to do.

In:  steps with their estimates, the `Amounts` of the corpus and of two trials, rates that were measured apart.
Out: a `Cost` a step; and what all of them take together, on so many workers and GPUs.

A step takes `start_s` on each worker that takes part (what it took on a sample however small) and `seconds` of one worker in
all. Times assume that every worker is as fast as one core was on the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nextlong.engine.estimate import TRIED, Amount, Amounts, Estimate
from nextlong.engine.executor import Capacity
from nextlong.engine.step import Step
from nextlong.report.plan.schedule import Load, schedule
from nextlong.report.plan.trial import Tried

_WORKER_BYTES = 130e6  # a worker with its libraries, measured (bench/README.md)
_TELLING_SECONDS = 0.01  # by which a larger sample must take longer, for the difference to say anything
_TELLING_GROWTH = 1.3
HEAD_S = 0.004  # a task, assumed: handing it over and taking it back is 0.5 ms (docs/scale.md), the rest is its files
RAY_HEAD_S = 0.01  # through Ray 3.6 ms


class Rate(NamedTuple):
    """Seconds a unit of work, on a processor or on a GPU; None: not known, for the reason given.

    `start_s` says what a worker that does so much of it takes besides.
    """

    seconds: float | None
    unknown: str = "not known"
    on_gpu: float | None = None
    start_s: Callable[[float], float] = lambda _: 0.0


@dataclass(frozen=True)
class Sample:
    """How much there was to do in a trial, and what each step took."""

    amounts: Amounts
    steps: Mapping[str, Tried]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step takes: `seconds` of one worker, or GPU, all tasks together; None: unknown, for the reason given."""

    seconds: float | None
    disk_bytes: float
    memory_bytes: float = 0.0  # of one task, beyond what each worker holds
    start_s: float = 0.0
    tasks: int = 1
    on_gpus: bool = False
    at_once: int | None = None
    unknown: str = "not known"

    def parallel_tasks(self, machines: Machines) -> int:
        """Return how many of its tasks run at once."""
        most = machines.gpus if self.on_gpus else machines.workers
        return max(1, min(self.tasks, most, self.at_once or most))

    def wall(self, machines: Machines) -> float | None:
        """Return its seconds by itself."""
        if self.seconds is None:
            return None
        return self.start_s + self.seconds * math.ceil(self.tasks / self.parallel_tasks(machines)) / self.tasks


class Machines(NamedTuple):
    """What a plan is for: so many worker processes, and GPUs, in all; `start_s` passes before the first task."""

    workers: int
    gpus: int = 0
    head_s: float = HEAD_S
    start_s: float = 0.0


class Total(NamedTuple):
    """What all steps take; seconds None: a step's are unknown, for the reason given."""

    seconds: float | None
    disk_bytes: float
    memory_bytes: float
    gpu_seconds: float
    unknown: str = ""


def costs(
    steps: Sequence[Step],
    amounts: Amounts,
    samples: tuple[Sample, Sample],
    rates: Mapping[str, Rate],
    *,
    machines: Machines,
    earlier: Mapping[str, float] | None = None,
    to_do: Mapping[str, float] | None = None,
) -> dict[str, Cost]:
    """Return what each step will take; `earlier` (seconds a unit of work, by step, in this run directory) beats the samples.

    `to_do` is the share of a step's work that is left, where earlier runs did some of it.
    """
    capacity = Capacity(cpus=machines.workers, count_gpus=lambda: machines.gpus)
    cost_of = {}
    for step in steps:
        estimate, resources = step.estimate, step.resources(capacity)
        on_gpus = resources.gpus > 0
        rate = rates.get(estimate.rate)
        work = estimate.work(amounts) * (to_do or {}).get(step.name, 1.0)
        tasks = max(1, round(estimate.tasks(amounts)))
        if rate is not None:
            if estimate.task_s and (all_s := _seconds(rate, work, on_gpus=on_gpus)):
                tasks = max(tasks, math.ceil(all_s / estimate.task_s))
            start_s, seconds = _by_rate(rate, work, min(tasks, machines.workers), on_gpus=on_gpus)
        else:
            start_s, seconds = _tried(step.name, estimate, amounts, samples)
        if earlier and step.name in earlier:
            seconds = earlier[step.name] * work
        cost_of[step.name] = Cost(
            seconds=seconds,
            start_s=start_s,
            disk_bytes=_disk_bytes(step.name, estimate, amounts, samples),
            memory_bytes=estimate.memory(amounts),
            tasks=tasks,
            on_gpus=on_gpus,
            at_once=resources.at_once,
            unknown=rate.unknown if rate is not None else "",
        )
    return cost_of


def total(steps: Sequence[Step], cost_of: Mapping[str, Cost], machines: Machines) -> Total:
    """Return what the steps in `told` take together, of which those run side by side that need not wait for each other."""
    unknown = [cost.unknown for cost in cost_of.values() if cost.seconds is None]
    when = schedule(loads(steps, cost_of), workers=machines.workers, gpus=machines.gpus, head_s=machines.head_s)
    at_once = {name: cost.memory_bytes * cost.parallel_tasks(machines) for name, cost in cost_of.items()}
    peak = max(
        (sum(at_once[name] for name, (low, high) in when.items() if low <= begin < high) for begin, _ in when.values()),
        default=0.0,
    )
    return Total(
        seconds=None
        if unknown
        else machines.start_s * bool(when) + max((end for _, end in when.values()), default=0.0),
        disk_bytes=sum(cost.disk_bytes for cost in cost_of.values()),
        memory_bytes=_WORKER_BYTES * (machines.workers + 1) + peak,
        gpu_seconds=sum(cost.seconds or 0.0 for cost in cost_of.values() if cost.on_gpus),
        unknown=unknown[0] if unknown else "",
    )


def loads(steps: Sequence[Step], cost_of: Mapping[str, Cost]) -> list[Load]:
    """Return the steps that are to do as the schedule wants them."""
    return [
        Load(
            name=step.name,
            needs=frozenset(before.name for before in step.inputs if before.name in cost_of),
            tasks=cost.tasks,
            seconds=cost.seconds or 0.0,
            start_s=cost.start_s,
            on_gpus=cost.on_gpus,
            at_once=cost.at_once,
        )
        for step in steps
        if (cost := cost_of.get(step.name)) is not None
    ]


def memory_of(cost: Cost, machines: Machines) -> float:
    """Return the bytes that a step holds, with the workers themselves."""
    return _WORKER_BYTES * (machines.workers + 1) + cost.memory_bytes * cost.parallel_tasks(machines)


def _by_rate(rate: Rate, work: float, parallel_tasks: int, *, on_gpus: bool) -> tuple[float, float | None]:
    """Return what a step takes on each worker to begin with, and in all, at a rate that was measured apart."""
    if not work:
        return 0.0, 0.0
    return rate.start_s(work / parallel_tasks), _seconds(rate, work, on_gpus=on_gpus)


def _seconds(rate: Rate, work: float, *, on_gpus: bool) -> float | None:
    unit = rate.on_gpu if on_gpus else rate.seconds
    return None if unit is None else unit * work


def _tried(name: str, estimate: Estimate, amounts: Amounts, samples: tuple[Sample, Sample]) -> tuple[float, float]:
    """Return the same from what it took on the samples."""
    work = estimate.work(amounts)
    if estimate.rate != TRIED or any(name not in sample.steps for sample in samples):
        return 0.0, estimate.seconds * work
    points = [(estimate.work(sample.amounts), sample.steps[name].seconds) for sample in samples]
    start_s, unit = line(points, declared=estimate.seconds, telling=_TELLING_SECONDS)
    return start_s, unit * work


def _disk_bytes(name: str, estimate: Estimate, amounts: Amounts, samples: tuple[Sample, Sample]) -> float:
    units = estimate.disk(amounts)
    if any(name not in sample.steps for sample in samples) or not _grows(estimate.disk, samples):
        return estimate.bytes * units
    points = [(estimate.disk(sample.amounts), sample.steps[name].bytes) for sample in samples]
    start, unit = line(points, declared=estimate.bytes, telling=1.0)
    return start + unit * units


def _grows(amount: Amount, samples: tuple[Sample, Sample]) -> bool:
    return amount(samples[1].amounts) > 0


def line(points: Sequence[tuple[float, float]], *, declared: float, telling: float) -> tuple[float, float]:
    """Return the start and the slope of a line through two points (amount, taken), neither below 0.

    Where they are too near each other to tell, the slope is the declared one, or what the second takes a unit where that is less.
    """
    (less, taken_less), (more, taken_more) = points
    if more > _TELLING_GROWTH * less and taken_more - taken_less > telling:
        slope = min((taken_more - taken_less) / (more - less), taken_more / more)
    else:
        slope = min(declared, taken_more / more) if more and declared else taken_more / more if more else declared
    return max(0.0, taken_more - slope * more), slope
