"""Published: what HELMET's tasks share: prompts cut to the length, and the questions and examples sampled from its data files.

Sampling is HELMET's: questions by Python's `random` with the seed, examples by a hash of the question, as `datasets.shuffle` does.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np

from nextlong.evaluate.task import Request, Sample
from nextlong.text import Json

SHOTS: Final = 2
QUESTIONS: Final = 100
LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
_T = TypeVar("_T")


def fitted(
    request: Request, template: str, prefix: str, budget: int, *, context: str, **fields: str
) -> tuple[str, str, str]:
    """Return a prompt in three parts: before its context, the context, behind it.

    As in HELMET's `tokenize`, a prompt that is too long loses as many tokens at the end of its context; BOS is counted.
    """
    before, behind = (part.format(**fields) for part in template.split("{context}"))
    room = request.room - budget - len(request.tokenizer.prefix)
    # Cutting may merge tokens at the edge, so the count is taken again until it fits.
    while context and (over := request.tokenizer.count(before + context + behind + prefix) - room) > 0:
        bounds = request.tokenizer.boundaries(context)
        context = context[: bounds[-over][0]] if over <= len(bounds) else ""
    return before, context, behind


def prompted(
    request: Request,
    template: str,
    prefix: str,
    budget: int,
    *,
    context: str,
    references: Sequence[str],
    details: Json,
    stop: str | None = "\n",
    **fields: str,
) -> Sample | None:
    """Return the sample of a template, its context cut to the length; None where the rest does not fit either."""
    prompt = "".join(fitted(request, template, prefix, budget, context=context, **fields))
    return request.fitting(Sample(prompt, tuple(references), budget, prefix, stop, details))


def sampled_questions(rows: Sequence[Json], key: str, *, seed: int) -> list[Json]:
    """Return every record of 100 questions; one question has a record for each depth of its gold passage."""
    keys = sorted({row[key] for row in rows}, key=lambda name: (isinstance(name, str), name))
    chosen = set(random.Random(seed).sample(keys, min(QUESTIONS, len(keys))))
    return [row for row in rows if row[key] in chosen]


def sampled_examples(rows: Sequence[Json], key: str, question: str, excluded: set[str]) -> list[Json]:
    """Return two examples for a question, always the same ones, of other keys than `excluded`."""
    kept = [row for row in rows if str(row[key]) not in excluded]
    seed = int(hashlib.sha256(question.encode("utf-8")).hexdigest(), 16) % 2**31
    first: dict[Any, Json] = {}
    for number in np.random.default_rng(seed).permutation(len(kept)).tolist():
        first.setdefault(kept[number][key], kept[number])
        if len(first) == SHOTS:
            break
    return list(first.values())


def shuffled(rows: Sequence[_T], *, seed: int) -> list[_T]:
    """Return records in the order of `datasets.shuffle(seed)`."""
    return [rows[number] for number in np.random.default_rng(seed).permutation(len(rows)).tolist()]
