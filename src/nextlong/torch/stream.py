"""SequenceStream: one rank's rows of each epoch, dealt to DataLoader workers, resumable.

Each worker computes which rows it reads from (seed, epoch, rank, worker). Progress is one
number, how many rows all ranks have read, so an epoch resumes exactly, with another number
of workers or ranks too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from nextlong.artifacts.resolve import (
    Order,
    Remainder,
    epoch_order,
    rank_places,
    worker_part,
)
from nextlong.errors import RecipeError, RunError
from nextlong.text import Json
from nextlong.torch.collate import Row, check_word

if TYPE_CHECKING:
    from nextlong.torch.dataset import SequenceDataset


@dataclass(eq=False, repr=False)
class SequenceStream(IterableDataset):  # type: ignore[misc]
    """One rank's rows of each epoch, in an order that does not depend on how many workers read them.

    `order`: shuffled by keyed hash of (`seed`, epoch), or as arranged. `batch_size`: how many rows a DataLoader batch holds;
    give both the same number. `remainder`: rows that do not go evenly into the ranks are kept (every row once; the first
    ranks read one more), dropped, or filled up by repeating the epoch's first rows. `rank` of `world_size`: by default those
    of torch.distributed if it is initialised, else torchrun's, else 0 of 1; give the data-parallel ones where they differ.

    Call `set_epoch` before every epoch but the first.
    """

    dataset: SequenceDataset
    _: KW_ONLY
    order: Order = "shuffled"
    seed: int = 0
    batch_size: int = 1
    remainder: Remainder = "keep"
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        check_word("order", self.order, get_args(Order))
        check_word("remainder", self.remainder, get_args(Remainder))
        if self.batch_size < 1:
            raise RecipeError(f"batch_size={self.batch_size} rows; give 1 or more")
        if (self.rank is None) != (self.world_size is None):
            raise RecipeError(
                f"rank={self.rank} and world_size={self.world_size}: give both, or neither"
            )
        if self.rank is None or self.world_size is None:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                self.rank, self.world_size = (
                    torch.distributed.get_rank(),
                    torch.distributed.get_world_size(),
                )
            else:
                self.rank, self.world_size = (
                    int(os.environ.get("RANK", "0")),
                    int(os.environ.get("WORLD_SIZE", "1")),
                )
        if not 0 <= self.rank < self.world_size:
            raise RecipeError(
                f"rank={self.rank} of world_size={self.world_size}; ranks go from 0 to world_size - 1"
            )
        self._place = self.rank, self.world_size
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
        places = worker_part(
            self._places(), worker=worker, workers=workers, batch_size=self.batch_size
        )
        numbers = epoch_order(
            len(self.dataset), order=self.order, seed=self.seed, epoch=self.epoch
        )[places]
        self._read, self._skip = self._skip, 0
        return self._rows(numbers[self._read :])

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; setting the current one again changes nothing."""
        if epoch != self.epoch:
            self._begin(epoch, 0)

    def state_dict(self, *, rows: int | None = None) -> Json:
        """Return where this rank is, for `load_state_dict`: rows of the epoch that all ranks have read, and of its worker since.

        `rows`: how many rows the trainer has taken since it began or resumed (batches · batch_size). It may be left out
        only where the rows are read in the asking process: no DataLoader workers, or torchdata's StatefulDataLoader,
        which asks its workers. All ranks must have taken equally many.
        """
        workers, read = _worker()[1], self._read if rows is None else rows
        if read is None:
            cure = "give their number: state_dict(rows=batches * batch_size), or rows=0 at the start"
            raise RunError(
                f"this process has read no row itself; if DataLoader workers read the rows, {cure}"
            )
        epoch, position = self._start.tolist()
        if workers == 1:
            position, read = min(position + read * self._place[1], len(self.dataset)), 0
        return {
            "epoch": epoch,
            "position": position,
            "workers": workers,
            "read": read,
            "data": self._fingerprint(),
        }

    def load_state_dict(self, state: Json) -> None:
        """Resume from a state. Raises RunError for a state of another data set or order, or of one of several workers."""
        if state["data"] != self._fingerprint():
            keys = (
                "run, mix, split, pack, order, seed and remainder must be as they were"
            )
            raise RunError(
                f"this state is of another data set, seed or order: {keys}; use them, or restart the epoch"
            )
        workers = _worker()[1]
        if state["workers"] not in (1, workers):
            cure = "use the same number, or save state_dict(rows=…), which any number of workers can load"
            raise RunError(
                f"this state is of one of {state['workers']} workers, but there are {workers}; {cure}"
            )
        self._begin(state["epoch"], state["position"], skip=state["read"])

    def _begin(self, epoch: int, position: int, *, skip: int = 0) -> None:
        self._start[0], self._start[1] = epoch, position
        self._read, self._skip = None, skip

    def _places(self) -> NDArray[Any]:
        start, (rank, world_size) = int(self._start[1]), self._place
        return rank_places(
            len(self.dataset),
            start=start,
            rank=rank,
            world_size=world_size,
            remainder=self.remainder,
        )

    def _rows(self, numbers: NDArray[Any]) -> Iterator[Row]:
        for number in numbers.tolist():
            row = self.dataset[number]
            self._read = (self._read or 0) + 1
            yield row

    def _fingerprint(self) -> str:
        order = (
            f"{self.dataset.rows.fingerprint} {self.order} {self.seed} {self.remainder}"
        )
        return hashlib.blake2b(order.encode(), digest_size=8).hexdigest()


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
