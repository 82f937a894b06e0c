"""Something hidden in a long text, the user's haystack, which is repeated where it is too short.

Needle: one sentence at many depths; the answer must hold its words (paper App. A; Kamradt's test: docs/evaluate/needle.md).
NoLiMa: a needle that shares no word with its question (Modarressi et al. 2025, arXiv 2502.05167): the published needles and books,
whose licence allows noncommercial research only, or needles of ours in any haystack. BABILong: facts between the sentences of the
haystack, and a question about them (Kuratov et al. 2024, arXiv 2406.10149): qa1 to qa5 of bAbI (Weston et al. 2015), generated with
bAbI's words; prompts, budget and grader are those of booydar/babilong at 7a6efee. What differs: docs/evaluate/generated.md.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from itertools import pairwise, product, zip_longest
from typing import Annotated, Any, Final, NamedTuple, NotRequired

import numpy as np
import yaml
from annotated_types import Len

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import HAYSTACK, TEXT, DataFiles, record
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.ruler import essay_words

_MOST_CHARS_PER_TOKEN: Final = (
    8  # of prose; with more of them the text is only repeated sooner
)


def _haystack_text(data: DataFiles) -> str:
    # The essays of RULER stand in for a missing haystack.
    text = (
        data.text(HAYSTACK)
        if data.source(HAYSTACK) == HAYSTACK
        else " ".join(essay_words(data))
    )
    if not text.strip():
        raise EvaluateError(f"{HAYSTACK} is empty; write a long text to it")
    return text


def _haystacks(
    request: TaskRequest, text: str, room: int, *, rounds: int = 1
) -> list[str]:
    """Return consecutive texts of `room` tokens each; the source text is repeated as needed and tokenized once."""
    # Cut to about what the rounds take, so that a library of books is not tokenized for one prompt.
    part = text[: room * rounds * _MOST_CHARS_PER_TOKEN]
    whole = " ".join([part] * -(-room * rounds // request.tokenizer.count(part)))
    bounds = request.tokenizer.boundaries(whole)
    return [
        whole[bounds[first][0] : bounds[first + room - 1][1]]
        for first in range(0, room * rounds, room)
    ]


_NEEDLE: Final = " The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
_PREFIX: Final = "\n\nAnswer: The best thing to do in San Francisco is"
_BUDGET: Final = 32


def samples(request: TaskRequest, depths: int = 11) -> Iterator[Sample | None]:
    """Yield one sample per depth, from the head of the text (0) to its end (100); fewer samples are spread over the depths.

    Further rounds use the text that follows.
    """
    before, after = prompt_of("needle").split("{context}")
    room = (
        request.room
        - _BUDGET
        - request.tokenizer.count(before + _NEEDLE + after + _PREFIX)
        - 2
    )
    request.require("needle", tokens=room, min_tokens=1)
    count = request.samples or depths
    # Depths in percent; a single sample has its needle in the middle.
    places = np.linspace(0, 100, min(count, depths)).tolist() if count != 1 else [50.0]
    haystacks = _haystacks(
        request, _haystack_text(request.data), room, rounds=-(-count // depths)
    )
    for number in range(count):
        depth, haystack = places[number % depths], haystacks[number // depths]
        # The nearest end of a sentence at or before the depth; the ends of the text are ends too.
        ends = [
            0,
            *(match.end() for match in re.finditer(r"[.!?](?=\s)", haystack)),
            len(haystack),
        ]
        place = ends[bisect_right(ends, int(len(haystack) * depth / 100)) - 1]
        prompt = before + haystack[:place] + _NEEDLE + haystack[place:] + after
        details = {
            "depth": depth,
            "chars_before": len(before),
            "chars_behind": len(after + _PREFIX),
        }
        yield Sample(
            prompt,
            ("eat a sandwich", "Dolores Park"),
            _BUDGET,
            _PREFIX,
            details=details,
        )


def _found(answer: str, sample: Sample) -> dict[str, float]:
    is_found = [fact.lower() in answer.lower() for fact in sample.references]
    return {"found": float(all(is_found)), "found_share": sum(is_found) / len(is_found)}


_NEEDLES: Final = "nolima/needle_set.json"
_BOOKS: Final = tuple(
    f"nolima/rand_shuffle/rand_book_{number}.txt" for number in range(1, 6)
)
_DEPTHS: Final = 26
_LATENT_BUDGET: Final = 192
_QUESTIONS, _TESTS = (
    Annotated[dict[str, str], Len(1)],
    Annotated[dict[str, dict[str, Any]], Len(1)],
)
_NEED_NOT: Final = {
    "character_set": NotRequired[list[str]],
    "task_template": NotRequired[str],
}
_SHAPE: Final = record(
    id=TEXT, needle=TEXT, questions=_QUESTIONS, tests=_TESTS, **_NEED_NOT
)


class _LatentNeedle(NamedTuple):
    """A needle with {CHAR} for a name, its question, the template of its prompt, and the names, or else the right answers."""

    text: str
    question: str
    template: str
    names: tuple[str, ...]
    answers: tuple[str, ...] = ()


def _published_needles(data: DataFiles) -> Iterator[_LatentNeedle]:
    for row in data.json_lines(_NEEDLES, _SHAPE):
        for question, test in product(row["questions"].values(), row["tests"].values()):
            text = row["needle"]
            for number, argument in enumerate(test.get("input_args", ()), start=1):
                text, question = (
                    one.replace(f"{{{number}}}", argument) for one in (text, question)
                )
            names, answers = (
                tuple(row.get("character_set", ())),
                tuple(test.get("gold_answers") or ()),
            )
            yield _LatentNeedle(
                text,
                question,
                row.get("task_template", prompt_of("nolima_own")),
                names,
                answers,
            )


def _latent_samples(
    request: TaskRequest, books: tuple[str, ...]
) -> Iterator[Sample | None]:
    """Yield every needle at every depth of every text, in random order, so that the first N are a fair part of them.

    The published needles in the published books, or, without books, ours in the haystack.
    """
    needles = [
        _LatentNeedle(text, question, prompt_of("nolima_own"), tuple(_WORDS["names"]))
        for text, question in _WORDS["needles"]
    ]
    needles = list(_published_needles(request.data)) if books else needles
    texts = [request.data.text(book) for book in books] or [
        _haystack_text(request.data)
    ]
    around = max(
        request.tokenizer.count(one.template + one.question + one.text)
        for one in needles
    )
    # The longest needle with its question and template, and eight tokens for what merges or splits at the seams.
    room = request.room - _LATENT_BUDGET - around - 8
    request.require("nolima", tokens=room, min_tokens=64)
    draw = random.Random(request.seed)
    haystacks = [_haystacks(request, text, room)[0] for text in texts]
    placements = list(
        product(haystacks, needles, np.linspace(0, 100, _DEPTHS).tolist())
    )
    draw.shuffle(placements)
    for haystack, needle, depth in placements:
        name = draw.choice(needle.names) if needle.names else ""
        sentence = needle.text.replace("{CHAR}", name)
        # After the line end nearest to the depth, or the end of a sentence if there are no lines.
        ends = [
            match.end()
            for match in re.finditer(
                r"\n" if "\n" in haystack else r"[.!?]\s", haystack
            )
        ]
        near = int(len(haystack) * (depth / 100))
        _, place = min((abs(end - near), end) for end in (0, *ends, len(haystack)))
        text = f"{haystack[:place].rstrip()} {sentence}\n{haystack[place:]}".lstrip()
        # The text last, and not by `format`: it may hold braces.
        question = needle.question.replace("{CHAR}", name)
        prompt = needle.template.replace("{question}", question).replace(
            "{haystack}", text
        )
        details = {"depth": round(depth, 1), "question": needle.question}
        yield Sample(
            prompt, (name,) if name else needle.answers, _LATENT_BUDGET, details=details
        )


def _contains(answer: str, sample: Sample) -> dict[str, float]:
    return {
        "contains": float(any(reference in answer for reference in sample.references))
    }


# BABILong's worlds.

_WORLD_BUDGET: Final = 20
_LEAST_TOKENS: Final = (
    256  # tokens of haystack, so that the facts of a world are hidden in something
)
_WORDS: Final = yaml.safe_load(
    (files("nextlong.evaluate.tasks") / "haystack.yaml").read_text(encoding="utf-8")
)
_PEOPLE, _GIVERS, _PLACES, _ITEMS = (
    _WORDS[name] for name in ("people", "givers", "places", "items")
)
_MOVES, _TAKES, _DROPS, _GIVES = (
    _WORDS[name] for name in ("moves", "takes", "drops", "gives")
)
_STEPS: Final = {"qa1": (2, 10), "qa2": (6, 20), "qa3": (10, 40)}  # fewest and most
_Story = tuple[list[str], str, str]  # facts in their order, question, answer


def _walked(draw: random.Random, name: str) -> _Story:
    """Return a story of people who walk about with things.

    qa1: where a person is. qa2: where a thing is that somebody carried. qa3: where a thing was before it was somewhere.
    """
    facts, at, held = list[str](), dict[str, str](), dict[str, str]()
    been: dict[
        str, list[str]
    ] = {}  # by thing, the places where it was carried, in their order
    for _ in range(draw.randint(*_STEPS[name])):
        who = draw.choice(_PEOPLE)
        # The things that this person carries, and the things at this person's place that nobody carries.
        mine, free = (
            [one for one in held if held[one] == who],
            [one for one in _ITEMS if one not in held],
        )
        here = [
            one for one in free if who in at and been.get(one, [at[who]])[-1] == at[who]
        ]
        act = 1.0 if name == "qa1" else draw.random()
        if here and act < 0.3:
            held[thing := draw.choice(here)] = who
            been.setdefault(thing, [at[who]])
            facts.append(f"{who} {draw.choice(_TAKES).format(thing)}.")
        elif mine and act < 0.4:
            held.pop(thing := draw.choice(mine))
            facts.append(f"{who} {draw.choice(_DROPS).format(thing)}.")
        else:
            at[who] = draw.choice([place for place in _PLACES if place != at.get(who)])
            for thing in mine:
                been[thing].append(at[who])
            facts.append(f"{who} {draw.choice(_MOVES)} {at[who]}.")
    if name == "qa1":
        who = draw.choice(sorted(at))
        return facts, f"Where is {who}?", at[who]
    if name == "qa2" and been:
        thing = draw.choice(sorted(been))
        return facts, f"Where is the {thing}?", been[thing][-1]
    # A place where the thing came once only, so that there is one answer.
    moves = [(thing, *move) for thing in sorted(been) for move in pairwise(been[thing])]
    moves = [move for move in moves if been[move[0]].count(move[2]) == 1]
    if name == "qa3" and moves:
        thing, earlier, later = draw.choice(moves)
        return facts, f"Where was the {thing} before the {later}?", earlier
    return _walked(draw, name)


def _beside(draw: random.Random, _: str) -> _Story:
    """qa4: what lies on which side of a place."""
    first, middle, last = draw.sample(_PLACES, 3)
    side, other = draw.choice(
        [("east", "west"), ("west", "east"), ("north", "south"), ("south", "north")]
    )
    facts = [
        f"The {first} is {side} of the {middle}.",
        f"The {last} is {other} of the {middle}.",
    ]
    draw.shuffle(facts)
    if draw.random() < 0.5:
        return facts, f"What is {side} of the {middle}?", first
    return facts, f"What is the {middle} {side} of?", last


def _given(draw: random.Random, name: str) -> _Story:
    """qa5: who gave what to whom."""
    facts, gifts = list[str](), list[tuple[str, str, str]]()
    for _ in range(draw.randint(3, 12)):
        who = draw.choice(_GIVERS)
        facts.append(f"{who} {draw.choice(_MOVES)} {draw.choice(_PLACES)}.")
        if draw.random() < 0.5:
            thing, to = (
                draw.choice(_ITEMS),
                draw.choice([name for name in _GIVERS if name != who]),
            )
            gifts.append((who, thing, to))
            facts += [
                f"{who} {draw.choice(_TAKES).format(thing)}.",
                f"{who} {draw.choice(_GIVES).format(thing)} {to}.",
            ]
    if not gifts:
        return _given(draw, name)
    # The last gift of its thing, and between its two people: the question then has one answer.
    who, thing, to = gifts[-1]
    questions = [
        f"Who gave the {thing} to {to}?",
        f"Who did {who} give the {thing} to?",
        f"Who gave the {thing}?",
    ]
    questions += [f"What did {who} give to {to}?", f"Who received the {thing}?"]
    return facts, *draw.choice(
        list(zip(questions, (who, to, who, thing, to), strict=True))
    )


# Each task's world, with the labels of its answers.
_WORLDS: Final[
    dict[str, tuple[Callable[[random.Random, str], _Story], tuple[str, ...]]]
] = {
    **dict.fromkeys(_STEPS, (_walked, tuple(_PLACES))),
    "qa4": (_beside, tuple(_PLACES)),
    "qa5": (_given, tuple(one.lower() for one in (*_GIVERS, *_ITEMS))),
}


def _world_samples(request: TaskRequest, name: str) -> Iterator[Sample | None]:
    """Yield questions whose facts are inserted in order at random places between the sentences of the haystack."""
    make, template = _WORLDS[name][0], prompt_of(f"babilong_{name}")
    draw = random.Random(f"{request.seed} {name}")
    room = request.room - _WORLD_BUDGET - request.tokenizer.count(template)
    request.require(f"babilong_{name}", tokens=room, min_tokens=_LEAST_TOKENS)
    sentences = re.split(
        r"(?<=[.!?])\s+", _haystacks(request, _haystack_text(request.data), room)[0]
    )
    while True:
        facts, question, answer = make(draw, name)
        first = draw.randrange(len(sentences))
        around = [*sentences[first:], *sentences[:first]]
        sample = None
        while around and (sample is None or not request.fits(sample)):
            # Remove as many sentences as the facts need, then a few more if that was not enough.
            del around[
                len(around)
                - max(1, 2 * len(facts) if sample is None else len(around) // 50) :
            ]
            places = sorted(draw.randrange(len(around) + 1) for _ in facts)
            parts = [
                around[start:end] for start, end in pairwise([0, *places, len(around)])
            ]
            lines = [
                line
                for part, fact in zip_longest(parts, facts)
                for line in (*part, *([fact] if fact else []))
            ]
            prompt = template.format(context=" ".join(lines).strip(), question=question)
            sample = Sample(
                prompt,
                (answer,),
                _WORLD_BUDGET,
                details={"question": question, "facts": len(facts)},
            )
        yield sample


def _name_label(
    answer: str, sample: Sample, labels: tuple[str, ...]
) -> dict[str, float]:
    """Return 1 if the answer's first sentence names the right label, and no other that the question does not name."""
    question, first = (
        str(sample.details["question"]).lower(),
        re.split(r"\.|<context>|<example>", answer.lower())[0],
    )
    # A label that the question itself names cannot show that the model knows the answer.
    named = {label for label in labels if label in first and label not in question}
    return {"accuracy": float(named == {sample.references[0].lower()})}


_in_haystack = partial(Task, files=(HAYSTACK,))
_needle = partial(_in_haystack, metric="found", score=_found)
_latent = partial(_in_haystack, metric="contains", score=_contains)
_world = partial(
    _in_haystack,
    suite="babilong",
    category="BABILong",
    metric="accuracy",
    samples=100,
    version=2,
)
_books, _own = (
    partial(_latent_samples, books=_BOOKS),
    partial(_latent_samples, books=()),
)
TASKS: Final = (
    _needle("needle", "needle", "Needle", samples=11, make=samples),
    _needle(
        "needle_35",
        "needle-35",
        "Needle, 35 depths",
        samples=35,
        make=partial(samples, depths=35),
    ),
    _latent(
        "nolima",
        "nolima",
        "NoLiMa",
        samples=7540,
        make=_books,
        files=(_NEEDLES, *_BOOKS),
    ),
    _latent(
        "nolima_own", "nolima-own", "NoLiMa's form, own needles", samples=260, make=_own
    ),
    *(
        _world(
            f"babilong_{name}",
            make=partial(_world_samples, name=name),
            score=partial(_name_label, labels=labels),
        )
        for name, (_, labels) in _WORLDS.items()
    ),
)
