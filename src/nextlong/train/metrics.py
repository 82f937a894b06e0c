"""Metrics: what each step and each validation gave: JSON lines, the terminal, and a figure of the loss.

In:  steps and held-out losses.
Out: `metrics.jsonl`, `held_out.jsonl`, `loss.svg` and `loss.png`. Lines after the checkpoint that a training resumes from are
removed first.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.report import tables
from nextlong.text import Json
from nextlong.train.recipe import Watch

STEPS, HELD_OUT = "metrics.jsonl", "held_out.jsonl"
_LOG_LINES: Final = 20  # printed for all steps where there is no terminal
_SPIKE_WINDOW: Final = 20  # steps
_SMOOTHED_STEPS: Final = 10  # whose mean speed and loss are shown
STOPPED_ADVICE: Final = (
    "choose another `out` with a lower training.lr or a longer training.warmup_steps; or, if this is harmless, raise "
    "watch.spike and run again, which resumes"
)
_COLOURS: Final = {"meta": "#b5472f", "negative": "#5b7a8c", "document": "#5b7a8c"}


@dataclass(frozen=True)
class TrainedStep:
    """What a step measured: number, mean loss, norm of the gradient before clipping, tokens, seconds."""

    number: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class HeldOutLoss:
    """Mean loss, nats per token, and for each group that has tokens its mean loss and number of tokens."""

    loss: float
    role: dict[str, tuple[float, int]]
    position: dict[str, tuple[float, int]]
    distance: dict[str, tuple[float, int]]


class Metrics:
    """The logs of one training."""

    def __init__(self, out: Path, watch: Watch, *, first_step: int) -> None:
        self._out = out
        for name in (STEPS, HELD_OUT):
            kept = [row for row in read(out / name) if row["step"] <= first_step] if first_step else []
            if (out / name).exists():
                with store.explained(out / name):
                    store.write_text(out / name, "".join(json.dumps(row) + "\n" for row in kept))
        self._recent_losses = [row["loss"] for row in read(out / STEPS)][-_SPIKE_WINDOW:]
        self._spike = watch.spike

    def step(self, step: TrainedStep) -> None:
        """Log a step."""
        values = asdict(step)
        number = values.pop("number")
        self._append(STEPS, {"step": number, **values})
        self._recent_losses = [*self._recent_losses, step.loss][-_SPIKE_WINDOW:]

    def fault(self, number: int, loss: float, grad_norm: float) -> str | None:
        """Return in words why a training must stop: a step is not finite, or its loss is a spike (`watch.spike`); or None."""
        for name, value in (("loss", loss), ("norm of the gradient", grad_norm)):
            if not math.isfinite(value):
                return f"the {name} of step {number} is {value}"
        if self._spike is None or len(self._recent_losses) < _SPIKE_WINDOW:
            return None
        if loss <= self._spike * median(self._recent_losses):
            return None
        times = f"more than {self._spike:g} times the median of the last {_SPIKE_WINDOW}"
        return f"the loss of step {number} is {loss:.3f}, {times}"

    def held_out(self, step: int, measured: HeldOutLoss) -> None:
        """Log a validation."""
        self._append(HELD_OUT, {"step": step, **asdict(measured)})

    def flush(self) -> None:
        """Write everything to the disk; called before a checkpoint, which is never ahead of the logs."""
        for name in (STEPS, HELD_OUT):
            path = self._out / name
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def _append(self, name: str, row: Json) -> None:
        with store.explained(self._out / name), (self._out / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[Json]:
    """Return the rows of a log: `step`, and numbers by name; those of roles and distances are nested."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a kill may have torn the last


class Progress:
    """Shows steps as they are done: now and then a line, and on a terminal the last step below it.

    `flops_per_token` over `peak_flops` gives the MFU; None where the device's peak is unknown.
    """

    def __init__(self, console: Console, *, steps: int, flops_per_token: float, peak_flops: float | None) -> None:
        self._console, self._steps = console, steps
        self._flops_per_token, self._peak = flops_per_token, peak_flops
        self._recent: list[TrainedStep] = []
        self._status = console.status("")
        if console.is_terminal:
            self._status.start()

    def show(self, step: TrainedStep) -> None:
        """Show that a step is done."""
        self._recent = [*self._recent, step][-_SMOOTHED_STEPS:]
        import torch

        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, the peak of the process
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        peak_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident
        seconds = sum(one.seconds for one in self._recent)
        speed = sum(one.tokens for one in self._recent) / seconds
        words = [
            f"step {step.number}/{self._steps}",
            f"loss {sum(one.loss for one in self._recent) / len(self._recent):.4f}",
            f"gradient {step.grad_norm:.2f}",
            f"lr {step.lr:.2e}",
            f"tokens/s {speed:,.0f}",
            "MFU " + (f"{speed * self._flops_per_token / self._peak:.1%}" if self._peak else "–"),
            f"memory {peak_bytes / 1e9:.2f} GB",
            f"left {timedelta(seconds=round((self._steps - step.number) * seconds / len(self._recent)))}",
        ]
        line = " · ".join(words)
        if step.number in (1, self._steps) or step.number % max(1, self._steps // _LOG_LINES) == 0:
            tables.say(line, self._console)
        self._status.update(line)

    def close(self) -> None:
        """Stop updating the terminal."""
        self._status.stop()


def draw(out: Path) -> Path | None:
    """Draw `out/loss.svg` and `out/loss.png` from the logs; return the first, or None where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    from nextlong.train.held_out import DISTANCES

    steps, measured = read(out / STEPS), read(out / HELD_OUT)
    by_distance: dict[str, list[tuple[float | str, float]]] = {
        f"step {row['step']}": [(name, row["distance"][name][0]) for name in DISTANCES if name in row["distance"]]
        for row in measured
        if row["distance"]
    }
    # Of each chart: its title and x label, and lines by name, each of points (x, loss); a word as x is a category.
    charts: dict[tuple[str, str], dict[str, list[tuple[float | str, float]]]] = {
        ("Loss", "step"): {
            name: [(row["step"], row["loss"]) for row in rows]
            for name, rows in (("training", steps), ("held out", measured))
        },
        ("Held out, by role", "step"): {
            role: [(row["step"], row["role"][role][0]) for row in measured if role in row["role"]] for role in _COLOURS
        },
        # Before training, and after it.
        ("Held-out meta-chunks, by distance", "tokens since the previous meta-chunk"): dict(
            [*by_distance.items()][:: max(1, len(by_distance) - 1)]
        ),
    }
    drawn = {
        names: kept for names, lines in charts.items() if (kept := {name: one for name, one in lines.items() if one})
    }
    with mpl.rc_context({"svg.hashsalt": "nextlong", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(4.5 * len(drawn), 4), layout="constrained")
        for axes, ((title, x_label), lines) in zip(
            figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
        ):
            for name, points in lines.items():
                axes.plot(*zip(*points, strict=True), color=_COLOURS.get(name), marker=".", label=name)
            axes.set(title=title, xlabel=x_label, ylabel="nats per token")
            axes.tick_params("x", rotation=0 if x_label == "step" else 30)
            axes.legend(frameon=False)
        figure.savefig(out / "loss.svg", metadata={"Date": None})
        figure.savefig(out / "loss.png", dpi=120)
    return out / "loss.svg"
