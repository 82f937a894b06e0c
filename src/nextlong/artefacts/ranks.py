"""Deal: which rows of a data set each rank and worker reads, in what order.

In:  how many rows there are, and who asks: seed, epoch, rank, worker.
Out: row numbers.

Pure functions of their arguments, so nobody has to agree with anybody: every rank and worker computes its own share, and
an interrupted epoch goes on from one number, how many rows all ranks have read, whatever the number of ranks or workers then.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.rng import keyed_hash

Order = Literal["shuffled", "arranged"]
Remainder = Literal["keep", "drop", "repeat"]


def epoch_order(rows: int, *, order: Order, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the row numbers of an epoch, shape (rows,): as arranged, or shuffled by their keyed hash."""
    numbers = np.arange(rows)
    if order == "arranged":
        return numbers
    return np.argsort(keyed_hash(numbers.astype(np.uint64), seed=seed, stage=f"epoch {epoch}"))


def rank_places(rows: int, *, start: int, rank: int, world_size: int, remainder: Remainder) -> NDArray[np.int64]:
    """Return the places in the epoch's order that a rank reads once all ranks have read `start` rows: every world_size-th.

    Rows that do not go evenly into the ranks are kept (the first ranks read one more), dropped, or filled up with the
    epoch's first rows, so that all ranks read equally many.
    """
    left = rows - start
    if remainder == "drop":
        left -= left % world_size
    elif remainder == "repeat":
        left += -left % world_size
    places = np.arange(start + rank, start + left, world_size)
    return places % max(1, rows)


def worker_part(places: NDArray[np.int64], *, worker: int, workers: int, batch_size: int) -> NDArray[np.int64]:
    """Return a rank's places that one of its workers reads: every `workers`-th batch.

    A DataLoader asks its workers for one batch each in turn, so it gets the batches in order, however many workers it has.
    """
    batches = np.arange(len(places)) // batch_size
    worker_places: NDArray[np.int64] = places[batches % workers == worker]
    return worker_places
