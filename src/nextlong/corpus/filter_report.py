"""Filter report: what was filtered out for each reason, with examples.

In:  the counts of ingest, select, near_duplicates and decontaminate, and their files.
Out: one JSON file for people to read: records, documents and chunks by reason. Also
     counts kept documents that share an id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from nextlong import schemas
from nextlong.arrays import Hashes
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import IngestFiles, IngestResult
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.deduplicate import NearDuplicatesFiles, NearDuplicatesResult
from nextlong.corpus.long_documents import ScoreFilterResult
from nextlong.corpus.select import SelectFiles, SelectResult
from nextlong.corpus.splits import Splits
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    OnlyFile,
    Step,
    StepFiles,
    TaskResult,
)
from nextlong.recipe import Ingest

_EXAMPLES: Final = 5
# Removed documents examined, to distinguish duplicates from documents over a cap.
_EXAMINED: Final = 200
_HEAD_CHARS: Final = 200
_ID_HEAD_CHARS: Final = 60

_Paths = Sequence[Path]


class FilterReason(StrEnum):
    """Why a record, document or chunk was filtered out.

    `REJECTED` and `SKIPPED` are followed by a kind.
    """

    REJECTED = "rejected: "
    SKIPPED = "skipped: "
    FILTERED = "removed by the source filter"
    EXCLUDED = "excluded by ingest.exclude"
    EXACT = "exact duplicate of another document"
    NORMALIZED = "normalized duplicate of another document"
    OVER = "over max_documents, max_chars or weight"
    NEAR_DUPLICATE = "near-duplicate of another document"
    CONTAMINATED = "shares words with an evaluation text"


class LeftOutResult(TaskResult):
    """How many records, documents or chunks were filtered out, by reason.

    And how many kept documents share an id.
    """

    left_out: dict[str, int]
    # Documents with the user's id of an earlier one.
    same_ids: int = 0
    # Source, id and beginnings of two of them.
    same_id_example: tuple[str, ...] = ()


class FilterReportFiles(StepFiles):
    """What was filtered out, by reason, with examples."""

    step = "filter_report"
    report = OnlyFile(".filter_report.json")


@dataclass(frozen=True)
class Example:
    """One filtered record, document or chunk: its id and source, and how it begins.

    With a note, "" for none.
    """

    source_id: str
    source: str
    head: str
    note: str


@dataclass(frozen=True)
class LeftOut:
    """The number of `unit` filtered out for one reason, with some examples."""

    reason: str
    unit: str
    count: int
    examples: tuple[Example, ...]


_REPORT = TypeAdapter(tuple[LeftOut, ...])


def read_filter_report(done: Artifact) -> tuple[LeftOut, ...]:
    """Return the report that the step `filter_report` wrote."""
    path = FilterReportFiles(done).report
    return _REPORT.validate_json(path.read_bytes())


def filter_report_step(
    settings: Ingest, splits: Splits, ingest: Step, select: Step, others: Sequence[Step]
) -> Step:
    """Return the step that reports what each filter removed.

    `others` are the steps that remove near-duplicates and contaminated text.
    """
    filters = [step.name for step in others if step.result is ScoreFilterResult]
    read_names = ("near_duplicates", *filters, "decontaminate")
    reads = [step for step in others if step.name in read_names]
    # Of each task's source.
    source_indices: list[int] = []
    for index, source_splits in enumerate(splits):
        source_indices += [index] * len(source_splits)
    task = partial(
        _write_filter_report,
        source_indices=source_indices,
        labels=[source.label for source in settings.sources],
        dedup=settings.dedup,
        filters=filters,
    )
    return Step(
        name="filter_report",
        phase="read",
        version=6,
        config={},
        inputs=(ingest, select, *reads),
        tasks=lambda done: [partial(task, done=done)],
        result=LeftOutResult,
    )


def _write_filter_report(
    out: Path,
    *,
    done: Artifacts,
    source_indices: Sequence[int],
    labels: Sequence[str],
    dedup: str,
    filters: Sequence[str],
) -> LeftOutResult:
    """Write `{out}.filter_report.json`; return the counts by reason.

    And how many kept documents share an id.
    """
    ingested = done["ingest"].results(IngestResult)
    files = IngestFiles.of(done)
    label_of_task = [labels[index] for index in source_indices]
    source_of_shard: list[int] = []
    for index, result in zip(source_indices, ingested, strict=True):
        source_of_shard += [index] * result.shards

    left_out = [
        *_rejected(ingested, files),
        *_skipped(ingested),
        _removed_by_user(
            FilterReason.FILTERED,
            [result.filtered_out for result in ingested],
            [result.filter_examples for result in ingested],
            label_of_task,
        ),
        _removed_by_user(
            FilterReason.EXCLUDED,
            [result.excluded for result in ingested],
            [result.excluded_examples for result in ingested],
            label_of_task,
        ),
        *_by_select(done, source_of_shard, dedup),
    ]
    # Files of the last step that removes documents.
    keep = SelectFiles.of(done).keep
    if "near_duplicates" in done:
        keep = NearDuplicatesFiles.of(done).keep
        left_out.append(_near_duplicates(done))
    for name in filters:
        keep = SelectFiles(done[name]).keep
        left_out.append(_filtered(done, name))
    if "decontaminate" in done:
        left_out.append(_contaminated(done))
    left_out = [entry for entry in left_out if entry.count]
    content = _REPORT.dump_json(tuple(left_out), indent=1)
    Path(f"{out}.filter_report.json").write_bytes(content)
    same_ids, example = _same_ids(files.documents, files.id_hashes, keep)
    return LeftOutResult(
        left_out={entry.reason: entry.count for entry in left_out},
        same_ids=same_ids,
        same_id_example=example,
    )


def _rejected(ingested: Sequence[IngestResult], files: IngestFiles) -> list[LeftOut]:
    """Count the rejected records by kind."""
    counts: Counter[str] = Counter()
    for result in ingested:
        counts.update(result.reject_reasons)
    # Without rejects there is no file of them.
    if not counts:
        return []
    examples: dict[str, list[Example]] = {kind: [] for kind in counts}
    for path in files.rejects:
        # Of each file, only the first batch.
        _, batch = next(corpus_files.record_batches(path))
        for row in batch.to_pylist():
            kind, _, detail = row["reason"].partition(": ")
            if len(examples[kind]) < _EXAMPLES:
                name = f"{row['file']}:{row['line']}"
                examples[kind].append(Example(name, "", "", detail))
        is_enough = all(
            len(some) >= min(_EXAMPLES, counts[kind]) for kind, some in examples.items()
        )
        if is_enough:
            break
    left_out = []
    for kind, count in sorted(counts.items()):
        entry = LeftOut(
            reason=f"{FilterReason.REJECTED}{kind}",
            unit="records",
            count=count,
            examples=tuple(examples[kind]),
        )
        left_out.append(entry)
    return left_out


def _removed_by_user(
    reason: FilterReason,
    counts: Sequence[int],
    examples: Sequence[Sequence[tuple[str, str]]],
    labels: Sequence[str],
) -> LeftOut:
    """Count the documents that a source's filter or the exclusion list removed.

    Counts, examples (id and beginning) and source labels are of each task.
    """
    every: list[Example] = []
    for label, task_examples in zip(labels, examples, strict=True):
        for source_id, head in task_examples:
            every.append(Example(source_id, label, head, ""))
    return LeftOut(
        reason=reason,
        unit="documents",
        count=sum(counts),
        examples=_spread(every),
    )


def _near_duplicates(done: Artifacts) -> LeftOut:
    """Count the near-duplicates; the examples name what is kept instead."""
    result = done["near_duplicates"].result(NearDuplicatesResult)
    removed = [removed_id for removed_id, _ in result.examples]
    kept_instead = [kept_id for _, kept_id in result.examples]
    examples = _examples(
        IngestFiles.of(done).documents,
        removed,
        ["near-duplicate of "] * len(removed),
        others=kept_instead,
    )
    return LeftOut(
        reason=FilterReason.NEAR_DUPLICATE,
        unit="documents",
        count=result.near_duplicates,
        examples=examples,
    )


def _filtered(done: Artifacts, name: str) -> LeftOut:
    """Count the long documents that a filter by scores removed."""
    result = done[name].result(ScoreFilterResult)
    removed = list(result.examples)
    return LeftOut(
        reason=result.reason,
        unit="documents",
        count=result.removed,
        examples=_examples(
            IngestFiles.of(done).documents, removed, [""] * len(removed)
        ),
    )


def _contaminated(done: Artifacts) -> LeftOut:
    """Count the contaminated chunks; there is an example of each shard."""
    results = done["decontaminate"].results(DecontaminateResult)
    notes: dict[int, str] = {}
    for shard, result in enumerate(results):
        if result.example_doc_row >= 0:
            doc_id = shard << schemas.SHARD_BITS | result.example_doc_row
            notes[doc_id] = f"shares with {result.example}"
    examples = _examples(
        IngestFiles.of(done).documents, list(notes), list(notes.values())
    )
    return LeftOut(
        reason=FilterReason.CONTAMINATED,
        unit="chunks",
        count=sum(result.contaminated for result in results),
        examples=examples,
    )


def _skipped(ingested: Sequence[IngestResult]) -> list[LeftOut]:
    """Count the records that are no documents by their kind."""
    counts: Counter[str] = Counter()
    for part in ingested:
        counts.update(part.skipped)
    names: dict[str, list[str]] = {reason: [] for reason in counts}
    for part in ingested:
        for reason, name in part.skipped_examples.items():
            names[reason].append(name)
    left_out = []
    for reason, count in sorted(counts.items()):
        examples = [Example(name, "", "", "") for name in names[reason]]
        entry = LeftOut(
            reason=f"{FilterReason.SKIPPED}{reason}",
            unit="records",
            count=count,
            examples=_spread(examples),
        )
        left_out.append(entry)
    return left_out


def _by_select(
    done: Artifacts, source_of_shard: Sequence[int], dedup: str
) -> list[LeftOut]:
    """Distinguish duplicates from documents over caps and weights."""
    files = IngestFiles.of(done)
    is_exact = dedup != "normalized"
    removed = _some_removed(SelectFiles.of(done).keep)
    kept_of = _kept_equals(
        removed,
        files.hashes if is_exact else files.normalized,
        files.hashes,
        source_of_shard,
    )
    duplicates = list(kept_of)
    note = "equals " if is_exact else "equals, but for case and white space, "
    duplicate_examples = _examples(
        files.documents,
        duplicates,
        [note] * len(duplicates),
        others=list(kept_of.values()),
    )
    over_limit = [doc_id for doc_id in removed if doc_id not in kept_of]
    no_notes = [""] * len(over_limit)
    selected = done["select"].result(SelectResult)
    return [
        LeftOut(
            reason=FilterReason.EXACT if is_exact else FilterReason.NORMALIZED,
            unit="documents",
            count=selected.duplicates,
            examples=duplicate_examples,
        ),
        LeftOut(
            reason=FilterReason.OVER,
            unit="documents",
            count=selected.capped + selected.weighted_out,
            examples=_examples(files.documents, over_limit, no_notes),
        ),
    ]


def _some_removed(keep: _Paths) -> list[int]:
    """Return ids of some documents that select removed, from many shards."""
    removed: list[int] = []
    rows_of_shard = max(1, _EXAMINED // max(1, len(keep)))
    for shard, path in enumerate(keep):
        kept = np.load(path, mmap_mode="r")
        rows = np.flatnonzero(~kept)[:rows_of_shard]
        if len(removed) < _EXAMINED:
            removed += schemas.pack_ids(shard, rows).tolist()
    return removed


def _kept_equals(
    removed: Sequence[int],
    compared: _Paths,
    content_hashes: _Paths,
    source_of_shard: Sequence[int],
) -> dict[int, int]:
    """Return, for each removed document that has one, the kept document that equals it.

    `compared` has the hashes that are equal for duplicates. Of equal documents, select
    keeps the one of the earliest source, and then of the smallest content hash.
    """
    if not removed:
        return {}
    # (n,) of the removed documents; all shards are searched for others with one of
    # these.
    removed_hashes = corpus_files.array_rows(np.array(removed, np.int64), compared)
    # For each of these hashes, the kept document: source, content hash, id.
    kept: dict[int, tuple[int, int, int]] = {}
    for shard, (compared_path, hash_path) in enumerate(
        zip(compared, content_hashes, strict=True)
    ):
        shard_compared: Hashes = np.load(compared_path, mmap_mode="r")
        shard_hashes = np.load(hash_path, mmap_mode="r")
        rows = np.flatnonzero(np.isin(shard_compared, removed_hashes))
        for row in rows.tolist():
            doc_id = shard << schemas.SHARD_BITS | row
            candidate = (source_of_shard[shard], int(shard_hashes[row]), doc_id)
            value = int(shard_compared[row])
            kept[value] = min(candidate, kept.get(value, candidate))
    kept_of: dict[int, int] = {}
    for doc_id, value in zip(removed, removed_hashes.tolist(), strict=True):
        _, _, kept_id = kept[value]
        if kept_id != doc_id:
            kept_of[doc_id] = kept_id
    return kept_of


def _examples(
    documents: _Paths,
    doc_ids: Sequence[int],
    notes: Sequence[str],
    *,
    others: Sequence[int] = (),
) -> tuple[Example, ...]:
    """Return some of the documents as examples.

    Each with its note and the name of its counterpart in `others`.
    """
    if not doc_ids:
        return ()
    indices = list(_spread(range(len(doc_ids))))
    names_of_others = [""] * len(indices)
    if others:
        other_ids = np.array(others)[indices]
        names_of_others = corpus_files.source_ids(other_ids, documents).tolist()
    some_ids = np.array(doc_ids)[indices]
    columns = corpus_files.document_columns(
        some_ids, documents, ("source_id", "source", "text")
    )
    names, sources, texts = (column.tolist() for column in columns)
    examples = []
    for row, index in enumerate(indices):
        example = Example(
            source_id=names[row],
            source=sources[row],
            head=texts[row][:_HEAD_CHARS],
            note=notes[index] + names_of_others[row],
        )
        examples.append(example)
    return tuple(examples)


def _spread(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return a few evenly spaced items."""
    every = max(1, len(items) // _EXAMPLES)
    return tuple(items[::every][:_EXAMPLES])


def _same_ids(
    documents: _Paths, id_hashes: _Paths, keep: _Paths
) -> tuple[int, tuple[str, ...]]:
    """Count kept documents with the id of an earlier one.

    Also returns source, id and beginnings of two with one id.
    """
    # A shard is read twice rather than mapped throughout: a large corpus has more
    # shards than a process may have open files.
    kept = 0
    for path in keep:
        is_kept = np.load(path)
        kept += int(is_kept.sum())
    # (kept documents,), 8 bytes each: the only array here that grows with the corpus.
    ordered = np.empty(kept, np.uint64)
    end = 0
    for hash_path, keep_path in zip(id_hashes, keep, strict=True):
        shard_hashes = np.load(hash_path, mmap_mode="r")
        kept_hashes = shard_hashes[np.load(keep_path)]
        ordered[end : end + len(kept_hashes)] = kept_hashes
        end += len(kept_hashes)
    ordered.sort()
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return 0, ()
    # The first two of the id with the smallest hash.
    doc_ids: list[int] = []
    for shard, (hash_path, keep_path) in enumerate(zip(id_hashes, keep, strict=True)):
        has_id = (np.load(hash_path) == again[0]) & np.load(keep_path)
        rows = np.flatnonzero(has_id)
        doc_ids += schemas.pack_ids(shard, rows).tolist()
        if len(doc_ids) > 1:
            break
    names, sources, texts = corpus_files.document_columns(
        np.array(doc_ids[:2]), documents, ("source_id", "source", "text")
    )
    heads = []
    for text in texts.tolist():
        words = text[:_ID_HEAD_CHARS].split()
        heads.append(" ".join(words))
    return len(again), (str(sources[0]), str(names[0]), *heads)
