"""Answers: the samples of a task, made, answered and scored, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel, ServerModel, VllmModel
from nextlong.evaluate.prompts import Prompts
from nextlong.evaluate.task import Sample, Task, TaskRequest
from nextlong.text import Json

Model = HuggingFaceModel | VllmModel | ServerModel


class NotMeasuredError(Exception):
    """A task without a sample, or a probe that failed; `reason` says why."""

    def __init__(self, reason: EvaluateError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def scored_answers(
    model: Model, task: Task, request: TaskRequest, *, skip: int
) -> Iterator[list[Json]]:
    """Yield the lines of the samples after the first `skip`, a batch at a time.

    Raises NotMeasuredError where the samples cannot be made.
    """
    # `make` is called when the first sample is taken, so that its errors are those of a
    # sample.
    every_sample = chain.from_iterable(map(task.make, [request]))
    asked = (sample and model.prompts.asked(sample) for sample in every_sample)
    remaining = islice(asked, skip, request.samples)
    batch_size = model.batch(request.length)
    while True:
        try:
            batch = list(islice(remaining, batch_size))
        except EvaluateError as error:
            raise NotMeasuredError(error) from None
        if not batch:
            return
        yield _lines(model, task, request, batch)


def _lines(
    model: Model, task: Task, request: TaskRequest, batch: Sequence[Sample | None]
) -> list[Json]:
    """Return what a result file holds of a batch of samples."""
    fitting = []
    for sample in batch:
        if sample is not None and _fits(model, request, sample):
            fitting.append(sample)
    answers = iter(model.answers(fitting) if fitting else ())
    lines = []
    for sample in batch:
        # Refused samples are not sent; their lines keep their places, so that a resumed
        # task continues at the right one.
        if sample is None or sample not in fitting:
            line: Json = {"refused": True}
        else:
            line = _line(model.prompts, task, sample, next(answers))
        if sample is not None and sample.details:
            line["details"] = sample.details
        lines.append(line)
    return lines


def _fits(model: Model, request: TaskRequest, sample: Sample) -> bool:
    """Return whether a sample with its answer fits the length and the context."""
    if not request.fits(sample):
        return False
    if model.context is None:
        return True
    # Lengths count no BOS, as RULER's, and no reasoning; the last token of an answer is
    # never read, which leaves room for a BOS.
    prompt_tokens = len(model.prompts.ids(sample))
    return prompt_tokens + model.prompts.budget(sample) - 1 <= model.context


def _line(prompts: Prompts, task: Task, sample: Sample, answer: str) -> Json:
    """Return what a result file holds of an answered sample."""
    return {
        "prompt_sha256": prompts.hash_of(sample),
        "answer_prefix": sample.answer_prefix,
        "answer": answer,
        "references": list(sample.references),
        "scores": task.score(answer, sample),
    }
