"""Costs: what each step will take, from its estimate and from what it took in a trial.

In:  the `Amounts` of a corpus, an `Estimate` per step (`estimates.py`), and the trial.
Out: a `Cost` per step, and when each step runs on so many workers and GPUs. Times
assume that every worker is as fast as one core was in the trial.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from nextlong.engine.step import Step
from nextlong.report.plan.amounts import TRIED, Amounts, Estimate

WORKER_BYTES: Final = 130e6  # a worker with its libraries (bench/README.md)
# A step that takes less in a trial tells little: part of it is the same for any size.
_TELLING_SECONDS: Final = 0.03
# A task, assumed: handing it over and taking it back is 0.5 ms (docs/scale.md), the
# rest is its files.
HEAD_S: Final = 0.004
RAY_HEAD_S: Final = 0.01  # through Ray 3.6 ms


@dataclass(frozen=True)
class Trial:
    """How much there was to do in a trial, and what each step that finished took.

    `seconds` of the processor and `bytes` written are by step. `documents_share` is the
    number of documents of a sequence, over those that it would have if every chunk of
    the trial were as likely as any other.
    """

    amounts: Amounts
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    documents_share: float = 1.0


class Rate(NamedTuple):
    """Seconds per unit of work; None: not known, for the reason given.

    `start_s`: what a worker takes besides for so much.
    """

    seconds: float | None
    unknown: str = "not known"
    on_gpu: float | None = None
    start_s: Callable[[float], float] = lambda _: 0.0


class Machines(NamedTuple):
    """Worker processes and GPUs.

    `start_s` passes before the first task; handing a task over takes the head `head_s`;
    processes hold `process_bytes` beside tasks.
    """

    workers: int
    gpus: int = 0
    head_s: float = HEAD_S
    start_s: float = 0.0
    process_bytes: float = 0.0


class Total(NamedTuple):
    """What one step, or all, take on some machines.

    `seconds` is None where they are not known, for the reason given.
    """

    seconds: float | None
    disk_bytes: float
    memory_bytes: float
    gpu_seconds: float
    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step takes: `seconds` of one worker, or GPU, all tasks together.

    Each worker that takes part needs `start_s` more. `seconds` is None where they are
    unknown, for the reason given. `read_bytes` of its input files, `disk_bytes` are
    written; `memory_bytes` are those of one task, beyond what each worker holds.
    """

    seconds: float | None
    disk_bytes: float
    read_bytes: float = 0.0
    memory_bytes: float = 0.0
    start_s: float = 0.0
    tasks: int = 1
    on_gpus: bool = False
    at_once: int | None = None
    unknown: str = "not known"


def costs(
    steps: Sequence[Step],
    amounts: Amounts,
    trial: Trial,
    rates: Mapping[str, Rate],
    *,
    estimates: Mapping[str, Estimate],
    machines: Machines,
) -> dict[str, Cost]:
    """Return what each step will take.

    A step takes the rate that its estimate names where that is in `rates`, else as much
    per unit of work as in the trial.
    """
    cost_of: dict[str, Cost] = {}
    for step in steps:
        estimate = estimates[step.name]
        rate = rates.get(estimate.rate)
        if rate is None:
            unit_s = _tried_seconds(step.name, estimate, trial)
            rate = Rate(unit_s, unknown="", on_gpu=unit_s)
            # A declared task size needs a rate that was measured apart.
            estimate = replace(estimate, task_s=0.0)
        cost = _cost(
            step,
            estimate,
            amounts,
            rate,
            machines=machines,
        )
        # Without a declaration, a step reads all files of its inputs once.
        if estimate.reads is None:
            read_bytes = sum(cost_of[before.name].disk_bytes for before in step.inputs)
            cost = replace(cost, read_bytes=read_bytes)
        unit_bytes = _tried_bytes(step.name, estimate, trial)
        disk_bytes = unit_bytes * amounts.of(estimate.disk)
        cost_of[step.name] = replace(cost, disk_bytes=disk_bytes)
    return cost_of


def _cost(
    step: Step, estimate: Estimate, amounts: Amounts, rate: Rate, *, machines: Machines
) -> Cost:
    """Return what a step takes at a rate, without the bytes that it writes."""
    work = amounts.of(estimate.work)
    # A step that can use a GPU runs on GPUs wherever there are any.
    on_gpus = machines.gpus > 0 and step.resources.gpu != "unused"
    # A GPU has a rate of its own, measured or assumed.
    seconds = _times(rate.on_gpu if on_gpus else rate.seconds, work)
    tasks = round(amounts.of(estimate.tasks))
    tasks = max(1, tasks)
    start_s = 0.0
    if work:
        # A worker does its share of the work, or at least one task.
        start_s = rate.start_s(work / min(tasks, machines.workers))
    if estimate.task_s and seconds:
        tasks = max(tasks, math.ceil(seconds / estimate.task_s))
    read_bytes = 0.0
    if estimate.reads is not None:
        read_bytes = amounts.of(estimate.reads)
    return Cost(
        seconds=seconds,
        start_s=start_s,
        disk_bytes=0.0,
        read_bytes=read_bytes,
        memory_bytes=amounts.of(estimate.memory),
        tasks=tasks,
        on_gpus=on_gpus,
        at_once=step.resources.at_once,
        unknown=rate.unknown,
    )


def _times(unit_s: float | None, work: float) -> float | None:
    if not work:
        return 0.0
    return None if unit_s is None else unit_s * work


def _tried_seconds(step: str, estimate: Estimate, trial: Trial) -> float:
    """Return the seconds per unit of work: measured in the trial, else declared."""
    took = trial.seconds.get(step)
    tried_work = trial.amounts.of(estimate.work)
    if estimate.rate != TRIED or took is None or not tried_work:
        return estimate.seconds
    # A short trial is mostly start-up time, so it is only an upper bound.
    is_telling = took > _TELLING_SECONDS or not estimate.seconds
    if is_telling:
        return took / tried_work
    return min(took / tried_work, estimate.seconds)


def _tried_bytes(step: str, estimate: Estimate, trial: Trial) -> float:
    """Return the bytes written per unit: measured in the trial, else declared."""
    tried_disk = trial.amounts.of(estimate.disk)
    if not tried_disk or step not in trial.bytes:
        return estimate.bytes
    return trial.bytes[step] / tried_disk


def total(
    steps: Sequence[Step], cost_of: Mapping[str, Cost], machines: Machines
) -> Total:
    """Return what the steps in `cost_of` take together.

    Steps that need not wait for each other run side by side.
    """
    when = schedule(steps, cost_of, machines)
    all_costs = list(cost_of.values())
    on_gpus = [cost.seconds or 0.0 for cost in all_costs if cost.on_gpus]
    taken = Total(
        seconds=0.0,
        disk_bytes=sum(cost.disk_bytes for cost in all_costs),
        memory_bytes=machines.process_bytes + _peak_memory(cost_of, when, machines),
        gpu_seconds=sum(on_gpus),
    )
    # One unknown time makes that of all unknown, for the first reason.
    for cost in all_costs:
        if cost.seconds is None:
            return taken._replace(seconds=None, unknown=cost.unknown)
    if when:
        end = max(end for _, end in when.values())
        taken = taken._replace(seconds=machines.start_s + end)
    return taken


def _peak_memory(
    cost_of: Mapping[str, Cost],
    when: Mapping[str, tuple[float, float]],
    machines: Machines,
) -> float:
    """Return the most memory that tasks hold at once."""
    memory = {}  # of the tasks of a step that run at once
    for name, cost in cost_of.items():
        slots = machines.gpus if cost.on_gpus else machines.workers
        at_once = min(cost.tasks, slots, cost.at_once or slots)
        memory[name] = cost.memory_bytes * max(1, at_once)
    # A step whose time is unknown takes none in `when`, but its memory counts.
    # Memory grows only where a step begins, so the peak is at one of the beginnings.
    peaks = [0.0, *memory.values()]
    for begin, _ in when.values():
        running = [name for name, (low, high) in when.items() if low <= begin < high]
        peaks.append(sum(memory[name] for name in running))
    return max(peaks)


def schedule(
    steps: Sequence[Step], cost_of: Mapping[str, Cost], machines: Machines
) -> dict[str, tuple[float, float]]:
    """Return (begin, end) of each step in `cost_of`, in seconds.

    As the runner does it: a step starts when the steps that it needs are done; what is
    free takes the next task, those of the first step first. Handing tasks over takes
    the head a moment each, one after the other, and that is what ends scaling at last.
    """
    # Of each step that has not started: the names of the steps that it needs.
    waiting: dict[str, set[str]] = {}
    for step in steps:
        if step.name in cost_of:
            needs = {before.name for before in step.inputs}
            waiting[step.name] = needs & cost_of.keys()
    timeline = _Timeline(cost_of, machines)
    begins: dict[str, float] = {}
    ended: dict[str, tuple[float, float]] = {}
    now = 0.0
    while waiting or begins:
        ready = [name for name, needs in waiting.items() if needs <= ended.keys()]
        for name in ready:
            del waiting[name]
            begins[name] = now
        for name in begins:
            timeline.start_tasks(name, now)
        assert timeline.ends, f"no worker or GPU for {', '.join(begins)}"
        now, name = timeline.end_task()
        if timeline.is_done(name):
            ended[name] = (begins.pop(name), now)
    return ended


class _Timeline:
    """The tasks that run, and what is free, while time goes on.

    `running` and `begun` count the tasks of each step. `ends` is a heap of (end of a
    task, its number, its step).
    """

    def __init__(self, cost_of: Mapping[str, Cost], machines: Machines) -> None:
        self._cost_of = cost_of
        self._machines = machines
        self._running = dict.fromkeys(cost_of, 0)
        self._begun = dict.fromkeys(cost_of, 0)
        self._free = {False: machines.workers, True: machines.gpus}  # by `on_gpus`
        self._head_free_at = 0.0
        self.ends: list[tuple[float, int, str]] = []

    def start_tasks(self, name: str, now: float) -> None:
        """Start as many tasks of a step as there is room for."""
        cost = self._cost_of[name]
        max_running = cost.at_once or cost.tasks
        while (
            self._begun[name] < cost.tasks
            and self._free[cost.on_gpus]
            and self._running[name] < max_running
        ):
            self._head_free_at = max(self._head_free_at, now) + self._machines.head_s
            task_s = (cost.seconds or 0.0) / cost.tasks
            # The first task of a worker takes the start as well.
            if self._begun[name] < self._machines.workers:
                task_s += cost.start_s
            # Of tasks that end at the same time, the one that began first comes first.
            number = sum(self._begun.values())
            heapq.heappush(self.ends, (self._head_free_at + task_s, number, name))
            self._running[name] += 1
            self._begun[name] += 1
            self._free[cost.on_gpus] -= 1

    def end_task(self) -> tuple[float, str]:
        """End the task that ends first; return when that is, and its step."""
        end, _, name = heapq.heappop(self.ends)
        self._running[name] -= 1
        self._free[self._cost_of[name].on_gpus] += 1
        return end, name

    def is_done(self, name: str) -> bool:
        """Return whether all tasks of a step have ended."""
        is_begun = self._begun[name] == self._cost_of[name].tasks
        return is_begun and not self._running[name]
