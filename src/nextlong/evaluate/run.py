"""Run: tasks × lengths, one at a time, each sample answered once.

In:  a model and settings. Out: a results directory (`results.py`). Interrupted at any time, it resumes with the first sample
that is not on the disk; a finished evaluation does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Final

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.data import STAND_INS
from nextlong.evaluate.engines import HuggingFaceModel, ServerModel, VllmModel
from nextlong.evaluate.plan import EvaluationSettings, check, local, pairs
from nextlong.evaluate.prompts import AnsweringModel, Prompts
from nextlong.evaluate.task import Probe, Sample, Task, TaskRequest
from nextlong.report.tables import say
from nextlong.text import Json


class IncompleteError(EvaluateError):
    """No sample could be made for some tasks; `measured` holds the results of the others."""

    def __init__(self, message: str, measured: results.ModelResults) -> None:
        super().__init__(message)
        self.measured = measured


class _NoSampleError(EvaluateError):
    """A task's data, or a length without room for it, give no samples; other tasks are not affected."""


def evaluate(
    open_model: Callable[[], AnsweringModel], settings: EvaluationSettings, *, progress: TaskProgress
) -> results.ModelResults:
    """Answer what is missing and return all results. Files are looked for before the model is loaded.

    Raises EvaluateError, before the first task begins, for a probe that cannot be measured on this model, and IncompleteError at
    the end for tasks that no sample could be made for; the others are measured.
    """
    # First without the model, which may take minutes to load, then with its context.
    check(settings, context=None)
    model = open_model()
    check(settings, context=model.context)
    todo = pairs(settings)
    if model.prompts.format == "completion" and getattr(model.prompts.template, "chat_template", None):
        progress.note("the model has a chat template, but is given plain text; add --prompt-format chat to use it")
    for task, length in todo:
        if isinstance(task, Probe) and not settings.place(task, length).exists():
            task.check_model(local(model, task), settings.run)
            if length is not None:
                task.check(settings.request(task, length, model))
    with store.explained(settings.out):
        settings.out.mkdir(parents=True, exist_ok=True)
    with store.locked(settings.out):
        about = {"label": settings.label, "negatives_cosine": settings.negatives_cosine}
        results.write_index(settings.out, {**model.identity(), **about})
        # The tokens that remain to be read of each: none of a finished one, nor of one without length.
        waiting = [(task, length, settings.place(task, length)) for task, length in todo]
        left = [
            0 if place.is_file() else (settings.samples or task.samples) - results.answered(place)
            for task, _, place in waiting
        ]
        progress.begin([max(count, 0) * (length or 0) for count, (_, length, _) in zip(left, waiting, strict=True)])
        failed = []
        for task, length in todo:
            try:
                with _memory_explained(task, length):
                    _one(model, task, length, settings, progress)
            except _NoSampleError as error:
                progress.note(f"{task.name}: {error}")
                failed.append(str(error))
    measured = results.read_results(settings.out)
    if failed:
        more = f" (and {len(failed) - 1} more, see above)" if len(failed) > 1 else ""
        rest = f"; the others: nextlong evaluate report {settings.out}" if len(failed) < len(todo) else ""
        raise IncompleteError(f"{len(failed)} of {len(todo)} not measured: {failed[0]}{more}{rest}", measured)
    return measured


def opened(settings: EvaluationSettings) -> AnsweringModel:
    """Load the model, or connect to its server."""
    options = settings.model
    assert options is not None, "the command names one"
    if options.url is not None:
        return ServerModel(options, Prompts.read(options))
    if options.engine == "vllm":
        return VllmModel(options, longest=max(settings.lengths))
    return HuggingFaceModel(options)


@contextmanager
def _memory_explained(task: Task | Probe, length: int | None) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which this module does not import
            raise
        where = task.name if length is None else f"{task.name} at {length:,} tokens"
        raise EvaluateError(
            f"{where}: the device is out of memory; lower --chunk-tokens or --batch-tokens, give --dtype bfloat16, or leave the "
            f"length out (finished answers are kept): {str(error).partition('. ')[0]}"
        ) from None


def _one(
    model: AnsweringModel, task: Task | Probe, length: int | None, settings: EvaluationSettings, progress: TaskProgress
) -> None:
    final = settings.place(task, length)
    depends_on = _depends_on(task, length, settings, model.identity())
    mark = results.fingerprint(depends_on)
    if final.is_file():
        done = results.read_finished(final)
        if done.values["fingerprint"] != mark:
            raise EvaluateError(
                f"{final} was measured with other settings, samples or data; delete it to measure again, or give another --out"
            )
        progress.cached(task.name, length, done.score)
        return
    samples = settings.samples or task.samples
    request = replace(settings.request(task, length, model), advance=progress.advance)
    # The time of this session alone: of a resumed task the earlier part is not counted.
    began = time.monotonic()
    partial = results.Partial(final.with_suffix(".partial.jsonl"), mark)
    try:
        progress.start(task.name, length, samples, done=len(partial.samples))
        if isinstance(task, Probe):
            values = task.measure(local(model, task), request)
            values = {"score": values["scores"][task.metric], "refused": 0, **values}
        else:
            for lines in _answered(model, task, request, samples, skip=len(partial.samples)):
                partial.append(lines)
                progress.advance(len(lines))
            values = _summary(task, partial.samples, request.length)
        about = {
            "nextlong": nextlong.__version__,
            "engine": model.engine,
            **{name: getattr(task, name) for name in ("suite", "category", "metric")},
            "task": task.name,
            "length": length,
            "seconds": round(time.monotonic() - began, 3),
        }
        partial.finish(final, {**about, **values, "fingerprint": mark, "depends_on": depends_on})
        progress.done(float(values["score"]), samples=int(values["n"]), refused=int(values["refused"]))
    finally:
        partial.close()


def _depends_on(task: Task | Probe, length: int | None, settings: EvaluationSettings, identity: Json) -> Json:
    """Return what a result depends on: among others the hash of every file that is read, of a stand-in where one is missing."""
    data, names = settings.data, (*task.needs(length), *task.optional(length or 0))
    # Where a file is missing, its stand-in is what is read, so that one is hashed.
    read = {name if data.has(name) else STAND_INS.get(name, name) for name in names}
    run = {}
    if settings.run and (isinstance(task, Probe) or task.reads == "run"):
        from nextlong.runs import run as opened

        run = {"run": str(opened.Run(settings.run).steps["compose"].manifest["fingerprint"])}
    return {
        "task": task.name,
        "version": task.version,
        "length": length,
        "samples": settings.samples or task.samples,
        "seed": settings.seed,
        "model": identity,
        "data": {name: store.hash_file(data.path(name)) for name in sorted(read) if data.has(name)},
        **run,
    }


def _answered(
    model: AnsweringModel, task: Task, request: TaskRequest, samples: int, *, skip: int
) -> Iterator[list[Json]]:
    """Yield the lines of the samples behind the first `skip`, a batch at a time."""
    made = _made(task, request, skip, samples)
    while group := list(islice(made, model.batch(request.length))):
        # Refused samples are not asked; their lines keep their places, so that a resumed task continues at the right
        # one.
        fitting = [sample for sample in group if sample is not None and fits(model, sample, request)]
        answers = list(model.answers(fitting)) if fitting else []
        if task.follow_up is not None and answers:
            questions = [task.follow_up(answer, sample) for answer, sample in zip(answers, fitting, strict=True)]
            # The first answers are only the reasoning; the answers to the second questions are scored.
            answers = list(model.answers(questions))
        said, lines = iter(answers), []
        for sample in group:
            details = {"details": sample.details} if sample is not None and sample.details else {}
            if sample is None or sample not in fitting:
                lines.append({"refused": True, **details})
                continue
            if model.prompts.thinking:  # its answer follows its reasoning, not the prefix that other models continue
                sample = replace(sample, answer_prefix="")
            answer = next(said)
            about = {"prompt_sha256": model.prompts.hash_of(sample), "answer_prefix": sample.answer_prefix}
            scored = {"references": list(sample.references), "scores": task.score(answer, sample)}
            lines.append({**about, "answer": answer, **scored, **details})
        yield lines


def _made(task: Task, request: TaskRequest, skip: int, samples: int) -> Iterator[Sample | None]:
    try:
        yield from islice(task.make(request), skip, samples)
    except EvaluateError as error:
        raise _NoSampleError(str(error).removeprefix("--lengths: ")) from None


def fits(model: AnsweringModel, sample: Sample, request: TaskRequest) -> bool:
    """Return whether a sample with its answer fits the length, and the model's context.

    Lengths count no BOS, as RULER's, and no reasoning; the last token of an answer is never read, which leaves room for a BOS.
    """
    fed = len(model.prompts.ids(sample)) + model.prompts.budget(sample) - 1
    return request.fits(sample) and (model.context is None or fed <= model.context)


def _summary(task: Task, lines: Sequence[Json], length: int) -> Json:
    answered = [line for line in lines if not line.get("refused")]
    if not answered:
        raise _NoSampleError(
            f"no sample of {task.name} fits {length:,} tokens of this tokenizer, {len(lines)} were refused; "
            "give a greater length, or leave the task out"
        )
    # A refused sample counts as 0: a model is not better for what does not fit.
    means = {
        name: 100.0 * sum(line["scores"][name] for line in answered) / len(lines) for name in answered[0]["scores"]
    }
    return {"score": means[task.metric], "scores": means, "n": len(lines), "refused": len(lines) - len(answered)}


_SILENCE_S: Final = 60.0  # at most, where there is no terminal


class TaskProgress:
    """Print what is measured: a moving line on a terminal; else a line per task, and one a minute for those that take longer.

    The time left for all tasks is estimated from tokens at the pace so far: longer prompts take longer per token, and refused
    samples and shared prefixes take almost nothing.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._number = self._samples = self._done = self._fresh = self._read = 0
        self._tokens: Sequence[int] = ()
        self._name, self._length = "", 0
        self._first_s: float | None = None
        self._began_s = self._printed_s = 0.0

    def begin(self, tokens: Sequence[int]) -> None:
        """Set the tokens that remain to be read for each task; 0 for a finished one or one without length."""
        self._tokens = tokens

    def cached(self, task: str, length: int | None, score: float) -> None:
        """Print a task that was finished before."""
        self._number += 1
        self.note(f"{self._head(task, length)} {score:6.2f}  cached")

    def start(self, task: str, length: int | None, samples: int, *, done: int) -> None:
        """Begin a task, `done` of its samples answered before."""
        self._number += 1
        self._samples, self._done, self._fresh, self._length = samples, done, 0, length or 0
        self._name, self._began_s = self._head(task, length), self._clock()
        self._first_s = self._began_s if self._first_s is None else self._first_s
        self._printed_s = self._began_s
        if done:
            self.note(f"{self._name} resumes after {done} of {samples} samples")

    def advance(self, samples: int) -> None:
        """Count more answered samples, and print the time left."""
        self._done += samples
        self._fresh += samples
        self._read += samples * self._length
        if self._console.is_terminal:
            self._console.print(f"{self._state()} ", end="\r", highlight=False)
        elif self._clock() - self._printed_s >= _SILENCE_S:
            self._printed_s = self._clock()
            self.note(self._state())

    def done(self, score: float, *, samples: int, refused: int) -> None:
        """Print the score."""
        refusals = f"  {refused} refused: too long" if refused else ""
        self.note(f"{self._name} {score:6.2f}  {samples} samples, {_duration(self._clock() - self._began_s)}{refusals}")

    def note(self, line: str) -> None:
        """Print a line."""
        if self._console.is_terminal:
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2)))  # the moving line
        say(line, self._console)

    def _state(self) -> str:
        now = self._clock()
        # At the pace of this session: samples that an earlier one answered took no time.
        left_s = max(self._samples - self._done, 0) * (now - self._began_s) / max(self._fresh, 1)
        state = f"{self._name} {self._done}/{self._samples}  {_duration(left_s)} left"
        if self._read and sum(self._tokens[self._number :]):
            spent_s = now - (self._first_s or 0.0)
            state += f", about {_duration(left_s + sum(self._tokens[self._number :]) * spent_s / self._read)} for all"
        return state

    def _head(self, task: str, length: int | None) -> str:
        size = "" if length is None else f"{length:>9,}"
        return f"[{self._number}/{len(self._tokens)}] {task:<18}{size}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
