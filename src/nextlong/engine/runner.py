"""Runner: carry out the steps of a route in a run directory, skipping what is there.

A finished step is kept; of an unfinished one the tasks whose files are confirmed are kept and the others run, on whatever
executor; the manifest comes last. Steps that do not wait for one another run side by side, so that those of a single task
leave fewer cores idle. Killed anywhere, the next call goes on with the tasks that are missing, and the bytes are those of an
uninterrupted run.
"""

from __future__ import annotations

import platform
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from nextlong.engine import store
from nextlong.engine.progress import Clock, Quiet, Reporter
from nextlong.engine.step import Counts, Done, Finished, Step, Task

_RECORDED_PACKAGES = ("nextlong", "numpy", "pyarrow", "faiss-cpu", "scikit-learn", "tokenizers")


class Executor(Protocol):
    """Where tasks run. `map` yields results as they come; the order is free."""

    def map(self, call: Any, arguments: Iterable[tuple[Any, ...]], *, lanes: int | None = None) -> Iterator[Any]:
        """Yield `call(*a)` for each of `arguments`, taken as workers become free, at most `lanes` at once."""


def run_steps(
    steps: Sequence[Step],
    *,
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
    known: Finished | None = None,
) -> dict[str, Done]:
    """Bring every step to its finished state; return them by name in the order given, after those `known` to be.

    The caller holds the run directory's lock. Raises RunError for files that were altered, a full disk or an unwritable
    folder, and whatever user's error a task raises.
    """
    reporter = reporter or Quiet()
    finished: dict[str, Done] = dict(known or {})
    for ready in waves(steps, start=len(finished) + 1):
        with store.explained(run_dir):
            running = []
            for place, step in ready.items():
                there = find_done(step, run_dir)
                if there is None:
                    running.append(_open_step(step, run_dir, place, finished))
                else:
                    store.check_files(there.folder, there.manifest)
                    store.remove_leftovers(there.folder)
                    reporter.kept(step.name)
                    _accept(step, there, finished)
            _run_together(running, finished, executor, reporter)
    return dict(known or {}) | {step.name: finished[step.name] for step in steps}


def waves(steps: Sequence[Step], *, start: int = 1) -> Iterator[dict[int, Step]]:
    """Yield the steps that run side by side, by their place on the route, which is counted from `start`.

    Of those that are left, the ones that wait for none of the others; a step with lanes has the executor to itself.
    """
    waiting = dict(enumerate(steps, start=start))
    while waiting:
        names = {step.name for step in waiting.values()}
        ready = {
            place: step for place, step in waiting.items() if names.isdisjoint(before.name for before in step.inputs)
        }
        first = min(ready)
        alone = ready[first].lanes is not None
        ready = {place: step for place, step in ready.items() if place == first or (not alone and step.lanes is None)}
        yield ready
        waiting = {place: step for place, step in waiting.items() if place not in ready}


def _accept(step: Step, there: Done, finished: dict[str, Done]) -> None:
    if step.check is not None:
        step.check(there)
    finished[step.name] = there


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


class _Running:
    """A step under way; `parts` are those of its tasks that are done, by index."""

    def __init__(self, step: Step, folder: Path, tasks: Sequence[Task], parts: dict[int, dict[str, Any]]) -> None:
        self.step = step
        self._folder = folder
        self._tasks = tasks
        self._parts = parts
        self._total = len(tasks) + (step.close is not None)
        self._is_started = False
        self.ending = ExitStack()  # of what goes on beside the tasks

    @property
    def is_done(self) -> bool:
        """Whether every task is."""
        return len(self._parts) == self._total

    def start(self, reporter: Reporter) -> None:
        """Begin to report, and to bring parts to the disk, unless it has begun."""
        if not self._is_started:
            self._is_started = True
            self._clock = Clock()
            self._folder.mkdir(exist_ok=True)
            self.ending.push(self._remove_if_empty)
            progress = reporter.step(self.step.name, done=len(self._parts), total=self._total)
            self._advance = self.ending.enter_context(progress)
            self._to_disk = self.ending.enter_context(store.early_syncing(self._folder))

    def _remove_if_empty(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # failed before any of its tasks was done
            with suppress(OSError):
                self._folder.rmdir()

    def missing(self) -> list[tuple[Task, Path, int]]:
        """Return the tasks that can run now; that which closes the step only once all others are done."""
        missing = [(task, self._folder, index) for index, task in enumerate(self._tasks) if index not in self._parts]
        if missing or self.is_done or self.step.close is None:
            return missing
        closing = self.step.close([self._parts[index]["counts"] for index in range(len(self._tasks))])
        return [(closing, self._folder, len(self._tasks))]

    def add(self, part: dict[str, Any]) -> None:
        """Take note of a task that is done."""
        self._parts[part["index"]] = part
        self._to_disk(part)
        self._advance(part["seconds"])
        self._clock.advance(part["seconds"])

    def finish(self) -> Done:
        """Write the manifest."""
        self.ending.close()
        step, parts = self.step, self._parts
        if step.close is not None:
            parts[len(self._tasks)]["closes"] = True
        manifest = {
            "step": step.name,
            "version": step.version,
            "fingerprint": step.fingerprint,
            "config": step.config,
            "inputs": {done.name: done.fingerprint for done in step.inputs},
            "parts": [parts[index] for index in sorted(parts)],
            "bytes": sum(record["bytes"] for part in parts.values() for record in part["files"].values()),
            "seconds": round(self._clock.spent(), 3),
            "versions": _versions(),
        }
        store.finish(self._folder, manifest)
        return Done(step.name, self._folder, manifest)


def _open_step(step: Step, run_dir: Path, place: int, finished: Finished) -> _Running:
    folder = _folder_of(step, run_dir) or run_dir / f"{place:02d}-{step.folder_suffix}"
    store.remove_leftovers(folder)
    tasks = step.tasks({before.name: finished[before.name] for before in step.inputs})
    total = len(tasks) + (step.close is not None)
    parts = {index: part for index, part in store.confirmed_parts(folder).items() if index < total}
    return _Running(step, folder, tasks, parts)


def _run_together(steps: Sequence[_Running], finished: dict[str, Done], executor: Executor, reporter: Reporter) -> None:
    """Finish steps. The tasks of the first come first, and those of the next as workers become free."""
    left = dict(enumerate(steps))

    def end(number: int) -> None:
        running = left.pop(number)
        _accept(running.step, running.finish(), finished)

    with ExitStack() as endings:
        for number, running in list(left.items()):
            if running.is_done:
                running.start(reporter)
                end(number)
        while left:
            lanes = next(iter(left.values())).step.lanes
            for number, part in executor.map(_run_task, _calls(left, reporter, endings), lanes=lanes and lanes()):
                left[number].add(part)
                if left[number].is_done:
                    end(number)


def _calls(
    steps: Mapping[int, _Running], reporter: Reporter, endings: ExitStack
) -> Iterator[tuple[int, Task, Path, int]]:
    for number, running in list(steps.items()):
        running.start(reporter)
        endings.enter_context(running.ending)
        for missing in running.missing():
            yield number, *missing


def _run_task(number: int, task: Task, folder: Path, index: int) -> tuple[int, dict[str, Any]]:
    """Run one task in a private folder beside its destination, then move its files into place; runs in a worker."""
    began = time.monotonic()
    work = folder / f".work-{index:05d}-{uuid.uuid4().hex[:8]}"
    with store.explained(folder):
        try:
            work.mkdir()
            counts: Counts = task(work / f"part-{index:05d}")
            return number, store.commit_part(work, folder, index, counts, time.monotonic() - began)
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
