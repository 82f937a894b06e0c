"""Dataset: the rows of finished runs, by number.

A row is a sequence, or several that fill `pack` tokens. It is built when it is asked for: references and token ids are
memory-mapped, so 32,000 rows of 131,072 tokens cost an index of a megabyte, not an export of 16.8 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from nextlong import errors
from nextlong.artefacts.ranks import Order, Remainder
from nextlong.artefacts.rows import original_lengths
from nextlong.export.rows import SharedChunks
from nextlong.runs import notebook
from nextlong.torch.choose import RunLike, Split, check_word, choose
from nextlong.torch.collate import Row
from nextlong.torch.stream import SequenceStream

COLUMNS: Final = ("input_ids", "labels", "position_ids", "cu_seqlens", "cu_seqlens_padded", "max_seqlen", "seq_lengths")
_IGNORED: Final = -100  # what PyTorch's cross entropy passes over


class SequenceDataset(Dataset):  # type: ignore[misc]
    """Rows of one or several runs as a map-style data set; `stream` reads them as an iterable one.

    `run`: a run directory, one of its variants (`RUN@NAME`), an opened run, or several.
    A row is a dict of the `columns` asked for, L tokens long:
    `input_ids` int64 (L,); `labels`, the same with −100 at the first token of each sequence, not shifted (transformers
    shifts them; elsewhere the trainer must); `position_ids` int64 (L,), from 0 in each sequence; `cu_seqlens` int32
    (sequences + 1,) and `max_seqlen` int, as varlen attention takes them; `seq_lengths` int64 (sequences,).

    `mix`: proportions of several runs, `by` sequences or tokens; without it everything is used, evenly interleaved.
    `split` and `validation` (a share): one side of a split by meta-document; `shared_chunks="leave-out"` leaves out of train
    what shares a chunk with validation. `pack`: tokens of a row that holds several whole sequences.
    `boundaries="document"`: in place of sequences, the original documents of concatenations (an extended sequence is one).
    `pad_documents_to`: each document ends in `pad_id` up to a multiple of it, 2 · the ranks of context parallelism; padding has
    label −100 and positions that go on. `cu_seqlens` and `seq_lengths` then count without it, `cu_seqlens_padded` int32
    (documents + 1,) and `max_seqlen` with it, as Transformer Engine takes them.
    Raises NextlongError for every argument that cannot be met.
    """

    def __init__(
        self,
        run: RunLike | Sequence[RunLike],
        *,
        mix: Sequence[float] | None = None,
        by: Literal["sequences", "tokens"] = "sequences",
        split: Split | None = None,
        validation: float | None = None,
        shared_chunks: SharedChunks = "keep",
        split_seed: int = 0,
        pack: int | None = None,
        boundaries: Literal["sequence", "document"] = "sequence",
        pad_documents_to: int = 1,
        pad_id: int = 0,
        columns: Sequence[str] = ("input_ids", "labels", "position_ids"),
    ) -> None:
        check_word("boundaries", boundaries, ("sequence", "document"))
        if pad_documents_to < 1:
            raise errors.RecipeError(f"pad_documents_to={pad_documents_to} tokens; give 2 · the ranks that share a row")
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown or isinstance(columns, str):
            raise errors.RecipeError(f"columns={columns!r}: choose from {', '.join(COLUMNS)}, as a list")
        choice = choose(
            run,
            mix=mix,
            by=by,
            split=split,
            validation=validation,
            shared_chunks=shared_chunks,
            split_seed=split_seed,
            pack=pack,
        )
        self.rows = choice.rows
        self.fill = (
            choice.fill
        )  # share of the packed rows that holds tokens; the rest is never there, so rows are shorter
        self.left_out = choice.left_out
        self.columns = tuple(columns)
        self._boundaries, self._multiple, self._pad_id = boundaries, pad_documents_to, pad_id

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        return notebook.data_set_html("nextlong.torch.SequenceDataset", len(self), self.columns, self.fill)

    def __getitem__(self, number: int) -> Row:
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        lengths = self.rows.lengths(row)
        if self._boundaries == "document":
            lengths = original_lengths(lengths, self.rows.spans(row))
        padded = -(-lengths // self._multiple) * self._multiple
        wide = self._token_columns(row, lengths, padded)
        return {name: wide[name] if name in wide else _boundaries(name, lengths, padded) for name in self.columns}

    def _token_columns(
        self, row: int, lengths: NDArray[np.int64], padded: NDArray[np.int64]
    ) -> dict[str, torch.Tensor]:
        names = [name for name in ("input_ids", "labels", "position_ids") if name in self.columns]
        starts = np.cumsum(padded) - padded
        # One block for all: malloc hands several back to the system after each row, and page faults cost more than the row.
        block = np.empty((len(names), int(padded.sum())), np.int64)
        for name, column in zip(names, block, strict=True):
            if name == "position_ids":
                for start, length in zip(starts.tolist(), padded.tolist(), strict=True):
                    column[start : start + length] = self._positions[:length]
            elif name == "labels" and "input_ids" in names:
                column[:] = block[0]
            else:
                self.rows.copy_into(column, row)
                _move_apart(column, lengths, padded, pad_id=self._pad_id)
            if name == "labels":
                column[starts] = _IGNORED
                for start, length, room in zip(starts.tolist(), lengths.tolist(), padded.tolist(), strict=True):
                    column[start + length : start + room] = _IGNORED
        return {name: torch.from_numpy(column) for name, column in zip(names, block, strict=True)}

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        return np.arange(self.rows.longest + self._multiple)

    def stream(
        self,
        *,
        order: Order = "shuffled",
        seed: int = 0,
        batch_size: int = 1,
        remainder: Remainder = "keep",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> SequenceStream:
        """Return the rows as an iterable data set that ranks and DataLoader workers share; see `SequenceStream`."""
        return SequenceStream(
            self,
            order=order,
            seed=seed,
            batch_size=batch_size,
            remainder=remainder,
            rank=rank,
            world_size=world_size,
        )


def _move_apart(
    column: NDArray[np.int64], lengths: NDArray[np.int64], padded: NDArray[np.int64], *, pad_id: int
) -> None:
    """Move documents that stand one after the other, the last first, to where they stand with the padding of each."""
    if (lengths == padded).all():
        return
    sources, targets = np.cumsum(lengths) - lengths, np.cumsum(padded) - padded
    for source, target, length, room in zip(sources[::-1], targets[::-1], lengths[::-1], padded[::-1], strict=True):
        column[target : target + length] = column[source : source + length].copy()
        column[target + length : target + room] = pad_id


def _boundaries(name: str, lengths: NDArray[np.int64], padded: NDArray[np.int64]) -> Any:
    if name == "max_seqlen":
        return int(padded.max())
    if name == "seq_lengths":
        return torch.from_numpy(lengths.copy())
    counted = padded if name == "cu_seqlens_padded" else lengths
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counted)]).astype(np.int32))
