"""Filtered: documents, chunks and drafts that a run filtered out, by reason, with counts and the recorded examples.

The reasons of the corpus come from the step `filter_report`; they are listed completely where files record each case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import ChunkFiles, IngestFiles
from nextlong.corpus.decontaminate import DecontaminateFiles
from nextlong.corpus.filter_report import Example, FilterReason, read_filter_report
from nextlong.corpus.select import SelectFiles
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import Attempt, describe_length

_NAMED_AT_A_TIME = 64


@dataclass(frozen=True)
class _Entry:
    """One filtered-out item: its origin, its document if that was read, and details."""

    name: str
    doc_id: int | None = None
    detail: str = ""
    beside: int | None = None  # the document that it repeats


@dataclass(frozen=True)
class _Kind:
    """Items filtered out for one reason: their `count`; `entries` yields those that were recorded."""

    key: str
    what: str
    reason: str
    count: int
    entries: Callable[[], Iterator[_Entry]]
    is_sampled: bool  # whether only some of each task were recorded


def kinds(run: Run) -> list[_Kind]:
    """Return the reasons for which this run filtered anything out, in the order of the route."""
    return [kind for kind in (*_of_corpus(run), *_of_drafts(run)) if kind.count]


def _of_corpus(run: Run) -> Iterator[_Kind]:
    if "filter_report" not in run.steps:
        return
    reasons = read_filter_report(run.steps["filter_report"])
    by_select = {FilterReason.EXACT, FilterReason.NORMALIZED, FilterReason.OVER}
    is_alone = len(by_select.intersection(one.reason for one in reasons)) == 1
    for place, one in enumerate(reasons):
        # Every entry is listed if files record which items were filtered out for this reason.
        entries: Callable[[], Iterator[_Entry]] | None = None
        if one.reason.startswith(FilterReason.REJECTED):
            entries = partial(
                _rejects, run, one.reason.removeprefix(FilterReason.REJECTED)
            )
        elif one.reason == FilterReason.NEAR_DUPLICATE:
            entries = partial(_not_kept, run, "near_duplicates", "select")
        elif one.reason == FilterReason.CONTAMINATED:
            entries = partial(_contaminated_chunks, run)
        elif one.reason in by_select and is_alone:
            entries = partial(_not_kept, run, "select", None)
        listed = entries or partial(_examples, one.examples)
        yield _Kind(
            f"corpus-{place}",
            one.unit,
            one.reason,
            one.count,
            listed,
            is_sampled=entries is None,
        )


def _examples(examples: Sequence[Example]) -> Iterator[_Entry]:
    return (
        _Entry(one.source_id, detail=" · ".join(filter(None, (one.note, one.head))))
        for one in examples
    )


def _rejects(run: Run, kind: str) -> Iterator[_Entry]:
    for path in IngestFiles.of(run.steps).rejects:
        for row in chain.from_iterable(
            batch.to_pylist() for _, batch in corpus_files.record_batches(path)
        ):
            reject_kind, _, detail = row["reason"].partition(": ")
            if reject_kind == kind:
                yield _Entry(f"{row['file']}:{row['line']}", detail=detail)


def _not_kept(run: Run, step: str, before: str | None) -> Iterator[_Entry]:
    """Yield the documents that `step` drops and the step `before` keeps."""
    for shard, path in enumerate(SelectFiles(run.steps[step]).keep):
        dropped = ~np.load(path, mmap_mode="r")  # of each document of the shard
        if before is not None:
            dropped = dropped & np.load(
                SelectFiles(run.steps[before]).keep[shard], mmap_mode="r"
            )
        doc_ids = schemas.pack_ids(shard, np.flatnonzero(dropped))
        # A page shows few, and names are read from the documents.
        for first in range(0, len(doc_ids), _NAMED_AT_A_TIME):
            some = doc_ids[first : first + _NAMED_AT_A_TIME]
            yield from map(
                _Entry,
                corpus_files.source_ids(some, run.corpus.documents).tolist(),
                some.tolist(),
            )


def _contaminated_chunks(run: Run) -> Iterator[_Entry]:
    for shard, path in enumerate(DecontaminateFiles.of(run.steps).contaminated):
        ids = schemas.pack_ids(shard, np.flatnonzero(np.load(path, mmap_mode="r")))
        yield from _of_chunks(run, ids, ChunkFiles.of(run.steps).chunks)


def _of_chunks(run: Run, ids: np.ndarray, chunks: Sequence[Path]) -> Iterator[_Entry]:
    if not len(ids):
        return
    # All of one element per chunk: the row of its document in the shard, and where it begins and ends there in characters.
    doc_rows, start, end = corpus_files.chunk_columns(
        ids, chunks, ("doc_row", "start", "end")
    )
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    names = corpus_files.source_ids(docs, run.corpus.documents).tolist()
    for name, doc_id, first, last in zip(
        names, docs.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        yield _Entry(name, doc_id, f"characters {first:,} to {last:,}")


def _pairs(run: Run, pairs: Sequence[Sequence[int]]) -> Iterator[_Entry]:
    for chunk, repeated, _ in pairs:
        one, other = _of_chunks(run, np.array([chunk, repeated]), run.corpus.chunks)
        yield _Entry(one.name, one.doc_id, f"repeats {other.name}", other.doc_id)


def _of_drafts(run: Run) -> Iterator[_Kind]:
    made = Attempt(run.steps)
    pairs = [pair for part in made.drafted for pair in part.near_duplicate_examples]
    reason = (
        "near-duplicate of the meta-document, or of another negative of the sequence"
    )
    count = sum(part.near_duplicates or 0 for part in made.drafted)
    yield _Kind(
        "near-duplicates",
        "candidate negatives",
        reason,
        count,
        partial(_pairs, run, pairs),
        True,
    )
    for place, (reason, count) in enumerate(made.dropped.items()):
        examples = [
            one for part in made.parts for one in part.dropped_examples.get(reason, ())
        ]
        entries = partial(_dropped, run, examples)
        yield _Kind(
            f"draft-{place}",
            "drafts of a sequence",
            reason,
            count,
            entries,
            is_sampled=True,
        )


def _dropped(run: Run, examples: Sequence[Sequence[int]]) -> Iterator[_Entry]:
    for chunk, pieces, tokens in examples:
        (entry,) = _of_chunks(run, np.array([chunk]), run.corpus.chunks)
        yield _Entry(entry.name, entry.doc_id, describe_length(pieces, tokens))
