"""Recall: a value in a long JSON object, and needles; RULER as HELMET runs it (suite `helmet-ruler`); in-context learning.

In:  nothing but the seed for JSON KV; what RULER's tasks read; TREC, NLU, BANKING77, CLINC150 as published. Out: JSON KV by
SubEM; RULER's samples in HELMET's templates (`load_ruler` of data.py), 100 of them, with its budgets, and SubEM for the two QA
tasks. The prefix of the answer is scored with it, so these scores do not compare with NVIDIA's.

In-context learning: hundreds to thousands of labelled texts, then one without its label. Labels are integers, shuffled
for every sample. Since 2025-01-13 HELMET asks 500 questions, balanced over the labels, each with demonstrations of its own;
before (suite helmet-icl-2024) it asked 100, all with the same ones.
"""

from __future__ import annotations

import hashlib
import math
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, NotRequired

import nextlong.evaluate.tasks.helmet.published as published
from nextlong.evaluate.data import NAME, TEXT, DataFiles, record, several
from nextlong.evaluate.task import Sample, Task, TaskRequest
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.helmet.published import (
    LENGTHS,
    QUESTIONS,
    SHOTS,
    prompted,
    shuffled,
)
from nextlong.text import Json

_KEYS_AT: Final = dict(zip(LENGTHS, (105, 220, 440, 900, 1800), strict=True))
_LEAST_KEYS, _DEPTHS = 4, 6
_SHAPE: Final = record(
    context=TEXT,
    question=TEXT,
    answer=NAME,
    demos=list[tuple[str, str]],
    depth=NotRequired[Any],
)


def _keys_at(length: int) -> int:
    """Return the keys of the object: HELMET's number, else nine tenths of what is in proportion to its 1,800 at 128K."""
    return _KEYS_AT.get(length, max(_LEAST_KEYS, 1800 * length // 131_072 * 9 // 10))


def _file(length: int) -> str:
    return f"helmet/json_kv/test_k{_keys_at(length)}_dep{_DEPTHS}.jsonl"


def _json_kv(request: TaskRequest) -> Iterator[Sample]:
    """Yield samples from HELMET's file for the length where the user has it, else made in the same form."""

    def sample(
        context: str,
        key: str,
        value: str,
        shown: Sequence[Sequence[str]],
        details: Json,
    ) -> Sample:
        demos = "".join(
            f"Key: {name}\nCorresponding value: {other}\n\n" for name, other in shown
        )
        question = Sample("", (value,), 100, "\nCorresponding value:", details=details)
        return prompted(
            request,
            "helmet_json_kv",
            question,
            context=context,
            demos=demos,
            question=key,
        )

    def made(number: int, keys: int) -> Sample:
        draw = random.Random(f"{request.seed} json_kv {number}")
        names = [
            str(uuid.UUID(int=draw.getrandbits(128), version=4))
            for _ in range(2 * keys)
        ]
        pairs = dict(zip(names[::2], names[1::2], strict=True))
        # The queried key is at one of six depths in turn.
        depth = number % _DEPTHS / (_DEPTHS - 1)
        key = names[::2][round(depth * (keys - 1))]
        demos = [
            (shown, pairs[shown])
            for shown in draw.sample([name for name in pairs if name != key], SHOTS)
        ]
        context = (
            "JSON data:\n{"
            + ",\n ".join(f'"{name}": "{value}"' for name, value in pairs.items())
            + "}"
        )
        return sample(context, key, pairs[key], demos, {"depth": depth, "keys": keys})

    if request.data.has(_file(request.length)):
        for row in shuffled(
            list(request.data.json_lines(_file(request.length), _SHAPE)),
            seed=request.seed,
        ):
            details = {"depth": row.get("depth")}
            yield sample(
                row["context"],
                row["question"],
                str(row["answer"]),
                row["demos"][:SHOTS],
                details,
            )
        return
    keys = _keys_at(request.length)
    if request.length not in _KEYS_AT:
        # HELMET's numbers are never changed; ours are, where a small vocabulary writes more tokens.
        while keys > _LEAST_KEYS and made(0, keys).details["context_cut"]:
            keys -= 1
    yield from (made(number, keys) for number in range(request.samples or QUESTIONS))


# HELMET's budgets, and by how many tokens they exceed RULER's.
_RULER_BUDGETS: Final = dict.fromkeys(
    ("niah_multikey_3", "niah_multiquery", "cwe"), (100, 0)
) | {"vt": (50, 20)}
_RULER_BUDGETS.update(qa_1=(50, 18), qa_2=(50, 18))
_SEPARATORS: Final = {  # NVIDIA's words around a separator, and HELMET's
    "cwe": ("\nBelow is a numbered list", "\n\nBelow is a numbered list"),
    "fwe": ("coded words. ", "coded words.\n"),
}
_SEPARATOR_TOKENS: Final = 2


def _ruler_samples(request: TaskRequest, task: Task) -> Iterator[Sample | None]:
    """Yield RULER's samples in HELMET's templates; room is kept for these and for a greater budget."""
    budget, more = _RULER_BUDGETS.get(task.name, (50, 0))
    theirs, ours = _SEPARATORS.get(task.name, ("", ""))
    for sample in task.make(
        replace(request, overhead=request.overhead + more + _SEPARATOR_TOKENS)
    ):
        if sample is not None:
            # The last separator, after the example of cwe.
            prompt = (
                ours.join(sample.prompt.rsplit(theirs, 1)) if theirs else sample.prompt
            )
            prefix = "\n" + sample.answer_prefix.strip()
            sample = replace(
                sample, prompt=prompt, answer_prefix=prefix, max_new_tokens=budget
            )
        yield sample


def _score_ruler(answer: str, sample: Sample) -> dict[str, float]:
    return {
        "ruler_recall": ruler.string_match_all(
            sample.completed(answer), sample.references
        )
    }


def _as_helmet(task: Task) -> Task:
    about: dict[str, Any] = {
        "suite": "helmet-ruler",
        "category": "HELMET-RULER",
        "samples": 100,
    }
    about |= {"metric": "ruler_recall", "score": _score_ruler}
    if task.name.startswith("qa_"):
        about |= {
            "metric": _METRIC,
            "score": published.best_of(
                substring_exact_match=published.substring_exact_match
            ),
        }
    return replace(
        task,
        name=f"helmet_{task.name}",
        make=partial(_ruler_samples, task=task),
        **about,
    )


_METRIC: Final = "substring_exact_match"
_recall: dict[str, Any] = {"suite": "helmet", "category": "Recall", "version": 2}
_score_value = published.best_of(
    "corresponding value:", substring_exact_match=published.substring_exact_match
)
RULER: Final = {task.name: _as_helmet(task) for task in ruler.TASKS}
_kv = partial(
    Task,
    "json_kv",
    metric=_METRIC,
    samples=QUESTIONS,
    optional=lambda length: (_file(length),),
    **_recall,
)
TASKS: Final = (
    _kv(make=_json_kv, score=_score_value),
    replace(RULER["niah_multikey_2"], name="ruler_mk_needle", **_recall),
    replace(RULER["niah_multikey_3"], name="ruler_mk_uuid", **_recall),
    replace(RULER["niah_multivalue"], name="ruler_mv", **_recall),
)


# In-context learning.

_QUESTIONS: Final = {"2025": 500, "2024": 100}
_TREC: Final = ("icl/trec/train_5500.label", "icl/trec/TREC_10.label")
_BANKING: Final = ("icl/banking77/train.csv", "icl/banking77/test.csv")
_CLINC: Final = "icl/clinc150/data_full.json"
_NLU: Final = ("icl/nlu/train.csv", "icl/nlu/test.csv")


class _Labelled(NamedTuple):
    text: str
    label: str


_Split = list[list[_Labelled]]  # what examples are sampled from, and the questions


def _read_trec(data: DataFiles, *, level: str) -> _Split:
    """Read TREC's questions; `level` is coarse (6 labels) or fine (50)."""
    parts: _Split = []
    for name in _TREC:
        parts.append([])
        for number, line in enumerate(
            data.text(name).rstrip("\n").split("\n"), start=1
        ):
            label, space, text = line.strip().partition(" ")
            if not space or ":" not in label:
                raise data.error(
                    name,
                    f"it is {line[:60]!r}, not `LABEL:label text`",
                    place=f", line {number}",
                )
            parts[-1].append(
                _Labelled(text, label.split(":")[0] if level == "coarse" else label)
            )
    return parts


def _read_csv(
    data: DataFiles, *, files: tuple[str, str], label: tuple[str, ...]
) -> _Split:
    """Read BANKING77 (77 intents of a bank's customers) or NLU-Evaluation-Data, whose label is scenario_intent."""
    rows = (data.rows(file, ("text", *label)) for file in files)
    return [
        [_Labelled(row["text"], "_".join(row[name] for name in label)) for row in part]
        for part in rows
    ]


def _read_clinc150(data: DataFiles) -> _Split:
    """Read CLINC150 with its out-of-scope examples as the 151st label; HELMET asks the validation part."""
    intents = several(tuple[str, str])
    parts = data.json(
        _CLINC, record(train=intents, oos_train=intents, val=intents, oos_val=intents)
    )
    return [
        [_Labelled(*one) for one in parts[name] + parts[f"oos_{name}"]]
        for name in ("train", "val")
    ]


def _icl_samples(
    request: TaskRequest,
    read: Callable[[DataFiles], _Split],
    shots_at: dict[int, int],
    form: str,
) -> Iterator[Sample]:
    """Yield samples with HELMET's number of shots for the length, balanced over the labels."""
    train, test = read(request.data)
    labels = sorted(known := {one.label for one in train})
    # A length that HELMET does not define gets shots in proportion to those at 128K.
    shots = shots_at.get(request.length) or max(
        1, shots_at[131_072] * request.length // 131_072
    )
    questions = [one for one in test if one.label in known]
    if len(questions) > _QUESTIONS[form]:
        questions = shuffled(questions, seed=request.seed)
        questions = (
            _balanced(questions, _QUESTIONS[form], seed=request.seed)
            if form == "2025"
            else questions
        )
    for one in questions[: _QUESTIONS[form]]:
        # A seed of its own for each question, as in HELMET: its label numbers do not depend on earlier questions.
        seed = (
            int(hashlib.sha256(one.text.encode("utf-8")).hexdigest(), 16) + request.seed
        ) % 2**31
        numbers = list(range(len(labels)))
        random.Random(seed).shuffle(numbers)
        number_of = dict(zip(labels, numbers, strict=True))
        demos = _balanced(train, shots, seed=seed if form == "2025" else request.seed)
        context = "\n\n".join(
            f"{demo.text}\nlabel: {number_of[demo.label]}" for demo in demos
        )
        question = Sample(
            "", (str(number_of[one.label]),), 20, "\nlabel:", "\n", {"shots": shots}
        )
        yield prompted(
            request, "helmet_icl", question, context=context, question=one.text
        )


def _balanced(train: list[_Labelled], shots: int, *, seed: int) -> list[_Labelled]:
    """Return `shots` examples in rounds that hold every label once, in random order; a label with fewer repeats them."""
    draw = random.Random(seed)
    by_label: dict[str, list[_Labelled]] = {}
    for one in train:
        by_label.setdefault(one.label, []).append(one)
    # Rounds that are needed, and in each round one example of every label.
    rounds: list[list[_Labelled]] = [
        [] for _ in range(math.ceil(shots / len(by_label)))
    ]
    for listed in by_label.values():
        # The example of the label in each round; a rare label starts over when its examples are used up.
        indices = draw.sample(range(len(listed)), len(rounds) % len(listed))
        while len(indices) < len(rounds):
            indices += draw.sample(
                range(len(listed)), min(len(rounds) - len(indices), len(listed))
            )
        for one_round, index in zip(rounds, indices, strict=True):
            one_round.append(listed[index])
    for one_round in rounds:
        draw.shuffle(one_round)
    return list(chain.from_iterable(rounds))[:shots]


def _score_label(answer: str, sample: Sample) -> dict[str, float]:
    label = published.parsed_answer(sample.completed(answer), "label:")
    return {"exact_match": published.exact_match(label or "", sample.references)}


_intents = partial(_read_csv, files=_NLU, label=("scenario", "intent"))
_bank = partial(_read_csv, files=_BANKING, label=("category",))
_task = partial(Task, metric="exact_match", score=_score_label, version=2)
# HELMET's form since 2025-01-13, and the one before; name, reader, shots at 8K to 128K, files.
ICL_2025, ICL_2024 = (
    tuple(
        _task(
            name + suffix,
            suite,
            category,
            samples=_QUESTIONS[form],
            make=partial(
                _icl_samples,
                read=read,
                shots_at=dict(zip(LENGTHS, shots, strict=True)),
                form=form,
            ),
            files=files,
        )
        for name, read, shots, files in (
            (
                "trec_coarse",
                partial(_read_trec, level="coarse"),
                (400, 800, 1600, 3300, 6600),
                _TREC,
            ),
            (
                "trec_fine",
                partial(_read_trec, level="fine"),
                (400, 800, 1600, 3200, 6400),
                _TREC,
            ),
            ("nlu", _intents, (510, 1020, 2040, 4080, 8296), _NLU),
            ("banking77", _bank, (360, 720, 1450, 2900, 5900), _BANKING),
            ("clinc150", _read_clinc150, (440, 880, 1750, 3525, 7050), (_CLINC,)),
        )
    )
    for form, suffix, suite, category in (
        ("2025", "", "helmet", "ICL"),
        ("2024", "_2024", "helmet-icl-2024", "ICL 2024"),
    )
)
