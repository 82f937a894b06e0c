"""Compose and export, measured: tokens a second and core, and files against a plain NumPy write of the same ids.

In:  a recipe whose run directory is there or can be made; methods.
Out: a Markdown table. Only the two steps are measured, carried out anew by the engine in a folder of the bench.

A method whose documents give fewer sequences than asked composes and exports those it has several times over, and the
table says how often. The plain write holds the ids of the export's first file in memory and writes them with `np.save`, as
many files as the export has and as many ids in all, one process or as many as workers; like the export's, the files are
brought to the disk when all are written, eight at a time, and every measurement starts with nothing left to write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import nextlong
from nextlong import pipeline
from nextlong.engine.local import LocalExecutor
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Done, Step, Task
from nextlong.recipe import Recipe
from nextlong.steps import sequences as steps

METHODS = ("nextlong", "standard", "knn", "iclm", "quest")
_NO_INPUT = Step("none", 0, {}, (), lambda _: [])
_held = np.empty(0, np.int32)  # what a process of the plain write holds


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One measurement; `cpu` is the processor time of the tasks, without the start of their processes."""

    seconds: float
    cpu: float
    done: Done


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{options.sequences:,} sequences of {options.target_tokens:,} tokens, medians of {options.repeats}\n")
    print(
        "| method | sequences | compose: M tokens/s per core | M tokens/s, wall | export: MB/s of ids, wall | MB/s per core "
        "| of which on disk | np.save, 1 process | np.save, workers | export / 1 process | export / workers |"
    )
    print("|---|" + "---:|" * 10)
    for method in options.methods:
        print(row(method, options), flush=True)
    return 0


def row(method: str, options: argparse.Namespace) -> str:
    """Return a method's row of the table."""
    changes = [
        f"compose.method={method}",
        f"compose.sequences={options.sequences}",
        f"compose.target_tokens={options.target_tokens}",
        "export.formats=[parquet]",
    ]
    recipe = Recipe.load(options.recipe, overrides=[*options.overrides, *changes])
    pipeline.run(recipe)
    run = nextlong.open(recipe.run_dir)
    rounds = -(-options.sequences // len(run))
    mb = len(run) * rounds * options.target_tokens * 4 / 1e6
    workers = pipeline.worker_count(recipe)
    composed, exported, alone, together = [], [], [], []
    for _ in range(options.repeats):
        compose = steps.compose_step(recipe, *[_NO_INPUT] * 5).tasks(run.steps)
        composed.append(carried_out("compose", compose * rounds, workers=workers, out=options.out))
        export = steps.export_step(recipe, "parquet", ()).tasks(run.steps)
        exported.append(carried_out("parquet", export * rounds, workers=workers, out=options.out))
        first = run.exported("parquet")[0]
        files = len(export) * rounds
        alone.append(plain_write(first, files=files, mb=mb, workers=1, out=options.out))
        together.append(plain_write(first, files=files, mb=mb, workers=workers, out=options.out))
    disk = exported[-1].done.manifest["bytes"] / 1e6 / mb
    speed = mb / _median(exported)
    one, several = mb / statistics.median(alone), mb / statistics.median(together)
    told = f"{len(run):,}" + (f", {rounds} times" if rounds > 1 else "")
    cells = [
        f"{mb / 4 / statistics.median(taken.cpu for taken in composed):.1f}",
        f"{mb / 4 / _median(composed):.1f}",
        f"{speed:.0f}",
        f"{mb / statistics.median(taken.cpu for taken in exported):.0f}",
        f"{disk:.0%}",
        f"{one:.0f}",
        f"{several:.0f}",
        f"**{speed / one:.2f}**",
        f"**{speed / several:.2f}**",
    ]
    return f"| {method} | {told} | " + " | ".join(cells) + " |"


def carried_out(name: str, tasks: Sequence[Task], *, workers: int, out: Path) -> Taken:
    """Run tasks as a step in a folder of their own: start of workers, hashes, fsync and manifest included."""
    timed: list[Task] = [partial(_with_cpu, task) for task in tasks]
    step = Step(name, 0, {}, (), lambda _: timed)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        preload = ["nextlong.pipeline", "pyarrow.parquet", "tokenizers"]
        with LocalExecutor(workers, preload=preload) as executor:
            os.sync()
            start = time.perf_counter()
            done = run_steps([step], run_dir=Path(folder), executor=executor)[name]
            seconds = time.perf_counter() - start
        return Taken(seconds=seconds, cpu=sum(counts["cpu"] for counts in done.counts), done=done)


def _with_cpu(task: Task, out: Path) -> dict[str, Any]:
    start = time.process_time()
    return task(out) | {"cpu": time.process_time() - start}


def plain_write(first: Path, *, files: int, mb: float, workers: int, out: Path) -> float:
    """Return the seconds that `files` files of ids, `mb` MB in all, take to be written and brought to the disk."""
    sizes = [len(part) for part in np.array_split(np.arange(round(mb * 1e6 / 4)), files)]
    with tempfile.TemporaryDirectory(dir=out) as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(files)]
        with ProcessPoolExecutor(workers, initializer=_hold, initargs=(first, max(sizes))) as pool:
            list(pool.map(time.sleep, [0.05] * workers))  # all are started and hold their ids
            os.sync()
            start = time.perf_counter()
            list(pool.map(_save, paths, sizes))
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(_sync, paths))
            return time.perf_counter() - start


def _hold(path: Path, size: int) -> None:
    global _held
    ids = pq.read_table(path, columns=["input_ids"]).column(0).combine_chunks().values.to_numpy()
    _held = np.resize(ids, size)


def _save(path: Path, size: int) -> None:
    np.save(path, _held[:size])


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _median(taken: Sequence[Taken]) -> float:
    return statistics.median(one.seconds for one in taken)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="its run directory keeps what is there and gets what is missing")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--target-tokens", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(".bench"), metavar="DIR", help="on the disk to measure")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
