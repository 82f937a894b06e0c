"""Progress: which task and length is under way, how much of it, and the time left: of it, and about that of all.

The time of all goes by tokens at the pace so far, so it is no bound: longer prompts take longer a token, and refused samples and
what prompts share take next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from nextlong.report.tables import say

_SILENCE_S: Final = 60.0  # at most, where there is no terminal


class Progress:
    """Tells a console: a moving line where it is a terminal; else a line a task, and one a minute of those that take longer."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._number = self._wanted = self._done = self._fresh = self._read = 0
        self._tokens: Sequence[int] = ()
        self._name, self._length = "", 0
        self._first_s: float | None = None
        self._began_s = self._told_s = 0.0

    def begin(self, tokens: Sequence[int]) -> None:
        """Take what is still to be read for each, in tokens; 0 for what is there already or has no length."""
        self._tokens = tokens

    def note(self, text: str) -> None:
        """Tell something of the whole evaluation."""
        self._tell(text)

    def kept(self, task: str, length: int | None, score: float) -> None:
        """Tell of one that was there already."""
        self._number += 1
        self._tell(f"{self._head(task, length)} {score:6.2f}  kept")

    def start(self, task: str, length: int | None, wanted: int, *, done: int) -> None:
        """Tell that one begins, `done` of its samples answered before."""
        self._number += 1
        self._wanted, self._done, self._fresh, self._length = wanted, done, 0, length or 0
        self._name, self._began_s = self._head(task, length), self._clock()
        self._first_s = self._began_s if self._first_s is None else self._first_s
        self._told_s = self._began_s
        if done:
            self._tell(f"{self._name} goes on after {done} of {wanted} samples")

    def advance(self, samples: int) -> None:
        """Tell of more answered samples, and of the time that the rest will take."""
        self._done += samples
        self._fresh += samples
        self._read += samples * self._length
        if self._console.is_terminal:
            self._console.print(f"{self._state()} ", end="\r", highlight=False)
        elif self._clock() - self._told_s >= _SILENCE_S:
            self._told_s = self._clock()
            self._tell(self._state())

    def _state(self) -> str:
        now = self._clock()
        left_s = max(self._wanted - self._done, 0) * (now - self._began_s) / max(self._fresh, 1)
        state = f"{self._name} {self._done}/{self._wanted}  {_duration(left_s)} left"
        if self._read and sum(self._tokens[self._number :]):
            spent_s = now - (self._first_s or 0.0)
            state += f", about {_duration(left_s + sum(self._tokens[self._number :]) * spent_s / self._read)} for all"
        return state

    def done(self, score: float, *, samples: int, refused: int) -> None:
        """Tell the score."""
        refusals = f"  {refused} refused: too long" if refused else ""
        self._tell(
            f"{self._name} {score:6.2f}  {samples} samples, {_duration(self._clock() - self._began_s)}{refusals}"
        )

    def unmade(self, why: str) -> None:
        """Tell why the one that began could not be asked."""
        self._tell(f"{self._name}   –    {why}")

    def _head(self, task: str, length: int | None) -> str:
        size = "" if length is None else f"{length:>9,}"
        return f"[{self._number}/{len(self._tokens)}] {task:<18}{size}"

    def _tell(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))  # the moving line
        say(line, self._console)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
