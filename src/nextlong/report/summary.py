"""Summary: the result of a run in a few lines, or as plain dictionaries.

docs/reference/json.md names every key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from nextlong.artifacts.results import (
    ChunkResult,
    DraftResult,
    IngestResult,
    sequences_per_part,
)
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.deduplicate import NearDuplicatesResult
from nextlong.corpus.long_documents import score_filters
from nextlong.corpus.select import SelectResult
from nextlong.engine.step import Artifacts
from nextlong.export.arrange import (
    FEWER_LEFT_OUT,
    RowsResult,
    SplitResult,
    fill,
    percent,
)
from nextlong.methods.base import described
from nextlong.methods.keywords import KeywordsResult
from nextlong.methods.partition import describe_partition
from nextlong.recipe import Recipe
from nextlong.retrieval.index import describe_choice
from nextlong.retrieval.shortlist import describe_shortlist
from nextlong.runs.exported import Exported
from nextlong.runs.statistics.compute import with_keywords
from nextlong.runs.statistics.warnings import FROM_SCRATCH
from nextlong.sequences.shortfall import Attempt, why_fewer
from nextlong.text import Json, counted

Facts = list[tuple[str, str]]  # (name, value), as `tables.show_facts` prints them


def lines(written: Exported, *, named: str = "RUN") -> Facts:
    """Return the result of a run from the counts of its steps; `named` opens it."""
    recipe = written.recipe
    done = written.done
    chunked = done["chunk"].results(ChunkResult)
    chunks = sum(shard.chunks for shard in chunked)
    chunk_chars = sum(shard.chars for shard in chunked) / max(1, chunks)
    facts = [
        ("documents", _documents(recipe, done)),
        ("chunks", f"{chunks:,}, {chunk_chars:,.0f} characters each on average"),
        *_contaminated(done),
        ("method", described(recipe)),
        ("sequences", _sequences(recipe, done)),
    ]
    described_by = {"shortlist": describe_shortlist, "search": describe_choice}
    for name, describe in described_by.items():
        text = describe(done)
        if text:
            facts.append((name, text))
    facts += _near_duplicates(done)
    partitioned = describe_partition(done)
    if partitioned:
        facts.append(("partitions", partitioned))
    if "keywords" in done:
        facts += _keywords(done)
    return [*facts, *exported(written), *warned(written, named=named)]


def _documents(recipe: Recipe, done: Artifacts) -> str:
    """Return how many documents were kept of how many records, and why not more."""
    records = 0
    # Every record is counted once: as a document, or by what became of it.
    for part in done["ingest"].results(IngestResult):
        records += part.documents
        records += part.rejects + part.filtered_out + part.excluded
        records += sum(part.skipped.values())
    kept = sum(shard.documents for shard in done["chunk"].results(ChunkResult))
    return f"{kept:,} kept of {records:,}{_why_less(recipe, done)}"


def _contaminated(done: Artifacts) -> Facts:
    """Return how many chunks share text with evaluation files."""
    if "decontaminate" not in done:
        return []
    by_file: Counter[str] = Counter()
    contaminated = 0
    for shard in done["decontaminate"].results(DecontaminateResult):
        by_file.update(shard.files)
        contaminated += shard.contaminated
    files = [
        f"{count:,} of them with {file}" for file, count in by_file.items() if count
    ]
    chunks = counted(contaminated, "chunk")
    return [("contaminated", f"{chunks} filtered out ({', '.join(files)})")]


def _sequences(recipe: Recipe, done: Artifacts) -> str:
    """Return how many sequences there are, and why not more.

    Fewer than requested are explained, or, if all were requested, than drafts.
    """
    requested = recipe.compose.sequences
    sequences = sum(sequences_per_part(requested, done["compose"]))
    causes = "; ".join(why_fewer(recipe.compose, done))
    shortfall = ""
    if requested == "all":
        if Attempt(done).dropped:
            shortfall = f" ({causes})"
    elif sequences != requested:
        shortfall = f", fewer than compose.sequences={requested:,} ({causes})"
    return f"{sequences:,} of exactly {recipe.sequence_tokens:,} tokens{shortfall}"


def _near_duplicates(done: Artifacts) -> Facts:
    """Return how many near-duplicates drafting skipped, and the method filtered out."""
    drafted = done["draft"].results(DraftResult)
    facts = []
    if "weights" in done:
        skipped = sum(part.near_duplicates or 0 for part in drafted)
        facts.append(("near-duplicates", f"{skipped:,} candidate chunks skipped"))
    filtered = sum(part.near_duplicate_documents or 0 for part in drafted)
    if filtered:
        documents = counted(filtered, "document")
        facts.append(("near-duplicates", f"{documents} filtered out by the method"))
    return facts


def _keywords(done: Artifacts) -> Facts:
    """Return which documents were filtered out because of their keywords."""
    by_source = with_keywords(done["keywords"].results(KeywordsResult))
    parts = []
    for source, found in by_source.items():
        without = found.documents - found.with_keywords
        if without:
            parts.append(f"{without:,} of {found.documents:,} documents of {source}")
    lacking = ", ".join(parts) or "no documents"
    drafted = done["draft"].results(DraftResult)
    unshared = sum(part.unshared_keywords or 0 for part in drafted)
    alone = counted(unshared, "document")
    return [
        ("keywords", f"{lacking} filtered out because they have no keyword"),
        (
            "keywords",
            f"{alone} filtered out because no other document has their keywords",
        ),
    ]


def exported(written: Exported) -> Facts:
    """Return what was exported; of a mix also what each run gives to each split."""
    recipe = written.recipe
    rows = written.rows
    facts = []
    for split, arranged in rows.splits.items():
        facts.append((split, _split(arranged, written.room)))
        # Only a mix of several runs counts them.
        parts = [
            (run.name, *counts)
            for run, counts in zip(written.runs, arranged.of_runs, strict=False)
        ]
        for part, sequences, tokens in (*parts, *arranged.of_components):
            given = f"{counted(sequences, 'sequence')}, {tokens:,} tokens"
            facts.append((f"  of {part}", given))
    for name in recipe.export.formats:
        facts.append((name, f"{written.folder / name}"))
    facts.append(("data card", f"{written.folder / 'README.md'}"))
    for warning in written.warnings(*recipe.export.formats):
        facts.append(("warning", str(warning)))
    if recipe.export.push is not None:
        facts.append(("copied to", recipe.export.push))
    if rows.left_out:
        facts.append(("left out", _left_out(rows)))
    return facts


def _split(arranged: SplitResult, room: int) -> str:
    """Return the rows of a split, and how far they are filled."""
    rows = counted(arranged.rows, "row")
    sequences = counted(arranged.sequences, "sequence")
    short = ""
    if arranged.short_rows:
        short = f", {arranged.short_rows:,} of them not full"
    filled = percent(fill(arranged.tokens, rows=arranged.rows, room=room))
    return (
        f"{rows} of {sequences}{short}; {filled} of {room:,} tokens per row are filled"
    )


def _left_out(rows: RowsResult) -> str:
    """Return why sequences are in neither split."""
    total = rows.left_out + sum(split.sequences for split in rows.splits.values())
    few = ""
    if rows.left_out > rows.train.sequences:
        few = f"; this leaves few for training: {FEWER_LEFT_OUT}"
    return (
        f"{rows.left_out:,} of {counted(total, 'sequence')} are in neither split, "
        f"because they share a chunk with validation{few}"
    )


def warned(written: Exported, *, named: str) -> Facts:
    """Return the data-quality warnings of the run `named`, or that all checks passed.

    A run that is not measured has neither.
    """
    measured = written.stats
    if measured is None:
        return []
    facts = [("warning", str(warning.for_run(named))) for warning in measured.warnings]
    if measured.control:
        facts.append(("only as a control", measured.control))
    elif not facts:
        facts.append(("checked", "all data-quality checks passed"))
    if written.recipe.tokenizer.train is not None:
        facts.append(("train on it", FROM_SCRATCH))
    return facts


def _why_less(recipe: Recipe, done: Artifacts) -> str:
    """Return in parentheses why records are no kept documents, by reason."""
    selected = done["select"].result(SelectResult)
    ingested = done["ingest"].results(IngestResult)
    # Only `ingest.dedup: minhash` has the step.
    near: Sequence[NearDuplicatesResult] = []
    if "near_duplicates" in done:
        near = done["near_duplicates"].results(NearDuplicatesResult)
    kind = "normalized" if recipe.ingest.dedup == "normalized" else "exact"
    filtered_out = sum(part.filtered_out for part in ingested)
    excluded = sum(part.excluded for part in ingested)
    skipped = 0
    for part in ingested:
        skipped += sum(part.skipped.values())
    reasons = [
        (selected.duplicates, f"{kind} duplicate"),
        (selected.capped, "over a cap"),
        (selected.weighted_out, "over their weight"),
        (sum(part.near_duplicates for part in near), "near-duplicate"),
        *((result.removed, result.reason) for result in score_filters(done)),
        (filtered_out, "filtered out by the source filter"),
        (excluded, "excluded by ingest.exclude"),
        (sum(part.rejects for part in ingested), "rejected"),
        (skipped, "records without a document"),
    ]
    parts = []
    for count, reason in reasons:
        if count and reason.endswith("duplicate"):
            parts.append(counted(count, reason))
        elif count:
            parts.append(f"{count:,} {reason}")
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
    formats = written.recipe.export.formats
    rows = written.rows
    warnings = list(written.warnings(*formats))
    if written.stats is not None:
        warnings = [*written.stats.warnings, *warnings]
    counts = {"rows", "sequences", "documents", "tokens"}
    return {
        "rows": {
            name: split.model_dump(include=counts)
            for name, split in rows.splits.items()
        },
        "left_out": rows.left_out,
        "exports": {name: str(written.folder / name) for name in formats},
        "pushed_to": written.recipe.export.push,
        "warnings": [asdict(warning) for warning in warnings],
    }
