"""Statistics: what the card of an export tells about a run in numbers, as a step of the run.

In:  a run whose record names its sequences. Out: `part-00000.statistics.json`, label → value in the order of the page.
Every sequence is read, so it is done once for a data set, by a worker, and kept with its hash as any other step's files are.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nextlong.engine import store
from nextlong.engine.step import Done, Step
from nextlong.export.steps import read_steps
from nextlong.results import StatisticsResult
from nextlong.runs import card_statistics, stats
from nextlong.runs.opened import Run

NAME = "statistics"
_SUFFIX = ".statistics.json"


def statistics_step(run: Run) -> Step:
    """Return the step that measures a run, whose record is written."""
    config = {"sequences": run.recipe.compose.sequences}
    return Step(
        NAME, 1, config, read_steps(run.steps), lambda _: [partial(measure_to, named=run.state.named)], StatisticsResult
    )


def measure_to(out: Path, *, named: str) -> StatisticsResult:
    """Measure the state of a run that `named` opens, and write `{out}.statistics.json`."""
    run = Run(named)
    store.write_json(out.with_name(f"{out.name}{_SUFFIX}"), card_statistics.statistics(stats.measure(run)))
    return StatisticsResult(sequences=len(run))


def read(done: Done) -> dict[str, str]:
    """Return what the step measured. Raises RunError for a file that is damaged."""
    told: dict[str, str] = store.read_json(done.file(_SUFFIX))
    return told
