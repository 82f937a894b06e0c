"""Answers: the samples of a task, made, answered and scored."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import Prompts
from nextlong.evaluate.results import Shard
from nextlong.evaluate.server import ServerModel, UnansweredSamplesError
from nextlong.evaluate.task import Sample, Task, TaskRequest
from nextlong.text import Json

Model = HuggingFaceModel | ServerModel


class NotMeasuredError(Exception):
    """A task without a sample, or a probe that failed; `reason` says why."""

    def __init__(self, reason: EvaluateError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Samples:
    """The samples of a shard, made one by one as a model takes them.

    Those that do not fit are kept aside: they are not asked. So is an error of making
    them: what was asked before it is answered.
    """

    def __init__(
        self, model: Model, task: Task, request: TaskRequest, shard: Shard
    ) -> None:
        self._model = model
        self._task = task
        self._request = request
        self._shard = shard
        self.refused: list[tuple[int, Sample | None]] = []
        self.error: EvaluateError | None = None

    def __iter__(self) -> Iterator[tuple[int, Sample]]:
        try:
            made = islice(self._task.make(self._request), self._request.samples)
            for number, whole in enumerate(made):
                if not self._shard.has(number):
                    continue
                sample = whole and self._model.prompts.asked(whole)
                if sample is not None and _fits(self._model, self._request, sample):
                    yield number, sample
                else:
                    self.refused.append((number, sample))
        except EvaluateError as error:
            self.error = error


def scored_answers(
    model: Model,
    task: Task,
    request: TaskRequest,
    *,
    shard: Shard,
    done: Container[int],
) -> Iterator[tuple[int, Json]]:
    """Yield the number and the line of each sample of a shard when it is answered.

    Those whose numbers are in `done` are not asked again. Raises NotMeasuredError where
    samples cannot be made, or were not answered.
    """
    samples = _Samples(model, task, request, shard)
    try:
        for number, sample, answer in model.answers(samples, done=done):
            yield number, _line(model.prompts, task, sample, answer)
    except UnansweredSamplesError as error:
        raise NotMeasuredError(error) from None
    if samples.error is not None:
        raise NotMeasuredError(samples.error)
    for number, refused in samples.refused:
        if number not in done:
            yield number, _with_details({"refused": True}, refused)


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
    line = {
        "prompt_sha256": prompts.hash_of(sample),
        "answer_prefix": sample.answer_prefix,
        "answer": answer,
        "references": list(sample.references),
        "scores": task.score(answer, sample),
    }
    return _with_details(line, sample)


def _with_details(line: Json, sample: Sample | None) -> Json:
    if sample is not None and sample.details:
        line["details"] = sample.details
    return line
