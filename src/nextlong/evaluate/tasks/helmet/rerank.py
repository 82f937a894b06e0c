"""Re-ranking: MS MARCO passages with their ids, to be listed from most to least relevant.

In:  HELMET's files. Out: rankings `ID3 > ID1 > …`, scored by NDCG@10 as trec_eval computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from nextlong.evaluate.scores import ndcg, parsed_ranking
from nextlong.evaluate.shapes import Query
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, Row, drawn_examples, drawn_questions, fitted, rows_of

_PASSAGES_AT: Final = {8192: 50, 16_384: 130, 32_768: 285, 65_536: 600, 131_072: 1000}
_DEPTHS: Final = 3
_BUDGET: Final = 200
_PROMPT: Final = (
    "You are provided with a list of documents, each indicated by their ID. Rank each document based on their "
    "relevance to the question "
    "in descending order from most relelvant to least relevant texts. Include all documents in the rankings. Write "
    "your answer using the "
    "unique IDs, with the following format:\nRanking: ID3 > ID1 > ID2\n\n{demos}{context}\n\nQuery: {question}"
)
_PREFIX: Final = "\nRanking:"


def _path(passages: int) -> str:
    return f"helmet/msmarco/test_reranking_data_k{passages}_dep{_DEPTHS}.jsonl"


def samples(request: Request) -> Iterator[Sample | None]:
    """Yield HELMET's queries for a length, two ranked examples before each."""
    file = _path(_PASSAGES_AT[request.length])
    rows = drawn_questions(rows_of(request.data, file, Query), "qid", seed=request.seed)
    examples = rows_of(request.data, _path(10), Query)
    asked = {row["qid"] for row in rows}
    are_many = len(examples) > 2 * len(rows)
    for row in rows:
        others = asked if are_many else {row["qid"]}
        chosen = drawn_examples(examples, "qid", str(row["qid"]), keep=partial(_is_other, others))
        has_titles = "title" in row["ctxs"][0]
        demos = "".join(
            f"{_passages(demo, has_titles=has_titles)}\n\nQuery: {demo['query']}\nRanking: {_ranking(demo)}\n\n"
            for demo in chosen
        )
        context = _passages(row, has_titles=has_titles)
        fields = {"demos": demos, "question": row["query"]}
        prompt = "".join(fitted(request, _PROMPT, _PREFIX, _BUDGET, context=context, **fields))
        judged = {str(passage["id"]): int(passage["label"]) for passage in row["ctxs"]}
        sample = Sample(
            prompt,
            (_ranking(row),),
            _BUDGET,
            _PREFIX,
            stop="\n",
            details={"judged": dict(judged), "group": str(row["qid"])},
        )
        yield sample if request.fits(sample) else None


def _is_other(others: set[str], row: Row) -> bool:
    return row["qid"] not in others


def _passages(row: Row, *, has_titles: bool) -> str:
    return "\n\n".join(
        f"[ID: {passage['id']}] Document{_title(passage) if has_titles else ''}: {passage['text']}"
        for passage in row["ctxs"]
    )


def _title(passage: Row) -> str:
    return f" (Title: {passage.get('title', '')})"


def _ranking(row: Row) -> str:
    return " > ".join(str(one["id"]) for one in sorted(row["ctxs"], key=lambda one: int(one["label"]), reverse=True))


def _score(answer: str, sample: Sample) -> dict[str, float]:
    judged = sample.details["judged"]
    assert isinstance(judged, dict)
    return {
        "NDCG@10": ndcg(
            parsed_ranking(sample.completed(answer)), {name: int(str(label)) for name, label in judged.items()}, at=10
        )
    }


TASKS: Final = (
    Task(
        name="msmarco",
        suite="helmet",
        category="Re-rank",
        metric="NDCG@10",
        make=samples,
        score=_score,
        samples=QUESTIONS * _DEPTHS,
        max_new_tokens=_BUDGET,
        version=2,
        lengths=tuple(_PASSAGES_AT),
        files=(_path(10),),
        files_at={length: (_path(passages),) for length, passages in _PASSAGES_AT.items()},
    ),
)
