"""Exports: every row of every format and split against the sequences that it should hold, made again from their sources.

In:  the export steps that the record names; the rows (`arrangement.py`) that each was written from. Out: one `Outcome` a step.

Exports of the same rows are read side by side, so that what they should hold is made once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.verify.arrangement import blocks_of_rows, check_rows, read_split
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.expected import Expected
from nextlong.verify.export_readers import BROKEN, Reader, Row, reader_of
from nextlong.verify.outcome import Outcome, in_words
from nextlong.verify.step import Step

_VALIDATION = "-validation"


def check_exports(run: Artefacts) -> list[Outcome]:
    """Check which sequences stand in which row, then every exported row."""
    outcomes: dict[str, Outcome] = {}
    walks: dict[tuple[str, str], list[_Walk]] = {}
    for name, step in run.steps.items():
        layout = name.removesuffix(_VALIDATION)
        if not _is_export(run, step, layout):
            continue
        reader = reader_of(layout)
        outcome = outcomes[name] = Outcome(
            f"{name} rows", reader.unit if reader else "rows", note=reader.note if reader else ""
        )
        if step.damage:
            outcome.breach(f"its manifest {step.damage}")
        elif reader is None:
            outcome.skipped = f"the format {layout} brings no reader, or is not installed here: hashes only"
        elif "rows" not in step.manifest["inputs"]:
            outcome.skipped = "written by an earlier nextlong, which did not say in what order; export it again"
        elif run.rows_steps[step.manifest["inputs"]["rows"]].damage:
            outcome.breach(
                f"{step.folder.name} was made from rows {step.manifest['inputs']['rows']}, which are not there"
            )
        else:
            split = "train" if name == layout else _VALIDATION[1:]
            walk = _Walk(step, reader, outcome, _eod(run, step, outcome))
            walks.setdefault((step.manifest["inputs"]["rows"], split), []).append(walk)
    for name in run.setting("export", "formats", ()):
        if name not in outcomes:
            outcomes[name] = Outcome(f"{name} rows", "rows")
            outcomes[name].breach(f"the recipe asks for {name}, but the record names no such export")
    for (rows, split), side_by_side in walks.items():
        _check_side_by_side(run, run.rows_steps[rows], split, side_by_side)
    _check_same_rows(run, outcomes)
    return [*check_rows(run), *outcomes.values()]


def _is_export(run: Artefacts, step: Step, layout: str) -> bool:
    """Say whether a step wrote an export; a manifest that cannot be read would not tell, but its name does."""
    if step.damage:
        return reader_of(layout) is not None or layout in list(run.setting("export", "formats", ()))
    return {"format", "split"} <= set(step.manifest.get("config", {}))


def _eod(run: Artefacts, step: Step, outcome: Outcome) -> int | None:
    """Return the id that should end each document, found by the reference tokenizer."""
    name = step.manifest["config"].get("megatron_eod", step.manifest["config"].get("eod"))
    eod = None if name is None else run.tokenizer.token_to_id(name)
    if name is not None and eod is None:
        outcome.breach(f"{name!r}, which should end each document, is no token of the tokenizer")
    return eod


def _check_same_rows(run: Artefacts, outcomes: dict[str, Outcome]) -> None:
    """Find validation splits that are not those of the train split beside them."""
    for name, outcome in outcomes.items():
        train = run.steps.get(name.removesuffix(_VALIDATION))
        if not name.endswith(_VALIDATION) or train is None or outcome.skipped:
            continue
        if train.manifest["inputs"].get("rows") != run.steps[name].manifest["inputs"].get("rows"):
            outcome.breach(f"not held out of {train.name}, which was exported from other rows")


def _check_side_by_side(run: Artefacts, rows: Step, split: str, walks: Sequence[_Walk]) -> None:
    parts = {part for walk in walks for part in walk.reader.parts}
    try:
        for block in blocks_of_rows(run, read_split(rows, split)):
            expected = Expected(run, [sequence for row in block for sequence in row], parts=parts)
            for sequences in block:
                true = expected.row(sequences)
                for walk in walks:
                    walk.take(true)
    except BROKEN as error:
        for walk in walks:
            walk.outcome.breach(
                f"could not be checked, what its rows refer to is not as it should be: {in_words(error)}"
            )
        return
    for walk in walks:
        walk.close()


@dataclass
class _Walk:
    """The rows of an export, each compared as soon as it is known what it should be."""

    step: Step
    reader: Reader
    outcome: Outcome
    eod: int | None

    def __post_init__(self) -> None:
        self.rows: Iterator[Row] | None = self.reader.rows(self.step)
        self.number = 0

    def take(self, true: Row) -> None:
        """Compare the next row, or of a format of documents the next ones, one a sequence."""
        if self.reader.unit == "rows" or true.input_ids is None:
            self._compare(true)
            return
        for first, last in true.names["indices"]:
            ids = true.input_ids[first:last]
            if self.eod is not None and ids[-1] != self.eod:
                ids = np.append(ids, np.int32(self.eod))
            self._compare(Row(input_ids=ids))

    def close(self) -> None:
        """Look for rows beyond the last."""
        extra = 0
        while self._next() is not None:
            extra += 1
        if extra:
            self.outcome.breach(f"{extra} {self.outcome.unit} more than there should be")

    def _compare(self, true: Row) -> None:
        found = self._next()
        if found is not None:
            self.outcome.checked += 1
            for problem in _problems(found, true):
                self.outcome.breach(f"{self.step.name} row {self.number}: {problem}")
        elif self.rows is not None:
            self.outcome.breach(f"{self.step.name} row {self.number} is missing")
        self.number += 1

    def _next(self) -> Row | None:
        """Return the next row, None if there is none; after a file that cannot be read there is none any more."""
        try:
            return None if self.rows is None else next(self.rows, None)
        except BROKEN as error:
            self.rows = None
            self.outcome.breach(f"{self.step.name} is not as it should be from row {self.number} on: {error}")
            return None


def _problems(found: Row, true: Row) -> Iterator[str]:
    for name in ("input_ids", "attention_mask", "labels"):
        array, right = getattr(found, name), getattr(true, name)
        if array is not None and not np.array_equal(array, right):
            yield _difference(name, array, right)
    for key, value in found.names.items():
        if value != true.names[key]:
            yield f"{key} is {value!r}, should be {true.names[key]!r}"
    if found.text is not None and true.text is not None and found.text != true.text:
        pairs = enumerate(zip(found.text, true.text, strict=False))
        at = next((n for n, (a, b) in pairs if a != b), min(len(found.text), len(true.text)))
        yield f"its text is {found.text[at : at + 20]!r} at character {at}, the documents' {true.text[at : at + 20]!r}"
    for key, spans in (found.spans or {}).items():
        right = (true.spans or {})[key]
        if spans != right and (problem := _span_difference(key, spans, right)):
            yield problem


def _difference(name: str, found: NDArray[Any], true: NDArray[Any]) -> str:
    if len(found) != len(true):
        return f"{len(found):,} {'ids' if name == 'input_ids' else name}, should be {len(true):,}"
    place = int(np.flatnonzero(found != true)[0])
    return f"{name}[{place}] is {found[place]}, should be {true[place]}"


def _span_difference(key: str, found: list[Any], true: list[Any]) -> str:
    if len(found) != len(true):
        return f"{len(found)} spans, should be {len(true)}"
    for span, (value, right) in enumerate(zip(found, true, strict=True)):
        if value != right and not (key == "score" and _is_same_score(value, right)):
            return f"spans[{span}].{key} is {value!r}, should be {right!r}"
    return ""


def _is_same_score(found: float | None, true: float) -> bool:
    """JSON has six digits, and null where a span has no score."""
    if found is None or math.isnan(found) or math.isnan(true):
        return (found is None or math.isnan(found)) and math.isnan(true)
    return abs(found - true) <= 1e-6
