"""SequenceStream: one rank's rows of each epoch, for DataLoader workers, resumable.

Each worker computes which rows it reads from (seed, epoch, rank, worker). Progress is
one number, how many rows all ranks have read, so an epoch resumes exactly, with another
number of workers or ranks too.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from types import FrameType
from typing import Any, Final, get_args

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from nextlong import arguments
from nextlong.arrays import AnyArray
from nextlong.artifacts.rows import (
    Order,
    Remainder,
    Rows,
    epoch_order,
    rank_positions,
    worker_part,
)
from nextlong.errors import ArgumentError, RunError
from nextlong.text import Json, counted
from nextlong.torch.collate import Row

# Indexes of the memory that the workers of a loader share with its process.
_EPOCH, _POSITION, _RESUMED_PASS, _CURRENT_PASS, _PASSES = range(5)
_NO_PASS: Final = -1
_MAX_WORKERS: Final = 1024

_STATE_FIX: Final = "give what SequenceStream.state_dict returned"
_STATE: Final = ("epoch", "position", "workers", "batch_size", "read", "data")

# The argument of torch.utils.data._utils.fetch._IterableDatasetFetcher.fetch: one index
# for each row of a batch, or None for a loader with batch_size=None.
_FETCHED: Final = "possibly_batched_index"


@dataclass(eq=False, repr=False)
class SequenceStream(IterableDataset):  # type: ignore[misc]
    """One rank's rows of each epoch, in an order that does not depend on the workers.

    `dataset`: a SequenceDataset, whose method `stream` makes a stream. `order`:
    shuffled by keyed hash of (`seed`, epoch), or as arranged. `batch_size`: how many
    rows a DataLoader batch holds; with several workers another one is refused when the
    first row is read. `remainder`: rows that do not go evenly into the ranks are kept
    (every row once; the first ranks read one more), dropped, or filled up by repeating
    the epoch's first rows. `rank` of `world_size`: by default those of
    torch.distributed if it is initialised, else torchrun's, else 0 of 1; give the
    data-parallel ones where they differ.

    Call `set_epoch` before every epoch but the first: without it an epoch is read again
    in the same order.
    """

    dataset: Dataset  # a SequenceDataset, which imports this module
    _: KW_ONLY
    order: Order = "shuffled"
    seed: int = 0
    batch_size: int = 1
    remainder: Remainder = "keep"
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.dataset, "rows", None), Rows):
            fix = "give a SequenceDataset"
            raise arguments.wrong("dataset", self.dataset, "has no rows", fix=fix)
        arguments.word(self.order, "order", get_args(Order))
        arguments.word(self.remainder, "remainder", get_args(Remainder))
        fix = "give a whole number"
        self.seed = arguments.whole_number(self.seed, "seed", fix=fix, min_value=None)
        self.batch_size = arguments.whole_number(
            self.batch_size, "batch_size", fix="give 1 row or more", min_value=1
        )
        if (self.rank is None) != (self.world_size is None):
            raise ArgumentError(
                where=f"rank={self.rank} and world_size={self.world_size}",
                problem="one is missing",
                fix="give both, or neither",
            )
        # Read from torch.distributed or torchrun, where the caller names none.
        if self.rank is None:
            self.rank, self.world_size = _place_of_process()
        fix = "give the number of ranks"
        world_size = arguments.whole_number(
            self.world_size, "world_size", fix=fix, min_value=1
        )
        rank = arguments.whole_number(
            self.rank,
            "rank",
            fix=f"ranks go from 0 to world_size - 1, which is {world_size - 1}",
            max_value=world_size - 1,
        )
        rows = len(self.dataset)
        if self.remainder == "drop" and world_size > rows:
            raise ArgumentError(
                where="world_size",
                value=world_size,
                problem=f"ranks share {counted(rows, 'row')}, and "
                'remainder="drop" leaves none for any of them',
                fix='use fewer ranks or more sequences, or remainder="repeat"',
            )
        self.rank = self._rank = rank
        self.world_size = self._world_size = world_size
        # Shared with the workers of a loader, which must learn of a new epoch.
        self._start = _EpochStart()
        # Rows that this process has read in its pass, which began at `_position`.
        self._read: int | None = None
        self._position = 0
        self._skip = 0

    @property
    def epoch(self) -> int:
        """The epoch that is read now."""
        return self._start.epoch

    def __len__(self) -> int:
        """Return how many rows this rank reads when it is iterated next."""
        return len(self._positions(self._start.next_position))

    def __iter__(self) -> Iterator[Row]:
        worker, workers = _worker()
        self._position = self._start.begin_pass()
        positions = worker_part(
            self._positions(self._position),
            worker=worker,
            workers=workers,
            batch_size=self.batch_size,
        )
        order = epoch_order(
            len(self.dataset), order=self.order, seed=self.seed, epoch=self.epoch
        )
        # A state of one of several workers says how many rows this one had read.
        self._read = self._skip
        self._skip = 0
        return self._rows(order[positions[self._read :]])

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; setting the current one again changes nothing."""
        fix = "give the number of an epoch, from 0"
        epoch = arguments.whole_number(epoch, "epoch", fix=fix)
        if epoch != self.epoch:
            self._begin(epoch, position=0)

    def state_dict(self, *, rows: int | None = None) -> Json:
        """Return where this rank is, for `load_state_dict`.

        That is the number of rows of the epoch that all ranks have read and, of one of
        several workers, how many it has read since.

        `rows`: how many rows the trainer has taken since it began the epoch or resumed
        (batches · batch_size). It may be left out only where the rows are read in the
        asking process: no DataLoader workers, or torchdata's StatefulDataLoader, which
        asks its workers. All ranks must have taken equally many.
        """
        if rows is not None:
            fix = "give the rows taken since the epoch began or was resumed"
            position = self._start.current_position
            read = arguments.whole_number(rows, "rows", fix=fix)
        elif self._read is not None:
            position = self._position
            read = self._read
        else:
            raise RunError(
                where="state_dict",
                problem="this process has read no row itself",
                fix="if DataLoader workers read the rows, give their number: "
                "state_dict(rows=batches * batch_size), or rows=0 at the start",
            )
        _, workers = _worker()
        if workers == 1:
            # Where one process reads, the rows of all ranks say where it is.
            position = min(position + read * self._world_size, len(self.dataset))
            read = 0
        return {
            "epoch": self.epoch,
            "position": position,
            "workers": workers,
            "batch_size": self.batch_size,
            "read": read,
            "data": self._fingerprint(),
        }

    def load_state_dict(self, state: Json) -> None:
        """Resume from a state: the next iteration reads the rest of its epoch.

        Each later iteration reads a whole epoch, also after one that was broken off.
        Raises RunError for a state of another data set or order, or of one of several
        workers that had other rows.
        """
        _check_state(state)
        # Anything may stand in a state, also an array, which is not compared.
        data = state["data"]
        if not isinstance(data, str) or data != self._fingerprint():
            raise RunError(
                where="state",
                problem="it was saved with other settings: run, mix, split, pack, "
                "order, seed and remainder must be the same",
                fix="use the same settings, or restart the epoch",
            )
        numbers = _numbers_of(state, rows=len(self.dataset))
        _, workers = _worker()
        # A state of one worker counts the rows of all, so any number can load it.
        if numbers["workers"] not in (1, workers):
            raise RunError(
                where="state",
                problem=f"it was saved by one of {numbers['workers']} workers, but "
                f"there are {workers} now",
                fix="use the same number, or save state_dict(rows=…), which any number "
                "of workers can load",
            )
        batch_size = numbers["batch_size"]
        if numbers["workers"] > 1 and batch_size != self.batch_size:
            raise RunError(
                where="state",
                problem="it was saved by one of several workers with batches of "
                f"{batch_size} rows, but batch_size={self.batch_size} now",
                fix="use the same, or save state_dict(rows=…), which any batch size "
                "can load",
            )
        self._begin(
            numbers["epoch"], position=numbers["position"], skip=numbers["read"]
        )

    def _begin(self, epoch: int, *, position: int, skip: int = 0) -> None:
        self._start.begin(epoch, position)
        self._read = None
        self._skip = skip

    def _positions(self, start: int) -> AnyArray:
        return rank_positions(
            len(self.dataset),
            start=start,
            rank=self._rank,
            world_size=self._world_size,
            remainder=self.remainder,
        )

    def _rows(self, numbers: AnyArray) -> Iterator[Row]:
        self._check_loader(sys._getframe(1))
        for number in numbers.tolist():
            row = self.dataset[number]
            self._read = (self._read or 0) + 1
            yield row

    def _check_loader(self, caller: FrameType) -> None:
        """Raise ArgumentError if the rows go to a loader with batches of another size.

        With several workers the loader's order would then differ from the stream's, and
        a state would lose rows and repeat others. PyTorch tells a data set nothing
        about its loader, so this looks at the variable in which the function that
        fetches a batch has one index for each row. Where there is none, nothing is
        checked.
        """
        _, workers = _worker()
        # One worker reads every row in order, whatever a batch holds.
        if workers == 1 or _FETCHED not in caller.f_locals:
            return
        indexes = caller.f_locals[_FETCHED]
        loader_batch_size = None if indexes is None else len(indexes)
        if (loader_batch_size or 1) != self.batch_size:
            raise ArgumentError(
                where=f"DataLoader(batch_size={loader_batch_size}, "
                f"num_workers={workers})",
                problem=f"it reads a stream with batch_size={self.batch_size}, so rows "
                "would come in another order than its state counts them",
                fix="give both the same batch_size",
            )

    def _fingerprint(self) -> str:
        rows = self.dataset.rows.fingerprint
        settings = f"{rows} {self.order} {self.seed} {self.remainder}"
        return hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()


class _EpochStart:
    """The epoch that is read, and the position, in rows of all ranks, where it begins.

    Only the first pass over the rows after `begin` starts at the position; each later
    one reads the whole epoch. Both are in shared memory, because persistent workers
    must learn of a new epoch. A loader does not tell its workers which pass they serve,
    so they derive it from the loader's seed and from their number of passes. Neither
    would do alone: the seed is the same for all passes of persistent workers, and may
    be set anew before each epoch; a worker that is stopped early has not begun its
    pass.
    """

    def __init__(self) -> None:
        shared = torch.zeros(_PASSES + _MAX_WORKERS, dtype=torch.int64)
        self._shared = shared.share_memory_()
        self.begin(0, 0)

    @property
    def epoch(self) -> int:
        return int(self._shared[_EPOCH])

    @property
    def current_position(self) -> int:
        """Where the pass that was begun last starts."""
        current = int(self._shared[_CURRENT_PASS])
        return self._position_of(current)

    @property
    def next_position(self) -> int:
        """Where the next pass will start."""
        return self._position_of(_NO_PASS)

    def begin(self, epoch: int, position: int) -> None:
        self._shared[_EPOCH] = epoch
        self._shared[_POSITION] = position
        self._shared[_RESUMED_PASS] = _NO_PASS
        self._shared[_CURRENT_PASS] = _NO_PASS
        # torchdata loads a state in each worker, when others may have begun already.
        info = get_worker_info()
        if info is None:
            self._shared[_PASSES:] = 0
        else:
            self._shared[_PASSES + info.id] = 0

    def begin_pass(self) -> int:
        """Begin a pass of this process, and return the position where it starts."""
        info = get_worker_info()
        worker, seed = (0, 0) if info is None else (info.id, info.seed - info.id)
        self._shared[_PASSES + worker] += 1
        current = seed ^ int(self._shared[_PASSES + worker])
        if self._shared[_RESUMED_PASS] == _NO_PASS:
            self._shared[_RESUMED_PASS] = current
        self._shared[_CURRENT_PASS] = current
        return self._position_of(current)

    def _position_of(self, current: int) -> int:
        is_resumed = current == int(self._shared[_RESUMED_PASS])
        return int(self._shared[_POSITION]) if is_resumed else 0


def _place_of_process() -> tuple[int, int]:
    """Return the rank and the world size of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name)
    if value is None:
        return default
    if not value.strip().isdecimal():
        fix = "unset the variable, or pass rank and world_size"
        raise arguments.wrong(name, value, "is not a whole number", fix=fix)
    return int(value)


def _check_state(state: Any) -> None:
    """Raise ArgumentError for anything but a dictionary with the keys of a state."""
    if not isinstance(state, Mapping):
        raise arguments.wrong("state", state, "is not a state", fix=_STATE_FIX)
    for key in _STATE:
        if key not in state:
            raise arguments.wrong("state", state, f"has no {key!r}", fix=_STATE_FIX)


def _numbers_of(state: Json, *, rows: int) -> dict[str, int]:
    """Return the numbers of a state of a data set of `rows` rows, checked."""
    limits = {
        "epoch": (0, arguments.MAX_INT64),
        "position": (0, rows),
        "workers": (1, _MAX_WORKERS),
        "batch_size": (1, arguments.MAX_INT64),
        "read": (0, rows),
    }
    numbers = {}
    for key, (min_value, max_value) in limits.items():
        numbers[key] = arguments.whole_number(
            state[key],
            f"state[{key!r}]",
            fix=_STATE_FIX,
            min_value=min_value,
            max_value=max_value,
        )
    return numbers


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
