"""Metrics: the measurements of each step and each validation, as JSON lines, on the terminal, and in a figure of the loss.

In:  steps; a model and rows that are never trained on, with their spans.
Out: `metrics.jsonl`, `held_out.jsonl`, `loss.svg` and `loss.png`. Lines after the checkpoint that a training resumes from are
removed first.

Held-out losses are measured by role, by position, and by distance to the previous meta-chunk. A loss of meta-chunks that falls at
long distances, while that of negatives does not fall alone, is what the method is for: a meta-chunk depends on the previous one,
thousands of tokens back.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from transformers import PreTrainedModel

from nextlong.engine import store
from nextlong.report import tables
from nextlong.schemas import META, ROLES
from nextlong.text import Json
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Watch
from nextlong.train.rows import TrainingRow, TrainingRows, flat, on_device

STEPS, _HELD_OUT = "metrics.jsonl", "held_out.jsonl"
_LOG_LINES: Final = 20  # printed for all steps where there is no terminal
_SPIKE_WINDOW: Final = 20  # steps
_SMOOTHED_STEPS: Final = 10  # whose mean speed and loss are shown
STOPPED_ADVICE: Final = (
    "choose another `out` with a lower training.lr or more training.warmup_steps; or, if this is harmless, raise "
    "watch.spike and run the same command again, which resumes"
)
_BY_DISTANCE: Final = "Held-out meta-chunks, by distance"
_COLOURS: Final = {"meta": "#b5472f", "negative": "#5b7a8c", "document": "#5b7a8c"}


@dataclass(frozen=True)
class TrainedStep:
    """What a step, counted from 1, measured: mean loss, norm of the gradient before clipping, tokens, seconds."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


class Metrics:
    """The logs of one training. Raises RunError where they cannot be written."""

    def __init__(self, out: Path, watch: Watch, *, first_step: int) -> None:
        self._out = out
        for path in (out / STEPS, out / _HELD_OUT):
            kept = (
                [row for row in read(path) if row["step"] <= first_step]
                if first_step
                else []
            )
            if path.exists():
                with store.explained(path):
                    store.write_file(
                        path, "".join(json.dumps(row) + "\n" for row in kept)
                    )
        self._recent_losses = [row["loss"] for row in read(out / STEPS)][
            -_SPIKE_WINDOW:
        ]
        self._spike = watch.spike

    def step(self, step: TrainedStep) -> None:
        """Log a step."""
        self._append(STEPS, asdict(step))
        self._recent_losses = [*self._recent_losses, step.loss][-_SPIKE_WINDOW:]

    def fault(self, number: int, loss: float, grad_norm: float) -> str | None:
        """Describe why a training must stop: a step is not finite, or its loss is a spike (`watch.spike`); else None."""
        for name, value in (("loss", loss), ("norm of the gradient", grad_norm)):
            if not math.isfinite(value):
                return f"the {name} of step {number} is {value}"
        spike, recent = self._spike, self._recent_losses
        if (
            spike is None
            or len(recent) < _SPIKE_WINDOW
            or loss <= spike * median(recent)
        ):
            return None
        usual = f"{spike:g} times the median of the last {_SPIKE_WINDOW}"
        return f"the loss of step {number} is {loss:.3f}, more than {usual}"

    def held_out(self, step: int, measured: Json) -> None:
        """Log a validation, as returned by `means`."""
        self._append(_HELD_OUT, {"step": step, **measured})

    def flush(self) -> None:
        """Write everything to the disk; called before a checkpoint, which is never ahead of the logs."""
        for path in (self._out / STEPS, self._out / _HELD_OUT):
            if path.exists():
                store.sync(path)

    def _append(self, name: str, row: Json) -> None:
        with (
            store.explained(self._out / name),
            (self._out / name).open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[Json]:
    """Return the rows of a log: `step`, and numbers by name; those of roles and distances are nested."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        json.loads(line) for line in lines if line.endswith("}")
    ]  # a kill may have torn the last


@contextmanager
def shown_progress(
    console: Console, *, steps: int, peak_flops: float | None
) -> Iterator[Callable[[TrainedStep, float], None]]:
    """Yield a function that prints a finished step: some of them as lines, and on a terminal the last one below.

    It takes the step and its operations, which over `peak_flops` give the MFU; None
    where the device's peak is unknown.
    """
    recent, status = deque[TrainedStep](maxlen=_SMOOTHED_STEPS), console.status("")
    recent_flops = deque[float](maxlen=_SMOOTHED_STEPS)

    def show(done: TrainedStep, flops: float) -> None:
        recent.append(done)
        recent_flops.append(flops)
        unit = (
            1 if sys.platform == "darwin" else 1024
        )  # of ru_maxrss, the peak of the process
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        peak_bytes = (
            torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident
        )
        count, seconds = len(recent), sum(one.seconds for one in recent)
        speed = sum(one.tokens for one in recent) / seconds
        words = [
            f"step {done.step}/{steps}",
            f"loss {sum(one.loss for one in recent) / count:.4f}",
            f"gradient {done.grad_norm:.2f}",
            f"lr {done.lr:.2e}",
            f"tokens/s {speed:,.0f}",
            f"MFU {sum(recent_flops) / seconds / peak_flops:.1%}"
            if peak_flops
            else "MFU –",
            f"memory {peak_bytes / 1e9:.2f} GB",
            f"left {timedelta(seconds=round((steps - done.step) * seconds / count))}",
        ]
        line = " · ".join(words)
        if done.step in (1, steps) or done.step % max(1, steps // _LOG_LINES) == 0:
            tables.say(line, console)
        status.update(line)

    with status if console.is_terminal else nullcontext():
        yield show


def draw(out: Path) -> Path | None:
    """Draw `out/loss.svg` and `out/loss.png` from the logs; return the first, or None where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    steps, measured = read(out / STEPS), read(out / _HELD_OUT)
    # Of each chart: its title, and lines by name, each of points (x, loss); a word as x is a category.
    by_distance = [row for row in measured if row["distance"]]
    charts: dict[str, dict[str, list[tuple[float | str, float]]]] = {
        "Loss": {
            name: [(row["step"], row["loss"]) for row in rows]
            for name, rows in (("training", steps), ("held out", measured))
        },
        "Held out, by role": {
            role: [
                (row["step"], row["role"][role][0])
                for row in measured
                if role in row["role"]
            ]
            for role in _COLOURS
        },
        _BY_DISTANCE: {  # before training, and after it
            f"step {row['step']}": [
                (name, row["distance"][name][0])
                for name in _DISTANCES
                if name in row["distance"]
            ]
            for row in by_distance[:: max(1, len(by_distance) - 1)]
        },
    }
    drawn = [
        (title, kept)
        for title, lines in charts.items()
        if (kept := {n: one for n, one in lines.items() if one})
    ]
    with mpl.rc_context(
        {
            "svg.hashsalt": "nextlong",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = Figure(figsize=(4.5 * len(drawn), 4), layout="constrained")
        for axes, (title, lines) in zip(
            figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True
        ):
            for name, points in lines.items():
                axes.plot(
                    *zip(*points, strict=True),
                    color=_COLOURS.get(name),
                    marker=".",
                    label=name,
                )
            is_by_step = title != _BY_DISTANCE
            x_label = "step" if is_by_step else "tokens since the previous meta-chunk"
            axes.set(title=title, xlabel=x_label, ylabel="nats per token")
            axes.tick_params("x", rotation=0 if is_by_step else 30)
            axes.legend(frameon=False)
        figure.savefig(out / "loss.svg", metadata={"Date": None})
        figure.savefig(out / "loss.png", dpi=120)
    return out / "loss.svg"


_POSITION_BINS: Final = 8
_NEAREST: Final = 512  # tokens; each distance bin is twice as far as the one before
_DISTANCE_BINS: Final = 12
_DISTANCES: Final = (
    "first",
    f"<{_NEAREST}",
    *(
        f"{_NEAREST << place}–{_NEAREST << (place + 1)}"
        for place in range(_DISTANCE_BINS - 2)
    ),
)
# All groups are counted in one array: all tokens, then roles, positions and distances.
_FIRST_ROLE: Final = 1
_FIRST_POSITION: Final = _FIRST_ROLE + len(ROLES)
_FIRST_DISTANCE: Final = _FIRST_POSITION + _POSITION_BINS
_GROUPS: Final = _FIRST_DISTANCE + len(_DISTANCES)


def measure(
    model: PreTrainedModel, rows: TrainingRows, *, most: int, device: torch.device
) -> Json:
    """Return the losses of the first `most` rows, as `means` does."""
    totals = np.zeros((2, _GROUPS))
    model.eval()
    with torch.no_grad():
        for number in range(min(most, len(rows))):
            row = rows[number]
            losses = (
                model(**on_device(flat([row]), device), per_token=True)
                .loss[0]
                .double()
                .cpu()
                .numpy()
            )
            totals += tally(row, losses, longest=rows.row_tokens)
    model.train()
    return means(totals, longest=rows.row_tokens)


def tally(
    row: TrainingRow, losses: NDArray[np.float64], *, longest: int
) -> NDArray[np.float64]:
    """Return the sums of losses (T,) and the tokens of each group, (2, groups), of the row's targets."""
    is_target = row.labels.numpy() != IGNORED
    totals = np.zeros((2, _GROUPS))
    totals[:, 0] = losses[is_target].sum(), is_target.sum()
    # The groups of each token, (T,): it counts once by role, once by position and, in a meta-chunk, once by distance.
    grouped = [_FIRST_POSITION + row.position_ids.numpy() * _POSITION_BINS // longest]
    if (spans := row.spans) is not None:
        # The distance bin of each span, from the tokens between a meta-chunk and the previous one of its sequence (0: it is the
        # first; those between two sequences count for nothing); −1 of what is no meta-chunk.
        meta_places = np.flatnonzero(spans["role"] == META)
        meta_spans, bins = spans[meta_places], np.full(len(spans), -1)
        distances = meta_spans["first"][1:] - meta_spans["last"][:-1]
        places = np.zeros(len(meta_spans), np.int64)
        far = (
            np.floor(np.log2(np.maximum(distances, 1) / _NEAREST)).astype(np.int64) + 2
        )
        places[1:] = np.clip(far, 1, len(_DISTANCES) - 1) * (
            np.diff(meta_spans["sequence"]) == 0
        )
        bins[meta_places] = _FIRST_DISTANCE + places
        of_spans = (_FIRST_ROLE + spans["role"].astype(np.int64), bins)
        grouped += [
            np.repeat(groups, spans["last"] - spans["first"]) for groups in of_spans
        ]
    for groups in grouped:
        counted = is_target & (groups >= 0)
        totals[0] += np.bincount(groups[counted], losses[counted], minlength=_GROUPS)
        totals[1] += np.bincount(groups[counted], minlength=_GROUPS)
    return totals


def means(totals: NDArray[np.float64], *, longest: int) -> Json:
    """Return the mean losses of added tallies, nats per token: `loss` over all tokens; by `role`, `position` and `distance` the
    mean loss and the number of tokens of each group that has tokens.
    """
    edges = [longest * place // _POSITION_BINS for place in range(_POSITION_BINS + 1)]
    positions = [f"{first}–{last}" for first, last in pairwise(edges)]
    with np.errstate(invalid="ignore"):  # groups without tokens are left out below
        groups = zip(
            (totals[0] / totals[1]).tolist(),
            totals[1].astype(int).tolist(),
            strict=True,
        )
    measured: Json = {"loss": next(groups)[0]}
    for kind, names in (
        ("role", ROLES),
        ("position", positions),
        ("distance", _DISTANCES),
    ):
        measured[kind] = {
            name: group for name, group in zip(names, groups, strict=False) if group[1]
        }
    return measured
