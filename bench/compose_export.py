"""Compose and export, measured: tokens a second and core, and files against a plain NumPy write of the same ids.

In:  a recipe whose run directory is there or can be made; methods; formats.
Out: Markdown tables. Only composing and exporting are measured, carried out anew by the engine in a folder of the bench, by
the workers that composed, as in a run.

A method whose documents give fewer sequences than asked composes and exports those it
has several times over, and the table says so. The plain write holds ids in memory and
writes them with `np.save`, as many files as an export has and as many ids in all, one
process or as many as workers; like the export's, the files are brought to the disk when
all are written, eight at a time. All are taken in turn, `--repeats` times, and each
export is held against the plain write just before it. Every measurement starts with
nothing left to write and with as much memory just given back as it will write: in a
virtual machine pages that the host has to find first make a write three times as slow,
of either kind.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

import nextlong
from nextlong import pipeline
from nextlong.artifacts.results import TokensFiles
from nextlong.engine.local import LocalExecutor
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Artifacts, Step, Task, TaskResult, Work
from nextlong.export.steps import export_steps, read_steps
from nextlong.recipe import Recipe
from nextlong.runs.run import Run
from nextlong.sequences.compose import compose_step

METHODS = ("nextlong", "standard", "knn", "iclm", "quest")
FORMATS = (
    "parquet",
    "parquet:none",
    "arrow",
    "mds",
    "megatron",
    "torchtitan",
    "jsonl",
)  # format:compression
_FILES = 16  # of the plain write
_held = np.empty(0, np.int32)  # what a process of the plain write holds


class Taken(NamedTuple):
    """One measurement; `cpu` is the processor time of the tasks in seconds."""

    seconds: float
    cpu: float
    bytes: int


class Measured(NamedTuple):
    """All measurements of a method: composing, exporting by format, plain writes in seconds."""

    sequences: str
    mb: float
    composed: list[Taken]
    exported: dict[str, list[Taken]]
    alone: dict[str, list[float]]  # just before each of `exported`
    together: list[float]


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        f"{options.sequences:,} sequences of {options.target_tokens:,} tokens; medians of {options.repeats} rounds, and in "
        "brackets the lowest and the highest\n"
    )
    print(
        "| method | format | sequences | MB/s of ids, wall | per core | of which on disk | np.save, 1 process | np.save, workers "
        "| export / 1 process |"
    )
    print("|---|---|" + "---:|" * 7)
    composed = []
    for method in options.methods:
        found = measured(method, options)
        composed.append(compose_row(method, found))
        for row in export_rows(method, found):
            print(row, flush=True)
    print(
        "\n| method | sequences | compose: M tokens/s per core | M tokens/s, wall |\n|---|"
        + "---:|" * 3
    )
    print("\n".join(composed))
    return 0


def measured(method: str, options: argparse.Namespace) -> Measured:
    """Compose, export in every format and write plainly, in turn."""
    changes = [
        f"compose.method={method}",
        f"compose.sequences={options.sequences}",
        f"compose.target_tokens={options.target_tokens}",
        "export.formats=[megatron]",
    ]
    recipe = Recipe.load(options.recipe, overrides=[*options.overrides, *changes])
    run = nextlong.run(recipe)
    rounds = -(-options.sequences // len(run))
    mb = len(run) * rounds * options.target_tokens * 4 / 1e6
    found = Measured(
        f"{len(run):,}" + (f", {rounds} times" if rounds > 1 else ""),
        mb,
        [],
        {},
        {},
        [],
    )
    for _ in range(options.repeats):
        with LocalExecutor(
            pipeline.worker_count(recipe),
            preload=["nextlong.pipeline", "pyarrow.parquet", "tokenizers"],
        ) as executor:
            ids = TokensFiles.of(run.steps).ids
            found.composed.append(
                carried_out(
                    [composing(recipe, run, rounds)],
                    executor,
                    known={},
                    out=options.out,
                    mb=mb,
                )
            )
            for asked in options.formats:
                found.alone.setdefault(asked, []).append(
                    plain_write(ids, mb=mb, workers=1, out=options.out)
                )
                taken = carried_out(
                    writing(run, asked, rounds),
                    executor,
                    known=run.steps,
                    out=options.out,
                    mb=mb,
                )
                found.exported.setdefault(asked, []).append(taken)
        found.together.append(
            plain_write(
                ids, mb=mb, workers=pipeline.worker_count(recipe), out=options.out
            )
        )
    return found


def compose_row(method: str, found: Measured) -> str:
    """Return a method's row of the table of composing."""
    million = found.mb / 4
    cpu, seconds = (
        median([pick(taken) for taken in found.composed])
        for pick in (attrgetter("cpu"), attrgetter("seconds"))
    )
    return f"| {method} | {found.sequences} | {million / cpu:.1f} | {million / seconds:.1f} |"


def export_rows(method: str, found: Measured) -> list[str]:
    """Return a method's rows of the table of exporting."""
    rows = []
    for asked, taken in found.exported.items():
        alone = found.alone[asked]
        cells = [
            _spread([found.mb / one.seconds for one in taken]),
            _spread([found.mb / one.cpu for one in taken]),
            f"{taken[0].bytes / 1e6 / found.mb:.0%}",
            _spread([found.mb / seconds for seconds in alone]),
            _spread([found.mb / seconds for seconds in found.together]),
            _spread(
                [plain / own.seconds for plain, own in zip(alone, taken, strict=True)],
                digits=2,
            ),
        ]
        rows.append(
            f"| {method} | {asked} | {found.sequences} | " + " | ".join(cells) + " |"
        )
    return rows


def _spread(values: Sequence[float], *, digits: int = 0) -> str:
    return f"**{median(values):.{digits}f}** ({min(values):.{digits}f}–{max(values):.{digits}f})"


def composing(recipe: Recipe, run: Run, rounds: int) -> Step:
    """Return a step that composes a run's sequences `rounds` times."""
    threshold = recipe.mine.near_duplicates_for(recipe.compose.negatives)
    step = compose_step(
        recipe.compose,
        (),
        target_tokens=recipe.sequence_tokens,
        seed=recipe.compose_seed,
        near_duplicates=threshold,
        engine=recipe.tokenizer.engine,
    )
    tasks = tasks_of(step, run.steps)
    return replace(step, tasks=lambda _: tasks * rounds)


def tasks_of(step: Step, done: Artifacts) -> list[Task]:
    """Return the tasks of a step without those that join their files, which take no time to speak of."""
    made = step.tasks(done)
    return list(made.tasks if isinstance(made, Work) else made)


def writing(run: Run, asked: str, rounds: int) -> list[Step]:
    """Return the steps that write a run's sequences, each `rounds` times, in `format:compression`."""
    name, _, compression = asked.partition(":")
    changes = [
        f"export.formats=[{name}]",
        *([f"export.compression={compression}"] if compression else []),
    ]
    recipe = Recipe.from_dict(run.recipe.model_dump(mode="json"), overrides=changes)
    rows, write = export_steps(
        recipe.export, read_steps(run.steps), sequences=recipe.compose.sequences
    )

    def arranging(done: Artifacts) -> list[Task]:
        (task,) = tasks_of(rows, done)
        return [partial(_repeated, task, rounds)]

    return [replace(rows, tasks=arranging), write]


def _repeated(task: Task, rounds: int, out: Path) -> TaskResult:
    result = task(out)
    index = np.tile(np.load(f"{out}.train.index.npy"), rounds)
    np.save(f"{out}.train.index.npy", index)
    np.save(f"{out}.train.offsets.npy", np.arange(len(index) + 1))
    return result


def carried_out(
    planned: Sequence[Step],
    executor: LocalExecutor,
    *,
    known: Artifacts,
    out: Path,
    mb: float,
) -> Taken:
    """Run steps in a folder of their own: hashes, fsync and manifests included."""
    timed = [replace(step, tasks=partial(_timed_tasks, step)) for step in planned]
    with tempfile.TemporaryDirectory(dir=out) as folder:
        settle(out, mb=mb)
        start = time.perf_counter()
        done = run_steps(timed, run_dir=Path(folder), executor=executor, known=known)
        seconds = time.perf_counter() - start
        own = [done[step.name] for step in timed]
        cpu = sum(
            float(path.read_text()) for step in own for path in step.files(".cpu")
        )
        return Taken(seconds, cpu, own[-1].manifest["bytes"])


def _timed_tasks(step: Step, done: Artifacts) -> list[Task]:
    return [partial(_with_cpu, task) for task in tasks_of(step, done)]


def _with_cpu(task: Task, out: Path) -> TaskResult:
    start = time.process_time()
    result = task(out)
    Path(f"{out}.cpu").write_text(str(time.process_time() - start), encoding="utf-8")
    return result


def plain_write(ids: Sequence[Path], *, mb: float, workers: int, out: Path) -> float:
    """Return the seconds that files of ids, `mb` MB in all, take to be written and brought to the disk."""
    sizes = [round(mb * 1e6 / 4 / _FILES)] * _FILES
    with tempfile.TemporaryDirectory(dir=out) as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(_FILES)]
        with ProcessPoolExecutor(
            workers, initializer=_hold, initargs=(ids, max(sizes))
        ) as pool:
            list(
                pool.map(time.sleep, [0.05] * workers)
            )  # all are started and hold their ids
            settle(out, mb=mb)
            start = time.perf_counter()
            list(pool.map(_save, paths, sizes))
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(_sync, paths))
            return time.perf_counter() - start


def settle(out: Path, *, mb: float) -> None:
    """Bring all that is written to the disk, and leave memory for a third more than `mb` behind that was just in use."""
    block = os.urandom(16_000_000)
    path = out / "settle"
    with path.open("wb") as file:
        for _ in range(math.ceil(4 / 3 * mb / 16)):
            file.write(block)
    path.unlink()
    os.sync()


def _hold(paths: Sequence[Path], size: int) -> None:
    global _held
    _held = np.resize(
        np.concatenate([np.load(path).view(np.int32) for path in paths]), size
    )


def _save(path: Path, size: int) -> None:
    np.save(path, _held[:size])


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe",
        type=Path,
        help="its run directory keeps what is there and gets what is missing",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument(
        "--formats", nargs="+", default=FORMATS, metavar="FORMAT[:COMPRESSION]"
    )
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--target-tokens", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(".bench"),
        metavar="DIR",
        help="on the disk to measure",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
