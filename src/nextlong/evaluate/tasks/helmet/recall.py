"""Recall: a value in a long JSON object, and three of RULER's needles with HELMET's budgets.

In:  nothing but the seed for JSON KV; RULER's words and essays for the others. Out: JSON KV by SubEM, the needles by the
share found.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from nextlong.evaluate.scores import best_of_raw_and_parsed, string_match_all, substring_exact_match
from nextlong.evaluate.shapes import KeyValues
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.evaluate.tasks.ruler import niah, words

KEYS_AT: Final = {8192: 105, 16_384: 220, 32_768: 440, 65_536: 900, 131_072: 1800}
LENGTHS: Final = tuple(KEYS_AT)
_SHOTS: Final = 2
_LEAST_KEYS: Final = 4
_DEPTHS: Final = 6
_BUDGET: Final = 100
_NEEDLE_BUDGETS: Final = {"niah_multikey_2": 50, "niah_multikey_3": 100, "niah_multivalue": 50}
_NAMES: Final = {
    "niah_multikey_2": "ruler_mk_needle",
    "niah_multikey_3": "ruler_mk_uuid",
    "niah_multivalue": "ruler_mv",
}
_ASK: Final = "Extract the value corresponding to the specified key in the JSON object below."
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
        yield _sample(row["context"], row["question"], str(row["answer"]), row["demos"][:_SHOTS], details)


def _made(request: Request) -> Iterator[Sample]:
    """Make objects whose asked key stands at one of six depths in turn."""
    keys = keys_at(request.length)
    if (
        request.length not in KEYS_AT
    ):  # HELMET's numbers are never changed; ours are, where a small vocabulary writes more tokens
        while keys > _LEAST_KEYS and not request.fits(_object(request, 0, keys)):
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
    return _sample(context, asked, pairs[asked], demos, {"depth": depth, "keys": keys})


def _sample(context: str, key: str, value: str, demos: Sequence[tuple[str, str]], details: dict[str, JSON]) -> Sample:
    shown = "".join(f"Key: {name}\nCorresponding value: {other}\n\n" for name, other in demos)
    return Sample(f"{context}\n\n{_ASK}\n\n{shown}Key: {key}", (value,), _BUDGET, _PREFIX, details=details)


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _score_value(answer: str, sample: Sample) -> dict[str, float]:
    return {
        "substring_exact_match": best_of_raw_and_parsed(
            substring_exact_match, answer, sample.references, prefix="corresponding value:"
        )
    }


def _needles(request: Request, name: str) -> Iterator[Sample | None]:
    for sample in niah.samples(request, niah.FORMS[name]):
        yield sample and replace(sample, max_new_tokens=_NEEDLE_BUDGETS[name])


def _score_share(answer: str, sample: Sample) -> dict[str, float]:
    return {"ruler_recall": string_match_all(answer, sample.references)}


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
        optional=lambda length: (_file_at(length),),
    ),
    *(
        Task(
            _NAMES[name],
            "helmet",
            "Recall",
            "ruler_recall",
            partial(_needles, name=name),
            _score_share,
            samples=100,
            max_new_tokens=budget,
            files=(words.ESSAYS,) if niah.FORMS[name].haystack == "essay" else (),
        )
        for name, budget in _NEEDLE_BUDGETS.items()
    ),
)
