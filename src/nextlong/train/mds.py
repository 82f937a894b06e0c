"""MDS: rows that were exported for MosaicML streaming, here or by other writers of tokens such as ProLong's.

In:  folders with `index.json` and the shards that it names, plain or zstd, with a column `input_ids` and, where it is, `indices`:
the first and the last token of each document of the row.
Out: rows by number. A shard is mapped, or decompressed, when a row of it is asked for, and kept for the next. The library
itself is not needed: it pins an old NumPy, and a shard is a list of offsets (export/formats/mds.py has the layout).
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nextlong.errors import RecipeError
from nextlong.train.parquet import side_of
from nextlong.train.recipe import Data

_COMPRESSIONS: Final = (None, "zstd")


class _File(BaseModel):
    basename: str
    bytes: int


class _Shard(BaseModel):
    """An entry of `index.json`, as far as it is read."""

    model_config = ConfigDict(frozen=True)

    samples: int
    raw_data: _File
    zip_data: _File | None = None
    compression: str | None = None
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]

    @model_validator(mode="after")
    def _describes_each_column(self) -> Self:
        if not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise ValueError("column_names, column_encodings and column_sizes differ in length")
        return self


class MdsRows:
    """Rows of MDS folders, in the order of their shards; a share is held out by keyed hash of the row's number."""

    def __init__(self, data: Data, *, split: str) -> None:
        self._shards = [(folder, shard) for named in data.mds for folder, shard in _shards(Path(named).expanduser())]
        rows = [
            np.stack([np.full(shard.samples, number), np.arange(shard.samples)], axis=1)
            for number, (_, shard) in enumerate(self._shards)
        ]
        self._rows = side_of(np.concatenate(rows), data, split=split, key="data.mds")
        self._open: tuple[int, NDArray[np.uint8]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """Hash of what the indexes say and of which rows are read."""
        state = hashlib.blake2b(self._rows.tobytes(), digest_size=8)
        for _, shard in self._shards:
            state.update(shard.model_dump_json().encode())
        return state.hexdigest()

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of each row. Raises RecipeError where rows differ in length."""
        held = sorted({int(lengths.sum()) for lengths in self._lengths})
        if len(held) > 1:
            raise RecipeError(
                f"data.mds mixes rows of {held[0]:,} and {held[-1]:,} tokens; name folders whose rows have one length, or name the "
                "runs under data.runs with data.pack"
            )
        return held[0]

    @cached_property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""
        return max(int(lengths.max()) for lengths in self._lengths)

    @cached_property
    def _lengths(self) -> list[NDArray[np.int64]]:
        return [self._row(row)[1] for row in range(len(self))]

    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64], None]:
        """Return ids, lengths of the sequences, and None: MDS holds no spans."""
        ids, lengths = self._row(row)
        return ids.astype(np.int64), lengths, None

    def _row(self, row: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a row's ids, mapped where the shard is, and the lengths of its sequences."""
        number, place = self._rows[row].tolist()
        folder, shard = self._shards[number]
        path = folder / shard.raw_data.basename
        columns = _columns(self._bytes(number), place, shard, file=path)
        ids, indices = columns["input_ids"], columns.get("indices")
        lengths = np.array([len(ids)])
        if indices is not None:
            lengths = (indices[:, 1].astype(np.int64) - indices[:, 0]).astype(np.int64)
        if lengths.sum() != len(ids):
            raise RecipeError(
                f"data.mds: row {place} of {path} has {len(ids):,} tokens, its `indices` cover {lengths.sum():,}; export it again"
            )
        return ids, lengths

    def is_target(self, row: int) -> None:  # noqa: ARG002
        """Every token is to be predicted."""
        return

    def _bytes(self, number: int) -> NDArray[np.uint8]:
        if self._open is None or self._open[0] != number:
            self._open = number, _read(*self._shards[number])
        return self._open[1]


def _shards(folder: Path) -> list[tuple[Path, _Shard]]:
    index = folder / "index.json"
    try:
        shards = [_Shard.model_validate(entry) for entry in json.loads(index.read_bytes())["shards"]]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not an index of MDS shards"
        raise RecipeError(
            f"data.mds: {index} cannot be read ({reason}); name folders of `nextlong export --to mds`"
        ) from None
    for shard in shards:
        encoding = dict(zip(shard.column_names, shard.column_encodings, strict=True)).get("input_ids", "none")
        if not encoding.startswith("ndarray") or shard.compression not in _COMPRESSIONS:
            raise RecipeError(
                f"data.mds: {index} has input_ids encoded as {encoding}, compressed by {shard.compression}; this reads ndarray, "
                "plain or by zstd, as `nextlong export --to mds` writes it"
            )
    return [(folder, shard) for shard in shards if shard.samples]


def _read(folder: Path, shard: _Shard) -> NDArray[np.uint8]:
    """Return the bytes of a shard, those of a plain one mapped. Raises RecipeError where they are not what the index says."""
    stored = shard.zip_data or shard.raw_data
    path = folder / stored.basename
    try:
        content: NDArray[np.uint8]
        if shard.zip_data is None:
            content = np.memmap(path, np.uint8, mode="r")
        else:
            content = np.frombuffer(
                zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()), np.uint8
            )
    except (OSError, ValueError, zstandard.ZstdError) as error:
        raise RecipeError(f"data.mds: {path} cannot be read ({error}); export it again") from None
    if len(content) != shard.raw_data.bytes:
        raise RecipeError(
            f"data.mds: {path} holds {len(content):,} bytes, its index says {shard.raw_data.bytes:,}; export it again"
        )
    return content


def _columns(content: NDArray[np.uint8], place: int, shard: _Shard, *, file: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays among a sample's columns: sizes of those of no fixed size first, then each column's bytes."""
    first, last = content[4 + 4 * place :][:8].view(np.uint32).tolist()
    sample = content[first:last]
    unsized = shard.column_sizes.count(None)
    sizes = iter(sample[: 4 * unsized].view(np.uint32).tolist())
    at, columns = 4 * unsized, {}
    for name, encoding, fixed in zip(shard.column_names, shard.column_encodings, shard.column_sizes, strict=True):
        size = next(sizes) if fixed is None else fixed
        if name in ("input_ids", "indices"):
            columns[name] = _array(sample[at : at + size], encoding, file=file)
        at += size
    return columns


def _array(value: NDArray[np.uint8], encoding: str, *, file: Path) -> NDArray[Any]:
    """Return an array of the encodings `ndarray:DTYPE` (its shape first) and `ndarray:DTYPE:SHAPE`."""
    _, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if not dtype:
        raise RecipeError(f"data.mds: {file} has a column of {encoding} without a dtype; export it again")
    if shape:
        return value.view(dtype).reshape([int(axis) for axis in shape.split(",")])
    axes, width = int(value[0]) >> 2, 1 << (int(value[0]) & 3)
    start = 1 + axes * width
    shape_of = value[1:start].view(f"<u{width}")
    return value[start:].view(dtype).reshape(shape_of)
