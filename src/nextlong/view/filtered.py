"""Filtered: what is in no sequence, by reason, with the examples that the steps recorded.

In:  a run. Out: kinds of things filtered out, how many there are of each, and some of them from a place on.
What the corpus left out, and how much, is what the step `filter_report` says; here it is listed whole where files say which it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.artifacts import lookup, results
from nextlong.artifacts.results import ComposeResult, DraftResult, Example
from nextlong.runs.run import Run
from nextlong.text import counted

_NAMED_AT_A_TIME = 64


@dataclass(frozen=True)
class Entry:
    """One thing that was left out: where it comes from, its document if that was read, and what more is known."""

    name: str
    doc_id: int | None = None
    detail: str = ""
    beside: int | None = None  # the document that it repeats


@dataclass(frozen=True)
class Kind:
    """Things left out for one reason: `count` of them; `entries` yields those that are remembered."""

    key: str
    what: str
    reason: str
    count: int
    entries: Callable[[], Iterator[Entry]]
    is_sampled: bool = False  # whether only some of each task are remembered

    def page(self, first: int, most: int) -> tuple[list[Entry], int | None]:
        """Return some entries from number `first` on, and where to go on; None: there are no more."""
        entries = list(islice(self.entries(), first, first + most + 1))
        return entries[:most], first + most if len(entries) > most else None


def kinds(run: Run) -> list[Kind]:
    """Return the reasons for which this run left anything out, in the order of the route."""
    drafted = run.steps["draft"].results(DraftResult)
    pairs = [pair for part in drafted for pair in part.near_duplicate_examples]
    near_duplicates = Kind(
        "near-duplicates",
        "candidate negatives",
        "near-duplicate of the meta-document, or of another negative of the sequence",
        sum(part.near_duplicates or 0 for part in drafted),
        partial(_pairs, run, pairs),
        is_sampled=True,
    )
    return [kind for kind in (*_of_corpus(run), near_duplicates, *_drafts(run)) if kind.count]


def _of_corpus(run: Run) -> Iterator[Kind]:
    reasons = (
        results.read_filter_report(run.steps["filter_report"].file(results.FILTER_REPORT_SUFFIX))
        if "filter_report" in run.steps
        else ()
    )
    present = {one.reason for one in reasons}
    for place, one in enumerate(reasons):
        listed = _listed(run, one.reason, present)
        entries = listed or partial(_examples, one.examples)
        yield Kind(f"corpus-{place}", one.unit, one.reason, one.count, entries, is_sampled=listed is None)


def _examples(examples: Sequence[Example]) -> Iterator[Entry]:
    return (Entry(one.source_id, detail=" · ".join(filter(None, (one.note, one.head)))) for one in examples)


def _listed(run: Run, reason: str, present: set[str]) -> Callable[[], Iterator[Entry]] | None:
    """Return what lists all that were left out for a reason of the corpus; None where no file tells them from others."""
    if reason.startswith(results.REJECTED):
        return partial(_rejects, run, reason.removeprefix(results.REJECTED))
    if reason == results.NEARLY_EQUAL:
        keeps = run.steps["near_duplicates"].files(".keep.npy")
        return partial(_not_kept, run, keeps, run.steps["select"].files(".keep.npy"))
    if reason == results.CONTAMINATED:
        return partial(_contaminated_chunks, run)
    by_select = {results.EXACT, results.NORMALIZED, results.OVER}
    if reason in by_select and len(by_select.intersection(present)) == 1:
        return partial(_not_kept, run, run.steps["select"].files(".keep.npy"), None)
    return None


def _rejects(run: Run, kind: str) -> Iterator[Entry]:
    step = run.steps["ingest"]
    names = [name for part in step.manifest["parts"] for name in part["files"] if name.endswith(".rejects.arrow")]
    for name in names:
        with pa.ipc.open_file(pa.memory_map(str(step.folder / name))) as reader:
            for number in range(reader.num_record_batches):
                for row in reader.get_batch(number).to_pylist():
                    reject_kind, _, detail = row["reason"].partition(": ")
                    if reject_kind == kind:
                        yield Entry(f"{row['file']}:{row['line']}", detail=detail)


def _not_kept(run: Run, keeps: Sequence[Path], before: Sequence[Path] | None) -> Iterator[Entry]:
    """Yield the documents that `keeps` drops, and `before` did not."""
    for shard, path in enumerate(keeps):
        dropped = ~np.load(path, mmap_mode="r")  # of each document of the shard
        if before is not None:
            dropped = dropped & np.load(before[shard], mmap_mode="r")
        doc_ids = schemas.pack_ids(shard, np.flatnonzero(dropped))
        for first in range(
            0, len(doc_ids), _NAMED_AT_A_TIME
        ):  # a page shows few, and names are read from the documents
            some = doc_ids[first : first + _NAMED_AT_A_TIME]
            yield from map(Entry, lookup.source_ids(some, run.corpus.documents).tolist(), some.tolist())


def _contaminated_chunks(run: Run) -> Iterator[Entry]:
    flags, chunks = run.steps["decontaminate"].files(".contaminated.npy"), run.steps["chunk"].files(".chunks.arrow")
    for shard, path in enumerate(flags):
        ids = schemas.pack_ids(shard, np.flatnonzero(np.load(path, mmap_mode="r")))
        yield from _of_chunks(run, ids, chunks)


def _of_chunks(run: Run, ids: np.ndarray, chunks: Sequence[Path]) -> Iterator[Entry]:
    if not len(ids):
        return
    # All of one element per chunk: the row of its document in the shard, and where it begins and ends there in characters.
    doc_rows, start, end = lookup.chunk_columns(ids, chunks, ("doc_row", "start", "end"))
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    names = lookup.source_ids(docs, run.corpus.documents).tolist()
    for name, doc_id, first, last in zip(names, docs.tolist(), start.tolist(), end.tolist(), strict=True):
        yield Entry(name, doc_id, f"characters {first:,} to {last:,}")


def _pairs(run: Run, pairs: Sequence[Sequence[int]]) -> Iterator[Entry]:
    for chunk, repeated, _ in pairs:
        one, other = _of_chunks(run, np.array([chunk, repeated]), run.corpus.chunks)
        yield Entry(one.name, one.doc_id, f"repeats {other.name}", other.doc_id)


def _drafts(run: Run) -> Iterator[Kind]:
    results: dict[str, Sequence[DraftResult | ComposeResult]] = {
        "draft": run.steps["draft"].results(DraftResult),
        "compose": run.steps["compose"].results(ComposeResult),
    }
    for name, parts in results.items():
        totals: Counter[str] = Counter()
        for part in parts:
            totals.update(part.dropped)
        for place, (reason, count) in enumerate(totals.items()):
            examples = [one for part in parts for one in part.dropped_examples.get(reason, ())]
            yield Kind(f"{name}-{place}", "drafts of a sequence", reason, count, partial(_dropped, run, examples), True)


def _dropped(run: Run, examples: Sequence[Sequence[int]]) -> Iterator[Entry]:
    for chunk, pieces, tokens in examples:
        (entry,) = _of_chunks(run, np.array([chunk]), run.corpus.chunks)
        yield Entry(entry.name, entry.doc_id, f"{counted(pieces, 'chunk')}, {tokens:,} tokens")
