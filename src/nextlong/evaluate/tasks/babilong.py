"""BABILong: facts of a small world hidden in a long text, and a question about them (Kuratov et al. 2024, arXiv 2406.10149).

In:  a haystack, any text. Out: tasks qa1 to qa5 of bAbI (Weston et al. 2015), whose worlds are made anew here with bAbI's words, so
that no model has seen them; the facts stand in their order between sentences of the haystack. Prompts, the 20 tokens of an
answer and the grader are those of booydar/babilong at 7a6efee. What differs: docs/evaluate/generated.md.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, zip_longest
from typing import Final

from nextlong.evaluate.task import Request, Sample, Task, prompt_of
from nextlong.evaluate.texts import HAYSTACK, Haystacks, haystack_text

_BUDGET: Final = 20
_LEAST: Final = 256  # tokens of haystack, so that the facts of a world are hidden in something
_PEOPLE: Final = ("Daniel", "John", "Mary", "Sandra")
_GIVERS: Final = ("Bill", "Fred", "Jeff", "Mary")
_PLACES: Final = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_ITEMS: Final = ("apple", "football", "milk")
_MOVES: Final = ("went to the", "moved to the", "journeyed to the", "travelled to the", "went back to the")
_TAKES: Final = ("got the {} there", "grabbed the {} there", "took the {} there", "picked up the {} there")
_DROPS: Final = ("dropped the {}", "discarded the {}", "left the {} there", "put down the {}")
_GIVES: Final = ("gave the {} to", "handed the {} to", "passed the {} to")
_Story = tuple[list[str], str, str]  # facts in their order, question, answer


def _moves(draw: random.Random, steps: int) -> tuple[list[str], dict[str, str], dict[str, list[str]]]:
    """Return facts of people who walk about with things, where each person is, and where each thing has been."""
    facts: list[str] = []
    at: dict[str, str] = {}
    held: dict[str, str] = {}
    been: dict[str, list[str]] = {}
    for _ in range(steps):
        who = draw.choice(_PEOPLE)
        mine, free = [one for one in held if held[one] == who], [one for one in _ITEMS if one not in held]
        here = [one for one in free if who in at and been.get(one, [at[who]])[-1] == at[who]]
        act = draw.random()
        if here and act < 0.3:
            thing = draw.choice(here)
            held[thing] = who
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
    return facts, at, been


def _qa1(draw: random.Random) -> _Story:
    """Where a person is."""
    facts: list[str] = []
    at: dict[str, str] = {}
    for _ in range(2 * draw.randint(1, 5)):
        who = draw.choice(_PEOPLE)
        at[who] = draw.choice(_PLACES)
        facts.append(f"{who} {draw.choice(_MOVES)} {at[who]}.")
    who = draw.choice(sorted(at))
    return facts, f"Where is {who}?", at[who]


def _qa2(draw: random.Random) -> _Story:
    """Where a thing is that somebody carried."""
    while True:
        facts, _, been = _moves(draw, draw.randint(6, 20))
        if been:
            thing = draw.choice(sorted(been))
            return facts, f"Where is the {thing}?", been[thing][-1]


def _qa3(draw: random.Random) -> _Story:
    """Where a thing was before it was somewhere."""
    while True:
        facts, _, been = _moves(draw, draw.randint(10, 40))
        # A place where the thing came once only, so that there is one answer.
        asked = [
            (thing, n)
            for thing in sorted(been)
            for n in range(1, len(been[thing]))
            if been[thing].count(been[thing][n]) == 1
        ]
        if asked:
            thing, number = draw.choice(asked)
            return facts, f"Where was the {thing} before the {been[thing][number]}?", been[thing][number - 1]


def _qa4(draw: random.Random) -> _Story:
    """What lies on which side of a place."""
    first, middle, last = draw.sample(_PLACES, 3)
    side, other = draw.choice([("east", "west"), ("west", "east"), ("north", "south"), ("south", "north")])
    facts = [f"The {first} is {side} of the {middle}.", f"The {last} is {other} of the {middle}."]
    draw.shuffle(facts)
    if draw.random() < 0.5:
        return facts, f"What is {side} of the {middle}?", first
    return facts, f"What is the {middle} {side} of?", last


def _qa5(draw: random.Random) -> _Story:
    """Who gave what to whom."""
    facts: list[str] = []
    gifts: list[tuple[str, str, str]] = []
    for _ in range(draw.randint(3, 12)):
        who = draw.choice(_GIVERS)
        facts.append(f"{who} {draw.choice(_MOVES)} {draw.choice(_PLACES)}.")
        if draw.random() < 0.5:
            thing, to = draw.choice(_ITEMS), draw.choice([name for name in _GIVERS if name != who])
            gifts.append((who, thing, to))
            facts += [f"{who} {draw.choice(_TAKES).format(thing)}.", f"{who} {draw.choice(_GIVES).format(thing)} {to}."]
    if not gifts:
        return _qa5(draw)
    # The last gift of its thing, and between its two people: the question then has one answer.
    who, thing, to = gifts[-1]
    questions = [f"Who gave the {thing} to {to}?", f"Who did {who} give the {thing} to?", f"Who gave the {thing}?"]
    questions += [f"What did {who} give to {to}?", f"Who received the {thing}?"]
    return facts, *draw.choice(list(zip(questions, (who, to, who, thing, to), strict=True)))


_WORLDS: Final[
    dict[str, tuple[Callable[[random.Random], _Story], tuple[str, ...]]]
] = {  # with the labels of their answers
    "qa1": (_qa1, _PLACES),
    "qa2": (_qa2, _PLACES),
    "qa3": (_qa3, _PLACES),
    "qa4": (_qa4, _PLACES),
    "qa5": (_qa5, tuple(one.lower() for one in (*_GIVERS, *_ITEMS))),
}


def samples(request: Request, name: str) -> Iterator[Sample | None]:
    """Yield questions whose facts stand at random places, in their order, between the sentences of the haystack."""
    make, template = _WORLDS[name][0], prompt_of(f"babilong_{name}")
    draw = random.Random(f"{request.seed} {name}")
    room = request.room - _BUDGET - request.tokenizer.count(template)
    if room < _LEAST:
        raise request.too_short(f"babilong_{name}")
    haystack = Haystacks(request, haystack_text(request.data), room, rounds=1).of_round(0)
    sentences = re.split(r"(?<=[.!?])\s+", haystack)
    while True:
        facts, question, answer = make(draw)
        first = draw.randrange(len(sentences))
        around = [*sentences[first:], *sentences[:first]]
        sample = None
        while around and (sample is None or not request.fits(sample)):
            # As much is taken away as the facts take, then a little more where that was not enough.
            del around[len(around) - max(1, 2 * len(facts) if sample is None else len(around) // 50) :]
            places = sorted(draw.randrange(len(around) + 1) for _ in facts)
            parts = [around[start:end] for start, end in pairwise([0, *places, len(around)])]
            lines = [line for part, fact in zip_longest(parts, facts) for line in (*part, *([fact] if fact else []))]
            prompt = template.format(context=" ".join(lines).strip(), question=question)
            sample = Sample(prompt, (answer,), _BUDGET, details={"question": question, "facts": len(facts)})
        yield sample and request.fitting(sample)


def score(answer: str, sample: Sample, labels: tuple[str, ...]) -> dict[str, float]:
    """Return 1 if the answer's first sentence names the right label, and no other that the question does not name."""
    question, said = str(sample.details["question"]).lower(), answer.lower().split(".")[0]
    for end in ("<context>", "<example>"):
        said = said.split(end)[0]
    named = {label for label in labels if label in said and label not in question}
    return {"accuracy": float(named == {sample.references[0].lower()})}


TASKS: Final = tuple(
    Task(
        name=f"babilong_{name}",
        suite="babilong",
        category="BABILong",
        metric="accuracy",
        samples=100,
        make=partial(samples, name=name),
        score=partial(score, labels=labels),
        max_new_tokens=_BUDGET,
        files=(HAYSTACK,),
    )
    for name, (_, labels) in _WORLDS.items()
)
