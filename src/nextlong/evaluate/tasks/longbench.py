"""LongBench v2: 503 multiple-choice questions over documents of 8K to 2M words (Bai et al. 2024, arXiv 2412.15204).

In:  its data.json. Out: the official zero-shot prompt, cut in its middle to the length; score: the letter of `The correct
answer is (B)`; an answer without one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nextlong.evaluate.scores import chosen_letter
from nextlong.evaluate.shapes import LongBench
from nextlong.evaluate.task import JSON, Request, Sample, Task

DATA: Final = "longbench-v2/data.json"
BUDGET: Final = 128
_PROMPT: Final = (
    "Please read the following text and answer the question below.\n\n<text>\n{document}\n</text>\n\nWhat is the "
    "correct answer to this "
    'question: {question}\nChoices:\n(A) {A}\n(B) {B}\n(C) {C}\n(D) {D}\n\nFormat your response as follows: "The correct answer is '
    '(insert answer here)".'
)


def samples(request: Request) -> Iterator[Sample | None]:
    """Yield the questions in the order of the file."""
    for row in request.data.json_lines(DATA, LongBench):
        choices = {letter: row[f"choice_{letter}"].strip() for letter in "ABCD"}
        # One pass over the template, so that braces in a document stay as they are.
        prompt = _PROMPT.format(document=row["context"].strip(), question=row["question"].strip(), **choices)
        shortened, ids = _truncate_middle(request, prompt)
        details: dict[str, JSON] = {name: row[name] for name in ("difficulty", "length")}
        details["middle_cut"] = ids is not None
        sample = Sample(shortened, (row["answer"],), BUDGET, details=details, input_ids=ids)
        yield sample if request.fits(sample) else None


def _truncate_middle(request: Request, text: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the text, or its first and last tokens in equal parts: in characters, and as ids, which need no second
    tokenization."""
    bounds = request.tokenizer.boundaries(text)
    half = (request.room - BUDGET) // 2
    if len(bounds) <= 2 * half:
        return text, None
    ids = request.tokenizer.encode(text)
    return text[: bounds[half - 1][1]] + text[bounds[-half][0] :], (*ids[:half], *ids[-half:])


def _score(answer: str, sample: Sample) -> dict[str, float]:
    letter = chosen_letter(answer)
    return {"accuracy": float(letter == sample.references[0]), "parsed": float(letter is not None)}


TASKS: Final = (
    Task(
        "longbench_v2",
        "longbench-v2",
        "LongBench v2",
        "accuracy",
        samples,
        _score,
        samples=503,
        max_new_tokens=BUDGET,
        files=(DATA,),
        splits=(
            ("Easy", "difficulty", "easy"),
            ("Hard", "difficulty", "hard"),
            ("Short", "length", "short"),
            ("Medium", "length", "medium"),
            ("Long", "length", "long"),
        ),
        about="Documents are cut in their middle to the length; an answer without a letter is wrong (paper, Table 3).",
    ),
)
