"""LongBench v2: 503 multiple-choice questions over documents of 8K to 2M words.

Bai et al. 2024, arXiv 2412.15204.

In:  its data.json.
Out: the prompts of THUDM/LongBench at 2e00731: zero-shot, with reasoning before the
     answer (cot), and without the document (what a model has memorized). A prompt over
     120,000 tokens, or over the length, is cut in its middle, as there.

Score: the letter of `The correct answer is (B)`; an answer without one is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final, Literal

from nextlong.evaluate.data import record
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of

_DATA: Final = "longbench-v2/data.json"
_BUDGET: Final = 128
_MAX_TOKENS: Final = 120_000  # config/model2maxlen.json
_FIELDS: Final = (
    "context",
    "question",
    "difficulty",
    "length",
    *(f"choice_{letter}" for letter in "ABCD"),
)
_SHAPE: Final = record(
    **dict.fromkeys(_FIELDS, str), answer=Literal["A", "B", "C", "D"]
)


def _samples(request: TaskRequest, variant: str) -> Iterator[Sample]:
    """Yield the questions in the order of the file."""
    template = prompt_of(f"longbench_0shot{variant}")
    budget = 1024 if variant == "_cot" else _BUDGET
    for row in request.data.json_lines(_DATA, _SHAPE):
        fields = {letter: row[f"choice_{letter}"].strip() for letter in "ABCD"}
        fields["question"] = row["question"].strip()
        # One pass over the template, so that braces in a document stay as they are.
        text = template.format(context=row["context"].strip(), **fields)
        prompt, ids = _truncate_middle(request, text, budget)
        details = {
            "difficulty": row["difficulty"],
            "length": row["length"],
            "middle_cut": ids is not None,
        }
        if variant == "_cot":
            details["asked"] = fields
        yield Sample(
            prompt,
            references=(row["answer"],),
            max_new_tokens=budget,
            details=details,
            input_ids=ids,
        )


def _truncate_middle(
    request: TaskRequest, text: str, budget: int
) -> tuple[str, tuple[int, ...] | None]:
    """Return the text, or its first and last tokens in equal parts, and their ids.

    A BOS counts in the first part; a whole text comes without ids.
    """
    # `bounds` holds the characters [start, end) of each token, so text and ids are cut
    # at the same places.
    bounds = request.tokenizer.boundaries(text)
    prefix = len(request.tokenizer.prefix)
    max_tokens = min(request.room - budget, _MAX_TOKENS)
    if len(bounds) + prefix <= max_tokens:
        return text, None
    ids = request.tokenizer.encode(text)
    first = max_tokens // 2 - prefix
    last = max_tokens - max_tokens // 2
    _, head_end = bounds[first - 1]
    tail_start, _ = bounds[-last]
    return text[:head_end] + text[tail_start:], (*ids[:first], *ids[-last:])


def _conclusion(answer: str, sample: Sample) -> Sample:
    """Return the question for the letter.

    It follows the model's own reasoning, without the document.
    """
    template = prompt_of("longbench_0shot_cot_ans")
    prompt = template.format(reasoning=answer.strip(), **sample.details["asked"])
    return Sample(prompt, sample.references, _BUDGET)


def _score(answer: str, sample: Sample) -> dict[str, float]:
    # As the published `extract_answer`: the stars of bold text are removed, and a
    # letter in brackets comes first.
    cleaned = answer.replace("*", "")
    match = re.search(r"The correct answer is \(([A-D])\)", cleaned)
    if match is None:
        match = re.search(r"The correct answer is ([A-D])", cleaned)
    is_right = match is not None and match[1] == sample.references[0]
    return {"accuracy": float(is_right), "parsed": float(match is not None)}


_SPLITS: Final = (
    ("Easy", "difficulty", "easy"),
    ("Hard", "difficulty", "hard"),
    ("Short", "length", "short"),
    ("Medium", "length", "medium"),
    ("Long", "length", "long"),
)
_ABOUT: Final = (
    "Prompts over 120,000 tokens, or over the length, are cut in their middle; an "
    "answer without a letter is wrong."
)
_task = partial(
    Task,
    suite="longbench-v2",
    metric="accuracy",
    samples=503,
    score=_score,
    files=(_DATA,),
    usual_length=131_072,
    splits=_SPLITS,
    about=_ABOUT,
)
_direct: Final = _task(
    "longbench_v2",
    category="LongBench v2",
    make=partial(_samples, variant=""),
)
_reasoned: Final = _task(
    "longbench_v2_cot",
    category="LongBench v2, cot",
    make=partial(_samples, variant="_cot"),
    follow_up=_conclusion,
)
_without_document: Final = _task(
    "longbench_v2_no_context",
    category="LongBench v2, no context",
    make=partial(_samples, variant="_no_context"),
)
TASKS: Final = (_direct, _reasoned, _without_document)
