"""Select: decide which documents are kept, and read the list of documents to exclude.

In:  hashes and length of every document, shard by shard, as ingest writes them.
Out: one bool per row and shard. Duplicates are removed, then each source is reduced to its caps, then to its weight. Of
duplicates, the one from the earliest source is kept, and within a source the one with the smallest content hash. Every
reduction keeps the documents with the smallest keyed hashes. So neither sharding nor file order affects which texts are kept
(only under which of several ids an identical text is kept). Memory holds one range of hashes at a time.

The exclusion list, as `nextlong view` writes it, is a JSON Lines file with `source` and, unless the whole source is excluded,
`id`. Ingest applies it and stores the exclusions, because the list may change or move.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from nextlong.artifacts.results import IngestFiles, IngestResult
from nextlong.corpus.splits import Splits
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
)
from nextlong.errors import CorpusError
from nextlong.recipe import Ingest, Source
from nextlong.rng import keyed_hash

_STAGE: Final = "select"
HELD_DOCUMENTS: Final = 4_000_000
_BIN_BITS: Final = 12
_EVERY_KEY: Final = 2**64 - 1


class Selected(TaskResult):
    """Kept documents, and removed ones by reason."""

    kept: int
    duplicates: int
    capped: int
    weighted_out: int


class SelectResult(Selected):
    """The counts of all sources together, and of each source by its label."""

    sources: dict[str, Selected]


class SelectFiles(StepFiles):
    """Whether each document of a shard is kept, bool (documents,)."""

    step = "select"
    keep = ShardFiles(".keep.npy")


def select_step(settings: Ingest, ingest: Step, splits: Splits, *, seed: int) -> Step:
    """Decide which documents are kept: no duplicates, within caps and weights."""
    sources = settings.sources
    source_of_split = [
        place for place, of_source in enumerate(splits) for _ in of_source
    ]

    def tasks(done: Artifacts) -> list[Task]:
        ingested = done["ingest"]
        parts = zip(source_of_split, ingested.results(IngestResult), strict=True)
        shard_sources = [place for place, part in parts for _ in range(part.shards)]
        files = IngestFiles(ingested)
        hashes, chars = files.hashes, files.chars
        compared = files.normalized if settings.dedup == "normalized" else hashes
        task = partial(_select_documents, hashes=hashes, compared=compared, chars=chars)
        return [partial(task, shard_sources=shard_sources, sources=sources, seed=seed)]

    caps = [
        source.model_dump(include={"weight", "max_documents", "max_chars"})
        for source in sources
    ]
    is_sampled = any(value is not None for cap in caps for value in cap.values())
    config = {"sources": caps, "seed": seed if is_sampled else None}
    return Step("select", 2, config, (ingest,), tasks, SelectResult)


def _open_shards(
    files: Sequence[tuple[Path, Path, Path]],
) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield (hashes, chars, keep) of each shard, memory-mapped in each pass; keep is writable."""
    for *read, keep in files:
        yield (
            *(np.load(path, mmap_mode="r") for path in read),
            np.load(keep, mmap_mode="r+"),
        )


class _Prefix(NamedTuple):
    """The documents of one source whose key is at most `last_key`."""

    last_key: int
    documents: int
    chars: int


def _select_documents(
    out: Path,
    *,
    hashes: Sequence[Path],
    compared: Sequence[Path],
    chars: Sequence[Path],
    shard_sources: Sequence[int],
    sources: Sequence[Source],
    seed: int,
    held_documents: int = HELD_DOCUMENTS,
) -> SelectResult:
    """Write `{out}.{shard:05d}.keep.npy`, one bool per row of each document shard.

    `hashes` of contents (uint64), `compared` (uint64; equal for duplicates: the same files, or hashes of normalized texts) and
    `chars` (int64) are .npy files with one value per row; `shard_sources` is the index of each shard's source, ascending. About
    `held_documents` documents are in memory at a time. Raises CorpusError if a weighted source has no documents.
    """
    keeps = [Path(f"{out}.{shard:05d}.keep.npy") for shard in range(len(hashes))]
    files = list(zip(hashes, chars, keeps, strict=True))
    shards = [
        [of for of, own in zip(files, shard_sources, strict=True) if own == i]
        for i in range(len(sources))
    ]
    # Write every keep file, with False for duplicates of a kept document; `duplicates` counts them per source.
    documents = [len(np.load(path, mmap_mode="r")) for path in hashes]
    for path, count in zip(keeps, documents, strict=True):
        np.save(path, np.ones(count, np.bool_))
    passes, duplicates = (
        max(1, -(-sum(documents) // held_documents)) if hashes else 0,
        [0] * len(sources),
    )
    for step in range(passes):
        first, last = (
            np.uint64(2**64 * step // passes),
            np.uint64(2**64 * (step + 1) // passes - 1),
        )
        rows_of_shards, compared_in_range, hashes_in_range = [], [], []
        for compared_path, hash_path in zip(compared, hashes, strict=True):
            shard_compared = np.load(compared_path, mmap_mode="r")
            rows_of_shards.append(
                np.flatnonzero((shard_compared >= first) & (shard_compared <= last))
            )
            compared_in_range.append(shard_compared[rows_of_shards[-1]])
            hashes_in_range.append(
                np.load(hash_path, mmap_mode="r")[rows_of_shards[-1]]
            )
        # Of all shards, in this range of hashes: `held` (n,) the compared hash; `order` sorts by it, then source, then content
        # hash.
        held, sizes = np.concatenate(compared_in_range), list(map(len, rows_of_shards))
        # The sort is stable: of the same text twice in a source, the first in (shard, row) is kept.
        order = np.lexsort(
            (
                np.concatenate(hashes_in_range),
                np.repeat(np.array(shard_sources), sizes),
                held,
            )
        )
        is_copy = np.zeros(len(held), np.bool_)
        is_copy[order[1:]] = held[order[1:]] == held[order[:-1]]
        for shard, copies in enumerate(np.split(is_copy, np.cumsum(sizes)[:-1])):
            if copies.any():
                np.load(keeps[shard], mmap_mode="r+")[rows_of_shards[shard][copies]] = (
                    False
                )
                duplicates[shard_sources[shard]] += int(np.count_nonzero(copies))
    sampled = [
        i
        for i, source in enumerate(sources)
        if source.weight or source.max_documents or source.max_chars
    ]
    distinct = {
        i: sum(int(np.count_nonzero(keep)) for _, _, keep in _open_shards(shards[i]))
        for i in sampled
    }
    capped = {
        i: _prefix(shards[i], seed, sources[i].max_documents, sources[i].max_chars)
        for i in sampled
    }
    # The characters of each weighted source are proportional to its weight; the scarcest source is kept whole.
    weights = {i: Fraction(weight) for i in sampled if (weight := sources[i].weight)}
    for i in weights:
        if not capped[i].chars:
            raise CorpusError(
                f"ingest.sources[{i}] ({sources[i].label}) has weight {sources[i].weight} but only documents that earlier "
                "sources have too, so its share cannot be met; remove the source or its weight"
            )
    scale = min(
        (capped[i].chars / weight for i, weight in weights.items()), default=Fraction(0)
    )
    final = capped | {
        i: _prefix(shards[i], seed, sources[i].max_documents, int(scale * weights[i]))
        for i in weights
    }
    for i in sampled:
        for shard_hashes, _, keep in _open_shards(shards[i]):
            keep &= keyed_hash(shard_hashes, seed=seed, stage=_STAGE) <= np.uint64(
                final[i].last_key
            )
    rows = {
        source.label: Selected(
            kept=sum(
                int(np.count_nonzero(keep)) for _, _, keep in _open_shards(shards[i])
            ),
            duplicates=duplicates[i],
            capped=distinct[i] - capped[i].documents if i in capped else 0,
            weighted_out=capped[i].documents - final[i].documents if i in capped else 0,
        )
        for i, source in enumerate(sources)
    }
    totals = {
        key: sum(getattr(row, key) for row in rows.values())
        for key in Selected.model_fields
    }
    return SelectResult(**totals, sources=rows)


def _prefix(
    shards: Sequence[tuple[Path, Path, Path]],
    seed: int,
    max_documents: int | None,
    max_chars: int | None,
) -> _Prefix:
    """Return the longest prefix of a source, by key, within the limits; at least one document, if it has any."""
    bins, shift = 1 << _BIN_BITS, np.uint64(64 - _BIN_BITS)
    # Cumulative documents and characters per bin, shape (2**_BIN_BITS,) each; a bin is the leading bits of the key.
    documents, chars = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for shard_hashes, shard_chars, keep in _open_shards(shards):
        kept = np.flatnonzero(keep)  # rows of the shard
        bin_of = (
            keyed_hash(shard_hashes[kept], seed=seed, stage=_STAGE) >> shift
        ).astype(np.int64)
        documents += np.bincount(bin_of, minlength=bins)
        np.add.at(chars, bin_of, shard_chars[kept])
    documents, chars = np.cumsum(documents), np.cumsum(chars)
    most_documents = _EVERY_KEY if max_documents is None else max_documents
    most_chars = _EVERY_KEY if max_chars is None else max_chars
    over = (documents > most_documents) | (chars > most_chars)
    if not over.any():
        return _Prefix(_EVERY_KEY, int(documents[-1]), int(chars[-1]))
    # Single documents matter only in the bin that exceeds the limit.
    split, before = int(np.argmax(over)), _Prefix(0, 0, 0)
    if split:
        before = _Prefix(
            (split << 64 - _BIN_BITS) - 1,
            int(documents[split - 1]),
            int(chars[split - 1]),
        )
    of_keys, of_chars = [], []
    for shard_hashes, shard_chars, keep in _open_shards(shards):
        kept = np.flatnonzero(keep)
        shard_keys = keyed_hash(shard_hashes[kept], seed=seed, stage=_STAGE)
        inside = shard_keys >> shift == split
        of_keys.append(shard_keys[inside])
        of_chars.append(shard_chars[kept[inside]])
    # (n,) each, of the documents in that bin, ascending by key: `running` counts characters from the start of the prefix.
    joined = np.concatenate(of_keys)
    order = np.argsort(joined)
    keys, running = (
        joined[order],
        before.chars + np.cumsum(np.concatenate(of_chars)[order]),
    )
    fitting = min(
        int(np.searchsorted(running, most_chars, side="right")),
        most_documents - before.documents,
    )
    fitting = fitting if before.documents else max(fitting, 1)
    if not fitting:
        return before
    return _Prefix(
        int(keys[fitting - 1]), before.documents + fitting, int(running[fitting - 1])
    )


# the exclusion list


class Exclusion(NamedTuple):
    """The excluded documents of one source: all of them, or those with one of `ids`."""

    is_whole: bool = False
    ids: frozenset[str] = frozenset()

    def holds(self, source_id: str) -> bool:
        """Return whether the document with this id is excluded."""
        return self.is_whole or source_id in self.ids

    @property
    def identity(self) -> str:
        """A hash of the exclusions, "" if there are none."""
        return (
            xxhash.xxh3_64_hexdigest(
                json.dumps([self.is_whole, sorted(self.ids)]).encode()
            )
            if any(self)
            else ""
        )


def exclusions_of(
    path: str | None, sources: Sequence[Source]
) -> tuple[list[Exclusion], int]:
    """Return the exclusions of each source, and the number of entries for other sources. Raises CorpusError."""
    if path is None:
        return [Exclusion()] * len(sources), 0
    try:
        with fsspec.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().split(
                "\n"
            )  # JSON may have other line separators in its strings
    except (OSError, ValueError) as error:
        problem = f"ingest.exclude={path!r} cannot be read ({error})"
        raise CorpusError(f"{problem}; correct the path, or set it to null") from None
    ids: dict[str, set[str]] = {}  # by source; "" stands for all of the source
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            source, source_id = entry["source"], entry.get("id", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            source = source_id = None
        if not (isinstance(source, str) and isinstance(source_id, str)):
            layout = '{"source": …, "id": …}'
            raise CorpusError(
                f"ingest.exclude: {path}:{number} is not {layout}; correct or delete the line"
            )
        ids.setdefault(source, set()).add(source_id)
    known = {source.label for source in sources}
    if ids and known.isdisjoint(ids):
        raise CorpusError(
            f"ingest.exclude={path!r} has no entry for the sources of this recipe ({', '.join(sorted(known))}), only for "
            f"{', '.join(sorted(ids))}; correct the names, or set ingest.exclude to null"
        )
    named = [ids.get(source.label, set()) for source in sources]
    exclusions = [
        Exclusion("" in entries, frozenset(entries - {""})) for entries in named
    ]
    return exclusions, sum(
        len(entries) for source, entries in ids.items() if source not in known
    )
