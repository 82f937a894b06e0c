"""BABILong: facts between the sentences of a long text, and a question about them.

Kuratov et al. 2024, arXiv 2406.10149: qa1 to qa5 of bAbI (Weston et al. 2015),
generated with bAbI's words; prompts, budget and grader are those of booydar/babilong at
7a6efee. What differs: docs/evaluate/generated.md.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from nextlong.evaluate.data import HAYSTACK
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.haystack import WORDS, haystack_text, haystacks

_BUDGET: Final = 20
# Tokens of haystack, so that the facts of a world are hidden in something.
_MIN_TOKENS: Final = 256
_PEOPLE: Final = WORDS["people"]
_GIVERS: Final = WORDS["givers"]
_PLACES: Final = WORDS["places"]
_ITEMS: Final = WORDS["items"]
_MOVES: Final = WORDS["moves"]
_TAKES: Final = WORDS["takes"]
_DROPS: Final = WORDS["drops"]
_GIVES: Final = WORDS["gives"]
_OPPOSITES: Final = [
    ("east", "west"),
    ("west", "east"),
    ("north", "south"),
    ("south", "north"),
]
# The smallest and the largest number of facts.
_STEPS: Final = {"qa1": (2, 10), "qa2": (6, 20), "qa3": (10, 40)}
_TAKE_BELOW: Final = 0.3  # of a uniform draw; a person who can takes something
_DROP_BELOW: Final = 0.4


class _Story(NamedTuple):
    """Facts in their order, and a question with one answer."""

    facts: list[str]
    question: str
    answer: str


class _Walk:
    """People who walk about with things, and the facts that tell it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.facts: list[str] = []
        self.place_of: dict[str, str] = {}  # by person
        self.carrier_of: dict[str, str] = {}  # by thing that somebody carries
        # By thing, the places where it was carried, in their order.
        self.places_of: dict[str, list[str]] = {}

    def step(self, *, only_moves: bool) -> None:
        """Let somebody take a thing, drop one or go somewhere."""
        who = self.draw.choice(_PEOPLE)
        carried = [thing for thing, by in self.carrier_of.items() if by == who]
        within_reach = self._within_reach(who)
        act = 1.0 if only_moves else self.draw.random()
        if within_reach and act < _TAKE_BELOW:
            self._take(who, self.draw.choice(within_reach))
        elif carried and act < _DROP_BELOW:
            self._drop(who, self.draw.choice(carried))
        else:
            self._move(who, carried)

    def _within_reach(self, who: str) -> list[str]:
        """Return the things at a person's place that nobody carries."""
        if who not in self.place_of:
            return []
        place = self.place_of[who]
        within_reach = []
        for thing in _ITEMS:
            last_place = self.places_of.get(thing, [place])[-1]
            if thing not in self.carrier_of and last_place == place:
                within_reach.append(thing)
        return within_reach

    def _take(self, who: str, thing: str) -> None:
        self.carrier_of[thing] = who
        self.places_of.setdefault(thing, [self.place_of[who]])
        took = self.draw.choice(_TAKES).format(thing)
        self.facts.append(f"{who} {took}.")

    def _drop(self, who: str, thing: str) -> None:
        del self.carrier_of[thing]
        dropped = self.draw.choice(_DROPS).format(thing)
        self.facts.append(f"{who} {dropped}.")

    def _move(self, who: str, carried: Sequence[str]) -> None:
        here = self.place_of.get(who)
        elsewhere = [place for place in _PLACES if place != here]
        place = self.draw.choice(elsewhere)
        self.place_of[who] = place
        for thing in carried:
            self.places_of[thing].append(place)
        self.facts.append(f"{who} {self.draw.choice(_MOVES)} {place}.")

    def moves(self) -> list[tuple[str, str, str]]:
        """Return (thing, place, next place), where the thing came to the latter once.

        Only then is there one answer to where it was before.
        """
        found = []
        for thing in sorted(self.places_of):
            places = self.places_of[thing]
            for earlier, later in pairwise(places):
                if places.count(later) == 1:
                    found.append((thing, earlier, later))
        return found


def _walked(draw: random.Random, name: str) -> _Story:
    """Return a story of people who walk about with things.

    qa1: where a person is. qa2: where a thing is that somebody carried. qa3: where a
    thing was before it was somewhere.
    """
    walk = _Walk(draw)
    for _ in range(draw.randint(*_STEPS[name])):
        walk.step(only_moves=name == "qa1")
    if name == "qa1":
        who = draw.choice(sorted(walk.place_of))
        return _Story(walk.facts, f"Where is {who}?", walk.place_of[who])
    if name == "qa2" and walk.places_of:
        thing = draw.choice(sorted(walk.places_of))
        return _Story(walk.facts, f"Where is the {thing}?", walk.places_of[thing][-1])
    moves = walk.moves()
    if name == "qa3" and moves:
        thing, earlier, later = draw.choice(moves)
        question = f"Where was the {thing} before the {later}?"
        return _Story(walk.facts, question, earlier)
    return _walked(draw, name)


def _beside(draw: random.Random, _: str) -> _Story:
    """qa4: what lies on which side of a place."""
    first, middle, last = draw.sample(_PLACES, 3)
    side, opposite = draw.choice(_OPPOSITES)
    facts = [
        f"The {first} is {side} of the {middle}.",
        f"The {last} is {opposite} of the {middle}.",
    ]
    draw.shuffle(facts)
    if draw.random() < 0.5:
        return _Story(facts, f"What is {side} of the {middle}?", first)
    return _Story(facts, f"What is the {middle} {side} of?", last)


def _given(draw: random.Random, name: str) -> _Story:
    """qa5: who gave what to whom."""
    facts: list[str] = []
    last_gift = None
    for _ in range(draw.randint(3, 12)):
        who = draw.choice(_GIVERS)
        move = draw.choice(_MOVES)
        place = draw.choice(_PLACES)
        facts.append(f"{who} {move} {place}.")
        if draw.random() < 0.5:
            thing = draw.choice(_ITEMS)
            receiver = draw.choice([giver for giver in _GIVERS if giver != who])
            took = draw.choice(_TAKES).format(thing)
            gave = draw.choice(_GIVES).format(thing)
            facts += [f"{who} {took}.", f"{who} {gave} {receiver}."]
            last_gift = (who, thing, receiver)
    if last_gift is None:
        return _given(draw, name)
    # The last gift of its thing, and between its two people: the question then has one
    # answer.
    who, thing, receiver = last_gift
    answers_by_question = {
        f"Who gave the {thing} to {receiver}?": who,
        f"Who did {who} give the {thing} to?": receiver,
        f"Who gave the {thing}?": who,
        f"What did {who} give to {receiver}?": thing,
        f"Who received the {thing}?": receiver,
    }
    question, answer = draw.choice(list(answers_by_question.items()))
    return _Story(facts, question, answer)


class _World(NamedTuple):
    """How the stories of a task are made, and the labels of its answers."""

    make: Callable[[random.Random, str], _Story]
    labels: tuple[str, ...]


_PEOPLE_AND_THINGS: Final = tuple(label.lower() for label in (*_GIVERS, *_ITEMS))
_WORLDS: Final = {
    "qa1": _World(_walked, tuple(_PLACES)),
    "qa2": _World(_walked, tuple(_PLACES)),
    "qa3": _World(_walked, tuple(_PLACES)),
    "qa4": _World(_beside, tuple(_PLACES)),
    "qa5": _World(_given, _PEOPLE_AND_THINGS),
}


def _samples(request: TaskRequest, name: str) -> Iterator[Sample | None]:
    """Yield questions whose facts stand, in order, at random places of the haystack."""
    template = prompt_of(f"babilong_{name}")
    draw = random.Random(f"{request.seed} {name}")
    room = request.room - _BUDGET - request.tokenizer.count(template)
    request.require(f"babilong_{name}", tokens=room, min_tokens=_MIN_TOKENS)
    haystack = haystacks(request, haystack_text(request.data), room)[0]
    sentences = re.split(r"(?<=[.!?])\s+", haystack)
    while True:
        story = _WORLDS[name].make(draw, name)
        first = draw.randrange(len(sentences))
        around = [*sentences[first:], *sentences[:first]]
        # Remove as many sentences as the facts need, then a few more if that was not
        # enough.
        too_many = 2 * len(story.facts)
        sample = None
        while around and (sample is None or not request.fits(sample)):
            del around[len(around) - max(1, too_many) :]
            context = " ".join(_mixed(draw, around, story.facts))
            sample = Sample(
                prompt=template.format(
                    context=context.strip(), question=story.question
                ),
                references=(story.answer,),
                max_new_tokens=_BUDGET,
                details={"question": story.question, "facts": len(story.facts)},
            )
            too_many = len(around) // 50
        yield sample


def _mixed(
    draw: random.Random, sentences: Sequence[str], facts: Sequence[str]
) -> list[str]:
    """Return the sentences with the facts, in order, at random places between them."""
    places = sorted(draw.randrange(len(sentences) + 1) for _ in facts)
    mixed: list[str] = []
    start = 0
    for place, fact in zip(places, facts, strict=True):
        mixed += sentences[start:place]
        mixed.append(fact)
        start = place
    mixed += sentences[start:]
    return mixed


def _name_label(
    answer: str, sample: Sample, labels: tuple[str, ...]
) -> dict[str, float]:
    """Return 1 if the answer's first sentence names the right label, and no other.

    A label that the question itself names does not count: it cannot show that the model
    knows the answer.
    """
    question = str(sample.details["question"]).lower()
    sentence = re.split(r"\.|<context>|<example>", answer.lower())[0]
    named = {label for label in labels if label in sentence and label not in question}
    expected = {sample.references[0].lower()}
    return {"accuracy": float(named == expected)}


_world = partial(
    Task,
    files=(HAYSTACK,),
    suite="babilong",
    category="BABILong",
    metric="accuracy",
    samples=100,
    version=2,
)
TASKS: Final = tuple(
    _world(
        f"babilong_{name}",
        make=partial(_samples, name=name),
        score=partial(_name_label, labels=world.labels),
    )
    for name, world in _WORLDS.items()
)
