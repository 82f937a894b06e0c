"""Progress: what the terminal or the log shows while steps run, by a `Reporter`; `titles` says what steps do, by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from nextlong.text import HANGING, wrapped

_Advance = Callable[[float], None]
_LINE_EVERY_S = 30.0


class Clock:
    """The seconds since a step began, which is when its first task did: that may have waited for a worker."""

    def __init__(self) -> None:
        self._began, self._waits = time.monotonic(), True

    def advance(self, seconds: float) -> None:
        """Take note of a task that is done and took so many seconds."""
        if self._waits:
            self._began, self._waits = max(self._began, time.monotonic() - seconds), False

    def spent(self) -> float:
        return time.monotonic() - self._began


class Reporter:
    """Shows nothing, for use from Python; what others derive from."""

    mark = ""  # before what is done

    def kept(self, labels: Sequence[str]) -> None:
        self.tell(f"{self.mark}reused: {', '.join(labels)}")

    def tell(self, text: str) -> None:
        """Take note of why a run does more than its steps."""

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:  # noqa: ARG002
        """Yield what to call once per finished task of a step, with the seconds that it took."""
        yield lambda _: None


class Lines(Reporter):
    """Plain lines for a log: one when a step ends, and one every half minute while it lasts, also of a single task."""

    def __init__(self, console: Console, titles: Mapping[str, str] | None = None) -> None:
        self._console, self._titles = console, titles or {}

    def tell(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:
        clock, at, ended = Clock(), done, threading.Event()
        if done:
            self._console.print(f"{label}: {done} of {total} tasks were done already", highlight=False)

        def advance(seconds: float) -> None:
            nonlocal at
            at += 1
            clock.advance(seconds)

        def speak() -> None:
            while not ended.wait(_LINE_EVERY_S):
                spent = clock.spent()
                left = f", about {spent / (at - done) * (total - at):,.0f} s left" if at > done else ""
                self._console.print(f"{label}: {at} of {total} tasks in {spent:,.0f} s{left}", highlight=False)

        speaking = threading.Thread(target=speak, daemon=True)
        speaking.start()
        try:
            yield advance
        finally:
            ended.set()
            speaking.join()
        name = f"{label} ({title})" if (title := self._titles.get(label)) else label
        self._console.print(f"{name}: done in {clock.spent():.1f} s", highlight=False)


class Bars(Lines):
    """One live bar a step, for a terminal."""

    mark = "✓ "

    def __init__(self, console: Console, titles: Mapping[str, str] | None = None) -> None:
        super().__init__(console, titles)
        label = TextColumn("  {task.description:<17}")
        columns = (label, BarColumn(bar_width=32), _Count(), TimeElapsedColumn(), _Left())
        self._live = Progress(*columns, console=console, transient=True)

    def tell(self, text: str) -> None:
        super().tell("\n".join(wrapped(text, self._console.width, indent=HANGING)))

    @contextmanager
    def step(self, label: str, *, done: int, total: int) -> Iterator[_Advance]:
        """Show a bar with rate and time left, of a single task one that moves; leave one line behind."""
        if not self._live.tasks:
            self._live.start()
        clock = Clock()
        # Without a total a bar moves.
        task = self._live.add_task(label, total=total if total > 1 else None, completed=done)

        def advance(seconds: float) -> None:
            clock.advance(seconds)
            self._live.advance(task)

        try:
            yield advance
        finally:
            self._live.remove_task(task)
            self._live.refresh()  # else the line below is printed above the bar as it was
            if not self._live.tasks:
                self._live.stop()
        title = self._titles.get(label, "")
        self._console.print(f"[green]✓[/] {label:<17} {clock.spent():6.1f} s  [dim]{title}[/]", highlight=False)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = f" {task.speed:.1f}/s" if task.speed else ""
        return Text("") if task.total is None else Text(f"{task.completed:.0f}/{task.total:.0f}").append(rate, "dim")


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else Text("left ") + super().render(task)


def reporter_for(console: Console, titles: Mapping[str, str] | None = None) -> Reporter:
    return Bars(console, titles) if console.is_terminal else Lines(console, titles)
