"""Step: a pure function from finished steps to files, described before it runs.

A step is a name, its own config and its inputs; its folder is `NN-name-<fingerprint>`. Changing one knob changes the
fingerprint of this step and of all below, and of nothing else. Tasks are made only once the inputs are done, because
how many shards there are is known only then; each task writes the same bytes wherever and whenever it runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nextlong.engine.executor import Executor, Gpu, Resources
from nextlong.errors import RunError


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much there is to do, of a corpus or of a sample; what a plan is made of."""

    shards: float = 1.0
    text_bytes: float = 0.0  # of all documents that ingest reads
    documents: float = 0.0
    kept_documents: float = 0.0  # what select leaves, and from here on
    kept_chars: float = 0.0
    chunks: float = 0.0
    embedded: float = 0.0  # chunks that are encoded: all of them without a shortlist
    eligible: float = 0.0  # documents with at least compose.min_meta_chunks chunks …
    meta_chunks: float = 0.0  # … and their chunks
    evaluation_bytes: float = 0.0
    dimensions: float = 0.0
    vectors: float = 0.0  # what is searched: chunks or documents
    queries: float = 0.0
    neighbours: float = 0.0  # of each query
    index: str = "exact"  # or a FAISS factory string
    visited_share: float = 1.0  # the share of the vectors that a query is compared with
    drafts: float = 0.0
    drafted_chunks: float = 0.0  # of all drafts, one after the other
    referenced_chunks: float = 0.0  # those of them that are different
    sequences: float = 0.0
    tokens: float = 0.0  # of all sequences

    def of(self, amount: _Amount) -> float:
        """Return one of the amounts by its name, what a function makes of them, or a number as it is."""
        if isinstance(amount, int | float):
            return float(amount)
        return float(getattr(self, amount)) if isinstance(amount, str) else amount(self)

    def times(self, factor: float) -> Amounts:
        """Return the size of a corpus like this one, `factor` times as large."""
        grown = ("text_bytes", "documents", "kept_documents", "kept_chars", "chunks", "eligible", "meta_chunks")
        return replace(self, **{name: factor * getattr(self, name) for name in grown})

    @property
    def chunk_chars(self) -> float:
        return self.kept_chars / max(1.0, self.chunks)

    @property
    def referenced_chars(self) -> float:
        return self.referenced_chunks * self.chunk_chars

    @property
    def all_neighbours(self) -> float:
        return self.queries * min(self.neighbours, self.vectors)


_Amount = float | str | Callable[[Amounts], float]  # a number, the name of one of the amounts, or a function of all
TRIED = "tried"  # on the sample


def per_shard(amounts: Amounts) -> float:
    return max(1.0, amounts.shards)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How the time, disk and memory of a step grow: `work` is counted in units of about `seconds` of one core, `disk` of `bytes`.

    `nextlong plan` tries each step on a sample of the user's own files and takes both rates from there; those declared here
    stand in where a sample is too small to tell, and for what no sample can (a server, evaluation files, an index).
    `tasks` is how many tasks share the work; `memory` the bytes that one of them holds beyond what every worker does. `rate`
    names the rate that plan measures apart where it is not tried on the sample; "": what is declared counts. A step that
    divides its work into tasks of about `task_s` seconds has at least so many. `reads` is how many bytes of its input files all
    tasks together read; None: all of them.
    """

    work: _Amount
    seconds: float
    disk: _Amount = 0
    bytes: float = 0.0
    tasks: _Amount = 1
    memory: _Amount = 0
    rate: str = TRIED
    task_s: float = 0.0
    reads: _Amount | None = None


class TaskResult(BaseModel, frozen=True):
    """What one task returns beside its files, kept in the manifest; nothing of a task that only writes files."""


_ResultT = TypeVar("_ResultT", bound=TaskResult)
Task = Callable[[Path], TaskResult]  # takes the stem of its output files


@dataclass(frozen=True)
class Join:
    """One more task of a step, which starts when the tasks `members` are done, beside those that are not.

    `make` gets what the members returned, in their order. With `replaces`, the files of the task take the place of the members'
    files, which are deleted once its own are on the disk; it returns the step's `result`, and the manifest keeps it alone.
    """

    members: Sequence[int]
    make: Callable[[Sequence[Any]], Task]
    replaces: bool = False


@dataclass(frozen=True)
class Work:
    """The tasks of a step whose inputs are done. Each runs on `threads`; joins, which only move bytes, on one.

    `gpu` says what only the inputs tell: the tasks cannot use one, or need one, so that a cluster that has none is waited for.
    None: what the step declares holds.
    """

    tasks: Sequence[Task]
    joins: Sequence[Join] = ()
    threads: int = 1
    gpu: Gpu | None = None


_TaskMaker = Callable[["Artifacts"], Sequence[Task] | Work]


def each_shard(task: Callable[..., TaskResult], **files: tuple[Step, str]) -> _TaskMaker:
    """Return the tasks of a step that has one for each shard.

    `files` are keywords of `task`, each with the step whose file of the shard it gets, and the suffix of that file.
    """

    def tasks(done: Artifacts) -> list[Task]:
        shards = zip(*(done[step.name].files(suffix) for step, suffix in files.values()), strict=True)
        return [partial(task, **dict(zip(files, shard, strict=True))) for shard in shards]

    return tasks


@dataclass(frozen=True)
class Step:
    """One step of a route. `tasks` gets the finished inputs; `check` may refuse the finished step with a user's error.

    Every task returns a `result`, which the manifest keeps and readers get back. A step that is finished already may be known
    by its manifest alone (`Step.of`).
    """

    name: str
    version: int
    config: Mapping[str, Any]
    inputs: tuple[Step, ...]
    tasks: _TaskMaker = field(compare=False)
    result: type[TaskResult] = field(default=TaskResult, compare=False)
    check: Callable[[Artifact], None] | None = field(default=None, compare=False)
    resources: Resources = field(default=Resources(), compare=False)  # of each task
    # Of its tasks, where they differ: the largest begin first, so that none is left alone at the end.
    sizes: Sequence[float] | None = field(default=None, compare=False)
    # How its time, disk and memory grow, for plans.
    estimate: Estimate = field(default=Estimate(work="chunks", seconds=0.0, disk="chunks"), compare=False)
    known_fingerprint: str | None = None

    @classmethod
    def of(cls, done: Artifact) -> Step:
        """Return the step that is done, to build on; it cannot run again."""
        told = done.manifest
        return cls(done.name, told["version"], told["config"], (), lambda _: (), known_fingerprint=told["fingerprint"])

    def work(self, done: Artifacts) -> Work:
        made = self.tasks({before.name: done[before.name] for before in self.inputs})
        return made if isinstance(made, Work) else Work(made)

    def needs(self, work: Work, executor: Executor) -> Resources:
        """Return what each of the tasks gets of what the executor has; `gpu` is "unused" or "needed"."""
        gpu = work.gpu or self.resources.gpu
        is_there = gpu != "unused" and (executor.gpus > 0 or (gpu == "needed" and executor.grows))
        needs = replace(self.resources, gpu="needed" if is_there else "unused")
        if work.threads == 1:
            return needs
        # A cluster counts processors itself.
        at_once = None if executor.grows else max(1, executor.cpus // work.threads)
        return replace(needs, cpus=work.threads, at_once=at_once)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the step's name, version and config and of its inputs' fingerprints."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        identity = [self.name, self.version, self.config, [step.fingerprint for step in self.inputs]]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def folder(self, run_dir: Path, *, place: int = 0) -> Path:
        """Return the step's folder, started or finished; if there is none, the one to be, `NN-name-fingerprint` by its place."""
        suffix = f"{self.name}-{self.fingerprint}"
        # Another method's route, on which the step has another place, may have made it.
        return min(run_dir.glob(f"[0-9][0-9]-{suffix}"), default=run_dir / f"{place:02d}-{suffix}")


class Files(list[Path]):
    """The files of one folder, which pickle as the folder and their names.

    A task of a step over a whole corpus gets the files of all shards, and the head pickles one task after the other. Eight lists of
    12,067 shards (10^9 chunks), as an export needs them, take 36 ms of a core and 1.8 MB instead of 161 ms and 3.5 MB.
    """

    def __reduce__(self) -> tuple[Callable[..., Files], tuple[object, ...]]:
        return (_in_folder, (str(self[0].parent), [path.name for path in self])) if self else (Files, ())


def _in_folder(folder: str, names: Sequence[str]) -> Files:
    return Files(Path(folder, name) for name in names)


@dataclass(frozen=True)
class Artifact:
    """The files of a finished step: its folder, and the manifest that names them and holds what the tasks returned."""

    name: str
    folder: Path
    manifest: Mapping[str, Any]

    def files(self, suffix: str | tuple[str, ...]) -> Files:
        """Return the step's files that end in `suffix`, or in one of several, in shard order.

        Raises RunError if its tasks wrote none, as those of an earlier version may have.
        """
        names = [name for part in self.manifest["parts"] for name in part["files"] if name.endswith(suffix)]
        if self.manifest["parts"] and not names:
            raise self.of_earlier_version(suffix if isinstance(suffix, str) else " or ".join(suffix))
        # By the numbers in the names, however many digits these have.
        names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
        return Files(self.folder / name for name in names)

    def file(self, suffix: str) -> Path:
        (only,) = self.files(suffix)
        return only

    def stem(self) -> Path:
        """Return the stem that the files of a one-task step share."""
        return self.folder / "part-00000"

    def results(self, kind: type[_ResultT]) -> list[_ResultT]:
        """Return what each task told, in task order, without the one that closed the step.

        Raises RunError if it is not what `kind` says, as in manifests of an earlier version.
        """
        parts = [part for part in self.manifest["parts"] if not part.get("closes")]
        try:
            return [kind.model_validate(part["counts"]) for part in parts]
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(map(str, wrong["loc"])) or kind.__name__
            raise self.of_earlier_version(f"count of {where}") from None

    def result(self, kind: type[_ResultT]) -> _ResultT:
        (only,) = self.results(kind)
        return only

    def of_earlier_version(self, lacks: str) -> RunError:
        """Return the error that says what the step lacks, because an earlier version made it."""
        version = self.manifest.get("versions", {}).get("nextlong", "of unknown version")
        why = f"its step {self.name} is of an earlier version (made by nextlong {version})"
        return RunError(f"{self.folder} has no {lacks}: {why}; run the recipe again: what has not changed is kept")


Artifacts = Mapping[str, Artifact]  # by step name
