"""Step: a pure function from finished steps to files, described before it runs.

A step has a name, a version, a config and inputs; their hash is its fingerprint, and
its folder is `NN-name-<fingerprint>`. Changing a setting changes the fingerprint of
this step and of all later ones, and of no other. Tasks are created once the inputs are
finished, because only then the number of shards is known. Each task writes the same
bytes anywhere and at any time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, overload

from pydantic import BaseModel, ValidationError

from nextlong.engine.executor import Executor, Gpu, Resources
from nextlong.errors import RunError


class TaskResult(BaseModel, frozen=True):
    """What one task returns besides its files; the base class is empty.

    It is stored in the manifest.
    """


_ResultT = TypeVar("_ResultT", bound=TaskResult)
Task = Callable[[Path], TaskResult]  # its argument is the stem of its output files


@dataclass(frozen=True)
class Join:
    """An additional task of a step that starts when the tasks `members` are finished.

    `make` receives the results of the members in order. With `replaces`, the files of
    the join replace those of its members, which are deleted once its own are on disk;
    it returns the step's `result`, and only that is recorded in the manifest.
    """

    members: Sequence[int]
    make: Callable[[Sequence[Any]], Task]
    replaces: bool = False


@dataclass(frozen=True)
class Work:
    """The tasks of a step whose inputs are finished.

    Each runs on `threads` threads; joins, which only copy bytes, on one. `gpu`
    overrides the step's declaration if only the inputs show whether tasks cannot use a
    GPU ("unused") or need one ("needed", so that a growing cluster is waited for).
    """

    tasks: Sequence[Task]
    joins: Sequence[Join] = ()
    threads: int = 1
    gpu: Gpu | None = None


_TaskMaker = Callable[["Artifacts"], Sequence[Task] | Work]


def each_shard(
    task: Callable[..., TaskResult],
    *,
    given: Callable[[Artifacts], Mapping[str, Any]] = lambda _: {},
    **files: tuple[Step, ShardFiles],
) -> _TaskMaker:
    """Return a function that creates one task per shard.

    `files` names keyword arguments of `task`. For each, it has a step and a kind of its
    files; the task gets the one of its shard. `given` returns arguments that are equal
    for all shards and depend on the inputs.
    """

    def tasks(done: Artifacts) -> list[Task]:
        paths = [declared.of(done[step.name]) for step, declared in files.values()]
        task_of_shard = partial(task, **given(done))
        shard_tasks: list[Task] = []
        for paths_of_shard in zip(*paths, strict=True):
            arguments = dict(zip(files, paths_of_shard, strict=True))
            shard_tasks.append(partial(task_of_shard, **arguments))
        return shard_tasks

    return tasks


@dataclass(frozen=True)
class Step:
    """One step of a route.

    `tasks` receives the finished inputs; `check` may raise a NextlongError for the
    finished step. Every task returns a `result`, which the manifest stores and readers
    get back. `resources` are those of each task. `sizes` are the relative sizes of the
    tasks, if they differ: large tasks start first, so that none runs alone at the end.
    Progress shows the steps of one `phase` together; a step without one is shown alone.
    """

    name: str
    version: int
    config: Mapping[str, Any]
    inputs: tuple[Step, ...]
    tasks: _TaskMaker = field(compare=False)
    result: type[TaskResult] = field(default=TaskResult, compare=False)
    check: Callable[[Artifact], None] | None = field(default=None, compare=False)
    resources: Resources = field(default=Resources(), compare=False)
    sizes: Sequence[float] | None = field(default=None, compare=False)
    known_fingerprint: str | None = None
    phase: str = field(default="", compare=False)

    @classmethod
    def of(cls, done: Artifact) -> Step:
        """Return a finished step as an input of others; it cannot run again."""
        return cls(
            name=done.name,
            version=done.manifest["version"],
            config=done.manifest["config"],
            inputs=(),
            tasks=lambda _: (),
            known_fingerprint=done.manifest["fingerprint"],
        )

    def work(self, done: Artifacts) -> Work:
        """Return the tasks, given the finished inputs."""
        work = self.tasks({before.name: done[before.name] for before in self.inputs})
        return work if isinstance(work, Work) else Work(work)

    def needs(self, work: Work, executor: Executor) -> Resources:
        """Return the resources of each task on this executor.

        Their `gpu` is "unused" or "needed".
        """
        gpu = work.gpu or self.resources.gpu
        is_waited_for = gpu == "needed" and executor.grows
        # GPUs are counted last, because counting may import a framework.
        uses_gpu = gpu != "unused" and (executor.gpus > 0 or is_waited_for)
        needs = replace(self.resources, gpu="needed" if uses_gpu else "unused")
        if work.threads == 1:
            return needs
        # A cluster counts processors itself.
        at_once = None if executor.grows else max(1, executor.cpus // work.threads)
        return replace(needs, cpus=work.threads, at_once=at_once)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the step's name, version, config and input fingerprints."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        identity = [
            self.name,
            self.version,
            self.config,
            [step.fingerprint for step in self.inputs],
        ]
        # The inputs' fingerprints cover everything before this step.
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def folder(self, run_dir: Path, *, place: int = 0) -> Path:
        """Return the step's folder if it exists, or the path to create.

        That is `NN-name-fingerprint`, numbered by its place in the route.
        """
        suffix = f"{self.name}-{self.fingerprint}"
        # The route of another method, with the step at another place, may have created
        # it.
        existing = run_dir.glob(f"[0-9][0-9]-{suffix}")
        return min(existing, default=run_dir / f"{place:02d}-{suffix}")


class Files(list[Path]):
    """The files of one folder, which pickle as the folder and their names.

    A task of a step over a whole corpus gets the files of all shards, and the head
    pickles one task after the other. Eight lists of 12,067 shards (10^9 chunks), as an
    export needs them, take 36 ms of a core and 1.8 MB instead of 161 ms and 3.5 MB.
    """

    def __reduce__(self) -> tuple[Callable[..., Files], tuple[object, ...]]:
        if not self:
            return Files, ()
        return _in_folder, (str(self[0].parent), [path.name for path in self])


def _in_folder(folder: str, names: Sequence[str]) -> Files:
    return Files(Path(folder, name) for name in names)


@dataclass(frozen=True)
class Artifact:
    """A finished step: its folder, and its manifest.

    The manifest has its files and the results of its tasks.
    """

    name: str
    folder: Path
    manifest: Mapping[str, Any]

    def files(self, suffix: str | tuple[str, ...]) -> Files:
        """Return the step's files with the suffix, or one of several, in shard order.

        Raises RunError if there is none, as in a folder of an earlier version. Where a
        step declares its files (`StepFiles`), ask for them by name.
        """
        names = []
        for part in self.manifest["parts"]:
            names += [name for name in part["files"] if name.endswith(suffix)]
        if self.manifest["parts"] and not names:
            suffixes = (suffix,) if isinstance(suffix, str) else suffix
            raise self.of_earlier_version(" or ".join(suffixes))
        # By their numbers, because shard 10,000 has more digits than shard 9,999.
        names.sort(key=_numbers_in)
        return Files(self.folder / name for name in names)

    def file(self, suffix: str) -> Path:
        """Return the only file with the suffix."""
        (only,) = self.files(suffix)
        return only

    def stem(self) -> Path:
        """Return the common stem of the files of a one-task step."""
        return self.folder / "part-00000"

    def results(self, kind: type[_ResultT]) -> list[_ResultT]:
        """Return the result of each task in order, except that of a closing task.

        Raises RunError if a result does not match `kind`, as in a manifest of an
        earlier version.
        """
        results = []
        for part in self.manifest["parts"]:
            # A closing task joins the others, so it has no result of its own.
            if part.get("closes"):
                continue
            try:
                results.append(kind.model_validate(part["counts"]))
            except ValidationError as error:
                location = error.errors(include_url=False)[0]["loc"]
                name = ".".join(map(str, location)) or kind.__name__
                raise self.of_earlier_version(f"count of {name}") from None
        return results

    def result(self, kind: type[_ResultT]) -> _ResultT:
        """Return the result of the only task."""
        (only,) = self.results(kind)
        return only

    def of_earlier_version(self, lacks: str) -> RunError:
        """Return the error for a step made without something by an earlier version."""
        versions = self.manifest.get("versions", {})
        version = versions.get("nextlong", "of unknown version")
        return RunError(
            where=self.folder,
            problem=(
                f"it has no {lacks}, because its step {self.name} was made by an "
                f"earlier version (nextlong {version})"
            ),
            fix="run the recipe again; unchanged steps are reused",
        )


def _numbers_in(name: str) -> list[int]:
    """Return the numbers in a file's name, by which files sort however many digits."""
    return [int(number) for number in re.findall(r"\d+", name)]


Artifacts = Mapping[str, Artifact]  # by step name


class StepFiles:
    """The files of a finished step by their names; a subclass declares them.

    The subclass stands beside its step and says what the step is called:

        class TokensFiles(StepFiles):
            step = "tokens"
            offsets = ShardFiles(".offsets.npy")

    `TokensFiles.of(done).offsets` are then the paths. A file is looked up when it is
    asked for, because some files depend on the recipe.
    """

    step: ClassVar[str]

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @classmethod
    def of(cls, done: Artifacts) -> Self:
        """Return the files of the step of this name."""
        return cls(done[cls.step])


@dataclass(frozen=True)
class ShardFiles:
    """Declares files of a step, in shard order, by their suffix."""

    suffix: str

    @overload
    def __get__(self, files: None, kind: type[StepFiles]) -> Self: ...
    @overload
    def __get__(self, files: StepFiles, kind: type[StepFiles]) -> Files: ...
    def __get__(self, files: StepFiles | None, kind: type[StepFiles]) -> Self | Files:
        """Return the paths; of the class, this declaration."""
        return self if files is None else self.of(files.artifact)

    def of(self, artifact: Artifact) -> Files:
        """Return the paths of a step, whatever its name is."""
        return artifact.files(self.suffix)


@dataclass(frozen=True)
class OnlyFile:
    """Declares the file of a step of one task by its suffix."""

    suffix: str

    @overload
    def __get__(self, files: None, kind: type[StepFiles]) -> Self: ...
    @overload
    def __get__(self, files: StepFiles, kind: type[StepFiles]) -> Path: ...
    def __get__(self, files: StepFiles | None, kind: type[StepFiles]) -> Self | Path:
        """Return the path; of the class, this declaration."""
        return self if files is None else files.artifact.file(self.suffix)
