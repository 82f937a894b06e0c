"""NoLiMa: a needle that shares no word with its question, so that it is found by what it means (Modarressi et al. 2025, arXiv
2502.05167).

Suite `nolima` reads the published needle set and its five shuffled books from the user's folder: their licence allows
noncommercial research only, so nothing of them is here. Suite `nolima-own` has needles of ours in the same form (who lives beside
what, and where that is), in any haystack. A needle stands at 26 depths, behind the end of a line; the answer must hold the name.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from nextlong.errors import EvaluateError
from nextlong.evaluate.shapes import NoLiMa
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.needle import HAYSTACK, Haystacks, haystack_text

NEEDLES: Final = "nolima/needle_set.json"
BOOKS: Final = tuple(f"nolima/rand_shuffle/rand_book_{number}.txt" for number in range(1, 6))
BUDGET: Final = 192
DEPTHS: Final = 26
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


@dataclass(frozen=True)
class Needle:
    """A needle with {CHAR} for a name, its question, the template of its prompt, and the names, or else the right answers."""

    text: str
    question: str
    template: str
    names: tuple[str, ...]
    answers: tuple[str, ...] = ()


def _published(rows: list[Mapping[str, Any]]) -> Iterator[Needle]:
    for row in rows:
        for question, test in product(row["questions"].values(), row["tests"].values()):
            text = row["needle"]
            for number, argument in enumerate(test.get("input_args", ()), start=1):
                text = text.replace(f"{{{number}}}", argument)
                question = question.replace(f"{{{number}}}", argument)
            answers = test.get("gold_answers") or ()
            template = row.get("task_template", _TEMPLATE)
            yield Needle(text, question, template, tuple(row.get("character_set", ())), tuple(answers))


def samples(request: Request, source: str) -> Iterator[Sample | None]:
    """Yield every needle at every depth of every text, in a drawn order, so that the first N are a fair part of them."""
    if source == "published":
        needles = list(_published(list(request.data.json_lines(NEEDLES, NoLiMa))))
        texts = [request.data.text(book) for book in BOOKS]
    else:
        needles = [Needle(text, question, _TEMPLATE, _NAMES) for text, question in _OWN]
        texts = [haystack_text(request.data)]
    around = max(request.tokenizer.count(one.template + one.question + one.text) for one in needles)
    room = request.room - BUDGET - around - 8
    if room < 64:
        raise EvaluateError(f"--lengths: nolima needs more than {request.length} tokens; leave the length out")
    draw = random.Random(request.seed)
    haystacks = [Haystacks(request, text, room, rounds=1).of_round(0) for text in texts]
    placements = list(product(range(len(texts)), needles, np.linspace(0, 100, DEPTHS).tolist()))
    draw.shuffle(placements)
    for number, needle, depth in placements:
        name = draw.choice(needle.names) if needle.names else ""
        text = _placed(haystacks[number], needle.text.replace("{CHAR}", name), depth / 100)
        # The text last, and not by `format`: it may hold braces.
        question = needle.question.replace("{CHAR}", name)
        prompt = needle.template.replace("{question}", question).replace("{haystack}", text)
        references = (name,) if name else needle.answers
        sample = Sample(prompt, references, BUDGET, details={"depth": round(depth, 1), "question": needle.question})
        yield sample if request.fits(sample) else None


def _placed(haystack: str, needle: str, depth: float) -> str:
    """Return the text with the needle behind the line end that is nearest to a depth: a sentence's where there are no lines."""
    near = int(len(haystack) * depth)
    ends = [match.end() for match in re.finditer(r"\n" if "\n" in haystack else r"[.!?]\s", haystack)]
    place = min((0, *ends, len(haystack)), key=lambda end: abs(end - near))
    return f"{haystack[:place].rstrip()} {needle}\n{haystack[place:]}".lstrip()


def score(answer: str, sample: Sample) -> dict[str, float]:
    """Return 1 if a right answer stands in the answer, letter for letter."""
    return {"contains": float(any(reference in answer for reference in sample.references))}


TASKS: Final = (
    Task(
        "nolima",
        "nolima",
        "NoLiMa",
        "contains",
        partial(samples, source="published"),
        score,
        samples=7540,
        max_new_tokens=BUDGET,
        files=(NEEDLES, *BOOKS),
    ),
    Task(
        "nolima_own",
        "nolima-own",
        "NoLiMa's form, own needles",
        "contains",
        partial(samples, source="own"),
        score,
        samples=DEPTHS * len(_OWN),
        max_new_tokens=BUDGET,
        files=(HAYSTACK,),
    ),
)
