"""MRCR: a conversation in which the same is asked for 2, 4 or 8 times; the model must give back one of the answers.

Vodrahalli et al. 2024 (arXiv 2409.12640); the form is that of OpenAI (April 2025, MIT).

Suite `mrcr` reads OpenAI's conversations from the user's folder: those whose tokens lie in (length / 2, length]. Suite `mrcr-mined`
makes conversations of the same form from a run of nextlong (`--run`): the needles are passages of one document, and what stands
between them are their mined hard negatives, so that it is known how alike they are. Grader: the published one; 0 unless the
answer begins with the random string, else the ratio of `difflib.SequenceMatcher`.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import TEXT, record
from nextlong.evaluate.task import Request, Sample, Task

if TYPE_CHECKING:
    from nextlong.runs.run import Sequence as RunSequence

_NEEDLES: Final = (2, 4, 8)
_BUDGET: Final = 1024
_SUBJECT_WORDS: Final = 12
_LEAST_CHARS: Final = 100  # of a needle: a heading alone is given back without a look at the others
_MISSES: Final = 64  # distractors too long for what is left, after which the conversation is full
_ORDINALS: Final = {1: "1st", 2: "2nd", 3: "3rd"}
_Turn = tuple[str, str]  # role, content


_SHAPE: Final = record(prompt=TEXT, answer=TEXT, random_string_to_prepend=TEXT)  # the prompt is a conversation, as JSON


def _files(needles: int) -> tuple[str, ...]:
    return tuple(f"mrcr/{needles}needle/{needles}needle_{part}.parquet" for part in (0, 1))


def _published(request: Request, needles: int) -> Iterator[Sample | None]:
    """Yield OpenAI's conversations, in the order of the files."""
    for row in (row for file in _files(needles) for row in request.data.json_lines(file, _SHAPE)):
        turns = tuple((str(turn["role"]), str(turn["content"])) for turn in json.loads(row["prompt"]))
        sample = _conversation(request, turns, row["answer"], row["random_string_to_prepend"])
        if request.is_in_band(sample):
            yield request.fitting(sample)


def _conversation(request: Request, turns: Sequence[_Turn], answer: str, mark: str) -> Sample:
    prompt = "\n\n".join(f"{role.capitalize()}: {content}" for role, content in turns)
    budget = request.tokenizer.count(answer) + 16
    return Sample(prompt + "\n\nAssistant:", (answer,), budget, details={"mark": mark}, turns=tuple(turns))


@dataclass(frozen=True)
class Passage:
    """A chunk of a run's sequence: its text, what it is about, and the number of the meta-chunk that it belongs to."""

    role: str
    group: int
    text: str
    subject: str


def mined(request: Request, needles: int) -> Iterator[Sample | None]:
    """Yield a conversation for each sequence of a run with so many meta-chunks, in a drawn order."""
    from nextlong.runs import run as opened

    assert request.run is not None, "it is asked for before a model is loaded"
    run = opened.Run(request.run)
    draw = random.Random(f"{request.seed} {needles}")
    numbers = list(range(len(run)))
    draw.shuffle(numbers)
    found = False
    for place, number in enumerate(numbers):
        own = list(_passages(run.sequence(number)))
        metas = [one for one in own if one.role == "meta" and len(one.text) >= _LEAST_CHARS][:needles]
        if len(metas) == needles:
            found = True
            others = (one for rest in numbers[place + 1 :] + numbers[:place] for one in _passages(run.sequence(rest)))
            yield _mined_conversation(
                request, metas, chain((one for one in own if one.role == "negative"), others), draw
            )
    if not found:
        raise EvaluateError(
            f"mrcr_mined_{needles}: no sequence of {request.run} has {needles} meta-chunks of {_LEAST_CHARS} characters; "
            "leave the task out"
        )


def _passages(sequence: RunSequence) -> Iterator[Passage]:
    """Yield the chunks of a sequence; those of its document are all about the document's first line."""
    title = ""
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        if span.role in ("meta", "negative") and text.strip():
            subject = " ".join(text.strip().splitlines()[0].split()[:_SUBJECT_WORDS]).rstrip(".,;: ")
            title = title or (subject if span.role == "meta" else "")
            yield Passage(span.role, span.group, text.strip(), title if span.role == "meta" else subject)


def _mined_conversation(
    request: Request, metas: Sequence[Passage], distractors: Iterable[Passage], draw: random.Random
) -> Sample | None:
    # The random string shows that the question was read; without it an answer scores 0.
    mark = "".join(draw.choices(string.ascii_letters + string.digits, k=10))
    number = draw.randrange(len(metas))
    subject, groups = metas[0].subject, [one.group for one in metas]
    question = (
        f"Prepend {mark} to the {_ORDINALS.get(number + 1, f'{number + 1}th')} (1 indexed) passage about {subject}. "
        "Do not include any other text in your response."
    )
    count = request.tokenizer.count
    budget = count(mark + metas[number].text) + 16
    left = request.room - budget - count(question) - 64 - sum(_tokens(request, one) for one in metas)
    behind: list[list[Passage]] = [[one] for one in metas]
    taken, misses = {one.text for one in metas}, 0
    for one in distractors:
        if one.text in taken or one.subject.lower() == subject.lower() or one.role != "negative":
            continue
        taken.add(one.text)
        if (tokens := _tokens(request, one)) > left:
            misses += 1
            if misses > _MISSES:
                break
            continue
        left -= tokens
        # A hard negative stands behind its own needle; what fills the length beyond those stands anywhere.
        behind[groups.index(one.group) if one.group in groups else draw.randrange(len(behind))].append(one)
    passages = [one for part in behind for one in part]
    asked = [(("user", f"Write a passage about {one.subject}."), ("assistant", one.text)) for one in passages]
    turns = (*chain.from_iterable(asked), ("user", question))
    return request.fitting(_conversation(request, turns, mark + metas[number].text, mark))


def _tokens(request: Request, one: Passage) -> int:
    return request.tokenizer.count(f"User: Write a passage about {one.subject}.\n\nAssistant: {one.text}\n\n")


def score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the likeness to the right answer; 0 where the answer does not begin with the random string."""
    mark, (right,) = str(sample.details["mark"]), sample.references
    if not answer.startswith(mark):
        return {"sequence_match": 0.0}
    return {"sequence_match": SequenceMatcher(None, answer.removeprefix(mark), right.removeprefix(mark)).ratio()}


_task = partial(Task, metric="sequence_match", samples=100, score=score, max_new_tokens=_BUDGET)
_openai = partial(_task, suite="mrcr", category="MRCR")
_mined = partial(_task, suite="mrcr-mined", category="MRCR, mined", reads="run")
TASKS: Final = (
    *(_openai(name=f"mrcr_{n}", make=partial(_published, needles=n), files=_files(n)) for n in _NEEDLES),
    *(_mined(name=f"mrcr_mined_{n}", make=partial(mined, needles=n)) for n in _NEEDLES),
)
