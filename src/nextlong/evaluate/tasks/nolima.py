"""NoLiMa: a needle that shares no word with its question.

Modarressi et al. 2025, arXiv 2502.05167: the published needles and books, whose licence
allows noncommercial research only, or needles of ours in any haystack. What differs:
docs/evaluate/generated.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated, Any, Final, NamedTuple, NotRequired

import numpy as np
from annotated_types import Len

from nextlong.evaluate.data import HAYSTACK, TEXT, DataFiles, record
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.haystack import WORDS, ends_of, haystack_text, haystacks

_NEEDLES: Final = "nolima/needle_set.json"
_BOOKS: Final = tuple(
    f"nolima/rand_shuffle/rand_book_{number}.txt" for number in range(1, 6)
)
_DEPTHS: Final = 26
_BUDGET: Final = 192
_SEAM_TOKENS: Final = 8  # for what merges or splits where the parts of a prompt meet
_QUESTIONS = Annotated[dict[str, str], Len(1)]
_TESTS = Annotated[dict[str, dict[str, Any]], Len(1)]
_OPTIONAL: Final = {
    "character_set": NotRequired[list[str]],
    "task_template": NotRequired[str],
}
_SHAPE: Final = record(
    id=TEXT, needle=TEXT, questions=_QUESTIONS, tests=_TESTS, **_OPTIONAL
)


class _Needle(NamedTuple):
    """A needle with {CHAR} for a name, and its question.

    template: of the prompt
    names: of whom one is drawn, or else the right `answers`
    """

    text: str
    question: str
    template: str
    names: tuple[str, ...]
    answers: tuple[str, ...] = ()


def _own_needles() -> list[_Needle]:
    template = prompt_of("nolima_own")
    names = tuple(WORDS["names"])
    return [
        _Needle(text, question, template, names) for text, question in WORDS["needles"]
    ]


def _published_needles(data: DataFiles) -> Iterator[_Needle]:
    for row in data.json_lines(_NEEDLES, _SHAPE):
        template = row.get("task_template", prompt_of("nolima_own"))
        names = tuple(row.get("character_set", ()))
        pairs = product(row["questions"].values(), row["tests"].values())
        for question, test in pairs:
            text = row["needle"]
            for number, argument in enumerate(test.get("input_args", ()), start=1):
                text = text.replace(f"{{{number}}}", argument)
                question = question.replace(f"{{{number}}}", argument)
            answers = tuple(test.get("gold_answers") or ())
            yield _Needle(text, question, template, names, answers)


def _samples(request: TaskRequest, books: tuple[str, ...]) -> Iterator[Sample | None]:
    """Yield every needle at every depth of every text.

    In random order, so that the first N are a fair part of them: the published needles
    in the published books, or, without books, ours in the haystack.
    """
    if books:
        needles = list(_published_needles(request.data))
        texts = [request.data.text(book) for book in books]
    else:
        needles = _own_needles()
        texts = [haystack_text(request.data)]
    longest = max(
        request.tokenizer.count(needle.template + needle.question + needle.text)
        for needle in needles
    )
    room = request.room - _BUDGET - longest - _SEAM_TOKENS
    request.require("nolima", tokens=room, min_tokens=64)
    draw = random.Random(request.seed)
    contexts = [haystacks(request, text, room)[0] for text in texts]
    depths = np.linspace(0, 100, _DEPTHS).tolist()
    placements = list(product(contexts, needles, depths))
    draw.shuffle(placements)
    for context, needle, depth in placements:
        name = draw.choice(needle.names) if needle.names else ""
        yield _sample(context, needle, depth, name)


def _sample(context: str, needle: _Needle, depth: float, name: str) -> Sample:
    sentence = needle.text.replace("{CHAR}", name)
    position = _nearest_end(context, depth)
    before = context[:position].rstrip()
    text = f"{before} {sentence}\n{context[position:]}".lstrip()
    # The text last, and not by `format`: it may hold braces.
    prompt = needle.template.replace(
        "{question}", needle.question.replace("{CHAR}", name)
    )
    prompt = prompt.replace("{haystack}", text)
    return Sample(
        prompt=prompt,
        references=(name,) if name else needle.answers,
        max_new_tokens=_BUDGET,
        details={"depth": round(depth, 1), "question": needle.question},
    )


def _nearest_end(text: str, depth: float) -> int:
    """Return the end of the line that is nearest to the depth.

    Of a sentence, if the text is one line; the ends of the text are ends too.
    """
    pattern = r"\n" if "\n" in text else r"[.!?]\s"
    ends = ends_of(text, pattern)
    wanted = int(len(text) * (depth / 100))
    return min(ends, key=lambda end: (abs(end - wanted), end))


def _contains(answer: str, sample: Sample) -> dict[str, float]:
    is_named = any(reference in answer for reference in sample.references)
    return {"contains": float(is_named)}


_nolima = partial(Task, metric="contains", score=_contains)
TASKS: Final = (
    _nolima(
        "nolima",
        "nolima",
        "NoLiMa",
        samples=7540,
        make=partial(_samples, books=_BOOKS),
        files=(_NEEDLES, *_BOOKS),
    ),
    _nolima(
        "nolima_own",
        "nolima-own",
        "NoLiMa's form, own needles",
        samples=260,
        make=partial(_samples, books=()),
        files=(HAYSTACK,),
    ),
)
