"""Exported rows: Parquet and MDS, written here or by others such as ProLong's tools.

In:  Parquet files or folders with a column `input_ids` and, optionally, `seq_lengths` and `spans`; MDS folders with
`index.json` and its shards, plain or zstd, with `input_ids` and, optionally, `indices` (first and last token of each document).
Out: rows by number. A part (row group or shard) is read when one of its rows is requested, and kept for the next row.

MDS is read by the reader of the format (export/formats/mds.py); MosaicML's library, which pins an old NumPy, is not needed.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nextlong.artifacts.rows import SPANS
from nextlong.errors import CorpusError, RecipeError
from nextlong.export.formats.base import UNREADABLE
from nextlong.export.formats.mds import StoredShard, shards_of
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import META, ROLES
from nextlong.train.recipe import Data
from nextlong.train.rows import SourceRow


class _ExportedRows(ABC):
    """Rows of numbered parts, in order; validation rows are sampled by keyed hash of the row's number."""

    def __init__(self, part_rows: list[int], data: Data, *, split: str, key: str) -> None:
        numbers = [np.stack([np.full(count, part), np.arange(count)], axis=1) for part, count in enumerate(part_rows)]
        rows: NDArray[np.int64] = np.concatenate(numbers)  # (rows, 2): part, place in it
        if data.validation:
            keys = keyed_hash(np.arange(len(rows)).astype(np.uint64), seed=data.split_seed, stage="validation")
            rows = rows[(keys < threshold_for(data.validation)) == (split == "validation")]
        if not len(rows):
            raise CorpusError(f"{key} leaves no row for {split}; change data.validation, or export more")
        self._rows, self._key = rows, key

    def __len__(self) -> int:
        return len(self._rows)

    def _fingerprint(self, parts: list[bytes]) -> str:
        state = hashlib.blake2b(self._rows.tobytes(), digest_size=8)
        for part in parts:
            state.update(part)
        return state.hexdigest()

    @abstractmethod
    def sequence_lengths(self) -> list[NDArray[np.int64]]:
        """Return the lengths of each row's sequences."""

    @cached_property
    def _lengths(self) -> list[NDArray[np.int64]]:
        return self.sequence_lengths()

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of each row. Raises RecipeError where rows differ in length."""
        lengths = sorted({int(row.sum()) for row in self._lengths})
        if len(lengths) > 1:
            raise RecipeError(
                f"{self._key} mixes rows of {lengths[0]:,} and {lengths[-1]:,} tokens; name exports whose rows have one length, or "
                "name the runs under data.runs with data.pack"
            )
        return lengths[0]

    @cached_property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""
        return max(int(row.max()) for row in self._lengths)


class ParquetRows(_ExportedRows):
    """Rows of Parquet files, in the order of their names."""

    def __init__(self, data: Data, *, split: str) -> None:
        self._paths = [path for name in data.parquet for path in _parquet_files(Path(name).expanduser())]
        self._groups: list[tuple[Path, int]] = []
        rows: list[int] = []
        for path in self._paths:
            try:
                metadata = pq.ParquetFile(path).metadata
            except (pa.ArrowException, OSError) as error:
                reason = str(error).split(".")[0]
                raise RecipeError(
                    f"data.parquet: {path} cannot be read as Parquet ({reason}); name files of `nextlong export --to parquet`"
                ) from None
            if "input_ids" not in metadata.schema.to_arrow_schema().names:
                raise RecipeError(
                    f"data.parquet: {path} has no column input_ids; name files of `nextlong export --to parquet`"
                )
            if "seq_lengths_padded" in metadata.schema.to_arrow_schema().names:
                raise RecipeError(
                    f"data.parquet: {path} has padded documents, which this trainer does not need; export it without "
                    "export.pad_documents_to"
                )
            self._groups += [(path, group) for group in range(metadata.num_row_groups)]
            rows += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        super().__init__(rows, data, split=split, key="data.parquet")
        self._open: tuple[int, pa.Table] | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of the files' sizes and footers, and of which rows are read."""
        return self._fingerprint([f"{path.stat().st_size} ".encode() + _footer(path) for path in self._paths])

    def sequence_lengths(self) -> list[NDArray[np.int64]]:
        """Return the lengths of each row's sequences; without the column, a row is one sequence."""
        # A row group at a time, and only the column of lengths, so that no ids are read for them.
        lengths: list[NDArray[np.int64]] = []
        for group in np.unique(self._rows[:, 0]).tolist():
            table = self._read_group(group, "seq_lengths")
            places = self._rows[self._rows[:, 0] == group, 1].tolist()
            if table.num_columns:
                lengths += [table.column(0)[place].values.to_numpy() for place in places]
            else:
                ids = self._read_group(group, "input_ids").column(0)
                lengths += [np.array([len(ids[place])]) for place in places]
        return lengths

    def read(self, row: int) -> SourceRow:
        """Return a row, with spans if the file has them."""
        group, place = self._rows[row].tolist()
        if self._open is None or self._open[0] != group:
            self._open = group, self._read_group(group, "input_ids", "seq_lengths", "spans")
        columns = {name: self._open[1].column(name)[place] for name in self._open[1].column_names}
        ids = columns["input_ids"].values.to_numpy().astype(np.int64)
        lengths = np.array([len(ids)])
        if "seq_lengths" in columns:
            lengths = columns["seq_lengths"].values.to_numpy().astype(np.int64)
        if "spans" not in columns:
            return SourceRow(ids, lengths)
        spans = columns["spans"].as_py()
        if unknown := {span["role"] for span in spans} - set(ROLES):
            raise RecipeError(
                f"data.parquet: {self._groups[group][0]} has spans of role {min(unknown)!r}; known are "
                f"{', '.join(ROLES)}: name files of `nextlong export --to parquet`"
            )
        return SourceRow(ids, lengths, _spans(spans, lengths))

    def _read_group(self, group: int, *columns: str) -> pa.Table:
        """Return those of `columns` that the file of a row group has."""
        path, number = self._groups[group]
        reader = pq.ParquetFile(path)
        names = [name for name in columns if name in reader.schema_arrow.names]
        return reader.read_row_group(number, columns=names).combine_chunks()


def _parquet_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.rglob("*.parquet"))
    if not files:
        raise RecipeError(f"data.parquet: {path} holds no .parquet file; name files or a folder of them")
    return files


def _footer(path: Path) -> bytes:
    """Return the metadata at the end of a Parquet file; their length is in the eight bytes after them."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)


def _spans(row_spans: list[dict[str, Any]], lengths: NDArray[np.int64]) -> NDArray[np.void]:
    """Return exported spans as SPANS; `doc_id` separates the documents of a concatenation, their order the meta-chunks."""
    # One element per span, in the order of the row; `first` and `last` count the tokens of the row.
    spans = np.zeros(len(row_spans), SPANS)
    spans["chunk_id"] = [span["chunk_id"] for span in row_spans]
    spans["role"] = [ROLES.index(span["role"]) for span in row_spans]
    spans["first"] = [span["token_start"] for span in row_spans]
    spans["last"] = [span["token_end"] for span in row_spans]
    spans["sequence"] = np.searchsorted(np.cumsum(lengths), spans["first"], side="right")
    # `group` numbers the original documents of a concatenation, or the meta-chunks that negatives follow.
    documents = np.array([span["doc_id"] for span in row_spans])
    is_new = np.concatenate([[True], documents[1:] != documents[:-1]])
    is_extended = np.any(spans["role"] == META)
    spans["group"] = np.cumsum(spans["role"] == META if is_extended else is_new) - 1
    return spans


class MdsRows(_ExportedRows):
    """Rows of MDS folders, in the order of their shards."""

    def __init__(self, data: Data, *, split: str) -> None:
        self._shards = [shard for name in data.mds for shard in _shards(Path(name).expanduser()) if len(shard)]
        self._open: StoredShard | None = None
        super().__init__([len(shard) for shard in self._shards], data, split=split, key="data.mds")

    @property
    def fingerprint(self) -> str:
        """Hash of the indexes and of which rows are read."""
        return self._fingerprint([json.dumps(shard.entry, sort_keys=True).encode() for shard in self._shards])

    def sequence_lengths(self) -> list[NDArray[np.int64]]:
        """Return the lengths of each row's sequences."""
        return [self._mapped_row(row)[1] for row in range(len(self))]

    def read(self, row: int) -> SourceRow:
        """Return a row; MDS holds no spans."""
        ids, lengths = self._mapped_row(row)
        return SourceRow(ids.astype(np.int64), lengths)

    def _mapped_row(self, row: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
        """Return a row's ids, mapped where the shard is, and the lengths of its sequences."""
        number, place = self._rows[row].tolist()
        shard = self._shards[number]
        if shard is not self._open and self._open is not None:
            self._open.release()
        self._open = shard
        try:
            columns = shard[place]
        except UNREADABLE as error:
            raise RecipeError(f"data.mds: {shard.path} cannot be read ({error}); export it again") from None
        ids, indices = columns["input_ids"], columns.get("indices")
        lengths = np.array([len(ids)])
        if indices is not None:
            lengths = (indices[:, 1].astype(np.int64) - indices[:, 0]).astype(np.int64)
        if lengths.sum() != len(ids):
            raise RecipeError(
                f"data.mds: row {place} of {shard.path} has {len(ids):,} tokens, its `indices` cover {lengths.sum():,}; "
                "export it again"
            )
        return ids, lengths


def _shards(folder: Path) -> list[StoredShard]:
    """Return the shards of a folder's index. Raises RecipeError for an index or an encoding that cannot be read."""
    index = folder / "index.json"
    try:
        shards = shards_of(folder)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(
            f"data.mds: {index} cannot be read ({reason}); name folders of `nextlong export --to mds`"
        ) from None
    for shard in shards:
        encoding = next((encoding for name, encoding, _ in shard.columns if name == "input_ids"), "none")
        compression = shard.entry.get("compression")
        if not encoding.startswith("ndarray:") or compression not in (None, "zstd"):
            raise RecipeError(
                f"data.mds: {index} has input_ids encoded as {encoding}, compressed by {compression}; this reads ndarray "
                "with a dtype, plain or by zstd, as `nextlong export --to mds` writes it"
            )
    return shards
