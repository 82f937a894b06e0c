"""Arrangement: say which sequences stand in each row of a data set, from one run or several.

In:  the SEQUENCES files of finished runs, and how to mix, split and pack them (`arrange`).
Out: per split the SEQUENCE_INDEX in row order and the offsets of its rows; exporting a shard takes a range of rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.sequences import References, document_hashes, read_references
from nextlong.errors import CorpusError
from nextlong.export import arrange
from nextlong.export.pack import pack
from nextlong.export.splits import RowsResult, SplitResult

SPLITS = ("train", "validation")
SharedChunks = Literal["keep", "leave-out"]
LEAST_FILL: Final = 0.95  # rows that hold less are worth a warning
FEWER_LEFT_OUT: Final = (
    "compose.max_uses lets fewer sequences share a chunk, a smaller export.validation touches fewer, and "
    "export.shared_chunks=keep leaves none out"
)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How sequences become rows: split, then mixed in the proportions `mix` of several runs, then packed."""

    mix: tuple[float, ...] | None
    by: Literal["sequences", "tokens"]
    validation: float
    shared_chunks: SharedChunks
    pack: int | None
    seed: int


def arrange_rows(out: Path, *, runs: Sequence[References], arrangement: Arrangement) -> RowsResult:
    """Write `{out}.{split}.index.npy` and `{out}.{split}.offsets.npy` for each split; count what is in them."""
    splits, left_out = arranged(runs, arrangement)
    _refuse_empty(splits, left_out, arrangement)
    documents, chunks = _contents(splits, runs)
    written = {}
    for name, index in splits.items():
        index, offsets = packed(index, row_tokens=arrangement.pack)
        np.save(f"{out}.{name}.index.npy", index)
        np.save(f"{out}.{name}.offsets.npy", offsets)
        of_runs = [index[index["run"] == number]["length"] for number in range(len(runs))]
        full = 0 if arrangement.pack is None else arrangement.pack
        written[name] = SplitResult(
            rows=len(offsets) - 1,
            sequences=len(index),
            documents=documents[name],
            tokens=int(index["length"].sum()),
            of_runs=tuple((len(lengths), int(lengths.sum())) for lengths in of_runs) if len(runs) > 1 else (),
            short_rows=int((row_tokens(index, offsets) < full).sum()),
            chunks=sum(map(len, chunks[name].values())),
            chunks_in_train=0 if name == "train" else _in_both(chunks[name], chunks["train"]),
        )
    return RowsResult(left_out=left_out, **written)


def _refuse_empty(splits: Mapping[str, NDArray[Any]], left_out: int, arrangement: Arrangement) -> None:
    """Raise CorpusError if one of two splits is empty; why a run has no sequence at all is told elsewhere."""
    total = left_out + sum(map(len, splits.values()))
    empty = [name for name, index in splits.items() if not len(index)]
    if not total or not arrangement.validation or not empty:
        return
    problem = f"export.validation={arrangement.validation:g} leaves no sequence for {empty[0]} of {total:,}"
    if left_out:
        raise CorpusError(f"{problem}: {left_out:,} share a chunk with validation and are left out; {FEWER_LEFT_OUT}")
    raise CorpusError(f"{problem}; make more sequences, or choose another share")


_Chunks = dict[Hashable, NDArray[np.int64]]  # of each corpus, distinct


def _contents(
    splits: Mapping[str, NDArray[Any]], runs: Sequence[References]
) -> tuple[dict[str, int], dict[str, _Chunks]]:
    """Return of how many documents, distinct by content, and of which chunks the sequences of each split are made."""
    hashes_of: dict[str, list[NDArray[np.uint64]]] = {name: [] for name in splits}
    chunks_of: dict[str, _Chunks] = {name: {} for name in splits}
    for number, run in enumerate(runs):
        ids, offsets = read_references(run.sequences, take=run.take)
        firsts = np.cumsum([0, *run.take])
        for name, index in splits.items():
            of_run = index[index["run"] == number]
            is_named = np.zeros(len(offsets) - 1, np.bool_)
            is_named[firsts[of_run["part"]] + of_run["place"]] = True
            chunk_ids = np.unique(ids[np.repeat(is_named, np.diff(offsets))])
            before = chunks_of[name].get(run.corpus, chunk_ids)
            chunks_of[name][run.corpus] = np.union1d(before, chunk_ids)
            if len(chunk_ids):
                hashes_of[name].append(document_hashes(chunk_ids, run.chunks, run.hashes))
    documents = {name: len(np.unique(np.concatenate(hashes))) if hashes else 0 for name, hashes in hashes_of.items()}
    return documents, chunks_of


def _in_both(some: _Chunks, others: _Chunks) -> int:
    return sum(len(np.intersect1d(some[corpus], others[corpus], assume_unique=True)) for corpus in some)


def arranged(runs: Sequence[References], arrangement: Arrangement) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the SEQUENCE_INDEX of each split, its runs mixed, and how many sequences are in none because they share chunks."""
    index = np.concatenate([run.read_index(run=number) for number, run in enumerate(runs)])
    splits, left_out = _split(index, runs, arrangement)
    return {name: _mixed(of_runs, name, len(runs), arrangement) for name, of_runs in splits.items()}, left_out


def _split(
    index: NDArray[Any], runs: Sequence[References], arrangement: Arrangement
) -> tuple[dict[str, NDArray[Any]], int]:
    share, seed = arrangement.validation, arrangement.seed
    if not share:
        return {"train": index}, 0
    if arrangement.shared_chunks == "keep":
        train, validation = arrange.split(index, validation=share, seed=seed)
        return {"train": train, "validation": validation}, 0
    references = [read_references(run.sequences, take=run.take) for run in runs]
    sizes = np.concatenate([np.diff(offsets) for _, offsets in references])
    train, validation, left_out = arrange.split_apart(
        index,
        validation=share,
        seed=seed,
        chunk_ids=np.concatenate([ids for ids, _ in references]),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        corpora=[run.corpus for run in runs],
    )
    return {"train": train, "validation": validation}, left_out


def _mixed(index: NDArray[Any], split: str, runs: int, arrangement: Arrangement) -> NDArray[Any]:
    """Return the sequences of a split, given run by run, in the proportions asked; without any all, evenly interleaved."""
    if runs == 1 or not len(index):
        return index
    of_runs = [index[index["run"] == number] for number in range(runs)]
    if arrangement.mix is None:
        present = [of_run for of_run in of_runs if len(of_run)]
        return arrange.mix(present, weights=[len(of_run) for of_run in present], by="sequences")
    for number, of_run in enumerate(of_runs):
        if arrangement.validation and not len(of_run):
            raise CorpusError(
                f"run {number} of the mix has no sequence in {split} where {arrangement.validation:g} of all are validation, so "
                "there are no proportions; choose another share, or make more sequences"
            )
    return arrange.mix(of_runs, weights=arrangement.mix, by=arrangement.by)


def packed(index: NDArray[Any], *, row_tokens: int | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the index in row order, and the offsets of the rows, shape (rows + 1,)."""
    if row_tokens is None:
        return index, np.arange(len(index) + 1)
    rows = pack(index["length"], row_tokens=row_tokens)
    return index[rows.order], rows.offsets


def row_tokens(index: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many tokens each row has, shape (rows,)."""
    ends = np.concatenate([[0], np.cumsum(index["length"])])
    tokens: NDArray[np.int64] = np.diff(ends[offsets])
    return tokens


def fill(tokens: int, *, rows: int, room: int) -> float:
    """Return the share of some rows that holds tokens; `room` is that of a row."""
    return tokens / max(1, rows * room)


def percent(share: float) -> str:
    """Return a share in words, rounded down, so that only what is full is called so."""
    return f"{int(share * 1000) / 10:.1f} %"
