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
from nextlong.evaluate.data import DataFiles, origin
from nextlong.evaluate.scores import exact_match, parsed_answer
from nextlong.evaluate.shapes import Clinc
from nextlong.evaluate.task import Request, Sample, Task
from nextlong.evaluate.tasks.helmet.published import fitted, shuffled

_BUDGET: Final = 20
_PROMPT: Final = (
    'Use the provided mapping from the text to label to assign a label to the text. Only output "label: {{label}}" and '
    "nothing else. \n\n{context}\n\n{question}"
)
_PREFIX: Final = "\nlabel:"
Form = Literal["2025", "2024"]
QUESTIONS_OF: Final[dict[Form, int]] = {"2025": 500, "2024": 100}
_LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
_TREC_TRAIN, _TREC_TEST = "icl/trec/train_5500.label", "icl/trec/TREC_10.label"
_BANKING_TRAIN, _BANKING_TEST = "icl/banking77/train.csv", "icl/banking77/test.csv"
_CLINC = "icl/clinc150/data_full.json"
_NLU_TRAIN, _NLU_TEST = "icl/nlu/train.csv", "icl/nlu/test.csv"


@dataclass(frozen=True)
class Labelled:
    """A text and its label's name."""

    text: str
    label: str


Split = tuple[list[Labelled], list[Labelled]]  # what examples come from, what is asked


def read_trec(data: DataFiles, *, level: str) -> Split:
    """Read TREC's questions; `level` is coarse (6 labels) or fine (50)."""

    def lines(name: str) -> list[Labelled]:
        examples = []
        for number, line in enumerate(data.text(name).rstrip("\n").split("\n"), start=1):
            label, space, text = line.strip().partition(" ")
            if not space or ":" not in label:
                raise EvaluateError(
                    f"{data.path(name)}, line {number} is {line[:60]!r}, not `LABEL:label text`; mend it, or "
                    f"download the file again: "
                    f"{origin(name)}"
                )
            examples.append(Labelled(text, label.split(":")[0] if level == "coarse" else label))
        return examples

    return lines(_TREC_TRAIN), lines(_TREC_TEST)


def read_banking77(data: DataFiles) -> Split:
    """Read BANKING77: 77 intents of a bank's customers."""
    return tuple(  # type: ignore[return-value]
        [Labelled(row["text"], row["category"]) for row in data.rows(name, ("text", "category"))]
        for name in (_BANKING_TRAIN, _BANKING_TEST)
    )


def read_clinc150(data: DataFiles) -> Split:
    """Read CLINC150 with its out-of-scope examples as the 151st label; HELMET asks the validation part."""
    parts = data.json(_CLINC, Clinc)

    def listed(*names: str) -> list[Labelled]:
        return [Labelled(text, label) for name in names for text, label in parts[name]]

    return listed("train", "oos_train"), listed("val", "oos_val")


def read_nlu(data: DataFiles) -> Split:
    """Read NLU-Evaluation-Data: a label is scenario_intent."""
    return tuple(  # type: ignore[return-value]
        [
            Labelled(row["text"], f"{row['scenario']}_{row['intent']}")
            for row in data.rows(name, ("text", "scenario", "intent"))
        ]
        for name in (_NLU_TRAIN, _NLU_TEST)
    )


def samples(
    request: Request, read: Callable[[DataFiles], Split], shots_at: dict[int, int], form: Form
) -> Iterator[Sample | None]:
    """Yield samples with HELMET's number of shots for the length, balanced over the labels."""
    train, test = read(request.data)
    labels = sorted({one.label for one in train})
    shots = shots_at.get(request.length) or max(1, shots_at[131_072] * request.length // 131_072)
    asked = [one for one in test if one.label in set(labels)]
    if len(asked) > QUESTIONS_OF[form]:
        asked = shuffled(asked, seed=request.seed)
        asked = balanced(asked, QUESTIONS_OF[form], seed=request.seed) if form == "2025" else asked
    for one in asked[: QUESTIONS_OF[form]]:
        seed = _seed_of(one.text, request.seed)
        number_of = dict(zip(labels, _shuffled_numbers(len(labels), seed=seed), strict=True))
        demos = balanced(train, shots, seed=seed if form == "2025" else request.seed)
        context = "\n\n".join(f"{demo.text}\nlabel: {number_of[demo.label]}" for demo in demos)
        prompt = "".join(fitted(request, _PROMPT, _PREFIX, _BUDGET, context=context, question=one.text))
        sample = Sample(prompt, (str(number_of[one.label]),), _BUDGET, _PREFIX, stop="\n", details={"shots": shots})
        yield sample if request.fits(sample) else None


def balanced(train: list[Labelled], shots: int, *, seed: int) -> list[Labelled]:
    """Return `shots` examples in rounds that hold every label once, in random order.

    A label with fewer examples than rounds gives them again.
    """
    draw = random.Random(seed)
    by_label: dict[str, list[Labelled]] = {}
    for one in train:
        by_label.setdefault(one.label, []).append(one)
    count = math.ceil(shots / len(by_label))
    rounds: list[list[Labelled]] = [[] for _ in range(count)]
    for listed in by_label.values():
        indices = draw.sample(range(len(listed)), count % len(listed))
        while len(indices) < count:
            indices += draw.sample(range(len(listed)), min(count - len(indices), len(listed)))
        for number, index in enumerate(indices):
            rounds[number].append(listed[index])
    for one_round in rounds:
        draw.shuffle(one_round)
    return list(chain.from_iterable(rounds))[:shots]


def _seed_of(text: str, seed: int) -> int:
    return (int(hashlib.sha256(text.encode("utf-8")).hexdigest(), 16) + seed) % 2**31


def _shuffled_numbers(count: int, *, seed: int) -> list[int]:
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    return numbers


def _score(answer: str, sample: Sample) -> dict[str, float]:
    parsed = parsed_answer(sample.completed(answer), "label:")
    return {"exact_match": exact_match(parsed or "", sample.references)}


def _shots(*counts: int) -> dict[int, int]:
    return dict(zip(_LENGTHS, counts, strict=True))


_SETS: Final = (
    ("trec_coarse", partial(read_trec, level="coarse"), _shots(400, 800, 1600, 3300, 6600), (_TREC_TRAIN, _TREC_TEST)),
    ("trec_fine", partial(read_trec, level="fine"), _shots(400, 800, 1600, 3200, 6400), (_TREC_TRAIN, _TREC_TEST)),
    ("nlu", read_nlu, _shots(510, 1020, 2040, 4080, 8296), (_NLU_TRAIN, _NLU_TEST)),
    ("banking77", read_banking77, _shots(360, 720, 1450, 2900, 5900), (_BANKING_TRAIN, _BANKING_TEST)),
    ("clinc150", read_clinc150, _shots(440, 880, 1750, 3525, 7050), (_CLINC,)),
)


def _tasks(form: Form) -> tuple[Task, ...]:
    is_newest = form == "2025"
    return tuple(
        Task(
            name if is_newest else f"{name}_{form}",
            "helmet" if is_newest else f"helmet-icl-{form}",
            "ICL" if is_newest else f"ICL {form}",
            "exact_match",
            partial(samples, read=read, shots_at=shots_at, form=form),
            _score,
            samples=QUESTIONS_OF[form],
            max_new_tokens=_BUDGET,
            files=files,
            version=2,
        )
        for name, read, shots_at, files in _SETS
    )


TASKS: Final = _tasks("2025")
TASKS_2024: Final = _tasks("2024")
