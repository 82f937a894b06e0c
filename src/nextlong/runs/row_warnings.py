"""Row warnings: what speaks against how sequences were split and packed into rows (docs/warnings.md says why).

In:  what is counted of a split. Out: `Warned`.
"""

from __future__ import annotations

from typing import Final

from nextlong.export.rows import LEAST_FILL, fill, percent
from nextlong.export.splits import SplitResult
from nextlong.runs.warnings import Warned

MOST_IN_TRAIN: Final = 0.05  # of the chunks of validation


def of_rows(name: str, split: SplitResult, *, room: int) -> tuple[Warned, ...]:
    """Return what speaks against the rows of a split, which hold `room` tokens each."""
    messages = (("empty-rows", _empty_rows(name, split, room)), ("read-in-train", _read_in_train(name, split)))
    return tuple(Warned(called, message) for called, message in messages if message)


def _empty_rows(name: str, split: SplitResult, room: int) -> str:
    filled = fill(split.tokens, rows=split.rows, room=room)
    if filled >= LEAST_FILL:
        return ""
    empty = split.rows * room - split.tokens
    return (
        f"{empty:,} tokens of room in the rows of {name} are empty ({percent(filled)} are filled), which training pays for; "
        "make export.pack a multiple of the sequences' length, or the sequences more"
    )


def _read_in_train(name: str, split: SplitResult) -> str:
    if split.chunks_in_train <= MOST_IN_TRAIN * split.chunks:
        return ""
    return (
        f"{split.chunks_in_train:,} of the {split.chunks:,} chunks of {name} stand in train, too: its loss will be lower "
        "than on texts that were never read; set export.shared_chunks: leave-out, which takes their sequences out of train, or "
        "hold out documents of your own"
    )
