"""Recall: a value in a long JSON object, and three of RULER's needles in HELMET's form.

In:  nothing but the seed for JSON KV; RULER's words and essays for the others. Out: JSON KV by SubEM, the needles (`helmet.ruler`)
by the share found.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from nextlong.evaluate.scores import best_of_raw_and_parsed, substring_exact_match
from nextlong.evaluate.shapes import KeyValues
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.evaluate.tasks.helmet import ruler
from nextlong.evaluate.tasks.helmet.published import fitted

KEYS_AT: Final = {8192: 105, 16_384: 220, 32_768: 440, 65_536: 900, 131_072: 1800}
LENGTHS: Final = tuple(KEYS_AT)
_SHOTS: Final = 2
_LEAST_KEYS: Final = 4
_DEPTHS: Final = 6
_BUDGET: Final = 100
_NEEDLES: Final = {
    "ruler_mk_needle": "niah_multikey_2",
    "ruler_mk_uuid": "niah_multikey_3",
    "ruler_mv": "niah_multivalue",
}
_PROMPT: Final = (
    "{context}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n"
    "{demos}Key: {question}"
)
_PREFIX: Final = "\nCorresponding value:"


def keys_at(length: int) -> int:
    """Return how many keys stand in the object: HELMET's number, else nine tenths of what is in proportion to its 1,800 at 128K."""
    return KEYS_AT.get(length, max(_LEAST_KEYS, 1800 * length // 131_072 * 9 // 10))


def json_kv(request: Request) -> Iterator[Sample | None]:
    """Yield samples from HELMET's file for the length where the user has it, else made in the same form."""
    file = _file_at(request.length)
    for sample in _published(request, file) if request.data.has(file) else _made(request):
        yield sample if request.fits(sample) else None


def _file_at(length: int) -> str:
    return f"helmet/json_kv/test_k{keys_at(length)}_dep{_DEPTHS}.jsonl"


def _published(request: Request, file: str) -> Iterator[Sample]:
    rows = list(request.data.json_lines(file, KeyValues))
    order = np.random.default_rng(request.seed).permutation(len(rows))  # as `datasets` shuffles
    for number in order.tolist():
        row = rows[number]
        details: dict[str, JSON] = {"depth": row.get("depth")}
        yield _sample(request, row["context"], (row["question"], str(row["answer"])), row["demos"][:_SHOTS], details)


def _made(request: Request) -> Iterator[Sample]:
    """Make objects whose asked key stands at one of six depths in turn."""
    keys = keys_at(request.length)
    if (
        request.length not in KEYS_AT
    ):  # HELMET's numbers are never changed; ours are, where a small vocabulary writes more tokens
        while keys > _LEAST_KEYS and _object(request, 0, keys).details["context_cut"]:
            keys -= 1
    for number in range(request.samples or 100):
        yield _object(request, number, keys)


def _object(request: Request, number: int, keys: int) -> Sample:
    draw = random.Random(f"{request.seed} json_kv {number}")
    pairs = {_uuid(draw): _uuid(draw) for _ in range(keys)}
    depth = number % _DEPTHS / (_DEPTHS - 1)
    names = list(pairs)
    asked = names[round(depth * (keys - 1))]
    shown = draw.sample([name for name in names if name != asked], _SHOTS)
    context = "JSON data:\n{" + ",\n ".join(f'"{name}": "{value}"' for name, value in pairs.items()) + "}"
    demos = [(name, pairs[name]) for name in shown]
    return _sample(request, context, (asked, pairs[asked]), demos, {"depth": depth, "keys": keys})


def _sample(
    request: Request, context: str, pair: Sequence[str], shown: Sequence[Sequence[str]], details: dict[str, JSON]
) -> Sample:
    demos = "".join(f"Key: {name}\nCorresponding value: {other}\n\n" for name, other in shown)
    parts = fitted(request, _PROMPT, _PREFIX, _BUDGET, context=context, demos=demos, question=pair[0])
    details["context_cut"] = parts[1] != context
    return Sample("".join(parts), (pair[1],), _BUDGET, _PREFIX, details=details)


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _score_value(answer: str, sample: Sample) -> dict[str, float]:
    return {
        "substring_exact_match": best_of_raw_and_parsed(
            substring_exact_match, sample.completed(answer), sample.references, prefix="corresponding value:"
        )
    }


TASKS: Final = (
    Task(
        "json_kv",
        "helmet",
        "Recall",
        "substring_exact_match",
        json_kv,
        _score_value,
        samples=100,
        max_new_tokens=_BUDGET,
        version=2,
        optional=lambda length: (_file_at(length),),
    ),
    *(
        replace(task, name=name, suite="helmet", category="Recall", version=2)
        for name, needles in _NEEDLES.items()
        for task in ruler.TASKS
        if task.name == f"helmet_{needles}"
    ),
)
