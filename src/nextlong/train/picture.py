"""Picture: what the training did to the loss: of its steps, by role, and by distance to the meta-chunk before.

In:  metrics.jsonl and held_out.jsonl of a training.
Out: loss.svg and loss.png beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nextlong.train import metrics

_COLOURS: Final = {"meta": "#b5472f", "negative": "#5b7a8c", "document": "#5b7a8c"}
_SHOWN_ROLES: Final = tuple(_COLOURS)


def draw(out: Path) -> Path | None:
    """Draw `out/loss.svg` and `out/loss.png`; return the first, or None where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    steps, measured = metrics.read(out / metrics.STEPS), metrics.read(out / metrics.HELD_OUT)
    has_distances = any(row["distance"] for row in measured)
    with mpl.rc_context({"svg.hashsalt": "nextlong", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(13 if has_distances else 9, 4), layout="constrained")
        axes = figure.subplots(1, 3 if has_distances else 2)
        _draw_steps(axes[0], steps, measured)
        _draw_roles(axes[1], measured)
        if has_distances:
            _draw_distances(axes[2], measured)
        figure.savefig(out / "loss.svg", metadata={"Date": None})
        figure.savefig(out / "loss.png", dpi=120)
    return out / "loss.svg"


def _draw_steps(axis: Any, steps: list[metrics.Logged], measured: list[metrics.Logged]) -> None:
    axis.plot([row["step"] for row in steps], [row["loss"] for row in steps], color="#9a9a9a", lw=1, label="training")
    if measured:
        axis.plot(*_columns(measured, "loss"), color="#222222", marker="o", ms=3, label="held out")
    axis.set(title="Loss", xlabel="step", ylabel="nats a token")
    axis.legend(frameon=False)


def _draw_roles(axis: Any, measured: list[metrics.Logged]) -> None:
    for role in _SHOWN_ROLES:
        rows = [row for row in measured if role in row["role"]]
        if rows:
            losses = [row["role"][role][0] for row in rows]
            axis.plot([row["step"] for row in rows], losses, color=_COLOURS[role], marker="o", ms=3, label=role)
    axis.set(title="Held out, by role", xlabel="step")
    if axis.lines:
        axis.legend(frameon=False)


def _draw_distances(axis: Any, measured: list[metrics.Logged]) -> None:
    """One line a measurement, from pale (before training) to dark (the last)."""
    from nextlong.train.held_out import DISTANCES

    names = [name for name in DISTANCES if any(name in row["distance"] for row in measured)]
    for place, row in enumerate(measured):
        known = [name for name in names if name in row["distance"]]
        shade = 0.25 + 0.75 * (place + 1) / len(measured)
        label = f"step {row['step']}" if place in (0, len(measured) - 1) else None
        losses = [row["distance"][name][0] for name in known]
        axis.plot(
            [names.index(name) for name in known], losses, color="#b5472f", alpha=shade, marker="o", ms=3, label=label
        )
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set(title="Held-out meta-chunks, by distance", xlabel="tokens since the meta-chunk before")
    axis.legend(framealpha=0.9, edgecolor="none")


def _columns(rows: list[metrics.Logged], key: str) -> tuple[list[int], list[float]]:
    return [row["step"] for row in rows], [row[key] for row in rows]
