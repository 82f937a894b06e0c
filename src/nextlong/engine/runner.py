"""Runner: run steps in a run directory, reusing finished ones.

In:  steps in order, and an executor. Out: finished steps, each with a manifest. A step
starts as soon as its own inputs are finished, beside other running steps, so that steps
with a single task leave fewer cores idle. After a kill at any moment, the next call
runs only the tasks whose files are not confirmed, and the bytes equal those of an
uninterrupted run.
"""

from __future__ import annotations

import platform
import shutil
import time
import uuid
from collections import deque
from collections.abc import Container, Sequence, Set
from contextlib import ExitStack, suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from nextlong.engine import store
from nextlong.engine.executor import Executor, Resources, peak_from_now
from nextlong.engine.progress import Clock, Reporter
from nextlong.engine.step import Artifact, Artifacts, Join, Step, Task, Work
from nextlong.errors import NextlongError, RunError
from nextlong.plugins import fault_of
from nextlong.text import Json

_RECORDED_PACKAGES = (
    "nextlong",
    "numpy",
    "pyarrow",
    "scipy",
    "faiss-cpu",
    "tokenizers",
    "fastokens",
)


def run_steps(
    steps: Sequence[Step],
    *,
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
    known: Artifacts | None = None,
    only: Container[str] | None = None,
) -> dict[str, Artifact]:
    """Run every step that is not finished.

    Return all by name in the given order, after the `known` ones. `only` names the
    steps to run, if not all of them; steps keep their places on the route, which number
    their folders. The caller holds the lock of the run directory. Raises RunError for
    altered files, a full disk or an unwritable folder, and any NextlongError of a task.
    """
    finished = dict(known or {})
    numbered = enumerate(steps, start=len(finished) + 1)
    waiting = {
        place: step for place, step in numbered if only is None or step.name in only
    }
    names = [step.name for step in waiting.values()]
    told = reporter or Reporter()
    route = _Route(waiting, finished, run_dir, executor, told)
    to_do = list(waiting.values())
    with store.explained(run_dir), told.route(to_do), route.endings:
        while route.waiting or route.running:
            route.start_ready()
            ended = route.finish_ended()
            # Start the steps that have become ready.
            if ended or not route.running:
                continue
            route.work()
        route.tell_reused()
    return dict(known or {}) | {name: finished[name] for name in names}


class _Route:
    """The steps of a run: `waiting` and `running` ones by place, and finished ones.

    A step starts as soon as its own inputs are finished, beside other steps, because a
    step of a single task uses one core.
    """

    def __init__(
        self,
        waiting: dict[int, Step],
        finished: dict[str, Artifact],
        run_dir: Path,
        executor: Executor,
        reporter: Reporter,
    ) -> None:
        self.waiting = waiting
        self.running: dict[int, _Running] = {}
        self.endings = ExitStack()
        self._finished = finished
        self._unfinished = {step.name for step in waiting.values()}
        self._run_dir = run_dir
        self._executor = executor
        self._reporter = reporter
        self._reused: list[str] = []  # steps not yet reported as reused

    def start_ready(self) -> None:
        """Start the steps whose inputs are finished, or reuse them."""
        for place, step in list(self.waiting.items()):
            inputs = {before.name for before in step.inputs}
            if inputs & self._unfinished:
                continue
            del self.waiting[place]
            done = find_done(step, self._run_dir)
            if done is None:
                self._start(place, step)
            else:
                store.check_files(done.folder, done.manifest)
                store.remove_leftovers(done.folder)
                self._reused.append(step.name)
                self._accept(step, done)

    def _start(self, place: int, step: Step) -> None:
        work = step.work(self._finished)
        # All of them in one line, before the lines of this step.
        self.tell_reused()
        folder = step.folder(self._run_dir, place=place)
        running = _Running(step, folder, work, self._executor, self._reporter)
        self.running[place] = running
        self.endings.push(running.ending)

    def _accept(self, step: Step, done: Artifact) -> None:
        if step.check is not None:
            step.check(done)
        self._finished[step.name] = done
        self._unfinished.discard(step.name)
        self._reporter.finished(step, done)

    def finish_ended(self) -> bool:
        """Finish the steps that have no task left; return whether there were any."""
        ended = [place for place, begun in self.running.items() if not begun.to_do]
        for place in ended:
            begun = self.running.pop(place)
            self._accept(begun.step, begun.finish())
        # Between steps only: workers keep what they loaded for a running step.
        if ended and not self.running:
            self._executor.release_memory()
        return bool(ended)

    def work(self) -> None:
        """Submit tasks, and wait for one to end."""
        # Tasks of earlier steps come first.
        for place, begun in sorted(self.running.items()):
            begun.hand_over(place, self._executor)
        for place, part in self._executor.ended():
            self.running[place].add(part)

    def tell_reused(self) -> None:
        """Report the steps that were reused since the last report."""
        if self._reused:
            self._reporter.kept(self._reused)
            self._reused = []


def find_done(step: Step, run_dir: Path) -> Artifact | None:
    """Return a step as it was finished; None if it was not."""
    folder = step.folder(run_dir)
    path = folder / store.MANIFEST
    if not path.exists():
        return None
    return Artifact(step.name, folder, store.read_json(path))


def begun_tasks(step: Step, run_dir: Path) -> int:
    """Return how many tasks of an unfinished step have a marker.

    A run confirms their files before it reuses them.
    """
    markers = step.folder(run_dir).glob(".part-*.json")
    return len(list(markers))


def open_done(name: str, folder: Path, *, trust: store.Trust = "time") -> Artifact:
    """Open a finished step by its folder, and check its files.

    As `store.check_files` does. Raises RunError.
    """
    manifest = store.read_json(folder / store.MANIFEST)
    store.check_files(folder, manifest, trust=trust)
    return Artifact(name, folder, manifest)


class _Running:
    """A running step.

    Joins are numbered after its tasks; `_parts` holds the results of finished tasks by
    number. With `among`, the tasks of one array job, files that other jobs may be
    writing are left alone.
    """

    def __init__(
        self,
        step: Step,
        folder: Path,
        work: Work,
        executor: Executor,
        reporter: Reporter,
        among: range | None = None,
    ) -> None:
        self.step = step
        self._work = work
        self._folder = folder
        self._resources = step.needs(work, executor)
        self._in_flight = 0
        self._joins: dict[int, Join] = {}
        numbers = among
        if numbers is None:
            numbers = range(len(work.tasks) + len(work.joins))
            self._joins = dict(enumerate(work.joins, start=len(work.tasks)))
            store.remove_leftovers(folder)
        self._parts = store.confirmed_parts(folder, among=numbers)
        # Members of a finished join are not run again; a kill may have left their
        # files.
        replaced: set[int] = set()
        for number in self._joins.keys() & self._parts.keys():
            replaced.update(self._replace(number))
        done = self._parts.keys() | replaced
        self.to_do = len(numbers) - len(done)
        self._left = deque(self._tasks_left(numbers, done))
        self._join_of: dict[int, int] = {}  # by member
        self._missing: dict[int, int] = {}  # unfinished members of each unfinished join
        self._plan_joins()
        self._clock = Clock()
        folder.mkdir(parents=True, exist_ok=True)
        # Ends the progress report.
        self.ending = ExitStack()
        if among is None:
            self.ending.push(self._remove_if_empty)
        progress = reporter.step(step.name, done=len(done), total=len(numbers))
        self._advance = self.ending.enter_context(progress)

    def _tasks_left(self, numbers: range, done: Set[int]) -> list[int]:
        """Return the tasks that are to run, the largest first."""
        order = [number for number in numbers if number < len(self._work.tasks)]
        if self.step.sizes is not None:
            order.sort(key=self.step.sizes.__getitem__, reverse=True)
        return [number for number in order if number not in done]

    def _plan_joins(self) -> None:
        """Count the unfinished members of each join that has not run."""
        for number, join in self._joins.items():
            if number in self._parts:
                continue
            for member in join.members:
                self._join_of[member] = number
            self._missing[number] = len({*join.members} - self._parts.keys())
        # A join whose members are all finished comes first, so that few files of
        # members exist at a time.
        ready = [number for number, missing in self._missing.items() if not missing]
        self._left.extendleft(ready)

    def _remove_if_empty(self, kind: type[BaseException] | None, *_: object) -> None:
        # This succeeds only if no task had finished.
        if kind is not None:
            with suppress(OSError):
                self._folder.rmdir()

    def hand_over(self, place: int, executor: Executor) -> None:
        """Submit tasks as long as the executor has room for them."""
        at_once = self._resources.at_once
        while self._left and (at_once is None or self._in_flight < at_once):
            number = self._left[0]
            # A join only moves bytes.
            is_join = number in self._joins
            resources = Resources() if is_join else self._resources
            if not executor.has_room(resources):
                return
            self._left.popleft()
            self._in_flight += 1
            executor.submit(
                place,
                _run_task,
                self._join_task(number) if is_join else self._work.tasks[number],
                self._folder,
                number,
                resources=resources,
                label=f"{self.step.name} task {number}",
            )

    def _join_task(self, number: int) -> Task:
        """Return the task of a join, which gets the results of its members."""
        join = self._joins[number]
        results = []
        for member in join.members:
            counts = self._parts[member]["counts"]
            results.append(self.step.result.model_validate(counts))
        return join.make(results)

    def _replace(self, number: int) -> Sequence[int]:
        """Delete the files that a finished join replaces.

        Return the tasks that wrote them.
        """
        join = self._joins[number]
        if not join.replaces:
            return ()
        store.delete_parts(self._folder, join.members)
        for member in join.members:
            self._parts.pop(member, None)
        return join.members

    def add(self, part: store.TaskPart) -> None:
        """Record a finished task; the last member of a join makes that ready."""
        self._in_flight -= 1
        self.to_do -= 1
        number = part["index"]
        self._parts[number] = part
        if number in self._joins:
            self._replace(number)
        elif number in self._join_of:
            join = self._join_of[number]
            self._missing[join] -= 1
            if not self._missing[join]:
                self._left.appendleft(join)
        self._advance(part["seconds"])
        self._clock.advance(part["seconds"])

    def finish(self) -> Artifact:
        """Write the manifest, with the versions of Python and of packages."""
        self.ending.close()
        step = self.step
        parts = self._parts
        for number, join in self._joins.items():
            if not join.replaces:
                parts[number]["closes"] = True
        total_bytes = 0
        for part in parts.values():
            total_bytes += sum(record["bytes"] for record in part["files"].values())
        manifest: Json = {
            "step": step.name,
            "version": step.version,
            "fingerprint": step.fingerprint,
            "config": step.config,
            "inputs": {done.name: done.fingerprint for done in step.inputs},
            "parts": [parts[number] for number in sorted(parts)],
            "bytes": total_bytes,
            "seconds": round(self._clock.spent(), 3),
            "versions": _versions(),
        }
        store.write_json(self._folder / store.MANIFEST, manifest)
        store.remove_leftovers(self._folder)
        return Artifact(step.name, self._folder, manifest)


def _result_of(task: Task, out: Path) -> Json:
    """Run a task; an exception in a plug-in's code is that plug-in's."""
    try:
        return task(out).model_dump(mode="json")
    except (NextlongError, MemoryError, OSError):
        raise
    except Exception as error:
        fault = fault_of(error)
        if fault is None:
            raise
        raise fault from None


def _run_task(task: Task, folder: Path, index: int) -> store.TaskPart:
    """Run one task in a private folder, and move its files into the folder of the step.

    Called in a worker.
    """
    start_s = time.monotonic()
    work = folder / f".work-{index:05d}-{uuid.uuid4().hex[:8]}"
    if not folder.is_dir():
        raise RunError(
            where=folder,
            problem=(
                "it does not exist on this machine: it was deleted during the run, or "
                "not every node has the run directory"
            ),
            fix="mount it under the same path on every node, then run again",
        )
    with store.explained(folder):
        try:
            work.mkdir()
            peak_bytes = peak_from_now()
            result = _result_of(task, work / f"part-{index:05d}")
            return store.commit_part(
                work,
                folder,
                index,
                result,
                time.monotonic() - start_s,
                peak_bytes=peak_bytes(),
            )
        except MemoryError as error:
            step = folder.name.split("-", 1)[1].rpartition("-")[0]
            reason = " ".join(str(error).split()) or "allocation failed"
            files = f"{folder.name}/part-{index:05d}.*"
            raise RunError(
                where=f"{step} task {index} (the files {files})",
                problem=f"it ran out of memory: {reason}",
                fix=(
                    "run again with fewer workers (--set workers=1) or on a larger "
                    "machine: finished steps are kept"
                ),
            ) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)


@cache  # a look-up takes 3 ms per package
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def run_array_job(
    steps: Sequence[Step],
    name: str,
    *,
    job: tuple[int, int],
    run_dir: Path,
    executor: Executor,
    reporter: Reporter,
) -> tuple[int, int]:
    """Run the tasks k, k + n, k + 2n … of the step `name` for array job (k, n).

    Counted from 1; return (tasks run, all tasks). The jobs of an array share the run
    directory and leave the files and markers of their tasks. An ordinary run confirms
    them, runs missing tasks, and writes the manifest. Raises RunError if there is no
    such step, or one of its inputs is not finished.
    """
    place, step = _step_of(steps, name)
    finished = {}
    for before in step.inputs:
        done = find_done(before, run_dir)
        if done is None:
            raise RunError(
                where=name,
                problem=(
                    f"it needs the step {before.name}, which is not finished "
                    f"in {run_dir}"
                ),
                fix=(
                    f"run `nextlong run RECIPE --before {name}` first, with the same "
                    "settings"
                ),
            )
        finished[before.name] = done
    if find_done(step, run_dir) is not None:
        return 0, 0
    number, jobs = job
    with store.explained(run_dir):
        work = step.work(finished)
        running = _Running(
            step,
            step.folder(run_dir, place=place),
            work,
            executor,
            reporter,
            among=range(number - 1, len(work.tasks), jobs),
        )
        missing = running.to_do
        with running.ending:
            while running.to_do:
                running.hand_over(place, executor)
                for _, part in executor.ended():
                    running.add(part)
    return missing, len(work.tasks)


def steps_before(steps: Sequence[Step], name: str) -> set[str]:
    """Return the names of the steps that the step `name` depends on.

    Raises RunError if there is no such step.
    """
    place, last = _step_of(steps, name)
    needed = {before.name for before in last.inputs}
    # The inputs of a step come before it.
    for step in reversed(steps[: place - 1]):
        if step.name in needed:
            needed.update(before.name for before in step.inputs)
    return needed


def _step_of(steps: Sequence[Step], name: str) -> tuple[int, Step]:
    """Return a step by its name, and its place on the route."""
    for place, step in enumerate(steps, start=1):
        if step.name == name:
            return place, step
    names = ", ".join(step.name for step in steps)
    raise RunError(
        where="--only-step",
        problem=f"this recipe has no step {name!r}",
        fix=f"choose one of {names}",
    )
