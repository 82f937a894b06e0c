"""Summary: run a recipe and say in a few lines what came of it."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rich.console import Console

from nextlong import pipeline
from nextlong.engine.progress import reporter_for
from nextlong.engine.step import Finished
from nextlong.recipe import Recipe
from nextlong.steps.finished import sequences_per_part


def run_and_tell(recipe: Recipe, console: Console, *, changed_inputs: Literal["refuse", "accept"] = "refuse") -> None:
    """Carry out a recipe with progress on the console, then print what it made and where."""
    done = pipeline.run(recipe, reporter=reporter_for(console), changed_inputs=changed_inputs)
    for name, value in lines(recipe, done):
        console.print(f"{name + ':':<14}{value}", highlight=False, markup=False, soft_wrap=True)


def lines(recipe: Recipe, done: Finished) -> list[tuple[str, str]]:
    """Return what a run made, as (name, value), from the counts of its steps."""
    ingest, chunk, compose = (done[name] for name in ("ingest", "chunk", "compose"))
    sequences = sum(sequences_per_part(recipe, compose))
    told = [
        ("documents", f"{chunk.total('documents'):,} kept of {ingest.total('documents'):,}{_why_less(done)}"),
        (
            "chunks",
            f"{chunk.total('chunks'):,}, {chunk.total('chars') / max(1, chunk.total('chunks')):,.0f} characters each on average",
        ),
        ("method", recipe.method_name),
        (
            "sequences",
            f"{sequences:,} of exactly {recipe.compose.target_tokens:,} tokens{_shortfall(recipe, done, sequences)}",
        ),
    ]
    if "contaminated" in done:
        told.insert(2, ("contaminated", _contamination(done)))
    if "weights" in done:
        told.append(("near-copies", f"{done['draft'].total('near_copies'):,} left out of the drafts"))
    told += [(name, str(done[name].folder)) for name in recipe.export.formats]
    told.append(("look", f"nextlong peek {recipe.run_dir}"))
    return told


def _contamination(done: Finished) -> str:
    """Say how many chunks share text with the evaluation files, and with which."""
    by_file: Counter[str] = Counter()
    for counts in done["contaminated"].counts:
        by_file.update(counts["files"])
    told = ", ".join(f"{count:,} of them with {file}" for file, count in by_file.items())
    return f"{done['contaminated'].total('contaminated'):,} chunks left out ({told})"


def dropped(done: Finished) -> dict[str, int]:
    """Return how many drawn meta-documents became no sequence, by reason."""
    reasons: dict[str, int] = {}
    for name in ("draft", "compose"):
        for reason, count in done[name].total_by_reason("dropped").items():
            reasons[reason] = reasons.get(reason, 0) + count
    return reasons


def _why_less(done: Finished) -> str:
    (counts,) = done["select"].counts
    reasons = [
        (counts["duplicates"], "exact duplicate"),
        (counts["capped"], "over a cap"),
        (counts["weighted_out"], "over their weight"),
        (done["neardup"].total("near_duplicates") if "neardup" in done else 0, "near-duplicate"),
        (done["ingest"].total("rejects"), "rejected"),
    ]
    told = [f"{count:,} {reason}{_plural(reason, count)}" for count, reason in reasons if count]
    return f" ({', '.join(told)})" if told else ""


def _plural(reason: str, count: int) -> str:
    return "s" if reason.endswith("duplicate") and count > 1 else ""


def _shortfall(recipe: Recipe, done: Finished, sequences: int) -> str:
    asked = recipe.compose.sequences
    if asked == "all" or sequences == asked:
        return ""
    told = []
    if "metas" in done:
        eligible = done["metas"].total("eligible")
        told.append(
            f"{eligible:,} documents have compose.min_meta_chunks={recipe.compose.min_meta_chunks} chunks or more"
        )
    told += [f"{count:,} dropped: {reason}" for reason, count in dropped(done).items()]
    return f", fewer than compose.sequences={asked:,} ({'; '.join(told)})"
