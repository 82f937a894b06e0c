"""Progress: what the terminal or the log shows while steps run. Nothing here touches the data.

A reporter has three methods: `kept(label)` for a step that was there already, `step(label, done=…, total=…)`, a context
that yields a function to call once per finished task, and `tell(text)` for why a run does more than its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

Advance = Callable[[], None]
_LINE_EVERY_S = 30.0


class Quiet:
    """Shows nothing: for use from Python."""

    def kept(self, label: str) -> None:
        """Pass over a step that was there already."""

    def tell(self, text: str) -> None:
        """Pass over what is told."""

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:  # noqa: ARG002
        """Run a step without a word."""
        yield lambda: None


class Lines:
    """Plain lines for a log: one when a step ends, and one every half minute while it lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def kept(self, label: str) -> None:
        """Print that a step was there already."""
        self._console.print(f"{label}: kept", highlight=False)

    def tell(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        """Print how far a step is, now and then, and how long it took."""
        began = spoken = time.monotonic()
        at = done
        if done:
            self._console.print(f"{label}: {done} of {total} tasks were done already", highlight=False)

        def advance() -> None:
            nonlocal at, spoken
            at += 1
            now = time.monotonic()
            if now - spoken >= _LINE_EVERY_S and at < total:
                left = (now - began) / (at - done) * (total - at)
                self._console.print(f"{label}: {at} of {total} tasks, about {left:,.0f} s left", highlight=False)
                spoken = now

        yield advance
        self._console.print(f"{label}: done in {time.monotonic() - began:.1f} s", highlight=False)


class Bars:
    """One live bar a step, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Progress(
            TextColumn("  {task.description:<12}"),
            BarColumn(bar_width=32),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def kept(self, label: str) -> None:
        """Print that a step was there already."""
        self._console.print(f"[green]✓[/] {label:<12} [dim]kept[/]", highlight=False)

    def tell(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[Advance]:
        """Show a bar with rate and time left, below those of other steps under way; leave one line behind."""
        if not self._live.tasks:
            self._live.start()
        began = time.monotonic()
        task = self._live.add_task(label, total=total, completed=done)
        try:
            yield lambda: self._live.advance(task)
        finally:
            self._live.remove_task(task)
            if not self._live.tasks:
                self._live.stop()
        self._console.print(f"[green]✓[/] {label:<12} {time.monotonic() - began:6.1f} s", highlight=False)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        # A step of one task has no rate to speak of; the time that it has taken stands beside.
        shows = task.speed and (task.total or 0) > 1
        return Text(f"{task.speed:.1f}/s" if shows else "", style="dim")


Reporter = Quiet | Lines | Bars


def reporter_for(console: Console) -> Reporter:
    """Return bars on a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)
