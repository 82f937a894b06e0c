"""RULER as HELMET asks it: 100 samples, the answer's beginning on its own line, HELMET's budgets; SubEM for the two QA tasks.

In:  what RULER's tasks read. Out: their samples in HELMET's templates (`load_ruler` of data.py); the beginning of the answer is
scored with it. These scores do not compare with NVIDIA's: n, budgets and joints differ, and `cwe` finds words in that beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from nextlong.evaluate.scores import best_of_raw_and_parsed, string_match_all, substring_exact_match
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks import ruler

_BUDGETS: Final = {"niah_multikey_3": 100, "niah_multiquery": 100, "cwe": 100}
_BUDGET: Final = 50
_JOINTS: Final = {  # NVIDIA's words around a joint, and HELMET's
    "cwe": ("\nBelow is a numbered list", "\n\nBelow is a numbered list"),
    "fwe": ("coded words. ", "coded words.\n"),
}
_JOINT_TOKENS: Final = 2


def samples(request: Request, task: Task, *, budget: int) -> Iterator[Sample | None]:
    """Yield RULER's samples in HELMET's templates; what these and a greater budget need is kept free."""
    more = max(budget - task.max_new_tokens, 0) + _JOINT_TOKENS
    for sample in task.make(replace(request, overhead=request.overhead + more)):
        yield sample and replace(
            sample,
            prompt=_joined(sample.prompt, *_JOINTS.get(task.name, ("", ""))),
            answer_prefix="\n" + sample.answer_prefix.strip(),
            max_new_tokens=budget,
        )


def _joined(prompt: str, theirs: str, ours: str) -> str:
    before, joint, behind = prompt.rpartition(theirs) if theirs else (prompt, "", "")
    return before + (ours if joint else "") + behind


def _score_share(answer: str, sample: Sample) -> dict[str, float]:
    return {"ruler_recall": string_match_all(sample.completed(answer), sample.references)}


def _score_any(answer: str, sample: Sample) -> dict[str, float]:
    return {
        "substring_exact_match": best_of_raw_and_parsed(
            substring_exact_match, sample.completed(answer), sample.references
        )
    }


def _task(task: Task) -> Task:
    budget, is_question = _BUDGETS.get(task.name, _BUDGET), task.name.startswith("qa_")
    return replace(
        task,
        name=f"helmet_{task.name}",
        suite="helmet-ruler",
        category="HELMET-RULER",
        metric="substring_exact_match" if is_question else "ruler_recall",
        make=partial(samples, task=task, budget=budget),
        score=_score_any if is_question else _score_share,
        samples=100,
        max_new_tokens=budget,
    )


TASKS: Final = tuple(_task(task) for task in ruler.TASKS)
