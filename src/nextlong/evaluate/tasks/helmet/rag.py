"""Retrieval-augmented generation: a question behind tens to a thousand passages, the gold one among them.

In:  HELMET's files of Natural Questions, TriviaQA, HotpotQA and PopQA. Out: short answers, scored by SubEM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from nextlong.evaluate.scores import best_of_raw_and_parsed, exact_match, substring_exact_match
from nextlong.evaluate.shapes import Asked, AskedByPopularity
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, Row, drawn_examples, drawn_questions, fitted, rows_of

_PASSAGES_AT: Final = {8192: 50, 16_384: 105, 32_768: 220, 65_536: 440, 131_072: 1000}
_BUDGET: Final = 20
_PROMPT: Final = (
    "Use the given documents to write a concise and short answer to the question. Write your answer in the following format:\n"
    "Answer: [answer]\n\n{demos}{context}\n\nQuestion: {question}"
)
_PREFIX: Final = "\nAnswer:"


@dataclass(frozen=True)
class Set:
    """A data set's files, with {k} for the number of passages, and how it is filtered."""

    questions: str
    examples: str
    depths: int
    most_popular: float | None = None  # log10 of the views a month below which PopQA's subjects are long-tail


SETS: Final = {
    "nq": Set("nq-dev-multikilt_1000_k{k}_dep6", "nq-train-multikilt_1000_k3_dep6", 6),
    "triviaqa": Set("triviaqa-dev-multikilt_1000_k{k}_dep6", "triviaqa-train-multikilt_1000_k3_dep6", 6),
    "hotpotqa": Set("hotpotqa-dev-multikilt_1000_k{k}_dep3", "hotpotqa-train-multikilt_1000_k3_dep3", 3),
    "popqa": Set("popqa_test_1000_k{k}_dep6", "popqa_test_1000_k3_dep6", 6, most_popular=3.0),
}


def _path(name: str, *, passages: int = 0) -> str:
    return f"helmet/kilt/{name.format(k=passages)}.jsonl"


def samples(request: Request, which: Set) -> Iterator[Sample | None]:
    """Yield HELMET's questions for a length, two examples before each."""
    file = _path(which.questions, passages=_PASSAGES_AT[request.length])
    shape = Asked if which.most_popular is None else AskedByPopularity
    rows = _rare(rows_of(request.data, file, shape), which)
    examples = _rare(rows_of(request.data, _path(which.examples), shape), which)
    key = "id" if all("id" in row for row in (*rows, *examples)) else "question"
    for row in drawn_questions(rows, key, seed=request.seed):
        asked = str(row[key])
        # PopQA has one split only, so the question itself may stand among its examples.
        chosen = drawn_examples(
            examples, key, asked, keep=partial(_is_other, key, asked if which.most_popular else None)
        )
        demos = "".join(
            f"{_passages(demo)}\n\nQuestion: {demo['question']}\nAnswer: {demo['answers'][0]}\n\n" for demo in chosen
        )
        fields = {"demos": demos, "question": row["question"]}
        prompt = "".join(fitted(request, _PROMPT, _PREFIX, _BUDGET, context=_passages(row), **fields))
        references = tuple(row["answers"])
        sample = Sample(
            prompt, references, _BUDGET, _PREFIX, stop="\n", details={"depth": row.get("depth"), "group": asked}
        )
        yield sample if request.fits(sample) else None


def _is_other(key: str, asked: str | None, row: Row) -> bool:
    return str(row[key]) != asked


def _rare(rows: list[Row], which: Set) -> list[Row]:
    if which.most_popular is None:
        return rows
    return [row for row in rows if math.log10(row["s_pop"]) < which.most_popular]


def _passages(row: Row) -> str:
    return "\n\n".join(f"Document (Title: {passage['title']}): {passage['text']}" for passage in row["ctxs"])


def _score(answer: str, sample: Sample) -> dict[str, float]:
    completed = sample.completed(answer)
    return {
        "substring_exact_match": best_of_raw_and_parsed(substring_exact_match, completed, sample.references),
        "exact_match": best_of_raw_and_parsed(exact_match, completed, sample.references),
    }


TASKS: Final = tuple(
    Task(
        name,
        "helmet",
        "RAG",
        "substring_exact_match",
        partial(samples, which=which),
        _score,
        samples=QUESTIONS * which.depths,
        max_new_tokens=_BUDGET,
        version=2,
        lengths=tuple(_PASSAGES_AT),
        files=(_path(which.examples),),
        files_at={length: (_path(which.questions, passages=k),) for length, k in _PASSAGES_AT.items()},
    )
    for name, which in SETS.items()
)
