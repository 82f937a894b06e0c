"""Left out: for each reason for which a record or document is none of the corpus, how many there are, and a few of them.

In:  what ingest, select, near_duplicates and decontaminating counted, and the files in which they say which.
Out: one JSON file, for people to look at; nothing is made from it. Those that stay are looked at for ids that two have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.left_out import (
    CONTAMINATED,
    EXACT,
    NEARLY_EQUAL,
    NORMALIZED,
    OVER,
    REJECTED,
    SUFFIX,
    WHERE,
    Example,
    LeftOut,
    write,
)
from nextlong.corpus.same_ids import same_ids
from nextlong.results import ContaminatedResult, IngestResult, LeftOutResult, NearDuplicatesResult, SelectResult

_EXAMPLES: Final = 5
_LOOKED_AT: Final = 200  # documents that are not kept, to tell those that equal others from those over a cap
_HEAD_CHARS: Final = 200


@dataclass(frozen=True)
class Looks:
    """The files to look into, in shard order, and what the steps counted, in task order."""

    documents: tuple[Path, ...]
    hashes: tuple[Path, ...]
    compared: tuple[Path, ...]  # the same files, or the hashes of normalized texts
    source_of: Sequence[int]  # each shard's, by its place in the recipe
    rejects: tuple[Path, ...]
    keep: tuple[Path, ...]  # of select
    stay: tuple[Path, ...]  # of the last step that leaves documents out
    ingested: Sequence[IngestResult]
    labels: Sequence[str]  # the source of each of `ingested`
    selected: SelectResult
    near: NearDuplicatesResult | None
    contaminated: Sequence[ContaminatedResult]


def gather_left_out(out: Path, *, looks: Looks) -> LeftOutResult:
    """Write `{out}.left_out.json`; return how many were left out for each reason, and how many that stay share ids."""
    reasons = [*_rejects(looks), *_by_where(looks), *_by_select(looks), *_near(looks), *_contaminated(looks)]
    write(out.with_name(out.name + SUFFIX), [one for one in reasons if one.count])
    count, example = same_ids(looks.documents, looks.stay)
    left_out = {one.reason: one.count for one in reasons if one.count}
    return LeftOutResult(left_out=left_out, same_ids=count, same_id_example=example)


def _rejects(looks: Looks) -> list[LeftOut]:
    counted: Counter[str] = Counter()
    for part in looks.ingested:
        counted.update(part.reject_reasons)
    examples_of: dict[str, list[Example]] = {kind: [] for kind in counted}
    for path in looks.rejects:
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


def _by_where(looks: Looks) -> list[LeftOut]:
    count = sum(part.left_out_by_where for part in looks.ingested)
    examples = [
        Example(source_id, label, head, "")
        for part, label in zip(looks.ingested, looks.labels, strict=True)
        for source_id, head in part.where_examples
    ]
    return [LeftOut(WHERE, "documents", count, _spread(examples))]


def _by_select(looks: Looks) -> list[LeftOut]:
    """Tell duplicates from documents over caps and weights: a duplicate is not the one that stays of its equals."""
    dropped = _dropped(looks.keep)
    stays_of = _stays_of(looks, dropped)
    equal = [(doc, stays) for doc, stays in stays_of.items() if stays != doc]
    capped = [doc for doc, stays in stays_of.items() if stays == doc]
    names = _names(looks, [stays for _, stays in equal])
    is_exact = looks.compared == looks.hashes
    same = "equals" if is_exact else "equals, but for case and white space,"
    duplicates = _examples(looks, [doc for doc, _ in equal], [f"{same} {name}" for name in names])
    over = looks.selected.capped + looks.selected.weighted_out
    over_caps = _examples(looks, capped, [""] * len(capped))
    return [
        LeftOut(EXACT if is_exact else NORMALIZED, "documents", looks.selected.duplicates, _spread(duplicates)),
        LeftOut(OVER, "documents", over, _spread(over_caps)),
    ]


def _dropped(keep: Sequence[Path]) -> list[int]:
    """Return the ids of some documents that select did not keep, from as many shards as there are."""
    most = max(1, _LOOKED_AT // max(1, len(keep)))
    doc_ids: list[int] = []
    for shard, path in enumerate(keep):
        rows = np.flatnonzero(~np.load(path, mmap_mode="r"))[:most]
        doc_ids += schemas.pack_ids(shard, rows).tolist()
        if len(doc_ids) >= _LOOKED_AT:
            break
    return doc_ids


def _stays_of(looks: Looks, doc_ids: Sequence[int]) -> dict[int, int]:
    """Return for each document the one that stays of all that are compared as equal to it, itself if it is that one."""
    ids = np.array(doc_ids, np.int64)
    wanted = np.empty(len(ids), np.uint64)
    for place, doc in enumerate(doc_ids):
        wanted[place] = np.load(looks.compared[doc >> schemas.SHARD_BITS], mmap_mode="r")[doc & schemas.ROW_MASK]
    stays: dict[int, tuple[int, int, int]] = {}  # by the hash compared: place of the source, hash of the content, id
    for shard, (compared_path, hash_path) in enumerate(
        zip(looks.compared, looks.hashes, strict=True) if doc_ids else ()
    ):
        compared: NDArray[np.uint64] = np.load(compared_path, mmap_mode="r")
        hashes = np.load(hash_path, mmap_mode="r")
        source = looks.source_of[shard]
        for row in np.flatnonzero(np.isin(compared, wanted)).tolist():
            this = (source, int(hashes[row]), shard << schemas.SHARD_BITS | row)
            stays[int(compared[row])] = min(this, stays.get(int(compared[row]), this))
    return {doc: stays[value][2] for doc, value in zip(doc_ids, wanted.tolist(), strict=True)}


def _near(looks: Looks) -> list[LeftOut]:
    if looks.near is None:
        return []
    starts = np.cumsum([0, *(len(np.load(path, mmap_mode="r")) for path in looks.keep)])
    gone, stays = ([_doc_id(pair[side], starts) for pair in looks.near.examples] for side in (0, 1))
    notes = [f"near-duplicate of {name}" for name in _names(looks, stays)]
    return [LeftOut(NEARLY_EQUAL, "documents", looks.near.near_duplicates, _spread(_examples(looks, gone, notes)))]


def _doc_id(row: int, starts: NDArray[np.int64]) -> int:
    """Return the id of a row of the corpus, whose shards begin at `starts`."""
    shard = int(np.searchsorted(starts, row, side="right")) - 1
    return shard << schemas.SHARD_BITS | int(row - starts[shard])


def _contaminated(looks: Looks) -> list[LeftOut]:
    contaminated = [
        (shard << schemas.SHARD_BITS | part.example_doc_row, part.example)
        for shard, part in enumerate(looks.contaminated)
        if part.example_doc_row >= 0
    ]
    count = sum(part.contaminated for part in looks.contaminated)
    some = _spread(contaminated)
    examples = _examples(
        looks, [doc for doc, _ in some], [f"shares with {evaluation_file}" for _, evaluation_file in some]
    )
    return [LeftOut(CONTAMINATED, "chunks", count, tuple(examples))]


def _examples(looks: Looks, doc_ids: Sequence[int], notes: Sequence[str]) -> list[Example]:
    """Return documents as examples, with what there is to say of each."""
    chosen = _spread(list(zip(doc_ids, notes, strict=True)))
    if not chosen:
        return []
    ids = np.array([doc for doc, _ in chosen])
    names, sources, texts = lookup.document_columns(ids, looks.documents, ("source_id", "source", "text"))
    rows = zip(names.tolist(), sources.tolist(), texts.tolist(), [note for _, note in chosen], strict=True)
    return [Example(name, source, text[:_HEAD_CHARS], note) for name, source, text, note in rows]


def _names(looks: Looks, doc_ids: Sequence[int]) -> list[str]:
    if not doc_ids:
        return []
    source_ids: list[str] = lookup.source_ids(np.array(doc_ids), looks.documents).tolist()
    return source_ids


def _spread(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return a few of the items, evenly spread over them."""
    step = max(1, len(items) // _EXAMPLES)
    return tuple(items[::step][:_EXAMPLES])
