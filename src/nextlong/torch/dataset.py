"""SequenceDataset: rows of one or several runs, map-style.

In:  finished runs; how they are split, mixed and packed.
Out: a row as tensors, built from references and memory-mapped tokens when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from nextlong import arguments
from nextlong.arrays import Bools, Ints
from nextlong.artifacts.results import TokenizerResult
from nextlong.artifacts.rows import Rows, original_lengths
from nextlong.artifacts.sequence_files import padding_id
from nextlong.errors import ArgumentError, CorpusError
from nextlong.export.arrange import Arrangement, SharedChunks, arranged, packed
from nextlong.export.mixture import Mixture
from nextlong.runs.run import Run, check_mix, facts_html, proportions_of
from nextlong.runs.statistics.row_warnings import unused_runs
from nextlong.torch.collate import COLUMNS, PADDING, Row
from nextlong.torch.stream import SequenceStream


class SequenceDataset(Dataset):  # type: ignore[misc]
    """Rows of one or several runs as a map-style data set.

    `stream` reads them as an iterable one.

    `run`: a run directory, one of its variants (`RUN@NAME`), an opened run, or several.
    A row is a dict of the requested `columns`, L tokens long: `input_ids` int64 (L,);
    `labels`, the same with −100 at the first token of each sequence, not shifted
    (transformers shifts them; elsewhere the trainer must); `position_ids` int64 (L,),
    from 0 in each sequence; `cu_seqlens` int32 (sequences + 1,) and `max_seqlen` int,
    as varlen attention takes them; `seq_lengths` int64 (sequences,).

    `mix`: proportions of several runs, `by` sequences or tokens; without it everything
    is used, evenly interleaved. `split` and `validation` (a share): one side of a split
    by meta-document; `shared_chunks="leave-out"` leaves out of train what shares a
    chunk with validation. `pack`: tokens of a row that holds several whole sequences.
    `boundaries="document"`: in place of sequences, the original documents of
    concatenations (an extended sequence is one). `pad_documents_to`: each document ends
    in `pad_id` up to a multiple of it, 2 · the ranks of context parallelism; padding
    has label −100 and continued positions. `pad_id` is EOS by default, or id 0 for a
    tokenizer without one, as in exports. `cu_seqlens` and `seq_lengths` then count
    without it, `cu_seqlens_padded` int32 (documents + 1,) and `max_seqlen` with it, as
    Transformer Engine takes them. Raises NextlongError for invalid arguments.
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
        arguments.word(by, "by", ("sequences", "tokens"))
        arguments.word(boundaries, "boundaries", ("sequence", "document"))
        if pack is not None:
            fix = "give the tokens of a row, such as 524288"
            pack = arguments.whole_number(pack, "pack", fix=fix, min_value=1)
        self._multiple = arguments.whole_number(
            pad_documents_to,
            "pad_documents_to",
            fix="give a number of tokens: 2 · the ranks that share a row",
            min_value=1,
        )
        if pad_id is not None:
            pad_id = arguments.whole_number(pad_id, "pad_id", fix="give a token id")
        share = _share_of_validation(
            split=split,
            validation=validation,
            shared_chunks=shared_chunks,
            split_seed=split_seed,
        )
        runs = _opened(run)
        proportions = None if mix is None else proportions_of(mix, runs)
        check_mix(runs, proportions, by=by)
        files = [opened.files for opened in runs]
        arrangement = Arrangement(
            mixture=Mixture(weights=proportions or (), by=by),
            validation=share,
            shared_chunks=shared_chunks,
            pack=pack,
            seed=int(split_seed),
        )
        # Sequences that are left out of train, for a chunk that validation has, are
        # counted.
        splits, self.left_out = arranged(files, arrangement)
        # Without a split, all sequences are on this side.
        side = split or "train"
        index, offsets = packed(splits[side], row_tokens=pack)
        if not len(index):
            raise _of_no_sequence(
                split, validation, total=sum(map(len, runs)), left_out=self.left_out
            )
        sequences = np.bincount(index["run"], minlength=len(runs))
        names = [opened.name for opened in runs]
        for warned in unused_runs(names, sequences.tolist(), split=side):
            warnings.warn(warned.message, stacklevel=2)
        self.rows = Rows(files, index=index, offsets=offsets)
        # The share of packed rows that holds tokens; rows are shorter instead of
        # padded.
        room = len(self.rows) * pack if pack is not None else index["length"].sum()
        self.fill = float(index["length"].sum() / room)
        self.columns = _columns(columns)
        # Padding of documents, and of shorter rows: collate(rows,
        # pad_id=dataset.pad_id).
        tokenizer = runs[0].steps["tokenizer"].result(TokenizerResult)
        self.pad_id = padding_id(tokenizer.eos_id) if pad_id is None else pad_id
        self._boundaries = boundaries

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        return facts_html(
            "nextlong.torch.SequenceDataset",
            rows=f"{len(self):,}",
            columns=", ".join(self.columns),
            filled=f"{self.fill:.1%}",
        )

    def __getitem__(self, number: int) -> Row:
        fix = "give the number of a row"
        number = arguments.whole_number(number, "row", fix=fix, min_value=None)
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        lengths = self.rows.lengths(row)
        if self._boundaries == "document":
            lengths = original_lengths(lengths, self.rows.spans(row))
        # The tokens of each document with its padding.
        padded = -(-lengths // self._multiple) * self._multiple
        columns: Row = {
            **self._token_columns(row, lengths, padded),
            "max_seqlen": int(padded.max()),
            "seq_lengths": torch.from_numpy(lengths.copy()),
            "cu_seqlens": _bounds(lengths),
            "cu_seqlens_padded": _bounds(padded),
        }
        return {name: columns[name] for name in self.columns}

    def _token_columns(self, row: int, lengths: Ints, padded: Ints) -> Row:
        """Return the requested columns of tokens.

        Documents have `lengths` tokens, and `padded` with the padding at their ends.
        """
        names = [name for name in PADDING if name in self.columns]
        ends = np.cumsum(padded)
        starts = ends - padded
        # One block for all: malloc hands several back to the system after each row, and
        # page faults cost more than the row.
        block = np.empty((len(names), int(ends[-1])), np.int64)
        columns = dict(zip(names, block, strict=True))
        is_padding = _is_padding(starts, lengths, padded)
        for name, column in columns.items():
            if name == "position_ids":
                self._fill_positions(column, starts.tolist(), ends.tolist())
            elif name == "labels" and "input_ids" in columns:
                column[:] = columns["input_ids"]
            else:
                self._copy_ids(column, row, is_padding)
        if "labels" in columns:
            # The first token of a document has no context.
            columns["labels"][starts] = PADDING["labels"]
            if is_padding is not None:
                columns["labels"][is_padding] = PADDING["labels"]
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def _fill_positions(self, column: Ints, starts: list[int], ends: list[int]) -> None:
        """Count the tokens of each document from 0, and on through its padding."""
        for start, end in zip(starts, ends, strict=True):
            column[start:end] = self._positions[: end - start]

    def _copy_ids(self, column: Ints, row: int, is_padding: Bools | None) -> None:
        """Copy the ids of a row into a column, and write `pad_id` between documents."""
        self.rows.copy_into(column, row)
        if is_padding is not None:
            is_text = ~is_padding
            column[is_text] = column[: is_text.sum()].copy()
            column[is_padding] = self.pad_id

    @cached_property
    def _positions(self) -> Ints:
        return np.arange(self.rows.longest + self._multiple)

    def stream(self, **options: Any) -> SequenceStream:
        """Return the rows as an iterable data set that ranks and workers share.

        Options are those of `SequenceStream`.
        """
        return SequenceStream(self, **options)


def _is_padding(starts: Ints, lengths: Ints, padded: Ints) -> Bools | None:
    """Return which tokens of a row are padding, or None if none is.

    The mask is (tokens with padding,).
    """
    if (lengths == padded).all():
        return None
    ends_of_text = np.repeat(starts + lengths, padded)
    return np.arange(len(ends_of_text)) >= ends_of_text


def _bounds(lengths: Ints) -> torch.Tensor:
    """Return where documents of these lengths begin and end, int32 (documents + 1,)."""
    bounds = np.zeros(len(lengths) + 1, np.int32)
    bounds[1:] = np.cumsum(lengths)
    return torch.from_numpy(bounds)


def _opened(run: str | Path | Run | Sequence[str | Path | Run]) -> list[Run]:
    """Return one or several runs, opened."""
    fix = "give a run directory, an opened run, or a list of them"
    if isinstance(run, Sequence | np.ndarray) and not isinstance(run, str | bytes):
        named = {f"run[{index}]": each for index, each in enumerate(run)}
    else:
        named = {"run": run}
    opened = []
    for name, each in named.items():
        if isinstance(each, Run):
            opened.append(each)
        else:
            opened.append(Run(arguments.path(each, name, fix=fix)))
    return opened


def _of_no_sequence(
    split: str | None, validation: float | None, *, total: int, left_out: int
) -> CorpusError:
    """Return the error for a split that keeps no sequence."""
    shared = f", {left_out} share a chunk with validation" if left_out else ""
    return CorpusError(
        where="split",
        value=repr(split),
        problem=f"keeps no sequence: validation={validation} of {total} sequences"
        f"{shared}",
        fix="change the share, or make more sequences",
    )


def _columns(columns: Sequence[str]) -> tuple[str, ...]:
    fix = f"give a list of {', '.join(COLUMNS)}"
    names = arguments.strings(columns, "columns", fix=fix)
    if not names:
        raise arguments.wrong("columns", columns, "names no column", fix=fix)
    for name in names:
        arguments.word(name, "columns", COLUMNS)
    return tuple(names)


def _share_of_validation(
    *, split: object, validation: object, shared_chunks: object, split_seed: object
) -> float:
    """Return the share that is held out, 0 without a split; check its options."""
    arguments.word(split, "split", (None, "train", "validation"))
    arguments.word(shared_chunks, "shared_chunks", ("keep", "leave-out"))
    fix = "give a whole number"
    seed = arguments.whole_number(split_seed, "split_seed", fix=fix, min_value=None)
    if split is None:
        # Each option, and whether it was given.
        options = {
            "validation": (validation, validation is not None),
            "shared_chunks": (shared_chunks, shared_chunks != "keep"),
            "split_seed": (seed, seed != 0),
        }
        for name, (value, is_given) in options.items():
            if is_given:
                raise ArgumentError(
                    where=name,
                    value=repr(value),
                    problem="has no effect without a split",
                    fix='add split="train" and validation=0.01, or remove it',
                )
        return 0.0
    if validation is None:
        raise ArgumentError(
            where="split",
            value=repr(split),
            problem="needs validation",
            fix="validation=0.01 holds out one in a hundred",
        )
    fix = "give a share between 0 and 1, such as 0.01"
    share = float(arguments.number(validation, "validation", fix=fix))
    if not 0 < share < 1:
        raise arguments.wrong("validation", validation, "is not a share", fix=fix)
    return share
