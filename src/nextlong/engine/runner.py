"""Runner: carry out the steps of a route in a run directory, skipping what is there.

A finished step is kept; of an unfinished one the tasks whose files are confirmed are kept and the others run, on whatever
executor; the manifest comes last. A step starts when its own inputs are done, beside whatever else runs, so that steps of a
single task leave fewer cores idle. Killed anywhere, the next call goes on with the tasks that are missing, and the bytes are
those of an uninterrupted run.
"""

from __future__ import annotations

import platform
import shutil
import time
import uuid
from collections import deque
from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from nextlong.engine import process, store
from nextlong.engine.executor import Executor, Resources
from nextlong.engine.progress import Clock, Quiet, Reporter
from nextlong.engine.step import Artifact, Artifacts, Step, Task, Work
from nextlong.errors import RunError

_RECORDED_PACKAGES = ("nextlong", "numpy", "pyarrow", "scipy", "faiss-cpu", "tokenizers", "fastokens")


def run_steps(
    steps: Sequence[Step],
    *,
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
    known: Artifacts | None = None,
    only: Container[str] | None = None,
) -> dict[str, Artifact]:
    """Bring every step to its finished state; return them by name in the order given, after those `known` to be.

    `only` names those of the steps to carry out, if not all: their places on the route, which number their folders, stay.
    The caller holds the run directory's lock. Raises RunError for files that were altered, a full disk or an unwritable
    folder, and whatever user's error a task raises.
    """
    with store.explained(run_dir):
        places = {
            place: step
            for place, step in enumerate(steps, start=len(known or {}) + 1)
            if only is None or step.name in only
        }
        finished = _Route(places, dict(known or {}), run_dir, executor, reporter or Quiet()).carry_out()
    return dict(known or {}) | {step.name: finished[step.name] for step in places.values()}


class _Route:
    """Steps on their way: those that wait for others, those under way in the order of the route, those that are done."""

    def __init__(
        self,
        waiting: dict[int, Step],
        known: dict[str, Artifact],
        run_dir: Path,
        executor: Executor,
        reporter: Reporter,
    ) -> None:
        self._waiting = dict(waiting)  # by place
        self._running: dict[int, _Running] = {}
        self._finished = known
        self._run_dir, self._executor, self._reporter = run_dir, executor, reporter
        self._kept: list[str] = []  # and not yet told

    def carry_out(self) -> dict[str, Artifact]:
        """Finish every step."""
        with ExitStack() as endings:
            while self._waiting or self._running:
                self._open_ready(endings)
                self._hand_over()
                if not self._running:
                    continue  # what was ready was there already
                for place, part in self._executor.ended():
                    self._running[place].add(part)
                    if self._running[place].is_done:
                        self._end(place)
                if not self._running:  # workers in the middle of a step keep what they loaded for it
                    self._executor.release_memory()
            self._tell_kept()
        return self._finished

    def _tell_kept(self) -> None:
        if self._kept:
            self._reporter.kept(self._kept)
            self._kept = []

    def _open_ready(self, endings: ExitStack) -> None:
        """Begin the steps whose inputs are done, or take them as they are there."""
        names = {step.name for step in self._waiting.values()} | {
            running.step.name for running in self._running.values()
        }
        for place, step in list(self._waiting.items()):
            if names.isdisjoint(before.name for before in step.inputs):
                del self._waiting[place]
                if (there := find_done(step, self._run_dir)) is not None:
                    store.check_files(there.folder, there.manifest)
                    store.remove_leftovers(there.folder)
                    self._kept.append(step.name)
                    self._accept(step, there)
                    names.discard(step.name)
                    continue
                folder, work = _folder_for(step, self._run_dir, place), step.work(self._finished)
                store.remove_leftovers(folder)
                parts = store.confirmed_parts(folder)
                parts = {index: part for index, part in parts.items() if index < len(work)}
                running = _Running(step, folder, work, parts, step.needs(work, self._executor))
                self._running[place] = running
                self._tell_kept()  # together, before this step's own lines
                running.start(self._reporter)
                endings.push(running.ending)
                if running.is_done:
                    self._end(place)
                    names.discard(step.name)

    def _hand_over(self) -> None:
        """Give the executor what it has room for; the tasks of the first step come first."""
        for place, running in sorted(self._running.items()):
            while (task := running.next_task()) is not None and self._executor.has_room(task.resources):
                running.hand_over()
                label = f"{running.step.name} task {task.number}"
                call = (_run_task, task.task, task.folder, task.number)
                self._executor.submit(place, *call, resources=task.resources, label=label)

    def _end(self, place: int) -> None:
        running = self._running.pop(place)
        self._accept(running.step, running.finish())

    def _accept(self, step: Step, done: Artifact) -> None:
        if step.check is not None:
            step.check(done)
        self._finished[step.name] = done


def find_done(step: Step, run_dir: Path) -> Artifact | None:
    """Return the finished step if the run directory holds it."""
    folder = store.step_folder(run_dir, step.folder_suffix)
    if folder is None or not (folder / store.MANIFEST).exists():
        return None
    return Artifact(step.name, folder, store.read_json(folder / store.MANIFEST))


def begun_tasks(step: Step, run_dir: Path) -> int:
    """Return how many tasks of an unfinished step have left their marker; a run confirms their files before it trusts them."""
    folder = store.step_folder(run_dir, step.folder_suffix)
    return 0 if folder is None else sum(1 for _ in folder.glob(".part-*.json"))


def open_done(name: str, folder: Path, *, trust: store.Trust = "time") -> Artifact:
    """Return a finished step by its folder, with its files checked as `store.check_files` does. Raises RunError."""
    manifest = store.read_json(folder / store.MANIFEST)
    store.check_files(folder, manifest, trust=trust)
    return Artifact(name, folder, manifest)


def _folder_for(step: Step, run_dir: Path, place: int) -> Path:
    """Return the folder of a step: the one that there is, or that which its place on the route names."""
    return store.step_folder(run_dir, step.folder_suffix) or run_dir / f"{place:02d}-{step.folder_suffix}"


class _Numbered(NamedTuple):
    """A task, where its files go, its place among the tasks of its step, and what it needs."""

    task: Task
    folder: Path
    number: int
    resources: Resources


class _Running:
    """A step under way; `parts` are those of its tasks that are done, by index. Joins have the numbers after those of its tasks."""

    def __init__(
        self,
        step: Step,
        folder: Path,
        work: Work,
        parts: dict[int, store.TaskPart],
        resources: Resources,
    ) -> None:
        self.step = step
        self.in_flight = 0
        self._at_once = resources.at_once
        self.ending = ExitStack()  # of what goes on beside the tasks
        self._folder = folder
        self._parts = parts
        self._joins = dict(enumerate(work.joins, start=len(work.tasks)))  # by task index
        self._replaced: set[int] = set()  # tasks whose files a join has taken the place of
        self._total = len(work)
        for index in self._joins.keys() & parts.keys():  # the members of a join that is done are not run again
            self._replace(index)
        order: Sequence[int] = range(len(work.tasks))
        if step.sizes is not None:
            order = sorted(order, key=step.sizes.__getitem__, reverse=True)
        self._left = deque(
            _Numbered(work.tasks[index], folder, index, resources)
            for index in order
            if index not in parts and index not in self._replaced
        )
        self._join_of = {member: index for index, join in self._joins.items() for member in join.members}
        self._missing = {  # by join that is to be done: how many of its members are not
            index: sum(member not in parts for member in join.members)
            for index, join in self._joins.items()
            if index not in parts
        }
        for index in [index for index, missing in self._missing.items() if not missing]:
            self._begin_join(index)

    @property
    def done_count(self) -> int:
        """How many tasks are done."""
        return len(self._parts) + len(self._replaced)

    @property
    def is_done(self) -> bool:
        """Whether every task is."""
        return self.done_count == self._total

    def start(self, reporter: Reporter) -> None:
        """Begin to report, and to bring parts to the disk."""
        self._clock = Clock()
        self._folder.mkdir(exist_ok=True)
        self.ending.push(self._remove_if_empty)
        progress = reporter.step(self.step.name, done=self.done_count, total=self._total)
        self._advance = self.ending.enter_context(progress)

    def _remove_if_empty(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # failed before any of its tasks was done
            with suppress(OSError):
                self._folder.rmdir()

    def next_task(self) -> _Numbered | None:
        """Return a task that can begin now, the same until it is taken note of."""
        if self._at_once is not None and self.in_flight >= self._at_once:
            return None
        return self._left[0] if self._left else None

    def _begin_join(self, index: int) -> None:
        """Put a join whose members are all done before the tasks that are left, so that few members' files are kept."""
        join = self._joins[index]
        results = [self.step.result.model_validate(self._parts[member]["counts"]) for member in join.members]
        self._left.appendleft(_Numbered(join.make(results), self._folder, index, Resources()))

    def _replace(self, index: int) -> None:
        """Delete the files that those of a join take the place of."""
        if self._joins[index].replaces:
            members = self._joins[index].members
            store.delete_parts(self._folder, members)
            self._replaced.update(members)
            for member in members:
                self._parts.pop(member, None)

    def hand_over(self) -> None:
        """Take note that the next task has begun."""
        self._left.popleft()
        self.in_flight += 1

    def add(self, part: store.TaskPart) -> None:
        """Take note of a task that is done."""
        self.in_flight -= 1
        index = part["index"]
        self._parts[index] = part
        if index in self._joins:
            self._replace(index)
        elif (join := self._join_of.get(index)) is not None:
            self._missing[join] -= 1
            if not self._missing[join]:
                self._begin_join(join)
        self._advance(part["seconds"])
        self._clock.advance(part["seconds"])

    def finish(self) -> Artifact:
        """Write the manifest, with the versions of Python and packages."""
        self.ending.close()
        step, parts = self.step, self._parts
        for index, join in self._joins.items():
            if not join.replaces:
                parts[index]["closes"] = True
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
        return Artifact(step.name, self._folder, manifest)


def _run_task(task: Task, folder: Path, index: int) -> store.TaskPart:
    """Run one task in a private folder beside its destination, then move its files into place; runs in a worker."""
    began = time.monotonic()
    work = folder / f".work-{index:05d}-{uuid.uuid4().hex[:8]}"
    with store.explained(folder):
        try:
            work.mkdir()
            with process.peak() as peak_bytes, process.named(folder, index):
                result = task(work / f"part-{index:05d}").model_dump(mode="json")
            return store.commit_part(work, folder, index, result, time.monotonic() - began, peak_bytes=peak_bytes())
        finally:
            shutil.rmtree(work, ignore_errors=True)


@cache  # looking a version up takes 3 ms a package
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


# Array jobs of a scheduler meet in the run directory: each runs some tasks of one step and leaves their files and markers; an
# ordinary run confirms them, runs what is missing, and writes the manifest.


def run_array_job(
    steps: Sequence[Step],
    name: str,
    *,
    job: tuple[int, int],
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
) -> tuple[int, int]:
    """Run the tasks k, k + n, k + 2n … of the step `name`, counted from 1, for array job (k, n); return how many, of how many.

    Raises RunError if there is no such step, or one of its inputs is not done.
    """
    place, step = _step_of(steps, name)
    inputs = {before.name: find_done(before, run_dir) for before in step.inputs}
    finished = {before: there for before, there in inputs.items() if there is not None}
    if lacking := [before for before in inputs if before not in finished]:
        raise RunError(
            f"{name} needs the step {lacking[0]}, which {run_dir} does not hold yet; say `nextlong run RECIPE --before "
            f"{name}` first, with the same settings"
        )
    if find_done(step, run_dir) is not None:
        return 0, 0
    work, folder = step.work(finished), _folder_for(step, run_dir, place)
    mine, resources = range(job[0] - 1, len(work.tasks), job[1]), step.needs(work, executor)
    with store.explained(run_dir):
        confirmed = store.confirmed_parts(folder, among=mine)
        waiting, running = deque(index for index in mine if index not in confirmed), 0
        missing = len(waiting)
        folder.mkdir(parents=True, exist_ok=True)
        with (reporter or Quiet()).step(name, done=len(mine) - missing, total=len(mine)) as advance:
            while waiting or running:
                while waiting and running < (resources.at_once or len(mine)) and executor.has_room(resources):
                    index = waiting.popleft()
                    call = (_run_task, work.tasks[index], folder, index)
                    executor.submit(0, *call, resources=resources, label=f"{name} task {index}")
                    running += 1
                for _, part in executor.ended():
                    running -= 1
                    advance(part["seconds"])
    return missing, len(work.tasks)


def steps_before(steps: Sequence[Step], name: str) -> set[str]:
    """Return the names of the steps that the step `name` needs. Raises RunError if there is no such step."""
    needed: set[str] = set()

    def add(step: Step) -> None:
        for one in step.inputs:
            if one.name not in needed:
                needed.add(one.name)
                add(one)

    add(_step_of(steps, name)[1])
    return needed


def _step_of(steps: Sequence[Step], name: str) -> tuple[int, Step]:
    for place, step in enumerate(steps, start=1):
        if step.name == name:
            return place, step
    raise RunError(
        f"--only-step: this recipe has no step {name!r}; choose one of {', '.join(step.name for step in steps)}"
    )
