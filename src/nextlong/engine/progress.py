"""Progress: show how far steps are, as bars in a terminal or lines in a log.

The runner calls a `Reporter`; `titles` describe the steps by name. Here is one line for
each step; `engine/phases.py` shows whole phases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from nextlong.text import HANGING, wrapped

if TYPE_CHECKING:
    from nextlong.engine.step import Artifact, Step

Advance = Callable[[float], None]
_LINE_EVERY_S = 30.0


class Clock:
    """Measures the seconds since the first task of a step started.

    Tasks may have waited for a worker before that. `tasks` have finished since then.
    """

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.tasks = 0

    def advance(self, seconds: float) -> None:
        """Record a finished task that took this many seconds."""
        # The first task tells when it started; before that, it may have waited.
        if not self.tasks:
            self._start_s = max(self._start_s, time.monotonic() - seconds)
        self.tasks += 1

    def spent(self) -> float:
        """Return the seconds since the first task started."""
        return time.monotonic() - self._start_s


class Reporter:
    """Show nothing, for use from Python; the base class of all reporters."""

    mark = ""  # precedes finished steps

    @contextmanager
    def route(self, steps: Sequence[Step]) -> Iterator[None]:  # noqa: ARG002
        """Learn which steps are about to run or to be reused, before the first."""
        yield

    def finished(self, step: Step, done: Artifact) -> None:
        """Learn that a step of the route has run or is reused."""

    def kept(self, labels: Sequence[str]) -> None:
        """Show which steps are reused."""
        self.tell(f"{self.mark}reused: {', '.join(labels)}")

    def tell(self, text: str) -> None:
        """Show a message about the run."""

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:  # noqa: ARG002
        """Yield a function to call with the seconds of each finished task."""
        yield Clock().advance


class Lines(Reporter):
    """Print plain lines for a log.

    One when a step ends, and one every 30 seconds while it runs.
    """

    def __init__(
        self, console: Console, titles: Mapping[str, str] | None = None
    ) -> None:
        self._console = console
        self._titles = titles or {}

    def tell(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        with self._timed(label, done=done, total=total) as clock:
            yield clock.advance
        title = self._titles.get(label)
        name = f"{label} ({title})" if title else label
        self._print(f"{name}: done in {clock.spent():.1f} s")

    @contextmanager
    def _timed(self, label: str, *, done: int, total: int) -> Iterator[Clock]:
        """Yield the clock of a step, and print a line every 30 seconds."""
        clock = Clock()
        ended = threading.Event()
        if done:
            self._print(f"{label}: {done} of {total} tasks were finished before")

        def print_progress() -> None:
            while not ended.wait(_LINE_EVERY_S):
                self._print(_progress_line(label, clock, done=done, total=total))

        printing = threading.Thread(target=print_progress, daemon=True)
        printing.start()
        try:
            yield clock
        finally:
            ended.set()
            printing.join()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _progress_line(label: str, clock: Clock, *, done: int, total: int) -> str:
    """Return a line on a step, of which `done` tasks were finished before."""
    seconds = clock.spent()
    new = clock.tasks
    line = f"{label}: {done + new} of {total} tasks in {seconds:,.0f} s"
    if new:
        seconds_left = seconds / new * (total - done - new)
        line += f", about {seconds_left:,.0f} s left"
    return line


class _Bars(Lines):
    """Show one live bar per step, for a terminal."""

    mark = "✓ "

    def __init__(
        self, console: Console, titles: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(console, titles)
        self._live = Progress(
            TextColumn("  {task.description:<17}"),
            BarColumn(bar_width=32),
            CountColumn(),
            TimeElapsedColumn(),
            LeftColumn(),
            console=console,
            transient=True,
        )

    def tell(self, text: str) -> None:
        lines = wrapped(text, self._console.width, indent=HANGING)
        super().tell("\n".join(lines))

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        """Show a bar with rate and time left, and print one line at the end.

        For a single task the bar is indeterminate.
        """
        # Steps overlap, and one live display shows the bars of all.
        if not self._live.tasks:
            self._live.start()
        clock = Clock()
        # A bar without a total is shown as indeterminate.
        shown_total = total if total > 1 else None
        task = self._live.add_task(label, total=shown_total, completed=done)

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            self._live.advance(task)

        try:
            yield advance
        finally:
            self._live.remove_task(task)
            # Otherwise the line below would appear above the old bar.
            self._live.refresh()
            if not self._live.tasks:
                self._live.stop()
        title = self._titles.get(label, "")
        seconds = f"{clock.spent():6.1f} s"
        self._print(f"[green]✓[/] {label:<17} {seconds}  [dim]{title}[/]")


class CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        rate = f" {task.speed:.1f}/s" if task.speed else ""
        return Text(f"{task.completed:.0f}/{task.total:.0f}").append(rate, "dim")


class LeftColumn(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        return Text("left ") + super().render(task)


def reporter_for(console: Console, titles: Mapping[str, str] | None = None) -> Reporter:
    """Return bars for a terminal, and lines for anything else."""
    if console.is_terminal:
        return _Bars(console, titles)
    return Lines(console, titles)
