"""Progress of an evaluation: which task is measured, its score, and the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from nextlong.report import tables

# Seconds without a line, at most, where there is no terminal.
_MAX_SILENCE_S: Final = 60.0


class TaskProgress:
    """Print a moving line on a terminal; else a line per task, and one per minute.

    The time left for all tasks is estimated from tokens at the pace so far: longer
    prompts take longer per token, and refused samples and shared prefixes take almost
    nothing.
    """

    def __init__(self, console: Console) -> None:
        self.tokens: Sequence[int] = ()  # that remain to be read for each task
        self._console = console
        self._number = 0  # of the current task, from 1
        self._tokens_read = 0
        self._first_start_s = 0.0

    def start(self, task: str, length: int | None, samples: int, *, done: int) -> None:
        """Begin a task, `done` of its samples answered before."""
        self._number += 1
        self._length = length or 0
        self._samples = samples
        self._done = done
        self._done_now = 0  # in this session
        size = "" if length is None else f"{length:>9,}"
        self._name = f"[{self._number}/{len(self.tokens)}] {task:<18}{size}"
        self._start_s = time.monotonic()
        self._printed_s = self._start_s
        # The pace begins with the first task: loading the model is no part of it.
        if self._number == 1:
            self._first_start_s = self._start_s
        if done:
            self.note(f"{self._name} resumes after {done} of {samples} samples")

    def advance(self, samples: int) -> None:
        """Count more answered samples, and print the time left."""
        self._done += samples
        self._done_now += samples
        self._tokens_read += samples * self._length
        now_s = time.monotonic()
        is_silent = now_s - self._printed_s < _MAX_SILENCE_S
        if is_silent and not self._console.is_terminal:
            return
        self._printed_s = now_s
        state = f"{self._name} {self._done}/{self._samples}  {self._time_left(now_s)}"
        if self._console.is_terminal:
            self._console.print(f"{state} ", end="\r", highlight=False)
        else:
            self.note(state)

    def _time_left(self, now_s: float) -> str:
        """Return the time left for this task, and for all where that can be told."""
        # At the pace of this session: samples that an earlier one answered took no
        # time.
        seconds_per_sample = (now_s - self._start_s) / max(self._done_now, 1)
        left_s = max(self._samples - self._done, 0) * seconds_per_sample
        text = f"{_duration(left_s)} left"
        later_tokens = sum(self.tokens[self._number :])
        if self._tokens_read and later_tokens:
            seconds_per_token = (now_s - self._first_start_s) / self._tokens_read
            left_s += later_tokens * seconds_per_token
            text += f", about {_duration(left_s)} for all"
        return text

    def done(self, outcome: str) -> None:
        self.note(f"{self._name} {outcome}")

    def note(self, line: str) -> None:
        """Print a line that stays."""
        if self._console.is_terminal:
            # The moving line is erased, or its end would stand behind a shorter one.
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))
        tables.say(line, self._console)


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))
