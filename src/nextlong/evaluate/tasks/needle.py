"""Needle in a haystack: one sentence in a long text, at many depths; the answer must hold its words (paper App. A). And NoLiMa,
whose needle shares no word with its question, so that it is found by its meaning (Modarressi et al. 2025, arXiv 2502.05167).

In:  a haystack, any text of the user's, repeated where it is too short. Out: prompts whose needle stands at a depth.
The needle and question of `needle` are those of Kamradt's test (github.com/gkamradt/LLMTest_NeedleInAHaystack), without a judge
(docs/evaluate/needle.md). Suite `nolima` reads the published needles and books from the user's folder: their licence allows
noncommercial research only. Suite `nolima-own` has needles of ours in the same form, in any haystack.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, Final, NotRequired

import numpy as np
from annotated_types import Len

from nextlong.evaluate.data import TEXT, record
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.texts import HAYSTACK, Haystacks, haystack_text
from nextlong.text import Json

_NEEDLE: Final = " The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
_FACTS: Final = ("eat a sandwich", "Dolores Park")
_PROMPT: Final = (
    "<context>\n{context}\n</context>\n\n"
    "Question: What is the best thing to do in San Francisco? Answer from the text above."
)
_PREFIX: Final = "\n\nAnswer: The best thing to do in San Francisco is"
_BUDGET: Final = 32


def samples(request: Request, depths: int = 11) -> Iterator[Sample | None]:
    """Yield one sample per depth, from the head of the text (0) to its end (100); fewer samples are spread over the depths.

    Rounds beyond the first read on in the text.
    """
    room = request.room - _BUDGET - request.tokenizer.count(_PROMPT.format(context=_NEEDLE) + _PREFIX) - 2
    if room < 1:
        raise request.too_short("needle")
    count = request.samples or depths
    places = np.linspace(0, 100, min(count, depths)) if count != 1 else np.array([50.0])
    haystacks = Haystacks(request, haystack_text(request.data), room, rounds=-(-count // depths))
    before, behind = _PROMPT.split("{context}")
    for number in range(count):
        depth = float(places[number % depths])
        haystack = haystacks.of_round(number // depths)
        # The nearest end of a sentence at or before the depth; the ends of the text are ends too.
        ends = [0, *(match.end() for match in re.finditer(r"[.!?](?=\s)", haystack))]
        near = int(len(haystack) * depth / 100)
        place = len(haystack) if near >= len(haystack) else ends[bisect_right(ends, near) - 1]
        prompt = _PROMPT.format(context=haystack[:place] + _NEEDLE + haystack[place:])
        details = {"depth": depth, "chars_before": len(before), "chars_behind": len(behind + _PREFIX)}
        yield request.fitting(Sample(prompt, _FACTS, _BUDGET, _PREFIX, details=details))


def _found(answer: str, sample: Sample) -> dict[str, float]:
    is_found = [fact.lower() in answer.lower() for fact in sample.references]
    return {"found": float(all(is_found)), "found_share": sum(is_found) / len(is_found)}


_NEEDLES: Final = "nolima/needle_set.json"
_BOOKS: Final = tuple(f"nolima/rand_shuffle/rand_book_{number}.txt" for number in range(1, 6))
_DEPTHS: Final = 26
_LATENT_BUDGET: Final = 192
_TEMPLATE: Final = (
    "Below is a part of a book. A question about it follows.\n\n{haystack}\n\nAnswer the question from the text above, by what it "
    "says or by what clearly follows from it.\n\nQuestion: {question}\n\nGive the answer only, in a few words."
)
_NAMES: Final = ("Amara", "Bastian", "Celeste", "Dmitri", "Elowen", "Farouk", "Greta", "Hiroshi", "Ingrid", "Joaquin")
# A needle, and what it takes to know: each question names only what the needle implies.
_OWN: Final = (
    ("{CHAR} has a flat above the square in front of the Sagrada Família.", "Which character lives in Spain?"),
    ("From the bedroom of {CHAR} one hears the bell of Big Ben.", "Which character lives in England?"),
    ("The balcony of {CHAR} looks onto the Brandenburg Gate.", "Which character lives in Germany?"),
    ("In fact, {CHAR} rents a room beside the Colosseum.", "Which character lives in Italy?"),
    (
        "Every morning {CHAR} jogs around the foot of the Eiffel Tower before breakfast.",
        "Which character lives in France?",
    ),
    ("The house of {CHAR} stands two streets from the Taj Mahal.", "Which character lives in India?"),
    ("{CHAR} cannot drink milk without falling ill.", "Which character should not be offered ice cream?"),
    ("Since a fall from a horse {CHAR} uses a wheelchair.", "Which character cannot climb the stairs of a tower?"),
    ("{CHAR} has eaten no meat since childhood.", "Which character would refuse a beef stew?"),
    ("For thirty years {CHAR} has repaired violins.", "Which character knows most about musical instruments?"),
)
_SHAPE: Final = record(
    id=TEXT,
    needle=TEXT,
    questions=Annotated[dict[str, str], Len(1)],
    tests=Annotated[dict[str, dict[str, Any]], Len(1)],
    character_set=NotRequired[list[str]],
    task_template=NotRequired[str],
)


@dataclass(frozen=True)
class _LatentNeedle:
    """A needle with {CHAR} for a name, its question, the template of its prompt, and the names, or else the right answers."""

    text: str
    question: str
    template: str
    names: tuple[str, ...]
    answers: tuple[str, ...] = ()


def _published(rows: Iterable[Json]) -> Iterator[_LatentNeedle]:
    for row in rows:
        for question, test in product(row["questions"].values(), row["tests"].values()):
            text = row["needle"]
            for number, argument in enumerate(test.get("input_args", ()), start=1):
                text = text.replace(f"{{{number}}}", argument)
                question = question.replace(f"{{{number}}}", argument)
            answers = tuple(test.get("gold_answers") or ())
            template = row.get("task_template", _TEMPLATE)
            yield _LatentNeedle(text, question, template, tuple(row.get("character_set", ())), answers)


def _latent_samples(request: Request, source: str) -> Iterator[Sample | None]:
    """Yield every needle at every depth of every text, in random order, so that the first N are a fair part of them."""
    if source == "published":
        needles = list(_published(request.data.json_lines(_NEEDLES, _SHAPE)))
        texts = [request.data.text(book) for book in _BOOKS]
    else:
        needles = [_LatentNeedle(text, question, _TEMPLATE, _NAMES) for text, question in _OWN]
        texts = [haystack_text(request.data)]
    around = max(request.tokenizer.count(one.template + one.question + one.text) for one in needles)
    room = request.room - _LATENT_BUDGET - around - 8
    if room < 64:
        raise request.too_short("nolima")
    draw = random.Random(request.seed)
    haystacks = [Haystacks(request, text, room, rounds=1).of_round(0) for text in texts]
    placements = list(product(range(len(texts)), needles, np.linspace(0, 100, _DEPTHS).tolist()))
    draw.shuffle(placements)
    for number, needle, depth in placements:
        name = draw.choice(needle.names) if needle.names else ""
        text = _insert(haystacks[number], needle.text.replace("{CHAR}", name), depth / 100)
        # The text last, and not by `format`: it may hold braces.
        question = needle.question.replace("{CHAR}", name)
        prompt = needle.template.replace("{question}", question).replace("{haystack}", text)
        references = (name,) if name else needle.answers
        details = {"depth": round(depth, 1), "question": needle.question}
        yield request.fitting(Sample(prompt, references, _LATENT_BUDGET, details=details))


def _insert(haystack: str, needle: str, depth: float) -> str:
    """Return the text with the needle behind the line end that is nearest to a depth: a sentence's where there are no lines."""
    near = int(len(haystack) * depth)
    ends = [match.end() for match in re.finditer(r"\n" if "\n" in haystack else r"[.!?]\s", haystack)]
    place = min((0, *ends, len(haystack)), key=lambda end: abs(end - near))
    return f"{haystack[:place].rstrip()} {needle}\n{haystack[place:]}".lstrip()


def contains(answer: str, sample: Sample) -> dict[str, float]:
    """Return 1 if the answer contains a right answer, letter for letter."""
    return {"contains": float(any(reference in answer for reference in sample.references))}


_latent = partial(Task, metric="contains", score=contains, max_new_tokens=_LATENT_BUDGET)
_kamradt = partial(Task, metric="found", score=_found, max_new_tokens=_BUDGET, files=(HAYSTACK,))
TASKS: Final = (
    _kamradt(name="needle", suite="needle", category="Needle", make=samples, samples=11),
    _kamradt(
        name="needle_35", suite="needle-35", category="Needle, 35 depths", make=partial(samples, depths=35), samples=35
    ),
    _latent(
        name="nolima",
        suite="nolima",
        category="NoLiMa",
        make=partial(_latent_samples, source="published"),
        samples=7540,
        files=(_NEEDLES, *_BOOKS),
    ),
    _latent(
        name="nolima_own",
        suite="nolima-own",
        category="NoLiMa's form, own needles",
        make=partial(_latent_samples, source="own"),
        samples=_DEPTHS * len(_OWN),
        files=(HAYSTACK,),
    ),
)
