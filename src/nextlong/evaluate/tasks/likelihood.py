"""Likelihood: what a base model knows of a long context before it can answer.

`choice_*`: forced choice. The right value of a needle, or of a key, against seven other
values of the same haystack: the most likely continuation of the prompt counts, so that
chance is 1/8. It shows retrieval in small and undertrained models, whose generated
answers all score 0.

`last_tokens_*`: the loss of the last 512 tokens of a text after as many tokens as the
length leaves. The same tokens are predicted at every length up to half a text, so that
the loss falls with the length only where the model uses the longer context.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from nextlong.arrays import Floats
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import HAYSTACK, DataFiles
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import Sample, TaskRequest
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.haystack import haystack_text
from nextlong.evaluate.tasks.helmet.longqa import LONGBOOK_QA
from nextlong.evaluate.tasks.helmet.recall import JSON_KV
from nextlong.evaluate.tasks.probes import read_losses
from nextlong.text import Json

_CHOICES: Final = 8
_LAST: Final = 512
_Make = Callable[[TaskRequest], Iterator[Sample | None]]
# What RULER's needles and HELMET's JSON objects state of their keys.
_VALUE: Final = re.compile(r'(?:": "| is: )([\w-]+)')


def token_losses(
    model: HuggingFaceModel, context: Sequence[int], ids: Sequence[int]
) -> Floats:
    """Return the loss, in nats, of each of `ids` after a context, shape (len(ids),).

    The context is kept: another call with the same one reads `ids` alone.
    """
    *before, last = context
    cache = model.prefilled(before)
    losses = read_losses(model, [last, *ids[:-1]], cache, following=ids[-1])
    model.forget(len(before))
    return losses


def choice_losses(
    model: HuggingFaceModel, sample: Sample, values: Sequence[str]
) -> list[float]:
    """Return the loss of each value, in nats, as the answer to a prompt."""
    context = model.prompts.ids(sample)
    losses = []
    for value in values:
        ids = model.tokenizer.encode(f" {value}")
        losses.append(float(token_losses(model, context, ids).sum()))
    return losses


def _measure_choice(model: HuggingFaceModel, request: TaskRequest, make: _Make) -> Json:
    """Measure how often the right value is the most likely of eight."""
    draw = random.Random(f"{request.seed} choice")
    outcomes = []
    margins = []
    for sample in islice(make(request), request.samples):
        values = [] if sample is None else _VALUE.findall(sample.prompt)
        if sample is None or not request.fits(sample):
            continue
        right = sample.references[0]
        distractors = sorted({*values} - {*sample.references})
        if len(distractors) < _CHOICES - 1:
            continue
        others = draw.sample(distractors, _CHOICES - 1)
        own, *rivals = choice_losses(model, sample, [right, *others])
        outcomes.append(100.0 * (own < min(rivals)))
        margins.append(min(rivals) - own)
        request.advance(1)
    if not outcomes:
        raise _nothing_fits("choice", request)
    scores = {
        "chosen": float(np.mean(outcomes)),
        "margin_nats": float(np.mean(margins)),
    }
    return {"scores": scores, "outcomes": outcomes, "n": len(outcomes)}


def _measure_last_tokens(
    model: HuggingFaceModel,
    request: TaskRequest,
    texts: Callable[[DataFiles], Sequence[str]],
) -> Json:
    """Measure the mean loss of the last tokens of texts that are long enough."""
    room = request.length - len(model.tokenizer.prefix)
    request.require("last_tokens", tokens=room, min_tokens=_LAST + 1)
    outcomes = []
    windows = last_windows(
        [model.tokenizer.encode(text) for text in texts(request.data)],
        tokens=room,
        count=request.samples or 1,
    )
    for window in windows:
        ids = model.tokenizer.with_prefix(window)
        losses = token_losses(model, ids[:-_LAST], ids[-_LAST:])
        outcomes.append(float(losses.mean()))
        request.advance(1)
    if not outcomes:
        raise _nothing_fits("last_tokens", request)
    mean = float(np.mean(outcomes))
    scores = {"last_tokens_nats": mean, "perplexity": math.exp(mean)}
    return {"scores": scores, "outcomes": outcomes, "n": len(outcomes)}


def last_windows(
    texts: Sequence[list[int]], *, tokens: int, count: int
) -> Iterator[list[int]]:
    """Yield the `tokens` ids before `count` ends, which the texts share evenly.

    Ends are spread over the second half of each text, whatever the number of tokens.
    """
    per_text = -(-count // max(1, len(texts)))
    ends = []
    for part in range(per_text):
        for ids in texts:
            end = len(ids) - len(ids) * part // (2 * per_text)
            ends.append((ids, end))
    for ids, end in ends[:count]:
        if end >= tokens:
            yield ids[end - tokens : end]


def _nothing_fits(name: str, request: TaskRequest) -> EvaluateError:
    return EvaluateError(
        where=name,
        problem=f"no prompt or text fits {request.length:,} tokens",
        fix="give another length, or leave the probe out",
    )


def _haystack(data: DataFiles) -> list[str]:
    return [haystack_text(data)]


def _books(data: DataFiles) -> list[str]:
    contexts = (row["context"] for row in data.json_lines(LONGBOOK_QA))
    return list(dict.fromkeys(contexts))


_choice = partial(
    Probe,
    suite="choice",
    metric="chosen",
    samples=100,
    chat="plain text",
    columns={"Chosen": "chosen", "Margin, nats": "margin_nats"},
    about="How often the right value is more likely than seven others of its haystack, "
    "percent; chance is 12.5.",
)
_last_tokens = partial(
    Probe,
    suite="last-tokens",
    metric="last_tokens_nats",
    samples=50,
    chat="plain text",
    columns={"Loss, nats": "last_tokens_nats", "Perplexity": "perplexity"},
    about="Loss of the last 512 tokens of a text, the same ones at every length.",
)
_ASKED: Final = {
    "noise": ruler.needle_task("noise", ruler.Form("noise", keys=_CHOICES)),
    "essay": ruler.needle_task("essay", ruler.Form("essay", keys=_CHOICES)),
    "needle": ruler.needle_task("needle", ruler.Form("needle")),
    "json_kv": JSON_KV,
}
TASKS: Final = (
    *(
        _choice(
            name=f"choice_{name}",
            category=f"Forced choice, {name}",
            measure=partial(_measure_choice, make=task.make),
            files=task.files,
            published=task.published,
        )
        for name, task in _ASKED.items()
    ),
    _last_tokens(
        name="last_tokens_haystack",
        category="Last tokens, haystack",
        measure=partial(_measure_last_tokens, texts=_haystack),
        files=(HAYSTACK,),
    ),
    _last_tokens(
        name="last_tokens_books",
        category="Last tokens, books",
        measure=partial(_measure_last_tokens, texts=_books),
        files=(LONGBOOK_QA,),
    ),
)
