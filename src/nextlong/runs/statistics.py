"""Statistics: what the card of an export tells about a run, and what its end warns of, as a step of the run.

In:  a run whose record names its sequences. Out: `part-00000.statistics.json`: numbers, label → value, and warnings.
Every sequence is read, so it is done once for a data set, by a worker, and kept with its hash as any other step's files are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nextlong.engine import store
from nextlong.engine.step import Done, Step
from nextlong.export.steps import read_steps
from nextlong.results import StatisticsResult
from nextlong.runs import card_statistics, stats
from nextlong.runs.opened import Run
from nextlong.runs.warnings import Warned

NAME = "statistics"
_SUFFIX = ".statistics.json"


class Measured(NamedTuple):
    """What was measured once for a data set: numbers, label → value in the order of the page, and what looks poor."""

    numbers: Mapping[str, str] = {}
    warnings: Sequence[Warned] = ()


def statistics_step(run: Run) -> Step:
    """Return the step that measures a run, whose record is written."""
    config = {"sequences": run.recipe.compose.sequences}
    tasks = [partial(measure_to, named=run.variant.named)]
    return Step(NAME, 5, config, read_steps(run.steps), lambda _: tasks, StatisticsResult)


def measure_to(out: Path, *, named: str) -> StatisticsResult:
    """Measure the variant of a run that `named` opens, and write `{out}.statistics.json`."""
    run = Run(named)
    measured = stats.measure(run)
    record = {"numbers": card_statistics.statistics(measured), "warnings": list(map(asdict, measured.warnings))}
    store.write_json(out.with_name(f"{out.name}{_SUFFIX}"), record)
    return StatisticsResult(sequences=len(run), warnings=len(measured.warnings))


def read(done: Done) -> Measured:
    """Return what the step measured. Raises RunError for a file that is damaged."""
    record = store.read_json(done.file(_SUFFIX))
    return Measured(record["numbers"], [Warned(**warned) for warned in record["warnings"]])
