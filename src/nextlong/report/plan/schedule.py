"""Schedule: when each step of a route begins and ends on so many workers and GPUs.

In:  the steps, each with its tasks and the time that they take. Out: begin and end of each, in seconds.

As the runner does it: a step starts when the steps that it needs are done; what is free takes the next task, those of the first
step first; handing tasks over takes the head a moment each, one after the other, and that is what ends scaling at last.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Load:
    """A step: `seconds` of one worker, all of its `tasks` together, and `start_s` more for each worker that takes part."""

    name: str
    needs: frozenset[str]
    tasks: int
    seconds: float
    start_s: float = 0.0
    on_gpus: bool = False
    at_once: int | None = None


@dataclass
class _Step:
    load: Load
    left: int
    running: int = 0
    begun: int = 0
    begin: float = 0.0


def schedule(
    loads: Sequence[Load], *, workers: int, gpus: int = 0, head_s: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Return (begin, end) of each step, in seconds; `head_s` is what the head takes for a task."""
    waiting, running = list(loads), dict[str, _Step]()
    ended: dict[str, tuple[float, float]] = {}
    free = {False: workers, True: gpus}
    now = head = 0.0
    events: list[tuple[float, int, str]] = []  # end of a task, its number, its step
    number = 0
    while waiting or running:
        for load in [load for load in waiting if load.needs <= ended.keys()]:
            waiting.remove(load)
            running[load.name] = _Step(load, load.tasks, begin=now)
        for step in running.values():
            load = step.load
            most = load.at_once or workers + gpus
            while step.left and free[load.on_gpus] and step.running < most:
                head = max(head, now) + head_s
                taken = load.seconds / load.tasks + (load.start_s if step.begun < workers else 0.0)
                heapq.heappush(events, (head + taken, number, load.name))
                number += 1
                step.left, step.running, step.begun = step.left - 1, step.running + 1, step.begun + 1
                free[load.on_gpus] -= 1
        assert events, f"no worker or GPU for {', '.join(running)}"
        now, _, name = heapq.heappop(events)
        step = running[name]
        step.running -= 1
        free[step.load.on_gpus] += 1
        if not step.left and not step.running:
            ended[name] = (step.begin, now)
            del running[name]
    return ended
