"""Exports: check the assignment of sequences to rows, and compare every exported row with a row that is composed again.

In:  the SEQUENCE_INDEX and offsets of each split; the export steps of the record, and earlier ones of the same sequences;
SEQUENCES, TOKENS, CHUNKS and DOCUMENTS. Out: one outcome per export, and two for the assignment.

Files are read by their format's own reader (docs/decisions/0019); the expected rows are composed here, without the export's
code. Memory holds about forty bytes per sequence, and one byte per chunk if shared chunks are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import PluginError
from nextlong.export.formats.base import UNREADABLE, Format, format_of
from nextlong.plugins import FORMATS
from nextlong.schemas import (
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
_IGNORED = -100  # the label of a token that no context predicts, such as the first token of a document


def check_exports(run: StoredRun) -> list[CheckOutcome]:
    """Check the assignment of sequences to rows, then every exported row, also of earlier exports of the data set."""
    outcomes: dict[str, CheckOutcome] = {}
    comparisons: defaultdict[tuple[str, str], list[Comparison]] = defaultdict(list)
    rows, formats = run.rows, run.setting("export", "formats", ())
    # If a manifest is unreadable, the name of the step shows whether it is an export.
    known = {
        f"{name}{kind}"
        for name in (*FORMATS.names(), *formats)
        for kind in ("", _VALIDATION)
    }
    exports = {
        name: of
        for name, of in run.steps.items()
        if of.is_export or (of.damage and name in known)
    }
    for name, step in (
        exports | {step.folder.name: step for step in run.earlier_exports}
    ).items():
        layout, made_from = (
            name.removesuffix(_VALIDATION),
            step.manifest["inputs"].get("rows"),
        )
        outcome = outcomes[name] = CheckOutcome(f"{name} rows", "rows")
        made = open_format(
            step.manifest.get("config", {}).get("format", layout), outcome
        )
        if step.damage:
            outcome.breach(f"its manifest {step.damage}")
        elif made is not None and (made_from not in rows or rows[made_from].damage):
            outcome.breach(
                f"{step.folder.name} was made from rows {made_from}, which are missing"
            )
        elif made is not None:
            comparisons[made_from, step.manifest["config"]["split"]].append(
                Comparison(run, step, made, outcome)
            )
        train = (
            run.steps.get(layout)
            if layout != name and name in run.steps and not outcome.skipped
            else None
        )
        if train is not None and train.manifest["inputs"].get("rows") != made_from:
            outcome.breach(
                f"was not held out of {train.name}, which was exported from other rows"
            )
    for name in (name for name in formats if name not in outcomes):
        outcomes[name] = CheckOutcome(f"{name} rows", "rows")
        outcomes[name].breach(
            f"the recipe asks for {name}, but the record names no such export"
        )
    # Exports of the same rows are read in parallel, so that each expected row is composed once.
    for (fingerprint, split), together in comparisons.items():
        compare(run, rows[fingerprint], split, together)
    return [*_check_rows(run, list(rows.values())), *outcomes.values()]


def open_format(name: str, outcome: CheckOutcome) -> Format | None:
    """Return a format with a reader, and set the unit of the outcome; mark it as skipped and return None otherwise."""
    with suppress(KeyError, PluginError):
        if (made := format_of(name)).read is not None:
            outcome.unit = made.unit
            return made
    outcome.skipped = f"the format {name} has no reader, or is not installed here: only hashes are checked"
    return None


class Comparison:
    """Compare the rows of one export with the expected rows, one after the other."""

    def __init__(
        self, run: StoredRun, step: StepFiles, made: Format, outcome: CheckOutcome
    ) -> None:
        config = step.manifest["config"]
        self.step, self.made, self.outcome, self.number = step, made, outcome, 0
        self.layout: tuple[str, int] = (
            config.get("boundaries", "sequence"),
            config.get("pad_documents_to", 1),
        )
        self.parts = {"spans": {"spans"}, "texts": {"spans", "text"}}.get(
            made.wanted, set()
        )
        self._rows: Iterator[_Row] | None = rows_in(step, made)
        name = config.get("megatron_eod")
        self._eod = None if name is None else run.tokenizer.token_to_id(name)
        if name is not None and self._eod is None:
            outcome.breach(
                f"{name!r}, which must end each document, is not a token of the tokenizer"
            )

    def take(self, true: _Row) -> None:
        """Compare the next row, or for a format of documents, the next document for each one in the row."""
        if self.made.unit == "rows":
            self._compare(true)
            return
        for first, last in true["indices"]:
            ids = true["input_ids"][first:last]
            # Every document of Megatron-LM must end in this token; the writer appends it to documents without it.
            if self._eod is not None and ids[-1] != self._eod:
                ids = np.append(ids, np.int32(self._eod))
            self._compare({"input_ids": ids})

    def close(self) -> None:
        if extra := sum(1 for _ in iter(self._next, None)):
            self.outcome.breach(
                f"{extra} {self.outcome.unit} more than there should be"
            )

    def _compare(self, true: _Row) -> None:
        if (row := self._next()) is not None:
            problems = (
                f"{self.step.name} row {self.number}: {problem}"
                for problem in _problems(row, true)
            )
            self.outcome.breach_each(problems, checked=1)
        elif self._rows is not None:
            self.outcome.breach(f"{self.step.name} row {self.number} is missing")
        self.number += 1

    def _next(self) -> _Row | None:
        try:
            return None if self._rows is None else next(self._rows, None)
        except UNREADABLE as error:
            self._rows = None
            self.outcome.breach(
                f"{self.step.name} cannot be read from row {self.number} on: {error}"
            )
            return None


def rows_in(step: StepFiles, made: Format) -> Iterator[_Row]:
    """Yield the rows of the format's reader. Raises ValueError for other columns, and for files not in the manifest."""
    assert made.read is not None, "readable"
    names = [path.name for suffix in made.suffixes for path in step.files(suffix)]
    present = {
        path.name for suffix in made.suffixes for path in step.folder.glob(f"*{suffix}")
    }
    if strays := sorted(present - set(names)):
        raise ValueError(
            f"{strays[0]} is not in the manifest, but readers would load it as part of the data set"
        )
    columns = format_of(made.name, step.manifest["config"]).columns
    for row in made.read(step.folder, names):
        if columns and row.keys() != set(columns):
            raise ValueError(
                f"its rows have the columns {sorted(row)}, expected {sorted(columns)}"
            )
        yield row


def compare(
    run: StoredRun, rows: StepFiles, split: str, comparisons: Sequence[Comparison]
) -> None:
    """Compose each row of a split once, and compare it with the next row of every export."""
    parts = frozenset[str]().union(*(comparison.parts for comparison in comparisons))
    layouts = {comparison.layout for comparison in comparisons}
    try:
        for block in run.blocks_of_rows(_read_split(rows, split).rows()):
            expected = _Expected(
                run, [sequence for row in block for sequence in row], parts=parts
            )
            for sequences in block:
                true = {layout: expected.row(sequences, *layout) for layout in layouts}
                for comparison in comparisons:
                    comparison.take(true[comparison.layout])
    except UNREADABLE as error:
        problem = f"could not be checked because a file that its rows refer to is damaged: {in_words(error)}"
        for comparison in comparisons:
            comparison.outcome.breach(problem)
    else:
        for comparison in comparisons:
            comparison.close()


class _Expected:
    """Compose the expected rows of a block of sequences; `parts` are the expensive columns needed: `spans`, `text`."""

    def __init__(
        self,
        run: StoredRun,
        block: Sequence[ResolvedSequence],
        *,
        parts: frozenset[str],
    ) -> None:
        self._run, self._parts = run, parts
        chunks, docs = (
            np.concatenate([getattr(sequence, name) for sequence in block])
            for name in ("chunk", "doc")
        )
        truncated = np.concatenate(
            [sequence.chunk[sequence.is_truncated] for sequence in block]
        )
        self._sources = run.names_of(docs, "source")
        of_spans = docs if "spans" in parts else docs[:0]
        self._source_ids, self._metadata = (
            run.names_of(of_spans, name) for name in ("source_id", "metadata")
        )
        self._texts = run.texts_of(
            chunks
            if "text" in parts
            else truncated
            if "spans" in parts
            else truncated[:0]
        )
        special = run.special_ids
        special_texts = run.reference.texts([*special.values()], [False] * len(special))
        self._special_texts = dict(zip(special, special_texts, strict=True))
        self._ids: dict[int, NDArray[np.uint32]] = {}  # of each chunk
        for shard, rows in run.by_shard(chunks):
            self._ids.update(
                zip(
                    pack_ids(shard, rows).tolist(),
                    run.token_ids(shard, rows),
                    strict=True,
                )
            )

    def row(
        self, sequences: Sequence[ResolvedSequence], boundaries: str, multiple: int
    ) -> dict[str, Any]:
        """Return the row of these sequences with the columns of all formats; documents are padded to a `multiple`."""
        pieces = [self._input_ids(sequence) for sequence in sequences]
        firsts = [0, *accumulate(map(len, pieces))]
        bounds: list[int] = []  # the token at which each document of the row begins
        for sequence, first in zip(sequences, firsts, strict=False):
            bounds.append(first)
            if boundaries == "document":
                documents = np.flatnonzero(sequence.role == DOCUMENT)
                later = documents[1:][np.diff(sequence.group[documents]) != 0]
                bounds += (first + sequence.start[later]).tolist()
        lengths = np.diff([*bounds, firsts[-1]])
        room = lengths + -lengths % multiple
        starts = np.cumsum(room) - room
        # (T,) the position of each token of the sequences in the row.
        places = np.arange(firsts[-1]) + np.repeat(starts - bounds, lengths)
        ids = np.full(room.sum(), (self._run.special_ids[EOS] or [0])[0], np.int32)
        ids[places] = np.concatenate(pieces)
        labels = np.full(len(ids), _IGNORED, np.int32)
        labels[places] = ids[places]
        labels[starts] = _IGNORED
        row = {
            "sequence_id": " ".join(sequence.id for sequence in sequences),
            "method": "+".join(
                dict.fromkeys(sequence.method for sequence in sequences)
            ),
            "domain": "+".join(dict.fromkeys(map(self._domain, sequences))),
            "length": len(ids),
            "seq_lengths": lengths.tolist(),
            "seq_lengths_padded": room.tolist(),
            "indices": np.stack([starts, starts + lengths], axis=1).tolist(),
            "input_ids": ids,
            "attention_mask": np.ones(len(ids), np.int8),
            "labels": labels,
            "text": "".join(map(self._text, sequences))
            if "text" in self._parts
            else None,
            "spans": None,
        }
        if "spans" in self._parts:
            spans = [
                self._spans(sequence, places[first:])
                for sequence, first in zip(sequences, firsts, strict=False)
            ]
            row["spans"] = {
                key: [value for one in spans for value in one[key]] for key in spans[0]
            }
        return row

    def _domain(self, sequence: ResolvedSequence) -> str:
        """Return the source of the meta-document or first document, or of the first chunk if neither is left."""
        first = [*sequence.key_spans, *np.flatnonzero(sequence.is_chunk)][0]
        return self._sources.get(int(sequence.doc[first]), "")

    def _input_ids(self, sequence: ResolvedSequence) -> NDArray[np.int32]:
        columns = (
            column.tolist()
            for column in (sequence.chunk, sequence.role, sequence.lengths)
        )
        special = self._run.special_ids
        pieces: list[Any] = [
            (special[role] if chunk == NO_CHUNK else self._ids[chunk])[:length]
            for chunk, role, length in zip(*columns, strict=True)
        ]
        return np.concatenate(pieces).astype(np.int32)

    def _char_ends(self, sequence: ResolvedSequence) -> list[int]:
        ends: list[int] = sequence.char_end.tolist()
        for span in np.flatnonzero(sequence.is_truncated).tolist():
            chunk = int(sequence.chunk[span])
            tokenized = Tokenized(self._run, chunk, self._texts[chunk])
            ends[span] = int(sequence.char_start[span]) + len(
                tokenized.visible(int(sequence.lengths[span]))
            )
        return ends

    def _spans(
        self, sequence: ResolvedSequence, places: NDArray[np.int64]
    ) -> dict[str, list[Any]]:
        """Return the span fields of a sequence whose token t is at places[t] of its row."""
        docs = sequence.doc.tolist()
        return {
            "chunk_id": sequence.chunk.tolist(),
            "doc_id": docs,
            "source_id": [self._source_ids.get(doc, "") for doc in docs],
            "metadata": [self._metadata.get(doc) for doc in docs],
            "char_start": sequence.char_start.tolist(),
            "char_end": self._char_ends(sequence),
            "role": [ROLES[role] for role in sequence.role.tolist()],
            "token_start": places[sequence.start].tolist(),
            "token_end": (places[sequence.end - 1] + 1).tolist(),
            "score": sequence.score.tolist(),
        }

    def _text(self, sequence: ResolvedSequence) -> str:
        sizes = (np.array(self._char_ends(sequence)) - sequence.char_start).tolist()
        return "".join(
            self._special_texts[role]
            if chunk == NO_CHUNK
            else self._texts[chunk][:size]
            for chunk, role, size in zip(
                sequence.chunk.tolist(), sequence.role.tolist(), sizes, strict=True
            )
        )


def _problems(row: _Row, true: _Row) -> Iterator[str]:
    for name, value in row.items():
        if name not in true:
            yield f"its reader returns the unexpected column {name!r}"
            continue
        expected = true[name]
        if isinstance(expected, np.ndarray):
            if len(value) != len(expected):
                yield f"{len(value):,} {'ids' if name == 'input_ids' else name}, expected {len(expected):,}"
            elif not np.array_equal(value, expected):
                place = int(np.flatnonzero(np.asarray(value) != expected)[0])
                yield f"{name}[{place}] is {value[place]}, expected {expected[place]}"
        elif name == "spans":
            for key, values in value.items():
                if len(values) != len(expected[key]):
                    yield f"{len(values)} spans, expected {len(expected[key])}"
                elif values != expected[key]:
                    named = {"chunk_id": chunk_name, "doc_id": document_name}.get(
                        key, repr
                    )
                    pairs = enumerate(zip(values, expected[key], strict=True))
                    for span, (found, right) in [
                        pair for pair in pairs if not _is_same(*pair[1])
                    ][:1]:
                        yield f"spans[{span}].{key} is {named(found)}, expected {named(right)}"
        elif name == "text" and value != expected:
            place, found, right = first_difference(value, expected)
            yield f"its text is {found!r} at character {place}, expected {right!r}"
        elif value != expected:
            yield f"{name} is {value!r}, expected {expected!r}"


def _is_same(value: Any, true: Any) -> bool:
    """Return whether a span field is as expected; JSON stores six digits of a score, and null for NaN."""
    if not isinstance(true, float):
        return bool(value == true)
    score = math.nan if value is None else value
    return (math.isnan(score) and math.isnan(true)) or abs(score - true) <= 1e-6


@dataclass(frozen=True)
class _SplitRows:
    """Row i of a split consists of the sequences index[offsets[i]:offsets[i + 1]], in this order."""

    index: NDArray[Any]
    offsets: Ids

    @property
    def row_tokens(self) -> Ids:
        """The number of tokens of each row, shape (rows,)."""
        return np.diff(np.append(0, np.cumsum(self.index["length"]))[self.offsets])

    def rows(self) -> Iterator[list[tuple[int, int]]]:
        """Yield (SEQUENCES file, place) of each sequence of a row, row by row."""
        named = self.index[["part", "place"]]
        yield from (
            named[start:stop].tolist()
            for start, stop in pairwise(self.offsets.tolist())
        )


def _read_split(step: StepFiles, split: str) -> _SplitRows:
    """Read one split of a rows step. Raises ValueError for invalid files."""
    (index_path,), (offsets_path,) = (
        step.files(f".{split}.{kind}.npy") for kind in ("index", "offsets")
    )
    index, offsets = np.load(index_path), np.load(offsets_path)
    if index.dtype.names != SEQUENCE_INDEX.names:
        raise ValueError(
            f"{index_path.name} has the fields {index.dtype.names}, expected {SEQUENCE_INDEX.names}"
        )
    if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 1).any():
        raise ValueError(
            f"{offsets_path.name} does not divide {len(index):,} sequences into rows"
        )
    return _SplitRows(index, offsets)


def _check_rows(run: StoredRun, rows: Sequence[StepFiles]) -> list[CheckOutcome]:
    """Check all assignments to rows that exports were written from; the second outcome exists only for a split."""
    once = CheckOutcome("rows hold each sequence once", "sequences")
    apart = CheckOutcome("train and validation apart", "sequences")
    steps = [
        step for step in rows if step.damage or not step.manifest["config"]["others"]
    ]
    if not steps:
        return []
    truth = _Truth(run)
    for step in steps:
        try:
            if step.damage:
                raise ValueError(f"its manifest {step.damage}")
            names = (
                ("train", "validation")
                if step.manifest["config"]["validation"]
                else ("train",)
            )
            splits = {name: _read_split(step, name) for name in names}
            _check_once(step, splits, truth, once)
            if "validation" in splits:
                _check_apart(run, step, splits, truth, apart)
        except UNREADABLE as error:
            problem = f"could not be checked because a file is missing or damaged: {in_words(error)}"
            once.breach(f"{step.folder.name} {problem}")
    return [once, apart] if apart.checked else [once]


class _Truth:
    """The length of each sequence of the data set, and the hash of its document, from the corpus: (sequences,) each."""

    def __init__(self, run: StoredRun) -> None:
        self._takes = np.array(
            run.takes
        )  # sequences of each SEQUENCES file in the data set
        self.lengths, leaders = (
            np.full(sum(run.takes), NO_CHUNK, np.int64) for _ in range(2)
        )
        self.keys = np.zeros(len(leaders), np.uint64)
        for sequence in run.bare_sequences():
            self.lengths[sequence.number] = sequence.end[-1]
            if len(leading := sequence.chunk[sequence.key_spans]):
                leaders[sequence.number] = leading[0]
            else:  # no meta-chunk is left after the cut, so the key cannot be checked
                self.keys[sequence.number] = sequence.key
        for shard, _ in run.by_shard(leaders):
            of_shard = np.flatnonzero((leaders >= 0) & (leaders >> SHARD_BITS == shard))
            docs = run.chunks(shard)["doc_row"][leaders[of_shard] & ROW_MASK]
            self.keys[of_shard] = np.load(
                run.files("ingest", ".hashes.npy")[shard], mmap_mode="r"
            )[docs]

    def numbers(self, index: NDArray[Any]) -> Ids:
        """Return the sequence of the data set that each index row refers to, -1 if there is none, shape (n,)."""
        part, place = index["part"].astype(np.int64), index["place"].astype(np.int64)
        known = (
            (index["run"] == 0) & (part >= 0) & (part < len(self._takes)) & (place >= 0)
        )
        known[known] = place[known] < self._takes[part[known]]
        return np.where(
            known,
            (np.cumsum(self._takes) - self._takes)[np.where(known, part, 0)] + place,
            -1,
        )


def _check_once(
    step: StepFiles, splits: dict[str, _SplitRows], truth: _Truth, outcome: CheckOutcome
) -> None:
    config, (part,) = step.manifest["config"], step.manifest["parts"]
    times = np.zeros(
        len(truth.lengths), np.int64
    )  # number of rows with each sequence, over all splits
    for name, split in splits.items():
        where, numbers = f"{step.folder.name} {name}", truth.numbers(split.index)
        for at in np.flatnonzero(numbers < 0).tolist():
            target = (
                f"sequence {split.index['place'][at]} of part {split.index['part'][at]}"
            )
            outcome.breach(
                f"{where}: index[{at}] refers to {target}, which is not in the data set"
            )
        known = numbers[numbers >= 0]
        times += np.bincount(known, minlength=len(times))
        for field, form, true in (
            ("length", ",", truth.lengths[known]),
            ("key", "016x", truth.keys[known]),
        ):
            exported = split.index[field][numbers >= 0]
            for at in np.flatnonzero(exported != true).tolist():
                problem = f"is {exported[at]:{form}}, expected {true[at]:{form}}"
                outcome.breach(f"{where}: {field} of sequence {known[at]} {problem}")
        outcome.breach_each(
            f"{where}: {problem}"
            for problem in _row_problems(split, config["pack"], numbers)
        )
        recorded = {
            key: part["counts"][name][key] for key in ("rows", "sequences", "tokens")
        }
        counted = {
            "rows": len(split.offsets) - 1,
            "sequences": len(split.index),
            "tokens": int(split.row_tokens.sum()),
        }
        if recorded != counted:
            outcome.breach(
                f"{where}: its manifest records {recorded}, the files have {counted}"
            )
    outcome.checked += len(times)
    for number in np.flatnonzero(times > 1).tolist():
        outcome.breach(
            f"{step.folder.name}: sequence {number} is in the rows {times[number]} times"
        )
    missing, left_out = np.flatnonzero(times == 0), part["counts"]["left_out"]
    if len(missing) != left_out:
        counted_missing = f"{len(missing):,} sequences are in no row"
        outcome.breach(
            f"{step.folder.name}: {counted_missing}, its manifest records {left_out:,}"
        )
    if not ("validation" in splits and config.get("shared_chunks") == "leave-out"):
        outcome.breach_each(
            f"{step.folder.name}: sequence {number} is in no row"
            for number in missing.tolist()
        )


def _row_problems(split: _SplitRows, pack: int | None, numbers: Ids) -> Iterator[str]:
    """Yield rows with too many tokens, pairs of rows that would fit into one, and rows that are not in order."""
    tokens, sizes = split.row_tokens, np.diff(split.offsets)
    if pack is None:
        for row in np.flatnonzero(sizes != 1).tolist():
            yield f"row {row} holds {sizes[row]} sequences, though none are packed"
    else:
        for row in np.flatnonzero(tokens > pack).tolist():
            yield f"row {row} has {tokens[row]:,} tokens, more than pack={pack:,}"
        # Best fit opens a row only for a sequence that fits into no other row, so no two rows can fit into one.
        shortest = np.argsort(tokens, kind="stable")[:2]
        if len(shortest) == 2 and tokens[shortest].sum() <= pack:
            a, b = sorted(shortest.tolist())
            yield f"rows {a} and {b} have {tokens[a]:,} and {tokens[b]:,} tokens, which fit into one row of {pack:,}"
    if (numbers < 0).any():
        return
    starts = np.zeros(
        len(numbers), np.bool_
    )  # whether a sequence is the first of its row
    starts[split.offsets[:-1]] = True
    heads = numbers[starts]
    for at in np.flatnonzero((np.diff(numbers) <= 0) & ~starts[1:])[:1].tolist():
        yield f"sequence {numbers[at + 1]} follows sequence {numbers[at]} in a row"
    for row in np.flatnonzero(np.diff(heads) <= 0)[:1].tolist():
        yield f"row {row + 1} begins with sequence {heads[row + 1]}, the row before with {heads[row]}"


def _check_apart(
    run: StoredRun,
    step: StepFiles,
    splits: dict[str, _SplitRows],
    truth: _Truth,
    outcome: CheckOutcome,
) -> None:
    """Check by content hash, and by chunk if shared chunks are left out, that train holds nothing of validation."""
    every = np.arange(len(truth.lengths))
    train, validation = (
        np.isin(every, truth.numbers(splits[name].index))
        for name in ("train", "validation")
    )
    outcome.checked += len(train)
    for number in np.flatnonzero(
        train & np.isin(truth.keys, truth.keys[validation])
    ).tolist():
        document = f"document {truth.keys[number]:016x}"
        outcome.breach(
            f"{step.folder.name}: sequence {number} of train is made of {document}, as is one of validation"
        )
    if step.manifest["config"].get("shared_chunks") != "leave-out":
        return
    # One byte per chunk: whether a sequence of validation has it.
    withheld = run.used_rows(validation)
    for sequence in run.bare_sequences():
        if validation[sequence.number]:
            continue
        known = (
            (shard, rows[rows < len(withheld[shard])])
            for shard, rows in run.by_shard(sequence.chunk)
        )
        hits = (
            chunk_name(row, shard)
            for shard, rows in known
            for row in rows[withheld[shard][rows]].tolist()
        )
        chunk, where = next(hits, ""), f"{step.folder.name}: sequence {sequence.number}"
        if train[sequence.number] and chunk:
            outcome.breach(f"{where} of train has {chunk}, as is one of validation")
        elif not train[sequence.number] and not chunk:
            outcome.breach(f"{where} is left out, but shares no chunk with validation")
