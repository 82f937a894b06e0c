"""Fit: as much context as the length allows, found by binary search, then a sample at a time.

In:  a builder, context size → question; a length in tokens. Out: samples that fit with their answer; None where none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.task import Request, Sample

_REDRAWS: Final = 20  # of the smallest context; NVIDIA's scripts go on forever


@dataclass(frozen=True)
class Built:
    """A question whose context has some size."""

    prompt: str
    answer_prefix: str
    references: tuple[str, ...]


def largest(request: Request, build: Callable[[int], Built], *, lower: int, upper: int, budget: int, step: int) -> int:
    """Return the largest context in [lower, upper] that fits, else `step`, as NVIDIA's scripts do."""
    best = step
    while lower <= upper:
        middle = (lower + upper) // 2
        if _tokens(request, build(middle)) + budget <= request.room:
            best, lower = middle, middle + 1
        else:
            upper = middle - 1
    return best


def upper_bound(request: Request, build: Callable[[int], Built], *, step: int) -> int:
    """Return three times the context that the tokens of a small one let expect."""
    tokens_per_unit = _tokens(request, build(step)) / step
    return max(int((request.room / tokens_per_unit) * 3), step * 2)


def fitting(
    request: Request,
    build: Callable[[int, int], Built | None],
    *,
    size: int,
    step: int,
    budget: int,
) -> Iterator[Sample | None]:
    """Yield one sample an index, with `size` units of context or, where that is too long, `step` less at a time.

    Ends where `build(index, size)` returns None: there are no more questions.
    """
    for index in count():
        used, redraws = size, 0
        while True:
            built = build(index, used)
            if built is None:
                return
            if _tokens(request, built) + budget <= request.room:
                yield Sample(built.prompt, built.references, budget, built.answer_prefix)
                break
            if used > step:
                used -= step
            elif (redraws := redraws + 1) > _REDRAWS:
                yield None
                break


def _tokens(request: Request, built: Built) -> int:
    return request.tokenizer.count(built.prompt + built.answer_prefix)


def refuse_short(request: Request, task: str, *, least: int) -> None:
    """Raise EvaluateError if a length leaves no room for a task."""
    if request.length < least:
        raise EvaluateError(
            f"--lengths: {task} needs at least {least} tokens, not {request.length:,}; leave the length or the task out"
        )
