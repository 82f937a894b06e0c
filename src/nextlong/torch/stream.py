"""Stream: the rows of a data set as an iterable one, shared by ranks and DataLoader workers, resumable.

Each worker computes which rows it reads from (seed, epoch, rank, worker); progress is one number, how many rows all
ranks have read, so an epoch goes on exactly, with another number of workers or ranks too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from nextlong import errors
from nextlong.artifacts.rows import Order, Remainder, epoch_order, rank_places, worker_part
from nextlong.torch.dataset import Row, check_word

if TYPE_CHECKING:
    from nextlong.torch.dataset import SequenceDataset


class State(TypedDict):
    """Where a rank is: rows of the epoch that all ranks have read, and how many one of its workers read since."""

    epoch: int
    position: int
    workers: int
    read: int
    data: str


class SequenceStream(IterableDataset):  # type: ignore[misc]
    """One rank's rows of each epoch, in an order that does not depend on how many workers read them.

    `order`: shuffled by keyed hash of (`seed`, epoch), or as arranged. `batch_size`: how many rows a DataLoader batch holds;
    give both the same number. `remainder`: rows that do not go evenly into the ranks are kept (every row once; the first
    ranks read one more), dropped, or filled up by repeating the epoch's first rows. `rank` of `world_size`: by default those
    of torch.distributed if it is initialised, else torchrun's, else 0 of 1; give the data-parallel ones where they differ.

    Call `set_epoch` before every epoch but the first.
    """

    def __init__(
        self,
        dataset: SequenceDataset,
        *,
        order: Order = "shuffled",
        seed: int = 0,
        batch_size: int = 1,
        remainder: Remainder = "keep",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_word("order", order, get_args(Order))
        check_word("remainder", remainder, get_args(Remainder))
        if batch_size < 1:
            raise errors.RecipeError(f"batch_size={batch_size} rows; give 1 or more")
        self.dataset = dataset
        self.rank, self.world_size = _place_among_ranks(rank, world_size)
        self._order, self._seed, self._batch_size, self._remainder = order, seed, batch_size, remainder
        # Epoch and rows read by all ranks before it begins; shared, so that workers that live on hear of a new epoch.
        self._start = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._read: int | None = None  # by this process, since it began to iterate
        self._skip = 0

    @property
    def epoch(self) -> int:
        """The epoch that is read now."""
        return int(self._start[0])

    def __len__(self) -> int:
        """Return how many rows this rank reads, from where it begins."""
        return len(self._places())

    def __iter__(self) -> Iterator[Row]:
        worker, workers = _worker()
        places = worker_part(self._places(), worker=worker, workers=workers, batch_size=self._batch_size)
        numbers = epoch_order(len(self.dataset), order=self._order, seed=self._seed, epoch=self.epoch)[places]
        self._read, self._skip = self._skip, 0
        return self._rows(numbers[self._read :])

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the one that is being read goes on where it is."""
        if epoch != self.epoch:
            self._begin(epoch, 0)

    def state_dict(self, *, rows: int | None = None) -> State:
        """Return where this rank is, for `load_state_dict`.

        `rows`: how many rows the trainer has taken since it began or resumed (batches · batch_size). It may be left out
        only where the rows are read in the asking process: no DataLoader workers, or torchdata's StatefulDataLoader,
        which asks its workers. All ranks must have taken equally many.
        """
        workers = _worker()[1]
        read = self._read if rows is None else rows
        if read is None:
            raise errors.RunError(
                "this process has read no row itself; where DataLoader workers read for it, say how many rows were taken: "
                "state_dict(rows=batches * batch_size), or rows=0 at the start"
            )
        epoch, position = self._start.tolist()
        state: State = {
            "epoch": epoch,
            "position": position,
            "workers": workers,
            "read": read,
            "data": self._fingerprint(),
        }
        if workers == 1:
            done = min(position + read * self.world_size, len(self.dataset))
            state["position"], state["read"] = done, 0
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from a state; raises RunError if it is of another data set or order, or of one of several workers."""
        if state["data"] != self._fingerprint():
            raise errors.RunError(
                "this state is of another data set, seed or order: run, mix, split, pack, order, seed and remainder must be "
                "as they were; use them, or restart the epoch"
            )
        workers = _worker()[1]
        if state["workers"] not in (1, workers):
            raise errors.RunError(
                f"this state is of one of {state['workers']} workers, but there are {workers}; use as many, or save "
                "state_dict(rows=…), which any number can load"
            )
        self._begin(state["epoch"], state["position"])
        self._skip = state["read"]

    def _begin(self, epoch: int, position: int) -> None:
        self._start[0], self._start[1] = epoch, position
        self._read, self._skip = None, 0

    def _places(self) -> NDArray[Any]:
        return rank_places(
            len(self.dataset),
            start=int(self._start[1]),
            rank=self.rank,
            world_size=self.world_size,
            remainder=self._remainder,
        )

    def _rows(self, numbers: NDArray[Any]) -> Iterator[Row]:
        for number in numbers.tolist():
            row = self.dataset[number]
            assert self._read is not None, "counted from __iter__ on"
            self._read += 1
            yield row

    def _fingerprint(self) -> str:
        order = f"{self.dataset.rows.fingerprint} {self._order} {self._seed} {self._remainder}"
        return hashlib.blake2b(order.encode(), digest_size=8).hexdigest()


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise errors.RecipeError(f"rank={rank} and world_size={world_size}: give both, or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise errors.RecipeError(f"rank={rank} of world_size={world_size}; ranks go from 0 to world_size - 1")
    return rank, world_size
