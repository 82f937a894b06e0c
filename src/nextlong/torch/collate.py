"""Columns of a row as tensors, and their collation into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch

from nextlong import arguments
from nextlong.errors import ArgumentError

Row = dict[str, Any]  # tensors by column, and whole numbers such as max_seqlen
PADDING: Final = {
    "input_ids": 0,
    "labels": -100,
    "position_ids": 0,
}  # cross entropy passes over −100
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

    `padded`: columns of tokens have shape (B, longest); rows of equal length, the usual case, are not padded, shorter ones
    with `pad_id`, label −100 and position 0. `flat`: they have shape (1, all tokens), and nothing is ever padded.
    `cu_seqlens`, int32, counts through the whole batch, with padding as a sequence of its own; `max_seqlen` is
    the batch's; `seq_lengths` are joined. Rows with `cu_seqlens_padded`, whose `cu_seqlens` count without the padding of each
    document, must have one length or the layout `flat`. Raises ArgumentError.
    """
    rows = _checked(rows)
    arguments.word(layout, "layout", ("padded", "flat"))
    pad_id = arguments.whole_number(pad_id, "pad_id", fix="give a token id")
    has_padding = "cu_seqlens_padded" in rows[0]
    if (
        has_padding
        and layout == "padded"
        and len({int(row["cu_seqlens_padded"][-1]) for row in rows}) > 1
    ):
        raise ArgumentError(
            'rows with cu_seqlens_padded differ in length; use layout="flat", or rows of one length'
        )
    batch: Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in PADDING and len(values) == 1:
            batch[name] = values[0][None]
        elif name in PADDING and layout == "flat":
            batch[name] = torch.cat(values)[None]
        elif name in PADDING:
            value = pad_id if name == "input_ids" else PADDING[name]
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


def _checked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a batch if they have the same columns."""
    fix = "give the rows of a SequenceDataset"
    items = arguments.listed(rows, "rows", fix=fix)
    if not items:
        raise arguments.wrong("rows", rows, "is empty", fix=fix)
    for place, row in enumerate(items):
        if not isinstance(row, dict):
            raise arguments.wrong(f"rows[{place}]", row, "is not a row", fix=fix)
        if row.keys() != items[0].keys():
            raise ArgumentError(
                f"rows[{place}] has the columns {', '.join(row)}, but rows[0] has "
                f"{', '.join(items[0])}; give rows of one data set"
            )
    return items
