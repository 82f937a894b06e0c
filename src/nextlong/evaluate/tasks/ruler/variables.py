"""Variable tracking: a chain of five assignments in noise; every variable that has the value is asked for. One shot.

In:  nothing but the seed. Out: prompts with five variable names each; score: share of them found (`string_match_all`).
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from nextlong.evaluate.scores import string_match_all
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.ruler.fit import Built, fitting, largest, refuse_short, upper_bound
from nextlong.evaluate.tasks.ruler.niah import NOISE

BUDGET: Final = 30
HOPS: Final = 4
_EXAMPLE_TOKENS: Final = 500
_EXAMPLE_VALUE: Final = "12345"
_PROMPT: Final = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: "
    "Find all variables "
    "that are assigned the value {value} in the text above."
)
_PREFIX: Final = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, "
    "they are: "
)


class _Draws:
    """NVIDIA's two streams: names and places from Python's, values from NumPy's."""

    def __init__(self, seed: int) -> None:
        self.python = random.Random(seed)
        self._numpy = np.random.RandomState(seed)

    def name(self, letters: int) -> str:
        return "".join(self.python.choices(string.ascii_uppercase, k=letters))

    def value(self) -> str:
        return str(self._numpy.randint(10000, 99999))


def samples(request: Request) -> Iterator[Sample | None]:
    """Yield the samples; the one example is the same for all but for its names and value."""
    refuse_short(request, "vt", least=1024)
    draws = _Draws(request.seed)
    example = _example(request, draws)
    room = replace(request, length=request.length - request.tokenizer.count(example))
    build = partial(_build, draws=draws)
    step = 10 if request.length >= 4096 else 5
    # The bound comes from the whole length and the search from what the example leaves, as in NVIDIA's script.
    upper = upper_bound(request, build, step=step)
    size = largest(room, build, lower=step, upper=upper, budget=BUDGET, step=step)

    def with_example(_: int, used: int) -> Built:
        built = build(used)
        return replace(built, prompt=f"{_renamed(example, draws)}\n{built.prompt}")

    return fitting(request, with_example, size=size, step=step, budget=BUDGET)


def _example(request: Request, draws: _Draws) -> str:
    short = replace(request, length=_EXAMPLE_TOKENS)
    build = partial(_build, draws=draws, is_example=True)
    upper = upper_bound(short, build, step=5)
    size = largest(short, build, lower=5, upper=upper, budget=0, step=5)
    sample = next(fitting(short, lambda _, used: build(used), size=size, step=5, budget=0))
    shown = build(5) if sample is None else Built(sample.prompt, sample.answer_prefix, sample.references)
    return f"{shown.prompt}{shown.answer_prefix} {' '.join(shown.references)}\n"


def _renamed(example: str, draws: _Draws) -> str:
    for name in example.split()[-HOPS - 1 :]:
        example = example.replace(name, draws.name(len(name)))
    return example.replace(_EXAMPLE_VALUE, draws.value())


def _build(size: int, *, draws: _Draws, is_example: bool = False) -> Built:
    names, chain = _chain(draws, is_example=is_example)
    value = chain[0].split("=")[-1].strip()
    lines = [NOISE] * max(size, len(chain))  # each assignment needs a place of its own
    places = sorted(draws.python.sample(range(len(lines)), len(chain)))
    for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
        lines.insert(place + number, assignment)
    context = "\n".join(lines).replace(". \n", ".\n")
    prompt = _PROMPT.format(context=context, value=value)
    return Built(prompt, _PREFIX.format(count=HOPS + 1, value=value), tuple(names))


def _chain(draws: _Draws, *, is_example: bool) -> tuple[list[str], list[str]]:
    letters = 3 if is_example else 5
    names = [draws.name(letters) for _ in range(HOPS + 1)]
    while len(set(names)) < HOPS + 1:
        names.append(draws.name(letters))
    names = list(dict.fromkeys(names))
    value = _EXAMPLE_VALUE if is_example else draws.value()
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {later} = VAR {earlier} " for earlier, later in pairwise(names)]
    return names, chain


def _score(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


TASKS: Final = (
    Task("vt", "ruler", "RULER", "string_match_all", samples, _score, samples=500, max_new_tokens=BUDGET, version=2),
)
