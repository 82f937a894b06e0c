"""SequenceDataset: rows of one or several runs, map-style.

In:  finished runs; how they are split, mixed and packed. Out: a row as tensors, built from
     references and memory-mapped tokens when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from nextlong.artifacts.finished import TokenizerResult, padding_id
from nextlong.artifacts.resolve import Rows, original_lengths
from nextlong.errors import CorpusError, RecipeError
from nextlong.export.arrange import Arrangement, SharedChunks, arranged, packed
from nextlong.runs.run import Run, check_mix, facts_html
from nextlong.runs.warnings import unused_runs
from nextlong.torch.collate import COLUMNS, PADDING, Row, check_word
from nextlong.torch.stream import SequenceStream


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
    label −100 and continued positions. `pad_id` is EOS by default, or id 0 for a tokenizer without one, as in exports.
    `cu_seqlens` and `seq_lengths` then count without it, `cu_seqlens_padded` int32
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
        pad_id: int | None = None,
        columns: Sequence[str] = ("input_ids", "labels", "position_ids"),
    ) -> None:
        check_word("boundaries", boundaries, ("sequence", "document"))
        check_word("by", by, ("sequences", "tokens"))
        check_word("split", split, (None, "train", "validation"))
        check_word("shared_chunks", shared_chunks, ("keep", "leave-out"))
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
        sequences = np.bincount(index["run"], minlength=len(runs)).tolist()
        names = [one.name for one in runs]
        for warned in unused_runs(names, sequences, split=split or "train"):
            warnings.warn(warned.message, stacklevel=2)
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
        # Padding of documents, and of shorter rows: collate(rows, pad_id=dataset.pad_id).
        tokenizer = runs[0].steps["tokenizer"].result(TokenizerResult)
        self.pad_id = padding_id(tokenizer.eos_id) if pad_id is None else pad_id
        self._boundaries = boundaries
        self._multiple = pad_documents_to

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

    def __getitem__(self, number: int) -> Row:
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        lengths = self.rows.lengths(row)
        if self._boundaries == "document":
            lengths = original_lengths(lengths, self.rows.spans(row))
        padded = (
            -(-lengths // self._multiple) * self._multiple
        )  # the tokens of each document with its padding
        columns: Row = self._token_columns(row, lengths, padded) | {
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
    ) -> Row:
        names = [name for name in PADDING if name in self.columns]
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
                column[starts] = PADDING["labels"]
            if is_padding is not None:
                column[is_padding] = (
                    self.pad_id if name == "input_ids" else PADDING[name]
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
