"""Questions: SQuAD's and HotpotQA's, each with its paragraphs among others.

In:  the data sets as published. Out: prompts with any number of accepted answers; score: whether one is found
(`string_match_part`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles, origin
from nextlong.evaluate.scores import string_match_part
from nextlong.evaluate.shapes import HotpotQA, Squad
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.ruler.fit import Built, fitting, largest, refuse_short, upper_bound

BUDGET: Final = 32
SQUAD, HOTPOTQA = "ruler/squad.json", "ruler/hotpotqa.json"
_STEP: Final = 10
_PROMPT: Final = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.\n\nThe following are "
    "given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me the answer and "
    "do not output any "
    "other words.\n\nQuestion: {query}"
)
_PREFIX: Final = " Answer:"


@dataclass(frozen=True)
class Question:
    """A question, its answers, the documents that hold them, and others of the same article, by number."""

    text: str
    answers: tuple[str, ...]
    gold: list[int]
    related: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class QuestionSet:
    """Questions over one numbered list of documents."""

    questions: list[Question]
    documents: list[str]


def read_squad(data: DataFiles) -> QuestionSet:
    """Read SQuAD 2.0: the answerable questions; documents are paragraphs."""
    articles = [
        [(paragraph["context"], paragraph["qas"]) for paragraph in article["paragraphs"]]
        for article in data.json(SQUAD, Squad)["data"]
    ]
    documents = sorted({text for article in articles for text, _ in article})
    numbers = {text: number for number, text in enumerate(documents)}
    questions = []
    for article in articles:
        same = [numbers[text] for text, _ in article]
        for text, asked in article:
            answering = numbers[text]
            related = [number for number in same if number != answering]
            questions += [
                Question(one["question"], tuple(answer["text"] for answer in one["answers"]), [answering], related)
                for one in asked
                if not one.get("is_impossible")
            ]
    return QuestionSet(questions, documents)


def read_hotpotqa(data: DataFiles) -> QuestionSet:
    """Read HotpotQA's distractor setting: ten documents a question, title and text."""
    items = data.json(HOTPOTQA, HotpotQA)
    contexts = [[f"{title}\n{''.join(lines)}" for title, lines in item["context"]] for item in items]
    documents = sorted({text for context in contexts for text in context})
    numbers = {text: number for number, text in enumerate(documents)}
    questions = [
        Question(
            item["question"],
            (item["answer"],),
            [numbers[text] for text in context],
        )
        for item, context in zip(items, contexts, strict=True)
    ]
    return QuestionSet(questions, documents)


def samples(request: Request, read: Callable[[DataFiles], QuestionSet]) -> Iterator[Sample | None]:
    """Yield one sample a question, in the order of the file."""
    refuse_short(request, "qa", least=1024)
    asked = read(request.data)
    if not asked.questions:
        raise EvaluateError(f"{SQUAD} or {HOTPOTQA}: no question in it can be answered; {origin(SQUAD)}")
    draw = random.Random(request.seed)
    build = partial(_build, asked, draw=draw, seed=request.seed)
    first = partial(build, 0)
    upper = upper_bound(request, first, step=_STEP)  # type: ignore[arg-type]  # there is a question 0
    size = largest(request, first, lower=_STEP, upper=upper, budget=BUDGET, step=_STEP)  # type: ignore[arg-type]
    return fitting(request, build, size=size, step=_STEP, budget=BUDGET)


def _build(asked: QuestionSet, index: int, size: int, *, draw: random.Random, seed: int) -> Built | None:
    if index >= len(asked.questions):
        return None
    question = asked.questions[index]
    chosen = _documents(asked, question, size, draw)
    random.Random(seed).shuffle(chosen)
    context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(chosen, start=1))
    return Built(_PROMPT.format(context=context, query=question.text), _PREFIX, question.answers)


def _documents(asked: QuestionSet, question: Question, size: int, draw: random.Random) -> list[str]:
    if size >= len(asked.documents):
        repeats = -(-size // len(asked.documents))
        return (asked.documents * repeats)[:size]
    missing = size - len(question.gold)
    if missing > len(question.related):
        named = {*question.gold, *question.related}
        others = [number for number in range(len(asked.documents)) if number not in named]
        more = question.related + draw.sample(others, max(0, missing - len(question.related)))
    else:
        more = draw.sample(question.related, missing)
    return [asked.documents[number] for number in question.gold + more]


def _score(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_part": string_match_part(answer, sample.references)}


TASKS: Final = tuple(
    Task(
        name,
        "ruler",
        "RULER",
        "string_match_part",
        partial(samples, read=read),
        _score,
        samples=500,
        max_new_tokens=BUDGET,
        files=(file,),
    )
    for name, file, read in (("qa_1", SQUAD, read_squad), ("qa_2", HOTPOTQA, read_hotpotqa))
)
