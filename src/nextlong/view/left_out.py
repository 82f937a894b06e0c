"""Left out: what is in no sequence, by reason, with whatever the steps remember of it.

In:  a run. Out: kinds of things left out, how many there are of each, and some of them from a place on.
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
from nextlong.artefacts import lookup
from nextlong.plural import plural
from nextlong.results import (
    ComposeResult,
    ContaminatedResult,
    DraftResult,
    IngestResult,
    NearDuplicatesResult,
    SelectResult,
)
from nextlong.runs.opened import Run


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
    all_kinds = [*_records(run), *_documents(run), *_contaminated(run), *_near_copies(run), *_drafts(run)]
    return [kind for kind in all_kinds if kind.count]


def _records(run: Run) -> Iterator[Kind]:
    step = run.steps["ingest"]
    names = [name for part in step.manifest["parts"] for name in part["files"] if name.endswith(".rejects.arrow")]
    reasons: Counter[str] = Counter()
    ingested = step.results(IngestResult)
    for part in ingested:
        reasons.update(part.reject_reasons)
    paths = [step.folder / name for name in names]
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    yield Kind(
        "rejected", "records", f"cannot be read as a document ({counts})", reasons.total(), partial(_rejects, paths)
    )
    without = sum(part.left_out_by_where for part in ingested)
    examples = [Entry(name, detail=head) for part in ingested for name, head in part.where_examples]
    reason = "the source's `where` does not hold for them"
    yield Kind("where", "documents", reason, without, lambda: iter(examples), is_sampled=True)


def _rejects(paths: Sequence[Path]) -> Iterator[Entry]:
    for path in paths:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches):
                for row in reader.get_batch(number).to_pylist():
                    yield Entry(f"{row['file']}:{row['line']}", detail=row["reason"])


def _documents(run: Run) -> Iterator[Kind]:
    selected = run.steps["select"].result(SelectResult)
    spoken = (
        (selected.duplicates, "an exact duplicate"),
        (selected.capped, "over a cap of its source"),
        (selected.weighted_out, "over its source's weight"),
    )
    reasons = [f"{reason} ({count:,})" for count, reason in spoken if count]
    keeps = run.steps["select"].files(".keep.npy")
    total = sum(count for count, _ in spoken)
    yield Kind("selected", "documents", " or ".join(reasons), total, partial(_not_kept, run, keeps, None))
    if "near_duplicates" in run.steps:
        step = run.steps["near_duplicates"]
        closer = partial(_not_kept, run, step.files(".keep.npy"), keeps)
        count = step.result(NearDuplicatesResult).near_duplicates
        yield Kind("duplicates", "documents", "nearly equal to another", count, closer)


def _not_kept(run: Run, keeps: Sequence[Path], before: Sequence[Path] | None) -> Iterator[Entry]:
    """Yield the documents that `keeps` drops, and `before` did not."""
    for shard, path in enumerate(keeps):
        dropped = ~np.load(path, mmap_mode="r")
        if before is not None:
            dropped = dropped & np.load(before[shard], mmap_mode="r")
        yield from _named(run, schemas.pack_ids(shard, np.flatnonzero(dropped)))


def _named(run: Run, doc_ids: np.ndarray, *, detail: str = "") -> Iterator[Entry]:
    for first in range(0, len(doc_ids), 64):
        some = doc_ids[first : first + 64]
        names = lookup.source_ids(some, run.corpus.documents)
        yield from (Entry(name, doc_id, detail) for name, doc_id in zip(names.tolist(), some.tolist(), strict=True))


def _contaminated(run: Run) -> Iterator[Kind]:
    if "contaminated" in run.steps:
        step = run.steps["contaminated"]
        files: Counter[str] = Counter()
        shards = step.results(ContaminatedResult)
        for shard in shards:
            files.update(shard.files)
        reason = f"shares a run of words with an evaluation ({', '.join(map(str, files))})"
        count = sum(shard.contaminated for shard in shards)
        yield Kind("contaminated", "chunks", reason, count, partial(_contaminated_chunks, run))


def _contaminated_chunks(run: Run) -> Iterator[Entry]:
    flags, chunks = run.steps["contaminated"].files(".contaminated.npy"), run.steps["chunk"].files(".chunks.arrow")
    for shard, path in enumerate(flags):
        ids = schemas.pack_ids(shard, np.flatnonzero(np.load(path, mmap_mode="r")))
        yield from _of_chunks(run, ids, chunks)


def _of_chunks(run: Run, ids: np.ndarray, chunks: Sequence[Path]) -> Iterator[Entry]:
    if not len(ids):
        return
    doc_rows, start, end = lookup.chunk_columns(ids, chunks, ("doc_row", "start", "end"))
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    names = lookup.source_ids(docs, run.corpus.documents).tolist()
    for name, doc_id, first, last in zip(names, docs.tolist(), start.tolist(), end.tolist(), strict=True):
        yield Entry(name, doc_id, f"characters {first:,} to {last:,}")


def _near_copies(run: Run) -> Iterator[Kind]:
    drafted = run.steps["draft"].results(DraftResult)
    pairs = [pair for part in drafted for pair in part.near_copy_examples]
    reason = "repeats the document it would stand among, or another look-alike there"
    yield Kind(
        "near-copies",
        "look-alikes",
        reason,
        sum(part.near_copies or 0 for part in drafted),
        partial(_pairs, run, pairs),
        True,
    )


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
        yield Entry(entry.name, entry.doc_id, f"{plural(pieces, 'chunk')}, {tokens:,} tokens")
