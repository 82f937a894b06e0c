"""Probe: a measurement inside a model, which only a local model allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.task import Measurement, TaskRequest
from nextlong.text import Json


@dataclass(frozen=True)
class Probe(Measurement):
    """A measurement inside a model.

    measure: returns `scores`, `n`, and whatever else its result file holds
    check_model: raises EvaluateError for a model that cannot be measured, or for a run
        that does not match it
    columns, rows: its table has a row per result and part, and a column per score:
        `columns` maps headings to names of scores, `rows` gives the name and the scores
        of each part
    """

    measure: Callable[[HuggingFaceModel, TaskRequest], Json]
    _: KW_ONLY
    check_model: Callable[[HuggingFaceModel, Path | None], None] = lambda *_: None
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: Callable[[Json], Iterable[tuple[str, Json]]] = lambda values: [
        ("", values["scores"])
    ]


def local_model(model: object, probe: Probe) -> HuggingFaceModel:
    """Return the local model that a probe measures.

    Raises EvaluateError for a model on a server.
    """
    if isinstance(model, HuggingFaceModel):
        return model
    raise no_local_model(probe)


def no_local_model(probe: Probe) -> EvaluateError:
    """Return the error of a probe whose model is not local."""
    return EvaluateError(
        where=probe.name,
        problem="a server gives no access to the inside of its model",
        fix="name the model's folder or hub name, without --url, or leave the probe "
        "out",
    )
