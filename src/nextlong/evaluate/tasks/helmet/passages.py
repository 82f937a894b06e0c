"""Tasks over passages: short answers (RAG) and rankings (Re-rank).

In:  HELMET's files of Natural Questions, TriviaQA, HotpotQA, PopQA and MS MARCO.
Out: RAG by SubEM; re-ranking by NDCG@10 as trec_eval computes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, NotRequired

from annotated_types import Gt

import nextlong.evaluate.tasks.helmet.published as published
from nextlong.evaluate.data import (
    NAME,
    TEXT,
    TEXTS,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.helmet.published import (
    LENGTHS,
    NUMBERS,
    QUESTIONS,
)
from nextlong.text import Json

# RAG: a question after tens to a thousand passages, one of which is the gold one.

_PASSAGE: Final = record(title=str, text=str)
_RAG_FIELDS: Final[Json] = {
    "question": TEXT,
    "answers": TEXTS,
    "ctxs": several(_PASSAGE),
    "id": NotRequired[NAME],
}
_RAG_PASSAGES: Final = published.at_lengths(NUMBERS["rag_passages"])
# log10 of monthly views; only PopQA subjects below it are used.
_LONG_TAIL: Final = 3.0
_RAG: Final[dict[str, int]] = NUMBERS["rag_depths"]


def _rag_file(name: str, length: int | None = None) -> str:
    """Return the file of the questions at a length, or of the examples."""
    passages = 3 if length is None else _RAG_PASSAGES[length]
    if name == "popqa":
        split = "_test"
    elif length is None:
        split = "-train-multikilt"
    else:
        split = "-dev-multikilt"
    return f"helmet/kilt/{name}{split}_1000_k{passages}_dep{_RAG[name]}.jsonl"


def _rag_rows(request: TaskRequest, name: str, file: str) -> list[Json]:
    """Return the questions of a file; of PopQA those about rarely viewed subjects."""
    fields = {**_RAG_FIELDS, "depth": NotRequired[Any]}
    if name != "popqa":
        shape = record(**fields)
        return list(request.data.json_lines(file, shape))
    shape = record(**fields, s_pop=Annotated[float, Gt(0)])
    rows = request.data.json_lines(file, shape)
    return [row for row in rows if math.log10(row["s_pop"]) < _LONG_TAIL]


def _rag_samples(request: TaskRequest, name: str) -> Iterator[Sample]:
    """Yield HELMET's questions for a length, two examples before each."""
    rows = _rag_rows(request, name, _rag_file(name, request.length))
    examples = _rag_rows(request, name, _rag_file(name))
    has_ids = all("id" in row for row in (*rows, *examples))
    key = "id" if has_ids else "question"
    for row in published.sampled_questions(rows, key, seed=request.seed):
        group = str(row[key])
        # PopQA has one split only, so the question itself may be one of its examples.
        excluded = {group} if name == "popqa" else set()
        shots = published.sampled_examples(examples, key, group, excluded)
        demos = [_rag_example(shot) for shot in shots]
        question = Sample(
            prompt="",
            references=tuple(row["answers"]),
            max_new_tokens=20,
            answer_prefix="\nAnswer:",
            details={"depth": row.get("depth"), "group": group},
        )
        yield published.prompted(
            request,
            prompt_of("helmet_rag"),
            question,
            context=_documents(row),
            demos="".join(demos),
            question=row["question"],
        )


def _documents(row: Json) -> str:
    parts = []
    for passage in row["ctxs"]:
        parts.append(f"Document (Title: {passage['title']}): {passage['text']}")
    return "\n\n".join(parts)


def _rag_example(row: Json) -> str:
    asked = f"Question: {row['question']}\nAnswer: {row['answers'][0]}"
    return f"{_documents(row)}\n\n{asked}\n\n"


# Re-rank: passages with their ids, to be listed from most to least relevant as
# `ID3 > ID1 > …`.

_RANKED: Final = record(id=NAME, text=str, label=int, title=NotRequired[str])
_RANKED_SHAPE: Final = record(qid=NAME, query=TEXT, ctxs=several(_RANKED))
_RANKED_PASSAGES: Final = published.at_lengths(NUMBERS["rerank_passages"])
_ranked_file = "helmet/msmarco/test_reranking_data_k{}_dep3.jsonl".format
_RANKED_EXAMPLES: Final = _ranked_file(10)


def _rerank_samples(request: TaskRequest) -> Iterator[Sample]:
    """Yield HELMET's queries for a length, two ranked examples before each."""
    file = _ranked_file(_RANKED_PASSAGES[request.length])
    every_row = list(request.data.json_lines(file, _RANKED_SHAPE))
    rows = published.sampled_questions(every_row, "qid", seed=request.seed)
    examples = list(request.data.json_lines(_RANKED_EXAMPLES, _RANKED_SHAPE))
    # With enough examples none of them is a query of the test, else only the question
    # itself is left out.
    excluded: set[str] = set()
    if len(examples) > 2 * len(rows):
        excluded = {str(row["qid"]) for row in rows}
    for row in rows:
        query = str(row["qid"])
        shots = published.sampled_examples(examples, "qid", query, excluded | {query})
        # Examples show titles where the question's own passages have them.
        has_titles = "title" in row["ctxs"][0]
        demos = [_ranked_example(shot, has_titles=has_titles) for shot in shots]
        relevance = {}
        for passage in row["ctxs"]:
            relevance[str(passage["id"])] = int(passage["label"])
        question = Sample(
            prompt="",
            references=(_ranking(row),),
            max_new_tokens=200,
            answer_prefix="\nRanking:",
            details={"judged": relevance, "group": query},
        )
        yield published.prompted(
            request,
            prompt_of("helmet_rerank"),
            question,
            context=_ranked_passages(row, has_titles=has_titles),
            demos="".join(demos),
            question=row["query"],
        )


def _ranked_passages(row: Json, *, has_titles: bool) -> str:
    parts = []
    for passage in row["ctxs"]:
        title = f" (Title: {passage.get('title', '')})" if has_titles else ""
        parts.append(f"[ID: {passage['id']}] Document{title}: {passage['text']}")
    return "\n\n".join(parts)


def _ranking(row: Json) -> str:
    by_label = sorted(
        row["ctxs"], key=lambda passage: int(passage["label"]), reverse=True
    )
    return " > ".join(str(passage["id"]) for passage in by_label)


def _ranked_example(row: Json, *, has_titles: bool) -> str:
    passages = _ranked_passages(row, has_titles=has_titles)
    return f"{passages}\n\nQuery: {row['query']}\nRanking: {_ranking(row)}\n\n"


def _score_ranking(answer: str, sample: Sample) -> dict[str, float]:
    """Return NDCG@10 as trec_eval's ndcg_cut.

    Gain = relevance, discount = log2(rank + 1), ideal over all judged.
    """
    judged = sample.details["judged"]
    relevance = {name: max(int(label), 0) for name, label in judged.items()}
    best_order = sorted(relevance.values(), reverse=True)
    ideal = _discounted_gain(best_order)
    if not ideal:
        # A query without a relevant passage scores 0.
        return {"NDCG@10": 0.0}
    ranking = _parsed_ranking(sample.completed(answer))
    gain = _discounted_gain(relevance.get(name, 0) for name in ranking)
    return {"NDCG@10": gain / ideal}


def _parsed_ranking(answer: str) -> list[str]:
    """Return the longest `3 > 1 > 2` of an answer, each id once.

    Brackets, colons and `ID` are ignored.
    """
    without_marks = re.sub(r"[\[\]:]", "", answer)
    numbers = without_marks.lower().replace("id", "")
    chains = [match[0] for match in re.finditer(r"(\d+)(?:\s*>\s*(\d+))*", numbers)]
    longest = max(chains, key=len, default="")
    parts = [part.strip() for part in longest.split(">")]
    names = [part for part in parts if part.isdigit()]
    return list(dict.fromkeys(names))


def _discounted_gain(labels: Iterable[int]) -> float:
    """Return the sum of the first ten labels, each divided by its discount."""
    ranked = enumerate(islice(labels, 10), start=1)
    return sum(label / math.log2(rank + 1) for rank, label in ranked)


_task = partial(Task, suite="helmet", lengths=LENGTHS, chat="plain text", version=3)
_score_rag = published.best_of(
    substring_exact_match=published.substring_exact_match,
    exact_match=published.exact_match,
)
_rag = partial(_task, category="RAG", metric="substring_exact_match", score=_score_rag)


def _rag_task(name: str) -> Task:
    questions_at = {length: (_rag_file(name, length),) for length in LENGTHS}
    return _rag(
        name,
        samples=QUESTIONS * _RAG[name],
        make=partial(_rag_samples, name=name),
        files=(_rag_file(name),),
        files_at=questions_at,
    )


_ranked_at: Final = {
    length: (_ranked_file(passages),) for length, passages in _RANKED_PASSAGES.items()
}
_rerank: Final = _task(
    "msmarco",
    category="Re-rank",
    metric="NDCG@10",
    score=_score_ranking,
    samples=QUESTIONS * 3,
    make=_rerank_samples,
    files=(_RANKED_EXAMPLES,),
    files_at=_ranked_at,
)
TASKS: Final = (*(_rag_task(name) for name in _RAG), _rerank)
