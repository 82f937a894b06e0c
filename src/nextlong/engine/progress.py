"""Progress: show how far steps are, as bars in a terminal or lines in a log.

The runner calls a `Reporter`; `titles` describe the steps by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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

_Advance = Callable[[float], None]
_LINE_EVERY_S = 30.0


class Clock:
    """Measures the seconds since the first task of a step started; tasks may have waited for a worker before that."""

    def __init__(self) -> None:
        self._start_s, self.tasks = time.monotonic(), 0  # tasks finished since then

    def advance(self, seconds: float) -> None:
        """Record a finished task that took this many seconds."""
        if not self.tasks:
            self._start_s = max(self._start_s, time.monotonic() - seconds)
        self.tasks += 1

    def spent(self) -> float:
        return time.monotonic() - self._start_s


class Reporter:
    """Show nothing, for use from Python; the base class of all reporters."""

    mark = ""  # precedes finished steps

    def kept(self, labels: Sequence[str]) -> None:
        self.tell(f"{self.mark}reused: {', '.join(labels)}")

    def tell(self, text: str) -> None:
        """Show a message about the run."""

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:  # noqa: ARG002
        """Yield a function to call once per finished task with the seconds that the task took."""
        yield Clock().advance


class Lines(Reporter):
    """Print plain lines for a log: one when a step ends, and one every 30 seconds while it runs."""

    def __init__(
        self, console: Console, titles: Mapping[str, str] | None = None
    ) -> None:
        self._console, self._titles = console, titles or {}

    def tell(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:
        clock, ended = Clock(), threading.Event()
        if done:
            self._console.print(
                f"{label}: {done} of {total} tasks were finished before",
                highlight=False,
            )

        def print_progress() -> None:
            while not ended.wait(_LINE_EVERY_S):
                spent, new = clock.spent(), clock.tasks
                left = (
                    f", about {spent / new * (total - done - new):,.0f} s left"
                    if new
                    else ""
                )
                self._console.print(
                    f"{label}: {done + new} of {total} tasks in {spent:,.0f} s{left}",
                    highlight=False,
                )

        printing = threading.Thread(target=print_progress, daemon=True)
        printing.start()
        try:
            yield clock.advance
        finally:
            ended.set()
            printing.join()
        name = f"{label} ({title})" if (title := self._titles.get(label)) else label
        self._console.print(f"{name}: done in {clock.spent():.1f} s", highlight=False)


class _Bars(Lines):
    """Show one live bar per step, for a terminal."""

    mark = "✓ "

    def __init__(
        self, console: Console, titles: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(console, titles)
        label = TextColumn("  {task.description:<17}")
        columns = (
            label,
            BarColumn(bar_width=32),
            _Count(),
            TimeElapsedColumn(),
            _Left(),
        )
        self._live = Progress(*columns, console=console, transient=True)

    def tell(self, text: str) -> None:
        super().tell("\n".join(wrapped(text, self._console.width, indent=HANGING)))

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:
        """Show a bar with rate and time left, an indeterminate one for a single task, and print one line at the end."""
        if not self._live.tasks:
            self._live.start()
        clock = Clock()
        # A bar without a total is shown as indeterminate.
        task = self._live.add_task(
            label, total=total if total > 1 else None, completed=done
        )

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            self._live.advance(task)

        try:
            yield advance
        finally:
            self._live.remove_task(task)
            self._live.refresh()  # otherwise the line below would appear above the old bar
            if not self._live.tasks:
                self._live.stop()
        title = self._titles.get(label, "")
        self._console.print(
            f"[green]✓[/] {label:<17} {clock.spent():6.1f} s  [dim]{title}[/]",
            highlight=False,
        )


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = f" {task.speed:.1f}/s" if task.speed else ""
        return (
            Text("")
            if task.total is None
            else Text(f"{task.completed:.0f}/{task.total:.0f}").append(rate, "dim")
        )


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else Text("left ") + super().render(task)


def reporter_for(console: Console, titles: Mapping[str, str] | None = None) -> Reporter:
    return _Bars(console, titles) if console.is_terminal else Lines(console, titles)
