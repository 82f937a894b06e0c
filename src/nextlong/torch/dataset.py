"""Dataset: the rows of finished runs as a map-style PyTorch data set, and their collation into batches.

A row is built from references and memory-mapped tokens when it is asked for; nothing is exported. Splitting, mixing and
packing are those of exports (`export/arrange.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from nextlong.artifacts.rows import Order, Remainder, Rows, original_lengths
from nextlong.errors import CorpusError, RecipeError
from nextlong.export.arrange import Arrangement, SharedChunks, arranged, packed
from nextlong.runs import notebook
from nextlong.runs.run import Run, check_mix

if TYPE_CHECKING:
    from nextlong.torch.stream import SequenceStream

Split = Literal["train", "validation"]
RunLike = str | Path | Run
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
        for name, value, allowed in (
            ("boundaries", boundaries, ("sequence", "document")),
            ("by", by, ("sequences", "tokens")),
            ("split", split, (None, "train", "validation")),
            ("shared_chunks", shared_chunks, ("keep", "leave-out")),
        ):
            check_word(name, value, allowed)
        if pad_documents_to < 1:
            raise RecipeError(f"pad_documents_to={pad_documents_to} tokens; give 2 · the ranks that share a row")
        if isinstance(columns, str) or not set(columns) <= set(COLUMNS):
            raise RecipeError(f"columns={columns!r}: choose from {', '.join(COLUMNS)}, as a list")
        _check_split(split, validation, shared_chunks=shared_chunks, split_seed=split_seed)
        several = [run] if isinstance(run, str | Path | Run) else run
        runs = [one if isinstance(one, Run) else Run(one) for one in several]
        check_mix(runs, mix, by=by)
        arrangement = Arrangement(
            mix=None if mix is None else tuple(mix),
            by=by,
            validation=validation or 0.0,
            shared_chunks=shared_chunks,
            pack=pack,
            seed=split_seed,
        )
        files = [one.files for one in runs]
        splits, self.left_out = arranged(files, arrangement)  # left out of train, for a chunk that validation has
        index, offsets = packed(splits[split or "train"], row_tokens=pack)
        if not len(index):
            shared = f", {self.left_out} share a chunk with validation" if self.left_out else ""
            raise CorpusError(
                f"no sequence is left: split={split!r} with validation={validation} of {sum(map(len, runs))} sequences "
                f"keeps none{shared}; change the share, or make more sequences"
            )
        self.rows = Rows(files, index=index, offsets=offsets)
        # The share of packed rows that holds tokens; the rest is never there, so rows are shorter.
        self.fill = 1.0 if pack is None else float(index["length"].sum() / ((len(offsets) - 1) * pack))
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
        from nextlong.torch.stream import SequenceStream

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


def _check_split(
    split: Split | None, validation: float | None, *, shared_chunks: SharedChunks, split_seed: int
) -> None:
    if split and validation is None:
        raise RecipeError(f"split={split!r} without validation; validation=0.01 holds out one in a hundred")
    if split is None and validation is not None:
        which = 'split="train" or split="validation" says which side'
        raise RecipeError(f"validation={validation} without split; {which}")
    if split is None and (shared_chunks != "keep" or split_seed):
        given = f"shared_chunks={shared_chunks!r}" if shared_chunks != "keep" else f"split_seed={split_seed}"
        raise RecipeError(f'{given} without a split; split="train" with validation=0.01 makes one, or leave it out')
    if validation is not None and not 0 < validation < 1:
        raise RecipeError(f"validation={validation} is not a share; give a number between 0 and 1, such as 0.01")


def check_word(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise RecipeError unless the value is one of the allowed ones."""
    if value not in allowed:
        raise RecipeError(f"{name}={value!r} is not known; it must be one of {', '.join(map(repr, allowed))}")


Row = dict[str, Any]  # tensors by column, and whole numbers such as max_seqlen
_PADDING = {"input_ids": 0, "labels": -100, "position_ids": 0}


def collate(rows: Sequence[Row], *, layout: Literal["padded", "flat"] = "padded", pad_id: int = 0) -> Row:
    """Return one batch of B rows.

    `padded`: columns of tokens have shape (B, longest); rows of equal length, the usual case, are not padded, shorter ones
    with `pad_id`, label −100 and position 0. `flat`: they have shape (1, all tokens), and nothing is ever padded.
    `cu_seqlens`, int32, counts through the whole batch as it is laid out, padding as a sequence of its own; `max_seqlen` is
    the batch's; `seq_lengths` are joined. Rows with `cu_seqlens_padded`, whose `cu_seqlens` count without the padding of each
    document, must be of one length or laid out flat. Raises RecipeError.
    """
    check_word("layout", layout, ("padded", "flat"))
    has_padding = "cu_seqlens_padded" in rows[0]
    if has_padding and layout == "padded" and len({int(row["cu_seqlens_padded"][-1]) for row in rows}) > 1:
        raise RecipeError('rows with cu_seqlens_padded differ in length; use layout="flat", or rows of one length')
    batch: Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in _PADDING and len(values) == 1:
            batch[name] = values[0][None]
        elif name in _PADDING and layout == "flat":
            batch[name] = torch.cat(values)[None]
        elif name in _PADDING:
            value = pad_id if name == "input_ids" else _PADDING[name]
            batch[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=value)
        elif name in ("cu_seqlens", "cu_seqlens_padded"):
            is_flat = layout == "flat" or has_padding
            batch[name] = _joined(values, longest=0 if is_flat else max(int(ends[-1]) for ends in values))
        else:
            batch[name] = max(values) if name == "max_seqlen" else torch.cat(values)
    if {"cu_seqlens", "max_seqlen"} <= batch.keys() and not has_padding:
        batch["max_seqlen"] = int(batch["cu_seqlens"].diff().max())  # padding may be longer than any sequence
    return batch


def _joined(rows: Sequence[torch.Tensor], *, longest: int) -> torch.Tensor:
    """Return the rows' cu_seqlens as one, each row `longest` tokens if it has fewer."""
    ends, at = [rows[0][:1]], 0
    for row in rows:
        ends.append(row[1:] + at)
        at += int(row[-1])
        gap = longest - int(row[-1])
        if gap > 0:
            at += gap
            ends.append(torch.tensor([at], dtype=row.dtype))
    return torch.cat(ends)
