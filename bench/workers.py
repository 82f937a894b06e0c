"""Workers, measured: how much sooner a step ends with two of them than with one.

In:  a recipe, the steps to look at, how often. Everything else of its route is done once; then these steps are done anew,
     alternately by one worker and by so many.
Out: a Markdown table: medians of wall seconds from a step's first task to its last, and their ratio; the ratio that the sizes of
     its tasks allow, by what they take with one worker, each free worker taking the next; the load at the end.
     On a busy machine only what the sizes allow says anything.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nextlong import pipeline
from nextlong.engine.step import Artifact
from nextlong.recipe import Recipe


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--steps", nargs="+", default=["embed", "tokens"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    taken: dict[tuple[str, int], list[dict[str, Any]]] = {}
    run(options, workers=options.workers)
    for _ in range(options.repeats):
        for workers in (1, options.workers):
            for step in options.steps:
                taken.setdefault((step, workers), []).append(
                    again(options, step, workers=workers)
                )
    print(
        f"| step | tasks | 1 worker | {options.workers} workers | ratio | that tasks allow |\n|---|---:|---:|---:|---:|---:|"
    )
    for step in options.steps:
        one, more = (
            statistics.median(seconds_of(manifest) for manifest in taken[step, n])
            for n in (1, options.workers)
        )
        tasks = [
            statistics.median(part["seconds"] for part in parts)
            for parts in zip(
                *(manifest["parts"] for manifest in taken[step, 1]), strict=True
            )
        ]
        allowed = sum(tasks) / makespan(tasks, workers=options.workers)
        print(
            f"| {step} | {len(tasks)} | {one:.2f} s | {more:.2f} s | {one / more:.2f} | {allowed:.2f} |"
        )
    print(f"\nload: {os.getloadavg()[0]:.1f}")
    return 0


def again(options: argparse.Namespace, step: str, *, workers: int) -> dict[str, Any]:
    """Run one step again; return its manifest."""
    folder = run(options, workers=workers)[step].folder  # everything is reused
    shutil.rmtree(folder)
    run(options, workers=workers)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return manifest


def run(options: argparse.Namespace, *, workers: int) -> dict[str, Artifact]:
    """Run the recipe with so many workers; return its finished steps."""
    return pipeline.run(
        Recipe.load(
            options.recipe, overrides=[*options.overrides, f"workers={workers}"]
        )
    )


def seconds_of(manifest: dict[str, Any]) -> float:
    """Return the wall seconds of a step."""
    return float(manifest["seconds"])


def makespan(seconds: Sequence[float], *, workers: int) -> float:
    """Return when the last of the tasks ends if each worker that is free takes the next."""
    free = [0.0] * workers
    for taken in seconds:
        heapq.heappush(free, heapq.heappop(free) + taken)
    return max(free)


if __name__ == "__main__":
    sys.exit(main())
