"""Rows: what a training step reads, with the borders of its documents.

In:  finished runs (nothing is exported), exported Parquet or MDS, or conversations; which tokens see each other.
Out: `Row`s: ids, labels (−100 at the first token of a document), positions from 0 in each document, and its borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.artefacts.rows import original_lengths
from nextlong.errors import RecipeError, TokenizerError
from nextlong.torch import SequenceDataset
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Attention, Data


@dataclass(frozen=True)
class Row:
    """T tokens: `input_ids`, `labels`, `position_ids` int64 (T,), `bounds` int32 (documents + 1,), `spans` (Rows.spans) or None."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    bounds: torch.Tensor
    spans: NDArray[Any] | None


class Source(Protocol):
    """Where rows come from."""

    @property
    def fingerprint(self) -> str:
        """Hash of which sequences stand in which row."""

    @property
    def row_tokens(self) -> int:
        """The tokens of the longest row."""

    @property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""

    def __len__(self) -> int: ...
    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]:
        """Return ids (T,), the lengths of the row's sequences, and its spans if they are known."""

    def is_target(self, row: int) -> NDArray[np.bool_] | None:
        """Return which tokens are to be predicted, (T,); None: all."""


class RunRows:
    """Rows of finished runs, as SequenceDataset arranges them."""

    def __init__(self, data: Data, *, split: str) -> None:
        splitting: dict[str, Any] = {}
        if data.validation:
            splitting = {"split": split, "validation": data.validation, "shared_chunks": data.shared_chunks}
            splitting |= {"split_seed": data.split_seed}
        self._dataset = SequenceDataset(
            list(data.runs), mix=data.mix, by=data.by, pack=data.pack, columns=["input_ids", "seq_lengths"], **splitting
        )
        self._check_lengths(data)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def fingerprint(self) -> str:
        """Hash of which sequences stand in which row."""
        return self._dataset.rows.fingerprint

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of the longest row."""
        return max(int(self._dataset.rows.lengths(row).sum()) for row in range(len(self)))

    @property
    def sequence_tokens(self) -> int:
        """The tokens of the longest sequence."""
        return self._dataset.rows.longest

    def _check_lengths(self, data: Data) -> None:
        if data.pack is not None:
            return
        lengths = sorted({int(length) for length in self._dataset.rows.index["length"]})
        if len(lengths) > 1:
            mixed = " and ".join(f"{length:,}" for length in lengths)
            raise RecipeError(
                f"data.runs mixes sequences of {mixed} tokens, so rows would differ in length; set data.pack={lengths[-1]}, which "
                "puts several short ones into a row"
            )

    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]:
        tensors = self._dataset[row]
        return tensors["input_ids"].numpy(), tensors["seq_lengths"].numpy(), self._dataset.rows.spans(row)

    def is_target(self, row: int) -> None:  # noqa: ARG002
        return None


class TrainingRows:
    """The rows of a source as a trainer takes them, for a model that knows `vocabulary` ids (None: not looked at)."""

    def __init__(self, source: Source, *, attention: Attention, vocabulary: int | None = None) -> None:
        self.source, self._attention, self._vocabulary = source, attention, vocabulary

    def __len__(self) -> int:
        return len(self.source)

    @property
    def longest_document(self) -> int:
        """The tokens of the longest document, at most; positions count to it."""
        return self.source.row_tokens if self._attention == "row" else self.source.sequence_tokens

    def __getitem__(self, row: int) -> Row:
        ids, lengths, spans = self.source.read(row)
        if self._vocabulary is not None and (highest := int(ids.max())) >= self._vocabulary:
            raise TokenizerError(
                f"row {row} of data holds the id {highest:,}, and the model knows {self._vocabulary:,}; train a model with the "
                "tokenizer that the data were made with (model.path, or model.scratch.vocabulary)"
            )
        bounds = _bounds(lengths, spans, attention=self._attention)
        labels, positions = ids.copy(), np.arange(len(ids))
        labels[bounds[:-1]] = IGNORED
        target = self.source.is_target(row)
        if target is not None:
            labels[~target] = IGNORED
        positions -= np.repeat(bounds[:-1], np.diff(bounds))
        return Row(_tensor(ids), _tensor(labels), _tensor(positions), torch.from_numpy(bounds.astype(np.int32)), spans)


def flat(rows: Sequence[Row]) -> dict[str, Any]:
    """Lay rows end to end: columns (1, all tokens), and where the documents begin and end, counting through all rows.

    The borders are given as Python integers, too (`document_bounds`), so that no layer waits for the device to read them.
    """
    firsts = np.cumsum([0, *(len(row.input_ids) for row in rows)]).tolist()
    bounds = [row.bounds[1:] + first for row, first in zip(rows, firsts, strict=False)]
    ends = torch.cat([torch.zeros(1, dtype=torch.int32), *bounds]).to(torch.int32)
    return {
        "input_ids": torch.cat([row.input_ids for row in rows])[None],
        "labels": torch.cat([row.labels for row in rows])[None],
        "position_ids": torch.cat([row.position_ids for row in rows])[None],
        "cu_seq_lens_q": ends,
        "document_bounds": tuple(ends.tolist()),
    }


def on_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device."""
    return {
        name: one.to(device, non_blocking=True) if isinstance(one, torch.Tensor) else one for name, one in batch.items()
    }


def _tensor(column: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(column.astype(np.int64))


def source_of(data: Data, *, split: str, tokenizer: Any) -> Source:
    """Return the rows of one side of the split. `tokenizer` writes conversations and is not needed for others."""
    if data.runs:
        return RunRows(data, split=split)
    if data.parquet:
        from nextlong.train.parquet import ParquetRows

        return ParquetRows(data, split=split)
    if data.mds:
        from nextlong.train.mds import MdsRows

        return MdsRows(data, split=split)
    from nextlong.train.chat import ChatRows

    return ChatRows(data, split=split, tokenizer=tokenizer)


def _bounds(lengths: NDArray[np.int64], spans: NDArray[Any] | None, *, attention: Attention) -> NDArray[np.int64]:
    """Return where the documents of a row begin and end, (documents + 1,), in the sense of the key `attention`."""
    if attention == "row":
        return np.array([0, lengths.sum()])
    if attention == "document":
        if spans is None:
            raise RecipeError(
                "attention: document needs to know the documents of each row; use runs or Parquet with spans"
            )
        lengths = original_lengths(lengths, spans)
    return np.concatenate([[0], np.cumsum(lengths)])
