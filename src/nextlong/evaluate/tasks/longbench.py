"""LongBench v2: 503 multiple-choice questions over documents of 8K to 2M words (Bai et al. 2024, arXiv 2412.15204).

In:  its data.json. Out: the prompts of THUDM/LongBench at 2e00731: zero-shot, with the model's reasoning asked for first (cot), and
without the document (what a model has memorized). A prompt over 120,000 tokens, or over the length, is cut in its middle, as
there. Score: the letter of `The correct answer is (B)`; an answer without one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from nextlong.evaluate.scores import chosen_letter
from nextlong.evaluate.shapes import LongBench
from nextlong.evaluate.task import JSON, Request, Sample, Task, prompt_of

DATA: Final = "longbench-v2/data.json"
BUDGET: Final = 128
REASONING: Final = 1024
MOST_TOKENS: Final = 120_000  # config/model2maxlen.json
# A task's prompt, and the tokens of its first answer.
_FORMS: Final = {
    "longbench_v2": ("longbench_0shot", BUDGET),
    "longbench_v2_cot": ("longbench_0shot_cot", REASONING),
    "longbench_v2_no_context": ("longbench_0shot_no_context", BUDGET),
}
_SPLITS: Final = (
    ("Easy", "difficulty", "easy"),
    ("Hard", "difficulty", "hard"),
    ("Short", "length", "short"),
    ("Medium", "length", "medium"),
    ("Long", "length", "long"),
)


def samples(request: Request, name: str) -> Iterator[Sample | None]:
    """Yield the questions in the order of the file."""
    template, budget = prompt_of(_FORMS[name][0]), _FORMS[name][1]
    for row in request.data.json_lines(DATA, LongBench):
        asked = {letter: row[f"choice_{letter}"].strip() for letter in "ABCD"} | {"question": row["question"].strip()}
        # One pass over the template, so that braces in a document stay as they are.
        prompt, ids = _truncate_middle(request, template.format(context=row["context"].strip(), **asked), budget)
        details: dict[str, JSON] = {
            "difficulty": row["difficulty"],
            "length": row["length"],
            "middle_cut": ids is not None,
        }
        if name == "longbench_v2_cot":
            details["asked"] = dict(asked)
        sample = Sample(prompt, (row["answer"],), budget, details=details, input_ids=ids)
        yield sample if request.fits(sample) else None


def _truncate_middle(request: Request, text: str, budget: int) -> tuple[str, tuple[int, ...] | None]:
    """Return the text, or its first and last tokens in equal parts (a BOS counts in the first): in characters, and as ids."""
    bounds, prefix = request.tokenizer.boundaries(text), len(request.tokenizer.prefix)
    most = min(request.room - budget, MOST_TOKENS)
    if len(bounds) + prefix <= most:
        return text, None
    ids, first, last = request.tokenizer.encode(text), most // 2 - prefix, most - most // 2
    return text[: bounds[first - 1][1]] + text[bounds[-last][0] :], (*ids[:first], *ids[-last:])


def concluded(answer: str, sample: Sample) -> Sample:
    """Return the question for the letter, behind the model's own reasoning and without the document."""
    asked = sample.details["asked"]
    assert isinstance(asked, dict)
    return Sample(
        prompt_of("longbench_0shot_cot_ans").format(reasoning=answer.strip(), **asked), sample.references, BUDGET
    )


def _score(answer: str, sample: Sample) -> dict[str, float]:
    letter = chosen_letter(answer)
    return {"accuracy": float(letter == sample.references[0]), "parsed": float(letter is not None)}


TASKS: Final = tuple(
    Task(
        name,
        "longbench-v2",
        "LongBench v2"
        if name == "longbench_v2"
        else f"LongBench v2, {name.removeprefix('longbench_v2_').replace('_', ' ')}",
        "accuracy",
        partial(samples, name=name),
        _score,
        samples=503,
        max_new_tokens=budget,
        usual_length=131_072,
        files=(DATA,),
        follow_up=concluded if name == "longbench_v2_cot" else None,
        splits=_SPLITS,
        about="Prompts over 120,000 tokens, or over the length, are cut in their middle; an answer without a letter is wrong.",
    )
    for name, (_, budget) in _FORMS.items()
)
