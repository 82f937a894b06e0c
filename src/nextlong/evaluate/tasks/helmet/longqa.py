"""Long documents: questions over stories (LongQA) and summaries (Summ).

In:  NarrativeQA, InfiniteBench and Multi-LexSum (Shen et al. 2022, arXiv 2206.10883) as published, HELMET's key points of the
reference summaries, and Llama 2's tokenizer, with which HELMET counts for every model: NarrativeQA's stories have more than
131,072 of its tokens, and every document is cut to the length less its answer and 200 of them. Out: short answers by ROUGE-L F1
or the right letter; summaries by ROUGE-L F1 until a judge has rated them (`nextlong evaluate judge`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Final, NotRequired

import tokenizers
from annotated_types import Len

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import NAME, TEXTS, DataFiles, optional, record, several
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.helmet.published import (
    QUESTIONS,
    SHOTS,
    best_of,
    exact_match,
    prompted,
    shuffled,
    substring_exact_match,
)
from nextlong.text import Json

LLAMA2: Final = "helmet/llama2/tokenizer.json"
LONGBOOK_QA: Final = "infinitebench/longbook_qa_eng.jsonl"
_LONG_STORY_TOKENS: Final = 131_072
_MARGIN_TOKENS: Final = 200  # that HELMET keeps for instruction, examples and question
_OMITTED: Final = " ... [the rest of the text is omitted]"
_CHOICE: Final = "infinitebench/longbook_choice_eng.jsonl"
_NARRATIVE, _NARRATIVE_TRAIN = "narrativeqa/test.jsonl", "narrativeqa/train.jsonl"
_TEXT_FIELD: Final = record(text=str)
_NARRATIVE_SHAPE: Final = record(document=_TEXT_FIELD, question=_TEXT_FIELD, answers=several(_TEXT_FIELD))
_BOOK_FIELDS: Final[Json] = {"id": NotRequired[Any], "context": str, "input": str, "answer": str | TEXTS}
_BOOK: Final = record(**_BOOK_FIELDS, options=NotRequired[Any])


def _answers(row: Json) -> list[str]:
    return [row["answer"]] if isinstance(row["answer"], str) else row["answer"]


def _has_its_answer(choice: Json) -> Json:
    answer = _answers(choice)[0]
    if answer not in choice["options"]:
        raise ValueError(f"its answer {answer!r:.60} is not one of its four options")
    return choice


_CHOICE_SHAPE: Final = record(_has_its_answer, **_BOOK_FIELDS, options=Annotated[list[str], Len(4, 4)])


@lru_cache(maxsize=1)
def _llama2(data: DataFiles) -> tokenizers.Tokenizer:
    """Return Llama 2's tokenizer. Raises EvaluateError without its file."""
    text = data.text(LLAMA2)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises a bare Exception whatever is wrong
        raise data.error(LLAMA2, f" is not a tokenizer.json ({error})") from None


def _narrative(data: DataFiles, seed: int) -> Iterator[Json]:
    def asked(row: Json) -> Json:
        return {"question": row["question"]["text"], "answers": [answer["text"] for answer in row["answers"]]}

    train, rows = (
        shuffled(list(data.json_lines(file, _NARRATIVE_SHAPE)), seed=seed) for file in (_NARRATIVE_TRAIN, _NARRATIVE)
    )
    shots = map(asked, train[:SHOTS])
    shown = "\n\n".join(f"Question: {one['question']}\nAnswer: {one['answers'][0]}" for one in shots)
    demo = f"For example:\n\n{shown}\n\nNow, use the following story to answer the question:\n\n"
    is_long, found = dict[str, bool](), 0  # many questions share a story
    for row in rows:
        story = row["document"]["text"]
        if story not in is_long:
            is_long[story] = len(_llama2(data).encode(story).ids) > _LONG_STORY_TOKENS
        if is_long[story]:
            found += 1
            yield {"context": story, "demo": demo, **asked(row)}
        if found == QUESTIONS:
            break
    if not found:
        raise EvaluateError(
            f"narrativeqa: no story of {data.path(_NARRATIVE)} has more than {_LONG_STORY_TOKENS:,} tokens of Llama 2, and "
            "HELMET asks about those only; give the whole test split"
        )


def _infinite(data: DataFiles, seed: int, *, file: str) -> Iterator[Json]:
    rows = []
    for row in data.json_lines(file, _CHOICE_SHAPE if file == _CHOICE else _BOOK):
        answers = _answers(row)
        item = {"id": row.get("id"), "context": row["context"], "question": row["input"], "answers": answers}
        if file == _CHOICE:
            # HELMET accepts the letter, or the letter with its option.
            letter = "ABCD"[row["options"].index(answers[0])]
            item["options"] = "\n".join(f"{name}. {one}" for name, one in zip("ABCD", row["options"], strict=True))
            item["answers"] = [letter, f"{letter}. {answers[0]}"]
        rows.append(item)

    def shown(item: Json) -> str:
        options = f"Options:\n{item['options']}\n" if "options" in item else ""
        return f"[story text]\nQuestion: {item['question']}\n{options}Answer: {item['answers'][0]}"

    for item, others in _with_others(rows, seed):
        demos = "\n\n".join(map(shown, others))
        yield {**item, "demo": f"For example:\n\n{demos}\n\nNow, read the following story:\n\n"}


def _with_others(rows: list[Json], seed: int) -> Iterator[tuple[Json, list[Json]]]:
    """Yield the records in question, each with two of another id as examples."""
    for row in shuffled(rows, seed=seed)[:QUESTIONS]:
        yield row, shuffled([other for other in rows if other["id"] != row["id"]], seed=seed)[:SHOTS]


def _samples(request: TaskRequest, items: Iterable[Json], prompt: str, prefix: str, budget: int) -> Iterator[Sample]:
    """Yield a question per item, its document cut to what the length leaves."""
    # Counted by Llama 2 whatever the model, so that every model reads the same part of a story.
    counter = _llama2(request.data)
    remark_tokens = len(counter.encode(_OMITTED).ids)
    for item in items:
        fields = {key: value for key, value in item.items() if key in ("demo", "question", "options")}
        # As HELMET's `truncate_llama2`: a story, or its first tokens of Llama 2 with a remark that there is more.
        story, most = item["context"], request.length - budget - _MARGIN_TOKENS
        if len(offsets := counter.encode(story).offsets) > most:
            story = story[: offsets[max(most - remark_tokens, 0)][1]] + _OMITTED
        about = {"references": item["answers"], "details": {"question": item["question"]}, "stop": None}
        sample = prompted(request, prompt_of(prompt), prefix, budget, context=story, **about, **fields)
        sample.details["context_cut"] |= story != item["context"]
        yield sample


def _rouge_l_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F1 over the references, with stemming (`rouge_score`)."""
    scorer = required("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    return max(float(scorer.score(target=reference, prediction=answer)["rougeL"].fmeasure) for reference in references)


def _score_choice(answer: str, sample: Sample) -> dict[str, float]:
    has_option = float(sample.references[1].lower() in answer.lower())
    # Also right where the answer holds the letter with its option, as HELMET scores it.
    return {"exact_match": max(has_option, best_of(exact_match=exact_match)(answer, sample)["exact_match"])}


_BOOKS, _BOOK_POINTS = "infinitebench/longbook_sum_eng.jsonl", "helmet/infbench/longbook_sum_eng_keypoints.jsonl"
_CASES, _CASES_TRAIN = "multi_lexsum/validation.jsonl", "multi_lexsum/train.jsonl"
_CASE_POINTS: Final = "helmet/multi_lexsum/multi_lexsum_val.jsonl"
_LEAST_TOKENS: Final = 65_536
_LAWSUIT: Final = record(**{"id": NAME, "sources": TEXTS, "summary/short": str | None, "summary/long": optional(str)})
_KEY_POINTS: Final = record(**{"id": NAME, "keypoints": NotRequired[TEXTS], "summary/short_keypoints": optional(TEXTS)})


def _books(data: DataFiles, seed: int) -> Iterator[Json]:
    for row, others in _with_others(list(data.json_lines(_BOOKS, _BOOK)), seed):
        shown = "\n\n".join(f"[story text]\nSummary: {_answers(one)[0].strip()}" for one in others)
        demo = f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"
        reference = _answers(row)[0]
        yield {"id": row["id"], "context": row["context"], "demo": demo, "answers": [reference], "expert": reference}


def _cases(data: DataFiles, seed: int) -> Iterator[Json]:
    examples = [row["summary/short"] for row in data.json_lines(_CASES_TRAIN, _LAWSUIT) if row["summary/short"]]
    rows = [row for row in data.json_lines(_CASES, _LAWSUIT) if row["summary/short"]]
    # HELMET asks about long cases only.
    long = [row for row in rows if len(_llama2(data).encode("\n\n".join(row["sources"]))) >= _LEAST_TOKENS]
    if not long:
        raise EvaluateError(
            f"multi_lexsum: no case of {data.path(_CASES)} has {_LEAST_TOKENS:,} tokens of Llama 2, and HELMET summarizes those "
            "only; give the whole validation split"
        )
    draw = random.Random(seed)
    for row in shuffled(long, seed=seed)[:QUESTIONS]:
        shown = "\n\n".join(f"Summary: {one}" for one in draw.sample(examples, min(SHOTS, len(examples))))
        demo = f"Example summaries:\n\n{shown}\n\nNow, write a summary of the following legal documents.\n"
        answers, context = [row["summary/short"]], "\n\n".join(row["sources"])
        yield {"id": row["id"], "context": context, "demo": demo, "answers": answers, "expert": row["summary/long"]}


def _summaries(request: TaskRequest, name: str, budget: int) -> Iterator[Sample]:
    """Yield HELMET's 100 documents with the key points of their summaries."""
    read, file = (_books, _BOOK_POINTS) if name == "infbench_sum" else (_cases, _CASE_POINTS)
    items = [item | {"question": ""} for item in read(request.data, request.seed)]
    rows = request.data.json_lines(file, _KEY_POINTS)
    points = {str(row["id"]): row.get("keypoints") or row.get("summary/short_keypoints") or [] for row in rows}
    for item, sample in zip(items, _samples(request, items, name, "\n\nSummary:", budget), strict=True):
        sample.details.update(keypoints=points.get(str(item["id"]), []), expert=item["expert"])
        yield sample


def _questions(
    request: TaskRequest, read: Callable[[DataFiles, int], Iterator[Json]], prompt: str, prefix: str, budget: int
) -> Iterator[Sample]:
    return _samples(request, read(request.data, request.seed), prompt, prefix, budget)


_task = partial(Task, suite="helmet", samples=QUESTIONS)
_longqa = partial(_task, category="LongQA", version=2)
_score_rouge = best_of(rougeL_f1=_rouge_l_f1, substring_exact_match=substring_exact_match)
TASKS: Final = (
    _longqa(
        name="narrativeqa",
        metric="rougeL_f1",
        make=partial(_questions, read=_narrative, prompt="narrativeqa", prefix="\nAnswer:", budget=100),
        score=_score_rouge,
        files=(_NARRATIVE, _NARRATIVE_TRAIN, LLAMA2),
    ),
    *(
        _longqa(
            name=name,
            metric=metric,
            make=partial(_questions, read=partial(_infinite, file=file), prompt=name, prefix="\n\nAnswer:", budget=10),
            score=score,
            files=(file, LLAMA2),
        )
        for name, metric, score, file in (
            ("infbench_qa", "rougeL_f1", _score_rouge, LONGBOOK_QA),
            ("infbench_mc", "exact_match", _score_choice, _CHOICE),
        )
    ),
    *(
        _task(
            name=name,
            category="Summ",
            metric="rougeL_f1",
            make=partial(_summaries, name=name, budget=budget),
            score=lambda answer, sample: {"rougeL_f1": _rouge_l_f1(answer, sample.references)},
            files=files,
        )
        for name, budget, files in (
            ("infbench_sum", 1200, (_BOOKS, _BOOK_POINTS)),
            ("multi_lexsum", 400, (_CASES, _CASES_TRAIN, _CASE_POINTS)),
        )
    ),
)
