"""Long-document question answering: NarrativeQA, and InfiniteBench's questions and multiple choice.

In:  the data sets as published, and Llama 2's tokenizer, which HELMET counts with for every model: NarrativeQA's stories have
more than 131,072 of its tokens, and every story is cut to the length less its answer and 200 of them. Out: short answers, scored by
ROUGE-L F1, or by the right letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import Final

import tokenizers

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles, origin
from nextlong.evaluate.scores import best_of_raw_and_parsed, exact_match, rouge_l_f1, substring_exact_match
from nextlong.evaluate.shapes import Book, Choice, Narrative
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, fitted, shuffled
from nextlong.plain_data import Json

LLAMA2: Final = "helmet/llama2/tokenizer.json"
_LONG_STORY_TOKENS: Final = 131_072
_MARGIN_TOKENS: Final = 200  # that HELMET keeps for instruction, examples and question
_OMITTED: Final = " ... [the rest of the text is omitted]"
_QA, _CHOICE = "infinitebench/longbook_qa_eng.jsonl", "infinitebench/longbook_choice_eng.jsonl"
_NARRATIVE, _NARRATIVE_TRAIN = "narrativeqa/test.jsonl", "narrativeqa/train.jsonl"
_NARRATIVE_PROMPT: Final = (
    "You are given a story, which can be either a novel or a movie script, and a question. Answer the question as "
    "concisely as you can, "
    "using a single phrase if possible.\n\n{demo}{context}\n\nQuestion: {question}"
)
_QA_PROMPT: Final = (
    "You are given a story and a question. Answer the question as concisely as you can, using a single phrase if possible.\n\n"
    "{demo}{context}\n\nQuestion: {question}"
)
_CHOICE_PROMPT: Final = (
    "You are given a story and a question with multiple choices. Choose the best answer from the options provided. Only one of the "
    "following options is correct, output the answer using one single letter (A, B, C, or D). Don't say anything else.\n\n"
    "{demo}{context}\n\nQuestion: {question}\nOptions:\n{options}"
)
Item = Json
Read = Callable[[DataFiles, int], Iterator[tuple[Item, str]]]


def _narrative(data: DataFiles, seed: int) -> Iterator[tuple[Item, str]]:
    examples = shuffled(list(data.json_lines(_NARRATIVE_TRAIN, Narrative)), seed=seed)[:SHOTS]
    shots = [_question_and_answers(one) for one in examples]
    shown = "\n\n".join(f"Question: {one['question']}\nAnswer: {one['answers'][0]}" for one in shots)
    demo = f"For example:\n\n{shown}\n\nNow, use the following story to answer the question:\n\n"
    tokens_of, is_long = llama2(data), dict[str, bool]()  # many questions share a story
    rows = shuffled(list(data.json_lines(_NARRATIVE, Narrative)), seed=seed)
    asked = (row for row in rows if _is_long(row["document"]["text"], tokens_of, is_long))
    for row in islice(asked, QUESTIONS):
        yield {"context": row["document"]["text"], **_question_and_answers(row)}, demo
    if not any(is_long.values()):
        raise EvaluateError(
            f"narrativeqa: no story of {data.path(_NARRATIVE)} has more than {_LONG_STORY_TOKENS:,} tokens of Llama 2, and "
            "HELMET asks about those only; give the whole test split"
        )


@lru_cache(maxsize=1)
def llama2(data: DataFiles) -> tokenizers.Tokenizer:
    """Return Llama 2's tokenizer, which HELMET counts with for every model. Raises EvaluateError without its file."""
    try:
        return tokenizers.Tokenizer.from_str(data.text(LLAMA2))
    except Exception as error:  # the library raises a bare Exception whatever is wrong
        if isinstance(error, EvaluateError):
            raise
        raise EvaluateError(f"{data.path(LLAMA2)} is no tokenizer.json ({error}); {origin(LLAMA2)}") from None


def _is_long(story: str, llama2: tokenizers.Tokenizer, known: dict[str, bool]) -> bool:
    if story not in known:
        known[story] = len(llama2.encode(story).ids) > _LONG_STORY_TOKENS
    return known[story]


def _question_and_answers(row: Item) -> Item:
    return {"question": row["question"]["text"], "answers": [answer["text"] for answer in row["answers"]]}


def _infinite(data: DataFiles, seed: int, *, file: str) -> Iterator[tuple[Item, str]]:
    if file == _CHOICE:
        rows = [_with_options(row) for row in data.json_lines(file, Choice)]
    else:
        rows = [_plain(row) for row in data.json_lines(file, Book)]
    for item in shuffled(rows, seed=seed)[:QUESTIONS]:
        others = shuffled([row for row in rows if row["id"] != item["id"]], seed=seed)[:SHOTS]
        shown = "\n\n".join(_shown(one) for one in others)
        yield item, f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"


def _plain(row: Item) -> Item:
    answers = [row["answer"]] if isinstance(row["answer"], str) else row["answer"]
    return {"id": row.get("id"), "context": row["context"], "question": row["input"], "answers": answers}


def _with_options(row: Item) -> Item:
    item, options = _plain(row), row["options"]
    letter = "ABCD"[options.index(item["answers"][0])]
    listed = "\n".join(f"{name}. {option}" for name, option in zip("ABCD", options, strict=True))
    return {**item, "options": listed, "answers": [letter, f"{letter}. {item['answers'][0]}"]}


def _shown(item: Item) -> str:
    options = f"Options:\n{item['options']}\n" if "options" in item else ""
    return f"[story text]\nQuestion: {item['question']}\n{options}Answer: {item['answers'][0]}"


def samples(request: Request, read: Read, *, prompt: str, prefix: str, budget: int) -> Iterator[Sample | None]:
    """Yield HELMET's 100 questions, each story cut to what the length leaves."""
    tokens_of = llama2(request.data)
    for item, demo in read(request.data, request.seed):
        fields = {key: value for key, value in item.items() if key in ("question", "options")}
        story = _shortened(item["context"], tokens_of, request.length - budget - _MARGIN_TOKENS)
        before, context, behind = fitted(request, prompt, prefix, budget, context=story, demo=demo, **fields)
        details: dict[str, JSON] = {
            "story_cut": context != item["context"],
            "question": item["question"],  # what a judge is told
            "chars_before": len(before),
            "chars_behind": len(behind + prefix),
        }
        sample = Sample(before + context + behind, tuple(item["answers"]), budget, prefix, details=details)
        yield sample if request.fits(sample) else None


def _shortened(story: str, llama2: tokenizers.Tokenizer, tokens: int) -> str:
    """Return a story, or its first tokens of Llama 2 with the remark that there is more, as HELMET's `truncate_llama2`."""
    offsets = llama2.encode(story).offsets
    if len(offsets) <= tokens:
        return story
    return story[: offsets[max(tokens - len(llama2.encode(_OMITTED).ids), 0)][1]] + _OMITTED


def _score_answer(answer: str, sample: Sample) -> dict[str, float]:
    completed = sample.completed(answer)
    return {
        "rougeL_f1": best_of_raw_and_parsed(rouge_l_f1, completed, sample.references),
        "substring_exact_match": best_of_raw_and_parsed(substring_exact_match, completed, sample.references),
    }


def _score_choice(answer: str, sample: Sample) -> dict[str, float]:
    named = float(sample.references[1].lower() in answer.lower())
    return {"exact_match": max(named, best_of_raw_and_parsed(exact_match, sample.completed(answer), sample.references))}


_STORIES: Final[dict[str, tuple[Read, str, str, int, tuple[str, ...]]]] = {
    "narrativeqa": (_narrative, _NARRATIVE_PROMPT, "\nAnswer:", 100, (_NARRATIVE, _NARRATIVE_TRAIN)),
    "infbench_qa": (partial(_infinite, file=_QA), _QA_PROMPT, "\n\nAnswer:", 10, (_QA,)),
    "infbench_mc": (partial(_infinite, file=_CHOICE), _CHOICE_PROMPT, "\n\nAnswer:", 10, (_CHOICE,)),
}
TASKS: Final = tuple(
    Task(
        name,
        "helmet",
        "LongQA",
        "exact_match" if name == "infbench_mc" else "rougeL_f1",
        partial(samples, read=read, prompt=prompt, prefix=prefix, budget=budget),
        _score_choice if name == "infbench_mc" else _score_answer,
        samples=QUESTIONS,
        max_new_tokens=budget,
        files=(*files, LLAMA2),
        version=2,
    )
    for name, (read, prompt, prefix, budget, files) in _STORIES.items()
)
