"""Torch: the rows of finished runs as PyTorch data sets, map-style and iterable, and their collation into batches.

    dataset = SequenceDataset("my-run")  # map-style: len(dataset), dataset[3]["input_ids"]
    stream = dataset.stream(batch_size=2)  # iterable: shuffled by epoch, dealt to ranks and workers, resumable

A row is built from references and memory-mapped tokens when it is read; nothing is exported. Splitting, mixing and
packing are those of exports (`export/arrange.py`). Of the iterable one, shared by ranks and DataLoader workers, each worker
computes which rows it reads from (seed, epoch, rank, worker); progress is one number, how many rows all ranks have read, so an
epoch resumes exactly, with another number of workers or ranks too. Needs PyTorch, which the rest of the package does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.resolve import (
    Order,
    Remainder,
    Rows,
    epoch_order,
    original_lengths,
    rank_places,
    worker_part,
)
from nextlong.errors import CorpusError, RecipeError, RunError
from nextlong.export.arrange import Arrangement, SharedChunks, arranged, packed
from nextlong.runs.run import Run, check_mix, facts_html
from nextlong.text import Json

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError(
        f"nextlong.torch needs PyTorch ({error}); pip install torch"
    ) from None

__all__ = ["SequenceDataset", "SequenceStream", "collate"]
_Row = dict[str, Any]  # tensors by column, and whole numbers such as max_seqlen
_PADDING: Final = {
    "input_ids": 0,
    "labels": -100,
    "position_ids": 0,
}  # cross entropy passes over −100
COLUMNS: Final = (
    *_PADDING,
    "cu_seqlens",
    "cu_seqlens_padded",
    "max_seqlen",
    "seq_lengths",
)


class SequenceDataset(Dataset):  # type: ignore[misc]
    """Rows of one or several runs as a map-style data set; `stream` reads them as an iterable one.

    `run`: a run directory, one of its variants (`RUN@NAME`), an opened run, or several.
    A row is a dict of the requested `columns`, L tokens long:
    `input_ids` int64 (L,); `labels`, the same with −100 at the first token of each sequence, not shifted (transformers
    shifts them; elsewhere the trainer must); `position_ids` int64 (L,), from 0 in each sequence; `cu_seqlens` int32
    (sequences + 1,) and `max_seqlen` int, as varlen attention takes them; `seq_lengths` int64 (sequences,).

    `mix`: proportions of several runs, `by` sequences or tokens; without it everything is used, evenly interleaved.
    `split` and `validation` (a share): one side of a split by meta-document; `shared_chunks="leave-out"` leaves out of train
    what shares a chunk with validation. `pack`: tokens of a row that holds several whole sequences.
    `boundaries="document"`: in place of sequences, the original documents of concatenations (an extended sequence is one).
    `pad_documents_to`: each document ends in `pad_id` up to a multiple of it, 2 · the ranks of context parallelism; padding has
    label −100 and continued positions. `cu_seqlens` and `seq_lengths` then count without it, `cu_seqlens_padded` int32
    (documents + 1,) and `max_seqlen` with it, as Transformer Engine takes them.
    Raises NextlongError for invalid arguments.
    """

    def __init__(
        self,
        run: str | Path | Run | Sequence[str | Path | Run],
        *,
        mix: Sequence[float] | None = None,
        by: Literal["sequences", "tokens"] = "sequences",
        split: Literal["train", "validation"] | None = None,
        validation: float | None = None,
        shared_chunks: SharedChunks = "keep",
        split_seed: int = 0,
        pack: int | None = None,
        boundaries: Literal["sequence", "document"] = "sequence",
        pad_documents_to: int = 1,
        pad_id: int = 0,
        columns: Sequence[str] = ("input_ids", "labels", "position_ids"),
    ) -> None:
        _check_word("boundaries", boundaries, ("sequence", "document"))
        _check_word("by", by, ("sequences", "tokens"))
        _check_word("split", split, (None, "train", "validation"))
        _check_word("shared_chunks", shared_chunks, ("keep", "leave-out"))
        if pad_documents_to < 1:
            raise RecipeError(
                f"pad_documents_to={pad_documents_to} tokens; give 2 · the ranks that share a row"
            )
        if isinstance(columns, str) or not set(columns) <= set(COLUMNS):
            raise RecipeError(
                f"columns={columns!r}: choose from {', '.join(COLUMNS)}, as a list"
            )
        if split and validation is None:
            raise RecipeError(
                f"split={split!r} without validation; validation=0.01 holds out one in a hundred"
            )
        if split is None and (
            validation is not None or shared_chunks != "keep" or split_seed
        ):
            options = {
                "validation": validation,
                "shared_chunks": shared_chunks,
                "split_seed": split_seed,
            }
            given = next(
                f"{name}={value!r}"
                for name, value in options.items()
                if value not in (None, "keep", 0)
            )
            raise RecipeError(
                f'{given} without a split; split="train" with validation=0.01 makes one, or leave it out'
            )
        if validation is not None and not 0 < validation < 1:
            raise RecipeError(
                f"validation={validation} is not a share; give a number between 0 and 1, such as 0.01"
            )
        several = [run] if isinstance(run, str | Path | Run) else run
        runs = [one if isinstance(one, Run) else Run(one) for one in several]
        check_mix(runs, mix, by=by)
        proportions, share, files = (
            None if mix is None else tuple(mix),
            validation or 0.0,
            [one.files for one in runs],
        )
        arrangement = Arrangement(
            mix=proportions,
            by=by,
            validation=share,
            shared_chunks=shared_chunks,
            pack=pack,
            seed=split_seed,
        )
        splits, self.left_out = arranged(
            files, arrangement
        )  # left out of train, for a chunk that validation has
        index, offsets = packed(splits[split or "train"], row_tokens=pack)
        if not len(index):
            shared = (
                f", {self.left_out} share a chunk with validation"
                if self.left_out
                else ""
            )
            of = f"split={split!r} with validation={validation} of {sum(map(len, runs))} sequences keeps none{shared}"
            raise CorpusError(
                f"no sequence is left: {of}; change the share, or make more sequences"
            )
        self.rows = Rows(files, index=index, offsets=offsets)
        # The share of packed rows that holds tokens; rows are shorter instead of padded.
        self.fill = (
            1.0
            if pack is None
            else float(index["length"].sum() / ((len(offsets) - 1) * pack))
        )
        self.columns = tuple(columns)
        self._boundaries, self._multiple, self._pad_id = (
            boundaries,
            pad_documents_to,
            pad_id,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        rows, columns, filled = (
            f"{len(self):,}",
            ", ".join(self.columns),
            f"{self.fill:.1%}",
        )
        return facts_html(
            "nextlong.torch.SequenceDataset", rows=rows, columns=columns, filled=filled
        )

    def __getitem__(self, number: int) -> _Row:
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        lengths = self.rows.lengths(row)
        if self._boundaries == "document":
            lengths = original_lengths(lengths, self.rows.spans(row))
        padded = (
            -(-lengths // self._multiple) * self._multiple
        )  # the tokens of each document with its padding
        columns: _Row = self._token_columns(row, lengths, padded) | {
            "max_seqlen": int(padded.max()),
            "seq_lengths": torch.from_numpy(lengths.copy()),
        }
        for name, counted in (("cu_seqlens", lengths), ("cu_seqlens_padded", padded)):
            columns[name] = torch.from_numpy(
                np.concatenate([[0], np.cumsum(counted)]).astype(np.int32)
            )
        return {name: columns[name] for name in self.columns}

    def _token_columns(
        self, row: int, lengths: NDArray[np.int64], padded: NDArray[np.int64]
    ) -> _Row:
        names = [name for name in _PADDING if name in self.columns]
        starts = np.cumsum(padded) - padded
        # One block for all: malloc hands several back to the system after each row, and page faults cost more than the row.
        block = np.empty((len(names), int(padded.sum())), np.int64)
        # Which places of the row are padding, bool (tokens with padding,); None: no place is.
        is_padding = None
        if (lengths < padded).any():
            is_padding = np.arange(block.shape[1]) >= np.repeat(
                starts + lengths, padded
            )
        for name, column in zip(names, block, strict=True):
            if name == "position_ids":
                for start, room in zip(starts.tolist(), padded.tolist(), strict=True):
                    column[start : start + room] = self._positions[:room]
                continue
            if name == "labels" and "input_ids" in names:
                column[:] = block[0]
            else:
                self.rows.copy_into(column, row)
                if is_padding is not None:
                    column[~is_padding] = column[: lengths.sum()].copy()
            if name == "labels":
                column[starts] = _PADDING["labels"]
            if is_padding is not None:
                column[is_padding] = (
                    self._pad_id if name == "input_ids" else _PADDING[name]
                )
        return {
            name: torch.from_numpy(column)
            for name, column in zip(names, block, strict=True)
        }

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        return np.arange(self.rows.longest + self._multiple)

    def stream(self, **options: Any) -> SequenceStream:
        """Return the rows as an iterable data set that ranks and DataLoader workers share; options as of `SequenceStream`."""
        return SequenceStream(self, **options)


def _check_word(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise RecipeError unless the value is one of the allowed ones."""
    if value not in allowed:
        raise RecipeError(
            f"{name}={value!r} is not known; it must be one of {', '.join(map(repr, allowed))}"
        )


def collate(
    rows: Sequence[_Row],
    *,
    layout: Literal["padded", "flat"] = "padded",
    pad_id: int = 0,
) -> _Row:
    """Return one batch of B rows.

    `padded`: columns of tokens have shape (B, longest); rows of equal length, the usual case, are not padded, shorter ones
    with `pad_id`, label −100 and position 0. `flat`: they have shape (1, all tokens), and nothing is ever padded.
    `cu_seqlens`, int32, counts through the whole batch, with padding as a sequence of its own; `max_seqlen` is
    the batch's; `seq_lengths` are joined. Rows with `cu_seqlens_padded`, whose `cu_seqlens` count without the padding of each
    document, must have one length or the layout `flat`. Raises RecipeError.
    """
    _check_word("layout", layout, ("padded", "flat"))
    has_padding = "cu_seqlens_padded" in rows[0]
    if (
        has_padding
        and layout == "padded"
        and len({int(row["cu_seqlens_padded"][-1]) for row in rows}) > 1
    ):
        raise RecipeError(
            'rows with cu_seqlens_padded differ in length; use layout="flat", or rows of one length'
        )
    batch: _Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in _PADDING and len(values) == 1:
            batch[name] = values[0][None]
        elif name in _PADDING and layout == "flat":
            batch[name] = torch.cat(values)[None]
        elif name in _PADDING:
            value = pad_id if name == "input_ids" else _PADDING[name]
            batch[name] = torch.nn.utils.rnn.pad_sequence(
                values, batch_first=True, padding_value=value
            )
        elif name in ("cu_seqlens", "cu_seqlens_padded"):
            # Through the whole batch; a row that is shorter than its room ends in a sequence of padding.
            longest = (
                0
                if layout == "flat" or has_padding
                else max(int(ends[-1]) for ends in values)
            )
            bounds = [0]
            for ends in values:
                first = bounds[-1]
                bounds += (ends[1:] + first).tolist()
                if int(ends[-1]) < longest:
                    bounds.append(first + longest)
            batch[name] = torch.tensor(bounds, dtype=torch.int32)
        else:
            batch[name] = max(values) if name == "max_seqlen" else torch.cat(values)
    if {"cu_seqlens", "max_seqlen"} <= batch.keys() and not has_padding:
        batch["max_seqlen"] = int(
            batch["cu_seqlens"].diff().max()
        )  # padding may be longer than any sequence
    return batch


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
        _check_word("order", self.order, get_args(Order))
        _check_word("remainder", self.remainder, get_args(Remainder))
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

    def __iter__(self) -> Iterator[_Row]:
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

    def _rows(self, numbers: NDArray[Any]) -> Iterator[_Row]:
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
