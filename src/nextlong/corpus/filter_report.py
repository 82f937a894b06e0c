"""Filter report: for each reason for which a record or document is not in the corpus, how many there are, with examples.

In:  the counts of ingest, select, near_duplicates and contaminated, and the files in which they say which.
Out: one JSON file for people to look at; no other step reads it. Kept documents are checked for ids that two of them share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.results import (
    CONTAMINATED,
    EXACT,
    EXCLUDED,
    FILTER_REPORT_SUFFIX,
    FILTERED,
    NEARLY_EQUAL,
    NORMALIZED,
    OVER,
    REJECTED,
    DecontaminateResult,
    Example,
    IngestResult,
    LeftOut,
    LeftOutResult,
    NearDuplicatesResult,
    SelectResult,
    write_filter_report,
)
from nextlong.corpus.select import compared_suffix
from nextlong.corpus.splits import Splits
from nextlong.engine.step import Artifacts, Estimate, Step, Task
from nextlong.recipe import Ingest

_EXAMPLES: Final = 5
_EXAMINED: Final = 200  # documents that were not kept, to tell duplicates from those over a cap
_HEAD_CHARS: Final = 200
_ID_HEAD_CHARS: Final = 60


def filter_report_step(settings: Ingest, splits: Splits, ingest: Step, select: Step, others: Sequence[Step]) -> Step:
    """What each filter removed, with examples; `others` are the steps that remove near-duplicates and contaminated text."""
    reads = tuple(step for step in others if step.name in ("near_duplicates", "decontaminate"))
    sources = [place for place, of_source in enumerate(splits) for _ in of_source]

    def tasks(done: Artifacts) -> list[Task]:
        ingest_done, parts = done["ingest"], done["ingest"].results(IngestResult)
        inputs = _Inputs(
            documents=tuple(ingest_done.files(".documents.arrow")),
            hashes=tuple(ingest_done.files(".hashes.npy")),
            id_hashes=tuple(ingest_done.files(".id_hashes.npy")),
            compared=tuple(ingest_done.files(compared_suffix(settings.dedup))),
            source_of=[place for place, part in zip(sources, parts, strict=True) for _ in range(part.shards)],
            rejects=tuple(ingest_done.files(".rejects.arrow") if any(part.rejects for part in parts) else ()),
            keep=tuple(done["select"].files(".keep.npy")),
            stay=tuple(done["near_duplicates" if "near_duplicates" in done else "select"].files(".keep.npy")),
            ingested=parts,
            labels=[settings.sources[place].label for place in sources],
            selected=done["select"].result(SelectResult),
            near=done["near_duplicates"].result(NearDuplicatesResult) if "near_duplicates" in done else None,
            contaminated=done["decontaminate"].results(DecontaminateResult) if "decontaminate" in done else (),
        )
        return [partial(_write_filter_report, inputs=inputs)]

    estimate = Estimate(
        work="documents",
        seconds=1e-7,
        memory=lambda amounts: 8 * amounts.documents,
        reads=lambda amounts: 26 * amounts.documents,  # three hashes and two marks of each
    )
    return Step("filter_report", 5, {}, (ingest, select, *reads), tasks, LeftOutResult, estimate=estimate)


@dataclass(frozen=True)
class _Inputs:
    """The files to read, in shard order, and the results of the steps, in task order."""

    documents: tuple[Path, ...]
    hashes: tuple[Path, ...]
    id_hashes: tuple[Path, ...]
    compared: tuple[Path, ...]  # the same files, or the hashes of normalized texts
    source_of: Sequence[int]  # each shard's, by its place in the recipe
    rejects: tuple[Path, ...]
    keep: tuple[Path, ...]  # of select
    stay: tuple[Path, ...]  # of the last step that removes documents
    ingested: Sequence[IngestResult]
    labels: Sequence[str]  # the source of each of `ingested`
    selected: SelectResult
    near: NearDuplicatesResult | None
    contaminated: Sequence[DecontaminateResult]


def _write_filter_report(out: Path, *, inputs: _Inputs) -> LeftOutResult:
    """Write `{out}.filter_report.json`; return the counts by reason, and how many kept documents share their id with another."""
    parts = list(zip(inputs.ingested, inputs.labels, strict=True))
    filtered = [Example(one, label, head, "") for part, label in parts for one, head in part.filter_examples]
    excluded = [Example(one, label, head, "") for part, label in parts for one, head in part.excluded_examples]
    near: list[LeftOut] = []
    if inputs.near is not None:
        # Examples are pairs of rows of the corpus, whose shards begin at `starts`: (e, 2) ids of documents.
        starts = np.cumsum([0, *(len(np.load(path, mmap_mode="r")) for path in inputs.keep)])
        rows = np.array(inputs.near.examples, np.int64).reshape(-1, 2)
        shards = np.searchsorted(starts, rows, side="right") - 1
        gone, stays = (shards << schemas.SHARD_BITS | rows - starts[shards]).T.tolist()
        notes = [f"near-duplicate of {name}" for name in _names(inputs, stays)]
        near = [LeftOut(NEARLY_EQUAL, "documents", inputs.near.near_duplicates, _examples(inputs, gone, notes))]
    shares = {
        shard << schemas.SHARD_BITS | part.example_doc_row: f"shares with {part.example}"
        for shard, part in enumerate(inputs.contaminated)
        if part.example_doc_row >= 0
    }
    contaminated = sum(part.contaminated for part in inputs.contaminated)
    reasons = [
        *_rejects(inputs),
        LeftOut(FILTERED, "documents", sum(part.filtered_out for part in inputs.ingested), _spread(filtered)),
        LeftOut(EXCLUDED, "documents", sum(part.excluded for part in inputs.ingested), _spread(excluded)),
        *_by_select(inputs),
        *near,
        LeftOut(CONTAMINATED, "chunks", contaminated, _examples(inputs, list(shares), list(shares.values()))),
    ]
    write_filter_report(out.with_name(out.name + FILTER_REPORT_SUFFIX), [one for one in reasons if one.count])
    count, example = _same_ids(inputs.documents, inputs.id_hashes, inputs.stay)
    left_out = {one.reason: one.count for one in reasons if one.count}
    return LeftOutResult(left_out=left_out, same_ids=count, same_id_example=example)


def _rejects(inputs: _Inputs) -> list[LeftOut]:
    counted: Counter[str] = Counter()
    for part in inputs.ingested:
        counted.update(part.reject_reasons)
    examples_of: dict[str, list[Example]] = {kind: [] for kind in counted}
    for path in inputs.rejects:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for row in reader.get_batch(0).to_pylist():
                kind, _, detail = row["reason"].partition(": ")
                if len(examples_of.get(kind, [])) < _EXAMPLES:
                    examples_of[kind].append(Example(f"{row['file']}:{row['line']}", "", "", detail))
        if all(len(examples) >= min(_EXAMPLES, counted[kind]) for kind, examples in examples_of.items()):
            break
    return [
        LeftOut(f"{REJECTED}{kind}", "records", counted[kind], tuple(examples_of[kind])) for kind in sorted(counted)
    ]


def _by_select(inputs: _Inputs) -> list[LeftOut]:
    """Tell duplicates from documents over caps and weights: of its equals, a duplicate is not the one that is kept."""
    dropped: list[int] = []  # ids of some documents that select did not keep, from as many shards as there are
    for shard, path in enumerate(inputs.keep):
        rows = np.flatnonzero(~np.load(path, mmap_mode="r"))[: max(1, _EXAMINED // len(inputs.keep))]
        dropped += schemas.pack_ids(shard, rows).tolist()
        if len(dropped) >= _EXAMINED:
            break
    # The compared hash of each of them, (n,); then all shards are searched for others that have one of them.
    wanted = np.empty(len(dropped), np.uint64)
    for place, doc in enumerate(dropped):
        wanted[place] = np.load(inputs.compared[doc >> schemas.SHARD_BITS], mmap_mode="r")[doc & schemas.ROW_MASK]
    # The one that is kept of all that are compared as equal, by the hash compared: place of the source, hash of the content, id.
    kept: dict[int, tuple[int, int, int]] = {}
    for shard, (compared_path, hash_path) in enumerate(
        zip(inputs.compared, inputs.hashes, strict=True) if dropped else ()
    ):
        compared: NDArray[np.uint64] = np.load(compared_path, mmap_mode="r")
        hashes = np.load(hash_path, mmap_mode="r")
        for row in np.flatnonzero(np.isin(compared, wanted)).tolist():
            this = (inputs.source_of[shard], int(hashes[row]), shard << schemas.SHARD_BITS | row)
            kept[int(compared[row])] = min(this, kept.get(int(compared[row]), this))
    stays_of = {doc: kept[value][2] for doc, value in zip(dropped, wanted.tolist(), strict=True)}
    equal = [(doc, stays) for doc, stays in stays_of.items() if stays != doc]
    capped = [doc for doc, stays in stays_of.items() if stays == doc]
    names = _names(inputs, [stays for _, stays in equal])
    is_exact = inputs.compared == inputs.hashes
    same = "equals" if is_exact else "equals, but for case and white space,"
    duplicates = _examples(inputs, [doc for doc, _ in equal], [f"{same} {name}" for name in names])
    over = inputs.selected.capped + inputs.selected.weighted_out
    return [
        LeftOut(EXACT if is_exact else NORMALIZED, "documents", inputs.selected.duplicates, duplicates),
        LeftOut(OVER, "documents", over, _examples(inputs, capped, [""] * len(capped))),
    ]


def _names(inputs: _Inputs, doc_ids: Sequence[int]) -> list[str]:
    names: list[str] = lookup.source_ids(np.array(doc_ids), inputs.documents).tolist() if doc_ids else []
    return names


def _examples(inputs: _Inputs, doc_ids: Sequence[int], notes: Sequence[str]) -> tuple[Example, ...]:
    """Return some of the documents as examples, with what there is to say of each."""
    chosen = _spread(list(zip(doc_ids, notes, strict=True)))
    if not chosen:
        return ()
    ids = np.array([doc for doc, _ in chosen])
    names, sources, texts = lookup.document_columns(ids, inputs.documents, ("source_id", "source", "text"))
    rows = zip(names.tolist(), sources.tolist(), texts.tolist(), [note for _, note in chosen], strict=True)
    return tuple(Example(name, source, text[:_HEAD_CHARS], note) for name, source, text, note in rows)


def _spread(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return a few of the items, evenly spread over them."""
    step = max(1, len(items) // _EXAMPLES)
    return tuple(items[::step][:_EXAMPLES])


def _same_ids(
    documents: Sequence[Path], id_hashes: Sequence[Path], keep: Sequence[Path]
) -> tuple[int, tuple[str, ...]]:
    """Return how many kept documents have the id of an earlier one; and source, id, and the beginnings of two texts with one id.

    Those are the first two of the id with the smallest hash. Equal ids have equal `id_hashes`, a file of uint64 a shard.
    """
    kept = [np.load(path, mmap_mode="r") for path in keep]
    # (kept documents,): 8 bytes for each, the only array here that grows with the corpus.
    ordered = np.empty(sum(int(np.count_nonzero(stays)) for stays in kept), np.uint64)
    end = 0
    for path, stays in zip(id_hashes, kept, strict=True):
        of_shard = np.load(path, mmap_mode="r")[stays]
        ordered[end : end + len(of_shard)] = of_shard
        end += len(of_shard)
    ordered.sort()
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return 0, ()
    doc_ids: list[int] = []
    for shard, (path, stays) in enumerate(zip(id_hashes, kept, strict=True)):
        doc_ids += schemas.pack_ids(shard, np.flatnonzero((np.load(path) == again[0]) & stays)).tolist()
        if len(doc_ids) > 1:
            break
    names, sources, texts = lookup.document_columns(np.array(doc_ids[:2]), documents, ("source_id", "source", "text"))
    heads = (" ".join(text[:_ID_HEAD_CHARS].split()) for text in texts.tolist())
    return len(again), (str(sources[0]), str(names[0]), *heads)
