"""Exports: each Parquet and JSONL row against the sequence it should be, made again from SEQUENCES, TOKENS and DOCUMENTS."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nextlong.schemas import NO_CHUNK, ROLES, ROW_MASK, SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Composed
from nextlong.verify.outcome import Outcome

Rows = Iterator[dict[str, Any]]
Spans = dict[str, list[Any]]

_SPAN_KEYS = ("chunk_id", "doc_id", "source_id", "char_start", "char_end", "role", "token_start", "token_end", "score")
_KNOWN = {"parquet", "jsonl"}


def check_exports(run: Artefacts) -> list[Outcome]:
    """Compare every exported row of every format."""
    formats = list(run.recipe.get("export", {}).get("formats", ()))
    outcomes = {name: Outcome(f"{name} rows", "sequences") for name in formats}
    for name in formats:
        if name not in _KNOWN:
            outcomes[name].skipped = "verify does not read this format"
    readers = {name: _READERS[name](run) for name in formats if name in _KNOWN}
    for block in run.blocks():
        expected = _Expected(run, block, with_text="jsonl" in readers)
        for name, rows in readers.items():
            for sequence in block:
                _check_row(name, next(rows, None), sequence, expected, outcomes[name])
    for name, rows in readers.items():
        extra = sum(1 for _ in rows)
        if extra:
            outcomes[name].breach(f"{extra} rows more than there are sequences")
    return list(outcomes.values())


def _check_row(
    name: str, row: dict[str, Any] | None, sequence: Composed, expected: _Expected, outcome: Outcome
) -> None:
    outcome.checked += 1
    where = f"{name} row {sequence.number}"
    if row is None:
        outcome.breach(f"{where} is missing")
        return
    length = int(sequence.end[-1])
    plain = {"sequence_id": sequence.id, "method": sequence.method, "length": length}
    if name == "parquet":
        plain["seq_lengths"] = [length]
        true = expected.input_ids(sequence)
        if not np.array_equal(true, row["input_ids"]):
            outcome.breach(f"{where}: {_difference(row['input_ids'], true)}")
    elif row["text"] != (text := expected.text(sequence)):
        at = next(
            (n for n, (a, b) in enumerate(zip(row["text"], text, strict=False)) if a != b),
            min(len(row["text"]), len(text)),
        )
        outcome.breach(
            f"{where}: its text is {row['text'][at : at + 20]!r} at character {at}, the documents' {text[at : at + 20]!r}"
        )
    for key, value in plain.items():
        if row[key] != value:
            outcome.breach(f"{where}: {key} is {row[key]!r}, should be {value!r}")
    spans = expected.spans(sequence)
    for key in _SPAN_KEYS:
        if row["spans"][key] != spans[key] and (problem := _span_difference(key, row["spans"][key], spans[key])):
            outcome.breach(f"{where}: {problem}")


def _difference(found: NDArray[np.int32], true: NDArray[np.int32]) -> str:
    if len(found) != len(true):
        return f"{len(found):,} ids, should be {len(true):,}"
    place = int(np.flatnonzero(found != true)[0])
    return f"input_ids[{place}] is {found[place]}, should be {true[place]}"


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


class _Expected:
    """What the rows of a block should hold."""

    def __init__(self, run: Artefacts, block: list[Composed], *, with_text: bool) -> None:
        self._run = run
        every = np.concatenate([sequence.chunk for sequence in block])
        self._sources = run.source_ids_of(np.concatenate([sequence.doc for sequence in block]))
        cut = np.concatenate([sequence.chunk[sequence.is_cut] for sequence in block])
        self._texts = run.texts_of(every if with_text else cut)
        self._special_texts = {
            role: run.tokenizer.decode(ids, skip_special_tokens=False) for role, ids in run.special_ids.items()
        }
        self._shards = {int(shard): run.token_shard(int(shard)) for shard in np.unique(every[every >= 0] >> SHARD_BITS)}

    def input_ids(self, sequence: Composed) -> NDArray[np.int32]:
        """Return the ids of a sequence, shape (T,)."""
        pieces: list[Any] = []
        columns = (column.tolist() for column in (sequence.chunk, sequence.role, sequence.end - sequence.start))
        for chunk, role, length in zip(*columns, strict=True):
            if chunk == NO_CHUNK:
                pieces.append(self._run.special_ids[role][:length])
                continue
            named, offsets, ids = self._shards[chunk >> SHARD_BITS]
            start = int(offsets[np.searchsorted(named, chunk & ROW_MASK)])
            pieces.append(ids[start : start + length])
        return np.concatenate(pieces).astype(np.int32)

    def char_ends(self, sequence: Composed) -> list[int]:
        """Return where in its document each span ends."""
        ends: list[int] = sequence.char_end.tolist()
        for span in np.flatnonzero(sequence.is_cut).tolist():
            text = self._texts[int(sequence.chunk[span])]
            offsets = self._run.tokenizer.encode(text, add_special_tokens=False).offsets
            kept = int(sequence.end[span] - sequence.start[span])
            # A character that goes on behind the cut is not whole.
            covered = min(max(end for _, end in offsets[:kept]), min(start for start, _ in offsets[kept:]))
            ends[span] = int(sequence.char_start[span]) + covered
        return ends

    def spans(self, sequence: Composed) -> Spans:
        """Return the spans as columns with the names of the exports."""
        return {
            "chunk_id": sequence.chunk.tolist(),
            "doc_id": sequence.doc.tolist(),
            "source_id": [self._sources.get(doc, "") for doc in sequence.doc.tolist()],
            "char_start": sequence.char_start.tolist(),
            "char_end": self.char_ends(sequence),
            "role": [ROLES[role] for role in sequence.role.tolist()],
            "token_start": sequence.start.tolist(),
            "token_end": sequence.end.tolist(),
            "score": sequence.score.tolist(),
        }

    def text(self, sequence: Composed) -> str:
        """Return the text of a sequence, cut from the documents."""
        sizes = np.array(self.char_ends(sequence)) - sequence.char_start
        pieces = []
        for chunk, role, size in zip(sequence.chunk.tolist(), sequence.role.tolist(), sizes.tolist(), strict=True):
            pieces.append(self._special_texts[role] if chunk == NO_CHUNK else self._texts[chunk][:size])
        return "".join(pieces)


def _parquet_rows(run: Artefacts) -> Rows:
    for path in run.files("parquet", ".parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=8):
                spans = batch.column("spans")
                for row in range(batch.num_rows):
                    own = spans[row].values
                    yield {
                        **{
                            name: batch.column(name)[row].as_py()
                            for name in ("sequence_id", "method", "length", "seq_lengths")
                        },
                        "input_ids": batch.column("input_ids")[row].values.to_numpy(),
                        "spans": {key: own.field(key).to_pylist() for key in _SPAN_KEYS},
                    }


def _jsonl_rows(run: Artefacts) -> Rows:
    for path in run.files("jsonl", ".jsonl"):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield {**row, "spans": {key: [span[key] for span in row["spans"]] for key in _SPAN_KEYS}}


_READERS = {"parquet": _parquet_rows, "jsonl": _jsonl_rows}
