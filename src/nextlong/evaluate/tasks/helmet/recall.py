"""Recall: a value in a long JSON object, and needles; in-context learning.

In:  nothing but the seed for JSON KV; what RULER's tasks read; TREC, NLU, BANKING77,
     CLINC150 as published.
Out: JSON KV by SubEM; RULER's samples in HELMET's templates (suite `helmet-ruler`;
     `load_ruler` of data.py), 100 of them, with its budgets, and SubEM for the two QA
     tasks. The prefix of the answer is scored with it, so these scores do not compare
     with NVIDIA's.

In-context learning: hundreds to thousands of labelled texts, then one without its
label. Labels are integers, shuffled for every sample. Since 2025-01-13 HELMET asks 500
questions, balanced over the labels, each with demonstrations of its own; before (suite
helmet-icl-2024) it asked 100, all with the same ones.
"""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple, NotRequired

from pydantic import BeforeValidator

import nextlong.evaluate.tasks.helmet.published as published
from nextlong.evaluate.data import (
    NAME,
    TEXT,
    TEXTS,
    DataFiles,
    Shape,
    optional,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.helmet.published import (
    NUMBERS,
    QUESTIONS,
    SHOTS,
    prompted,
    seed_of,
    shuffled,
)
from nextlong.recipe.keys import as_list
from nextlong.text import Json

_KEYS_AT: Final = published.at_lengths(NUMBERS["json_kv_keys"])
_MIN_KEYS: Final = 4
_DEPTHS: Final = 6
_SHAPE: Final = record(
    context=TEXT,
    question=TEXT,
    answer=NAME,
    demos=list[tuple[str, str]],
    depth=NotRequired[Any],
)


def _keys_at(length: int) -> int:
    """Return the keys of the object: HELMET's number where it defines one.

    Else nine tenths of what is in proportion to its 1,800 at 128K.
    """
    if length in _KEYS_AT:
        return _KEYS_AT[length]
    return max(_MIN_KEYS, 1800 * length // 131_072 * 9 // 10)


def _file(length: int) -> str:
    return f"helmet/json_kv/test_k{_keys_at(length)}_dep{_DEPTHS}.jsonl"


def _json_kv(request: TaskRequest) -> Iterator[Sample]:
    """Yield samples of HELMET's file for the length, else made in the same form."""
    file = _file(request.length)
    if request.data.has(file):
        rows = list(request.data.json_lines(file, _SHAPE))
        for row in shuffled(rows, seed=request.seed):
            yield _key_question(
                request,
                context=row["context"],
                key=row["question"],
                value=str(row["answer"]),
                shown=row["demos"][:SHOTS],
                details={"depth": row.get("depth")},
            )
        return
    keys = _keys_at(request.length)
    if request.length not in _KEYS_AT:
        # HELMET's numbers are never changed; ours are, where a small vocabulary writes
        # more tokens.
        while keys > _MIN_KEYS and _made(request, 0, keys).details["context_cut"]:
            keys -= 1
    for number in range(request.samples or QUESTIONS):
        yield _made(request, number, keys)


def _made(request: TaskRequest, number: int, keys: int) -> Sample:
    """Return a question over a JSON object of random keys and values."""
    draw = random.Random(f"{request.seed} json_kv {number}")
    # Keys and values alternate in the order of the draws.
    drawn = [_random_uuid(draw) for _ in range(2 * keys)]
    names = drawn[::2]
    value_of = dict(zip(names, drawn[1::2], strict=True))
    # The queried key is at one of six depths in turn.
    depth = number % _DEPTHS / (_DEPTHS - 1)
    key = names[round(depth * (keys - 1))]
    others = [name for name in value_of if name != key]
    shots = draw.sample(others, SHOTS)
    pairs = [f'"{name}": "{value}"' for name, value in value_of.items()]
    return _key_question(
        request,
        context="JSON data:\n{" + ",\n ".join(pairs) + "}",
        key=key,
        value=value_of[key],
        shown=[(name, value_of[name]) for name in shots],
        details={"depth": depth, "keys": keys},
    )


def _random_uuid(draw: random.Random) -> str:
    bits = draw.getrandbits(128)
    return str(uuid.UUID(int=bits, version=4))


def _key_question(
    request: TaskRequest,
    *,
    context: str,
    key: str,
    value: str,
    shown: Sequence[Sequence[str]],
    details: Json,
) -> Sample:
    demos = [f"Key: {name}\nCorresponding value: {other}\n\n" for name, other in shown]
    question = Sample("", (value,), 100, "\nCorresponding value:", details=details)
    return prompted(
        request,
        prompt_of("helmet_json_kv"),
        question,
        context=context,
        demos="".join(demos),
        question=key,
    )


# HELMET's budgets, and by how many tokens they exceed RULER's.
_USUAL_BUDGET: Final = (50, 0)
_RULER_BUDGETS: Final = NUMBERS["ruler_budgets"]
# NVIDIA's words around a separator, and HELMET's.
_SEPARATORS: Final = NUMBERS["ruler_separators"]
_SEPARATOR_TOKENS: Final = 2
# Either `query` or `question`, and either `answer` or `outputs`, by the task.
_RULER_ANSWERS: Final[Shape] = NotRequired[Annotated[TEXTS, BeforeValidator(as_list)]]
_RULER_SHAPE: Final = record(
    context=str,
    query=optional(str),
    question=optional(str),
    example=optional(str),
    type_needle_v=optional(str),
    num_v=NotRequired[Any],
    answer=_RULER_ANSWERS,
    outputs=_RULER_ANSWERS,
)


def _ruler_file(name: str, length: int) -> str:
    return f"helmet/ruler/{name}/validation_{length}.jsonl"


def _ruler_samples(request: TaskRequest, task: Task) -> Iterator[Sample | None]:
    """Yield the samples of HELMET's file for the length, else RULER's in its templates.

    Room is kept for these and for a greater budget.
    """
    budget, more = _RULER_BUDGETS.get(task.name, _USUAL_BUDGET)
    file = _ruler_file(task.name, request.length)
    if request.data.has(file):
        rows = list(request.data.json_lines(file, _RULER_SHAPE))
        for row in shuffled(rows, seed=request.seed):
            yield _published_sample(request, task.name, row, budget)
        return
    overhead = request.overhead + more + _SEPARATOR_TOKENS
    for sample in task.make(replace(request, overhead=overhead)):
        if sample is None:
            yield None
            continue
        prompt = sample.prompt
        if task.name in _SEPARATORS:
            nvidia, helmet = _SEPARATORS[task.name]
            # The last separator, after the example of cwe.
            prompt = helmet.join(prompt.rsplit(nvidia, 1))
        yield replace(
            sample,
            prompt=prompt,
            answer_prefix="\n" + sample.answer_prefix.strip(),
            max_new_tokens=budget,
        )


def _published_sample(
    request: TaskRequest, name: str, row: Json, budget: int
) -> Sample:
    """Return a row of HELMET's files in its template, as `load_ruler` of data.py."""
    nvidia, helmet = _SEPARATORS["fwe"]
    template, prefix = ruler.TEMPLATES[name]
    example = row.get("example")
    shown = f"{example}\n\n" if example else ""
    fields = {
        "query": row.get("query") or row.get("question") or "",
        "kind": str(row.get("type_needle_v")),
        "count": str(row.get("num_v")),
    }
    question = Sample(
        prompt="",
        references=tuple(row.get("answer") or row["outputs"]),
        max_new_tokens=budget,
        answer_prefix="\n" + prefix.strip().format(**fields),
    )
    return prompted(
        request,
        "{example}" + template.replace(nvidia, helmet),
        question,
        context=row["context"],
        example=shown,
        **fields,
    )


def _score_ruler(answer: str, sample: Sample) -> dict[str, float]:
    completed = sample.completed(answer)
    return {"ruler_recall": ruler.string_match_all(completed, sample.references)}


_METRIC: Final = "substring_exact_match"
_score_qa = published.best_of(substring_exact_match=published.substring_exact_match)
_score_value = published.best_of(
    "corresponding value:", substring_exact_match=published.substring_exact_match
)


def _as_helmet(task: Task) -> Task:
    is_qa = task.name.startswith("qa_")
    return replace(
        task,
        name=f"helmet_{task.name}",
        suite="helmet-ruler",
        category="HELMET-RULER",
        metric=_METRIC if is_qa else "ruler_recall",
        samples=100,
        make=partial(_ruler_samples, task=task),
        score=_score_qa if is_qa else _score_ruler,
        chat="plain text",
        published=partial(_ruler_file, task.name),
    )


RULER: Final = {task.name: _as_helmet(task) for task in ruler.TASKS}


def _recall_task(task: Task, name: str) -> Task:
    return replace(task, name=name, suite="helmet", category="Recall", version=2)


JSON_KV: Final = Task(
    "json_kv",
    suite="helmet",
    category="Recall",
    metric=_METRIC,
    samples=QUESTIONS,
    make=_json_kv,
    score=_score_value,
    published=_file,
    chat="plain text",
    version=2,
)
TASKS: Final = (
    JSON_KV,
    _recall_task(RULER["niah_multikey_2"], "ruler_mk_needle"),
    _recall_task(RULER["niah_multikey_3"], "ruler_mk_uuid"),
    _recall_task(RULER["niah_multivalue"], "ruler_mv"),
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


class _Split(NamedTuple):
    """What examples are sampled from, and the questions."""

    train: list[_Labelled]
    test: list[_Labelled]


def _read_trec(data: DataFiles, *, level: str) -> _Split:
    """Read TREC's questions; `level` is coarse (6 labels) or fine (50)."""
    train, test = (_trec_part(data, file, level) for file in _TREC)
    return _Split(train, test)


def _trec_part(data: DataFiles, file: str, level: str) -> list[_Labelled]:
    part = []
    text = data.text(file)
    lines = text.rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        label, space, question = line.strip().partition(" ")
        if not space or ":" not in label:
            raise data.error(
                file,
                f"it is {line[:60]!r}, not `LABEL:label text`",
                place=f", line {number}",
            )
        if level == "coarse":
            label, _, _ = label.partition(":")
        part.append(_Labelled(question, label))
    return part


def _read_csv(
    data: DataFiles, *, files: tuple[str, str], label: tuple[str, ...]
) -> _Split:
    """Read BANKING77 (77 intents of a bank's customers) or NLU-Evaluation-Data.

    The label of the latter is scenario_intent.
    """
    train, test = (_csv_part(data, file, label) for file in files)
    return _Split(train, test)


def _csv_part(data: DataFiles, file: str, columns: tuple[str, ...]) -> list[_Labelled]:
    part = []
    shape = record(text=str, **dict.fromkeys(columns, str))
    for row in data.json_lines(file, shape):
        label = "_".join(row[column] for column in columns)
        part.append(_Labelled(row["text"], label))
    return part


def _read_clinc150(data: DataFiles) -> _Split:
    """Read CLINC150 with its out-of-scope examples as the 151st label.

    HELMET asks the validation part.
    """
    intents = several(tuple[str, str])
    shape = record(train=intents, oos_train=intents, val=intents, oos_val=intents)
    parts = data.json(_CLINC, shape)
    train = [_Labelled(*pair) for pair in parts["train"] + parts["oos_train"]]
    test = [_Labelled(*pair) for pair in parts["val"] + parts["oos_val"]]
    return _Split(train, test)


def _icl_samples(
    request: TaskRequest,
    read: Callable[[DataFiles], _Split],
    shots_at: dict[int, int],
    form: str,
) -> Iterator[Sample]:
    """Yield samples with HELMET's number of shots for the length.

    The shots are balanced over the labels.
    """
    train, test = read(request.data)
    known = {example.label for example in train}
    labels = sorted(known)
    # A length that HELMET does not define gets shots in proportion to those at 128K.
    shots = shots_at.get(request.length)
    if shots is None:
        shots = max(1, shots_at[131_072] * request.length // 131_072)
    questions = [question for question in test if question.label in known]
    if len(questions) > _QUESTIONS[form]:
        questions = shuffled(questions, seed=request.seed)
        if form == "2025":
            questions = _balanced(questions, _QUESTIONS[form], seed=request.seed)
    for asked in questions[: _QUESTIONS[form]]:
        # A seed of its own for each question, as in HELMET: its label numbers do not
        # depend on earlier questions.
        seed = seed_of(asked.text, offset=request.seed)
        numbers = list(range(len(labels)))
        random.Random(seed).shuffle(numbers)
        number_of = dict(zip(labels, numbers, strict=True))
        demos_seed = seed if form == "2025" else request.seed
        demos = []
        for demo in _balanced(train, shots, seed=demos_seed):
            demos.append(f"{demo.text}\nlabel: {number_of[demo.label]}")
        question = Sample(
            prompt="",
            references=(str(number_of[asked.label]),),
            max_new_tokens=20,
            answer_prefix="\nlabel:",
            details={"shots": shots},
        )
        yield prompted(
            request,
            prompt_of("helmet_icl"),
            question,
            context="\n\n".join(demos),
            question=asked.text,
        )


def _balanced(train: list[_Labelled], shots: int, *, seed: int) -> list[_Labelled]:
    """Return `shots` examples in rounds that hold every label once, in random order.

    A label with fewer examples repeats them.
    """
    draw = random.Random(seed)
    by_label: dict[str, list[_Labelled]] = {}
    for example in train:
        by_label.setdefault(example.label, []).append(example)
    # Rounds that are needed, and in each round one example of every label.
    round_count = math.ceil(shots / len(by_label))
    rounds: list[list[_Labelled]] = [[] for _ in range(round_count)]
    for examples in by_label.values():
        # The example of the label in each round; a rare label starts over when its
        # examples are used up.
        numbers = range(len(examples))
        indices = draw.sample(numbers, round_count % len(examples))
        while len(indices) < round_count:
            missing = round_count - len(indices)
            indices += draw.sample(numbers, min(missing, len(examples)))
        for index, examples_of_round in zip(indices, rounds, strict=True):
            examples_of_round.append(examples[index])
    for examples_of_round in rounds:
        draw.shuffle(examples_of_round)
    return list(chain.from_iterable(rounds))[:shots]


def _score_label(answer: str, sample: Sample) -> dict[str, float]:
    label = published.parsed_answer(sample.completed(answer), "label:")
    return {"exact_match": published.exact_match(label or "", sample.references)}


class _DataSet(NamedTuple):
    name: str
    read: Callable[[DataFiles], _Split]
    files: tuple[str, ...]


_DATA_SETS: Final = (
    _DataSet(
        "trec_coarse",
        partial(_read_trec, level="coarse"),
        _TREC,
    ),
    _DataSet(
        "trec_fine",
        partial(_read_trec, level="fine"),
        _TREC,
    ),
    _DataSet(
        "nlu",
        partial(_read_csv, files=_NLU, label=("scenario", "intent")),
        _NLU,
    ),
    _DataSet(
        "banking77",
        partial(_read_csv, files=_BANKING, label=("category",)),
        _BANKING,
    ),
    _DataSet("clinc150", _read_clinc150, (_CLINC,)),
)


def _icl_task(data_set: _DataSet, form: str) -> Task:
    is_usual = form == "2025"
    shots_at = published.at_lengths(NUMBERS["icl_shots"][data_set.name])
    make = partial(_icl_samples, read=data_set.read, shots_at=shots_at, form=form)
    return Task(
        data_set.name if is_usual else f"{data_set.name}_2024",
        suite="helmet" if is_usual else "helmet-icl-2024",
        category="ICL" if is_usual else "ICL 2024",
        metric="exact_match",
        samples=_QUESTIONS[form],
        make=make,
        score=_score_label,
        files=data_set.files,
        chat="plain text",
        version=3,
    )


# HELMET's form since 2025-01-13, and the one before.
ICL_2025: Final = tuple(_icl_task(data_set, "2025") for data_set in _DATA_SETS)
ICL_2024: Final = tuple(_icl_task(data_set, "2024") for data_set in _DATA_SETS)
