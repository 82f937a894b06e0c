"""Arrange sequences in rows: split them, mix runs, and pack sequences.

In:  references to the SEQUENCES of finished runs (SEQUENCE_INDEX: run, part, place,
     length, key).
Out: for each split, the SEQUENCE_INDEX in row order and the offsets of its rows, shape
     (rows + 1,); an export shard is a range of rows.

Only numbers are read, no tokens and no text. Proportions are exact to one sequence, and
the order depends on the sequences alone: mixing interleaves runs evenly (Sainte-Laguë's
method), splitting hashes each key independently, and packing is best-fit decreasing (at
most 11/9 of the minimum number of rows; Johnson 1973).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

import numpy as np

from nextlong.arrays import AnyArray, Bools, Hashes, Int32s, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.engine.step import Artifacts, TaskResult
from nextlong.errors import CorpusError, RecipeError
from nextlong.export.components import buckets_of, component_of, weights_of
from nextlong.export.mixture import Mixture, Unit
from nextlong.rng import keyed_hash, threshold_for

SPLITS = ("train", "validation")
SharedChunks = Literal["keep", "leave-out"]
FEWER_LEFT_OUT: Final = (
    "compose.max_uses lets fewer sequences share a chunk, a smaller export.validation "
    "touches fewer, and export.shared_chunks=keep leaves none out"
)


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The settings of a data set: split, mixture, packing."""

    mixture: Mixture
    validation: float
    shared_chunks: SharedChunks
    pack: int | None
    seed: int


def arrange_rows(
    out: Path, *, runs: Sequence[SequenceFiles], arrangement: Arrangement
) -> RowsResult:
    """Write the rows of each split, and count their contents.

    They are `{out}.{split}.index.npy` and `{out}.{split}.offsets.npy`.
    """
    splits, left_out = arranged(runs, arrangement)
    _check_splits(splits, arrangement, left_out=left_out)
    contents = _contents_of(splits, runs)
    results = {}
    for name, index in splits.items():
        content = contents[name]
        row_index, offsets = packed(index, row_tokens=arrangement.pack)
        np.save(f"{out}.{name}.index.npy", row_index)
        np.save(f"{out}.{name}.offsets.npy", offsets)
        lengths = row_index["length"]
        token_offsets = np.append(0, np.cumsum(lengths))
        row_tokens = np.diff(token_offsets[offsets])
        is_short = row_tokens < (arrangement.pack or 0)
        # Of a mix alone; a reader of one run knows it.
        runs_used = []
        if len(runs) > 1:
            run_counts = _component_counts(row_index, runs, "runs")
            runs_used = [(sequences, tokens) for _, sequences, tokens in run_counts]
        components_used = []
        if arrangement.mixture.components != "runs":
            components_used = _component_counts(
                row_index, runs, arrangement.mixture.components
            )
        in_train = 0
        if name == "validation":
            in_train = _shared_chunks(content.chunks, contents["train"].chunks)
        results[name] = SplitResult(
            rows=len(offsets) - 1,
            sequences=len(row_index),
            documents=content.documents,
            tokens=int(lengths.sum()),
            of_runs=tuple(runs_used),
            of_components=tuple(components_used),
            short_rows=int(is_short.sum()),
            chunks=sum(map(len, content.chunks.values())),
            chunks_in_train=in_train,
        )
    return RowsResult(left_out=left_out, **results)


def _component_counts(
    index: AnyArray, runs: Sequence[SequenceFiles], components: str
) -> list[tuple[str, int, int]]:
    """Return the name of each component, and its sequences and tokens."""
    names, numbers = component_of(index, runs, components)
    counts = []
    for number, name in enumerate(names):
        lengths = index["length"][numbers == number]
        counts.append((name, len(lengths), int(lengths.sum())))
    return counts


def _check_splits(
    splits: Mapping[str, AnyArray], arrangement: Arrangement, *, left_out: int
) -> None:
    """Raise CorpusError if a split of some sequences is empty.

    `refuse_nothing` explains runs without any sequence.
    """
    counts = {name: len(index) for name, index in splits.items()}
    total = left_out + sum(counts.values())
    empty = [name for name, count in counts.items() if not count]
    if not (total and empty and arrangement.validation):
        return
    problem = f"leaves no sequence for {empty[0]} of {total:,}"
    fix = "make more sequences, or choose another share"
    if left_out:
        problem += f": {left_out:,} share a chunk with validation and are filtered out"
        fix = FEWER_LEFT_OUT
    raise CorpusError(
        where="export.validation",
        value=f"{arrangement.validation:g}",
        problem=problem,
        fix=fix,
    )


@dataclass(frozen=True)
class _Contents:
    """What the sequences of a split name.

    hashes: of the contents of documents, an array for each run
    chunks: the distinct ones of each corpus, ascending
    """

    hashes: list[Hashes] = field(default_factory=list)
    chunks: dict[Hashable, Ints] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Distinct documents."""
        if not self.hashes:
            return 0
        distinct = np.unique(np.concatenate(self.hashes))
        return len(distinct)


def _contents_of(
    splits: Mapping[str, AnyArray], runs: Sequence[SequenceFiles]
) -> dict[str, _Contents]:
    """Return the documents and chunks of the sequences of each split."""
    contents = {name: _Contents() for name in splits}
    for number, run in enumerate(runs):
        # The ids of the chunks of each sequence, end to end, and where each sequence's
        # begin. An index names sequences by part and place, so parts are counted up.
        all_ids, offsets = run.chunk_ids()
        firsts = np.cumsum([0, *run.take])
        for name, index in splits.items():
            used = index[index["run"] == number]
            is_used = np.zeros(len(offsets) - 1, np.bool_)
            is_used[firsts[used["part"]] + used["place"]] = True
            is_named = np.repeat(is_used, np.diff(offsets))  # (m,) each chunk
            chunk_ids = np.unique(all_ids[is_named])
            chunks = contents[name].chunks
            known_ids = chunks.get(run.corpus_id, chunk_ids)
            chunks[run.corpus_id] = np.union1d(known_ids, chunk_ids)
            if len(chunk_ids):
                doc_ids = corpus_files.documents_of(chunk_ids, run.corpus.chunks)
                hashes = corpus_files.array_rows(doc_ids, run.hashes)
                contents[name].hashes.append(hashes)
    return contents


def _shared_chunks(
    chunks: Mapping[Hashable, Ints],
    others: Mapping[Hashable, Ints],
) -> int:
    """Return how many chunks are among others of the same corpus."""
    shared = 0
    for corpus, ids in chunks.items():
        shared += len(np.intersect1d(ids, others[corpus], assume_unique=True))
    return shared


def arranged(
    runs: Sequence[SequenceFiles], arrangement: Arrangement
) -> tuple[dict[str, AnyArray], int]:
    """Return the SEQUENCE_INDEX of each split, mixed, and how many are left out.

    Sequences of train are left out because they share chunks with validation.
    """
    indexes = [run.read_index(run=number) for number, run in enumerate(runs)]
    index = np.concatenate(indexes)
    if not arrangement.validation:
        mixed = _mixed(index, runs, arrangement.mixture, split="train")
        return {"train": mixed}, 0
    # Each key is hashed independently, so a meta-document is in the same split whatever
    # the run, length or method.
    hashes = keyed_hash(index["key"], seed=arrangement.seed, stage="split")
    held_out: Bools = hashes < threshold_for(arrangement.validation)
    is_shared = np.zeros(len(index), np.bool_)
    if arrangement.shared_chunks == "leave-out":
        is_shared = _shares_chunks(runs, index, held_out)
    splits = {"train": index[~held_out & ~is_shared], "validation": index[held_out]}
    for name, split in splits.items():
        splits[name] = _mixed(split, runs, arrangement.mixture, split=name)
    return splits, int(is_shared.sum())


def _shares_chunks(
    runs: Sequence[SequenceFiles], index: AnyArray, held_out: Bools
) -> Bools:
    """Return which sequences of train share a chunk with one that is held out.

    Ids are compared only within the same CHUNKS; between runs with different CHUNKS
    only the split by key holds.
    """
    # (m,) each, for every chunk of every sequence: its id, the sequence, and the number
    # of its CHUNKS.
    ids_of_runs = []
    counts = []  # chunks of each sequence
    for run in runs:
        ids, offsets = run.chunk_ids()
        ids_of_runs.append(ids)
        counts.append(np.diff(offsets))
    chunk_ids = np.concatenate(ids_of_runs)
    sequences = np.arange(len(index))
    owners = np.repeat(sequences, np.concatenate(counts))
    corpora = [run.corpus_id for run in runs]
    corpus_of_run = np.array([corpora.index(corpus) for corpus in corpora])
    corpus_of_chunk = corpus_of_run[index["run"]][owners]

    is_withheld = held_out[owners]
    is_shared = np.zeros(len(index), np.bool_)
    for number in np.unique(corpus_of_chunk):
        is_of_corpus = corpus_of_chunk == number
        train = is_of_corpus & ~is_withheld
        withheld_ids = chunk_ids[is_of_corpus & is_withheld]
        is_repeated = np.isin(chunk_ids[train], withheld_ids)
        is_shared[owners[train][is_repeated]] = True
    return is_shared


def _mixed(
    index: AnyArray,
    runs: Sequence[SequenceFiles],
    mixture: Mixture,
    *,
    split: str,
) -> AnyArray:
    """Return the sequences of a split as the mixture takes and orders them.

    Without weights, all are used; runs are interleaved evenly.
    """
    if not len(index):
        return index
    by_run = [index[index["run"] == number] for number in range(len(runs))]
    # A run may have no sequence in a split.
    present = [run_index for run_index in by_run if len(run_index)]
    weights = [len(run_index) for run_index in present]
    mixed = _mix(present, weights=weights, by="sequences")
    if mixture.has_weights:
        mixed = _weighted(mixed, runs, mixture, split=split)
    if mixture.order == "curriculum":
        mixed = mixed[np.argsort(buckets_of(mixed["length"]), kind="stable")]
    return mixed


def _weighted(
    index: AnyArray,
    runs: Sequence[SequenceFiles],
    mixture: Mixture,
    *,
    split: str,
) -> AnyArray:
    """Return the sequences of the mixture's components by their weights.

    Raises CorpusError for a component without a sequence in the split.
    """
    names, numbers = component_of(index, runs, mixture.components)
    by_name = {name: index[numbers == number] for number, name in enumerate(names)}
    sizes = []
    for component in by_name.values():
        tokens = int(component["length"].sum())
        sizes.append(tokens if mixture.by == "tokens" else len(component))
    weights = weights_of(mixture, names, sizes)
    chosen = []
    for name in weights:
        component = by_name.get(name, index[:0])
        if not len(component):
            raise CorpusError(
                where=f"{name} of the mix",
                problem=f"it has no sequence in {split}, so the proportions cannot be "
                "kept",
                fix=f"choose from {', '.join(names)}, change export.validation, or "
                "make more sequences",
            )
        # Held-out sequences are measured once.
        repeat = mixture.repeat if split == "train" else 1
        chosen.append(np.tile(component, repeat))
    return _mix(chosen, weights=list(weights.values()), by=mixture.by)


def _mix(
    indexes: Sequence[AnyArray],
    *,
    weights: Sequence[float],
    by: Unit,
) -> AnyArray:
    """Return the sequences of several components in the proportions of `weights`.

    They are evenly interleaved. The component with the fewest sequences for its weight
    is used completely and sets the scale; of each other one the first sequences are
    used.
    """
    # (n,) for each component: the sequences or tokens up to and including each
    # sequence.
    ends_of_components = []
    for index in indexes:
        amounts = np.ones(len(index), np.int64)
        if by == "tokens":
            amounts = index["length"]
        ends_of_components.append(np.cumsum(amounts))
    # Exactly as written: 0.1 is 1/10.
    shares = [Fraction(str(weight)) for weight in weights]
    ends_and_shares = list(zip(ends_of_components, shares, strict=True))
    scale = min(int(ends[-1]) / share for ends, share in ends_and_shares)

    # Sequences come in the order of their middles: from 0 to 1 within their own
    # component.
    chosen = []
    middles = []
    for index, (ends, share) in zip(indexes, ends_and_shares, strict=True):
        limit = int(scale * share)
        count = int(np.searchsorted(ends, limit, side="right"))
        used_ends = ends[:count]
        used_middles = used_ends - np.diff(used_ends, prepend=0) / 2
        if count:
            used_middles = used_middles / used_ends[-1]
        chosen.append(index[:count])
        middles.append(used_middles)
    order = np.argsort(np.concatenate(middles), kind="stable")
    return np.concatenate(chosen)[order]


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
    """Counts of a split.

    of_runs: the sequences and tokens of each run of a mix
    of_components: of each component of a mixture that has other components than runs
    short_rows: rows that are not full
    """

    rows: int
    sequences: int
    documents: int
    tokens: int
    of_runs: tuple[tuple[int, int], ...] = ()
    of_components: tuple[tuple[str, int, int], ...] = ()
    short_rows: int = 0
    chunks: int = 0  # distinct; 0 in runs that did not count them
    chunks_in_train: int = 0  # of the chunks in validation


class RowsResult(TaskResult):
    """The splits, and the sequences that are in neither.

    These share chunks with validation.
    """

    left_out: int
    train: SplitResult
    validation: SplitResult | None = None

    @property
    def splits(self) -> dict[str, SplitResult]:
        """The existing splits by name."""
        splits = {"train": self.train}
        if self.validation is not None:
            splits["validation"] = self.validation
        return splits


def packed(index: AnyArray, *, row_tokens: int | None) -> tuple[AnyArray, Ints]:
    """Put each sequence into the row of at most `row_tokens` where it fits best.

    The longest come first; None: one per row. Returns the index in row order and the
    offsets of the rows, shape (rows + 1,). The sequences of a row ascend, and rows are
    in the order of their first sequence. Raises RecipeError for a sequence that is
    longer than a row.
    """
    if row_tokens is None:
        return index, np.arange(len(index) + 1)
    lengths = index["length"]
    if len(lengths) and lengths.max() > row_tokens:
        longest = int(np.argmax(lengths))
        raise RecipeError(
            where="pack",
            value=row_tokens,
            problem=f"tokens per row cannot hold sequence {longest}, which has "
            f"{int(lengths[longest])}",
            fix=f"raise it to {int(lengths[longest])} or more (a multiple needs no "
            "padding)",
        )
    opened_row = _best_fit(lengths, row_tokens)  # of each sequence
    # The rank of a row's first sequence among those of all rows is the row's number.
    _, first_sequence = np.unique(opened_row, return_index=True)
    number_of_row = np.argsort(np.argsort(first_sequence))
    row_of_sequence = number_of_row[opened_row]
    counts = np.bincount(row_of_sequence, minlength=len(first_sequence))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    order = np.argsort(row_of_sequence, kind="stable")
    return index[order], offsets


def _best_fit(lengths: Int32s, row_tokens: int) -> Ints:
    """Return the row of each sequence, numbered in the order of opening."""
    row_of_sequence = np.empty(len(lengths), np.int64)
    # The distinct numbers of free tokens of open rows, ascending, and the rows of each.
    free_tokens: list[int] = []
    rows_with: dict[int, list[int]] = {}
    opened = 0
    descending = np.argsort(-lengths, kind="stable")
    for sequence, length in zip(
        descending.tolist(), lengths[descending].tolist(), strict=True
    ):
        position = bisect_left(free_tokens, length)
        if position == len(free_tokens):
            row = opened
            free = row_tokens
            opened += 1
        else:
            free = free_tokens[position]
            row = rows_with[free].pop()
            if not rows_with[free]:
                del free_tokens[position]
        row_of_sequence[sequence] = row
        left = free - length
        if left:
            rows = rows_with.setdefault(left, [])
            if not rows:
                insort(free_tokens, left)
            rows.append(row)
    return row_of_sequence
