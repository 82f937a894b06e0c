"""Exports: check which sequences form which row, and compare every exported row.

In:  the SEQUENCE_INDEX and offsets of each split; the export steps of the record, and
     earlier ones of the same sequences; SEQUENCES, TOKENS, CHUNKS and DOCUMENTS.
Out: one outcome per export, and two for the assignment of sequences to rows.

Files are read by their format's own reader (docs/decisions/0019); the expected rows are
composed here, without the export's code. Memory holds about forty bytes per sequence,
and one byte per chunk if shared chunks are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from nextlong.arrays import AnyArray, Bools, Int32s, Ints, UInt32s
from nextlong.errors import PluginError
from nextlong.export.formats.base import UNREADABLE, Format, format_of
from nextlong.plugins import FORMATS
from nextlong.schemas import (
    CONTEXT,
    DOCUMENT,
    EOS,
    NO_CHUNK,
    ROLES,
    ROW_MASK,
    SEQUENCE_INDEX,
    SHARD_BITS,
    pack_ids,
)
from nextlong.verify.outcome import (
    CheckOutcome,
    chunk_name,
    document_name,
    first_difference,
    in_words,
)
from nextlong.verify.run_files import Ids, ResolvedSequence, StepFiles, StoredRun
from nextlong.verify.sequences import Tokenized

_Row = Mapping[str, Any]  # columns by name; `spans` has one list per field

_VALIDATION = "-validation"
# The label of a token that no context predicts, such as the first of a document.
_IGNORED = -100


def check_exports(run: StoredRun) -> list[CheckOutcome]:
    """Check the assignment of sequences to rows, then every exported row.

    Earlier exports of the data set are checked, too.
    """
    outcomes: dict[str, CheckOutcome] = {}
    # By the fingerprint of the rows and the split.
    comparisons: defaultdict[tuple[str, str], list[Comparison]] = defaultdict(list)
    rows = run.rows
    formats = run.setting("export", "formats", ())
    for name, step in _export_steps(run, formats).items():
        outcome = CheckOutcome(f"{name} rows", "rows")
        outcomes[name] = outcome
        # An unreadable manifest has no config; the step has the name of its format.
        config = step.manifest.get("config", {})
        format_name = config.get("format", name.removesuffix(_VALIDATION))
        file_format = open_format(format_name, outcome)
        fingerprint = step.manifest["inputs"].get("rows")
        if step.damage:
            outcome.breach(f"its manifest {step.damage}")
        elif file_format is not None:
            if fingerprint not in rows or rows[fingerprint].damage:
                origin = f"{step.folder.name} was made from rows {fingerprint}"
                outcome.breach(f"{origin}, which are missing")
            else:
                comparison = Comparison(run, step, file_format, outcome)
                comparisons[fingerprint, config["split"]].append(comparison)
        if name in run.steps and not outcome.skipped:
            outcome.breach_each(_held_out_problems(run, name))

    for name in formats:
        if name not in outcomes:
            outcomes[name] = CheckOutcome(f"{name} rows", "rows")
            record = "the record names no such export"
            outcomes[name].breach(f"the recipe asks for {name}, but {record}")
    # Exports of the same rows are read in parallel, so that each expected row is
    # composed once.
    for (fingerprint, split), together in comparisons.items():
        compare(run, rows[fingerprint], split, together)
    return [*_check_rows(run, list(rows.values())), *outcomes.values()]


def _export_steps(run: StoredRun, formats: Iterable[str]) -> dict[str, StepFiles]:
    """Return the exports of the run's sequences by name, earlier ones by folder.

    If a manifest is unreadable, the name of the step shows whether it is an export.
    """
    names: set[str] = set()
    for name in (*FORMATS.names(), *formats):
        names |= {name, f"{name}{_VALIDATION}"}
    exports = {
        name: step
        for name, step in run.steps.items()
        if step.is_export or (step.damage and name in names)
    }
    earlier = {step.folder.name: step for step in run.earlier_exports}
    return exports | earlier


def _held_out_problems(run: StoredRun, name: str) -> Iterator[str]:
    """Yield that a validation export is of other rows than its training export."""
    train_name = name.removesuffix(_VALIDATION)
    if train_name == name or train_name not in run.steps:
        return
    train = run.steps[train_name]
    fingerprint = run.steps[name].manifest["inputs"].get("rows")
    if train.manifest["inputs"].get("rows") != fingerprint:
        yield f"was not held out of {train.name}, which was exported from other rows"


def open_format(name: str, outcome: CheckOutcome) -> Format | None:
    """Return a format with a reader, and set the unit of the outcome.

    Otherwise return None, and mark the outcome as skipped.
    """
    with suppress(KeyError, PluginError):
        file_format = format_of(name)
        if file_format.read is not None:
            outcome.unit = file_format.unit
            return file_format
    reason = "has no reader, or is not installed here: only hashes are checked"
    outcome.skipped = f"the format {name} {reason}"
    return None


class Comparison:
    """Compare the rows of one export with the expected rows, one after the other."""

    def __init__(
        self,
        run: StoredRun,
        step: StepFiles,
        file_format: Format,
        outcome: CheckOutcome,
    ) -> None:
        config = step.manifest["config"]
        self.step = step
        self.file_format = file_format
        self.outcome = outcome
        self.number = 0  # of the next row
        boundaries = config.get("boundaries", "sequence")
        self.layout: tuple[str, int] = (boundaries, config.get("pad_documents_to", 1))
        columns_of = {"spans": {"spans"}, "texts": {"spans", "text"}}
        self.parts = columns_of.get(file_format.wanted, set())
        self._rows: Iterator[_Row] | None = rows_in(step, file_format)
        name = config.get("megatron_eod")
        self._eod = None if name is None else run.tokenizer.token_to_id(name)
        if name is not None and self._eod is None:
            reason = "is not a token of the tokenizer"
            outcome.breach(f"{name!r}, which must end each document, {reason}")

    def take(self, true: _Row) -> None:
        """Compare the next row with the expected one.

        For a format of documents: the next document for each one in the expected row.
        """
        if self.file_format.unit == "rows":
            self._compare(true)
            return
        for first, last in true["indices"]:
            ids = true["input_ids"][first:last]
            # Every document of Megatron-LM must end in this token; the writer appends
            # it to documents without it.
            if self._eod is not None and ids[-1] != self._eod:
                ids = np.append(ids, np.int32(self._eod))
            self._compare({"input_ids": ids})

    def close(self) -> None:
        """Read the rest, where nothing should be left."""
        extra = sum(1 for _ in iter(self._next, None))
        if extra:
            unit = self.outcome.unit
            self.outcome.breach(f"{extra} {unit} more than there should be")

    def _compare(self, true: _Row) -> None:
        row = self._next()
        name = f"{self.step.name} row {self.number}"
        if row is not None:
            self.outcome.checked += 1
            for problem in _problems(row, true):
                self.outcome.breach(f"{name}: {problem}")
        elif self._rows is not None:
            self.outcome.breach(f"{name} is missing")
        self.number += 1

    def _next(self) -> _Row | None:
        if self._rows is None:
            return None
        try:
            return next(self._rows, None)
        except UNREADABLE as error:
            self._rows = None
            name = f"{self.step.name} cannot be read from row {self.number} on"
            self.outcome.breach(f"{name}: {error}")
            return None


def rows_in(step: StepFiles, file_format: Format) -> Iterator[_Row]:
    """Yield the rows of the format's reader.

    Raises ValueError for other columns, and for files that are not in the manifest.
    """
    assert file_format.read is not None, "readable"
    names: list[str] = []
    present: set[str] = set()
    for suffix in file_format.suffixes:
        names += [path.name for path in step.files(suffix)]
        present |= {path.name for path in step.folder.glob(f"*{suffix}")}
    # Data loaders read whatever has the suffix of the format.
    strays = sorted(present - set(names))
    if strays:
        problem = "but readers would load it as part of the data set"
        raise ValueError(f"{strays[0]} is not in the manifest, {problem}")
    # Some keys of `export` add columns.
    columns = format_of(file_format.name, step.manifest["config"]).columns
    for row in file_format.read(step.folder, names):
        if columns and row.keys() != set(columns):
            found = f"its rows have the columns {sorted(row)}"
            raise ValueError(f"{found}, expected {sorted(columns)}")
        yield row


def compare(
    run: StoredRun,
    rows: StepFiles,
    split: str,
    comparisons: Sequence[Comparison],
) -> None:
    """Compose each row of a split once, and compare it with that of every export."""
    parts: set[str] = set()
    for comparison in comparisons:
        parts |= comparison.parts
    layouts = {comparison.layout for comparison in comparisons}
    try:
        for block in run.blocks_of_rows(_read_split(rows, split).rows()):
            sequences = list(chain.from_iterable(block))
            expected = _Expected(run, sequences, parts=parts)
            for row in block:
                true = {layout: expected.row(row, *layout) for layout in layouts}
                for comparison in comparisons:
                    comparison.take(true[comparison.layout])
    # Without the expected rows, no export of them can be compared.
    except UNREADABLE as error:
        reason = "a file that its rows refer to is damaged"
        problem = f"could not be checked because {reason}: {in_words(error)}"
        for comparison in comparisons:
            comparison.outcome.breach(problem)
    else:
        for comparison in comparisons:
            comparison.close()


class _Expected:
    """Compose the expected rows of a block of sequences.

    `parts` are the expensive columns needed: `spans`, `text`.
    """

    def __init__(
        self,
        run: StoredRun,
        block: Sequence[ResolvedSequence],
        *,
        parts: Container[str],
    ) -> None:
        """Look up everything that rows of these sequences need."""
        self._run = run
        self._parts = parts
        chunks = np.concatenate([sequence.chunk for sequence in block])
        documents = np.concatenate([sequence.doc for sequence in block])
        cut = [sequence.chunk[sequence.is_truncated] for sequence in block]
        self._sources = run.names_of(documents, "source")
        nothing = np.empty(0, np.int64)
        span_documents = documents if "spans" in parts else nothing
        self._source_ids = run.names_of(span_documents, "source_id")
        self._metadata = run.names_of(span_documents, "metadata")
        # Spans need the texts of cut chunks to know how many characters these keep.
        if "text" in parts:
            text_chunks = chunks
        elif "spans" in parts:
            text_chunks = np.concatenate(cut)
        else:
            text_chunks = nothing
        self._texts = run.texts_of(text_chunks)
        special = run.special_ids
        begins = [False] * len(special)
        special_texts = run.reference.texts([*special.values()], begins)
        self._special_texts = dict(zip(special, special_texts, strict=True))
        self._ids: dict[int, UInt32s] = {}  # of each chunk
        for shard, rows in run.by_shard(chunks):
            shard_chunks = pack_ids(shard, rows).tolist()
            shard_ids = run.token_ids(shard, rows)
            self._ids.update(zip(shard_chunks, shard_ids, strict=True))

    def row(
        self,
        sequences: Sequence[ResolvedSequence],
        boundaries: str,
        multiple: int,
    ) -> dict[str, Any]:
        """Return the row of these sequences with the columns of all formats.

        `boundaries` says what a document is; documents are padded to a `multiple`.
        """
        pieces = [self._input_ids(sequence) for sequence in sequences]
        firsts = [0, *accumulate(map(len, pieces))]  # tokens before each sequence
        bounds = _document_bounds(sequences, firsts, boundaries)
        # Document i has lengths[i] tokens from starts[i] on, and is padded to room[i].
        lengths = np.diff([*bounds, firsts[-1]])
        room = lengths + -lengths % multiple
        starts = np.cumsum(room) - room
        # (T,) the position of each token of the sequences in the row.
        positions = np.arange(firsts[-1]) + np.repeat(starts - bounds, lengths)
        # Padding is EOS, and no token of it is predicted.
        eos = self._run.special_ids[EOS]
        ids = np.full(room.sum(), eos[0] if eos else 0, np.int32)
        ids[positions] = np.concatenate(pieces)
        labels = np.full(len(ids), _IGNORED, np.int32)
        labels[positions] = ids[positions]
        labels[starts] = _IGNORED

        text = None
        if "text" in self._parts:
            text = "".join(map(self._text, sequences))
        spans = None
        if "spans" in self._parts:
            spans = self._row_spans(sequences, firsts, positions)
        methods = dict.fromkeys(sequence.method for sequence in sequences)
        domains = dict.fromkeys(self._domain(sequence) for sequence in sequences)
        indices = np.stack([starts, starts + lengths], axis=1)
        return {
            "sequence_id": " ".join(sequence.id for sequence in sequences),
            "method": "+".join(methods),
            "domain": "+".join(domains),
            "length": len(ids),
            "seq_lengths": lengths.tolist(),
            "seq_lengths_padded": room.tolist(),
            "indices": indices.tolist(),
            "input_ids": ids,
            "attention_mask": np.ones(len(ids), np.int8),
            "labels": labels,
            "text": text,
            "spans": spans,
        }

    def _domain(self, sequence: ResolvedSequence) -> str:
        """Return the source of the meta-document or first document.

        If neither is left, that of the first chunk.
        """
        chunk_spans = np.flatnonzero(sequence.is_chunk)
        span = [*sequence.key_spans, *chunk_spans][0]
        return self._sources.get(int(sequence.doc[span]), "")

    def _input_ids(self, sequence: ResolvedSequence) -> Int32s:
        special = self._run.special_ids
        columns = (sequence.chunk, sequence.role, sequence.lengths)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        pieces: list[Any] = []
        for chunk, role, length in spans:
            ids = special[role] if chunk == NO_CHUNK else self._ids[chunk]
            pieces.append(ids[:length])
        return np.concatenate(pieces).astype(np.int32)

    def _char_ends(self, sequence: ResolvedSequence) -> list[int]:
        """Return the end of each span, in characters of its document."""
        # A cut chunk ends where its tokens cover no further character.
        ends: list[int] = sequence.char_end.tolist()
        for span in np.flatnonzero(sequence.is_truncated).tolist():
            chunk = int(sequence.chunk[span])
            tokenized = Tokenized(self._run, chunk, self._texts[chunk])
            visible = tokenized.visible(int(sequence.lengths[span]))
            ends[span] = int(sequence.char_start[span]) + len(visible)
        return ends

    def _row_spans(
        self,
        sequences: Sequence[ResolvedSequence],
        firsts: list[int],
        positions: Ints,
    ) -> dict[str, list[Any]]:
        """Return the span fields of a row, sequence after sequence."""
        fields: defaultdict[str, list[Any]] = defaultdict(list)
        for sequence, first in zip(sequences, firsts, strict=False):
            for key, values in self._spans(sequence, positions[first:]).items():
                fields[key] += values
        return dict(fields)

    def _spans(
        self, sequence: ResolvedSequence, positions: Ints
    ) -> dict[str, list[Any]]:
        """Return the span fields of a sequence.

        Its token t is at positions[t] of its row.
        """
        documents = sequence.doc.tolist()
        return {
            "chunk_id": sequence.chunk.tolist(),
            "doc_id": documents,
            "source_id": [self._source_ids.get(doc, "") for doc in documents],
            "metadata": [self._metadata.get(doc) for doc in documents],
            "char_start": sequence.char_start.tolist(),
            "char_end": self._char_ends(sequence),
            "role": [ROLES[role] for role in sequence.role.tolist()],
            "token_start": positions[sequence.start].tolist(),
            "token_end": (positions[sequence.end - 1] + 1).tolist(),
            "score": sequence.score.tolist(),
        }

    def _text(self, sequence: ResolvedSequence) -> str:
        chars = np.array(self._char_ends(sequence)) - sequence.char_start
        columns = (sequence.chunk, sequence.role, chars)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        texts = []
        for chunk, role, size in spans:
            if chunk == NO_CHUNK:
                texts.append(self._special_texts[role])
            else:
                texts.append(self._texts[chunk][:size])
        return "".join(texts)


def _document_bounds(
    sequences: Sequence[ResolvedSequence],
    firsts: list[int],
    boundaries: str,
) -> list[int]:
    """Return the token at which each document of a row begins.

    With boundaries=document, these are the documents within sequences; otherwise each
    sequence counts as one.
    """
    bounds: list[int] = []
    for sequence, first in zip(sequences, firsts, strict=False):
        bounds.append(first)
        if boundaries == "document":
            is_document = np.isin(sequence.role, (CONTEXT, DOCUMENT))
            spans = np.flatnonzero(is_document)
            begins_next = np.diff(sequence.group[spans]) != 0
            later = spans[1:][begins_next]
            bounds += (first + sequence.start[later]).tolist()
    return bounds


def _problems(row: _Row, true: _Row) -> Iterator[str]:
    """Yield how a row differs from the expected one, column by column."""
    for name, value in row.items():
        if name not in true:
            yield f"its reader returns the unexpected column {name!r}"
            continue
        expected = true[name]
        if isinstance(expected, np.ndarray):
            yield from _array_problems(name, value, expected)
        elif name == "spans":
            yield from _span_problems(value, expected)
        elif value == expected:
            continue
        elif name == "text":
            position, found, right = first_difference(value, expected)
            where = f"at character {position}"
            yield f"its text is {found!r} {where}, expected {right!r}"
        else:
            yield f"{name} is {value!r}, expected {expected!r}"


def _array_problems(name: str, value: Any, expected: AnyArray) -> Iterator[str]:
    if len(value) != len(expected):
        unit = "ids" if name == "input_ids" else name
        yield f"{len(value):,} {unit}, expected {len(expected):,}"
    elif not np.array_equal(value, expected):
        index = int(np.flatnonzero(np.asarray(value) != expected)[0])
        yield f"{name}[{index}] is {value[index]}, expected {expected[index]}"


def _span_problems(
    spans: Mapping[str, list[Any]], expected: Mapping[str, list[Any]]
) -> Iterator[str]:
    """Yield the first difference of each field of spans."""
    for key, values in spans.items():
        true_values = expected[key]
        if len(values) != len(true_values):
            yield f"{len(values)} spans, expected {len(true_values)}"
            continue
        if values == true_values:
            continue
        name = {"chunk_id": chunk_name, "doc_id": document_name}.get(key, repr)
        for span, value in enumerate(values):
            true = true_values[span]
            if not _is_same(value, true):
                yield f"spans[{span}].{key} is {name(value)}, expected {name(true)}"
                break


def _is_same(value: Any, true: Any) -> bool:
    """Return whether a span field is as expected.

    JSON stores six digits of a score, and null for NaN.
    """
    if not isinstance(true, float):
        return bool(value == true)
    score = math.nan if value is None else value
    both_missing = math.isnan(score) and math.isnan(true)
    return both_missing or abs(score - true) <= 1e-6


@dataclass(frozen=True)
class _SplitRows:
    """The rows of a split, as an assignment of sequences.

    Row i has the sequences index[offsets[i]:offsets[i + 1]], in this order.
    """

    index: AnyArray
    offsets: Ids

    @property
    def row_tokens(self) -> Ids:
        """The number of tokens of each row, shape (rows,)."""
        tokens_before = np.append(0, np.cumsum(self.index["length"]))
        return np.diff(tokens_before[self.offsets])

    def rows(self) -> Iterator[list[tuple[int, int]]]:
        """Yield (SEQUENCES file, place) of each sequence of a row, row by row."""
        places = self.index[["part", "place"]]
        for start, stop in pairwise(self.offsets.tolist()):
            yield places[start:stop].tolist()


def _read_split(step: StepFiles, split: str) -> _SplitRows:
    """Read one split of a rows step. Raises ValueError for invalid files."""
    (index_path,) = step.files(f".{split}.index.npy")
    (offsets_path,) = step.files(f".{split}.offsets.npy")
    index = np.load(index_path)
    offsets = np.load(offsets_path)
    if index.dtype.names != SEQUENCE_INDEX.names:
        found = f"{index_path.name} has the fields {index.dtype.names}"
        raise ValueError(f"{found}, expected {SEQUENCE_INDEX.names}")
    has_empty_rows = (np.diff(offsets) < 1).any()
    if offsets[0] != 0 or offsets[-1] != len(index) or has_empty_rows:
        sequences = f"{len(index):,} sequences"
        raise ValueError(f"{offsets_path.name} does not divide {sequences} into rows")
    return _SplitRows(index, offsets)


def _check_rows(run: StoredRun, rows: Sequence[StepFiles]) -> list[CheckOutcome]:
    """Check all assignments to rows that exports were written from.

    The second outcome exists only for a split.
    """
    once = CheckOutcome("rows hold each sequence once", "sequences")
    apart = CheckOutcome("train and validation apart", "sequences")
    steps = [step for step in rows if step.damage or not step.is_mix]
    if not steps:
        return []
    truth = _Truth(run)
    for step in steps:
        try:
            if step.damage:
                raise ValueError(f"its manifest {step.damage}")
            splits = {"train": _read_split(step, "train")}
            if step.manifest["config"]["validation"]:
                splits["validation"] = _read_split(step, "validation")
            _check_once(step, splits, truth, once)
            if "validation" in splits:
                _check_apart(
                    run,
                    step,
                    splits=splits,
                    truth=truth,
                    outcome=apart,
                )
        except UNREADABLE as error:
            reason = "a file is missing or damaged"
            problem = f"could not be checked because {reason}: {in_words(error)}"
            once.breach(f"{step.folder.name} {problem}")
    return [once, apart] if apart.checked else [once]


class _Truth:
    """What rows must record of each sequence of the data set, from the corpus.

    `lengths` in tokens, and `keys`, the hashes of their documents; (sequences,) each.
    """

    def __init__(self, run: StoredRun) -> None:
        # Sequences of each SEQUENCES file in the data set.
        self._sequences_per_part = np.array(run.sequences_per_part)
        sequences = run.sequence_count
        self.lengths = np.full(sequences, NO_CHUNK, np.int64)
        self.keys = np.zeros(sequences, np.uint64)
        key_chunks = np.full(sequences, NO_CHUNK, np.int64)
        for sequence in run.bare_sequences():
            self.lengths[sequence.number] = sequence.end[-1]
            chunks = sequence.chunk[sequence.key_spans]
            if len(chunks):
                key_chunks[sequence.number] = chunks[0]
            else:  # no meta-chunk is left after the cut, so the key cannot be checked
                self.keys[sequence.number] = sequence.key
        for shard, _ in run.by_shard(key_chunks):
            in_shard = (key_chunks >= 0) & (key_chunks >> SHARD_BITS == shard)
            rows = key_chunks[in_shard] & ROW_MASK
            doc_rows = run.chunks(shard)["doc_row"][rows]
            path = run.files("ingest", ".hashes.npy")[shard]
            self.keys[in_shard] = np.load(path, mmap_mode="r")[doc_rows]

    def numbers(self, index: AnyArray) -> Ids:
        """Return the sequence of the data set that each index row refers to, (n,).

        -1 if there is none.
        """
        part = index["part"].astype(np.int64)
        place = index["place"].astype(np.int64)
        has_part = (
            (index["run"] == 0) & (part >= 0) & (part < len(self._sequences_per_part))
        )
        is_known = has_part & (place >= 0)
        is_known[is_known] = place[is_known] < self._sequences_per_part[part[is_known]]
        first_of_part = np.cumsum(self._sequences_per_part) - self._sequences_per_part
        known_part = np.where(is_known, part, 0)
        return np.where(is_known, first_of_part[known_part] + place, -1)


def _check_once(
    step: StepFiles,
    splits: dict[str, _SplitRows],
    truth: _Truth,
    outcome: CheckOutcome,
) -> None:
    """Check that the rows of all splits together hold each sequence once."""
    config = step.manifest["config"]
    (part,) = step.manifest["parts"]
    # Number of rows with each sequence, over all splits.
    times = np.zeros(len(truth.lengths), np.int64)
    for name, split in splits.items():
        numbers = truth.numbers(split.index)
        times += np.bincount(numbers[numbers >= 0], minlength=len(times))
        problems = chain(
            _index_problems(split, numbers, truth),
            _row_problems(split, config["pack"], numbers),
            _count_problems(split, part["counts"][name]),
        )
        for problem in problems:
            outcome.breach(f"{step.folder.name} {name}: {problem}")

    outcome.checked += len(times)
    folder = step.folder.name
    for number in np.flatnonzero(times > 1).tolist():
        count = f"{times[number]} times"
        outcome.breach(f"{folder}: sequence {number} is in the rows {count}")
    missing = np.flatnonzero(times == 0)
    left_out = part["counts"]["left_out"]
    if len(missing) != left_out:
        found = f"{len(missing):,} sequences are in no row"
        outcome.breach(f"{folder}: {found}, its manifest records {left_out:,}")
    # Only sequences of train that share chunks with validation may be left out.
    may_leave_out = config.get("shared_chunks") == "leave-out"
    if "validation" not in splits or not may_leave_out:
        for number in missing.tolist():
            outcome.breach(f"{folder}: sequence {number} is in no row")


def _index_problems(split: _SplitRows, numbers: Ids, truth: _Truth) -> Iterator[str]:
    """Yield the rows of an index that are of no sequence, or record another length.

    `numbers`: the sequence that each row of the index refers to, -1 if there is none.
    """
    index = split.index
    for row in np.flatnonzero(numbers < 0).tolist():
        target = f"sequence {index['place'][row]} of part {index['part'][row]}"
        yield f"index[{row}] refers to {target}, which is not in the data set"
    # (known,) what should be recorded for the rows that refer to a sequence.
    known = numbers[numbers >= 0]
    for field, form, true in (
        ("length", ",", truth.lengths[known]),
        ("key", "016x", truth.keys[known]),
    ):
        recorded = index[field][numbers >= 0]
        for row in np.flatnonzero(recorded != true).tolist():
            problem = f"is {recorded[row]:{form}}, expected {true[row]:{form}}"
            yield f"{field} of sequence {known[row]} {problem}"


def _count_problems(
    split: _SplitRows, recorded_counts: Mapping[str, int]
) -> Iterator[str]:
    counted = {
        "rows": len(split.offsets) - 1,
        "sequences": len(split.index),
        "tokens": int(split.row_tokens.sum()),
    }
    recorded = {key: recorded_counts[key] for key in counted}
    if recorded != counted:
        yield f"its manifest records {recorded}, the files have {counted}"


def _row_problems(split: _SplitRows, pack: int | None, numbers: Ids) -> Iterator[str]:
    """Yield rows of too many or too few tokens, and sequences that are out of order."""
    if pack is None:
        sizes = np.diff(split.offsets)
        for row in np.flatnonzero(sizes != 1).tolist():
            yield f"row {row} holds {sizes[row]} sequences, though none are packed"
    else:
        yield from _packing_problems(split.row_tokens, pack)
    if (numbers < 0).any():
        return
    # Sequences ascend within a row, and rows by their first sequences.
    begins_row = np.zeros(len(numbers), np.bool_)
    begins_row[split.offsets[:-1]] = True
    is_descending = (np.diff(numbers) <= 0) & ~begins_row[1:]
    for index in np.flatnonzero(is_descending)[:1].tolist():
        before = numbers[index]
        yield f"sequence {numbers[index + 1]} follows sequence {before} in a row"
    heads = numbers[begins_row]
    for row in np.flatnonzero(np.diff(heads) <= 0)[:1].tolist():
        before = f"the row before with {heads[row]}"
        yield f"row {row + 1} begins with sequence {heads[row + 1]}, {before}"


def _packing_problems(tokens: Ids, pack: int) -> Iterator[str]:
    """Yield rows with more than `pack` tokens, and two rows that fit into one."""
    for row in np.flatnonzero(tokens > pack).tolist():
        yield f"row {row} has {tokens[row]:,} tokens, more than pack={pack:,}"
    # Best fit opens a row only for a sequence that fits into no other row, so no two
    # rows can fit into one.
    shortest = np.argsort(tokens, kind="stable")[:2]
    if len(shortest) == 2 and tokens[shortest].sum() <= pack:
        a, b = sorted(shortest.tolist())
        both = f"{tokens[a]:,} and {tokens[b]:,} tokens"
        yield f"rows {a} and {b} have {both}, which fit into one row of {pack:,}"


def _check_apart(
    run: StoredRun,
    step: StepFiles,
    *,
    splits: dict[str, _SplitRows],
    truth: _Truth,
    outcome: CheckOutcome,
) -> None:
    """Check by content hash that train holds nothing of validation.

    If shared chunks are left out, also by chunk.
    """
    every = np.arange(len(truth.lengths))
    in_train = np.isin(every, truth.numbers(splits["train"].index))
    in_validation = np.isin(every, truth.numbers(splits["validation"].index))
    outcome.checked += len(every)
    # Two sequences may be made of documents with the same content.
    is_shared = in_train & np.isin(truth.keys, truth.keys[in_validation])
    folder = step.folder.name
    for number in np.flatnonzero(is_shared).tolist():
        document = f"document {truth.keys[number]:016x}"
        outcome.breach(
            f"{folder}: sequence {number} of train is made of {document}, "
            "as is one of validation"
        )
    if step.manifest["config"].get("shared_chunks") != "leave-out":
        return
    # By shard, one byte per chunk: whether a sequence of validation has it.
    withheld = run.used_rows(in_validation)
    for sequence in run.bare_sequences():
        if in_validation[sequence.number]:
            continue
        chunk = _first_withheld(run, sequence.chunk, withheld)
        where = f"{folder}: sequence {sequence.number}"
        is_train = in_train[sequence.number]
        if is_train and chunk:
            outcome.breach(f"{where} of train has {chunk}, as is one of validation")
        elif not is_train and not chunk:
            outcome.breach(f"{where} is left out, but shares no chunk with validation")


def _first_withheld(
    run: StoredRun,
    chunks: Ids,
    withheld: list[Bools],
) -> str:
    """Return the name of the first of some chunks that is withheld; "" if none is."""
    for shard, rows in run.by_shard(chunks):
        known = rows[rows < len(withheld[shard])]
        found = known[withheld[shard][known]]
        if len(found):
            return chunk_name(found[0], shard)
    return ""
