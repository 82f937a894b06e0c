"""Progress: which task and length is under way, how much of it, and the time left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from nextlong.report.tables import say


class Progress:
    """Tells a console: a line a task where it is no terminal, and a moving line where it is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._number = self._wanted = self._done = self._fresh = 0
        self._name = ""
        self._began_s = 0.0

    def begin(self, total: int) -> None:
        """Say how many there are."""
        self._total = total

    def kept(self, task: str, length: int | None, score: float) -> None:
        """Tell of one that was there already."""
        self._number += 1
        self._tell(f"{self._head(task, length)} {score:6.2f}  kept")

    def start(self, task: str, length: int | None, wanted: int, *, done: int) -> None:
        """Tell that one begins, `done` of its samples answered before."""
        self._number += 1
        self._wanted, self._done, self._fresh = wanted, done, 0
        self._name, self._began_s = self._head(task, length), time.monotonic()
        if done:
            self._tell(f"{self._name} goes on after {done} of {wanted} samples")

    def advance(self, samples: int) -> None:
        """Tell of more answered samples, and of the time that the rest will take."""
        self._done += samples
        self._fresh += samples
        if self._console.is_terminal:
            left_s = (self._wanted - self._done) * (time.monotonic() - self._began_s) / max(self._fresh, 1)
            self._console.print(
                f"{self._name} {self._done}/{self._wanted}  {_duration(left_s)} left ", end="\r", highlight=False
            )

    def done(self, score: float, *, samples: int, refused: int) -> None:
        """Tell the score."""
        refusals = f"  {refused} refused: too long" if refused else ""
        self._tell(
            f"{self._name} {score:6.2f}  {samples} samples, {_duration(time.monotonic() - self._began_s)}{refusals}"
        )

    def _head(self, task: str, length: int | None) -> str:
        size = "" if length is None else f"{length:>9,}"
        return f"[{self._number}/{self._total}] {task:<18}{size}"

    def _tell(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))  # the moving line
        say(line, self._console)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
