"""Costs: what each step of a run took, from its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from nextlong.engine.step import Done
from nextlong.runs.opened import Run


@dataclass(frozen=True)
class StepCost:
    """What a step of the run took: seconds, bytes on the disk, and the memory of its largest task where that was measured."""

    step: str
    seconds: float
    bytes: int
    peak_bytes: int | None


def step_costs(run: Run) -> tuple[StepCost, ...]:
    """Return what the steps of a run took, in the order of the route."""
    return tuple(_cost(name, done) for name, done in run.steps.items())


def _cost(name: str, done: Done) -> StepCost:
    manifest = done.manifest
    peaks = [part["peak_bytes"] for part in manifest["parts"] if part.get("peak_bytes") is not None]
    return StepCost(name, manifest["seconds"], manifest["bytes"], max(peaks, default=None))
