"""Runner: carry out the steps of a route in a run directory, skipping what is there.

For each step in order: a finished one is kept; of an unfinished one the tasks whose files are confirmed are kept and the
others run, on whatever executor; the manifest comes last. Killed anywhere, the next call goes on at the first task that
is missing, and the bytes are those of an uninterrupted run.
"""

from __future__ import annotations

import platform
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from nextlong.engine import store
from nextlong.engine.progress import Quiet, Reporter
from nextlong.engine.step import Counts, Done, Finished, Step, Task

_RECORDED_PACKAGES = ("nextlong", "numpy", "pyarrow", "faiss-cpu", "scikit-learn", "tokenizers")


class Executor(Protocol):
    """Where tasks run. `map` yields results as they come; the order is free."""

    def map(self, call: Any, arguments: Sequence[tuple[Any, ...]], *, lanes: int | None = None) -> Iterator[Any]:
        """Yield `call(*a)` for each of `arguments`, at most `lanes` at once."""


def run_steps(
    steps: Sequence[Step],
    *,
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
    known: Finished | None = None,
) -> dict[str, Done]:
    """Bring every step to its finished state, in order; return them by name, with those `known` to be.

    The caller holds the run directory's lock. Raises RunError for files that were altered, a full disk or an unwritable
    folder, and whatever user's error a task raises.
    """
    reporter = reporter or Quiet()
    finished: dict[str, Done] = dict(known or {})
    for place, step in enumerate(steps, start=len(finished) + 1):
        with store.explained(run_dir):
            there = find_done(step, run_dir)
            if there is not None:
                store.check_files(there.folder, there.manifest)
                store.remove_leftovers(there.folder)
                reporter.kept(step.name)
            else:
                folder = _folder_of(step, run_dir) or run_dir / f"{place:02d}-{step.folder_suffix}"
                there = _run_step(step, folder, finished, executor, reporter)
        if step.check is not None:
            step.check(there)
        finished[step.name] = there
    return finished


def find_done(step: Step, run_dir: Path) -> Done | None:
    """Return the finished step if the run directory holds it."""
    folder = _folder_of(step, run_dir)
    if folder is None or not (folder / store.MANIFEST).exists():
        return None
    return Done(step.name, folder, store.read_json(folder / store.MANIFEST))


def begun_tasks(step: Step, run_dir: Path) -> int:
    """Return how many tasks of an unfinished step have left their marker; a run confirms their files before it trusts them."""
    folder = _folder_of(step, run_dir)
    return 0 if folder is None else sum(1 for _ in folder.glob(".part-*.json"))


def open_done(name: str, folder: Path, *, trust: store.Trust = "time") -> Done:
    """Return a finished step by its folder, with its files checked as `store.check_files` does. Raises RunError."""
    manifest = store.read_json(folder / store.MANIFEST)
    store.check_files(folder, manifest, trust=trust)
    return Done(name, folder, manifest)


def _folder_of(step: Step, run_dir: Path) -> Path | None:
    # The number before the name is the place on the route that made the folder first; another method's route may differ.
    return next(iter(sorted(run_dir.glob(f"[0-9][0-9]-{step.folder_suffix}"))), None)


def _run_step(step: Step, folder: Path, finished: Finished, executor: Executor, reporter: Reporter) -> Done:
    began = time.monotonic()
    folder.mkdir(exist_ok=True)
    store.remove_leftovers(folder)
    tasks = step.tasks({done.name: finished[done.name] for done in step.inputs})
    total = len(tasks) + (step.close is not None)
    parts = {index: part for index, part in store.confirmed_parts(folder).items() if index < total}
    missing = [(task, folder, index) for index, task in enumerate(tasks) if index not in parts]
    with reporter.step(step.name, done=len(parts), total=total) as advance, store.early_syncing(folder) as to_disk:
        for part in executor.map(_run_task, missing, lanes=step.lanes() if missing else None):
            parts[part["index"]] = part
            to_disk(part)
            advance()
        if step.close is not None and len(tasks) not in parts:
            closing = step.close([parts[index]["counts"] for index in range(len(tasks))])
            for part in executor.map(_run_task, [(closing, folder, len(tasks))]):
                parts[len(tasks)] = part
                advance()
    if step.close is not None:
        parts[len(tasks)]["closes"] = True
    manifest = {
        "step": step.name,
        "version": step.version,
        "fingerprint": step.fingerprint,
        "config": step.config,
        "inputs": {done.name: done.fingerprint for done in step.inputs},
        "parts": [parts[index] for index in sorted(parts)],
        "bytes": sum(record["bytes"] for part in parts.values() for record in part["files"].values()),
        "seconds": round(time.monotonic() - began, 3),
        "versions": _versions(),
    }
    store.finish(folder, manifest)
    return Done(step.name, folder, manifest)


def _run_task(task: Task, folder: Path, index: int) -> dict[str, Any]:
    """Run one task in a private folder beside its destination, then move its files into place; runs in a worker."""
    began = time.monotonic()
    work = folder / f".work-{index:05d}-{uuid.uuid4().hex[:8]}"
    with store.explained(folder):
        try:
            work.mkdir()
            counts: Counts = task(work / f"part-{index:05d}")
            return store.commit_part(work, folder, index, counts, time.monotonic() - began)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
