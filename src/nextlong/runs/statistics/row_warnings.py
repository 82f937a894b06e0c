"""Row warnings: the problems of rows and files, which depend on how runs are exported.

In:  the counts of each split, or of the files of a format. Out: warnings, whose texts
are in warnings.yaml. docs/warnings.md explains each threshold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from nextlong.export.arrange import SplitResult, fill, percent
from nextlong.runs.statistics.stats import DataWarning
from nextlong.runs.statistics.texts import warn
from nextlong.runs.statistics.thresholds import THRESHOLDS


def of_rows(
    splits: Mapping[str, SplitResult],
    *,
    lengths: Collection[int],
    pack: int | None,
    runs: Sequence[str] = (),
) -> Iterator[DataWarning]:
    """Yield the warnings about the rows of each split.

    `lengths` are the distinct sequence lengths of the runs, in tokens; `pack` is
    `export.pack`, None if a row is one sequence; `runs` are the names of mixed runs.
    """
    room = pack or max(lengths)
    for name, split in splits.items():
        filled = fill(split.tokens, rows=split.rows, room=room)
        if filled < THRESHOLDS.min_fill:
            yield warn(
                "empty-rows",
                name=name,
                room=room,
                filled=percent(filled),
                why=_why_rows_are_short(sorted(lengths), pack=pack),
            )
        sequences_per_run = [sequences for sequences, _ in split.of_runs]
        yield from unused_runs(runs, sequences_per_run, split=name)
        if split.chunks_in_train > THRESHOLDS.max_in_train * split.chunks:
            yield warn("read-in-train", split=split, name=name)


def unused_runs(
    runs: Sequence[str], sequences_per_run: Sequence[int], *, split: str
) -> Iterator[DataWarning]:
    """Yield a warning for each run of a mix of which a split has no sequence."""
    # One run is no mix.
    if len(runs) < 2:
        return
    for name, sequences in zip(runs, sequences_per_run, strict=False):
        if not sequences:
            yield warn("unused-run", run=name, split=split)


def _why_rows_are_short(lengths: Sequence[int], *, pack: int | None) -> str:
    """Return why rows have fewer tokens than they can hold, with the fix."""
    if pack is None and len(lengths) > 1:
        listed = " and ".join(f"{length:,}" for length in lengths)
        return (
            f"the runs have sequences of {listed} tokens; set export.pack, or make all "
            "sequences equally long"
        )
    if pack is None:
        return "sequences vary in length; set export.pack, or compose.fit=exact"
    # Sequences of several lengths fill a row only if it is a multiple of all of them.
    multiple = math.lcm(*lengths)
    if pack % multiple:
        return (
            f"export.pack={pack:,} is not a multiple of the sequence length; set it to "
            f"a multiple of {multiple:,}"
        )
    return "there are too few sequences to fill the last rows; make more sequences"


def of_files(
    format_name: str, *, split: str, added_tokens: int, target_tokens: int
) -> Iterator[DataWarning]:
    """Yield the warnings about the files of a format.

    They hold `added_tokens` tokens more than the sequences in them.
    """
    if added_tokens:
        yield warn(
            "longer-documents",
            name=format_name,
            split=split,
            added=added_tokens,
            tokens=target_tokens,
        )
