"""Metrics: what each step and each measurement gave, as JSON lines, and for TensorBoard and W&B where asked.

In:  steps and held-out losses.
Out: `metrics.jsonl`, `held_out.jsonl`; what was written after the checkpoint that a training goes on from is taken out first.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.train.recipe import Watch

if TYPE_CHECKING:
    from nextlong.train.held_out import HeldOutLoss
    from nextlong.train.loop import Step

Logged = dict[str, Any]  # a line: `step`, and numbers by name, those of roles and distances nested
STEPS, HELD_OUT = "metrics.jsonl", "held_out.jsonl"


class Metrics:
    """The logs of one training."""

    def __init__(self, out: Path, watch: Watch, *, first_step: int) -> None:
        self._out = out
        for name in (STEPS, HELD_OUT):
            _keep_up_to(out / name, first_step)
        self._boards = _boards(out, watch, first_step=first_step)

    def step(self, step: Step) -> None:
        """Note a step."""
        row = {"step": step.number, **{key: value for key, value in asdict(step).items() if key != "number"}}
        self._append(STEPS, row)
        self._show(step.number, {"loss": step.loss, "lr": step.lr, "grad_norm": step.grad_norm})
        self._show(step.number, {"tokens_per_second": step.tokens / step.seconds})

    def held_out(self, step: int, measured: HeldOutLoss) -> None:
        """Note a measurement."""
        self._append(HELD_OUT, {"step": step, **asdict(measured)})
        values = {"held_out/loss": measured.loss}
        for group in ("role", "distance"):
            values |= {f"held_out/{group}/{name}": loss for name, (loss, _) in getattr(measured, group).items()}
        self._show(step, values)

    def flush(self) -> None:
        """Bring everything to the disk; called before a checkpoint, which is never ahead of the logs."""
        for name in (STEPS, HELD_OUT):
            path = self._out / name
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def close(self) -> None:
        """Close what TensorBoard and W&B keep open."""
        for board in self._boards:
            board.close()

    def _append(self, name: str, row: Logged) -> None:
        with store.explained(self._out / name), (self._out / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _show(self, step: int, values: dict[str, float]) -> None:
        for board in self._boards:
            board.show(step, values)


def read(path: Path) -> list[Logged]:
    """Return the rows of a log."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # the last may be torn by a kill


def _keep_up_to(path: Path, step: int) -> None:
    kept = [row for row in read(path) if row["step"] <= step] if step else []
    if path.exists():
        with store.explained(path):
            store.write_text(path, "".join(json.dumps(row) + "\n" for row in kept))


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


def _boards(out: Path, watch: Watch, *, first_step: int) -> list[Any]:
    boards: list[Any] = []
    if watch.tensorboard == "on":
        boards.append(_TensorBoard(out, first_step))
    if watch.wandb == "offline":
        boards.append(_WeightsAndBiases(out))
    return boards
