"""Published: HELMET's own data files, and the questions and examples that it draws from them.

Draws are HELMET's: questions by Python's `random` with the seed, examples by a hash of the question, as `datasets.shuffle` does.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.task import Request
from nextlong.plain_data import Json

SHOTS: Final = 2
QUESTIONS: Final = 100
Row = Json
T = TypeVar("T")


def fitted(
    request: Request, template: str, prefix: str, budget: int, *, context: str, **fields: str
) -> tuple[str, str, str]:
    """Return a prompt in three parts: before its context, the context, behind it.

    As in HELMET's `tokenize`, a prompt that is too long loses as many tokens at the end of its context; BOS is counted.
    """
    before, behind = (part.format(**fields) for part in template.split("{context}"))
    room = request.room - budget - len(request.tokenizer.prefix)
    while context and (over := request.tokenizer.count(before + context + behind + prefix) - room) > 0:
        bounds = request.tokenizer.boundaries(context)
        context = context[: bounds[-over][0]] if over <= len(bounds) else ""
    return before, context, behind


def rows_of(data: DataFiles, file: str, shape: Any) -> list[Row]:
    """Return the records of a file, each of a shape."""
    return list(data.json_lines(file, shape))


def drawn_questions(rows: Sequence[Row], key: str, *, seed: int) -> list[Row]:
    """Return every record of 100 questions; one question has a record for each depth of its gold passage."""
    keys = sorted({row[key] for row in rows}, key=lambda name: (isinstance(name, str), name))
    chosen = set(random.Random(seed).sample(keys, min(QUESTIONS, len(keys))))
    return [row for row in rows if row[key] in chosen]


def drawn_examples(
    rows: Sequence[Row], key: str, question: str, *, keep: Callable[[Row], bool] = lambda _: True
) -> list[Row]:
    """Return the two examples of a question, always the same ones."""
    kept = [row for row in rows if keep(row)]
    seed = int(hashlib.sha256(question.encode("utf-8")).hexdigest(), 16) % 2**31
    first: dict[Any, Row] = {}
    for number in np.random.default_rng(seed).permutation(len(kept)).tolist():
        first.setdefault(kept[number][key], kept[number])
        if len(first) == SHOTS:
            break
    return list(first.values())


def shuffled(rows: Sequence[T], *, seed: int) -> list[T]:
    """Return records in the order of `datasets.shuffle(seed)`."""
    return [rows[number] for number in np.random.default_rng(seed).permutation(len(rows)).tolist()]
