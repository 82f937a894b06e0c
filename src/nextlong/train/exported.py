"""Exported rows: Parquet files, written here or by others.

In:  Parquet files or folders with a column `input_ids` and, optionally, `seq_lengths` and `spans`.
Out: rows by number. A row group is read when one of its rows is requested, and kept for the next row.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nextlong.artifacts.rows import SPANS
from nextlong.errors import CorpusError, RecipeError
from nextlong.schemas import META, ROLES
from nextlong.train.recipe import Data
from nextlong.train.rows import SourceRow, is_on_side


class ParquetRows:
    """Rows of Parquet files, in the order of their names; validation rows are sampled by keyed hash of the row's number."""

    def __init__(self, data: Data, *, split: str) -> None:
        self._groups: list[tuple[Path, int]] = []
        state, counts = hashlib.blake2b(digest_size=8), []
        paths = []
        for path in (Path(name).expanduser() for name in data.parquet):
            if not (found := [path] if path.is_file() else sorted(path.rglob("*.parquet"))):
                raise RecipeError(f"data.parquet: {path} holds no .parquet file; name files or a folder of them")
            paths += found
        for path in paths:
            try:
                metadata = pq.ParquetFile(path).metadata
            except (pa.ArrowException, OSError) as error:
                reason = str(error).split(".")[0]
                raise RecipeError(
                    f"data.parquet: {path} cannot be read as Parquet ({reason}); name files of `nextlong export --to parquet`"
                ) from None
            names = metadata.schema.to_arrow_schema().names
            if "input_ids" not in names:
                raise RecipeError(
                    f"data.parquet: {path} has no column input_ids; name files of `nextlong export --to parquet`"
                )
            if "seq_lengths_padded" in names:
                raise RecipeError(
                    f"data.parquet: {path} has padded documents, which this trainer does not need; export it without "
                    "export.pad_documents_to"
                )
            state.update(repr(metadata.to_dict()).encode())  # has offsets and statistics of all columns
            self._groups += [(path, group) for group in range(metadata.num_row_groups)]
            counts += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        # The row group of each row and its place there, int64 (rows, 2).
        places = [np.stack([np.full(count, group), np.arange(count)], axis=1) for group, count in enumerate(counts)]
        rows: NDArray[np.int64] = np.concatenate(places)
        self._rows = rows[is_on_side(np.arange(len(rows)), data, split=split)]
        if not len(self._rows):
            raise CorpusError(f"data.parquet leaves no row for {split}; change data.validation, or export more")
        state.update(self._rows.tobytes())
        self.fingerprint: str = state.hexdigest()  # of the files' metadata, and of which rows are read
        self._open: tuple[int, tuple[str, ...], pa.Table] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _lengths(self) -> list[NDArray[np.int64]]:
        """The lengths of each row's sequences; without the column `seq_lengths`, a row is one sequence."""
        lengths = []
        for row in range(len(self)):  # only the column of lengths is read, if there is one
            column = self._columns(row, "seq_lengths") or self._columns(row, "input_ids")
            ((name, values),) = column.items()
            lengths.append(values if name == "seq_lengths" else np.array([len(values)]))
        return lengths

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of each row. Raises RecipeError where rows differ in length."""
        lengths = sorted({int(row.sum()) for row in self._lengths})
        if len(lengths) > 1:
            raise RecipeError(
                f"data.parquet mixes rows of {lengths[0]:,} and {lengths[-1]:,} tokens; name exports whose rows have one length, "
                "or name the runs under data.runs with data.pack"
            )
        return lengths[0]

    @cached_property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""
        return max(int(row.max()) for row in self._lengths)

    def read(self, row: int) -> SourceRow:
        """Return a row, with spans if the file has them."""
        columns = self._columns(row, "input_ids", "seq_lengths", "spans")
        ids = columns["input_ids"].astype(np.int64)
        lengths = columns.get("seq_lengths", np.array([len(ids)])).astype(np.int64)
        if "spans" not in columns:
            return SourceRow(ids, lengths)
        row_spans = columns["spans"]
        if unknown := {span["role"] for span in row_spans} - set(ROLES):
            raise RecipeError(
                f"data.parquet: {self._groups[self._rows[row, 0]][0]} has spans of role {min(unknown)!r}; known are "
                f"{', '.join(ROLES)}: name files of `nextlong export --to parquet`"
            )
        # SPANS: one element per span, in the order of the row; `first` and `last` count the tokens of the row.
        spans = np.zeros(len(row_spans), SPANS)
        spans["chunk_id"] = [span["chunk_id"] for span in row_spans]
        spans["role"] = [ROLES.index(span["role"]) for span in row_spans]
        spans["first"] = [span["token_start"] for span in row_spans]
        spans["last"] = [span["token_end"] for span in row_spans]
        spans["sequence"] = np.searchsorted(np.cumsum(lengths), spans["first"], side="right")
        # `group` numbers the original documents of a concatenation, or the meta-chunks that negatives follow.
        documents = np.array([span["doc_id"] for span in row_spans])
        is_new = np.concatenate([[True], documents[1:] != documents[:-1]])
        is_meta = spans["role"] == META
        spans["group"] = np.cumsum(is_meta if is_meta.any() else is_new) - 1
        return SourceRow(ids, lengths, spans)

    def _columns(self, row: int, *columns: str) -> dict[str, Any]:
        """Return those of `columns` that the file of a row has; its row group is kept for the next row."""
        group, place = self._rows[row].tolist()
        if self._open is None or self._open[:2] != (group, columns):
            path, number = self._groups[group]
            reader = pq.ParquetFile(path)
            names = [name for name in columns if name in reader.schema_arrow.names]
            self._open = group, columns, reader.read_row_group(number, columns=names).combine_chunks()
        found = {name: self._open[2].column(name)[place] for name in self._open[2].column_names}
        return {name: one.as_py() if name == "spans" else one.values.to_numpy() for name, one in found.items()}
