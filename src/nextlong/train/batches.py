"""Batches: which rows each step reads, a function of the seed and the step alone.

So an interrupted training goes on at the very next row, and nothing about the data needs to be saved but that it is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.ranks import epoch_order
from nextlong.errors import CorpusError, RecipeError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`rows` rows, `rows_per_step` a step, `micro_batch_rows` at once."""

    rows: int
    rows_per_step: int
    micro_batch_rows: int
    seed: int

    def epoch(self, step: int) -> float:
        """Return how many times the data will have been read after `step` steps."""
        return step / (self.rows // self.rows_per_step)

    def micro_batches(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step (counted from 0), shape (micro batches, micro_batch_rows).

        An epoch's rows that do not fill a step are left out of it; another epoch leaves out others.
        """
        epoch, place = divmod(step, self.rows // self.rows_per_step)
        order = epoch_order(self.rows, order="shuffled", seed=self.seed, epoch=epoch)
        first = place * self.rows_per_step
        numbers: NDArray[np.int64] = order[first : first + self.rows_per_step]
        return numbers.reshape(-1, self.micro_batch_rows)


def nearest_multiple(tokens_per_step: int, *, row_tokens: int) -> int:
    """Return the tokens of whole rows, at least one, that come nearest."""
    return max(1, round(tokens_per_step / row_tokens)) * row_tokens


def plan_batches(*, rows: int, row_tokens: int, tokens_per_step: int, micro_batch_rows: int, seed: int) -> Plan:
    """Return the plan, or raise a user's error if a step cannot be made of whole rows."""
    rows_per_step, rest = divmod(tokens_per_step, row_tokens)
    if rest or not rows_per_step:
        near = nearest_multiple(tokens_per_step, row_tokens=row_tokens)
        raise RecipeError(
            f"training.tokens_per_step={tokens_per_step:,} is not a multiple of a row's {row_tokens:,} tokens; use {near}"
        )
    if rows_per_step % micro_batch_rows:
        raise RecipeError(
            f"a step has {rows_per_step} rows, which is not a multiple of training.micro_batch_rows={micro_batch_rows}; "
            "change training.tokens_per_step or training.micro_batch_rows"
        )
    if rows < rows_per_step:
        raise CorpusError(
            f"there are {rows} rows to train on and a step needs {rows_per_step}; make more sequences, or lower "
            "training.tokens_per_step"
        )
    return Plan(rows=rows, rows_per_step=rows_per_step, micro_batch_rows=micro_batch_rows, seed=seed)
