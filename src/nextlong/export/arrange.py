"""Arrange sequences in rows: split them into train and validation, mix runs, and pack sequences.

In:  references to the SEQUENCES of finished runs (SEQUENCE_INDEX: run, part, place, length, key).
Out: for each split, the SEQUENCE_INDEX in row order and the offsets of its rows, shape (rows + 1,); an export shard is a
     range of rows.

Only numbers are read, no tokens and no text. Proportions are exact to one sequence, and the order depends on the sequences
alone: mixing interleaves runs evenly (Sainte-Laguë's method), splitting hashes each key independently, and packing is
best-fit decreasing (at most 11/9 of the minimum number of rows; Johnson 1973).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts import corpus_files
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.engine.step import Artifacts, TaskResult
from nextlong.errors import CorpusError, RecipeError
from nextlong.rng import keyed_hash, threshold_for


def _mix(
    indexes: Sequence[NDArray[Any]],
    *,
    weights: Sequence[float],
    by: Literal["sequences", "tokens"],
) -> NDArray[Any]:
    """Return the sequences of several runs in the proportions of `weights`, evenly interleaved, none repeated.

    The run with the fewest sequences for its weight is used completely and sets the scale; of each other run the first
    sequences are used. Raises CorpusError for a run without sequences.
    """
    for place, index in enumerate(indexes):
        if not len(index):
            cure = "remove it from the mix, or run its recipe again"
            raise CorpusError(f"run {place} of the mix has no sequences; {cure}")
    # (n,) for each run: the sequences or tokens up to and including each of its sequences.
    ends = [
        np.cumsum(index["length"] if by == "tokens" else np.ones(len(index), np.int64))
        for index in indexes
    ]
    shares = [
        Fraction(str(weight)) for weight in weights
    ]  # exactly as written: 0.1 is 1/10
    scale = min(int(end[-1]) / share for end, share in zip(ends, shares, strict=True))
    chosen, moments = [], []
    for index, end, share in zip(indexes, ends, shares, strict=True):
        count = int(np.searchsorted(end, int(scale * share), side="right"))
        chosen.append(index[:count])
        # Order sequences by the relative position, from 0 to 1, of their middle within their own run.
        middles = end[:count] - np.diff(end[:count], prepend=0) / 2
        moments.append(middles / end[count - 1] if count else middles)
    return np.concatenate(chosen)[np.argsort(np.concatenate(moments), kind="stable")]


SPLITS = ("train", "validation")
SharedChunks = Literal["keep", "leave-out"]
FEWER_LEFT_OUT: Final = (
    "compose.max_uses lets fewer sequences share a chunk, a smaller export.validation touches fewer, and "
    "export.shared_chunks=keep leaves none out"
)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The settings of a data set: split, mix of several runs in proportions, packing."""

    mix: tuple[float, ...] | None
    by: Literal["sequences", "tokens"]
    validation: float
    shared_chunks: SharedChunks
    pack: int | None
    seed: int


def arrange_rows(
    out: Path, *, runs: Sequence[SequenceFiles], arrangement: Arrangement
) -> RowsResult:
    """Write `{out}.{split}.index.npy` and `{out}.{split}.offsets.npy` for each split, and count their contents."""
    splits, left_out = arranged(runs, arrangement)
    total, empty = (
        left_out + sum(map(len, splits.values())),
        [name for name, index in splits.items() if not len(index)],
    )
    if (
        total and empty and arrangement.validation
    ):  # `refuse_nothing` explains runs without any sequence
        problem = f"export.validation={arrangement.validation:g} leaves no sequence for {empty[0]} of {total:,}"
        sharing = f": {left_out:,} share a chunk with validation and are filtered out; {FEWER_LEFT_OUT}"
        raise CorpusError(
            problem
            + (
                sharing
                if left_out
                else "; make more sequences, or choose another share"
            )
        )
    # The content hashes of the documents of each split, and the distinct chunks of each corpus that it uses.
    hashes_of: dict[str, list[NDArray[np.uint64]]] = {name: [] for name in splits}
    chunks: dict[str, dict[Hashable, NDArray[np.int64]]] = {name: {} for name in splits}
    for number, run in enumerate(runs):
        ids, offsets = run.chunk_ids()
        firsts = np.cumsum([0, *run.take])
        for name, index in splits.items():
            of_run = index[index["run"] == number]
            is_named = np.zeros(len(offsets) - 1, np.bool_)
            is_named[firsts[of_run["part"]] + of_run["place"]] = True
            chunk_ids = np.unique(ids[np.repeat(is_named, np.diff(offsets))])
            chunks[name][run.corpus_id] = np.union1d(
                chunks[name].get(run.corpus_id, chunk_ids), chunk_ids
            )
            if len(chunk_ids):
                doc_ids = corpus_files.documents_of(chunk_ids, run.corpus.chunks)
                hashes_of[name].append(corpus_files.array_rows(doc_ids, run.hashes))
    documents = {
        name: len(np.unique(np.concatenate(hashes))) if hashes else 0
        for name, hashes in hashes_of.items()
    }
    both = (
        (some, chunks["train"][corpus])
        for corpus, some in chunks.get("validation", {}).items()
    )
    shared = sum(len(np.intersect1d(*pair, assume_unique=True)) for pair in both)
    written = {}
    for name, index in splits.items():
        index, offsets = packed(index, row_tokens=arrangement.pack)
        np.save(f"{out}.{name}.index.npy", index)
        np.save(f"{out}.{name}.offsets.npy", offsets)
        of_runs = [
            index[index["run"] == number]["length"] for number in range(len(runs))
        ]
        row_tokens = np.diff(np.append(0, np.cumsum(index["length"]))[offsets])
        written[name] = SplitResult(
            rows=len(offsets) - 1,
            sequences=len(index),
            documents=documents[name],
            tokens=int(index["length"].sum()),
            of_runs=tuple((len(lengths), int(lengths.sum())) for lengths in of_runs)
            if len(runs) > 1
            else (),
            short_rows=int((row_tokens < (arrangement.pack or 0)).sum()),
            chunks=sum(map(len, chunks[name].values())),
            chunks_in_train=0 if name == "train" else shared,
        )
    return RowsResult(left_out=left_out, **written)


def arranged(
    runs: Sequence[SequenceFiles], arrangement: Arrangement
) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the SEQUENCE_INDEX of each split, mixed, and the number of sequences filtered out because of shared chunks."""
    index = np.concatenate(
        [run.read_index(run=number) for number, run in enumerate(runs)]
    )
    if not arrangement.validation:
        return {"train": _mixed(index, "train", len(runs), arrangement)}, 0
    # Each key is hashed independently, so a meta-document is in the same split whatever the run, length or method.
    hashes = keyed_hash(index["key"], seed=arrangement.seed, stage="split")
    held_out: NDArray[np.bool_] = hashes < threshold_for(arrangement.validation)
    is_shared = np.zeros(len(index), np.bool_)
    if arrangement.shared_chunks == "leave-out":
        references, corpora = (
            [run.chunk_ids() for run in runs],
            [run.corpus_id for run in runs],
        )
        # (m,) each, for every chunk of every sequence: its id, the sequence, and the number of its CHUNKS. Ids are compared only
        # within the same CHUNKS; between runs with different CHUNKS only the split by key holds.
        chunk_ids = np.concatenate([ids for ids, _ in references])
        owners = np.repeat(
            np.arange(len(index)),
            np.concatenate([np.diff(ends) for _, ends in references]),
        )
        corpus = np.array([corpora.index(corpus) for corpus in corpora])[index["run"]][
            owners
        ]
        for number in np.unique(corpus):
            train, withheld = (
                (corpus == number) & (held_out[owners] == side)
                for side in (False, True)
            )
            is_shared[owners[train][np.isin(chunk_ids[train], chunk_ids[withheld])]] = (
                True
            )
    splits = {"train": index[~held_out & ~is_shared], "validation": index[held_out]}
    mixed = {
        name: _mixed(of_runs, name, len(runs), arrangement)
        for name, of_runs in splits.items()
    }
    return mixed, int(is_shared.sum())


def _mixed(
    index: NDArray[Any], split: str, runs: int, arrangement: Arrangement
) -> NDArray[Any]:
    """Mix the sequences of a split in the requested proportions; interleave all evenly if there are none."""
    if runs == 1 or not len(index):
        return index
    of_runs = [index[index["run"] == number] for number in range(runs)]
    if arrangement.mix is None:
        present = [of_run for of_run in of_runs if len(of_run)]
        return _mix(
            present, weights=[len(of_run) for of_run in present], by="sequences"
        )
    for number, of_run in enumerate(of_runs):
        if arrangement.validation and not len(of_run):
            empty = f"has no sequence in {split} with export.validation={arrangement.validation:g}"
            cure = "choose another share, or make more sequences"
            raise CorpusError(
                f"run {number} of the mix {empty}, so the proportions cannot be kept; {cure}"
            )
    return _mix(of_runs, weights=arrangement.mix, by=arrangement.by)


def fill(tokens: int, *, rows: int, room: int) -> float:
    """Return the share of `rows` rows of `room` tokens that `tokens` tokens fill."""
    return tokens / max(1, rows * room)


def percent(share: float) -> str:
    """Return a share as text, rounded down, so that only full rows show 100 %."""
    return f"{int(share * 1000) / 10:.1f} %"


@dataclass(frozen=True)
class RowFiles:
    """The rows of a split: SEQUENCE_INDEX of their sequences, and where each begins."""

    index: Path
    offsets: Path

    @classmethod
    def of(cls, done: Artifacts, split: str) -> RowFiles:
        """Return the files of a split of the step `rows`."""
        rows = done["rows"]
        return cls(
            index=rows.file(f".{split}.index.npy"),
            offsets=rows.file(f".{split}.offsets.npy"),
        )


class SplitResult(TaskResult):
    """Counts of a split; `of_runs`: the sequences and tokens of each run of a mix; `short_rows`: rows that are not full."""

    rows: int
    sequences: int
    documents: int
    tokens: int
    of_runs: tuple[tuple[int, int], ...] = ()
    short_rows: int = 0
    chunks: int = 0  # distinct; 0 in runs that did not count them
    chunks_in_train: int = 0  # of the chunks in validation


class RowsResult(TaskResult):
    """The splits, and the sequences that are in neither because they share chunks with validation."""

    left_out: int
    train: SplitResult
    validation: SplitResult | None = None

    @property
    def splits(self) -> dict[str, SplitResult]:
        """The existing splits by name."""
        return {"train": self.train} | (
            {} if self.validation is None else {"validation": self.validation}
        )


def packed(
    index: NDArray[Any], *, row_tokens: int | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Put each sequence into the row of at most `row_tokens` where it fits best, the longest first; None: one a row.

    Returns the index in row order and the offsets of the rows, shape (rows + 1,). The sequences of a row ascend, and rows are
    in the order of their first sequence. Raises RecipeError for a sequence that is longer than a row.
    """
    if row_tokens is None:
        return index, np.arange(len(index) + 1)
    lengths = index["length"]
    if len(lengths) and lengths.max() > row_tokens:
        longest = int(np.argmax(lengths))
        problem = f"pack={row_tokens} tokens a row cannot hold sequence {longest}, which has {int(lengths[longest])}"
        raise RecipeError(
            f"{problem}; raise it to at least that (a multiple leaves no gap)"
        )
    row_of = np.empty(
        len(lengths), np.int64
    )  # the row of each sequence, numbered in the order of opening
    rooms: list[int] = []  # the distinct numbers of free tokens of open rows, ascending
    rows_with: dict[int, list[int]] = {}
    count, descending = 0, np.argsort(-lengths, kind="stable")
    for sequence, length in zip(
        descending.tolist(), lengths[descending].tolist(), strict=True
    ):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = count, row_tokens
            count += 1
        else:
            room = rooms[place]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rooms[place]
        row_of[sequence] = row
        if left := room - length:
            if not rows_with.setdefault(left, []):
                insort(rooms, left)
            rows_with[left].append(row)
    # (rows,) the first sequence of each row; its rank among all rows gives the place of the row.
    _, first = np.unique(row_of, return_index=True)
    row_of = np.argsort(np.argsort(first))[row_of]
    offsets = np.concatenate(
        [[0], np.cumsum(np.bincount(row_of, minlength=len(first)))]
    )
    return index[np.argsort(row_of, kind="stable")], offsets
