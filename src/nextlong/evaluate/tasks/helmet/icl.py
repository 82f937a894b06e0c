"""In-context learning: hundreds to thousands of labelled texts, then one without its label.

In:  TREC, NLU, BANKING77, CLINC150 as published. Out: prompts whose labels are integers, shuffled anew for every sample; score:
the integer behind `label:` is right (exact match). Since 2025-01-13 HELMET asks 500 questions, balanced over the labels, each with
demonstrations of its own; before (suite helmet-icl-2024) it asked 100, all with the same ones.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles, origin, record, several
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.evaluate.tasks.helmet.published import LENGTHS, exact_match, parsed_answer, prompted, shuffled

_PROMPT: Final = prompt_of("helmet_icl")
_Form = Literal["2025", "2024"]
_QUESTIONS: Final[dict[_Form, int]] = {"2025": 500, "2024": 100}
_TREC: Final = ("icl/trec/train_5500.label", "icl/trec/TREC_10.label")
_BANKING: Final = ("icl/banking77/train.csv", "icl/banking77/test.csv")
_CLINC: Final = "icl/clinc150/data_full.json"
_NLU: Final = ("icl/nlu/train.csv", "icl/nlu/test.csv")


@dataclass(frozen=True)
class _Labelled:
    """A text and its label's name."""

    text: str
    label: str


_Split = tuple[list[_Labelled], list[_Labelled]]  # what examples are sampled from, and the questions


def _read_trec(data: DataFiles, *, level: str) -> _Split:
    """Read TREC's questions; `level` is coarse (6 labels) or fine (50)."""

    def lines(name: str) -> list[_Labelled]:
        examples = []
        for number, line in enumerate(data.text(name).rstrip("\n").split("\n"), start=1):
            label, space, text = line.strip().partition(" ")
            if not space or ":" not in label:
                raise EvaluateError(
                    f"{data.path(name)}, line {number} is {line[:60]!r}, not `LABEL:label text`; fix it, or download the file "
                    f"again: {origin(name)}"
                )
            examples.append(_Labelled(text, label.split(":")[0] if level == "coarse" else label))
        return examples

    return lines(_TREC[0]), lines(_TREC[1])


def _read_csv(data: DataFiles, *, files: tuple[str, str], label: tuple[str, ...]) -> _Split:
    """Read BANKING77 (77 intents of a bank's customers) or NLU-Evaluation-Data, whose label is scenario_intent."""
    train, test = (
        [_Labelled(row["text"], "_".join(row[name] for name in label)) for row in data.rows(file, ("text", *label))]
        for file in files
    )
    return train, test


def _read_clinc150(data: DataFiles) -> _Split:
    """Read CLINC150 with its out-of-scope examples as the 151st label; HELMET asks the validation part."""
    intents = several(tuple[str, str])
    parts = data.json(_CLINC, record(train=intents, oos_train=intents, val=intents, oos_val=intents))

    def joined(*names: str) -> list[_Labelled]:
        return [_Labelled(text, label) for name in names for text, label in parts[name]]

    return joined("train", "oos_train"), joined("val", "oos_val")


def _samples(
    request: TaskRequest, read: Callable[[DataFiles], _Split], shots_at: dict[int, int], form: _Form
) -> Iterator[Sample | None]:
    """Yield samples with HELMET's number of shots for the length, balanced over the labels."""
    train, test = read(request.data)
    labels = sorted({one.label for one in train})
    # A length that HELMET does not define gets shots in proportion to those at 128K.
    shots = shots_at.get(request.length) or max(1, shots_at[131_072] * request.length // 131_072)
    questions = [one for one in test if one.label in set(labels)]
    if len(questions) > _QUESTIONS[form]:
        questions = shuffled(questions, seed=request.seed)
        questions = _balanced(questions, _QUESTIONS[form], seed=request.seed) if form == "2025" else questions
    for one in questions[: _QUESTIONS[form]]:
        # A seed of its own for each question, as in HELMET: its labels are numbered anew, whatever was asked before.
        seed = (int(hashlib.sha256(one.text.encode("utf-8")).hexdigest(), 16) + request.seed) % 2**31
        numbers = list(range(len(labels)))
        random.Random(seed).shuffle(numbers)
        number_of = dict(zip(labels, numbers, strict=True))
        demos = _balanced(train, shots, seed=seed if form == "2025" else request.seed)
        yield prompted(
            request,
            _PROMPT,
            "\nlabel:",
            20,
            context="\n\n".join(f"{demo.text}\nlabel: {number_of[demo.label]}" for demo in demos),
            references=[str(number_of[one.label])],
            details={"shots": shots},
            question=one.text,
        )


def _balanced(train: list[_Labelled], shots: int, *, seed: int) -> list[_Labelled]:
    """Return `shots` examples in rounds that hold every label once, in random order.

    A label with fewer examples than rounds gives them again.
    """
    draw = random.Random(seed)
    by_label: dict[str, list[_Labelled]] = {}
    for one in train:
        by_label.setdefault(one.label, []).append(one)
    # Rounds that are needed, and in each round one example of every label.
    count = math.ceil(shots / len(by_label))
    rounds: list[list[_Labelled]] = [[] for _ in range(count)]
    for listed in by_label.values():
        # Which example of the label stands in each round; a rare label begins anew when its examples are used up.
        indices = draw.sample(range(len(listed)), count % len(listed))
        while len(indices) < count:
            indices += draw.sample(range(len(listed)), min(count - len(indices), len(listed)))
        for number, index in enumerate(indices):
            rounds[number].append(listed[index])
    for one_round in rounds:
        draw.shuffle(one_round)
    return list(chain.from_iterable(rounds))[:shots]


# Name, reader, shots at 8K to 128K, files.
_SETS: Final = (
    ("trec_coarse", partial(_read_trec, level="coarse"), (400, 800, 1600, 3300, 6600), _TREC),
    ("trec_fine", partial(_read_trec, level="fine"), (400, 800, 1600, 3200, 6400), _TREC),
    ("nlu", partial(_read_csv, files=_NLU, label=("scenario", "intent")), (510, 1020, 2040, 4080, 8296), _NLU),
    ("banking77", partial(_read_csv, files=_BANKING, label=("category",)), (360, 720, 1450, 2900, 5900), _BANKING),
    ("clinc150", _read_clinc150, (440, 880, 1750, 3525, 7050), (_CLINC,)),
)


def tasks(form: _Form) -> tuple[Task, ...]:
    """Return the tasks in HELMET's form since 2025-01-13, or the one before."""
    is_newest = form == "2025"
    return tuple(
        Task(
            name=name if is_newest else f"{name}_{form}",
            suite="helmet" if is_newest else f"helmet-icl-{form}",
            category="ICL" if is_newest else f"ICL {form}",
            metric="exact_match",
            samples=_QUESTIONS[form],
            make=partial(_samples, read=read, shots_at=dict(zip(LENGTHS, shots, strict=True)), form=form),
            score=lambda answer, sample: {
                "exact_match": exact_match(parsed_answer(sample.completed(answer), "label:") or "", sample.references)
            },
            max_new_tokens=20,
            files=files,
            version=2,
        )
        for name, read, shots, files in _SETS
    )
