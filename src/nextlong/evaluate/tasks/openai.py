"""MRCR, as OpenAI published it (April 2025, MIT).

MRCR: a conversation with 2, 4 or 8 requests for the same thing; the model must repeat
one of the answers (Vodrahalli et al. 2024, arXiv 2409.12640). Suite `mrcr` reads
OpenAI's conversations; `mrcr-mined` makes some from a run (`--run`): the needles are
passages of one document, separated by their mined hard negatives, whose similarity is
known.

Differences: docs/evaluate/generated.md.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import TEXT, record
from nextlong.evaluate.task import Sample, Task, TaskRequest
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence

_NEEDLES: Final = (2, 4, 8)
_SUBJECT_WORDS: Final = 12
# Of a needle: a model can repeat a heading alone without comparing needles.
_MIN_CHARS: Final = 100
# Distractors too long for what is left, after which the conversation is full.
_MAX_MISSES: Final = 64
_ORDINALS: Final = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
# The prompt is a conversation, as JSON.
_MRCR_SHAPE: Final = record(prompt=TEXT, answer=TEXT, random_string_to_prepend=TEXT)


def _mrcr_files(needles: int) -> tuple[str, str]:
    stem = f"mrcr/{needles}needle/{needles}needle"
    return f"{stem}_0.parquet", f"{stem}_1.parquet"


_MRCR: Final = {needles: _mrcr_files(needles) for needles in _NEEDLES}


def _mrcr_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield OpenAI's conversations whose tokens lie in (length / 2, length].

    In the order of the files.
    """
    for file in _MRCR[needles]:
        for row in request.data.json_lines(file, _MRCR_SHAPE):
            turns = []
            for turn in json.loads(row["prompt"]):
                role = str(turn["role"])
                turns.append((role, str(turn["content"])))
            mark = row["random_string_to_prepend"]
            sample = _conversation(request, turns, row["answer"], mark)
            if request.is_in_band(sample):
                yield sample


def _conversation(
    request: TaskRequest, turns: Sequence[tuple[str, str]], answer: str, mark: str
) -> Sample:
    lines = [f"{role.capitalize()}: {content}" for role, content in turns]
    budget = request.tokenizer.count(answer) + 16
    return Sample(
        prompt="\n\n".join(lines),
        references=(answer,),
        max_new_tokens=budget,
        # Only a base model needs these: chat models are given the turns.
        answer_prefix="\n\nAssistant:",
        stop="\n\nUser:",
        details={"mark": mark},
        turns=tuple(turns),
    )


class _Passage(NamedTuple):
    role: str
    group: int  # the number of the meta-chunk that it belongs to
    text: str
    subject: str

    @property
    def request(self) -> str:
        """What the user asks for; the passage is the answer."""
        return f"Write a passage about {self.subject}."


def _passages(sequence: RunSequence) -> Iterator[_Passage]:
    """Yield the chunks of a sequence.

    Those of its document are all about the document's first line.
    """
    title = ""
    for span, span_text in zip(sequence.spans, sequence.texts, strict=True):
        text = span_text.strip()
        if span.role not in ("meta", "negative") or not text:
            continue
        first_words = text.splitlines()[0].split()[:_SUBJECT_WORDS]
        subject = " ".join(first_words).rstrip(".,;: ")
        if span.role == "meta":
            title = title or subject
            subject = title
        yield _Passage(span.role, span.group, text, subject)


def _mined_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield a conversation per sequence with that many meta-chunks, in random order."""
    assert request.run is not None, "checked before a model is loaded"
    run = Run(request.run)
    draw = random.Random(f"{request.seed} {needles}")
    numbers = list(range(len(run)))
    draw.shuffle(numbers)
    has_conversation = False
    for index, number in enumerate(numbers):
        sequence = run.sequence(number)
        passages = list(_passages(sequence))
        metas = [
            passage
            for passage in passages
            if passage.role == "meta" and len(passage.text) >= _MIN_CHARS
        ]
        if len(metas) < needles:
            continue
        has_conversation = True
        # Each conversation takes its filler from the sequences after it in the random
        # order, then from those before it.
        others = numbers[index + 1 :] + numbers[:index]
        filler = _passages_of_all(run, others)
        distractors = (
            passage for passage in chain(passages, filler) if passage.role == "negative"
        )
        yield _mined_conversation(request, metas[:needles], distractors, draw)
    if not has_conversation:
        raise EvaluateError(
            where=f"mrcr_mined_{needles}",
            problem=f"no sequence of {request.run} has {needles} meta-chunks of "
            f"{_MIN_CHARS} characters",
            fix="leave the task out",
        )


def _passages_of_all(run: Run, numbers: Iterable[int]) -> Iterator[_Passage]:
    for number in numbers:
        yield from _passages(run.sequence(number))


def _mined_conversation(
    request: TaskRequest,
    metas: Sequence[_Passage],
    distractors: Iterable[_Passage],
    draw: random.Random,
) -> Sample:
    """Return a conversation that asks for one of the needles, full of distractors."""
    # The random string shows that the question was read; without it an answer scores 0.
    mark = "".join(draw.choices(string.ascii_letters + string.digits, k=10))
    asked = draw.randrange(len(metas))
    answer = mark + metas[asked].text
    subject = metas[0].subject
    question = (
        f"Prepend {mark} to the {_ORDINALS[asked]} (1 indexed) passage about "
        f"{subject}. Do not include any other text in your response."
    )
    answer_tokens = request.tokenizer.count(answer) + 16
    question_tokens = request.tokenizer.count(question) + 64
    left = request.room - answer_tokens - question_tokens
    for meta in metas:
        left -= _tokens(request, meta)
    turns: list[tuple[str, str]] = []
    for passage in _with_distractors(request, metas, distractors, left, draw):
        turns += [("user", passage.request), ("assistant", passage.text)]
    return _conversation(request, [*turns, ("user", question)], answer, mark)


def _with_distractors(
    request: TaskRequest,
    metas: Sequence[_Passage],
    distractors: Iterable[_Passage],
    left: int,
    draw: random.Random,
) -> list[_Passage]:
    """Return each needle with the distractors that follow it, which fill `left` tokens.

    A hard negative follows its own needle; the filler of other sequences follows a
    random one.
    """
    subject = metas[0].subject.lower()
    block_of: dict[int, int] = {}
    for index, meta in enumerate(metas):
        block_of.setdefault(meta.group, index)
    blocks = [[meta] for meta in metas]
    taken = {meta.text for meta in metas}
    misses = 0
    for distractor in distractors:
        if distractor.text in taken or distractor.subject.lower() == subject:
            continue
        taken.add(distractor.text)
        tokens = _tokens(request, distractor)
        if tokens <= left:
            left -= tokens
            block = block_of.get(distractor.group)
            if block is None:
                block = draw.randrange(len(blocks))
            blocks[block].append(distractor)
        else:
            misses += 1
            if misses > _MAX_MISSES:
                break
    return list(chain.from_iterable(blocks))


def _tokens(request: TaskRequest, passage: _Passage) -> int:
    """Return the tokens of a passage with the request for it."""
    return request.tokenizer.count(
        f"User: {passage.request}\n\nAssistant: {passage.text}\n\n"
    )


def _mrcr_score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the similarity to the right answer.

    It is 0 if the answer does not begin with the random string.
    """
    mark = str(sample.details["mark"])
    if sample.answer_prefix:
        # A base model continues `Assistant:` with a space.
        answer = answer.lstrip()
    if not answer.startswith(mark):
        return {"sequence_match": 0.0}
    (reference,) = sample.references
    answered = answer.removeprefix(mark)
    expected = reference.removeprefix(mark)
    matcher = SequenceMatcher(None, answered, expected)
    return {"sequence_match": matcher.ratio()}


_mrcr = partial(
    Task,
    metric="sequence_match",
    samples=100,
    score=_mrcr_score,
    chat="template",
    version=2,
)


def _openai_mrcr(needles: int) -> Task:
    return _mrcr(
        name=f"mrcr_{needles}",
        suite="mrcr",
        category="MRCR",
        make=partial(_mrcr_samples, needles=needles),
        files=_MRCR[needles],
    )


def _mined_mrcr(needles: int) -> Task:
    return _mrcr(
        name=f"mrcr_mined_{needles}",
        suite="mrcr-mined",
        category="MRCR, mined",
        make=partial(_mined_samples, needles=needles),
        reads="run",
    )


TASKS: Final = (
    *map(_openai_mrcr, _NEEDLES),
    *map(_mined_mrcr, _NEEDLES),
)
