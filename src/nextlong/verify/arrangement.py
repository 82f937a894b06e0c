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
from nextlong.schemas import DOCUMENT, META, NO_CHUNK, ROW_MASK, SHARD_BITS
from nextlong.verify.outcome import CheckOutcome, chunk_name, in_words
from nextlong.verify.run_files import Ids, ResolvedSequence, StepFiles, StoredRun

_FIELDS = ("run", "part", "place", "length", "key")
_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True)
class _SplitRows:
    """Row i of a split is the sequences index[offsets[i]:offsets[i + 1]], in this order."""

    index: NDArray[Any]
    offsets: Ids

    @property
    def row_tokens(self) -> Ids:
        """How many tokens each row has, shape (rows,)."""
        ends = np.concatenate([[0], np.cumsum(self.index["length"])])
        tokens: Ids = np.diff(ends[self.offsets])
        return tokens


def read_split(step: StepFiles, split: str) -> _SplitRows:
    """Return one split of a rows artefact. Raises ValueError for what is none."""
    (index_path,), (offsets_path,) = (step.files(f".{split}.{kind}.npy") for kind in ("index", "offsets"))
    index, offsets = np.load(index_path), np.load(offsets_path)
    if index.dtype.names != _FIELDS:
        raise ValueError(f"{index_path.name} has the fields {index.dtype.names}, should have {_FIELDS}")
    if offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 1).any():
        raise ValueError(f"{offsets_path.name} does not divide {len(index):,} sequences into rows")
    return _SplitRows(index, offsets)


def blocks_of_rows(run: StoredRun, split: _SplitRows) -> Iterator[list[list[ResolvedSequence]]]:
    """Yield the sequences of each row, chunks looked up, in blocks of whole rows of about four million tokens."""
    ends = np.cumsum(split.row_tokens)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _BLOCK_TOKENS, side="right")))
        bounds = split.offsets[first : last + 1]
        rows_index = split.index[bounds[0] : bounds[-1]]
        sequences = run.sequences_at(rows_index["part"], rows_index["place"])
        at = (bounds - bounds[0]).tolist()
        yield [sequences[start:stop] for start, stop in pairwise(at)]
        first = last


def check_rows(run: StoredRun, rows: Sequence[StepFiles]) -> list[CheckOutcome]:
    """Check every arrangement that an export was written from: nothing where there is none, apart only if there is a split."""
    once = CheckOutcome("rows hold each sequence once", "sequences")
    apart = CheckOutcome("train and validation apart", "sequences")
    steps = [step for step in rows if step.damage or not step.manifest["config"]["others"]]
    if not steps:
        return []
    truth = _Truth.of(run)
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


@dataclass(frozen=True)
class _Truth:
    """What the corpus says of each sequence of the data set, shape (sequences,) each."""

    firsts: Ids  # number of the first sequence of each SEQUENCES file, and of all, shape (parts + 1,)
    lengths: Ids
    keys: NDArray[np.uint64]

    @classmethod
    def of(cls, run: StoredRun) -> _Truth:
        firsts = np.cumsum([0, *run.takes])
        lengths, keys = np.zeros(firsts[-1], np.int64), np.zeros(firsts[-1], np.uint64)
        leaders = np.full(firsts[-1], NO_CHUNK, np.int64)
        for sequence in run.bare_sequences():
            lengths[sequence.number] = sequence.end[-1]
            leading = sequence.chunk[np.isin(sequence.role, (META, DOCUMENT))]
            if len(leading):
                leaders[sequence.number] = leading[0]
            else:  # the cut left no meta-chunk; that the key is a document's cannot be seen any more
                keys[sequence.number] = sequence.key
        for shard, _ in run.by_shard(leaders):
            of_shard = np.flatnonzero((leaders >= 0) & (leaders >> SHARD_BITS == shard))
            docs = run.chunks(shard)["doc_row"][leaders[of_shard] & ROW_MASK]
            keys[of_shard] = np.load(run.files("ingest", ".hashes.npy")[shard], mmap_mode="r")[docs]
        return cls(firsts, lengths, keys)

    def is_known(self, index: NDArray[Any]) -> NDArray[np.bool_]:
        """Say which rows of an index name a sequence of the data set."""
        parts = len(self.firsts) - 1
        known: NDArray[np.bool_] = (
            (index["run"] == 0) & (index["part"] >= 0) & (index["part"] < parts) & (index["place"] >= 0)
        )
        takes = np.diff(self.firsts)  # (parts,) sequences of each SEQUENCES file that belong to the data set
        known[known] = index["place"][known] < takes[index["part"][known]]
        return known

    def numbers(self, index: NDArray[Any]) -> Ids:
        """Return which sequence of the data set each row of an index names, all known."""
        numbers: Ids = self.firsts[index["part"]] + index["place"]
        return numbers


def _check_once(step: StepFiles, splits: dict[str, _SplitRows], truth: _Truth, outcome: CheckOutcome) -> None:
    config, (part,) = step.manifest["config"], step.manifest["parts"]
    times = np.zeros(len(truth.lengths), np.int64)
    for name, split in splits.items():
        where = f"{step.folder.name} {name}"
        known = truth.is_known(split.index)
        for at in np.flatnonzero(~known).tolist():
            place, file = split.index["place"][at], split.index["part"][at]
            outcome.breach(f"{where}: index[{at}] names sequence {place} of part {file}, which is not of the data set")
        numbers = truth.numbers(split.index[known])
        # How often each sequence is in a row, shape (sequences,), over all splits.
        times += np.bincount(numbers, minlength=len(times))
        for field, true in (("length", truth.lengths[numbers]), ("key", truth.keys[numbers])):
            shown = "016x" if field == "key" else ","
            exported = split.index[field][known]
            for at in np.flatnonzero(exported != true).tolist():
                outcome.breach(
                    f"{where}: {field} of sequence {numbers[at]} is {exported[at]:{shown}}, should be {true[at]:{shown}}"
                )
        for problem in _row_problems(split, config["pack"]):
            outcome.breach(f"{where}: {problem}")
        if known.all() and (problem := _disorder(split, numbers)):
            outcome.breach(f"{where}: {problem}")
        recorded = {key: part["counts"][name][key] for key in ("rows", "sequences", "tokens")}
        counted = {"rows": len(split.offsets) - 1, "sequences": len(split.index), "tokens": int(split.row_tokens.sum())}
        if recorded != counted:
            outcome.breach(f"{where}: its manifest records {recorded}, the files have {counted}")
    outcome.checked += len(times)
    for number in np.flatnonzero(times > 1).tolist():
        outcome.breach(f"{step.folder.name}: sequence {number} is in the rows {times[number]} times")
    missing = np.flatnonzero(times == 0)
    if len(missing) != part["counts"]["left_out"]:
        recorded = part["counts"]["left_out"]
        outcome.breach(f"{step.folder.name}: {len(missing):,} sequences are in no row, its manifest says {recorded:,}")
    if not ("validation" in splits and config.get("shared_chunks") == "leave-out"):
        for number in missing.tolist():
            outcome.breach(f"{step.folder.name}: sequence {number} is in no row")


def _row_problems(split: _SplitRows, pack: int | None) -> Iterator[str]:
    """Say which rows hold too many tokens or sequences, or so few that two would make one."""
    if pack is None:
        for row in np.flatnonzero(np.diff(split.offsets) != 1).tolist():
            yield f"row {row} holds {split.offsets[row + 1] - split.offsets[row]} sequences, though none are packed"
        return
    tokens = split.row_tokens
    for row in np.flatnonzero(tokens > pack).tolist():
        yield f"row {row} has {tokens[row]:,} tokens, more than pack={pack:,}"
    # Best fit opens a row only for a sequence that fits into no other, so no two rows ever fit into one.
    shortest = np.argsort(tokens, kind="stable")[:2]
    if len(shortest) == 2 and tokens[shortest].sum() <= pack:
        a, b = sorted(shortest.tolist())
        yield f"rows {a} and {b} have {tokens[a]:,} and {tokens[b]:,} tokens, which fit into one of {pack:,}"


def _disorder(split: _SplitRows, numbers: Ids) -> str:
    """Say where rows, or sequences within one, do not stand in the order in which sequences were drawn; else ""."""
    starts = np.zeros(len(numbers), np.bool_)  # whether a sequence is the first of its row
    starts[split.offsets[:-1]] = True
    back = np.flatnonzero((np.diff(numbers) <= 0) & ~starts[1:])
    if len(back):
        return f"sequence {numbers[back[0] + 1]} follows sequence {numbers[back[0]]} in a row"
    heads = numbers[split.offsets[:-1]]
    back = np.flatnonzero(np.diff(heads) <= 0)
    return (
        f"row {back[0] + 1} begins with sequence {heads[back[0] + 1]}, the row before with {heads[back[0]]}"
        if len(back)
        else ""
    )


def _check_apart(
    run: StoredRun, step: StepFiles, splits: dict[str, _SplitRows], truth: _Truth, outcome: CheckOutcome
) -> None:
    """Check by content hash, and where shared chunks are left out by every chunk, that nothing of validation is in train."""
    numbers = {name: truth.numbers(split.index[truth.is_known(split.index)]) for name, split in splits.items()}
    train, validation = (np.zeros(len(truth.lengths), np.bool_) for _ in range(2))
    train[numbers["train"]], validation[numbers["validation"]] = True, True
    outcome.checked += len(train)
    shared = train & np.isin(truth.keys, truth.keys[validation])
    for number in np.flatnonzero(shared).tolist():
        hash_ = f"{truth.keys[number]:016x}"
        outcome.breach(
            f"{step.folder.name}: sequence {number} of train is made of document {hash_}, as is one of validation"
        )
    if step.manifest["config"].get("shared_chunks") != "leave-out":
        return
    # One byte a chunk: whether a sequence of validation holds it.
    withheld = run.used_rows(validation)
    for sequence in run.bare_sequences():
        if validation[sequence.number]:
            continue
        known = ((shard, rows[rows < len(withheld[shard])]) for shard, rows in run.by_shard(sequence.chunk))
        hits = (shard << SHARD_BITS | row for shard, rows in known for row in rows[withheld[shard][rows]][:1].tolist())
        chunk = next(hits, NO_CHUNK)
        if train[sequence.number] and chunk != NO_CHUNK:
            outcome.breach(
                f"{step.folder.name}: sequence {sequence.number} of train has {chunk_name(chunk)}, as is one of validation"
            )
        elif not train[sequence.number] and chunk == NO_CHUNK:
            outcome.breach(
                f"{step.folder.name}: sequence {sequence.number} is left out, but shares no chunk with validation"
            )
