"""Common words: a numbered list in which ten words stand ten times as often as the rest. One shot.

In:  wonderwords' lists, and english_words.json where more words are needed. Out: prompts with ten words each; score: share of them
found (`string_match_all`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import origin
from nextlong.evaluate.scores import string_match_all
from nextlong.evaluate.shapes import Words
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.ruler import words
from nextlong.evaluate.tasks.ruler.fit import Built, fitting, largest, refuse_short

BUDGET: Final = 120
COMMON: Final = 10
_STEP: Final = 10
_PROMPT: Final = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n"
    "{context}\nQuestion: What are the 10 most common words in the above list?"
)
_PREFIX: Final = " Answer: The top 10 words that appear most often in the list are:"


@dataclass(frozen=True)
class _Lists:
    """The words to draw from: `few` while they are enough, then `many` (empty where the user has no such file)."""

    few: list[str]
    many: list[str]
    draw: random.Random
    seed: int
    is_short: bool

    def build(self, size: int) -> Built:
        """Return a question whose list has `size` different words, behind its example."""
        example_size, *example_repeats = (20, 3, 1) if self.is_short else (40, 10, 3)
        example, answers = self._list(example_size, *example_repeats)
        context, common = self._list(size, *((6, 1) if self.is_short else (30, 3)))
        shown = f"{_PROMPT.format(context=example)}{_PREFIX} {_numbered(answers)}"
        return Built(f"{shown}\n{_PROMPT.format(context=context)}", _PREFIX, tuple(common))

    def _list(self, size: int, common_repeats: int, other_repeats: int) -> tuple[str, list[str]]:
        drawn = self.draw.sample(self.few if size <= len(self.few) else self.many, size)
        common, others = drawn[:COMMON], drawn[COMMON:]
        listed = common * common_repeats + others * other_repeats
        random.Random(self.seed).shuffle(listed)
        return _numbered(listed), common


def samples(request: Request) -> Iterator[Sample | None]:
    """Yield the samples."""
    refuse_short(request, "cwe", least=1024)
    few = words.single_words(seed=request.seed)
    many = list(request.data.json(words.ENGLISH_WORDS, Words).values()) if request.data.has(words.ENGLISH_WORDS) else []
    lists = _Lists(few, many, random.Random(request.seed), request.seed, request.length < 4096)
    most = max(len(few), len(many))
    tokens_per_word = request.tokenizer.count(_text(lists.build(4096))) / 4096
    upper = max(int(request.room // tokens_per_word) * 2, _STEP * 2)
    size = largest(request, lists.build, lower=_STEP, upper=min(upper, most), budget=BUDGET, step=_STEP)
    if size == most < upper:
        raise EvaluateError(
            f"cwe at {request.length:,} tokens needs more than {most:,} different words, and {words.ENGLISH_WORDS} is missing; "
            f"{origin(words.ENGLISH_WORDS)}, or leave the length out"
        )
    return fitting(request, lambda _, used: lists.build(used), size=size, step=_STEP, budget=BUDGET)


def _text(built: Built) -> str:
    return built.prompt + built.answer_prefix


def _numbered(listed: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))


def _score(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


TASKS: Final = (
    Task(
        "cwe",
        "ruler",
        "RULER",
        "string_match_all",
        samples,
        _score,
        samples=500,
        max_new_tokens=BUDGET,
        optional=lambda _: (words.ENGLISH_WORDS,),
    ),
)
