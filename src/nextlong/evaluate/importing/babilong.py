"""BABILong (Kuratov et al. 2024, arXiv 2406.10149): results of its own scripts.

In:  MODEL/qa1_4k_….csv of booydar/babilong's scripts/run_model_on_babilong.py, which
     has the model's answers but no scores.
Out: the accuracy of its babilong/metrics.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nextlong.evaluate.importing.result import (
    ImportedResult,
    ResultFormat,
    values_of_samples,
)
from nextlong.evaluate.registry import scored_tasks
from nextlong.recipe.keys import read_length

_METRIC: Final = "accuracy"
_PLACES: Final = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_GIFTS: Final = ("bill", "fred", "jeff", "mary", "apple", "football", "milk")
# The answers that a task can have, in lower case (TASK_LABELS of metrics.py).
_LABELS: Final = {**dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), _PLACES), "qa5": _GIFTS}


def _recognizes(file: Path, rows: Any) -> bool:
    return file.suffix == ".csv" and bool(rows) and {"target", "output"} <= set(rows[0])


def _read(file: Path, rows: Any) -> Iterator[ImportedResult]:
    name, _, rest = file.stem.partition("_")
    length_text, _, settings = rest.partition("_")
    if name not in _LABELS:
        raise ValueError(f"{name} is not one of {', '.join(_LABELS)}")
    # 0k: the facts alone, without a haystack.
    length = 0 if length_text == "0k" else read_length(length_text)
    if length is None:
        raise ValueError(f"{length_text!r} in its name is not a length")
    samples = []
    for row in rows:
        is_right = _is_right(
            row["output"], row["target"], row["question"], labels=_LABELS[name]
        )
        samples.append({"scores": {_METRIC: float(is_right)}, "details": {}})
    yield ImportedResult(
        # The folders ORGANIZATION/MODEL.
        model="/".join(file.absolute().parts[-3:-1]),
        task=scored_tasks()[f"babilong_{name}"],
        length=length,
        values=values_of_samples(_METRIC, samples),
        evidence={"rows": [dict(row) for row in rows], "settings": settings},
        prompt_format="chat" if "chat_template_yes" in settings else "completion",
    )


def _is_right(
    output: str, target: str, question: str, *, labels: tuple[str, ...]
) -> bool:
    """Return whether the first sentence names the right label, and no other.

    A label that the question itself names does not count: it cannot show that the model
    knows the answer.
    """
    sentence = re.split(r"\.|<context>|<example>", output.lower())[0]
    in_question = question.lower()
    named = {
        label for label in labels if label in sentence and label not in in_question
    }
    return named == {target.lower()}


FORMAT: Final = ResultFormat("BABILong", _recognizes, _read)
