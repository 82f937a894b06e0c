"""Filtered: documents, chunks and drafts that a run filtered out, by reason.

Each reason has its count and the recorded examples. The reasons of the corpus come from
the step `filter_report`; they are listed completely where files record each case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import ChunkFiles, IngestFiles
from nextlong.corpus.decontaminate import DecontaminateFiles
from nextlong.corpus.filter_report import (
    Example,
    FilterReason,
    LeftOut,
    read_filter_report,
)
from nextlong.corpus.select import SelectFiles
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import Attempt, describe_length

_NAMED_AT_A_TIME: Final = 64


@dataclass(frozen=True)
class Entry:
    """One filtered-out item: its origin, its document if that was read, and details."""

    name: str
    doc_id: int | None = None
    detail: str = ""
    beside: int | None = None  # the document that it repeats


@dataclass(frozen=True)
class Kind:
    """Items filtered out for one reason: their `count`.

    `entries` yields those that were recorded.
    """

    key: str
    what: str
    reason: str
    count: int
    entries: Callable[[], Iterator[Entry]]
    is_sampled: bool  # whether only some of each task were recorded


def kinds(run: Run) -> list[Kind]:
    """Return the reasons for which this run filtered anything out.

    They are in the order of the route.
    """
    every = chain(_of_corpus(run), _of_drafts(run))
    return [kind for kind in every if kind.count]


def _of_corpus(run: Run) -> Iterator[Kind]:
    if "filter_report" not in run.steps:
        return
    reasons = read_filter_report(run.steps["filter_report"])
    for index, left_out in enumerate(reasons):
        entries = _recorded(run, left_out, reasons)
        is_sampled = entries is None
        yield Kind(
            key=f"corpus-{index}",
            what=left_out.unit,
            reason=left_out.reason,
            count=left_out.count,
            entries=entries or partial(_examples, left_out.examples),
            is_sampled=is_sampled,
        )


def _recorded(
    run: Run, left_out: LeftOut, reasons: Sequence[LeftOut]
) -> Callable[[], Iterator[Entry]] | None:
    """Return what lists every item of a reason; None where files do not record them."""
    reason = left_out.reason
    if reason.startswith(FilterReason.REJECTED):
        return partial(_rejects, run, reason.removeprefix(FilterReason.REJECTED))
    if reason == FilterReason.NEAR_DUPLICATE:
        return partial(_not_kept, run, "near_duplicates", "select")
    if reason == FilterReason.CONTAMINATED:
        return partial(_contaminated_chunks, run)
    # The step `select` records what it drops, and not for which of its reasons.
    by_select = {FilterReason.EXACT, FilterReason.NORMALIZED, FilterReason.OVER}
    present = by_select.intersection(other.reason for other in reasons)
    if reason in by_select and len(present) == 1:
        return partial(_not_kept, run, "select", None)
    return None


def _examples(examples: Sequence[Example]) -> Iterator[Entry]:
    for example in examples:
        details = filter(None, (example.note, example.head))
        yield Entry(example.source_id, detail=" · ".join(details))


def _rejects(run: Run, kind: str) -> Iterator[Entry]:
    for path in IngestFiles.of(run.steps).rejects:
        for _, batch in corpus_files.record_batches(path):
            for row in batch.to_pylist():
                reject_kind, _, detail = row["reason"].partition(": ")
                if reject_kind == kind:
                    yield Entry(f"{row['file']}:{row['line']}", detail=detail)


def _not_kept(run: Run, step: str, before: str | None) -> Iterator[Entry]:
    """Yield the documents that `step` drops and the step `before` keeps."""
    for shard, path in enumerate(SelectFiles(run.steps[step]).keep):
        dropped = ~np.load(path, mmap_mode="r")  # of each document of the shard
        if before is not None:
            kept_before = SelectFiles(run.steps[before]).keep[shard]
            dropped = dropped & np.load(kept_before, mmap_mode="r")
        doc_ids = schemas.pack_ids(shard, np.flatnonzero(dropped))
        # A page shows few, and names are read from the documents.
        for first in range(0, len(doc_ids), _NAMED_AT_A_TIME):
            some = doc_ids[first : first + _NAMED_AT_A_TIME]
            names = corpus_files.source_ids(some, run.corpus.documents)
            yield from map(Entry, names.tolist(), some.tolist())


def _contaminated_chunks(run: Run) -> Iterator[Entry]:
    for shard, path in enumerate(DecontaminateFiles.of(run.steps).contaminated):
        is_removed = np.load(path, mmap_mode="r")  # of each chunk of the shard
        ids = schemas.pack_ids(shard, np.flatnonzero(is_removed))
        yield from _of_chunks(run, ids, ChunkFiles.of(run.steps).chunks)


def _of_chunks(run: Run, ids: np.ndarray, chunks: Sequence[Path]) -> Iterator[Entry]:
    if not len(ids):
        return
    # All of one element per chunk: the row of its document in the shard, and where it
    # begins and ends there in characters.
    doc_rows, start, end = corpus_files.chunk_columns(
        ids, chunks, ("doc_row", "start", "end")
    )
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    names = corpus_files.source_ids(docs, run.corpus.documents).tolist()
    for name, doc_id, first, last in zip(
        names, docs.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        yield Entry(name, doc_id, f"characters {first:,} to {last:,}")


def _pairs(run: Run, pairs: Sequence[Sequence[int]]) -> Iterator[Entry]:
    for chunk, repeated, _ in pairs:
        ids = np.array([chunk, repeated])
        entry, other = _of_chunks(run, ids, run.corpus.chunks)
        yield Entry(
            name=entry.name,
            doc_id=entry.doc_id,
            detail=f"repeats {other.name}",
            beside=other.doc_id,
        )


def _of_drafts(run: Run) -> Iterator[Kind]:
    attempt = Attempt(run.steps)
    # Each task records a few examples.
    pairs: list[Sequence[int]] = []
    skipped = 0
    for part in attempt.drafted:
        pairs += part.near_duplicate_examples
        skipped += part.near_duplicates or 0
    yield Kind(
        key="near-duplicates",
        what="candidate negatives",
        reason=(
            "near-duplicate of the meta-document, or of another negative of the "
            "sequence"
        ),
        count=skipped,
        entries=partial(_pairs, run, pairs),
        is_sampled=True,
    )
    for index, (reason, count) in enumerate(attempt.dropped.items()):
        examples: list[Sequence[int]] = []
        for counted in attempt.parts:
            examples += counted.dropped_examples.get(reason, ())
        yield Kind(
            key=f"draft-{index}",
            what="drafts of a sequence",
            reason=reason,
            count=count,
            entries=partial(_dropped, run, examples),
            is_sampled=True,
        )


def _dropped(run: Run, examples: Sequence[Sequence[int]]) -> Iterator[Entry]:
    for chunk, pieces, tokens in examples:
        (entry,) = _of_chunks(run, np.array([chunk]), run.corpus.chunks)
        yield Entry(entry.name, entry.doc_id, describe_length(pieces, tokens))
