"""Probe: what is measured inside a model rather than asked of it, and the registry of probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.task import Request
from nextlong.plain_data import Json
from nextlong.plugins import Plugins

Values = Json


def anything(_: Request) -> None:
    """Refuse no request."""


def any_model(_: HuggingFaceModel, __: Path | None) -> None:
    """Refuse no model."""


@dataclass(frozen=True)
class Probe:
    """A named measurement. `measure` returns the scores, in percent where they are shares, and what stands in the file beside them.

    `lengths` says whether it is measured at each length or once, `optional` what it reads of the user's files where they are there.
    `reads` says whether it needs the user's run. `check` raises EvaluateError, without a model, for a request that `measure` would
    refuse: its length, text or tokenizer; `check_model` for a model, and for a run that does not go with it.
    """

    name: str
    suite: str
    metric: str
    measure: Callable[[HuggingFaceModel, Request, Path | None], Values]
    lengths: Literal["each", "none"]
    samples: int
    version: int = 1
    optional: tuple[str, ...] = ()
    reads: Literal["run", "text"] = "text"
    check: Callable[[Request], None] = anything
    check_model: Callable[[HuggingFaceModel, Path | None], None] = any_model


PROBES: Final = Plugins("probe", "nextlong.evaluate.probes", "PROBE", "nextlong.probes", frozenset())


def all_probes() -> Mapping[str, Probe]:
    """Return every probe by its suite."""
    probes: list[Probe] = [PROBES.load(name) for name in PROBES.names()]
    return {probe.suite: probe for probe in probes}
