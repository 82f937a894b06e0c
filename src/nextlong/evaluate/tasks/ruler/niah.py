"""Needles: eight tasks that hide keys with values in noise, essays or other needles, and ask for some.

In:  words, essays. Out: prompts whose answers are 7-digit numbers or UUIDs; score: share of them found (`string_match_all`).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from nextlong.evaluate.scores import string_match_all
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.ruler import words
from nextlong.evaluate.tasks.ruler.fit import Built, fitting, largest, refuse_short, upper_bound

NOISE: Final = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS: Final = [int(depth) for depth in np.round(np.linspace(0, 100, num=40, endpoint=True))]
BUDGET: Final = 128

_NEEDLE: Final = "One of the special magic {kind} for {key} is: {value}."
_MANY: Final = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} "
    "afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
)
_ONE: Final = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} "
    "afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
)
Haystack = Literal["noise", "essay", "needle"]
Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True)
class Form:
    """What is hidden in what: so many keys with so many values each, of which `queries` keys are asked for."""

    haystack: Haystack
    key_kind: Kind = "words"
    value_kind: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


FORMS: Final = {
    "niah_single_1": Form("noise"),
    "niah_single_2": Form("essay"),
    "niah_single_3": Form("essay", value_kind="uuids"),
    "niah_multikey_1": Form("essay", keys=4),
    "niah_multikey_2": Form("needle"),
    "niah_multikey_3": Form("needle", key_kind="uuids", value_kind="uuids"),
    "niah_multivalue": Form("essay", values=4),
    "niah_multiquery": Form("essay", keys=4, queries=4),
}


def samples(request: Request, form: Form) -> Iterator[Sample | None]:
    """Yield the samples of one form of the task."""
    refuse_short(request, "a needle", least=256)
    draw = random.Random(request.seed)
    essay = words.essay_words(request.data) if form.haystack == "essay" else []
    build = partial(_build, form=form, draw=draw, seed=request.seed, essay=essay)
    step = 500 if form.haystack == "essay" else 25 if request.length >= 4096 else 5
    if form.haystack == "essay" and request.length < 4096:
        step = 50  # NVIDIA's 500 words leave no room below
    upper = upper_bound(request, build, step=step)
    size = largest(request, build, lower=step, upper=upper, budget=BUDGET, step=step)
    return fitting(request, lambda _, used: build(used), size=size, step=step, budget=BUDGET)


def _build(size: int, *, form: Form, draw: random.Random, seed: int, essay: list[str]) -> Built:
    keys: list[str] = []
    values: list[list[str]] = []
    needles: list[str] = []
    for _ in range(form.keys):
        keys.append(drawn(form.key_kind, draw))
        values.append([])
        for _ in range(form.values):
            values[-1].append(drawn(form.value_kind, draw))
            needles.append(_NEEDLE.format(kind=form.value_kind, key=keys[-1], value=values[-1][-1]))
    random.Random(seed).shuffle(needles)
    context = (
        _in_essay(needles, essay, size, draw) if form.haystack == "essay" else _in_lines(needles, form, size, draw)
    )
    asked = draw.sample(range(form.keys), form.queries)
    return _question(
        form, context, [keys[number] for number in asked], [one for number in asked for one in values[number]]
    )


def _question(form: Form, context: str, queries: list[str], answers: list[str]) -> Built:
    query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
    prompt, prefix = _ONE if form.queries * form.values == 1 else _MANY
    kind = form.value_kind[:-1] if form.queries * form.values == 1 else form.value_kind
    return Built(
        prompt.format(kind=kind, context=context, query=query), prefix.format(kind=kind, query=query), tuple(answers)
    )


def _in_essay(needles: list[str], essay: list[str], size: int, draw: random.Random) -> str:
    lines = words.sentences(" ".join(words.repeated(essay, size)).strip())
    places = sorted(int(len(lines) * (depth / 100)) for depth in draw.sample(DEPTHS, len(needles)))
    bounds = [0, *places, len(lines)]
    parts = []
    for number, (first, last) in enumerate(pairwise(bounds)):
        parts.append(" ".join(lines[first:last]))
        parts.extend(needles[number : number + 1])
    return " ".join(parts)


def _in_lines(needles: list[str], form: Form, size: int, draw: random.Random) -> str:
    if form.haystack == "noise":
        lines = [NOISE] * size
    else:
        lines = [
            _NEEDLE.format(kind=form.value_kind, key=drawn(form.key_kind, draw), value=drawn(form.value_kind, draw))
            for _ in range(size)
        ]
    for place, needle in zip(sorted(draw.sample(range(size), len(needles)), reverse=True), needles, strict=True):
        lines.insert(place, needle)
    return "\n".join(lines)


def drawn(kind: Kind, draw: random.Random) -> str:
    """Return a random key or value."""
    return _DRAWS[kind](draw)


_DRAWS: Final[dict[Kind, Callable[[random.Random], str]]] = {
    "words": lambda draw: draw.choice(words.hyphenated()),
    "numbers": lambda draw: str(draw.randint(10**6, 10**7 - 1)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


def _score(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


TASKS: Final = tuple(
    Task(
        name,
        "ruler",
        "RULER",
        "string_match_all",
        partial(samples, form=form),
        _score,
        samples=500,
        max_new_tokens=BUDGET,
        files=(words.ESSAYS,) if form.haystack == "essay" else (),
    )
    for name, form in FORMS.items()
)
