"""Tasks over passages: RAG (short answers), Re-rank (rankings), Cite (long answers with citations).

In:  HELMET's files of Natural Questions, TriviaQA, HotpotQA and PopQA; of MS MARCO; of ALCE (ASQA and QAMPARI; Gao et al. 2023,
arXiv 2305.14627) with its prompts. Out: RAG by SubEM; re-ranking by NDCG@10 as trec_eval computes it; ALCE as HELMET's
eval_alce.py: for ASQA the share of short answers that are found, for QAMPARI the recall of a list, up to five. HELMET's citation
recall and precision, which need an entailment model of 11B parameters, are not computed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from statistics import fmean
from typing import Annotated, Any, Final, NotRequired

from annotated_types import Gt

import nextlong.evaluate.tasks.helmet.published as published
from nextlong.evaluate.data import (
    NAME,
    TEXT,
    TEXTS,
    optional,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Task, TaskRequest
from nextlong.evaluate.tasks.helmet.published import (
    LENGTHS,
    QUESTIONS,
    SHOTS,
    normalize_answer,
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
_RAG_PASSAGES: Final = dict(zip(LENGTHS, (50, 105, 220, 440, 1000), strict=True))
_LONG_TAIL: Final = 3.0  # log10 of monthly views; only PopQA subjects below it are used
_RAG: Final = {
    "nq": 6,
    "triviaqa": 6,
    "hotpotqa": 3,
    "popqa": 6,
}  # the depths of the gold passage


def _rag_file(name: str, length: int | None = None) -> str:
    """Return the file of the questions at a length, or of the examples."""
    split = (
        "_test"
        if name == "popqa"
        else "-train-multikilt"
        if length is None
        else "-dev-multikilt"
    )
    passages = 3 if length is None else _RAG_PASSAGES[length]
    return f"helmet/kilt/{name}{split}_1000_k{passages}_dep{_RAG[name]}.jsonl"


def _rag_samples(request: TaskRequest, name: str) -> Iterator[Sample]:
    """Yield HELMET's questions for a length, two examples before each."""
    is_popqa = name == "popqa"
    shape = record(
        **_RAG_FIELDS,
        depth=NotRequired[Any],
        **({"s_pop": Annotated[float, Gt(0)]} if is_popqa else {}),
    )
    rows, examples = (
        [
            r
            for r in request.data.json_lines(file, shape)
            if not is_popqa or math.log10(r["s_pop"]) < _LONG_TAIL
        ]
        for file in (_rag_file(name, request.length), _rag_file(name))
    )

    def listed(row: Json) -> str:
        return "\n\n".join(
            f"Document (Title: {passage['title']}): {passage['text']}"
            for passage in row["ctxs"]
        )

    key = "id" if all("id" in row for row in (*rows, *examples)) else "question"
    for row in published.sampled_questions(rows, key, seed=request.seed):
        group = str(row[key])
        # PopQA has one split only, so the question itself may be one of its examples.
        shots = published.sampled_examples(
            examples, key, group, {group} if is_popqa else set()
        )
        shown = (
            f"{listed(one)}\n\nQuestion: {one['question']}\nAnswer: {one['answers'][0]}\n\n"
            for one in shots
        )
        details = {"depth": row.get("depth"), "group": group}
        question = Sample("", tuple(row["answers"]), 20, "\nAnswer:", "\n", details)
        fields = {
            "context": listed(row),
            "demos": "".join(shown),
            "question": row["question"],
        }
        yield published.prompted(request, "helmet_rag", question, **fields)


# Re-rank: passages with their ids, to be listed from most to least relevant as `ID3 > ID1 > …`.

_RANKED: Final = record(id=NAME, text=str, label=int, title=NotRequired[str])
_RANKED_SHAPE: Final = record(qid=NAME, query=TEXT, ctxs=several(_RANKED))
_RANKED_PASSAGES: Final = dict(zip(LENGTHS, (50, 130, 285, 600, 1000), strict=True))


_ranked_file = "helmet/msmarco/test_reranking_data_k{}_dep3.jsonl".format


def _rerank_samples(request: TaskRequest) -> Iterator[Sample]:
    """Yield HELMET's queries for a length, two ranked examples before each."""

    def listed(row: Json, *, has_titles: bool) -> str:
        return "\n\n".join(
            f"[ID: {one['id']}] Document{' (Title: ' + one.get('title', '') + ')' if has_titles else ''}: {one['text']}"
            for one in row["ctxs"]
        )

    def ranking(row: Json) -> str:
        ranked = sorted(row["ctxs"], key=lambda one: int(one["label"]), reverse=True)
        return " > ".join(str(one["id"]) for one in ranked)

    file = _ranked_file(_RANKED_PASSAGES[request.length])
    rows = published.sampled_questions(
        list(request.data.json_lines(file, _RANKED_SHAPE)), "qid", seed=request.seed
    )
    examples = list(request.data.json_lines(_ranked_file(10), _RANKED_SHAPE))
    # With enough examples none of them is a query of the test, else only the question itself is left out.
    every = (
        {str(row["qid"]) for row in rows} if len(examples) > 2 * len(rows) else set()
    )
    for row in rows:
        query, show = (
            str(row["qid"]),
            partial(listed, has_titles="title" in row["ctxs"][0]),
        )
        shots = published.sampled_examples(examples, "qid", query, every | {query})
        shown = (
            f"{show(one)}\n\nQuery: {one['query']}\nRanking: {ranking(one)}\n\n"
            for one in shots
        )
        relevance = {
            str(passage["id"]): int(passage["label"]) for passage in row["ctxs"]
        }
        question = Sample(
            "",
            (ranking(row),),
            200,
            "\nRanking:",
            "\n",
            {"judged": relevance, "group": query},
        )
        fields = {
            "context": show(row),
            "demos": "".join(shown),
            "question": row["query"],
        }
        yield published.prompted(request, "helmet_rerank", question, **fields)


def _score_ranking(answer: str, sample: Sample) -> dict[str, float]:
    """Return NDCG@10 as trec_eval's ndcg_cut: gain = relevance, discount = log2(rank + 1), ideal over all judged.

    The ranking is the longest `3 > 1 > 2` of the answer, each id once; brackets, colons and `ID` are ignored.
    """
    cleaned = re.sub(r"[\[\]:]", "", sample.completed(answer)).lower().replace("id", "")
    longest = max(
        (match[0] for match in re.finditer(r"(\d+)(?:\s*>\s*(\d+))*", cleaned)),
        key=len,
        default="",
    )
    ranking = dict.fromkeys(
        part.strip() for part in longest.split(">") if part.strip().isdigit()
    )
    relevance = {
        name: max(int(label), 0) for name, label in sample.details["judged"].items()
    }

    def gain(labels: Iterable[int]) -> float:
        return sum(
            label / math.log2(rank + 1)
            for rank, label in enumerate(islice(labels, 10), start=1)
        )

    # The gain of the best order; a query without a relevant passage scores 0.
    ideal = gain(sorted(relevance.values(), reverse=True))
    return {
        "NDCG@10": gain(relevance.get(name, 0) for name in ranking) / ideal
        if ideal
        else 0.0
    }


# Cite: answers whose claims name passages, [3][7], from up to 700 of them.

_ALCE_SHAPE: Final = record(
    question=TEXT,
    docs=several(_PASSAGE),
    qa_pairs=optional(several(record(short_answers=TEXTS), min_items=0)),  # of ASQA
    answers=optional(several(TEXTS, min_items=0)),  # of QAMPARI
)
_ALCE_DEMOS: Final = several(dict[str, Any], min_items=SHOTS)
_ALCE_PROMPT: Final = record(
    instruction=TEXT, demo_prompt=TEXT, doc_prompt=TEXT, demos=_ALCE_DEMOS
)
_ALCE_PASSAGES: Final = dict(zip(LENGTHS, (30, 75, 165, 345, 700), strict=True))


def _alce_files(name: str) -> tuple[str, str]:
    """Return the files of a task's questions with their passages, and of its prompt with its examples."""
    return (
        f"helmet/alce/{name}_eval_gtr_top2000.json",
        f"helmet/prompts/{name}_revised.json",
    )


def _alce_samples(request: TaskRequest, name: str) -> Iterator[Sample]:
    """Yield HELMET's 100 questions for a length, two examples before each."""
    questions, prompts = _alce_files(name)
    prompt, draw = request.data.json(prompts, _ALCE_PROMPT), random.Random(request.seed)
    with_shots = [
        (row, draw.sample(prompt["demos"], SHOTS))
        for row in request.data.json_lines(questions, _ALCE_SHAPE)
    ]

    def listed(passages: Sequence[Json]) -> str:
        return "\n\n".join(
            prompt["doc_prompt"].format(**one, ID=n)
            for n, one in enumerate(passages, start=1)
        )

    for row, shots in published.shuffled(with_shots, seed=request.seed)[:QUESTIONS]:
        about = {"instruction": prompt["instruction"]}
        demos = (
            prompt["demo_prompt"].format(
                **{**shot, **about, "context": listed(shot["docs"])}
            )
            for shot in shots
        )
        # A group holds the spellings of one answer: of an item of QAMPARI's list, or of a short answer of ASQA.
        groups = (
            row["answers"]
            if name == "qampari"
            else [pair["short_answers"] for pair in row["qa_pairs"]]
        )
        question = f"{prompt['instruction']}\n\nQuestion: {row['question']}"
        text = "\n\n\n".join(
            [
                *demos,
                f"{question}\n\n{listed(row['docs'][: _ALCE_PASSAGES[request.length]])}",
            ]
        )
        details = {"question": row["question"], "answers": groups}
        yield Sample(
            text,
            tuple(chain.from_iterable(groups)),
            300,
            "\n\nAnswer:",
            details=details,
        )


def _without_citations(text: str) -> str:
    return (
        re.sub(r"\[\d+", "", re.sub(r" \[\d+", "", text))
        .replace(" |", "")
        .replace("]", "")
    )


def _claims(answer: str) -> tuple[str, list[str]]:
    """Return an answer on one line, and the items of the list that it may be."""
    text = re.sub(r"\n+", " ", answer).replace("<|im_end|>", "")
    return text, text.rstrip().rstrip(".").rstrip(",").split(",")


def _score_asqa(answer: str, sample: Sample) -> dict[str, float]:
    """Return the share of questions whose short answer is in the text, and whether it is all of them."""
    text = normalize_answer(_without_citations(_claims(answer)[0]))
    found = [
        any(normalize_answer(one) in text for one in group)
        for group in sample.details["answers"]
    ]
    return {"str_em": fmean(found), "str_hit": float(all(found))}


def _score_qampari(answer: str, sample: Sample) -> dict[str, float]:
    """Return precision and recall of the listed answers, and recall where five right ones are enough."""
    listed = [
        one
        for item in _claims(answer)[1]
        if (one := normalize_answer(_without_citations(item)))
    ]
    groups = [
        {normalize_answer(one) for one in group} for group in sample.details["answers"]
    ]
    # Answers of the truth that the list names in any spelling.
    found, right = (
        sum(not group.isdisjoint(listed) for group in groups),
        set().union(*groups),
    )
    precision = sum(one in right for one in listed) / len(listed) if listed else 0.0
    top = min(5, found) / min(5, len(groups))
    return {
        "qampari_rec_top5": top,
        "qampari_rec": found / len(groups),
        "qampari_prec": precision,
    }


_task = partial(Task, suite="helmet", lengths=LENGTHS, version=2)
_score_rag = published.best_of(
    substring_exact_match=published.substring_exact_match,
    exact_match=published.exact_match,
)
_rag = partial(_task, category="RAG", metric="substring_exact_match", score=_score_rag)
_ranked = {
    length: (_ranked_file(passages),) for length, passages in _RANKED_PASSAGES.items()
}
_rerank = partial(
    _task,
    category="Re-rank",
    metric="NDCG@10",
    score=_score_ranking,
    samples=QUESTIONS * 3,
)
_alce = partial(_task, category="Cite", samples=QUESTIONS, version=1)
_of_alce = {
    name: {"make": partial(_alce_samples, name=name), "files": _alce_files(name)}
    for name in ("asqa", "qampari")
}
TASKS: Final = (
    *(
        _rag(
            name,
            samples=QUESTIONS * depths,
            make=partial(_rag_samples, name=name),
            files=(_rag_file(name),),
            files_at={length: (_rag_file(name, length),) for length in LENGTHS},
        )
        for name, depths in _RAG.items()
    ),
    _rerank(
        "msmarco", make=_rerank_samples, files=(_ranked_file(10),), files_at=_ranked
    ),
    _alce("alce_asqa", metric="str_em", score=_score_asqa, **_of_alce["asqa"]),
    _alce(
        "alce_qampari",
        metric="qampari_rec_top5",
        score=_score_qampari,
        **_of_alce["qampari"],
    ),
)
