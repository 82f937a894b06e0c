"""Parquet: rows that were exported, here or elsewhere.

In:  files or folders with the columns `input_ids`, and, where they are, `seq_lengths` and `spans`.
Out: rows by number. A row group is read when a row of it is asked for, and kept for the next.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nextlong.artefacts.rows import SPANS
from nextlong.errors import CorpusError, RecipeError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import META, ROLES
from nextlong.train.recipe import Data


class ParquetRows:
    """Rows of Parquet files, in the order of their names; a share is held out by keyed hash of the row's number."""

    def __init__(self, data: Data, *, split: str) -> None:
        self._paths = [path for named in data.parquet for path in _files(Path(named).expanduser())]
        self._groups: list[tuple[int, int]] = []  # file, row group
        rows: list[NDArray[np.int64]] = []
        for number, path in enumerate(self._paths):
            metadata = _metadata(path)
            if "input_ids" not in metadata.schema.to_arrow_schema().names:
                raise RecipeError(
                    f"data.parquet: {path} has no column input_ids; name files of `nextlong export --to parquet`"
                )
            for group in range(metadata.num_row_groups):
                place = np.arange(metadata.row_group(group).num_rows)
                rows.append(np.stack([np.full_like(place, len(self._groups)), place], axis=1))
                self._groups.append((number, group))
        self._rows = side_of(np.concatenate(rows), data, split=split, key="data.parquet")
        self._held: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """Hash of the files and of which rows are read."""
        state = hashlib.blake2b(self._rows.tobytes(), digest_size=8)
        for path in self._paths:
            state.update(f"{path.stat().st_size} ".encode() + _footer(path))
        return state.hexdigest()

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of each row. Raises RecipeError where rows differ in length."""
        row_lengths = sorted({int(lengths.sum()) for lengths in self._lengths})
        if len(row_lengths) > 1:
            raise RecipeError(
                f"data.parquet mixes rows of {row_lengths[0]:,} and {row_lengths[-1]:,} tokens; name files whose rows "
                "have one length, or name the runs under data.runs with data.pack"
            )
        return row_lengths[0]

    @cached_property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""
        return max(int(lengths.max()) for lengths in self._lengths)

    @cached_property
    def _lengths(self) -> list[NDArray[np.int64]]:
        """The lengths of each row's sequences, by row group."""
        lengths: list[NDArray[np.int64]] = []
        for group in np.unique(self._rows[:, 0]).tolist():
            table = self._read_group(group, columns=("seq_lengths",))
            places = self._rows[self._rows[:, 0] == group, 1].tolist()
            if table.num_columns:
                lengths += [table.column(0)[place].values.to_numpy() for place in places]
            else:
                ids = self._read_group(group, columns=("input_ids",)).column(0)
                lengths += [np.array([len(ids[place])]) for place in places]
        return lengths

    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]:
        """Return ids, lengths of the sequences, and spans if the file has them."""
        group, place = self._rows[row].tolist()
        table = self._group(group)
        ids = table.column("input_ids")[place].values.to_numpy().astype(np.int64)
        names = table.column_names
        lengths = np.array([len(ids)])
        if "seq_lengths" in names:
            lengths = table.column("seq_lengths")[place].values.to_numpy().astype(np.int64)
        spans = table.column("spans")[place].as_py() if "spans" in names else None
        if unknown := {span["role"] for span in spans or []} - set(ROLES):
            raise RecipeError(
                f"data.parquet: {self._paths[self._groups[group][0]]} has spans of role {min(unknown)!r}; known are "
                f"{', '.join(ROLES)}: name files of `nextlong export --to parquet`"
            )
        return ids, lengths, None if spans is None else _spans(spans, lengths)

    def is_target(self, row: int) -> None:  # noqa: ARG002
        """Every token is to be predicted."""
        return

    def _group(self, group: int) -> Any:
        if self._held is None or self._held[0] != group:
            self._held = group, self._read_group(group, columns=("input_ids", "seq_lengths", "spans"))
        return self._held[1]

    def _read_group(self, group: int, *, columns: tuple[str, ...]) -> Any:
        """Return those of `columns` that the file of a row group has."""
        file, number = self._groups[group]
        reader = pq.ParquetFile(self._paths[file])
        there = [name for name in columns if name in reader.schema_arrow.names]
        return reader.read_row_group(number, columns=there).combine_chunks()


def side_of(rows: NDArray[np.int64], data: Data, *, split: str, key: str) -> NDArray[np.int64]:
    """Return the exported rows of one side of the split, by keyed hash of their numbers. Raises CorpusError if there is none."""
    if data.validation:
        keys = keyed_hash(np.arange(len(rows)).astype(np.uint64), seed=data.split_seed, stage="validation")
        rows = rows[(keys < threshold_for(data.validation)) == (split == "validation")]
    if not len(rows):
        raise CorpusError(f"{key} leaves no row for {split}; change data.validation, or export more")
    return rows


def _spans(row_spans: list[dict[str, Any]], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return exported spans as SPANS; documents of a concatenation are told apart by `doc_id`, meta-chunks by their order."""
    spans = np.zeros(len(row_spans), SPANS)
    spans["chunk_id"] = [span["chunk_id"] for span in row_spans]
    spans["role"] = [ROLES.index(span["role"]) for span in row_spans]
    spans["first"] = [span["token_start"] for span in row_spans]
    spans["last"] = [span["token_end"] for span in row_spans]
    spans["sequence"] = np.searchsorted(np.cumsum(lengths), spans["first"], side="right")
    documents = np.array([span["doc_id"] for span in row_spans])
    is_new = np.concatenate([[True], documents[1:] != documents[:-1]])
    is_extended = np.any(spans["role"] == META)
    spans["group"] = np.cumsum(spans["role"] == META if is_extended else is_new) - 1
    return spans


def _metadata(path: Path) -> pq.FileMetaData:
    try:
        return pq.ParquetFile(path).metadata
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split(".")[0]
        raise RecipeError(
            f"data.parquet: {path} cannot be read as Parquet ({reason}); name files of `nextlong export --to parquet`"
        ) from None


def _footer(path: Path) -> bytes:
    """Return the metadata at the end of a Parquet file: their length stands in the eight bytes after them."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)


def _files(named: Path) -> list[Path]:
    if named.is_file():
        return [named]
    parquet_files = sorted(named.rglob("*.parquet"))
    if not parquet_files:
        raise RecipeError(f"data.parquet: {named} holds no .parquet file; name files or a folder of them")
    return parquet_files
