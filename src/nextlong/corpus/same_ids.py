"""Same ids: how many documents that stay have the user's id of an earlier one of their source, and two of them.

In:  DOCUMENTS shards, and which of their rows stay. Out: a count, and one such pair.
Sixteen bytes a document are held at most: of equal ids, hashes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import lookup

_HEAD_CHARS: Final = 60


def same_ids(documents: Sequence[Path], keep: Sequence[Path]) -> tuple[int, tuple[str, ...]]:
    """Return how many documents that stay have the id of an earlier one; and source, id, and how two texts of one id begin.

    Those are the first two of the id with the smallest hash.
    """
    shards = [hashes for _, hashes in _hashes(documents, keep)]
    ordered = np.concatenate([*shards, np.empty(0, np.uint64)])
    del shards
    ordered.sort()
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return 0, ()
    return len(again), _first_pair(documents, keep, int(again[0]))


def _hashes(documents: Sequence[Path], keep: Sequence[Path]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield for each shard the ids of the documents that stay, and the hashes of their source and the user's id."""
    for shard, kept in enumerate(keep):
        doc_ids = schemas.pack_ids(shard, np.flatnonzero(np.load(kept, mmap_mode="r")))
        if len(doc_ids):
            names, sources = lookup.document_columns(doc_ids, documents, ("source_id", "source"))
            pairs = zip(sources.tolist(), names.tolist(), strict=True)
            hashed = (xxhash.xxh3_64_intdigest(f"{source}\0{name}".encode()) for source, name in pairs)
            yield doc_ids, np.fromiter(hashed, np.uint64, len(doc_ids))


def _first_pair(documents: Sequence[Path], keep: Sequence[Path], wanted: int) -> tuple[str, ...]:
    found: list[int] = []
    for doc_ids, hashes in _hashes(documents, keep):
        found += doc_ids[hashes == np.uint64(wanted)].tolist()
        if len(found) > 1:
            break
    ids = np.array(found[:2])
    names, sources, texts = lookup.document_columns(ids, documents, ("source_id", "source", "text"))
    heads = (" ".join(text[:_HEAD_CHARS].split()) for text in texts.tolist())
    return str(sources[0]), str(names[0]), *heads
