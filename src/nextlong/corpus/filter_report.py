"""Filter report: how many records, documents and chunks were filtered out for each reason, with examples.

In:  the counts of ingest, select, near_duplicates and decontaminate, and their files. Out: one JSON file for people to read.
Also counts kept documents that share an id.
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
from numpy.typing import NDArray
from pydantic import TypeAdapter

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import IngestFiles, IngestResult
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.deduplicate import NearDuplicatesFiles, NearDuplicatesResult
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
_EXAMINED: Final = 200  # removed documents examined, to distinguish duplicates from documents over a cap
_HEAD_CHARS: Final = 200
_ID_HEAD_CHARS: Final = 60

_Paths = Sequence[Path]


class FilterReason(StrEnum):
    """Why a record, document or chunk was filtered out; `REJECTED` and `SKIPPED` are followed by a kind."""

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
    """How many records, documents or chunks were filtered out, by reason, and how many kept documents share an id."""

    left_out: dict[str, int]
    same_ids: int = 0  # documents with the user's id of an earlier one
    same_id_example: tuple[str, ...] = ()  # source, id and beginnings of two of them


class FilterReportFiles(StepFiles):
    """What was filtered out, by reason, with examples."""

    step = "filter_report"
    report = OnlyFile(".filter_report.json")


@dataclass(frozen=True)
class Example:
    """One filtered record, document or chunk: its id, its source, the beginning of its text, and a note."""

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
    return _REPORT.validate_json(FilterReportFiles(done).report.read_bytes())


def filter_report_step(
    settings: Ingest, splits: Splits, ingest: Step, select: Step, others: Sequence[Step]
) -> Step:
    """Report what each filter removed; `others` are the steps that remove near-duplicates and contaminated text."""
    reads = tuple(
        step for step in others if step.name in ("near_duplicates", "decontaminate")
    )
    places = [
        place for place, of_source in enumerate(splits) for _ in of_source
    ]  # of each task's source
    labels = [source.label for source in settings.sources]
    task = partial(
        _write_filter_report, places=places, labels=labels, dedup=settings.dedup
    )
    inputs, tasks = (ingest, select, *reads), lambda done: [partial(task, done=done)]
    return Step("filter_report", 6, {}, inputs, tasks, LeftOutResult)


def _write_filter_report(
    out: Path,
    *,
    done: Artifacts,
    places: Sequence[int],
    labels: Sequence[str],
    dedup: str,
) -> LeftOutResult:
    """Write `{out}.filter_report.json`; return the counts by reason, and how many kept documents share an id."""
    ingested = done["ingest"].results(IngestResult)
    documents, keep = (
        IngestFiles.of(done).documents,
        SelectFiles.of(done).keep,
    )
    found = sum((Counter(part.reject_reasons) for part in ingested), Counter[str]())
    examples_of: dict[str, list[Example]] = {kind: [] for kind in found}
    for path in IngestFiles.of(done).rejects if found else ():
        for row in next(corpus_files.record_batches(path))[1].to_pylist():
            kind, _, detail = row["reason"].partition(": ")
            if len(examples_of[kind]) < _EXAMPLES:
                examples_of[kind].append(
                    Example(f"{row['file']}:{row['line']}", "", "", detail)
                )
        if all(
            len(examples) >= min(_EXAMPLES, found[kind])
            for kind, examples in examples_of.items()
        ):
            break
    some_of = ((kind, tuple(examples_of[kind])) for kind in sorted(found))
    reasons = [
        LeftOut(f"{FilterReason.REJECTED}{kind}", "records", found[kind], some)
        for kind, some in some_of
    ]
    reasons += _skipped(ingested)
    for reason, removed, examples in (
        (FilterReason.FILTERED, "filtered_out", "filter_examples"),
        (FilterReason.EXCLUDED, "excluded", "excluded_examples"),
    ):
        named = [
            Example(source_id, labels[place], head, "")
            for place, part in zip(places, ingested, strict=True)
            for source_id, head in getattr(part, examples)
        ]
        reasons.append(
            LeftOut(
                reason,
                "documents",
                sum(getattr(part, removed) for part in ingested),
                _spread(named),
            )
        )
    source_of = [
        place
        for place, part in zip(places, ingested, strict=True)
        for _ in range(part.shards)
    ]
    reasons += _by_select(done, source_of, dedup)
    kept = keep  # files of the last step that removes documents
    if "near_duplicates" in done:
        near, kept = (
            done["near_duplicates"].result(NearDuplicatesResult),
            NearDuplicatesFiles.of(done).keep,
        )
        removed_ids, kept_ids = (
            np.array(near.examples, np.int64).reshape(-1, 2).T.tolist()
        )
        some = _examples(
            documents,
            removed_ids,
            ["near-duplicate of "] * len(removed_ids),
            others=kept_ids,
        )
        reasons.append(
            LeftOut(
                FilterReason.NEAR_DUPLICATE, "documents", near.near_duplicates, some
            )
        )
    if "decontaminate" in done:
        contaminated = done["decontaminate"].results(DecontaminateResult)
        shares = {
            shard << schemas.SHARD_BITS
            | part.example_doc_row: f"shares with {part.example}"
            for shard, part in enumerate(contaminated)
            if part.example_doc_row >= 0
        }
        some = _examples(documents, list(shares), list(shares.values()))
        count = sum(part.contaminated for part in contaminated)
        reasons.append(LeftOut(FilterReason.CONTAMINATED, "chunks", count, some))
    reasons = [one for one in reasons if one.count]
    Path(f"{out}.filter_report.json").write_bytes(
        _REPORT.dump_json(tuple(reasons), indent=1)
    )
    count, example = _same_ids(documents, IngestFiles.of(done).id_hashes, kept)
    return LeftOutResult(
        left_out={one.reason: one.count for one in reasons},
        same_ids=count,
        same_id_example=example,
    )


def _skipped(ingested: Sequence[IngestResult]) -> list[LeftOut]:
    """Count the records that are no documents by their kind."""
    counts = sum((Counter(part.skipped) for part in ingested), Counter[str]())
    names: dict[str, list[str]] = {reason: [] for reason in counts}
    for part in ingested:
        for reason, name in part.skipped_examples.items():
            names[reason].append(name)
    left_out = []
    for reason, count in sorted(counts.items()):
        examples = [Example(name, "", "", "") for name in names[reason]]
        left_out.append(
            LeftOut(
                reason=f"{FilterReason.SKIPPED}{reason}",
                unit="records",
                count=count,
                examples=_spread(examples),
            )
        )
    return left_out


def _by_select(done: Artifacts, source_of: Sequence[int], dedup: str) -> list[LeftOut]:
    """Distinguish duplicates from documents over caps and weights; `source_of` is the source of each shard."""
    ingest, keep = IngestFiles.of(done), SelectFiles.of(done).keep
    documents, all_hashes = (
        ingest.documents,
        ingest.hashes,
    )
    all_compared = ingest.normalized if dedup == "normalized" else all_hashes
    dropped: list[
        int
    ] = []  # ids of some documents that select removed, from as many shards as possible
    for shard, path in enumerate(keep):
        rows = np.flatnonzero(~np.load(path, mmap_mode="r"))[
            : max(1, _EXAMINED // len(keep))
        ]
        dropped += (
            schemas.pack_ids(shard, rows).tolist() if len(dropped) < _EXAMINED else []
        )
    # (n,) the compared hash of each of them; all shards are searched for other documents with one of these hashes.
    dropped_hashes = corpus_files.array_rows(np.array(dropped, np.int64), all_compared)
    # For each compared hash, the kept document: source, content hash, id.
    kept: dict[int, tuple[int, int, int]] = {}
    for shard, (compared_path, hash_path) in enumerate(
        zip(all_compared, all_hashes, strict=True) if dropped else ()
    ):
        compared: NDArray[np.uint64] = np.load(compared_path, mmap_mode="r")
        hashes = np.load(hash_path, mmap_mode="r")
        for row in np.flatnonzero(np.isin(compared, dropped_hashes)).tolist():
            candidate = (
                source_of[shard],
                int(hashes[row]),
                shard << schemas.SHARD_BITS | row,
            )
            kept[int(compared[row])] = min(
                candidate, kept.get(int(compared[row]), candidate)
            )
    kept_of = {
        doc: kept[value][2]
        for doc, value in zip(dropped, dropped_hashes.tolist(), strict=True)
    }
    equal = {doc: other for doc, other in kept_of.items() if other != doc}
    capped, is_exact = (
        [doc for doc in dropped if doc not in equal],
        dedup != "normalized",
    )
    notes = ["equals " if is_exact else "equals, but for case and white space, "] * len(
        equal
    )
    duplicates = _examples(documents, list(equal), notes, others=list(equal.values()))
    selected, over = (
        done["select"].result(SelectResult),
        _examples(documents, capped, [""] * len(capped)),
    )
    reason = FilterReason.EXACT if is_exact else FilterReason.NORMALIZED
    return [
        LeftOut(reason, "documents", selected.duplicates, duplicates),
        LeftOut(
            FilterReason.OVER,
            "documents",
            selected.capped + selected.weighted_out,
            over,
        ),
    ]


def _examples(
    documents: _Paths,
    doc_ids: Sequence[int],
    notes: Sequence[str],
    *,
    others: Sequence[int] = (),
) -> tuple[Example, ...]:
    """Return some of the documents as examples, each with its note and the name of its counterpart in `others`."""
    if not doc_ids:
        return ()
    places = list(_spread(range(len(doc_ids))))
    names_of_others = (
        corpus_files.source_ids(np.array(others)[places], documents).tolist()
        if others
        else [""] * len(places)
    )
    columns = corpus_files.document_columns(
        np.array(doc_ids)[places], documents, ("source_id", "source", "text")
    )
    rows = zip(
        *(column.tolist() for column in columns), places, names_of_others, strict=True
    )
    return tuple(
        Example(name, own, text[:_HEAD_CHARS], notes[place] + other)
        for name, own, text, place, other in rows
    )


def _spread(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return a few evenly spaced items."""
    return tuple(items[:: max(1, len(items) // _EXAMPLES)][:_EXAMPLES])


def _same_ids(
    documents: _Paths, id_hashes: _Paths, keep: _Paths
) -> tuple[int, tuple[str, ...]]:
    """Count kept documents with the id of an earlier one; also return source, id and beginnings of two with one id."""
    # A shard is read twice rather than mapped throughout: a large corpus has more shards
    # than a process may have open files.
    kept = sum(int(np.count_nonzero(np.load(path))) for path in keep)
    # (kept documents,), 8 bytes each: the only array here that grows with the corpus.
    ordered = np.empty(kept, np.uint64)
    end = 0
    for hash_path, keep_path in zip(id_hashes, keep, strict=True):
        of_shard = np.load(hash_path, mmap_mode="r")[np.load(keep_path)]
        ordered[end : end + len(of_shard)] = of_shard
        end += len(of_shard)
    ordered.sort()
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return 0, ()
    doc_ids: list[int] = []  # the first two of the id with the smallest hash
    for shard, (hash_path, keep_path) in enumerate(zip(id_hashes, keep, strict=True)):
        has_id = (np.load(hash_path) == again[0]) & np.load(keep_path)
        doc_ids += schemas.pack_ids(shard, np.flatnonzero(has_id)).tolist()
        if len(doc_ids) > 1:
            break
    names, sources, texts = corpus_files.document_columns(
        np.array(doc_ids[:2]), documents, ("source_id", "source", "text")
    )
    heads = (" ".join(text[:_ID_HEAD_CHARS].split()) for text in texts.tolist())
    return len(again), (str(sources[0]), str(names[0]), *heads)
