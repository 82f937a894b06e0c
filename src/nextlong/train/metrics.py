"""Metrics: what each step and each validation measured.

In:  steps; a model and rows that are never trained on, with their spans.
Out: `metrics.jsonl`, `held_out.jsonl`, `loss.svg` and `loss.png`, and lines on the
     terminal. Lines after the checkpoint that a training resumes from are removed
     first.

Held-out losses are measured by role, by position, and by distance to the previous
meta-chunk. A loss of meta-chunks that falls at long distances, while that of negatives
does not fall alone, is what the method is for: a meta-chunk depends on the previous
one, thousands of tokens back.
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
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from transformers import PreTrainedModel

from nextlong.arrays import Doubles, Ints
from nextlong.engine import store
from nextlong.report import tables
from nextlong.schemas import META, ROLES
from nextlong.text import Json
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Watch
from nextlong.train.rows import TrainingRow, TrainingRows, flat, on_device

STEPS: Final = "metrics.jsonl"
_HELD_OUT: Final = "held_out.jsonl"
_LOG_LINES: Final = 20  # printed for all steps where there is no terminal
_SPIKE_WINDOW: Final = 20  # steps
_SMOOTHED_STEPS: Final = 10  # whose mean speed and loss are shown
STOPPED_ADVICE: Final = (
    "choose another `out` with a lower training.lr or more training.warmup_steps; or, "
    "if this is harmless, raise watch.spike and run the same command again, which "
    "resumes"
)
_BY_DISTANCE: Final = "Held-out meta-chunks, by distance"
_COLOURS: Final = {"meta": "#b5472f", "negative": "#5b7a8c", "document": "#5b7a8c"}


@dataclass(frozen=True)
class TrainedStep:
    """What a step, counted from 1, measured."""

    step: int
    loss: float  # mean over its tokens
    grad_norm: float  # before clipping
    lr: float
    tokens: int
    seconds: float


class Metrics:
    """The logs of one training. Raises RunError where they cannot be written."""

    def __init__(self, out: Path, watch: Watch, *, first_step: int) -> None:
        self._out = out
        for path in (out / STEPS, out / _HELD_OUT):
            if path.exists():
                kept = []
                if first_step:
                    kept = [row for row in read(path) if row["step"] <= first_step]
                lines = [json.dumps(row) + "\n" for row in kept]
                with store.explained(path):
                    store.write_file(path, "".join(lines))
        losses = [row["loss"] for row in read(out / STEPS)]
        self._recent_losses = losses[-_SPIKE_WINDOW:]
        self._spike = watch.spike

    def step(self, step: TrainedStep) -> None:
        """Log a step."""
        self._append(STEPS, asdict(step))
        # A spike is one over the losses before it.
        losses = [*self._recent_losses, step.loss]
        self._recent_losses = losses[-_SPIKE_WINDOW:]

    def fault(self, number: int, loss: float, grad_norm: float) -> str | None:
        """Describe why a training must stop, or return None.

        A step is not finite, or its loss is a spike (`watch.spike`).
        """
        for name, value in (("loss", loss), ("norm of the gradient", grad_norm)):
            if not math.isfinite(value):
                return f"the {name} of step {number} is {value}"
        recent = self._recent_losses
        if self._spike is None or len(recent) < _SPIKE_WINDOW:
            return None
        if loss <= self._spike * median(recent):
            return None
        return (
            f"the loss of step {number} is {loss:.3f}, more than {self._spike:g} times "
            f"the median of the last {_SPIKE_WINDOW}"
        )

    def held_out(self, step: int, measured: Json) -> None:
        """Log a validation, as returned by `means`."""
        self._append(_HELD_OUT, {"step": step, **measured})

    def flush(self) -> None:
        """Write everything to the disk.

        Called before a checkpoint, which is never ahead of the logs.
        """
        for path in (self._out / STEPS, self._out / _HELD_OUT):
            if path.exists():
                store.sync(path)

    def _append(self, name: str, row: Json) -> None:
        path = self._out / name
        with store.explained(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[Json]:
    """Return the rows of a log: `step`, and numbers by name.

    Those of roles and distances are nested.
    """
    return list(store.whole_lines(path))


@contextmanager
def shown_progress(
    console: Console, *, steps: int, peak_flops: float | None
) -> Iterator[Callable[[TrainedStep, float], None]]:
    """Yield a function that prints a finished step.

    Some steps are lines, and on a terminal the last one is shown below them. It takes
    the step and its operations, which over `peak_flops` give the MFU; None where the
    device's peak is unknown.
    """
    recent = deque[TrainedStep](maxlen=_SMOOTHED_STEPS)
    recent_flops = deque[float](maxlen=_SMOOTHED_STEPS)
    status = console.status("")
    line_every = max(1, steps // _LOG_LINES)

    def show(done: TrainedStep, flops: float) -> None:
        recent.append(done)
        recent_flops.append(flops)
        seconds = sum(step.seconds for step in recent)
        tokens = sum(step.tokens for step in recent)
        mean_loss = sum(step.loss for step in recent) / len(recent)
        left_seconds = (steps - done.step) * seconds / len(recent)
        mfu = "–"
        if peak_flops:
            mfu = f"{sum(recent_flops) / seconds / peak_flops:.1%}"
        words = [
            f"step {done.step}/{steps}",
            f"loss {mean_loss:.4f}",
            f"gradient {done.grad_norm:.2f}",
            f"lr {done.lr:.2e}",
            f"tokens/s {tokens / seconds:,.0f}",
            f"MFU {mfu}",
            f"memory {_peak_bytes() / 1e9:.2f} GB",
            f"left {timedelta(seconds=round(left_seconds))}",
        ]
        line = " · ".join(words)
        if done.step in (1, steps) or done.step % line_every == 0:
            tables.say(line, console)
        status.update(line)

    with status if console.is_terminal else nullcontext():
        yield show


def _peak_bytes() -> int:
    """Return the most memory that training has taken, of the GPU or of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # macOS counts bytes, Linux kibibytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# The lines of a chart by name, each of points (x, loss); a word as x is a category.
_Lines = dict[str, list[tuple[float | str, float]]]


def draw(out: Path) -> Path | None:
    """Draw `out/loss.svg` and `out/loss.png` from the logs; return the first.

    None where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    charts = {}
    for title, lines in _charts(out).items():
        # Validations may have no distances, or no spans at all.
        drawn = {name: points for name, points in lines.items() if points}
        if drawn:
            charts[title] = drawn
    # The same logs give the same bytes.
    style: Any = {
        "svg.hashsalt": "nextlong",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.5 * len(charts), 4), layout="constrained")
        (axes_of_row,) = figure.subplots(1, len(charts), squeeze=False)
        for axes, (title, lines) in zip(axes_of_row, charts.items(), strict=True):
            for name, points in lines.items():
                x, loss = zip(*points, strict=True)
                axes.plot(x, loss, color=_COLOURS.get(name), marker=".", label=name)
            is_by_step = title != _BY_DISTANCE
            x_label = "step" if is_by_step else "tokens since the previous meta-chunk"
            axes.set(title=title, xlabel=x_label, ylabel="nats per token")
            axes.tick_params("x", rotation=0 if is_by_step else 30)
            axes.legend(frameon=False)
        figure.savefig(out / "loss.svg", metadata={"Date": None})
        figure.savefig(out / "loss.png", dpi=120)
    return out / "loss.svg"


def _charts(out: Path) -> dict[str, _Lines]:
    """Return the lines of each chart by its title."""
    training = read(out / STEPS)
    held_out = read(out / _HELD_OUT)
    by_step: _Lines = {
        "training": [(row["step"], row["loss"]) for row in training],
        "held out": [(row["step"], row["loss"]) for row in held_out],
    }
    by_role: _Lines = {}
    for role in _COLOURS:
        rows = [row for row in held_out if role in row["role"]]
        by_role[role] = [(row["step"], row["role"][role][0]) for row in rows]
    # Before training, and after it.
    with_distances = [row for row in held_out if row["distance"]]
    last = max(1, len(with_distances) - 1)
    by_distance: _Lines = {}
    for row in with_distances[::last]:
        losses = row["distance"]
        names = [name for name in _DISTANCES if name in losses]
        by_distance[f"step {row['step']}"] = [(name, losses[name][0]) for name in names]
    return {"Loss": by_step, "Held out, by role": by_role, _BY_DISTANCE: by_distance}


_POSITION_BINS: Final = 8
_NEAREST: Final = 512  # tokens; each distance bin is twice as far as the one before
_DISTANCE_BINS: Final = 12
_DISTANCES: Final = (
    "first",
    f"<{_NEAREST}",
    *(f"{_NEAREST << n}–{_NEAREST << n + 1}" for n in range(_DISTANCE_BINS - 2)),
)
# All groups are counted in one array: all tokens, then roles, positions and distances.
_FIRST_ROLE: Final = 1
_FIRST_POSITION: Final = _FIRST_ROLE + len(ROLES)
_FIRST_DISTANCE: Final = _FIRST_POSITION + _POSITION_BINS
_GROUPS: Final = _FIRST_DISTANCE + len(_DISTANCES)


def measure(
    model: PreTrainedModel, rows: TrainingRows, *, max_rows: int, device: torch.device
) -> Json:
    """Return the losses of the first `max_rows` rows, as `means` does."""
    totals = np.zeros((2, _GROUPS))
    model.eval()
    with torch.no_grad():
        for number in range(min(max_rows, len(rows))):
            row = rows[number]
            batch = on_device(flat([row]), device)
            (losses,) = model(**batch, per_token=True).loss
            row_losses = losses.double().cpu().numpy()
            totals += tally(row, row_losses, longest=rows.row_tokens)
    model.train()
    return means(totals, longest=rows.row_tokens)


def tally(row: TrainingRow, losses: Doubles, *, longest: int) -> Doubles:
    """Return the sums of losses (T,) and the tokens of each group, (2, groups).

    Only the row's targets count.
    """
    is_target = row.labels.numpy() != IGNORED
    totals = np.zeros((2, _GROUPS))
    totals[0, 0] = losses[is_target].sum()
    totals[1, 0] = is_target.sum()
    # The groups of each token, (T,): it counts once by position, once by role and, in a
    # meta-chunk, once by distance.
    position_bins = row.position_ids.numpy() * _POSITION_BINS // longest
    groups_of_tokens = [_FIRST_POSITION + position_bins]
    if row.spans is not None:
        spans = row.spans
        lengths = spans["last"] - spans["first"]
        roles = _FIRST_ROLE + spans["role"].astype(np.int64)
        groups_of_tokens.append(np.repeat(roles, lengths))
        groups_of_tokens.append(np.repeat(_distance_groups(spans), lengths))
    for groups in groups_of_tokens:
        is_counted = is_target & (groups >= 0)
        counted = groups[is_counted]
        totals[0] += np.bincount(counted, losses[is_counted], minlength=_GROUPS)
        totals[1] += np.bincount(counted, minlength=_GROUPS)
    return totals


def _distance_groups(spans: NDArray[np.void]) -> Ints:
    """Return the group of each span by distance, (spans,), −1 of what is no meta-chunk.

    The distance is the tokens between a meta-chunk and the previous one of its
    sequence; those between two sequences count for nothing.
    """
    meta_spans = np.flatnonzero(spans["role"] == META)
    metas = spans[meta_spans]
    distances = metas["first"][1:] - metas["last"][:-1]
    doublings = np.floor(np.log2(np.maximum(distances, 1) / _NEAREST))
    far_bins = np.clip(doublings.astype(np.int64) + 2, 1, len(_DISTANCES) - 1)
    is_same_sequence = np.diff(metas["sequence"]) == 0
    bins = np.zeros(len(metas), np.int64)  # 0: the first of its sequence
    bins[1:] = far_bins * is_same_sequence
    groups = np.full(len(spans), -1)
    groups[meta_spans] = _FIRST_DISTANCE + bins
    return groups


def means(totals: Doubles, *, longest: int) -> Json:
    """Return the mean losses of added tallies, nats per token.

    `loss` over all tokens; by `role`, `position` and `distance` the mean loss and the
    number of tokens of each group that has tokens.
    """
    bounds = [longest * n // _POSITION_BINS for n in range(_POSITION_BINS + 1)]
    positions = [f"{start}–{end}" for start, end in pairwise(bounds)]
    sums, tokens = totals
    # Groups without tokens, which have no mean, are left out below.
    with np.errstate(invalid="ignore"):
        losses = (sums / tokens).tolist()
    groups = zip(losses, tokens.astype(int).tolist(), strict=True)
    overall, _ = next(groups)
    measured: Json = {"loss": overall}
    names_of_kinds = {"role": ROLES, "position": positions, "distance": _DISTANCES}
    for kind, names in names_of_kinds.items():
        measured[kind] = {}
        # The names first: `zip` would else take a group more than there are names.
        for name, (loss, count) in zip(names, groups, strict=False):
            if count:
                measured[kind][name] = (loss, count)
    return measured
