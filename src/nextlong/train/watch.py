"""Watch: the training as it goes: loss, tokens a second, share of a GPU's peak, memory, time left.

On a terminal a table that stays; in a log a line now and then.
"""

from __future__ import annotations

import resource
import sys
from types import TracebackType
from typing import Any, Self

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from nextlong.report import tables
from nextlong.train import costs
from nextlong.train.loop import Engine, Step

_LINES = 20  # in a log, for all steps
_SMOOTHED = 10  # steps that speed and loss are the mean of


class Watcher:
    """Shows steps as they are done."""

    def __init__(self, engine: Engine, console: Console) -> None:
        self._engine, self._console = engine, console
        self._steps: list[Step] = []
        self._live: Live | None = None
        self._peak = peak_flops(engine.device)
        self._flops_per_token = _flops_per_token(engine)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, step: Step) -> None:
        """Show that a step is done."""
        self._steps = [*self._steps, step][-_SMOOTHED:]
        shown = self._values(step)
        if self._live is not None:
            self._live.update(_table(shown))
            return
        steps = self._engine.recipe.training.steps
        if step.number in (1, steps) or step.number % max(1, steps // _LINES) == 0:
            line = " · ".join(f"{name} {value}" for name, value in shown.items())
            tables.say(line, self._console)

    def _values(self, step: Step) -> dict[str, str]:
        steps = self._engine.recipe.training.steps
        seconds = sum(one.seconds for one in self._steps)
        speed = sum(one.tokens for one in self._steps) / seconds
        done = speed * self._flops_per_token
        left = (steps - step.number) * seconds / len(self._steps)
        return {
            "step": f"{step.number}/{steps}",
            "loss": f"{sum(one.loss for one in self._steps) / len(self._steps):.4f}",
            "gradient": f"{step.grad_norm:.2f}",
            "lr": f"{step.lr:.2e}",
            "tokens/s": f"{speed:,.0f}",
            "MFU": f"{done / self._peak:.1%}" if self._peak else "–",
            "memory": f"{_memory_bytes() / 1e9:.2f} GB",
            "left": _duration(left),
        }


def peak_flops(device: Any) -> float | None:
    """Return the operations a second that a GPU's data sheet promises.

    None for one that is not known here, and for a processor, whose peak cannot be measured while others use it.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = [tera for part, (tera, _) in costs.DEVICES.items() if part in name]
    return known[0] * 1e12 if known else None


def _flops_per_token(engine: Engine) -> float:
    sizes = costs.sizes_of(engine.model.config)
    bounds = engine.rows[0].bounds
    return costs.flops(sizes, bounds.diff().tolist()) / int(bounds[-1])


def _table(values: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in values:
        table.add_column(name, justify="right")
    table.add_row(*values.values())
    return table


def _memory_bytes() -> float:
    """Return the most memory that was used so far: of the GPU, else of the process."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
