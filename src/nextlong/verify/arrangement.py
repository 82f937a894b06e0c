"""Arrangement: check that the rows of an export hold each sequence of the data set once, and that its splits share nothing.

In:  the SEQUENCE_INDEX and offsets of each split, as `arrange` left them; SEQUENCES, CHUNKS and content hashes. Out: what
stands in which row, for the checks of the exports, and two `Outcome`s.

Memory holds some forty bytes a sequence, and where shared chunks are left out one byte a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.export.formats.base import UNREADABLE
from nextlong.schemas import NO_CHUNK, ROW_MASK, SHARD_BITS
from nextlong.verify.outcome import CheckOutcome, chunk_name, in_words
from nextlong.verify.run_files import Ids, StepFiles, StoredRun

_FIELDS = ("run", "part", "place", "length", "key")


@dataclass(frozen=True)
class _SplitRows:
    """Row i of a split is the sequences index[offsets[i]:offsets[i + 1]], in this order."""

    index: NDArray[Any]
    offsets: Ids

    @property
    def row_tokens(self) -> Ids:
        """How many tokens each row has, shape (rows,)."""
        return np.diff(np.append(0, np.cumsum(self.index["length"]))[self.offsets])

    def rows(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the SEQUENCES file and the place there of each sequence of a row, row by row."""
        named = self.index[["part", "place"]]
        yield from (named[start:stop].tolist() for start, stop in pairwise(self.offsets.tolist()))


def read_split(step: StepFiles, split: str) -> _SplitRows:
    """Return one split of a rows artefact. Raises ValueError for what is none."""
    (index_path,), (offsets_path,) = (step.files(f".{split}.{kind}.npy") for kind in ("index", "offsets"))
    index, offsets = np.load(index_path), np.load(offsets_path)
    if index.dtype.names != _FIELDS:
        raise ValueError(f"{index_path.name} has the fields {index.dtype.names}, should have {_FIELDS}")
    if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 1).any():
        raise ValueError(f"{offsets_path.name} does not divide {len(index):,} sequences into rows")
    return _SplitRows(index, offsets)


def check_rows(run: StoredRun, rows: Sequence[StepFiles]) -> list[CheckOutcome]:
    """Check every arrangement that an export was written from: nothing where there is none, apart only if there is a split."""
    once = CheckOutcome("rows hold each sequence once", "sequences")
    apart = CheckOutcome("train and validation apart", "sequences")
    steps = [step for step in rows if step.damage or not step.manifest["config"]["others"]]
    if not steps:
        return []
    truth = _Truth(run)
    for step in steps:
        try:
            if step.damage:
                raise ValueError(f"its manifest {step.damage}")
            names = ("train", "validation") if step.manifest["config"]["validation"] else ("train",)
            splits = {name: read_split(step, name) for name in names}
            _check_once(step, splits, truth, once)
            if "validation" in splits:
                _check_apart(run, step, splits, truth, apart)
        except UNREADABLE as error:
            once.breach(f"{step.folder.name} could not be checked, a file is missing or damaged: {in_words(error)}")
    return [once, apart] if apart.checked else [once]


class _Truth:
    """What the corpus says of each sequence of the data set: its length, and the hash of its document, (sequences,) each."""

    def __init__(self, run: StoredRun) -> None:
        self._takes = np.array(run.takes)  # sequences of each SEQUENCES file that belong to the data set
        self.lengths, leaders = (np.full(sum(run.takes), NO_CHUNK, np.int64) for _ in range(2))
        self.keys = np.zeros(len(leaders), np.uint64)
        for sequence in run.bare_sequences():
            self.lengths[sequence.number] = sequence.end[-1]
            if len(leading := sequence.chunk[sequence.key_spans]):
                leaders[sequence.number] = leading[0]
            else:  # the cut left no meta-chunk; that the key is a document's cannot be seen any more
                self.keys[sequence.number] = sequence.key
        for shard, _ in run.by_shard(leaders):
            of_shard = np.flatnonzero((leaders >= 0) & (leaders >> SHARD_BITS == shard))
            docs = run.chunks(shard)["doc_row"][leaders[of_shard] & ROW_MASK]
            self.keys[of_shard] = np.load(run.files("ingest", ".hashes.npy")[shard], mmap_mode="r")[docs]

    def numbers(self, index: NDArray[Any]) -> Ids:
        """Return which sequence of the data set each row of an index names, -1 where there is none, shape (n,)."""
        part, place = index["part"].astype(np.int64), index["place"].astype(np.int64)
        known = (index["run"] == 0) & (part >= 0) & (part < len(self._takes)) & (place >= 0)
        known[known] = place[known] < self._takes[part[known]]
        return np.where(known, (np.cumsum(self._takes) - self._takes)[np.where(known, part, 0)] + place, -1)


def _check_once(step: StepFiles, splits: dict[str, _SplitRows], truth: _Truth, outcome: CheckOutcome) -> None:
    config, (part,) = step.manifest["config"], step.manifest["parts"]
    times = np.zeros(len(truth.lengths), np.int64)  # how often each sequence is in a row, over all splits
    for name, split in splits.items():
        where, numbers = f"{step.folder.name} {name}", truth.numbers(split.index)
        for at in np.flatnonzero(numbers < 0).tolist():
            place, file = split.index["place"][at], split.index["part"][at]
            outcome.breach(f"{where}: index[{at}] names sequence {place} of part {file}, which is not of the data set")
        known = numbers[numbers >= 0]
        times += np.bincount(known, minlength=len(times))
        for field, form, true in (("length", ",", truth.lengths[known]), ("key", "016x", truth.keys[known])):
            exported = split.index[field][numbers >= 0]
            for at in np.flatnonzero(exported != true).tolist():
                said = f"{exported[at]:{form}}, should be {true[at]:{form}}"
                outcome.breach(f"{where}: {field} of sequence {known[at]} is {said}")
        outcome.breach_each(f"{where}: {problem}" for problem in _row_problems(split, config["pack"], numbers))
        recorded = {key: part["counts"][name][key] for key in ("rows", "sequences", "tokens")}
        counted = {"rows": len(split.offsets) - 1, "sequences": len(split.index), "tokens": int(split.row_tokens.sum())}
        if recorded != counted:
            outcome.breach(f"{where}: its manifest records {recorded}, the files have {counted}")
    outcome.checked += len(times)
    for number in np.flatnonzero(times > 1).tolist():
        outcome.breach(f"{step.folder.name}: sequence {number} is in the rows {times[number]} times")
    missing, left_out = np.flatnonzero(times == 0), part["counts"]["left_out"]
    if len(missing) != left_out:
        outcome.breach(f"{step.folder.name}: {len(missing):,} sequences are in no row, its manifest says {left_out:,}")
    if not ("validation" in splits and config.get("shared_chunks") == "leave-out"):
        outcome.breach_each(f"{step.folder.name}: sequence {number} is in no row" for number in missing.tolist())


def _row_problems(split: _SplitRows, pack: int | None, numbers: Ids) -> Iterator[str]:
    """Say which rows hold too much, or so little that two would make one, and where they are not in the order of `numbers`."""
    tokens, sizes = split.row_tokens, np.diff(split.offsets)
    if pack is None:
        for row in np.flatnonzero(sizes != 1).tolist():
            yield f"row {row} holds {sizes[row]} sequences, though none are packed"
    else:
        for row in np.flatnonzero(tokens > pack).tolist():
            yield f"row {row} has {tokens[row]:,} tokens, more than pack={pack:,}"
        # Best fit opens a row only for a sequence that fits into no other, so no two rows ever fit into one.
        shortest = np.argsort(tokens, kind="stable")[:2]
        if len(shortest) == 2 and tokens[shortest].sum() <= pack:
            a, b = sorted(shortest.tolist())
            yield f"rows {a} and {b} have {tokens[a]:,} and {tokens[b]:,} tokens, which fit into one of {pack:,}"
    if (numbers < 0).any():
        return
    starts = np.zeros(len(numbers), np.bool_)  # whether a sequence is the first of its row
    starts[split.offsets[:-1]] = True
    heads = numbers[starts]
    for at in np.flatnonzero((np.diff(numbers) <= 0) & ~starts[1:])[:1].tolist():
        yield f"sequence {numbers[at + 1]} follows sequence {numbers[at]} in a row"
    for row in np.flatnonzero(np.diff(heads) <= 0)[:1].tolist():
        yield f"row {row + 1} begins with sequence {heads[row + 1]}, the row before with {heads[row]}"


def _check_apart(
    run: StoredRun, step: StepFiles, splits: dict[str, _SplitRows], truth: _Truth, outcome: CheckOutcome
) -> None:
    """Check by content hash, and where shared chunks are left out by every chunk, that nothing of validation is in train."""
    every = np.arange(len(truth.lengths))
    train, validation = (np.isin(every, truth.numbers(splits[name].index)) for name in ("train", "validation"))
    outcome.checked += len(train)
    for number in np.flatnonzero(train & np.isin(truth.keys, truth.keys[validation])).tolist():
        document = f"document {truth.keys[number]:016x}"
        outcome.breach(f"{step.folder.name}: sequence {number} of train is made of {document}, as is one of validation")
    if step.manifest["config"].get("shared_chunks") != "leave-out":
        return
    # One byte a chunk: whether a sequence of validation holds it.
    withheld = run.used_rows(validation)
    for sequence in run.bare_sequences():
        if validation[sequence.number]:
            continue
        known = ((shard, rows[rows < len(withheld[shard])]) for shard, rows in run.by_shard(sequence.chunk))
        hits = (chunk_name(row, shard) for shard, rows in known for row in rows[withheld[shard][rows]].tolist())
        chunk, where = next(hits, ""), f"{step.folder.name}: sequence {sequence.number}"
        if train[sequence.number] and chunk:
            outcome.breach(f"{where} of train has {chunk}, as is one of validation")
        elif not train[sequence.number] and not chunk:
            outcome.breach(f"{where} is left out, but shares no chunk with validation")
