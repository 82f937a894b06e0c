"""Probe: what is measured inside a model rather than asked of it, and the registry of probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextlong.evaluate.models.base import Model
from nextlong.evaluate.task import Request
from nextlong.plain_data import Json

Values = Json


def anything(_: Request) -> None:
    """Refuse no request."""


@dataclass(frozen=True)
class Probe:
    """A named measurement. `measure` returns the scores, in percent where they are shares, and what stands in the file beside them.

    `lengths` says whether it is measured at each length or once, `optional` what it reads of the user's files where they are there.
    `check` raises EvaluateError, without a model, for a request that `measure` would refuse: its length, text or tokenizer.
    """

    name: str
    suite: str
    metric: str
    measure: Callable[[Model, Request, Path | None], Values]
    lengths: Literal["each", "none"]
    samples: int
    version: int = 1
    optional: tuple[str, ...] = ()
    check: Callable[[Request], None] = anything


def all_probes() -> Mapping[str, Probe]:
    """Return every probe by its suite."""
    from nextlong.evaluate.probes import attention, copying, dependency, key_values, short

    probes = (attention.PROBE, copying.PROBE, key_values.PROBE, dependency.PROBE, short.PROBE)
    return {probe.suite: probe for probe in probes}
