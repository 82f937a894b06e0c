"""Select: decide which documents are kept, and read the list of documents to exclude.

In:  hashes and length of every document, shard by shard, as ingest writes them.
Out: one bool per row and shard.

Duplicates are removed, then each source is reduced to its caps, then to its weight. Of
duplicates, the one from the earliest source is kept, and within a source the one with
the smallest content hash. Every reduction keeps the documents with the smallest keyed
hashes. So neither sharding nor file order affects which texts are kept (only under
which of several ids an identical text is kept). Memory holds one range of hashes at a
time.

The exclusion list, as `nextlong view` writes it, is a JSON Lines file with `source`
and, unless the whole source is excluded, `id`. Ingest applies it and stores the
exclusions, because the list may change or move.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import fsspec
import numpy as np
import xxhash

from nextlong.arrays import AnyArray, Hashes, Ints
from nextlong.artifacts.results import IngestFiles, IngestResult
from nextlong.corpus.splits import Splits
from nextlong.engine.step import (
    Artifact,
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
HELD_DOCUMENTS: Final = 4_000_000  # in memory at a time
_BIN_BITS: Final = 12  # of a key
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
    """Return the step that decides which documents are kept.

    No duplicates, within caps and weights.
    """
    sources = settings.sources

    def tasks(done: Artifacts) -> list[Task]:
        ingested = done["ingest"]
        files = IngestFiles(ingested)
        is_normalized = settings.dedup == "normalized"
        task = partial(
            _select_documents,
            hashes=files.hashes,
            compared=files.normalized if is_normalized else files.hashes,
            chars=files.chars,
            shard_sources=sources_of_shards(splits, ingested),
            sources=sources,
            seed=seed,
        )
        return [task]

    caps = [
        source.model_dump(include={"weight", "max_documents", "max_chars"})
        for source in sources
    ]
    is_sampled = any(_is_sampled(source) for source in sources)
    return Step(
        name="select",
        phase="read",
        version=2,
        config={"sources": caps, "seed": seed if is_sampled else None},
        inputs=(ingest,),
        tasks=tasks,
        result=SelectResult,
    )


def sources_of_shards(splits: Splits, ingest: Artifact) -> list[int]:
    """Return the index of the source of each shard that ingest wrote."""
    results = iter(ingest.results(IngestResult))
    sources: list[int] = []
    for index, source_splits in enumerate(splits):
        for _ in source_splits:
            sources += [index] * next(results).shards
    return sources


def _is_sampled(source: Source) -> bool:
    """Return whether a source has a cap or a weight."""
    limits = (source.weight, source.max_documents, source.max_chars)
    return any(limit is not None for limit in limits)


class _Shard(NamedTuple):
    """The files of a document shard; `keep` is written here."""

    hashes: Path
    chars: Path
    keep: Path

    def open(self) -> tuple[AnyArray, ...]:
        """Return hashes, characters and keep, memory-mapped; keep is writable."""
        hashes = np.load(self.hashes, mmap_mode="r")
        chars = np.load(self.chars, mmap_mode="r")
        return hashes, chars, np.load(self.keep, mmap_mode="r+")


def _count_kept(shards: Sequence[_Shard]) -> int:
    count = 0
    for shard in shards:
        keep = np.load(shard.keep, mmap_mode="r")
        count += int(np.count_nonzero(keep))
    return count


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

    `hashes` of contents (uint64), `compared` (uint64; equal for duplicates: the same
    files, or hashes of normalized texts) and `chars` (int64) are .npy files with one
    value per row; `shard_sources` is the index of each shard's source, ascending. About
    `held_documents` documents are in memory at a time. Raises CorpusError if a weighted
    source has no documents.
    """
    # Everything is kept at first.
    shards: list[_Shard] = []
    for index, (hash_path, chars_path) in enumerate(zip(hashes, chars, strict=True)):
        keep = Path(f"{out}.{index:05d}.keep.npy")
        documents = np.load(hash_path, mmap_mode="r")
        np.save(keep, np.ones(len(documents), np.bool_))
        shards.append(_Shard(hash_path, chars_path, keep))
    shards_of_sources: list[list[_Shard]] = [[] for _ in sources]
    for shard, index in zip(shards, shard_sources, strict=True):
        shards_of_sources[index].append(shard)

    # In this order, because caps and weights count what is left of a source.
    duplicates = _remove_duplicates(
        shards, compared, shard_sources, held_documents=held_documents
    )
    reductions = _reduce(sources, shards_of_sources, seed=seed)

    selected: dict[str, Selected] = {}
    for index, source in enumerate(sources):
        reduction = reductions.get(index, _Reduction())
        selected[source.label] = Selected(
            kept=_count_kept(shards_of_sources[index]),
            duplicates=duplicates[index],
            capped=reduction.capped,
            weighted_out=reduction.weighted_out,
        )
    return SelectResult(
        kept=sum(source.kept for source in selected.values()),
        duplicates=sum(source.duplicates for source in selected.values()),
        capped=sum(source.capped for source in selected.values()),
        weighted_out=sum(source.weighted_out for source in selected.values()),
        sources=selected,
    )


def _remove_duplicates(
    shards: Sequence[_Shard],
    compared: Sequence[Path],
    shard_sources: Sequence[int],
    *,
    held_documents: int,
) -> Counter[int]:
    """Write False for duplicates of a kept document; return their number by source.

    One range of compared hashes after the other, so that about `held_documents` are in
    memory.
    """
    duplicates: Counter[int] = Counter()
    if not shards:
        return duplicates
    documents = 0
    for path in compared:
        documents += len(np.load(path, mmap_mode="r"))
    passes = max(1, -(-documents // held_documents))
    for step in range(passes):
        first = np.uint64(2**64 * step // passes)
        last = np.uint64(2**64 * (step + 1) // passes - 1)
        # Of each shard, the rows in this range of hashes, and the hashes of them.
        rows_of_shards: list[Ints] = []
        compared_in_range: list[Hashes] = []
        hashes_in_range: list[Hashes] = []
        for shard, path in zip(shards, compared, strict=True):
            shard_compared = np.load(path, mmap_mode="r")
            is_inside = (shard_compared >= first) & (shard_compared <= last)
            rows = np.flatnonzero(is_inside)
            rows_of_shards.append(rows)
            compared_in_range.append(shard_compared[rows])
            hashes_in_range.append(np.load(shard.hashes, mmap_mode="r")[rows])
        sizes = list(map(len, rows_of_shards))

        # (n,) each, of all shards. The sort is stable: of the same text twice in a
        # source, the first in (shard, row) is kept.
        values = np.concatenate(compared_in_range)
        content_hashes = np.concatenate(hashes_in_range)
        source_of = np.repeat(np.array(shard_sources), sizes)
        order = np.lexsort((content_hashes, source_of, values))
        is_copy = np.zeros(len(values), np.bool_)
        is_copy[order[1:]] = values[order[1:]] == values[order[:-1]]
        copies_of_shards = np.split(is_copy, np.cumsum(sizes)[:-1])
        for index, copies in enumerate(copies_of_shards):
            if copies.any():
                keep = np.load(shards[index].keep, mmap_mode="r+")
                keep[rows_of_shards[index][copies]] = False
                duplicates[shard_sources[index]] += int(np.count_nonzero(copies))
    return duplicates


class _Reduction(NamedTuple):
    """How many documents the caps and the weight of a source removed."""

    capped: int = 0
    weighted_out: int = 0


def _reduce(
    sources: Sequence[Source],
    shards_of_sources: Sequence[Sequence[_Shard]],
    *,
    seed: int,
) -> dict[int, _Reduction]:
    """Write False for documents over the caps and weights of their sources.

    Returns what was removed of each source that has a cap or a weight.
    """
    # What is left, by source: without duplicates, within the caps, within the weights.
    distinct: dict[int, int] = {}
    capped: dict[int, _Prefix] = {}
    for index, source in enumerate(sources):
        if _is_sampled(source):
            shards = shards_of_sources[index]
            distinct[index] = _count_kept(shards)
            capped[index] = _prefix(
                shards, seed, source.max_documents, source.max_chars
            )
    final = capped | _weighted(sources, shards_of_sources, capped, seed=seed)

    reductions: dict[int, _Reduction] = {}
    # A document is kept by its key alone, so that each shard is written on its own.
    for index, prefix in final.items():
        last_key = np.uint64(prefix.last_key)
        for shard in shards_of_sources[index]:
            content_hashes, _, keep = shard.open()
            keys = keyed_hash(content_hashes, seed=seed, stage=_STAGE)
            keep &= keys <= last_key
        reductions[index] = _Reduction(
            capped=distinct[index] - capped[index].documents,
            weighted_out=capped[index].documents - prefix.documents,
        )
    return reductions


def _weighted(
    sources: Sequence[Source],
    shards_of_sources: Sequence[Sequence[_Shard]],
    capped: Mapping[int, _Prefix],
    *,
    seed: int,
) -> dict[int, _Prefix]:
    """Return what the weights leave of each weighted source.

    The characters of each are proportional to its weight; the scarcest source is kept
    whole. Exact fractions, so that rounding does not decide which documents are kept.
    """
    weights: dict[int, Fraction] = {}
    for index, prefix in capped.items():
        source = sources[index]
        if source.weight is None:
            continue
        if not prefix.chars:
            raise CorpusError(
                where=f"ingest.sources[{index}].weight",
                value=source.weight,
                problem=(
                    f"cannot be met: {source.label} has only documents that earlier "
                    "sources have too"
                ),
                fix="remove the source or its weight",
            )
        weights[index] = Fraction(source.weight)
    # Characters per unit of weight, of the scarcest source.
    scale = min(
        (capped[index].chars / weight for index, weight in weights.items()),
        default=Fraction(0),
    )
    left: dict[int, _Prefix] = {}
    for index, weight in weights.items():
        left[index] = _prefix(
            shards_of_sources[index],
            seed,
            sources[index].max_documents,
            max_chars=int(scale * weight),
        )
    return left


def _prefix(
    shards: Sequence[_Shard],
    seed: int,
    max_documents: int | None,
    max_chars: int | None,
) -> _Prefix:
    """Return the longest prefix of a source, by key, within the limits.

    At least one document, if it has any.
    """
    max_documents = _EVERY_KEY if max_documents is None else max_documents
    max_chars = _EVERY_KEY if max_chars is None else max_chars
    documents, chars = _cumulative_bins(shards, seed)
    is_over = (documents > max_documents) | (chars > max_chars)
    if not is_over.any():
        return _Prefix(_EVERY_KEY, int(documents[-1]), int(chars[-1]))

    # Single documents matter only in the bin that exceeds the limit.
    split = int(np.argmax(is_over))
    before = _Prefix(0, 0, 0)
    if split:
        before = _Prefix(
            last_key=(split << 64 - _BIN_BITS) - 1,
            documents=int(documents[split - 1]),
            chars=int(chars[split - 1]),
        )
    # (n,) each, of the documents in that bin, ascending by key: `running` counts
    # characters from the start of the prefix.
    keys, bin_chars = _documents_of_bin(shards, seed, split)
    running = before.chars + np.cumsum(bin_chars)
    fitting_chars = int(np.searchsorted(running, max_chars, side="right"))
    fitting = min(fitting_chars, max_documents - before.documents)
    if not before.documents:
        fitting = max(fitting, 1)
    if not fitting:
        return before
    return _Prefix(
        last_key=int(keys[fitting - 1]),
        documents=before.documents + fitting,
        chars=int(running[fitting - 1]),
    )


def _bins_of(keys: Hashes) -> Ints:
    """Return the bin of each key: its leading bits."""
    return (keys >> np.uint64(64 - _BIN_BITS)).astype(np.int64)


def _cumulative_bins(shards: Sequence[_Shard], seed: int) -> tuple[Ints, Ints]:
    """Return the kept documents and characters up to each bin, (2**_BIN_BITS,)."""
    bins = 1 << _BIN_BITS
    documents = np.zeros(bins, np.int64)
    chars = np.zeros(bins, np.int64)
    for shard in shards:
        content_hashes, shard_chars, keep = shard.open()
        kept = np.flatnonzero(keep)
        keys = keyed_hash(content_hashes[kept], seed=seed, stage=_STAGE)
        bin_of = _bins_of(keys)
        documents += np.bincount(bin_of, minlength=bins)
        np.add.at(chars, bin_of, shard_chars[kept])
    return np.cumsum(documents), np.cumsum(chars)


def _documents_of_bin(
    shards: Sequence[_Shard], seed: int, index: int
) -> tuple[Hashes, Ints]:
    """Return the keys of the kept documents of a bin, ascending, and their chars."""
    keys_of_shards: list[Hashes] = []
    chars_of_shards: list[Ints] = []
    for shard in shards:
        content_hashes, shard_chars, keep = shard.open()
        kept = np.flatnonzero(keep)
        keys = keyed_hash(content_hashes[kept], seed=seed, stage=_STAGE)
        is_inside = _bins_of(keys) == index
        keys_of_shards.append(keys[is_inside])
        chars_of_shards.append(shard_chars[kept[is_inside]])
    keys = np.concatenate(keys_of_shards)
    chars = np.concatenate(chars_of_shards)
    order = np.argsort(keys)
    return keys[order], chars[order]


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
        if not self.is_whole and not self.ids:
            return ""
        content = json.dumps([self.is_whole, sorted(self.ids)])
        return xxhash.xxh3_64_hexdigest(content.encode())


def exclusions_of(
    path: str | None, sources: Sequence[Source]
) -> tuple[list[Exclusion], int]:
    """Return the exclusions of each source, and how many entries other sources have.

    Raises CorpusError for a list that cannot be read or names none of the sources.
    """
    if path is None:
        return [Exclusion()] * len(sources), 0
    ids_by_source = _read_exclusions(path)
    # A list may have entries for sources of other recipes, but not for these alone.
    known = {source.label for source in sources}
    if ids_by_source and known.isdisjoint(ids_by_source):
        ours = ", ".join(sorted(known))
        others = ", ".join(sorted(ids_by_source))
        raise CorpusError(
            where="ingest.exclude",
            value=repr(path),
            problem=(
                f"has no entry for the sources of this recipe ({ours}), only for "
                f"{others}"
            ),
            fix="correct the names, or set ingest.exclude to null",
        )
    exclusions: list[Exclusion] = []
    for source in sources:
        ids = ids_by_source.get(source.label, set())
        exclusion = Exclusion(is_whole="" in ids, ids=frozenset(ids - {""}))
        exclusions.append(exclusion)
    elsewhere = sum(
        len(ids) for label, ids in ids_by_source.items() if label not in known
    )
    return exclusions, elsewhere


def _read_exclusions(path: str) -> dict[str, set[str]]:
    """Return the excluded ids by source; "" stands for all of the source."""
    try:
        with fsspec.open(path, "rt", encoding="utf-8") as file:
            # JSON may have other line separators in its strings.
            lines = file.read().split("\n")
    except (OSError, ValueError) as error:
        raise CorpusError(
            where="ingest.exclude",
            value=repr(path),
            problem=f"cannot be read ({error})",
            fix="correct the path, or set it to null",
        ) from None
    ids_by_source: dict[str, set[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            label = entry["source"]
            source_id = entry.get("id", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            label = source_id = None
        if not (isinstance(label, str) and isinstance(source_id, str)):
            raise CorpusError(
                where="ingest.exclude",
                problem=f'{path}:{number} is not {{"source": …, "id": …}}',
                fix="correct or delete the line",
            )
        ids = ids_by_source.setdefault(label, set())
        ids.add(source_id)
    return ids_by_source
