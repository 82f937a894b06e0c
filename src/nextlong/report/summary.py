"""Summary: say in a few lines what came of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from nextlong.artefacts.finished import sequences_per_part
from nextlong.compose.steps import dropped, why_fewer
from nextlong.engine.step import Finished
from nextlong.export import steps as export_steps
from nextlong.export.rows import FEWER_LEFT_OUT, LEAST_FILL, fill, percent
from nextlong.methods.base import described
from nextlong.recipe import Recipe
from nextlong.results import (
    ChunkResult,
    ContaminatedResult,
    DraftResult,
    IngestResult,
    NearDuplicatesResult,
    RowsResult,
    SelectResult,
    SplitResult,
    TokenizerResult,
)
from nextlong.search.index_steps import chosen_in_words
from nextlong.tokens import lost


def tell(told: Sequence[tuple[str, str]], console: Console) -> None:
    """Print (name, value), one a line."""
    width = max(len(name) for name, _ in told) + 2
    for name, value in told:
        console.print(f"{name + ':':<{width}}{value}", highlight=False, markup=False, soft_wrap=True)


def lines(recipe: Recipe, done: Finished) -> list[tuple[str, str]]:
    """Return what a run made, as (name, value), from the counts of its steps."""
    read = sum(part.documents for part in done["ingest"].results(IngestResult))
    chunked = done["chunk"].results(ChunkResult)
    chunks, chars = sum(shard.chunks for shard in chunked), sum(shard.chars for shard in chunked)
    sequences = sum(sequences_per_part(recipe, done["compose"]))
    told = [
        ("documents", f"{sum(shard.documents for shard in chunked):,} kept of {read:,}{_why_less(done)}"),
        ("chunks", f"{chunks:,}, {chars / max(1, chunks):,.0f} characters each on average"),
        ("method", described(recipe)),
        (
            "sequences",
            f"{sequences:,} of exactly {recipe.sequence_tokens:,} tokens{_shortfall(recipe, done, sequences)}",
        ),
    ]
    if loses := lost.warning(done["tokenizer"].result(TokenizerResult).lost_share):
        told.append(("tokenizer", loses))
    if "contaminated" in done:
        told.insert(2, ("contaminated", _contamination(done)))
    if chosen := chosen_in_words(done):
        told.append(("search", chosen))
    if "weights" in done:
        near_copies = sum(part.near_copies or 0 for part in done["draft"].results(DraftResult))
        told.append(("near-copies", f"{near_copies:,} left out of the drafts"))
    told += exported(recipe, done)
    told.append(("look", f"nextlong peek {recipe.run_dir}"))
    return told


def exported(recipe: Recipe, done: Finished, *, longest: int | None = None) -> list[tuple[str, str]]:
    """Return what was exported and where, as (name, value); `longest` is the longest sequence of a mix."""
    rows = done["rows"].result(RowsResult)
    room = recipe.export.pack or longest or recipe.sequence_tokens
    told = []
    for split in export_steps.splits_of(recipe):
        arranged = rows.splits[split]
        short = f", {arranged.short_rows:,} of them not full" if arranged.short_rows else ""
        filled = percent(fill(arranged.tokens, rows=arranged.rows, room=room))
        counted = f"{arranged.rows:,} rows of {arranged.sequences:,} sequences{short}"
        told.append((split, f"{counted}; {filled} of {room:,} tokens a row are filled"))
        told += [
            (f"  of run {number}", f"{sequences:,} sequences, {tokens:,} tokens")
            for number, (sequences, tokens) in enumerate(arranged.of_runs)
        ]
        told += [
            (step_name, str(done[step_name].folder))
            for step_name in (export_steps.step_name(name, split) for name in recipe.export.formats)
        ]
    told += [
        ("warning", _empty(name, split, room))
        for name, split in rows.splits.items()
        if fill(split.tokens, rows=split.rows, room=room) < LEAST_FILL
    ]
    if recipe.export.push is not None:
        told.append(("pushed to", recipe.export.push))
    if rows.left_out:
        told.append(("left out", _left_out(rows)))
    return told


def _empty(name: str, split: SplitResult, room: int) -> str:
    """Say how much of a split's rows is empty, and the cure."""
    empty, filled = split.rows * room - split.tokens, percent(fill(split.tokens, rows=split.rows, room=room))
    return (
        f"{empty:,} tokens of room in the rows of {name} are empty ({filled} are filled), which "
        "training pays for; make export.pack a multiple of the sequences' length, or the sequences more"
    )


def _left_out(rows: RowsResult) -> str:
    """Say how many sequences are in neither split, and the cure where most of train is gone."""
    left_out, train = rows.left_out, rows.train.sequences
    total = left_out + sum(split.sequences for split in rows.splits.values())
    told = f"{left_out:,} of {total:,} sequences are in neither split, for they share a chunk with validation"
    return f"{told}; few are left to train on: {FEWER_LEFT_OUT}" if left_out > train else told


def _contamination(done: Finished) -> str:
    """Say how many chunks share text with the evaluation files, and with which."""
    by_file: Counter[str] = Counter()
    shards = done["contaminated"].results(ContaminatedResult)
    for shard in shards:
        by_file.update(shard.files)
    told = ", ".join(f"{count:,} of them with {file}" for file, count in by_file.items())
    return f"{sum(shard.contaminated for shard in shards):,} chunks left out ({told})"


def _why_less(done: Finished) -> str:
    selected = done["select"].result(SelectResult)
    near = done["near_duplicates"].results(NearDuplicatesResult) if "near_duplicates" in done else []
    reasons = [
        (selected.duplicates, "exact duplicate"),
        (selected.capped, "over a cap"),
        (selected.weighted_out, "over their weight"),
        (sum(part.near_duplicates for part in near), "near-duplicate"),
        (sum(part.rejects for part in done["ingest"].results(IngestResult)), "rejected"),
    ]
    told = [f"{count:,} {reason}{_plural(reason, count)}" for count, reason in reasons if count]
    return f" ({', '.join(told)})" if told else ""


def _plural(reason: str, count: int) -> str:
    return "s" if reason.endswith("duplicate") and count > 1 else ""


def _shortfall(recipe: Recipe, done: Finished, sequences: int) -> str:
    """Say why there are fewer than were asked for, or, of all, than there were drafts."""
    asked, told = recipe.compose.sequences, "; ".join(why_fewer(recipe, done))
    if asked == "all":
        return f" ({told})" if dropped(done) else ""
    return "" if sequences == asked else f", fewer than compose.sequences={asked:,} ({told})"
