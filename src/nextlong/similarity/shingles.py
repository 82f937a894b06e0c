"""Shingles: the runs of three words of every chunk, and how rare each run is; near-copies are measured with both.

In:  DOCUMENTS and CHUNKS. Out: SHINGLES, one 32-bit number a run, memory-mapped afterwards, so that drafting reads no text;
WEIGHTS, by the lowest 22 bits of a run's number. Two thirds of the bytes of the text, in one pass over it.

Runs that stand in many documents (licence notes, page footers) weigh little: `limit / documents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.chunks import iter_chunk_texts, read_chunks
from nextlong.artefacts.flat_npy import write_header
from nextlong.artefacts.tokens import SHARDS_KEPT
from nextlong.rng import keyed_hash, threshold_for
from nextlong.similarity.words import bounds_of, hash_words, ngrams, runs_on

U32 = NDArray[np.uint32]
Offsets = NDArray[np.int64]

SHINGLE_WORDS: Final = 3
LEAST_WORDS: Final = 10  # of a text that may be a copy in part
SAMPLED_CHARS: Final = 48_000_000  # of text that rarity is measured on: about two shingles a slot
_SLOTS: Final = 1 << 22
_COUNTED_AT_ONCE: Final = 1 << 20  # shingles
_COMMON_SHARE: Final = 0.001  # a shingle in more of the documents than this is stock, and weighs less
_COMMON_LEAST: Final = 16  # … but never one in as few as these, which versions of one page may share
_LEAST_WEIGHT: Final = 2.0**-10  # above 0, so that a chunk of nothing but stock is a copy of the same stock


class Shingles(NamedTuple):
    """The shingles of m texts, in reading order; those of text i are hashes[offsets[i]:offsets[i + 1]].

    A text of fewer than ten words is too short to have a share of its words changed: it is one shingle (repeated, so
    that no text has fewer than three), equal to that of the same words and to nothing else.
    """

    hashes: U32
    offsets: Offsets  # (m + 1,)


def shingles(texts: Sequence[str]) -> Shingles:
    """Return the shingles of texts."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    counts = np.diff(bounds)
    is_long = counts >= LEAST_WORDS
    sizes = np.where(is_long, counts - SHINGLE_WORDS + 1, np.where(counts > 0, SHINGLE_WORDS, 0))
    of_long = np.repeat(is_long, sizes)
    hashes = np.empty(len(of_long), np.uint32)
    runs = runs_on(bounds, SHINGLE_WORDS) & np.repeat(is_long, counts)
    rolled = ngrams(words.hashes, SHINGLE_WORDS).astype(np.uint32)  # the lowest bits
    hashes[of_long] = rolled[runs[: max(len(runs) - SHINGLE_WORDS + 1, 0)]]
    short = [
        ~ngrams(words.hashes[bounds[text] : bounds[text + 1]], int(counts[text])).astype(np.uint32)
        for text in np.flatnonzero((counts > 0) & ~is_long)
    ]
    hashes[~of_long] = np.repeat(np.concatenate(short), SHINGLE_WORDS) if short else 0
    return Shingles(hashes, np.concatenate([[0], np.cumsum(sizes)]))


def shingle_shard(out: Path, *, documents: Path, chunks: Path) -> dict[str, Any]:
    """Shingle every chunk of a shard; writes `{out}.shingles.npy`, uint32, and `{out}.offsets.npy`, (chunks + 1,)."""
    sizes = [np.zeros(1, np.int64)]
    with open(f"{out}.shingles.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), 0)
        for batch in iter_chunk_texts(documents, chunks):
            found = shingles(batch.texts)
            sink.write(found.hashes.data)
            sizes.append(np.diff(found.offsets))
        offsets = np.cumsum(np.concatenate(sizes))
        sink.seek(0)
        write_header(sink, np.dtype(np.uint32), int(offsets[-1]))
    np.save(f"{out}.offsets.npy", offsets)
    return {"shingles": int(offsets[-1])}


class ShingleStore:
    """The shingles of every chunk, memory-mapped; one file of each kind a shard, in shard order."""

    def __init__(self, *, hashes: Sequence[Path], offsets: Sequence[Path]) -> None:
        self._paths = list(zip(hashes, offsets, strict=True))
        self._open: dict[int, tuple[U32, Offsets]] = {}

    def of(self, chunk_ids: NDArray[np.int64]) -> Shingles:
        """Return the shingles of chunks (m,), in their order."""
        places = zip(schemas.shard_of(chunk_ids).tolist(), schemas.row_of(chunk_ids).tolist(), strict=True)
        pieces = [np.empty(0, np.uint32)]
        for shard, row in places:
            hashes, offsets = self.shard(shard)
            pieces.append(hashes[offsets[row] : offsets[row + 1]])
        return Shingles(np.concatenate(pieces), np.cumsum([len(piece) for piece in pieces]))

    def shard(self, number: int) -> tuple[U32, Offsets]:
        """Return the hashes and offsets of a shard."""
        found = self._open.get(number)
        if found is None:
            hashes, offsets = (np.load(path, mmap_mode="r").view(np.ndarray) for path in self._paths[number])
            if len(self._open) >= SHARDS_KEPT:
                self._open.clear()
            found = self._open[number] = (hashes, offsets)
        return found


def weigh_shingles(
    out: Path, *, store: ShingleStore, chunks: Sequence[Path], hashes: Sequence[Path], share: float, seed: int
) -> dict[str, Any]:
    """Weigh shingles by how many of a sample of the documents hold them; writes `{out}.weights.npy`, float16 (2^22,).

    `share` of the documents are sampled, by hash of their content: min(1, SAMPLED_CHARS / characters of the corpus).
    `hashes`: of each document row's content, a file a shard.
    """
    counts = np.zeros(_SLOTS, np.uint32)
    sampled = 0
    for shard, (chunk_path, hash_path) in enumerate(zip(chunks, hashes, strict=True)):
        doc_rows = read_chunks(chunk_path)["doc_row"]
        firsts = np.flatnonzero(np.diff(doc_rows, prepend=-1))
        keys = keyed_hash(np.load(hash_path)[doc_rows[firsts]], seed=seed, stage="shingles")
        chosen = keys <= threshold_for(share)
        own, offsets = store.shard(shard)
        starts, stops = offsets[firsts][chosen], offsets[np.append(firsts[1:], len(doc_rows))][chosen]
        _count_documents(counts, own, starts, stops)
        sampled += int(chosen.sum())
    weights = weights_from(counts, sampled)
    np.save(f"{out}.weights.npy", weights)
    return {"common_slots": int((weights < 1).sum()), "sampled": sampled}


def _count_documents(counts: NDArray[Any], hashes: U32, starts: Offsets, stops: Offsets) -> None:
    """Count the documents hashes[starts[i]:stops[i]], some at a time."""
    if not len(starts):
        return
    ends = np.cumsum(stops - starts)
    parts = np.searchsorted(ends, np.arange(0, ends[-1], _COUNTED_AT_ONCE))
    for first, last in pairwise([*np.unique(parts).tolist(), len(starts)]):
        pieces = [hashes[a:b] for a, b in zip(starts[first:last].tolist(), stops[first:last].tolist(), strict=True)]
        add_counts(counts, Shingles(np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])))


def add_counts(counts: NDArray[Any], found: Shingles) -> None:
    """Add to `counts`, integers (2^k,), in place: one to the slot of each shingle of each text, once a text."""
    texts = np.repeat(np.arange(len(found.offsets) - 1, dtype=np.uint64), np.diff(found.offsets))
    slots = (found.hashes & np.uint32(len(counts) - 1)).astype(np.uint64)
    keys = np.sort(texts << np.uint64(32) | slots)
    once = keys[np.flatnonzero(np.diff(keys, prepend=~keys[:1]))] & np.uint64(0xFFFFFFFF)
    np.add.at(counts, once.astype(np.int64), counts.dtype.type(1))


def weights_from(counts: NDArray[Any], sampled: int) -> NDArray[np.float16]:
    """Return the weights of shingles by slot, (2^k,) in (0, 1], of which `counts` of `sampled` documents hold one."""
    limit = max(_COMMON_LEAST, sampled * _COMMON_SHARE)
    weights: NDArray[np.float16] = np.clip(limit / np.maximum(counts, 1), _LEAST_WEIGHT, 1.0).astype(np.float16)
    return weights
