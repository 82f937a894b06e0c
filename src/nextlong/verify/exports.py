"""Exports: every row of every format against the sequences it should be, made again from SEQUENCES, TOKENS and DOCUMENTS.

A row may be several sequences packed: it must be these sequences, in order, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import DOCUMENT, META, NO_CHUNK, ROLES, ROW_MASK, SHARD_BITS
from nextlong.verify import export_readers
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Composed
from nextlong.verify.export_readers import Row, Spans
from nextlong.verify.outcome import Outcome

_READERS: dict[str, Callable[[Artefacts], Iterator[Row]]] = {
    "parquet": lambda run: export_readers.parquet_rows(run.files("parquet", ".parquet")),
    "arrow": lambda run: export_readers.arrow_rows(run.steps["arrow"].folder),
    "mds": lambda run: export_readers.mds_rows(run.steps["mds"].folder),
    "megatron": lambda run: export_readers.megatron_rows(run.files("megatron", ".bin")),
    "jsonl": lambda run: export_readers.jsonl_rows(run.files("jsonl", ".jsonl")),
}


def check_exports(run: Artefacts) -> list[Outcome]:
    """Compare every exported row of every format."""
    formats = list(run.recipe.get("export", {}).get("formats", ()))
    outcomes = {name: Outcome(f"{name} rows", "sequences") for name in formats}
    for name in set(formats) - _READERS.keys():
        outcomes[name].skipped = "verify does not read this format"
    walks = [
        _Walk(name, _READERS[name](run), outcomes[name], eod=_eod(run) if name == "megatron" else None)
        for name in formats
        if name in _READERS
    ]
    for block in run.blocks():
        expected = _Expected(run, block, with_text="jsonl" in formats)
        for sequence in block:
            piece = expected.piece(sequence)
            for walk in walks:
                walk.take(piece)
    for walk in walks:
        walk.close()
    return list(outcomes.values())


def _eod(run: Artefacts) -> int | None:
    """Return the id that the megatron files were given behind each document."""
    eods = (part["counts"].get("eod") for part in run.steps["megatron"].manifest["parts"])
    return next(eods, None)


@dataclass(frozen=True)
class _Piece:
    """What one sequence should be in any format."""

    sequence_id: str
    method: str
    domain: str
    input_ids: NDArray[np.int32]
    spans: Spans
    text: str


@dataclass
class _Walk:
    """A format's rows, compared as soon as the sequences that a row holds are all there."""

    name: str
    rows: Iterator[Row]
    outcome: Outcome
    eod: int | None
    number: int = 0
    row: Row | None = None
    pieces: list[_Piece] = field(default_factory=list)

    def take(self, piece: _Piece) -> None:
        """Put the next sequence to the row that should hold it."""
        self.outcome.checked += 1
        if self.row is None and (row := next(self.rows, None)) is not None:
            self.row, self.number = row, self.number + 1
        if self.row is None:
            self.outcome.breach(f"{self.name} row {self.number} is missing: {piece.sequence_id} stands in none")
            return
        self.pieces.append(piece)
        if len(self.pieces) >= self.row.sequences:
            self._compare(self.row)
            self.row, self.pieces = None, []

    def close(self) -> None:
        """Look for rows, or parts of one, beyond the last sequence."""
        if self.row is not None:
            has = f"{self.row.sequences} sequences, only {len(self.pieces)} of them are there"
            self.outcome.breach(f"{self.name} row {self.number - 1} says that it holds {has}")
        if extra := sum(1 for _ in self.rows):
            self.outcome.breach(f"{extra} rows more than there are sequences")

    def _compare(self, row: Row) -> None:
        for problem in _problems(row, self.pieces, self.eod):
            self.outcome.breach(f"{self.name} row {self.number - 1}: {problem}")


def _problems(row: Row, pieces: list[_Piece], eod: int | None) -> Iterator[str]:
    ids = np.concatenate([piece.input_ids for piece in pieces])
    bounds = [0, *accumulate(len(piece.input_ids) for piece in pieces)]
    if row.input_ids is not None:
        true = np.append(ids, np.int32(eod)) if eod is not None and ids[-1] != eod else ids
        if not np.array_equal(row.input_ids, true):
            yield _difference(row.input_ids, true)
    text = "".join(piece.text for piece in pieces)
    if row.text is not None and row.text != text:
        at = next(
            (n for n, (a, b) in enumerate(zip(row.text, text, strict=False)) if a != b), min(len(row.text), len(text))
        )
        yield f"its text is {row.text[at : at + 20]!r} at character {at}, the documents' {text[at : at + 20]!r}"
    names = {
        "sequence_id": " ".join(piece.sequence_id for piece in pieces),
        "method": "+".join(dict.fromkeys(piece.method for piece in pieces)),
        "domain": "+".join(dict.fromkeys(piece.domain for piece in pieces)),
        "length": len(ids),
        "seq_lengths": [len(piece.input_ids) for piece in pieces],
        "indices": [list(pair) for pair in pairwise(bounds)],
    }
    for key, value in row.names.items():
        if value != names[key]:
            yield f"{key} is {value!r}, should be {names[key]!r}"
    for key, found in ({} if row.spans is None else row.spans).items():
        shifts = bounds[:-1] if key in ("token_start", "token_end") else [None] * len(pieces)
        spans = [
            value if shift is None else value + shift
            for piece, shift in zip(pieces, shifts, strict=True)
            for value in piece.spans[key]
        ]
        if found != spans and (problem := _span_difference(key, found, spans)):
            yield problem


def _difference(found: NDArray[Any], true: NDArray[np.int32]) -> str:
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
        docs = np.concatenate([sequence.doc for sequence in block])
        self._source_ids, self._sources = run.names_of(docs, "source_id"), run.names_of(docs, "source")
        cut = np.concatenate([sequence.chunk[sequence.is_cut] for sequence in block])
        self._with_text = with_text
        self._texts = run.texts_of(every if with_text else cut)
        self._special_texts = {
            role: run.tokenizer.decode(ids, skip_special_tokens=False) for role, ids in run.special_ids.items()
        }
        self._shards = {int(shard): run.token_shard(int(shard)) for shard in np.unique(every[every >= 0] >> SHARD_BITS)}

    def piece(self, sequence: Composed) -> _Piece:
        """Return what a sequence should be, its text only if asked for."""
        return _Piece(
            sequence.id,
            sequence.method,
            self.domain(sequence),
            self.input_ids(sequence),
            self.spans(sequence),
            self.text(sequence) if self._with_text else "",
        )

    def domain(self, sequence: Composed) -> str:
        """Return the source of the meta-document or first document, or of the first chunk if the cut left neither."""
        chunks = np.flatnonzero(sequence.is_chunk)
        leading = np.flatnonzero(np.isin(sequence.role, (META, DOCUMENT)))
        first = leading[0] if len(leading) else chunks[0]
        return self._sources.get(int(sequence.doc[first]), "")

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
            "source_id": [self._source_ids.get(doc, "") for doc in sequence.doc.tolist()],
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
