"""Summary: the result of a run in a few lines, or as plain dictionaries (docs/reference/json.md names every key)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from nextlong.artifacts.results import (
    ChunkResult,
    DraftResult,
    IngestResult,
    sequences_per_part,
)
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.deduplicate import NearDuplicatesResult
from nextlong.corpus.select import SelectResult
from nextlong.engine.step import Artifacts
from nextlong.export.arrange import FEWER_LEFT_OUT, fill, percent
from nextlong.methods.base import described
from nextlong.methods.keywords import KeywordsResult
from nextlong.methods.partition import describe_partition
from nextlong.recipe import Recipe
from nextlong.retrieval.index import describe_choice
from nextlong.retrieval.shortlist import describe_shortlist
from nextlong.runs.card import Exported
from nextlong.runs.statistics.compute import with_keywords
from nextlong.runs.statistics.warnings import FROM_SCRATCH
from nextlong.sequences.shortfall import Attempt, why_fewer
from nextlong.text import Json, counted


def lines(written: Exported, *, named: str = "RUN") -> list[tuple[str, str]]:
    """Return the result of a run as (name, value), from the counts of its steps; `named` opens the run."""
    recipe, done = written.recipe, written.done
    ingested = done["ingest"].results(IngestResult)
    read = sum(
        part.documents
        + part.rejects
        + part.filtered_out
        + part.excluded
        + sum(part.skipped.values())
        for part in ingested
    )
    chunked, drafted = (
        done["chunk"].results(ChunkResult),
        done["draft"].results(DraftResult),
    )
    chunks, chars = (
        sum(shard.chunks for shard in chunked),
        sum(shard.chars for shard in chunked),
    )
    sequences = sum(sequences_per_part(recipe.compose.sequences, done["compose"]))
    # Why there are fewer sequences than requested, or, if all were requested, than drafts.
    requested, causes = (
        recipe.compose.sequences,
        "; ".join(why_fewer(recipe.compose, done)),
    )
    shortfall = ""
    if requested == "all":
        shortfall = f" ({causes})" if Attempt(done).dropped else ""
    elif sequences != requested:
        shortfall = f", fewer than compose.sequences={requested:,} ({causes})"
    facts = [
        (
            "documents",
            f"{sum(shard.documents for shard in chunked):,} kept of {read:,}{_why_less(recipe, done)}",
        ),
        (
            "chunks",
            f"{chunks:,}, {chars / max(1, chunks):,.0f} characters each on average",
        ),
        ("method", described(recipe)),
        (
            "sequences",
            f"{sequences:,} of exactly {recipe.sequence_tokens:,} tokens{shortfall}",
        ),
    ]
    if "decontaminate" in done:
        shards = done["decontaminate"].results(DecontaminateResult)
        by_file = sum((Counter(shard.files) for shard in shards), Counter[str]())
        files = ", ".join(
            f"{count:,} of them with {file}" for file, count in by_file.items()
        )
        contaminated = counted(sum(shard.contaminated for shard in shards), "chunk")
        facts.insert(2, ("contaminated", f"{contaminated} filtered out ({files})"))
    for name, described_by in {
        "shortlist": describe_shortlist,
        "search": describe_choice,
    }.items():
        facts += [(name, text)] if (text := described_by(done)) else []
    if "weights" in done:
        near_duplicates = sum(part.near_duplicates or 0 for part in drafted)
        facts.append(
            ("near-duplicates", f"{near_duplicates:,} candidate chunks skipped")
        )
    if filtered := sum(part.near_duplicate_documents or 0 for part in drafted):
        facts.append(
            (
                "near-duplicates",
                f"{counted(filtered, 'document')} filtered out by the method",
            )
        )
    if partitioned := describe_partition(done):
        facts.append(("partitions", partitioned))
    if "keywords" in done:
        without = ", ".join(
            f"{of.documents - of.with_keywords:,} of {of.documents:,} documents of {source}"
            for source, of in with_keywords(
                done["keywords"].results(KeywordsResult)
            ).items()
            if of.with_keywords < of.documents
        )
        unshared = counted(
            sum(part.unshared_keywords or 0 for part in drafted), "document"
        )
        facts.append(
            (
                "keywords",
                f"{without or 'no documents'} filtered out because they have no keyword",
            )
        )
        facts.append(
            (
                "keywords",
                f"{unshared} filtered out because no other document has their keywords",
            )
        )
    return [*facts, *exported(written), *warned(written, named=named)]


def exported(written: Exported) -> list[tuple[str, str]]:
    """Return what was exported, as (name, value); of a mix also what each run gives to each split."""
    recipe, rows, room, names = (
        written.recipe,
        written.rows,
        written.room,
        [run.name for run in written.runs],
    )
    facts = []
    for split, arranged in rows.splits.items():
        short = (
            f", {arranged.short_rows:,} of them not full" if arranged.short_rows else ""
        )
        filled = percent(fill(arranged.tokens, rows=arranged.rows, room=room))
        rows_made = f"{counted(arranged.rows, 'row')} of {counted(arranged.sequences, 'sequence')}{short}"
        facts.append(
            (split, f"{rows_made}; {filled} of {room:,} tokens per row are filled")
        )
        facts += [
            (f"  of {name}", f"{counted(sequences, 'sequence')}, {tokens:,} tokens")
            for name, (sequences, tokens) in zip(names, arranged.of_runs, strict=False)
        ]
    facts += [(name, f"{written.folder / name}") for name in recipe.export.formats]
    facts.append(("data card", f"{written.folder / 'README.md'}"))
    about_rows = written.warnings(*recipe.export.formats)
    facts += [("warning", str(warning)) for warning in about_rows]
    if recipe.export.push is not None:
        facts.append(("pushed to", recipe.export.push))
    if rows.left_out:
        train, total = (
            rows.train.sequences,
            rows.left_out + sum(split.sequences for split in rows.splits.values()),
        )
        of_total = f"{rows.left_out:,} of {counted(total, 'sequence')}"
        neither = f"{of_total} are in neither split, because they share a chunk with validation"
        few = (
            f"; this leaves few for training: {FEWER_LEFT_OUT}"
            if rows.left_out > train
            else ""
        )
        facts.append(("left out", f"{neither}{few}"))
    return facts


def warned(written: Exported, *, named: str) -> list[tuple[str, str]]:
    """Return the data-quality warnings of the run `named`, as (name, value), or that all checks passed; none if not measured."""
    if (measured := written.stats) is None:
        return []
    facts = [("warning", str(one.of(named))) for one in measured.warnings]
    if why := measured.control:
        facts.append(("only as a control", why))
    elif not facts:
        facts.append(("checked", "all data-quality checks passed"))
    if written.recipe.tokenizer.train is not None:
        facts.append(("train on it", FROM_SCRATCH))
    return facts


def _why_less(recipe: Recipe, done: Artifacts) -> str:
    selected = done["select"].result(SelectResult)
    ingested = done["ingest"].results(IngestResult)
    skipped = sum(sum(part.skipped.values()) for part in ingested)
    near = (
        done["near_duplicates"].results(NearDuplicatesResult)
        if "near_duplicates" in done
        else []
    )
    reasons = [
        (
            selected.duplicates,
            f"{'normalized' if recipe.ingest.dedup == 'normalized' else 'exact'} duplicate",
        ),
        (selected.capped, "over a cap"),
        (selected.weighted_out, "over their weight"),
        (sum(part.near_duplicates for part in near), "near-duplicate"),
        (
            sum(part.filtered_out for part in ingested),
            "filtered out by the source filter",
        ),
        (sum(part.excluded for part in ingested), "excluded by ingest.exclude"),
        (sum(part.rejects for part in ingested), "rejected"),
        (skipped, "records without a document"),
    ]
    parts = [
        counted(n, why) if why.endswith("duplicate") else f"{n:,} {why}"
        for n, why in reasons
        if n
    ]
    return f" ({', '.join(parts)})" if parts else ""


def run_of(written: Exported) -> Json:
    """Return the result of a run and its paths."""
    (run,) = written.runs
    return {
        "run": str(run.path),
        "variant": run.variant.name,
        "method": run.recipe.compose.method,
        "sequences": len(run),
        "target_tokens": run.recipe.sequence_tokens,
    } | export_of(written)


def export_of(written: Exported) -> Json:
    """Return the result of an export and its paths."""
    recipe, rows = written.recipe, written.rows
    warnings = [
        *(written.stats.warnings if written.stats else ()),
        *written.warnings(*recipe.export.formats),
    ]
    counts = {"rows", "sequences", "documents", "tokens"}
    return {
        "rows": {
            name: split.model_dump(include=counts)
            for name, split in rows.splits.items()
        },
        "left_out": rows.left_out,
        "exports": {name: str(written.folder / name) for name in recipe.export.formats},
        "pushed_to": recipe.export.push,
        "warnings": [asdict(warning) for warning in warnings],
    }
