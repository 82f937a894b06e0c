"""Long documents: questions over stories (LongQA).

In:  NarrativeQA and InfiniteBench as published, and Llama 2's tokenizer, with which
     HELMET counts for every model.
Out: short answers by ROUGE-L F1 or the right letter; NarrativeQA's until a judge has
     rated them (`nextlong evaluate judge`).
"""

from __future__ import annotations

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
    TEXTS,
    DataFiles,
    Shape,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, shuffled
from nextlong.recipe.keys import as_list
from nextlong.text import Json

LLAMA2: Final = "helmet/llama2/tokenizer.json"
LONGBOOK_QA: Final = "infinitebench/longbook_qa_eng.jsonl"
_LONG_STORY_TOKENS: Final = 131_072
# That HELMET keeps for instruction, examples and question.
_MARGIN_TOKENS: Final = 200
_OMITTED: Final = " ... [the rest of the text is omitted]"
_CHOICE: Final = "infinitebench/longbook_choice_eng.jsonl"
_NARRATIVE: Final = "narrativeqa/test.jsonl"
_NARRATIVE_TRAIN: Final = "narrativeqa/train.jsonl"
_TEXT_FIELD: Final = record(text=str)
_NARRATIVE_SHAPE: Final = record(
    document=_TEXT_FIELD, question=_TEXT_FIELD, answers=several(_TEXT_FIELD)
)
# A string is the only answer.
_ANSWERS: Final[Shape] = Annotated[TEXTS, BeforeValidator(as_list)]
_BOOK_FIELDS: Final[Json] = {
    "id": NotRequired[Any],
    "context": str,
    "input": str,
    "answer": _ANSWERS,
}
_BOOK: Final = record(**_BOOK_FIELDS, options=NotRequired[Any])


def _has_its_answer(choice: Json) -> Json:
    answer = choice["answer"][0]
    if answer not in choice["options"]:
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
    # The library raises a bare Exception whatever is wrong.
    except Exception as error:
        raise data.error(LLAMA2, f"it is not a tokenizer.json ({error})") from None


# Each reader, of data and a seed, yields records: the document, the examples before it,
# the question and its answers.
_Read = Callable[[DataFiles, int], Iterator[Json]]


def _narrative(data: DataFiles, seed: int) -> Iterator[Json]:
    every_example = list(data.json_lines(_NARRATIVE_TRAIN, _NARRATIVE_SHAPE))
    examples = []
    for row in shuffled(every_example, seed=seed)[:SHOTS]:
        question = row["question"]["text"]
        examples.append(f"Question: {question}\nAnswer: {row['answers'][0]['text']}")
    shown = "\n\n".join(examples)
    demo = (
        f"For example:\n\n{shown}\n\n"
        "Now, use the following story to answer the question:\n\n"
    )

    # Many questions share a story.
    @cache
    def is_long(story: str) -> bool:
        encoding = _llama2(data).encode(story)
        return len(encoding.ids) > _LONG_STORY_TOKENS

    every_row = list(data.json_lines(_NARRATIVE, _NARRATIVE_SHAPE))
    rows = shuffled(every_row, seed=seed)
    long_rows = (row for row in rows if is_long(row["document"]["text"]))
    first = next(long_rows, None)
    if first is None:
        raise EvaluateError(
            where=data.path(_NARRATIVE),
            problem=f"it has no story of more than {_LONG_STORY_TOKENS:,} tokens of "
            "Llama 2, and HELMET asks about those only",
            fix="give the whole test split",
        )
    for row in chain([first], islice(long_rows, QUESTIONS - 1)):
        yield {
            "context": row["document"]["text"],
            "demo": demo,
            "question": row["question"]["text"],
            "answers": [answer["text"] for answer in row["answers"]],
        }


def _infinite(data: DataFiles, seed: int, *, file: str) -> Iterator[Json]:
    shape = _CHOICE_SHAPE if file == _CHOICE else _BOOK
    items = [_book_item(row, file) for row in data.json_lines(file, shape)]
    for item in shuffled(items, seed=seed)[:QUESTIONS]:
        # Two of another id as examples.
        others = [other for other in items if other["id"] != item["id"]]
        examples = shuffled(others, seed=seed)[:SHOTS]
        demos = [f"[story text]\n{_book_answer(other)}" for other in examples]
        shown = "\n\n".join(demos)
        demo = f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"
        yield {**item, "demo": demo}


def _book_item(row: Json, file: str) -> Json:
    """Return a record of a row of InfiniteBench: a question or a choice."""
    answers = row["answer"]
    item = {
        "id": row.get("id"),
        "context": row["context"],
        "question": row["input"],
        "answers": answers,
    }
    if file == _CHOICE:
        options = row["options"]
        # HELMET accepts the letter, or the letter with its option.
        letter = "ABCD"[options.index(answers[0])]
        lines = [f"{name}. {text}" for name, text in zip("ABCD", options, strict=True)]
        item["options"] = "\n".join(lines)
        item["answers"] = [letter, f"{letter}. {answers[0]}"]
    return item


def _book_answer(item: Json) -> str:
    """Return a record with its answer, as the examples show it."""
    options = f"Options:\n{item['options']}\n" if "options" in item else ""
    return f"Question: {item['question']}\n{options}Answer: {item['answers'][0]}"


def _samples(
    request: TaskRequest,
    read: _Read,
    prompt: str,
    prefix: str,
    budget: int,
) -> Iterator[Sample]:
    """Yield a question per record, its document cut to what the length leaves."""
    # Counted by Llama 2 whatever the model, so that every model reads the same part of
    # a story.
    counter = _llama2(request.data)
    items = read(request.data, request.seed)
    max_tokens = request.length - budget - _MARGIN_TOKENS
    for item in items:
        story = _truncated(counter, item["context"], max_tokens)
        question = Sample(
            prompt="",
            references=tuple(item["answers"]),
            max_new_tokens=budget,
            answer_prefix=prefix,
            details={"question": item["question"]},
        )
        in_prompt = ("demo", "question", "options")
        fields = {name: item[name] for name in in_prompt if name in item}
        template = prompt_of(prompt)
        sample = published.prompted(
            request, template, question, context=story, **fields
        )
        sample.details["context_cut"] |= story != item["context"]
        yield sample


def _truncated(counter: tokenizers.Tokenizer, story: str, max_tokens: int) -> str:
    """Return a story, or its first tokens with a remark that there is more.

    As HELMET's `truncate_llama2`; the tokens are Llama 2's.
    """
    offsets = counter.encode(story).offsets
    if len(offsets) <= max_tokens:
        return story
    remark_tokens = len(counter.encode(_OMITTED).ids)
    _, end = offsets[max(max_tokens - remark_tokens, 0)]
    return story[:end] + _OMITTED


def _rouge_l_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F1 over the references, with stemming (`rouge_score`)."""
    rouge = required("rouge_score.rouge_scorer")
    scorer = rouge.RougeScorer(["rougeL"], use_stemmer=True)
    scores = []
    for reference in references:
        score = scorer.score(target=reference, prediction=answer)["rougeL"]
        scores.append(float(score.fmeasure))
    return max(scores)


_score_rouge = published.best_of(
    rougeL_f1=_rouge_l_f1, substring_exact_match=published.substring_exact_match
)
_score_exact = published.best_of(exact_match=published.exact_match)


def _score_choice(answer: str, sample: Sample) -> dict[str, float]:
    # Also right where the answer holds the letter with its option, as HELMET scores it.
    has_option = float(sample.references[1].lower() in answer.lower())
    is_exact = _score_exact(answer, sample)["exact_match"]
    return {"exact_match": max(has_option, is_exact)}


_task = partial(
    Task,
    suite="helmet",
    category="LongQA",
    metric="rougeL_f1",
    samples=QUESTIONS,
    score=_score_rouge,
    chat="template",
    version=2,
)
_book_samples = partial(_samples, prefix="\n\nAnswer:", budget=10)
TASKS: Final = (
    _task(
        "narrativeqa",
        make=partial(
            _samples,
            read=_narrative,
            prompt="narrativeqa",
            prefix="\nAnswer:",
            budget=100,
        ),
        files=(_NARRATIVE, _NARRATIVE_TRAIN, LLAMA2),
    ),
    _task(
        "infbench_qa",
        make=partial(
            _book_samples,
            read=partial(_infinite, file=LONGBOOK_QA),
            prompt="infbench_qa",
        ),
        files=(LONGBOOK_QA, LLAMA2),
    ),
    _task(
        "infbench_mc",
        make=partial(
            _book_samples, read=partial(_infinite, file=_CHOICE), prompt="infbench_mc"
        ),
        score=_score_choice,
        metric="exact_match",
        files=(_CHOICE, LLAMA2),
    ),
)
