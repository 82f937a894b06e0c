"""Settings: what an evaluation measures, checked before anything is measured.

In:  the tasks, lengths, files and model that the user named. Out: the pairs of a task
and a length, or an error that names what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.probe import Probe, no_local_model
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.results import UNSHARDED, Shard
from nextlong.evaluate.task import Task


@dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluation measures.

    samples: at most so many per task, None for what its benchmark defines
    label, negatives_cosine: of the model, and of the run that it was trained on; for
        reports alone
    """

    tasks: Sequence[Task | Probe]
    lengths: Sequence[int]
    out: Path
    data: DataFiles
    model: ModelOptions
    samples: int | None = None
    seed: int = 42
    label: str | None = None
    run: Path | None = None
    negatives_cosine: float | None = None
    shard: Shard = UNSHARDED

    def pairs(self) -> list[tuple[Task | Probe, int | None]]:
        """Return the tasks with their lengths, short lengths first.

        Raises EvaluateError for a task defined at none of the lengths.
        """
        for task in self.tasks:
            if task.lengths and not set(task.lengths) & set(self.lengths):
                known_lengths = ", ".join(f"{length:,}" for length in task.lengths)
                raise EvaluateError(
                    where=task.name,
                    problem=f"its benchmark has only the lengths {known_lengths}",
                    fix="add one of them to --lengths, or leave the task out",
                )
        # Mistakes in the setup show after minutes rather than hours.
        pairs: list[tuple[Task | Probe, int | None]] = []
        for length in [*sorted(self.lengths), None]:
            at_length = [
                task for task in self.tasks if length in self._lengths_of(task)
            ]
            pairs.extend((task, length) for task in at_length)
        return pairs

    def _lengths_of(self, task: Task | Probe) -> Sequence[int | None]:
        if task.lengths is None:
            return [None]
        return task.lengths or self.lengths

    def has_published(self, task: Task | Probe, length: int | None) -> bool:
        """Return whether the data folder has the benchmark's own samples of a task."""
        file = task.published(length or 0)
        return file is not None and self.data.has(file)

    def missing_files(self, task: Task | Probe, length: int | None) -> list[str]:
        """Return the files that a task reads at a length and the data folder lacks."""
        if self.has_published(task, length):
            return []
        names = task.needs(length)
        return [name for name in names if not self.data.has(self.data.source(name))]


def check(settings: EvaluationSettings, *, context: int | None) -> None:
    """Raise EvaluateError where the settings cannot be measured.

    That is: a missing run, a probe of a model on a server, a length beyond the
    `context` of the model (None: unknown), or missing files, all of them in one error.
    """
    for task in settings.tasks:
        _check_task(task, settings)
    pairs = settings.pairs()
    for _, length in pairs:
        if context is not None and length is not None and length > context:
            raise EvaluateError(
                where=f"--lengths {length:,}",
                problem=f"the model's context is {context:,} tokens",
                fix="remove the length, or use a model with a longer context "
                "(--context sets another limit, at your own risk)",
            )

    missing: list[str] = []
    for task, length in pairs:
        missing += settings.missing_files(task, length)
    if missing:
        # Several tasks may read the same file.
        names = dict.fromkeys(missing)
        raise settings.data.missing(list(names))


def _check_task(task: Task | Probe, settings: EvaluationSettings) -> None:
    if task.reads == "run" and settings.run is None:
        raise EvaluateError(
            where=task.name,
            problem="it reads the sequences of a run",
            fix="add --run RUN",
        )
    if isinstance(task, Probe) and settings.model.url:
        raise no_local_model(task)
