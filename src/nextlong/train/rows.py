"""Rows: what a training step reads, with the boundaries of its documents.

In:  rows as stored (`sources.py`); which tokens see each other.
Out: `TrainingRow`s: ids, labels (−100 at the first token of a document), positions from
     0 in each document, and its boundaries; batches of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nextlong.arrays import Bools, Ints
from nextlong.artifacts.rows import original_lengths
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.text import counted
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Attention, TrainRecipe, nearest_multiple


@dataclass(frozen=True)
class TrainingRow:
    """T tokens, as a model takes them.

    input_ids, labels, position_ids: int64 (T,)
    bounds: int32 (documents + 1,)
    spans: as `Rows.spans`, or None
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    bounds: torch.Tensor
    spans: NDArray[np.void] | None


class SourceRow(NamedTuple):
    """A row as stored: T ids, and the lengths of its sequences.

    spans: if they are known
    is_target: which tokens (T,) are to be predicted; None: all
    """

    ids: Ints
    lengths: Ints
    spans: NDArray[np.void] | None = None
    is_target: Bools | None = None


@dataclass(frozen=True)
class TrainingRows:
    """Rows as a trainer takes them.

    count: number of rows
    row_tokens, sequence_tokens: tokens of the longest row, and of the longest sequence
    fingerprint: of their contents
    read: return a row as stored
    dropped: conversations that are longer than a row
    attention: which tokens see each other
    vocabulary: ids that the model knows; None: not checked
    """

    count: int
    row_tokens: int
    sequence_tokens: int
    fingerprint: str
    read: Callable[[int], SourceRow]
    dropped: int = 0
    attention: Attention = "sequence"
    vocabulary: int | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> TrainingRow:
        source = self.read(row)
        self._check_vocabulary(row, source.ids)
        lengths = source.lengths
        # Which tokens see each other: lengths become those of the documents of the
        # mask.
        if self.attention == "row":
            lengths = lengths.sum(keepdims=True)
        elif self.attention == "document":
            if source.spans is None:
                raise RecipeError(
                    where="attention",
                    value="document",
                    problem="needs the documents of each row",
                    fix="use runs or Parquet with spans",
                )
            lengths = original_lengths(lengths, source.spans)
        ids = torch.from_numpy(source.ids.astype(np.int64))
        bounds = list(accumulate(lengths.tolist(), initial=0))
        batch = packed_batch(ids[None], bounds)
        labels = batch["labels"][0]
        # What is not predicted is read all the same.
        if source.is_target is not None:
            labels[~torch.from_numpy(source.is_target)] = IGNORED
        return TrainingRow(
            input_ids=batch["input_ids"][0],
            labels=labels,
            position_ids=batch["position_ids"][0],
            bounds=batch["cu_seq_lens_q"],
            spans=source.spans,
        )

    def _check_vocabulary(self, row: int, ids: Ints) -> None:
        """Raise TokenizerError if a row holds an id that the model does not know."""
        highest = int(ids.max())
        if self.vocabulary is not None and highest >= self.vocabulary:
            raise TokenizerError(
                where=f"row {row} of data",
                problem=f"it holds the id {highest:,}, and the model knows "
                f"{self.vocabulary:,}",
                fix="train a model with the tokenizer that the data were made with "
                "(model.path, or model.scratch.vocabulary)",
            )


def flat(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Lay rows end to end; return a batch as `packed_batch` does."""
    lengths: list[int] = []
    for row in rows:
        lengths += row.bounds.diff().tolist()
    ids = torch.cat([row.input_ids for row in rows])
    labels = torch.cat([row.labels for row in rows])
    batch = packed_batch(ids[None], list(accumulate(lengths, initial=0)))
    return {**batch, "labels": labels[None]}


def packed_batch(input_ids: torch.Tensor, bounds: Sequence[int]) -> dict[str, Any]:
    """Return a model call's inputs: ids (1, T) whose documents lie between `bounds`.

    Bounds are [0, …, T]. Columns are (1, T); where the documents begin and end is there
    twice, also as Python integers (`document_bounds`), so that no layer waits for the
    device to read them.
    """
    edges = torch.tensor(bounds)
    starts = edges[:-1]
    labels = input_ids.clone()
    # The previous document must not predict the first token of the next.
    labels[0, starts] = IGNORED
    # Positions begin at 0 in each document.
    start_of_token = starts.repeat_interleave(edges.diff(), output_size=bounds[-1])
    positions = torch.arange(bounds[-1]) - start_of_token
    return {
        "input_ids": input_ids,
        "labels": labels,
        "position_ids": positions[None],
        "cu_seq_lens_q": edges.to(torch.int32),
        "document_bounds": tuple(bounds),
    }


def on_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device."""
    moved = dict(batch)
    for name, column in batch.items():
        if isinstance(column, torch.Tensor):
            moved[name] = column.to(device, non_blocking=True)
    return moved


def step_rows(recipe: TrainRecipe, *, rows: int, row_tokens: int) -> int:
    """Return how many of `rows` rows a step reads.

    Raises RecipeError or CorpusError if it cannot be made of whole rows.
    """
    tokens_per_step = recipe.training.tokens_per_step
    rows_at_once = recipe.training.micro_batch_rows
    where = "training.tokens_per_step"
    rows_per_step, rest = divmod(tokens_per_step, row_tokens)
    if rest or not rows_per_step:
        raise RecipeError(
            where=where,
            value=f"{tokens_per_step:,}",
            problem=f"is not a multiple of a row's {row_tokens:,} tokens",
            fix=f"use {nearest_multiple(tokens_per_step, row_tokens=row_tokens)}",
        )
    if rows_per_step % rows_at_once:
        raise RecipeError(
            where=where,
            value=f"{tokens_per_step:,}",
            problem=f"gives a step {rows_per_step} rows, which is not a multiple of "
            f"training.micro_batch_rows={rows_at_once}",
            fix="change training.tokens_per_step or training.micro_batch_rows",
        )
    if rows < rows_per_step:
        raise CorpusError(
            where=where,
            value=f"{tokens_per_step:,}",
            problem=f"needs {rows_per_step} rows for a step, and there are "
            f"{counted(rows, 'row')} to train on",
            fix="make more sequences, or lower training.tokens_per_step",
        )
    return rows_per_step
