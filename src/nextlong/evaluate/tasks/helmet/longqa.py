"""Long documents: questions over stories (LongQA) and summaries (Summ).

In:  NarrativeQA, InfiniteBench and Multi-LexSum (Shen et al. 2022, arXiv 2206.10883) as published, HELMET's key points of the
reference summaries, and Llama 2's tokenizer, with which HELMET counts for every model. Out: short answers by ROUGE-L F1 or the
right letter; summaries by ROUGE-L F1 until a judge has rated them (`nextlong evaluate judge`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, islice
from typing import Annotated, Any, Final, NotRequired

import tokenizers
from annotated_types import Len
from pydantic import BeforeValidator

import nextlong.evaluate.tasks.helmet.published as published
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import (
    NAME,
    TEXTS,
    DataFiles,
    Shape,
    optional,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Scorer, Task, TaskRequest
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, shuffled
from nextlong.recipe.keys import as_list
from nextlong.text import Json

LLAMA2: Final = "helmet/llama2/tokenizer.json"
LONGBOOK_QA: Final = "infinitebench/longbook_qa_eng.jsonl"
_LONG_STORY_TOKENS: Final = 131_072
_MARGIN_TOKENS: Final = 200  # that HELMET keeps for instruction, examples and question
_OMITTED: Final = " ... [the rest of the text is omitted]"
_CHOICE: Final = "infinitebench/longbook_choice_eng.jsonl"
_NARRATIVE, _NARRATIVE_TRAIN = "narrativeqa/test.jsonl", "narrativeqa/train.jsonl"
_TEXT_FIELD: Final = record(text=str)
_NARRATIVE_SHAPE: Final = record(
    document=_TEXT_FIELD, question=_TEXT_FIELD, answers=several(_TEXT_FIELD)
)
_ANSWERS: Final[Shape] = Annotated[
    TEXTS, BeforeValidator(as_list)
]  # of the string that is the only one, too
_BOOK_FIELDS: Final[Json] = {
    "id": NotRequired[Any],
    "context": str,
    "input": str,
    "answer": _ANSWERS,
}
_BOOK: Final = record(**_BOOK_FIELDS, options=NotRequired[Any])
_CASES, _CASES_TRAIN = "multi_lexsum/validation.jsonl", "multi_lexsum/train.jsonl"
_CASE_POINTS: Final = "helmet/multi_lexsum/multi_lexsum_val.jsonl"
_LEAST_TOKENS: Final = 65_536
_BOOKS, _BOOK_POINTS = (
    "infinitebench/longbook_sum_eng.jsonl",
    "helmet/infbench/longbook_sum_eng_keypoints.jsonl",
)
_LAWSUIT: Final = record(
    **{
        "id": NAME,
        "sources": TEXTS,
        "summary/short": str | None,
        "summary/long": optional(str),
    }
)
_KEY_POINTS: Final = record(
    **{
        "id": NAME,
        "keypoints": NotRequired[TEXTS],
        "summary/short_keypoints": optional(TEXTS),
    }
)


def _has_its_answer(choice: Json) -> Json:
    if (answer := choice["answer"][0]) not in choice["options"]:
        raise ValueError(f"its answer {answer!r:.60} is not one of its four options")
    return choice


_CHOICE_SHAPE: Final = record(
    _has_its_answer, **_BOOK_FIELDS, options=Annotated[list[str], Len(4, 4)]
)


@lru_cache(maxsize=1)
def _llama2(data: DataFiles) -> tokenizers.Tokenizer:
    text = data.text(LLAMA2)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises a bare Exception whatever is wrong
        raise data.error(LLAMA2, f"it is not a tokenizer.json ({error})") from None


# Each reader, of data and a seed, yields records: the document, the examples before it, the question and its answers.
_Read = Callable[[DataFiles, int], Iterator[Json]]


def _narrative(data: DataFiles, seed: int) -> Iterator[Json]:
    train, rows = (
        shuffled(list(data.json_lines(file, _NARRATIVE_SHAPE)), seed=seed)
        for file in (_NARRATIVE_TRAIN, _NARRATIVE)
    )
    examples = (
        (row["question"]["text"], row["answers"][0]["text"]) for row in train[:SHOTS]
    )
    shown = "\n\n".join(
        f"Question: {question}\nAnswer: {answer}" for question, answer in examples
    )
    demo = f"For example:\n\n{shown}\n\nNow, use the following story to answer the question:\n\n"
    # Many questions share a story.
    is_long = cache(
        lambda story: len(_llama2(data).encode(story).ids) > _LONG_STORY_TOKENS
    )
    long = (row for row in rows if is_long(row["document"]["text"]))
    if (first := next(long, None)) is None:
        raise EvaluateError(
            f"narrativeqa: no story of {data.path(_NARRATIVE)} has more than {_LONG_STORY_TOKENS:,} tokens of Llama 2, and "
            "HELMET asks about those only; give the whole test split"
        )
    for row in chain([first], islice(long, QUESTIONS - 1)):
        fields = {
            "question": row["question"]["text"],
            "answers": [one["text"] for one in row["answers"]],
        }
        yield {"context": row["document"]["text"], "demo": demo, **fields}


def _infinite(data: DataFiles, seed: int, *, file: str) -> Iterator[Json]:
    rows = []
    for row in data.json_lines(file, _CHOICE_SHAPE if file == _CHOICE else _BOOK):
        answers = row["answer"]
        item = {
            "id": row.get("id"),
            "context": row["context"],
            "question": row["input"],
            "answers": answers,
        }
        if file == _CHOICE:
            # HELMET accepts the letter, or the letter with its option.
            letter = "ABCD"[row["options"].index(answers[0])]
            item["options"] = "\n".join(
                f"{name}. {one}"
                for name, one in zip("ABCD", row["options"], strict=True)
            )
            item["answers"] = [letter, f"{letter}. {answers[0]}"]
        elif file == _BOOKS:
            item |= {"question": "", "answers": answers[:1], "expert": answers[0]}
        rows.append(item)

    def shown(item: Json) -> str:
        if file == _BOOKS:
            return f"Summary: {item['answers'][0].strip()}"
        options = f"Options:\n{item['options']}\n" if "options" in item else ""
        return f"Question: {item['question']}\n{options}Answer: {item['answers'][0]}"

    for item in shuffled(rows, seed=seed)[:QUESTIONS]:
        # Two of another id as examples.
        others = shuffled(
            [other for other in rows if other["id"] != item["id"]], seed=seed
        )[:SHOTS]
        demos = "\n\n".join(f"[story text]\n{shown(other)}" for other in others)
        yield {
            **item,
            "demo": f"For example:\n\n{demos}\n\nNow, read the following story:\n\n",
        }


def _cases(data: DataFiles, seed: int) -> Iterator[Json]:
    examples = [
        row["summary/short"]
        for row in data.json_lines(_CASES_TRAIN, _LAWSUIT)
        if row["summary/short"]
    ]
    rows = [row for row in data.json_lines(_CASES, _LAWSUIT) if row["summary/short"]]
    # HELMET asks about long cases only.
    long = [
        row
        for row in rows
        if len(_llama2(data).encode("\n\n".join(row["sources"]))) >= _LEAST_TOKENS
    ]
    if not long:
        raise EvaluateError(
            f"multi_lexsum: no case of {data.path(_CASES)} has {_LEAST_TOKENS:,} tokens of Llama 2, and HELMET summarizes those "
            "only; give the whole validation split"
        )
    draw = random.Random(seed)
    for row in shuffled(long, seed=seed)[:QUESTIONS]:
        shown = "\n\n".join(
            f"Summary: {one}"
            for one in draw.sample(examples, min(SHOTS, len(examples)))
        )
        demo = f"Example summaries:\n\n{shown}\n\nNow, write a summary of the following legal documents.\n"
        about = {
            "id": row["id"],
            "context": "\n\n".join(row["sources"]),
            "demo": demo,
            "question": "",
        }
        yield {
            **about,
            "answers": [row["summary/short"]],
            "expert": row["summary/long"],
        }


def _samples(
    request: TaskRequest,
    read: _Read,
    prompt: str,
    prefix: str,
    budget: int,
    points: str,
) -> Iterator[Sample]:
    """Yield a question per record, its document cut to what the length leaves; `points` is the file of a summary's key points."""
    # Counted by Llama 2 whatever the model, so that every model reads the same part of a story.
    counter, items = _llama2(request.data), read(request.data, request.seed)
    remark_tokens = len(counter.encode(_OMITTED).ids)
    rows = request.data.json_lines(points, _KEY_POINTS) if points else ()
    points_of = {
        str(row["id"]): row.get("keypoints") or row.get("summary/short_keypoints") or []
        for row in rows
    }
    for item in items:
        fields = {
            key: value
            for key, value in item.items()
            if key in ("demo", "question", "options")
        }
        # As HELMET's `truncate_llama2`: a story, or its first tokens of Llama 2 with a remark that there is more.
        story, most = item["context"], request.length - budget - _MARGIN_TOKENS
        if len(offsets := counter.encode(story).offsets) > most:
            story = story[: offsets[max(most - remark_tokens, 0)][1]] + _OMITTED
        question = Sample(
            "",
            tuple(item["answers"]),
            budget,
            prefix,
            details={"question": item["question"]},
        )
        sample = published.prompted(request, prompt, question, context=story, **fields)
        sample.details["context_cut"] |= story != item["context"]
        if points:
            sample.details.update(
                keypoints=points_of.get(str(item["id"]), []), expert=item["expert"]
            )
        yield sample


def _rouge_l_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F1 over the references, with stemming (`rouge_score`)."""
    scorer = required("rouge_score.rouge_scorer").RougeScorer(
        ["rougeL"], use_stemmer=True
    )
    return max(
        float(scorer.score(target=reference, prediction=answer)["rougeL"].fmeasure)
        for reference in references
    )


_score_rouge = published.best_of(
    rougeL_f1=_rouge_l_f1, substring_exact_match=published.substring_exact_match
)
_score_exact = published.best_of(exact_match=published.exact_match)


def _score_choice(answer: str, sample: Sample) -> dict[str, float]:
    # Also right where the answer holds the letter with its option, as HELMET scores it.
    has_option = float(sample.references[1].lower() in answer.lower())
    return {"exact_match": max(has_option, _score_exact(answer, sample)["exact_match"])}


def _score_summary(answer: str, sample: Sample) -> dict[str, float]:
    return {"rougeL_f1": _rouge_l_f1(answer, sample.references)}


def _task(
    name: str,
    read: _Read,
    files: tuple[str, ...],
    score: Scorer,
    prefix: str,
    budget: int,
    points: str = "",
) -> Task:
    metric = "exact_match" if score is _score_choice else "rougeL_f1"
    make = partial(
        _samples, read=read, prompt=name, prefix=prefix, budget=budget, points=points
    )
    category, more, version = ("Summ", (points,), 1) if points else ("LongQA", (), 2)
    files = (*files, *more, LLAMA2)
    return Task(
        name,
        "helmet",
        category,
        metric,
        QUESTIONS,
        make,
        score,
        files=files,
        version=version,
    )


_read = {file: partial(_infinite, file=file) for file in (LONGBOOK_QA, _CHOICE, _BOOKS)}
TASKS: Final = (
    _task(
        "narrativeqa",
        _narrative,
        (_NARRATIVE, _NARRATIVE_TRAIN),
        _score_rouge,
        "\nAnswer:",
        100,
    ),
    _task(
        "infbench_qa",
        _read[LONGBOOK_QA],
        (LONGBOOK_QA,),
        _score_rouge,
        "\n\nAnswer:",
        10,
    ),
    _task("infbench_mc", _read[_CHOICE], (_CHOICE,), _score_choice, "\n\nAnswer:", 10),
    _task(
        "infbench_sum",
        _read[_BOOKS],
        (_BOOKS,),
        _score_summary,
        "\n\nSummary:",
        1200,
        _BOOK_POINTS,
    ),
    _task(
        "multi_lexsum",
        _cases,
        (_CASES, _CASES_TRAIN),
        _score_summary,
        "\n\nSummary:",
        400,
        _CASE_POINTS,
    ),
)
