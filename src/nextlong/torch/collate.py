"""Collate: rows of a data set to one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from nextlong.errors import RecipeError
from nextlong.torch.choose import check_word

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
