"""Arrange: which sequences make one row of a data set, and in what order: mix, split, pack.

In:  where the sequences of finished runs lie (SEQUENCE_INDEX), their lengths and keys.
Out: the same, chosen and ordered; rows of several sequences.

Pure functions over numbers: no token and no text is read. Proportions are exact to a sequence, and an order depends on
the sequences alone: mixing lays each run's sequences evenly over the whole (as Sainte-Laguë's method deals out seats),
splitting asks each key by itself, packing is best-fit decreasing (at most 11/9 of the fewest rows; Johnson 1973).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, isqrt
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.errors import CorpusError, RecipeError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.stages import gather

# Row `place` of the run's SEQUENCES file `part`; `key` is the content hash of the meta-document or first document.
SEQUENCE_INDEX: Final = np.dtype([("run", "i4"), ("part", "i4"), ("place", "i4"), ("length", "i8"), ("key", "u8")])

_EXTENDED = "nextlong-"  # ids of extended documents end in the content hash, which even a cut sequence keeps


def read_index(
    sequences: Sequence[Path], *, take: Sequence[int], chunks: Sequence[Path], hashes: Sequence[Path], run: int = 0
) -> NDArray[Any]:
    """Return the SEQUENCE_INDEX, in draw order, of the first `take[i]` sequences of each SEQUENCES file.

    `chunks` and `hashes` (of documents) are one file a shard. Reads references only.
    """
    index = np.zeros(sum(take), SEQUENCE_INDEX)
    first_chunks = np.full(len(index), schemas.NO_CHUNK, np.int64)
    row = 0
    for part, (path, count) in enumerate(zip(sequences, take, strict=True)):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for place in range(count):
                batch = reader.get_batch(place)
                name = batch.column("sequence_id")[0].as_py()
                key = 0
                if name.startswith(_EXTENDED):
                    key = int(name.removeprefix(_EXTENDED), 16)
                else:
                    ids = batch.column("chunk_id").values.to_numpy()
                    first_chunks[row] = ids[np.argmax(ids != schemas.NO_CHUNK)]
                index[row] = (run, part, place, batch.column("token_end").values[-1].as_py(), key)
                row += 1
    others = np.flatnonzero(first_chunks != schemas.NO_CHUNK)
    if len(others):
        index["key"][others] = document_hashes(first_chunks[others], chunks, hashes)
    return index


def read_references(sequences: Sequence[Path], *, take: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chunk ids of the sequences that `read_index` gives: those of i are ids[offsets[i]:offsets[i + 1]]."""
    found = []
    for path, count in zip(sequences, take, strict=True):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for place in range(count):
                ids = reader.get_batch(place).column("chunk_id").values.to_numpy()
                found.append(ids[ids != schemas.NO_CHUNK])
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return np.concatenate([np.empty(0, np.int64), *found]), offsets


def document_hashes(chunk_ids: NDArray[np.int64], chunks: Sequence[Path], hashes: Sequence[Path]) -> NDArray[np.uint64]:
    (doc_rows,) = gather.chunk_columns(chunk_ids, chunks, ("doc_row",))
    doc_ids = schemas.shard_of(chunk_ids) << schemas.SHARD_BITS | doc_rows

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [np.load(hashes[shard], mmap_mode="r")[rows]]

    found: NDArray[np.uint64] = gather.by_shard(doc_ids, load)[0]
    return found


# mix


def mix(
    indexes: Sequence[NDArray[Any]], *, weights: Sequence[float], by: Literal["sequences", "tokens"]
) -> NDArray[Any]:
    """Return the sequences of several runs in the proportions of `weights`, evenly interleaved, none repeated.

    The run that is scarcest for its weight is used whole and sets the scale; of each other run the first sequences serve,
    in their order, as many as its share holds. Raises RecipeError or CorpusError if there are no such proportions.
    """
    _check_weights(indexes, weights)
    ends = [np.cumsum(index["length"] if by == "tokens" else np.ones(len(index), np.int64)) for index in indexes]
    shares = [Fraction(str(weight)) for weight in weights]  # 0.1 as it was written
    scale = min(int(end[-1]) / share for end, share in zip(ends, shares, strict=True))
    chosen, moments = [], []
    for index, end, share in zip(indexes, ends, shares, strict=True):
        count = int(np.searchsorted(end, int(scale * share), side="right"))
        chosen.append(index[:count])
        # A sequence stands where its middle lies on its own run's way from 0 to 1.
        middles = end[:count] - np.diff(end[:count], prepend=0) / 2
        moments.append(middles / end[count - 1] if count else middles)
    order = np.argsort(np.concatenate(moments), kind="stable")
    mixed: NDArray[Any] = np.concatenate(chosen)[order]
    return mixed


def _check_weights(indexes: Sequence[NDArray[Any]], weights: Sequence[float]) -> None:
    if len(indexes) != len(weights):
        raise RecipeError(f"mix has {len(weights)} weights for {len(indexes)} runs; give one weight for each run")
    for place, (index, weight) in enumerate(zip(indexes, weights, strict=True)):
        if not (isfinite(weight) and weight > 0):
            raise RecipeError(f"proportion {place} of the mix is {weight}; give a number above 0")
        if not len(index):
            raise CorpusError(f"run {place} of the mix has no sequence to give; leave it out, or make it anew")


# split


def split(index: NDArray[Any], *, validation: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (train, validation) sequences, each in the order of `index`; about the share `validation` is validation.

    Each key is asked by itself, so that a meta-document lies on the same side whatever the run, length or method.
    Raises RecipeError unless 0 < validation < 1.
    """
    held_out = _is_validation(index, validation, seed)
    return index[~held_out], index[held_out]


def split_apart(
    index: NDArray[Any],
    *,
    validation: float,
    seed: int,
    chunk_ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    corpora: Sequence[Hashable],
) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Split as `split` does, and leave out of train, and count, what shares a chunk with validation.

    Sequence i names chunk_ids[offsets[i]:offsets[i+1]]. `corpora[run]` says of which CHUNKS a run's ids speak (their
    fingerprint): ids of two runs are compared where it is equal. Where it is not, only the split by key holds.
    """
    held_out = _is_validation(index, validation, seed)
    owners = np.repeat(np.arange(len(index)), np.diff(offsets))
    corpus_of_run = np.array([list(corpora).index(corpus) for corpus in corpora])
    corpus = corpus_of_run[index["run"]][owners]
    is_shared = np.zeros(len(index), np.bool_)
    for number in np.unique(corpus):
        train, withheld = ((corpus == number) & (held_out[owners] == side) for side in (False, True))
        shared = np.isin(chunk_ids[train], chunk_ids[withheld])
        is_shared[owners[train][shared]] = True
    return index[~held_out & ~is_shared], index[held_out], int(is_shared.sum())


def _is_validation(index: NDArray[Any], validation: float, seed: int) -> NDArray[np.bool_]:
    if not 0 < validation < 1:
        raise RecipeError(f"validation={validation} is no share; give a number between 0 and 1, such as 0.01")
    held_out: NDArray[np.bool_] = keyed_hash(index["key"], seed=seed, stage="split") < threshold_for(validation)
    return held_out


# pack


@dataclass(frozen=True)
class Packed:
    """Rows of whole sequences: row i holds sequences order[offsets[i]:offsets[i + 1]], ascending.

    Rows stand in the order of their first sequence.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]


def pack(lengths: NDArray[np.int64], *, row_tokens: int) -> Packed:
    """Put each sequence, lengths (n,), whole into a row of at most `row_tokens`: the longest first, where it fits best.

    Sequences of one length come out in order. Raises RecipeError for a sequence that is longer than a row.
    """
    if len(lengths) and lengths.max() > row_tokens:
        longest = int(np.argmax(lengths))
        raise RecipeError(
            f"pack={row_tokens} tokens a row cannot hold sequence {longest}, which has {int(lengths[longest])}; "
            "raise it to at least that (a multiple leaves no gap)"
        )
    row_of = np.empty(len(lengths), np.int64)
    rows = _OpenRows(row_tokens)
    descending = np.argsort(-lengths, kind="stable")
    row_of[descending] = [rows.place(length) for length in lengths[descending].tolist()]
    _, first = np.unique(row_of, return_index=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    row_of = place[row_of]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(first)))])
    return Packed(np.argsort(row_of, kind="stable"), offsets)


class _OpenRows:
    """Rows by the room that they have left; `place` gives the one with the least room that suffices, else a new one.

    Which rooms there are is a bitmap of two levels, so that the next one is found in two steps however many there are.
    """

    def __init__(self, row_tokens: int) -> None:
        self._row_tokens = row_tokens
        self._width = isqrt(row_tokens) + 1
        self._words = [0] * self._width  # bit b of word w: there is a row with room w · width + b
        self._used_words = 0
        self._rows: dict[int, list[int]] = {}
        self._count = 0

    def place(self, length: int) -> int:
        """Return the number of the row that takes a sequence of `length` tokens."""
        room = self._least_room(length)
        if room is None:
            row, room = self._count, self._row_tokens
            self._count += 1
        else:
            row = self._rows[room].pop()
            if not self._rows[room]:
                self._close(room)
        if room > length:
            self._open(room - length, row)
        return row

    def _least_room(self, length: int) -> int | None:
        word, bit = divmod(length, self._width)
        found = self._words[word] >> bit
        if found:
            return length + _lowest_bit(found)
        later = self._used_words >> (word + 1)
        if not later:
            return None
        word += 1 + _lowest_bit(later)
        return word * self._width + _lowest_bit(self._words[word])

    def _open(self, room: int, row: int) -> None:
        rows = self._rows.setdefault(room, [])
        if not rows:
            word, bit = divmod(room, self._width)
            self._words[word] |= 1 << bit
            self._used_words |= 1 << word
        rows.append(row)

    def _close(self, room: int) -> None:
        word, bit = divmod(room, self._width)
        self._words[word] ^= 1 << bit
        if not self._words[word]:
            self._used_words ^= 1 << word


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
