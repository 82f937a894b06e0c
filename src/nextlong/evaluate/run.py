"""Run: tasks × lengths, one at a time, each sample answered once.

In:  a model, tasks, lengths, the user's data. Out: a results directory (`results.py`). Killed at any time it goes on with the first
sample that is not on the disk; asked again it does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.asked import STAND_INS, Asked, check, check_probes, files_of, local, pairs, request_of
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import Model
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.progress import Progress
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.plain_data import Json


class IncompleteError(EvaluateError):
    """No sample could be made for some tasks; `measured` holds the results of the others."""

    def __init__(self, told: str, measured: results.Results) -> None:
        super().__init__(told)
        self.measured = measured


class _UnmadeError(EvaluateError):
    """A task's data, or a length without room for it, give no samples to ask; other tasks are not touched."""


def _hashes(task: Task | Probe, length: int | None, data: DataFiles) -> dict[str, str]:
    """Return the hash of every file that is read, by its name: those needed, those read where they are there, and stand-ins."""
    optional = task.optional(length or 0) if isinstance(task, Task) else task.optional
    named = [*files_of(task, length), *optional]
    read = [name if data.has(name) else STAND_INS.get(name, name) for name in named]
    return {name: store.hash_file(data.path(name)) for name in sorted({*read}) if data.has(name)}


def evaluate(open_model: Callable[[], Model], asked: Asked, *, progress: Progress) -> results.Results:
    """Answer what is missing and return all results. Files are looked for before the model is loaded.

    Raises IncompleteError at the end for tasks that no sample could be made for; the others are measured.
    """
    check(asked, context=None)
    model = open_model()
    check(asked, context=model.context)
    todo = pairs(asked)
    if model.prompts.format == "completion" and getattr(model.prompts.template, "chat_template", None):
        progress.note(
            "the model has a chat template and is asked to continue texts; --prompt-format chat asks it as a chat model"
        )
    check_probes(todo, asked, model)
    with store.explained(asked.out):
        asked.out.mkdir(parents=True, exist_ok=True)
    with store.locked(asked.out):
        _claim(asked, model.identity())
        progress.begin([_tokens(task, length, asked) for task, length in todo])
        unmade = [unmade for task, length in todo if (unmade := _tried(model, task, length, asked, progress))]
    measured = results.read_results(asked.out)
    if unmade:
        raise IncompleteError(_told(unmade, len(todo), asked.out), measured)
    return measured


def _tokens(task: Task | Probe, length: int | None, asked: Asked) -> int:
    final = results.place_of(asked.out, task.name, length)
    left = (asked.samples or task.samples) - results.answered(final)
    return 0 if final.is_file() else max(left, 0) * (length or 0)


def _tried(model: Model, task: Task | Probe, length: int | None, asked: Asked, progress: Progress) -> str:
    """Measure a task at a length; return why it could not be asked, else ""."""
    try:
        with _memory_explained(task, length):
            _one(model, task, length, asked, progress)
    except _UnmadeError as error:
        progress.unmade(str(error))
        return str(error)
    return ""


def _told(unmade: Sequence[str], total: int, out: Path) -> str:
    rest = f"; the others: nextlong evaluate report {out}" if len(unmade) < total else ""
    more = f" (and {len(unmade) - 1} more, told above)" if len(unmade) > 1 else ""
    return f"{len(unmade)} of {total} not measured: {unmade[0]}{more}{rest}"


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
            f"length out (what is answered is kept): {str(error).partition('. ')[0]}"
        ) from None


def _claim(asked: Asked, identity: dict[str, JSON]) -> None:
    index, about = asked.out / results.INDEX, {"label": asked.label, "negatives_cosine": asked.negatives_cosine}
    if index.is_file():
        before = store.read_json(index)
        results.check_format(before, index)
        if {key: value for key, value in before["model"].items() if key not in about} != identity:
            raise EvaluateError(
                f"{asked.out} holds results of another model, {before['model'].get('name')}, or of the same one asked in "
                "another way; give another --out, or delete the folder"
            )
        about = {key: before["model"].get(key) if value is None else value for key, value in about.items()}
    store.write_json(
        index, {"format": results.FORMAT, "nextlong": nextlong.__version__, "model": {**identity, **about}}
    )


def _one(model: Model, task: Task | Probe, length: int | None, asked: Asked, progress: Progress) -> None:
    final = results.place_of(asked.out, task.name, length)
    depends_on = _depends_on(task, length, asked, model.identity())
    mark = results.fingerprint(depends_on)
    if final.is_file():
        done = results.read_finished(final)
        if done.values["fingerprint"] != mark:
            raise EvaluateError(
                f"{final} was measured with other settings, samples or data; delete it to measure again, or give another --out"
            )
        progress.kept(task.name, length, done.score)
        return
    wanted = asked.samples or task.samples
    request = request_of(task, length, asked, model)
    began = time.monotonic()
    partial = results.Partial(results.partial_of(final), mark)
    try:
        progress.start(task.name, length, wanted, done=len(partial.samples))
        if isinstance(task, Probe):
            values = _probed(model, task, replace(request, advance=progress.advance), asked.run)
        else:
            for answered in _answered(model, task, request, wanted, skip=len(partial.samples)):
                partial.append(answered)
                progress.advance(len(answered))
            values = _summary(task, partial.samples, request.length)
        seconds = round(time.monotonic() - began, 3)
        about = {
            "nextlong": nextlong.__version__,
            "engine": model.engine,
            "task": task.name,
            "suite": task.suite,
            "metric": task.metric,
            "length": length,
        }
        partial.finish(final, {**about, **values, "fingerprint": mark, "depends_on": depends_on, "seconds": seconds})
        progress.done(float(values["score"]), samples=int(values["n"]), refused=int(values["refused"]))
    finally:
        partial.close()


def _probed(model: Model, probe: Probe, request: Request, run: Path | None) -> Json:
    values = probe.measure(local(model, probe), request, run)
    return {"score": values["scores"][probe.metric], "refused": 0, **values}


def _depends_on(task: Task | Probe, length: int | None, asked: Asked, identity: dict[str, JSON]) -> Json:
    return {
        "task": task.name,
        "version": task.version,
        "length": length,
        "samples": asked.samples or task.samples,
        "seed": asked.seed,
        "model": identity,
        "data": _hashes(task, length, asked.data),
        **({"run": _composed(asked.run)} if asked.run and (isinstance(task, Probe) or task.reads == "run") else {}),
    }


def _composed(run_dir: Path) -> str:
    """Return what names the sequences of a run, wherever it lies."""
    from nextlong.runs import opened

    return str(opened.Run(run_dir).steps["compose"].manifest["fingerprint"])


def _answered(model: Model, task: Task, request: Request, wanted: int, *, skip: int) -> Iterator[list[dict[str, JSON]]]:
    made = _made(task, request, skip, wanted)
    while group := list(islice(made, model.batch(request.length))):
        fitting = [sample for sample in group if sample is not None and fits(model, sample, request)]
        answers = iter(_final_answers(model, task, fitting))
        lines: list[dict[str, JSON]] = []
        for sample in group:
            is_asked = sample is not None and any(sample is one for one in fitting)
            lines.append(
                _line(model, task, sample, next(answers)) if is_asked and sample is not None else {"refused": True}
            )
        yield lines


def _final_answers(model: Model, task: Task, samples: Sequence[Sample]) -> list[str]:
    """Return the answers that are scored: of a task with a follow-up, those to the questions that the first ones make."""
    answers = list(model.answers(samples)) if samples else []
    if task.follow_up is None or not answers:
        return answers
    asked = [task.follow_up(answer, sample) for answer, sample in zip(answers, samples, strict=True)]
    return list(model.answers(asked))


def _made(task: Task, request: Request, skip: int, wanted: int) -> Iterator[Sample | None]:
    try:
        yield from islice(task.make(request), skip, wanted)
    except EvaluateError as error:
        raise _UnmadeError(str(error).removeprefix("--lengths: ")) from None


def fits(model: Model, sample: Sample, request: Request) -> bool:
    """Say whether a sample with its answer is no longer than asked, and than the model reads.

    Lengths count no BOS, as RULER's, and no reasoning; the last token of an answer is never read, which leaves room for a BOS.
    """
    fed = len(model.prompts.ids(sample)) + model.prompts.budget(sample) - 1
    return request.fits(sample) and (model.context is None or fed <= model.context)


def _line(model: Model, task: Task, sample: Sample, answer: str) -> dict[str, JSON]:
    if model.prompts.thinking:  # its answer follows its reasoning, not the beginning that other models continue
        sample = replace(sample, answer_prefix="")
    return {
        "prompt_sha256": results.prompt_hash(model.prompts.sent(sample)),
        "answer_prefix": sample.answer_prefix,
        "answer": answer,
        "references": list(sample.references),
        "scores": dict(task.score(answer, sample)),
        **({"details": dict(sample.details)} if sample.details else {}),
    }


def _summary(task: Task, lines: Sequence[Json], length: int) -> Json:
    asked = [line for line in lines if not line.get("refused")]
    if not asked:
        raise _UnmadeError(
            f"no sample of {task.name} fits {length:,} tokens of this tokenizer, {len(lines)} were refused; "
            "give a greater length, or leave the task out"
        )
    # A refused sample counts as 0: a model is not better for what does not fit.
    means = {name: 100.0 * sum(line["scores"][name] for line in asked) / len(lines) for name in asked[0]["scores"]}
    return {
        "category": task.category,
        "score": means[task.metric],
        "scores": means,
        "n": len(lines),
        "refused": len(lines) - len(asked),
    }
