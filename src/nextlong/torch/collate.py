"""Columns of a row as tensors, and their collation into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch

from nextlong import arguments
from nextlong.errors import ArgumentError

Row = dict[str, Any]  # tensors by column, and whole numbers such as max_seqlen
# Cross entropy passes over −100.
PADDING: Final = {"input_ids": 0, "labels": -100, "position_ids": 0}
COLUMNS: Final = (
    *PADDING,
    "cu_seqlens",
    "cu_seqlens_padded",
    "max_seqlen",
    "seq_lengths",
)


def collate(
    rows: Sequence[Row],
    *,
    layout: Literal["padded", "flat"] = "padded",
    pad_id: int = 0,
) -> Row:
    """Return one batch of B rows.

    `padded`: columns of tokens have shape (B, longest); rows of equal length, the usual
    case, are not padded, shorter ones with `pad_id`, label −100 and position 0. `flat`:
    they have shape (1, all tokens), and nothing is ever padded. `cu_seqlens`, int32,
    counts through the whole batch, with padding as a sequence of its own; `max_seqlen`
    is the batch's; `seq_lengths` are joined. Rows with `cu_seqlens_padded`, whose
    `cu_seqlens` count without the padding of each document, must have one length or the
    layout `flat`. Raises ArgumentError.
    """
    rows = _checked(rows)
    arguments.word(layout, "layout", ("padded", "flat"))
    pad_id = arguments.whole_number(pad_id, "pad_id", fix="give a token id")
    has_padding = "cu_seqlens_padded" in rows[0]
    is_flat = layout == "flat"
    if not is_flat:
        _check_one_length(rows)
    batch: Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in PADDING:
            padding = pad_id if name == "input_ids" else PADDING[name]
            batch[name] = _joined_tokens(values, padding, is_flat=is_flat)
        elif name in ("cu_seqlens", "cu_seqlens_padded"):
            # Padding of documents already fills rows up to one length.
            fills_rows = not is_flat and not has_padding
            batch[name] = _joined_bounds(values, fills_rows=fills_rows)
        elif name == "max_seqlen":
            batch[name] = max(values)
        else:
            batch[name] = torch.cat(values)
    needs_longest = "max_seqlen" in batch and not has_padding
    if needs_longest and "cu_seqlens" in batch:
        # Padding may be longer than any sequence.
        lengths = batch["cu_seqlens"].diff()
        batch["max_seqlen"] = int(lengths.max())
    return batch


def _check_one_length(rows: Sequence[Row]) -> None:
    """Raise ArgumentError if rows with padded documents differ in length."""
    padded = [row["cu_seqlens_padded"] for row in rows if "cu_seqlens_padded" in row]
    if len({int(bounds[-1]) for bounds in padded}) > 1:
        raise ArgumentError(
            where="rows",
            problem="rows with cu_seqlens_padded have different lengths",
            fix='use layout="flat", or rows of one length',
        )


def _joined_tokens(
    values: Sequence[torch.Tensor], padding: int, *, is_flat: bool
) -> torch.Tensor:
    """Return the tokens of rows as (1, all tokens), or padded as (B, longest)."""
    # The usual batch of one row is not copied.
    if len(values) == 1:
        return values[0][None]
    if is_flat:
        return torch.cat(list(values))[None]
    batch: torch.Tensor = torch.nn.utils.rnn.pad_sequence(
        values, batch_first=True, padding_value=padding
    )
    return batch


def _joined_bounds(
    bounds_of_rows: Sequence[torch.Tensor], *, fills_rows: bool
) -> torch.Tensor:
    """Return where the sequences of a batch begin and end, int32, counted through it.

    `fills_rows`: a row that is shorter than the longest ends in a sequence of padding.
    """
    longest = 0
    if fills_rows:
        longest = max(int(bounds[-1]) for bounds in bounds_of_rows)
    joined = [0]
    for bounds in bounds_of_rows:
        first = joined[-1]
        joined += (bounds[1:] + first).tolist()
        if int(bounds[-1]) < longest:
            joined.append(first + longest)
    return torch.tensor(joined, dtype=torch.int32)


def _checked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a batch if they have the same columns."""
    fix = "give the rows of a SequenceDataset"
    items = arguments.listed(rows, "rows", fix=fix)
    if not items:
        raise arguments.wrong("rows", rows, "is empty", fix=fix)
    for index, row in enumerate(items):
        if not isinstance(row, dict):
            raise arguments.wrong(f"rows[{index}]", row, "is not a row", fix=fix)
        columns = items[0].keys()
        if row.keys() != columns:
            raise ArgumentError(
                where=f"rows[{index}]",
                problem=f"it has the columns {', '.join(row)}, but rows[0] has "
                f"{', '.join(columns)}",
                fix="give rows of one data set",
            )
    return items
