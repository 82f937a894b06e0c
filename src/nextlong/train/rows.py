"""Rows: what a training step reads, with the boundaries of its documents, and which rows each step reads.

In:  finished runs (nothing is exported), exported Parquet, or conversations; which tokens see each other.
Out: `TrainingRow`s: ids, labels (−100 at the first token of a document), positions from 0 in each document, and its boundaries.

The rows of a step are a function of the seed and the step alone. So an interrupted training resumes at the very next row, and
nothing about the data is saved but a fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.artifacts.rows import epoch_order, original_lengths
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.torch import SequenceDataset
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Attention, Data, TrainRecipe, nearest_multiple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nextlong.train.chat import ChatRows
    from nextlong.train.exported import ParquetRows


@dataclass(frozen=True)
class TrainingRow:
    """T tokens: `input_ids`, `labels`, `position_ids` int64 (T,), `bounds` int32 (documents + 1,), `spans` (Rows.spans) or None."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    bounds: torch.Tensor
    spans: NDArray[np.void] | None


class SourceRow(NamedTuple):
    """A row as stored: ids (T,), lengths of its sequences, spans and predicted tokens (T,) if they are known (None: all)."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    spans: NDArray[np.void] | None = None
    is_target: NDArray[np.bool_] | None = None


def source_of(data: Data, *, split: str, tokenizer: PreTrainedTokenizerBase | None) -> Source:
    """Return the rows of one side of the split. Only conversations need `tokenizer`."""
    if data.runs:
        return RunRows(data, split=split)
    if data.chat:
        from nextlong.train.chat import ChatRows

        return ChatRows(data, split=split, tokenizer=tokenizer)
    from nextlong.train.exported import ParquetRows

    return ParquetRows(data, split=split)


def is_on_side(numbers: NDArray[np.int64], data: Data, *, split: str) -> NDArray[np.bool_]:
    """Return which of the numbered rows, or conversations, are on one side of the split: sampled by keyed hash."""
    keys = keyed_hash(numbers.astype(np.uint64), seed=data.split_seed, stage="validation")
    is_held_out: NDArray[np.bool_] = keys < threshold_for(data.validation)
    return is_held_out if split == "validation" else ~is_held_out


class RunRows:
    """Rows of finished runs, as SequenceDataset arranges them."""

    def __init__(self, data: Data, *, split: str) -> None:
        # Without validation every sequence is trained on, and the options of the split must not be given.
        splitting: dict[str, Any] = {}
        if data.validation:
            splitting = {"split": split, "validation": data.validation, "shared_chunks": data.shared_chunks}
            splitting |= {"split_seed": data.split_seed}
        columns = ["input_ids", "seq_lengths"]
        self._dataset = SequenceDataset(
            list(data.runs), mix=data.mix, by=data.by, pack=data.pack, columns=columns, **splitting
        )
        self.fingerprint: str = self._dataset.rows.fingerprint
        self.sequence_tokens: int = self._dataset.rows.longest
        lengths = np.unique(self._dataset.rows.index["length"]).tolist()
        if data.pack is None and len(lengths) > 1:
            raise RecipeError(
                f"data.runs mixes sequences of {lengths[0]:,} to {lengths[-1]:,} tokens, so rows would differ in length; set "
                f"data.pack={lengths[-1]}, which puts several short ones into a row"
            )

    def __len__(self) -> int:
        return len(self._dataset)

    @cached_property
    def row_tokens(self) -> int:
        """The tokens of the longest row."""
        return max(int(self._dataset.rows.lengths(row).sum()) for row in range(len(self)))

    def read(self, row: int) -> SourceRow:
        """Return a row with its spans."""
        tensors = self._dataset[row]
        spans = self._dataset.rows.spans(row)
        return SourceRow(tensors["input_ids"].numpy(), tensors["seq_lengths"].numpy(), spans)


# Stored rows: a fingerprint of which sequences are in which row, the tokens of the longest row and sequence, and `read(row)`.
Source: TypeAlias = "RunRows | ChatRows | ParquetRows"


class TrainingRows:
    """The rows of a source as a trainer takes them, for a model that knows `vocabulary` ids (None: not checked)."""

    def __init__(self, source: Source, *, attention: Attention, vocabulary: int | None = None) -> None:
        self.source, self._attention, self._vocabulary = source, attention, vocabulary

    def __len__(self) -> int:
        return len(self.source)

    @property
    def longest_document(self) -> int:
        """The tokens of the longest document, at most; positions count to it."""
        return self.source.row_tokens if self._attention == "row" else self.source.sequence_tokens

    def __getitem__(self, row: int) -> TrainingRow:
        ids, lengths, spans, is_target = self.source.read(row)
        if self._vocabulary is not None and (highest := int(ids.max())) >= self._vocabulary:
            raise TokenizerError(
                f"row {row} of data holds the id {highest:,}, and the model knows {self._vocabulary:,}; train a model with the "
                "tokenizer that the data were made with (model.path, or model.scratch.vocabulary)"
            )
        if self._attention == "row":
            lengths = lengths.sum(keepdims=True)
        elif self._attention == "document":
            if spans is None:
                raise RecipeError(
                    "attention: document needs to know the documents of each row; use runs or Parquet with spans"
                )
            lengths = original_lengths(lengths, spans)
        # Document d is ids[bounds[d]:bounds[d + 1]]; bounds is int64 (documents + 1,), ascending from 0 to T.
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        labels = ids.astype(np.int64)
        labels[bounds[:-1]] = IGNORED  # the previous document must not predict the first token of the next
        if is_target is not None:
            labels[~is_target] = IGNORED
        positions = np.arange(len(ids)) - np.repeat(bounds[:-1], np.diff(bounds))
        columns = (torch.from_numpy(column.astype(np.int64)) for column in (ids, labels, positions))
        input_ids, label_ids, position_ids = columns
        return TrainingRow(input_ids, label_ids, position_ids, torch.from_numpy(bounds.astype(np.int32)), spans)


def flat(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Lay rows end to end; return a batch as `packed_batch` does."""
    bounds = [0]
    for row in rows:
        bounds += (row.bounds[1:] + bounds[-1]).tolist()
    batch = packed_batch(torch.cat([row.input_ids for row in rows])[None], bounds)
    return batch | {"labels": torch.cat([row.labels for row in rows])[None]}


def packed_batch(input_ids: torch.Tensor, bounds: Sequence[int]) -> dict[str, Any]:
    """Return what a model call takes of ids (1, T) whose documents lie between `bounds`, [0, …, T].

    Columns (1, T), and where the documents begin and end, also as Python integers (`document_bounds`), so that no layer waits
    for the device to read them.
    """
    labels = input_ids.clone()
    labels[0, list(bounds[:-1])] = IGNORED
    positions = torch.cat([torch.arange(last - first) for first, last in pairwise(bounds)])[None]
    columns = {"input_ids": input_ids, "labels": labels, "position_ids": positions}
    return {**columns, "cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32), "document_bounds": tuple(bounds)}


def on_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device."""
    return {
        name: one.to(device, non_blocking=True) if isinstance(one, torch.Tensor) else one for name, one in batch.items()
    }


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which of `rows` rows each step reads: `rows_per_step` of them, `micro_batch_rows` at once."""

    rows: int
    rows_per_step: int
    micro_batch_rows: int
    seed: int

    def epoch(self, step: int) -> float:
        """Return how many times the data will have been read after `step` steps."""
        return step / (self.rows // self.rows_per_step)

    def micro_batches(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step (counted from 0), shape (micro batches, micro_batch_rows).

        Rows of an epoch that do not fill a step are skipped; another epoch skips others.
        """
        epoch, place = divmod(step, self.rows // self.rows_per_step)
        # All row numbers, int64 (rows,), shuffled by seed and epoch.
        order = epoch_order(self.rows, order="shuffled", seed=self.seed, epoch=epoch)
        first = place * self.rows_per_step
        numbers: NDArray[np.int64] = order[first : first + self.rows_per_step]
        return numbers.reshape(-1, self.micro_batch_rows)


def plan_batches(recipe: TrainRecipe, *, rows: int, row_tokens: int) -> BatchPlan:
    """Return the plan for `rows` rows. Raises RecipeError or CorpusError if a step cannot be made of whole rows."""
    tokens_per_step, at_once = recipe.training.tokens_per_step, recipe.training.micro_batch_rows
    rows_per_step, rest = divmod(tokens_per_step, row_tokens)
    if rest or not rows_per_step:
        near = nearest_multiple(tokens_per_step, row_tokens=row_tokens)
        raise RecipeError(
            f"training.tokens_per_step={tokens_per_step:,} is not a multiple of a row's {row_tokens:,} tokens; use {near}"
        )
    if rows_per_step % at_once:
        raise RecipeError(
            f"a step has {rows_per_step} rows, which is not a multiple of training.micro_batch_rows={at_once}; "
            "change training.tokens_per_step or training.micro_batch_rows"
        )
    if rows < rows_per_step:
        raise CorpusError(
            f"there are {rows} rows to train on and a step needs {rows_per_step}; make more sequences, or lower "
            "training.tokens_per_step"
        )
    return BatchPlan(rows=rows, rows_per_step=rows_per_step, micro_batch_rows=at_once, seed=recipe.seed)
