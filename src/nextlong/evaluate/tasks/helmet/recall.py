"""Recall: a value in a long JSON object, and needles; and RULER as HELMET runs it (suite `helmet-ruler`).

In:  nothing but the seed for JSON KV; what RULER's tasks read for the others. Out: JSON KV by SubEM; RULER's samples in
HELMET's templates (`load_ruler` of data.py), 100 of them, with its budgets, and SubEM for the two QA tasks. The prefix of the
answer is scored with it, on a line of its own: these scores do not compare with NVIDIA's, and `cwe` finds words in that prefix.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NotRequired

from nextlong.evaluate.data import NAME, TEXT, record
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.helmet.published import (
    LENGTHS,
    QUESTIONS,
    SHOTS,
    best_of,
    fitted,
    shuffled,
    substring_exact_match,
)
from nextlong.text import Json

_KEYS_AT: Final = dict(zip(LENGTHS, (105, 220, 440, 900, 1800), strict=True))
_LEAST_KEYS: Final = 4
_DEPTHS: Final = 6
_BUDGET: Final = 100
_PROMPT: Final = prompt_of("helmet_json_kv")
_PREFIX: Final = "\nCorresponding value:"
_SHAPE: Final = record(context=TEXT, question=TEXT, answer=NAME, demos=list[tuple[str, str]], depth=NotRequired[Any])


def _keys_at(length: int) -> int:
    """Return the keys of the object: HELMET's number, else nine tenths of what is in proportion to its 1,800 at 128K."""
    return _KEYS_AT.get(length, max(_LEAST_KEYS, 1800 * length // 131_072 * 9 // 10))


def _file(length: int) -> str:
    return f"helmet/json_kv/test_k{_keys_at(length)}_dep{_DEPTHS}.jsonl"


def _json_kv(request: TaskRequest) -> Iterator[Sample | None]:
    """Yield samples from HELMET's file for the length where the user has it, else made in the same form."""
    if not request.data.has(_file(request.length)):
        keys = _keys_at(request.length)
        if request.length not in _KEYS_AT:
            # HELMET's numbers are never changed; ours are, where a small vocabulary writes more tokens.
            while keys > _LEAST_KEYS and _object(request, 0, keys).details["context_cut"]:
                keys -= 1
        yield from (request.fitting(_object(request, number, keys)) for number in range(request.samples or QUESTIONS))
        return
    rows = list(request.data.json_lines(_file(request.length), _SHAPE))
    for row in shuffled(rows, seed=request.seed):
        pair, demos = (row["question"], str(row["answer"])), row["demos"][:SHOTS]
        yield request.fitting(_sample(request, row["context"], pair, demos, {"depth": row.get("depth")}))


def _object(request: TaskRequest, number: int, keys: int) -> Sample:
    """Return a question whose key is at one of six depths in turn."""
    draw = random.Random(f"{request.seed} json_kv {number}")

    def name() -> str:
        return str(uuid.UUID(int=draw.getrandbits(128), version=4))

    pairs = {name(): name() for _ in range(keys)}
    depth = number % _DEPTHS / (_DEPTHS - 1)
    names = list(pairs)
    key = names[round(depth * (keys - 1))]
    demos = [(shown, pairs[shown]) for shown in draw.sample([name for name in names if name != key], SHOTS)]
    context = "JSON data:\n{" + ",\n ".join(f'"{name}": "{value}"' for name, value in pairs.items()) + "}"
    return _sample(request, context, (key, pairs[key]), demos, {"depth": depth, "keys": keys})


def _sample(
    request: TaskRequest, context: str, pair: Sequence[str], shown: Sequence[Sequence[str]], details: Json
) -> Sample:
    demos = "".join(f"Key: {name}\nCorresponding value: {other}\n\n" for name, other in shown)
    parts = fitted(request, _PROMPT, _PREFIX, _BUDGET, context=context, demos=demos, question=pair[0])
    details["context_cut"] = parts[1] != context
    return Sample("".join(parts), (pair[1],), _BUDGET, _PREFIX, details=details)


_RULER_BUDGETS: Final = {"niah_multikey_3": 100, "niah_multiquery": 100, "cwe": 100}
_SEPARATORS: Final = {  # NVIDIA's words around a separator, and HELMET's
    "cwe": ("\nBelow is a numbered list", "\n\nBelow is a numbered list"),
    "fwe": ("coded words. ", "coded words.\n"),
}
_SEPARATOR_TOKENS: Final = 2


def _ruler_samples(request: TaskRequest, task: Task, *, budget: int) -> Iterator[Sample | None]:
    """Yield RULER's samples in HELMET's templates; room is kept for these and for a greater budget."""
    more = max(budget - task.max_new_tokens, 0) + _SEPARATOR_TOKENS
    theirs, ours = _SEPARATORS.get(task.name, ("", ""))
    for sample in task.make(replace(request, overhead=request.overhead + more)):
        # The last separator, behind the example of cwe.
        before, found, behind = sample.prompt.rpartition(theirs) if sample and theirs else ("", "", "")
        yield sample and replace(
            sample,
            prompt=before + ours + behind if found else sample.prompt,
            answer_prefix="\n" + sample.answer_prefix.strip(),
            max_new_tokens=budget,
        )


def _helmet_ruler(task: Task) -> Task:
    budget, is_question = _RULER_BUDGETS.get(task.name, 50), task.name.startswith("qa_")
    return replace(
        task,
        name=f"helmet_{task.name}",
        suite="helmet-ruler",
        category="HELMET-RULER",
        metric="substring_exact_match" if is_question else "ruler_recall",
        make=partial(_ruler_samples, task=task, budget=budget),
        score=best_of(substring_exact_match=substring_exact_match)
        if is_question
        else lambda answer, sample: {
            "ruler_recall": ruler.string_match_all(sample.completed(answer), sample.references)
        },
        samples=100,
        max_new_tokens=budget,
    )


RULER: Final = {task.name: _helmet_ruler(task) for task in ruler.TASKS}
TASKS: Final = (
    Task(
        name="json_kv",
        suite="helmet",
        category="Recall",
        metric="substring_exact_match",
        samples=QUESTIONS,
        make=_json_kv,
        score=best_of("corresponding value:", substring_exact_match=substring_exact_match),
        max_new_tokens=_BUDGET,
        version=2,
        optional=lambda length: (_file(length),),
    ),
    *(
        replace(RULER[needles], name=name, suite="helmet", category="Recall", version=2)
        for name, needles in (
            ("ruler_mk_needle", "niah_multikey_2"),
            ("ruler_mk_uuid", "niah_multikey_3"),
            ("ruler_mv", "niah_multivalue"),
        )
    ),
)
