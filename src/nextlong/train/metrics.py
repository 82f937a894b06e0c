"""Metrics: what each step and each validation gave: JSON lines, the terminal, TensorBoard, W&B, and a figure of the loss.

In:  steps and held-out losses.
Out: `metrics.jsonl`, `held_out.jsonl`, `loss.svg` and `loss.png`. Lines after the checkpoint that a training resumes from are
removed first.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console
from rich.live import Live

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.text import Json
from nextlong.train.recipe import Watch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS, HELD_OUT = "metrics.jsonl", "held_out.jsonl"
_LOG_LINES: Final = 20  # printed for all steps where there is no terminal
_SMOOTHED_STEPS: Final = 10  # whose mean speed and loss are shown
_COLOURS: Final = {"meta": "#b5472f", "negative": "#5b7a8c", "document": "#5b7a8c"}


@dataclass(frozen=True)
class Step:
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


class _Board(Protocol):
    def show(self, step: int, values: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class Metrics:
    """The logs of one training."""

    def __init__(self, out: Path, watch: Watch, *, first_step: int) -> None:
        self._out = out
        for name in (STEPS, HELD_OUT):
            kept = [row for row in read(out / name) if row["step"] <= first_step] if first_step else []
            if (out / name).exists():
                with store.explained(out / name):
                    store.write_text(out / name, "".join(json.dumps(row) + "\n" for row in kept))
        self._boards: list[_Board] = [_TensorBoard(out, first_step)] if watch.tensorboard == "on" else []
        if watch.wandb == "offline":
            self._boards.append(_WeightsAndBiases(out))

    def step(self, step: Step) -> None:
        """Log a step."""
        values = asdict(step)
        number = values.pop("number")
        self._append(STEPS, {"step": number, **values})
        shown = {name: values[name] for name in ("loss", "lr", "grad_norm")}
        self._show(number, {**shown, "tokens_per_second": step.tokens / step.seconds})

    def held_out(self, step: int, measured: HeldOutLoss) -> None:
        """Log a validation."""
        self._append(HELD_OUT, {"step": step, **asdict(measured)})
        values = {"held_out/loss": measured.loss}
        for group in ("role", "distance"):
            values |= {f"held_out/{group}/{name}": loss for name, (loss, _) in getattr(measured, group).items()}
        self._show(step, values)

    def flush(self) -> None:
        """Write everything to the disk; called before a checkpoint, which is never ahead of the logs."""
        for name in (STEPS, HELD_OUT):
            path = self._out / name
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def close(self) -> None:
        """Close TensorBoard and W&B."""
        for board in self._boards:
            board.close()

    def _append(self, name: str, row: Json) -> None:
        with store.explained(self._out / name), (self._out / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _show(self, step: int, values: dict[str, float]) -> None:
        for board in self._boards:
            board.show(step, values)


def read(path: Path) -> list[Json]:
    """Return the rows of a log: `step`, and numbers by name; those of roles and distances are nested."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a kill may have torn the last


class _TensorBoard:
    def __init__(self, out: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RecipeError(
                "watch.tensorboard=on needs tensorboard; pip install tensorboard, or set it to off"
            ) from None
        self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=first_step + 1)

    def show(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, out: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise RecipeError("watch.wandb=offline needs wandb; pip install wandb, or set it to off") from None
        self._run = wandb.init(project="nextlong", name=out.name, dir=str(out), mode="offline", resume="allow")

    def show(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class Progress:
    """Shows steps as they are done: a table that is updated on a terminal, now and then a line in a log.

    `flops_per_token` over `peak_flops` gives the MFU; None where the device's peak is unknown.
    """

    def __init__(self, console: Console, *, steps: int, flops_per_token: float, peak_flops: float | None) -> None:
        self._console, self._steps = console, steps
        self._flops_per_token, self._peak = flops_per_token, peak_flops
        self._recent: list[Step] = []
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not console.quiet else None

    def show(self, step: Step) -> None:
        """Show that a step is done."""
        self._recent = [*self._recent, step][-_SMOOTHED_STEPS:]
        values = self._values(step)
        if self._live is not None:
            table = tables.table()
            for name in values:
                table.add_column(name, justify="right")
            table.add_row(*values.values())
            self._live.start()
            self._live.update(table)
        elif step.number in (1, self._steps) or step.number % max(1, self._steps // _LOG_LINES) == 0:
            tables.say(" · ".join(f"{name} {value}" for name, value in values.items()), self._console)

    def close(self) -> None:
        """Stop updating the terminal."""
        if self._live is not None:
            self._live.stop()

    def _values(self, step: Step) -> dict[str, str]:
        seconds = sum(one.seconds for one in self._recent)
        speed = sum(one.tokens for one in self._recent) / seconds
        minutes, rest = divmod(round((self._steps - step.number) * seconds / len(self._recent)), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
        return {
            "step": f"{step.number}/{self._steps}",
            "loss": f"{sum(one.loss for one in self._recent) / len(self._recent):.4f}",
            "gradient": f"{step.grad_norm:.2f}",
            "lr": f"{step.lr:.2e}",
            "tokens/s": f"{speed:,.0f}",
            "MFU": f"{speed * self._flops_per_token / self._peak:.1%}" if self._peak else "–",
            "memory": f"{_memory_bytes() / 1e9:.2f} GB",
            "left": left,
        }


def _memory_bytes() -> float:
    """Return the peak memory so far: of the GPU, else of the process."""
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def draw(out: Path) -> Path | None:
    """Draw `out/loss.svg` and `out/loss.png` from the logs; return the first, or None where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    steps, measured = read(out / STEPS), read(out / HELD_OUT)
    has_distances = any(row["distance"] for row in measured)
    with mpl.rc_context({"svg.hashsalt": "nextlong", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(13 if has_distances else 9, 4), layout="constrained")
        loss, by_role, *by_distance = figure.subplots(1, 3 if has_distances else 2)
        loss.plot(
            [row["step"] for row in steps], [row["loss"] for row in steps], color="#9a9a9a", lw=1, label="training"
        )
        if measured:
            numbers, losses = [row["step"] for row in measured], [row["loss"] for row in measured]
            loss.plot(numbers, losses, color="#222222", marker="o", ms=3, label="held out")
        loss.set(title="Loss", xlabel="step", ylabel="nats per token")
        loss.legend(frameon=False)
        for role, colour in _COLOURS.items():
            if rows := [row for row in measured if role in row["role"]]:
                losses = [row["role"][role][0] for row in rows]
                by_role.plot([row["step"] for row in rows], losses, color=colour, marker="o", ms=3, label=role)
        by_role.set(title="Held out, by role", xlabel="step")
        if by_role.lines:
            by_role.legend(frameon=False)
        for axes in by_distance:
            _draw_distances(axes, measured)
        figure.savefig(out / "loss.svg", metadata={"Date": None})
        figure.savefig(out / "loss.png", dpi=120)
    return out / "loss.svg"


def _draw_distances(axes: Axes, measured: list[Json]) -> None:
    """Draw one line per validation, from pale (before training) to dark (the last)."""
    from nextlong.train.held_out import DISTANCES

    names = [name for name in DISTANCES if any(name in row["distance"] for row in measured)]
    for number, row in enumerate(measured):
        known = [name for name in names if name in row["distance"]]
        how: dict[str, Any] = {"color": "#b5472f", "alpha": 0.25 + 0.75 * (number + 1) / len(measured), "marker": "o"}
        label = f"step {row['step']}" if number in (0, len(measured) - 1) else None
        places, losses = [names.index(name) for name in known], [row["distance"][name][0] for name in known]
        axes.plot(places, losses, label=label, ms=3, **how)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set(title="Held-out meta-chunks, by distance", xlabel="tokens since the previous meta-chunk")
    axes.legend(framealpha=0.9, edgecolor="none")
