"""Run: tasks × lengths, one at a time, each sample answered once.

In:  a model and settings. Out: a results directory (`results.py`). Interrupted at any
time, it resumes with the samples that are not on the disk; a finished evaluation does
nothing. Several processes may each measure a shard of the samples into one directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.answers import Model, NotMeasuredError, scored_answers
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.probe import Probe, local_model
from nextlong.evaluate.progress import TaskProgress
from nextlong.evaluate.prompts import Prompts
from nextlong.evaluate.server import ServerModel
from nextlong.evaluate.settings import EvaluationSettings, check
from nextlong.evaluate.task import Task, TaskRequest
from nextlong.runs.run import Run
from nextlong.text import Json


class IncompleteError(EvaluateError):
    """Some tasks were not measured; the results directory holds the others."""


def opened(settings: EvaluationSettings) -> Model:
    """Load the model, or connect to its server."""
    options = settings.model
    if options.url is not None:
        return ServerModel(options, Prompts.read(options))
    return HuggingFaceModel(options)


def evaluate(
    open_model: Callable[[], Model],
    settings: EvaluationSettings,
    *,
    progress: TaskProgress,
) -> results.ModelResults:
    """Answer what is missing and return all results.

    Raises EvaluateError, before the first task begins, for missing files and for a
    probe that cannot be measured on this model, and IncompleteError at the end for
    tasks that no sample could be made for; the others are measured.
    """
    # First without the model, which may take minutes to load, then with its context.
    check(settings, context=None)
    model = open_model()
    check(settings, context=model.context)
    _note_unused_template(model, progress)

    pairs = settings.pairs()
    for task, length in pairs:
        is_finished = results.path_of(settings.out, task.name, length).exists()
        if isinstance(task, Probe) and not is_finished:
            task.check_model(local_model(model, task), settings.run)

    session = _Session(model, settings, progress, model.prompts)
    failures = []
    with _locked(settings):
        for_reports = {
            "label": settings.label,
            "negatives_cosine": settings.negatives_cosine,
        }
        results.write_index(settings.out, {**model.identity(), **for_reports})
        progress.tokens = [_tokens_to_read(settings, *pair) for pair in pairs]
        for index, (task, length) in enumerate(pairs):
            if isinstance(task, Probe) and not settings.shard.has(index):
                # A probe is not split: each is measured by one of the shards.
                progress.start(task.name, length, samples=0, done=0)
                progress.done("left to another shard")
                continue
            try:
                session.measure_within_memory(task, length)
            except NotMeasuredError as error:
                reason = _without_option(error.reason)
                reason = reason.removeprefix(f"{task.name}: ")
                progress.note(f"{task.name}: {reason}")
                failures.append(error.reason)
    if failures:
        raise _incomplete(failures, total=len(pairs), out=settings.out)
    return results.read_results(settings.out)


@contextmanager
def _locked(settings: EvaluationSettings) -> Iterator[None]:
    """Lock the results directory: for this process, or for its shard alone."""
    shard = settings.shard
    with ExitStack() as stack:
        if shard.count == 1:
            stack.enter_context(store.locked(settings.out))
        else:
            stack.enter_context(store.locked(settings.out, mode="together"))
            own = settings.out / f".shard-{shard.number}-of-{shard.count}"
            stack.enter_context(store.locked(own))
        yield


def _note_unused_template(model: Model, progress: TaskProgress) -> None:
    prompts = model.prompts
    has_template = bool(getattr(prompts.template, "chat_template", None))
    if has_template and prompts.format == "completion":
        progress.note(
            "the model has a chat template, but is given plain text; "
            "add --prompt-format chat to use it"
        )


def _tokens_to_read(
    settings: EvaluationSettings, task: Task | Probe, length: int | None
) -> int:
    """Return the tokens that remain to be read: none of a task that has no length."""
    final = results.path_of(settings.out, task.name, length)
    if final.is_file():
        return 0
    shard = settings.shard
    samples = (settings.samples or task.samples) // shard.count
    samples -= results.answered(shard.unfinished(final))
    return max(samples, 0) * (length or 0)


def _without_option(reason: EvaluateError) -> str:
    """Return why a task was not measured, without the option that named its length."""
    return str(reason).removeprefix("--lengths: ")


def _incomplete(
    failures: Sequence[EvaluateError], *, total: int, out: Path
) -> IncompleteError:
    """Return the error that some tasks were not measured, with the first reason."""
    first = failures[0]
    fix = first.fix
    if len(failures) > 1:
        fix += f" (and {len(failures) - 1} more, see above)"
    if len(failures) < total:
        fix += f"; the others: nextlong evaluate report {out}"
    reason = _without_option(first)
    return IncompleteError(
        where=f"{len(failures)} of {total} not measured",
        problem=reason.removesuffix(f"; {first.fix}"),
        fix=fix,
    )


@dataclass(frozen=True)
class _Session:
    """A model, what is asked of it, and where its progress is shown."""

    model: Model
    settings: EvaluationSettings
    progress: TaskProgress
    prompts: Prompts

    def measure_within_memory(self, task: Task | Probe, length: int | None) -> None:
        """Measure a task; say how to go on where the device is out of memory."""
        try:
            self._measure(task, length)
        except RuntimeError as error:
            # The class is torch's, which this module does not import.
            if type(error).__name__ != "OutOfMemoryError":
                raise
            cause = str(error).partition(". ")[0]
            where = task.name
            if length is not None:
                where += f" at {length:,} tokens"
            raise EvaluateError(
                where=where,
                problem=f"the device is out of memory ({cause})",
                fix="lower --chunk-tokens or --batch-tokens, give --dtype bfloat16, or "
                "leave the length out (finished answers are kept)",
            ) from None

    def _measure(self, task: Task | Probe, length: int | None) -> None:
        """Measure a task at a length, or show its score where it is finished.

        Raises NotMeasuredError for a task that no sample could be made for.
        """
        settings = self.settings
        progress = self.progress
        self.model.prompts = self.prompts.under(task.chat)
        samples = settings.samples or task.samples
        final = results.path_of(settings.out, task.name, length)
        depends_on = self._dependencies(task, length)
        fingerprint = results.fingerprint(depends_on)
        if final.is_file():
            score = _finished_score(final, fingerprint)
            progress.start(task.name, length, samples=0, done=0)
            progress.done(f"{score:6.2f}  cached")
            return

        request = TaskRequest(
            length=length or 0,
            tokenizer=self.model.prompts.tokenizer,
            data=settings.data,
            samples=samples,
            seed=settings.seed,
            overhead=self.model.prompts.overhead,
            begins_answer=self.model.prompts.begins_answer,
            run=settings.run,
            advance=progress.advance,
        )
        # The time of this session alone: of a resumed task the earlier part is not
        # counted.
        start_s = time.monotonic()
        parts = [] if isinstance(task, Probe) else settings.shard.all_unfinished(final)
        lines: list[Json] | None = []
        if isinstance(task, Probe):
            progress.start(task.name, length, samples=samples, done=0)
            measured = _probed(self.model, task, request)
        else:
            self._answer(task, request, final, fingerprint)
            lines = results.merged(parts)
            if lines is None:
                progress.done("answered; the other shards are not finished")
                return
            measured = _means(task, lines, request.length)
        seconds = time.monotonic() - start_s
        values: Json = {
            "format": results.FORMAT,
            "nextlong": nextlong.__version__,
            "engine": self.model.engine,
            "suite": task.suite,
            "category": task.category,
            "metric": task.metric,
            "task": task.name,
            "length": length,
            "seconds": round(seconds, 3),
            **measured,
            "fingerprint": fingerprint,
            "depends_on": depends_on,
            "samples": lines,
        }
        final.parent.mkdir(parents=True, exist_ok=True)
        results.write(final, values)
        for part in parts:
            part.unlink(missing_ok=True)

        outcome = f"{float(values['score']):6.2f}  {values['n']} samples"
        outcome += f", {timedelta(seconds=round(seconds))}"
        if values["refused"]:
            outcome += f"  {values['refused']} refused: too long"
        progress.done(outcome)

    def _answer(
        self, task: Task, request: TaskRequest, final: Path, fingerprint: str
    ) -> None:
        """Ask the samples of this shard that are not answered yet."""
        shard = self.settings.shard
        samples = self.settings.samples or task.samples
        own_samples = len(range(shard.number - 1, samples, shard.count))
        with closing(results.Partial(shard.unfinished(final), fingerprint)) as partial:
            done = len(partial.samples)
            self.progress.start(
                task.name, request.length or None, samples=own_samples, done=done
            )
            for number, line in scored_answers(
                self.model, task, request, shard=shard, done=partial.samples
            ):
                partial.append(number, line)
                self.progress.advance(1)
            partial.finish()

    def _dependencies(self, task: Task | Probe, length: int | None) -> Json:
        """Return what a result depends on, among it the hash of every file read."""
        settings = self.settings
        data = settings.data
        names = (*task.needs(length), *task.optional(length or 0))
        if settings.has_published(task, length):
            names = (str(task.published(length or 0)),)
        sources = set()
        for name in names:
            # The stand-in is read where the file itself is missing.
            source = data.source(name)
            if data.has(source):
                sources.add(source)

        depends_on: Json = {
            "task": task.name,
            "version": task.version,
            "length": length,
            "samples": settings.samples or task.samples,
            "seed": settings.seed,
            "model": self.model.identity(),
            "prompts": self.model.prompts.protocol(),
            "data": {name: data.hash(name) for name in sorted(sources)},
        }
        reads_run = isinstance(task, Probe) or task.reads == "run"
        if settings.run and reads_run:
            compose = Run(settings.run).steps["compose"]
            depends_on["run"] = str(compose.manifest["fingerprint"])
        return depends_on


def _finished_score(final: Path, fingerprint: str) -> float:
    """Return the score of a finished file; raise if it is of other settings."""
    result = results.read_finished(final)
    if result.values["fingerprint"] != fingerprint:
        raise EvaluateError(
            where=final,
            problem="it was measured with other settings, samples or data",
            fix="delete it to measure again, or give another --out",
        )
    return result.score


def _probed(model: Model, probe: Probe, request: TaskRequest) -> Json:
    try:
        values = probe.measure(local_model(model, probe), request)
    except EvaluateError as error:
        # The other tasks and probes are measured all the same.
        raise NotMeasuredError(error) from None
    return {"score": values["scores"][probe.metric], "refused": 0, **values}


def _means(task: Task, lines: Sequence[Json], length: int) -> Json:
    """Return the mean of each score in percent, with the number of samples."""
    answered = [line for line in lines if not line.get("refused")]
    if not answered:
        reason = EvaluateError(
            where="--lengths",
            problem=f"no sample of {task.name} fits {length:,} tokens of this "
            f"tokenizer, {len(lines)} were refused",
            fix="give a greater length, or leave the task out",
        )
        raise NotMeasuredError(reason)
    means: dict[str, float] = {}
    for name in answered[0]["scores"]:
        # A refused sample counts as 0: a model is not better for what does not fit.
        total = sum(line["scores"][name] for line in answered)
        means[name] = 100.0 * total / len(lines)
    return {
        "score": means[task.metric],
        "scores": means,
        "n": len(lines),
        "refused": len(lines) - len(answered),
    }
