"""Splits: what is counted of the rows of a data set, by split; `rows` counts it, and warnings, cards and summaries tell it."""

from __future__ import annotations

from nextlong.results import Result


class SplitResult(Result):
    """Rows of a split and what is in them; of each run of a mix its sequences and tokens; rows that are not full."""

    rows: int
    sequences: int
    documents: int
    tokens: int
    of_runs: tuple[tuple[int, int], ...] = ()
    short_rows: int = 0
    chunks: int = 0  # distinct; 0 in runs that did not count them
    chunks_in_train: int = 0  # of these, in validation


class RowsResult(Result):
    """The splits, and the sequences that are in neither because they share chunks."""

    left_out: int
    train: SplitResult
    validation: SplitResult | None = None

    @property
    def splits(self) -> dict[str, SplitResult]:
        """The splits that there are, by name."""
        return {"train": self.train} | ({} if self.validation is None else {"validation": self.validation})
