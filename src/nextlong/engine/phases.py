"""Phases: show how far a run is, with one line for each phase.

In:  the steps of a route, each of which declares its phase, and what the runner says
     about them. Out: a bar (terminal) or a line every 30 seconds (log) while a phase
     runs, and one line when it has ended: its time and its outcome.

Steps of several phases overlap. Lines are printed in the order of the phases, so a
phase that ends early waits for the earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nextlong.engine.progress import Advance, CountColumn, LeftColumn, Lines, Reporter
from nextlong.engine.step import Artifact, Step
from nextlong.text import HANGING, wrapped

# What a finished step says about its phase, by step; the first that has run is asked.
Outcomes = Mapping[str, Callable[[Artifact], str]]


class _Phase:
    """The steps of one phase: which are unfinished, and how many of their tasks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_told = True
        self._begin()

    def _begin(self) -> None:
        self.steps: set[str] = set()  # announced since it began
        self.unfinished: set[str] = set()
        self.finished_tasks = 0
        self.seconds = 0.0
        self._tasks: dict[str, int] = {}  # of each step that is not reused
        self._started: set[str] = set()
        self._running = 0
        self._started_s = 0.0

    @property
    def tasks(self) -> int:
        """The tasks of all steps, as far as they are known."""
        return sum(self._tasks.values())

    @property
    def has_run(self) -> bool:
        """Whether a step has run; False if all were reused."""
        return bool(self._started)

    def announce(self, step: str) -> None:
        """Add a step; the first one after the phase was told begins it anew."""
        if self.is_told:
            self._begin()
        self.is_told = False
        self.steps.add(step)
        self.unfinished.add(step)
        # Until its tasks are known.
        self._tasks[step] = 1

    def finish(self, step: str) -> None:
        """Record that a step has run or is reused."""
        self.unfinished.discard(step)
        if step not in self._started:
            del self._tasks[step]

    @contextmanager
    def running(self, step: str, *, done: int, total: int) -> Iterator[None]:
        """Measure the time in which at least one step of the phase runs."""
        self._tasks[step] = total
        self._started.add(step)
        self.finished_tasks += done
        if self._running == 0:
            self._started_s = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self.seconds += time.monotonic() - self._started_s


class PhaseLines(Lines):
    """Print plain lines for a log.

    One when a phase ends, and one every 30 seconds for each step that runs.
    """

    def __init__(self, console: Console, outcomes: Mapping[str, Outcomes]) -> None:
        super().__init__(console)
        self._outcomes = outcomes
        self._phases = {name: _Phase(name) for name in outcomes}
        self._phase_of: dict[str, _Phase] = {}  # by step
        self._done: dict[str, Artifact] = {}

    @contextmanager
    def route(self, steps: Sequence[Step]) -> Iterator[None]:
        for step in steps:
            # The steps of a plug-in may have no phase.
            name = step.phase or step.name
            phase = self._phases.setdefault(name, _Phase(name))
            phase.announce(step.name)
            self._phase_of[step.name] = phase
        yield

    def kept(self, labels: Sequence[str]) -> None:
        """Show nothing; the line of a phase tells if all of it is reused."""

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        phase = self._phase_of[label]
        with phase.running(label, done=done, total=total):
            title = f"{phase.name}: {label}"
            with self._timed(title, done=done, total=total) as clock:
                yield clock.advance

    def finished(self, step: Step, done: Artifact) -> None:
        self._done[step.name] = done
        self._phase_of[step.name].finish(step.name)
        for phase in self._phases.values():
            if phase.unfinished:
                return
            if not phase.is_told:
                phase.is_told = True
                self._tell_ended(phase)

    def _tell_ended(self, phase: _Phase) -> None:
        """Print the line of a phase whose steps are all finished."""
        spent = f"done in {phase.seconds:.1f} s" if phase.has_run else "reused"
        parts = filter(None, (spent, self._outcome(phase)))
        self._print(f"{phase.name}: {'; '.join(parts)}")

    def _outcome(self, phase: _Phase) -> str:
        for step, outcome in self._outcomes.get(phase.name, {}).items():
            # Others may be of an earlier variant of a sweep.
            if step in self._done and step in phase.steps:
                return outcome(self._done[step])
        return ""


class PhaseBars(PhaseLines):
    """Show one live bar per phase, for a terminal."""

    def __init__(self, console: Console, outcomes: Mapping[str, Outcomes]) -> None:
        super().__init__(console, outcomes)
        self._bars: dict[str, TaskID] = {}  # by phase
        self._live = Progress(
            TextColumn("  {task.description:<8}"),
            BarColumn(bar_width=32),
            CountColumn(),
            TextColumn("[dim]{task.fields[step]}[/]"),
            TimeElapsedColumn(),
            LeftColumn(),
            console=console,
            transient=True,
        )

    def tell(self, text: str) -> None:
        lines = wrapped(text, self._console.width, indent=HANGING)
        super().tell("\n".join(lines))

    @contextmanager
    def route(self, steps: Sequence[Step]) -> Iterator[None]:
        try:
            with super().route(steps):
                yield
        finally:
            # Also after an error in a step.
            for phase in list(self._bars):
                self._remove_bar(phase)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        """Show how many tasks of the phase are finished, and the name of this step."""
        phase = self._phase_of[label]
        # Phases overlap, and one live display shows the bars of all.
        if not self._bars:
            self._live.start()
        with phase.running(label, done=done, total=total):
            if phase.name not in self._bars:
                self._bars[phase.name] = self._live.add_task(
                    phase.name, total=None, step=label
                )
            bar = self._bars[phase.name]

            def show() -> None:
                # A bar without a total is shown as indeterminate.
                self._live.update(
                    bar,
                    total=phase.tasks if phase.tasks > 1 else None,
                    completed=phase.finished_tasks,
                    step=label,
                )

            def advance(_: float) -> None:
                phase.finished_tasks += 1
                show()

            show()
            yield advance

    def _remove_bar(self, phase: str) -> None:
        self._live.remove_task(self._bars.pop(phase))
        # Otherwise the next line would appear above the old bar.
        self._live.refresh()
        if not self._bars:
            self._live.stop()

    def _tell_ended(self, phase: _Phase) -> None:
        if phase.name in self._bars:
            self._remove_bar(phase.name)
        spent = f"{phase.seconds:6.1f} s" if phase.has_run else "  reused"
        self._print(f"[green]✓[/] {phase.name:<8} {spent}  {self._outcome(phase)}")


def phases_for(console: Console, outcomes: Mapping[str, Outcomes]) -> Reporter:
    """Return bars for a terminal, and lines for anything else.

    The keys of `outcomes` are the phases in the order of their lines.
    """
    if console.is_terminal:
        return PhaseBars(console, outcomes)
    return PhaseLines(console, outcomes)
