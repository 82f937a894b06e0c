"""Measure: the statistics of a run, computed once for a data set and kept as JSON.

In:  a finished run. Out: `Stats`. The step `statistics` computes them and writes its
file; `measure` reads that file where it exists.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from nextlong.engine import store
from nextlong.engine.step import Artifacts, OnlyFile, Step, StepFiles, TaskResult
from nextlong.errors import RunError
from nextlong.export.steps import read_steps
from nextlong.runs.run import Run
from nextlong.runs.statistics.compute import compute
from nextlong.runs.statistics.measures import step_costs
from nextlong.runs.statistics.stats import Stats
from nextlong.text import first_mistake

STATISTICS: Final = "statistics"  # the step


class StatisticsFiles(StepFiles):
    """The statistics of the run."""

    step = STATISTICS
    statistics = OnlyFile(".statistics.json")


def measure(run: Run) -> Stats:
    """Return the statistics of a finished run.

    They are read from its step `statistics` if there is one, else computed now.
    """
    stats = read(run.steps) or compute(run)
    # Statistics are kept without the name and the costs of the run, so that those of
    # the same sequences are the same in any run directory.
    warnings = tuple(warning.for_run(str(run)) for warning in stats.warnings)
    return replace(stats, run=str(run), steps=step_costs(run), warnings=warnings)


def statistics_step(run: Run) -> Step:
    """Return the step that measures a run whose variant is recorded."""
    tasks = [partial(_measure_to, named=run.variant.named)]
    inputs = list(read_steps(run.steps))
    if "embed" in run.steps:
        inputs.append(Step.of(run.steps["embed"]))
    return Step(
        name=STATISTICS,
        phase="measure",
        version=18,
        config={"sequences": run.recipe.compose.sequences},
        inputs=tuple(inputs),
        tasks=lambda _: tasks,
    )


def _measure_to(out: Path, *, named: str) -> TaskResult:
    """Write the statistics of the variant that `named` opens, beside `out`."""
    stats = compute(Run(named))
    suffix = StatisticsFiles.statistics.suffix
    store.write_json(out.with_name(f"{out.name}{suffix}"), asdict(stats))
    return TaskResult()


# Building the adapter takes 40 ms.
@cache
def _adapter() -> TypeAdapter[Stats]:
    return TypeAdapter(Stats)


def read(done: Artifacts) -> Stats | None:
    """Return what the step `statistics` measured, None if it has not run.

    Raises RunError for a damaged file.
    """
    if STATISTICS not in done:
        return None
    path = StatisticsFiles.of(done).statistics
    try:
        return _adapter().validate_python(store.read_json(path))
    except ValidationError as error:
        raise RunError(
            where=path,
            problem=f"it is not what the step {STATISTICS} writes: "
            f"{first_mistake(error)}",
            fix="run again",
        ) from None
