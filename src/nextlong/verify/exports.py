"""Exports: every row of every format and split against the sequences that it should hold, made again from their sources.

In:  the export steps that the record names, or named before; the rows (`arrangement.py`) that each was written from.
Out: one `Outcome` a step.

Exports of the same rows are read side by side, so that what they should hold is made once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.verify.arrangement import blocks_of_rows, check_rows, read_split
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.besides import earlier_exports, is_export, rows_of_data_set
from nextlong.verify.expected import Expected
from nextlong.verify.export_readers import BROKEN, Reader, Row, reader_of
from nextlong.verify.marks import chunk_name, document_name
from nextlong.verify.outcome import Outcome, in_words
from nextlong.verify.step import Step

_VALIDATION = "-validation"


def check_exports(run: Artefacts) -> list[Outcome]:
    """Check which sequences stand in which row, then every exported row, of earlier exports of the data set too."""
    outcomes: dict[str, Outcome] = {}
    walks: dict[tuple[str, str], list[Walk]] = {}
    rows = rows_of_data_set(run)
    recorded = {name: step for name, step in run.steps.items() if _is_recorded(run, name, step)}
    earlier = {step.folder.name: step for step in earlier_exports(run)}
    for name, step in (recorded | earlier).items():
        layout = step.manifest.get("config", {}).get("format", name.removesuffix(_VALIDATION))
        reader = reader_of(layout)
        outcome = outcomes[name] = Outcome(f"{name} rows", reader.unit if reader else "rows")
        outcome.note = reader.note if reader else ""
        problem = _problem(step, reader, rows)
        if problem:
            outcome.breach(problem)
        elif reader is None:
            outcome.skipped = f"the format {layout} brings no reader, or is not installed here: hashes only"
        elif "rows" not in step.manifest["inputs"]:
            outcome.skipped = "written by an earlier nextlong, which did not say in what order; export it again"
        else:
            walk = Walk(step, reader, outcome, eod_of(run, step, outcome))
            walks.setdefault((step.manifest["inputs"]["rows"], step.manifest["config"]["split"]), []).append(walk)
    for name in run.setting("export", "formats", ()):
        if name not in outcomes:
            outcomes[name] = Outcome(f"{name} rows", "rows")
            outcomes[name].breach(f"the recipe asks for {name}, but the record names no such export")
    for (fingerprint, split), side_by_side in walks.items():
        check_side_by_side(run, rows[fingerprint], split, side_by_side)
    _check_same_rows(run, outcomes)
    return [*check_rows(run, list(rows.values())), *outcomes.values()]


def _is_recorded(run: Artefacts, name: str, step: Step) -> bool:
    """Say whether a step of the record wrote an export; a manifest that cannot be read would not tell, but its name does."""
    layout = name.removesuffix(_VALIDATION)
    if step.damage:
        return reader_of(layout) is not None or layout in list(run.setting("export", "formats", ()))
    return is_export(step)


def _problem(step: Step, reader: Reader | None, rows: Mapping[str, Step]) -> str:
    """Return why an export cannot be judged, "" if it can, or if that is no breach."""
    if step.damage:
        return f"its manifest {step.damage}"
    made_from = step.manifest["inputs"].get("rows")
    if reader is None or made_from is None:
        return ""
    if made_from not in rows or rows[made_from].damage:
        return f"{step.folder.name} was made from rows {made_from}, which are not there"
    return ""


def eod_of(run: Artefacts, step: Step, outcome: Outcome) -> int | None:
    """Return the id that should end each document, found by the reference tokenizer."""
    name = step.manifest["config"].get("megatron_eod", step.manifest["config"].get("eod"))
    eod = None if name is None else run.tokenizer.token_to_id(name)
    if name is not None and eod is None:
        outcome.breach(f"{name!r}, which should end each document, is not a token of the tokenizer")
    return eod


def _check_same_rows(run: Artefacts, outcomes: dict[str, Outcome]) -> None:
    """Find validation splits that are not those of the train split beside them."""
    for name, outcome in outcomes.items():
        train = run.steps.get(name.removesuffix(_VALIDATION))
        if not name.endswith(_VALIDATION) or train is None or name not in run.steps or outcome.skipped:
            continue
        if train.manifest["inputs"].get("rows") != run.steps[name].manifest["inputs"].get("rows"):
            outcome.breach(f"not held out of {train.name}, which was exported from other rows")


def check_side_by_side(run: Artefacts, rows: Step, split: str, walks: Sequence[Walk]) -> None:
    parts, kinds = {part for walk in walks for part in walk.reader.parts}, {walk.boundaries for walk in walks}
    try:
        for block in blocks_of_rows(run, read_split(rows, split)):
            expected = Expected(run, [sequence for row in block for sequence in row], parts=parts)
            for sequences in block:
                true = {bounded: expected.row(sequences, boundaries=bounded) for bounded in kinds}
                for walk in walks:
                    walk.take(true[walk.boundaries])
    except BROKEN as error:
        for walk in walks:
            walk.outcome.breach(
                f"could not be checked, what its rows refer to is not as it should be: {in_words(error)}"
            )
        return
    for walk in walks:
        walk.close()


@dataclass
class Walk:
    """The rows of an export, each compared as soon as it is known what it should be."""

    step: Step
    reader: Reader
    outcome: Outcome
    eod: int | None

    def __post_init__(self) -> None:
        self.rows: Iterator[Row] | None = self.reader.rows(self.step)
        self.number = 0
        self.boundaries: str = self.step.manifest["config"].get("boundaries", "sequence")

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
        row = self._next()
        if row is not None:
            self.outcome.checked += 1
            for problem in _problems(row, true):
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


def _problems(row: Row, true: Row) -> Iterator[str]:
    for name in ("input_ids", "attention_mask", "labels"):
        array, right = getattr(row, name), getattr(true, name)
        if array is not None and not np.array_equal(array, right):
            yield _difference(name, array, right)
    for key, value in row.names.items():
        if value != true.names[key]:
            yield f"{key} is {value!r}, should be {true.names[key]!r}"
    if row.text is not None and true.text is not None and row.text != true.text:
        pairs = enumerate(zip(row.text, true.text, strict=False))
        at = next((n for n, (a, b) in pairs if a != b), min(len(row.text), len(true.text)))
        yield f"its text is {row.text[at : at + 20]!r} at character {at}, the documents' {true.text[at : at + 20]!r}"
    for key, spans in (row.spans or {}).items():
        right = (true.spans or {})[key]
        if spans != right and (problem := _span_difference(key, spans, right)):
            yield problem


def _difference(name: str, values: NDArray[Any], true: NDArray[Any]) -> str:
    if len(values) != len(true):
        return f"{len(values):,} {'ids' if name == 'input_ids' else name}, should be {len(true):,}"
    place = int(np.flatnonzero(values != true)[0])
    return f"{name}[{place}] is {values[place]}, should be {true[place]}"


def _span_difference(key: str, values: list[Any], true: list[Any]) -> str:
    if len(values) != len(true):
        return f"{len(values)} spans, should be {len(true)}"
    for span, (value, right) in enumerate(zip(values, true, strict=True)):
        if value != right and not (key == "score" and _is_same_score(value, right)):
            said, wanted = (_shown(key, one) for one in (value, right))
            return f"spans[{span}].{key} is {said}, should be {wanted}"
    return ""


def _shown(key: str, value: Any) -> str:
    """Return a field of a span as a person is told of it."""
    if key in ("chunk_id", "doc_id") and isinstance(value, int):
        return chunk_name(value) if key == "chunk_id" else document_name(value)
    return repr(value)


def _is_same_score(score: float | None, true: float) -> bool:
    """JSON has six digits, and null where a span has no score."""
    if score is None or math.isnan(score) or math.isnan(true):
        return (score is None or math.isnan(score)) and math.isnan(true)
    return abs(score - true) <= 1e-6
