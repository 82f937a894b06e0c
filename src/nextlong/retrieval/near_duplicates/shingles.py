"""Compute shingles (the three-word runs of every chunk) and their weights, with which near-duplicates are measured.

In:  DOCUMENTS and CHUNKS.
Out: SHINGLES, one 64-bit hash a run (1.3 bytes a byte of text), memory-mapped, so that drafting reads no candidate texts;
     WEIGHTS, integers by the lowest 22 bits of a hash: `limit / documents`, so that common runs (licences) weigh little.

docs/decisions/0005-near-duplicates.md has the rule. Hashes are polynomials modulo 2^64 over letters, then over words, so NumPy
computes all words of a text at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import (
    ChunkFiles,
    ChunkResult,
    IngestFiles,
    chunk_files,
    chunks_of,
)
from nextlong.artifacts.lookup import (
    iter_chunk_texts,
    opened,
    ranges,
    read_chunks,
    runs_within,
)
from nextlong.engine.step import (
    Artifacts,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    each_shard,
)
from nextlong.rng import keyed_hash, threshold_for

U64 = NDArray[np.uint64]

_PIECE_CHARS: Final = 1 << 17  # characters hashed at a time; the arrays fit into caches
_BASE: Final = 0xD1342543DE82EF95  # odd, hence invertible modulo 2^64
_BASE_INVERSE: Final = pow(_BASE, -1, 1 << 64)
# Scripts written without spaces between words: each letter counts as a word.
_SOLO_RANGES: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
                       (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
_LAST_LETTERS: Final = (
    0x40000  # code points above are tags and private use, never letters
)


class Words(NamedTuple):
    """The words of a text (runs of letters and digits): hash, start and end in characters of each, shape (w,)."""

    hashes: U64
    starts: _Offsets
    ends: _Offsets


def hash_words(text: str) -> Words:
    """Return the words of a text; equal words have equal hashes on any machine."""
    pieces, start = list[tuple[U64, _Offsets, _Offsets]](), 0
    while start < len(text) or not pieces:  # an empty text is one piece
        end = start + _PIECE_CHARS
        if end < len(
            text
        ):  # do not end a piece within a word, however long the word is
            if (
                blank := max(text.rfind("\n", start, end), text.rfind(" ", start, end))
                + 1
            ):
                end = blank
            while not blank and end < len(text) and text[end].isalnum():
                end += 1
        pieces.append(_hash_piece(text[start:end], start))
        start = end
    return Words(*map(np.concatenate, zip(*pieces, strict=True)))


def _hash_piece(text: str, offset: int) -> tuple[U64, _Offsets, _Offsets]:
    """Hash all words at once as polynomials modulo 2^64: sums over their letters, divided by the power at their start."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    numbers, is_solo = _characters()
    letters = numbers.take(
        codes, mode="clip"
    )  # no code is out of range, and "clip" takes half the time of "raise"
    # `inside`, (n + 2,): whether each character is a letter or digit, padded by one on each side.
    inside = np.zeros(len(codes) + 2, np.bool_)
    inside[1:-1] = letters != 0
    high = np.flatnonzero(
        codes >= _SOLO_RANGES[0][0]
    )  # few in most texts: quotation marks, dashes
    high = high[is_solo.take(codes[high])]
    if len(high):
        solo = np.zeros_like(inside)
        solo[high + 1] = True
        breaks = solo[1:] | solo[:-1]
        starts = np.flatnonzero(inside[1:] & (~inside[:-1] | breaks))
        ends = np.flatnonzero(inside[:-1] & (~inside[1:] | breaks))
    else:
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        starts, ends = edges[::2], edges[1::2]
    up, down = powers(max(_PIECE_CHARS, 1 << (len(letters) - 1).bit_length()))
    letters *= up[: len(letters)]
    sums = np.add.reduceat(letters, starts)  # separators count 0
    return mix(sums * down[starts]), starts + offset, ends + offset


@lru_cache(maxsize=1)
def _characters() -> tuple[U64, NDArray[np.bool_]]:
    """Return for each code point a random number (equal for both cases, 0 for separators), and whether it is a word itself."""
    # Letters are lower-cased one by one: İ, whose lower case has two code points, is kept, and a final Σ becomes σ.
    folded, solo = (
        np.zeros(sys.maxunicode + 1, np.uint64),
        np.zeros(sys.maxunicode + 1, np.bool_),
    )
    for code in range(_LAST_LETTERS):
        if chr(code).isalnum():
            lower = chr(code).lower()
            folded[code] = ord(lower) if len(lower) == 1 else code
    for first, last in _SOLO_RANGES:
        solo[first : last + 1] = True
    return np.where(folded > 0, mix(folded * np.uint64(_BASE)), np.uint64(0)), solo


@lru_cache(maxsize=3)  # for a piece, a longer word, and the passages of a draft
def powers(count: int) -> tuple[U64, U64]:
    """Return the powers 0, 1, 2 … of the base and of its inverse modulo 2^64, shape (count,) each."""
    up, down = np.full((2, count), np.uint64(_BASE))
    down[:] = _BASE_INVERSE
    up[0] = down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def mix(values: U64) -> U64:
    """Return numbers whose bits all depend on all bits of the given ones (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngrams(word_hashes: U64, n: int) -> U64:
    """Return the hash of every run of n words, shape (w − n + 1,), by the place of its first word; shape (0,) if none."""
    runs = max(len(word_hashes) - n + 1, 0)
    rolled = word_hashes[:runs].copy()
    for step in range(1, n):
        rolled *= np.uint64(_BASE)
        rolled += word_hashes[step : step + runs]
    return mix(rolled ^ np.uint64(n))


def bounds_of(words: Words, texts: Sequence[str]) -> _Offsets:
    """Return the bounds of the words of m texts, shape (m + 1,); `words` are those of "\\n".join(texts)."""
    ends_of_texts = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    return np.concatenate([[0], np.searchsorted(words.starts, ends_of_texts)])


def runs_on(bounds: _Offsets, n: int) -> NDArray[np.bool_]:
    """Return whether the n words from each word on are of the same text, shape (w,)."""
    return np.repeat(bounds[1:], np.diff(bounds)) - np.arange(bounds[-1]) >= n


_Offsets = NDArray[np.int64]
Weights = NDArray[np.uint16]

SHINGLE_WORDS: Final = 3
_LEAST_WORDS: Final = (
    10  # a shorter text has no shingles, and repeats only a text with the same words
)
SAMPLED_CHARS: Final = (
    48_000_000  # of text to measure rarity on: about two shingles a slot
)
_FULL_WEIGHT: Final = 1024  # common runs weigh 1 at least, so a chunk of only boilerplate repeats the same boilerplate
_SLOTS: Final = 1 << 22
_COUNTED_AT_ONCE: Final = 1 << 20  # shingles
_COMMON_SHARE: Final = 1000  # a shingle in more than 1/1000 of the documents is boilerplate and weighs less …
_COMMON_LEAST: Final = (
    16  # … but never one in at most 16 documents, which may be versions of one page
)


class Shingles(NamedTuple):
    """The shingles of m texts in reading order; those of text i are hashes[offsets[i]:offsets[i + 1]].

    A text under ten words has one number instead, the hash of all its words, which no run and no other text has.
    """

    hashes: U64
    offsets: _Offsets  # (m + 1,)

    def picked(self, texts: _Offsets) -> Shingles:
        """Return the shingles of some texts, by their numbers."""
        sizes = np.diff(self.offsets)[texts]
        return Shingles(
            self.hashes[ranges(self.offsets[texts], sizes)],
            np.append(0, np.cumsum(sizes)),
        )

    @property
    def is_short(self) -> NDArray[np.bool_]:
        """Which texts have one to nine words, shape (m,)."""
        short: NDArray[np.bool_] = np.diff(self.offsets) == 1
        return short


class ComparedDocument(NamedTuple):
    """A meta-document, as candidates are compared with it."""

    runs: U64  # of its whole text, across chunk borders; empty if it has fewer than ten words
    wholes: (
        U64  # the numbers of its chunks, and of itself, that have fewer than ten words
    )


def shingles(texts: Sequence[str]) -> Shingles:
    """Return the shingles of texts."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    counts = np.diff(bounds)
    is_long = counts >= _LEAST_WORDS
    sizes = np.where(is_long, counts - SHINGLE_WORDS + 1, counts > 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    hashes = np.empty(offsets[-1], np.uint64)
    runs = runs_on(bounds, SHINGLE_WORDS) & np.repeat(is_long, counts)
    rolled = ngrams(words.hashes, SHINGLE_WORDS)
    hashes[np.repeat(is_long, sizes)] = rolled[runs[: len(rolled)]]
    for count in range(1, _LEAST_WORDS):
        if len(texts_of_length := np.flatnonzero(counts == count)):
            hashes[offsets[texts_of_length]] = ~ngrams(words.hashes, count)[
                bounds[texts_of_length]
            ]
    return Shingles(hashes, offsets)


def documents_of(chunk_texts: Sequence[Sequence[str]]) -> list[ComparedDocument]:
    """Return the documents that consist of the given chunks, in order."""
    chunks = shingles([text for texts in chunk_texts for text in texts])
    wholes = shingles(["".join(texts) for texts in chunk_texts])
    ends = np.cumsum([len(texts) for texts in chunk_texts]).tolist()
    documents = []
    for number, (first, last) in enumerate(pairwise([0, *ends])):
        shorts = chunks.hashes[chunks.offsets[first:last][chunks.is_short[first:last]]]
        whole = wholes.hashes[wholes.offsets[number] : wholes.offsets[number + 1]]
        own = int(wholes.is_short[number])
        documents.append(ComparedDocument(whole[own:], np.append(shorts, whole[:own])))
    return documents


def shingle_shard(out: Path, *, documents: Path, chunks: Path) -> TaskResult:
    """Write `{out}.shingles.npy`, uint64, and `{out}.offsets.npy`, (chunks + 1,): the shingles of every chunk of a shard."""
    sizes = [np.zeros(1, np.int64)]
    with open(f"{out}.shingles.npy", "wb") as sink:
        lookup.write_header(sink, np.dtype(np.uint64), 0)
        for batch in iter_chunk_texts(documents, chunks):
            batch_shingles = shingles(batch.texts)
            sink.write(batch_shingles.hashes.data)
            sizes.append(np.diff(batch_shingles.offsets))
        offsets = np.cumsum(np.concatenate(sizes))
        sink.seek(0)
        lookup.write_header(sink, np.dtype(np.uint64), int(offsets[-1]))
    np.save(f"{out}.offsets.npy", offsets)
    return TaskResult()


class ShingleStore:
    """The shingles of every chunk, memory-mapped, one file of each kind a shard, in shard order."""

    def __init__(self, *, hashes: Sequence[Path], offsets: Sequence[Path]) -> None:
        self._hashes, self._offsets = hashes, offsets
        self._open: dict[int, tuple[U64, _Offsets]] = {}

    def of(self, chunk_ids: NDArray[np.int64]) -> Shingles:
        """Return the shingles of chunks (m,), in their order."""
        order = np.argsort(chunk_ids)
        shards, rows = (
            schemas.shard_of(chunk_ids)[order],
            schemas.row_of(chunk_ids)[order],
        )
        firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
        pieces = [np.empty(0, np.uint64)] * len(order)
        for first, last in pairwise([*firsts, len(order)]):
            hashes, offsets = self.shard(int(shards[first]))
            bounds = (
                offsets[rows[first:last]].tolist(),
                offsets[rows[first:last] + 1].tolist(),
            )
            for place, start, end in zip(
                order[first:last].tolist(), *bounds, strict=True
            ):
                # A copy, because a view would keep the file of its shard open.
                pieces[place] = hashes[start:end].copy()
        return Shingles(
            np.concatenate([np.empty(0, np.uint64), *pieces]),
            np.cumsum([0, *map(len, pieces)]),
        )

    def shard(self, number: int) -> tuple[U64, _Offsets]:
        """Return the hashes and offsets of a shard, which stay mapped for later calls."""
        if number not in self._open:
            if len(self._open) >= lookup.SHARDS_KEPT:
                self._open.clear()
            self._open[number] = (
                opened(self._hashes[number]),
                opened(self._offsets[number]),
            )
        return self._open[number]


def weigh_shingles(
    out: Path,
    *,
    store: ShingleStore,
    chunks: Sequence[Path],
    hashes: Sequence[Path],
    share: float,
    seed: int,
) -> TaskResult:
    """Weigh shingles by how many of a `share` of the documents, sampled by content `hashes`, have them in one of their chunks.

    Writes `{out}.weights.npy`, uint16 (2^22,), and `{out}.counted.npy`, the ids of the sampled documents.
    """
    counts = np.zeros(_SLOTS, np.uint32)
    counted = [np.empty(0, np.int64)]
    for shard, (chunk_path, hash_path) in enumerate(zip(chunks, hashes, strict=True)):
        doc_rows = read_chunks(chunk_path)["doc_row"]
        firsts = np.flatnonzero(np.diff(doc_rows, prepend=-1))
        chosen = keyed_hash(
            np.load(hash_path)[doc_rows[firsts]], seed=seed, stage="shingles"
        ) <= threshold_for(share)
        first_chunks, last_chunks = (
            firsts[chosen],
            np.append(firsts[1:], len(doc_rows))[chosen],
        )
        counted.append(schemas.pack_ids(shard, doc_rows[first_chunks].astype(np.int64)))
        if not len(first_chunks):
            continue
        runs, offsets = store.shard(shard)
        sizes = np.diff(offsets)
        of_documents = offsets[last_chunks] - offsets[first_chunks]
        for first, last in runs_within(
            of_documents, _COUNTED_AT_ONCE
        ):  # some documents at a time
            pieces = []
            for a, b in zip(
                first_chunks[first:last].tolist(),
                last_chunks[first:last].tolist(),
                strict=True,
            ):
                piece, piece_sizes = runs[offsets[a] : offsets[b]], sizes[a:b]
                if (piece_sizes == 1).any():  # the number of a short chunk is not a run
                    piece = piece[np.repeat(piece_sizes != 1, piece_sizes)]
                pieces.append(piece)
            add_counts(
                counts,
                Shingles(np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])),
            )
    np.save(f"{out}.weights.npy", weights_from(counts, sum(map(len, counted))))
    np.save(f"{out}.counted.npy", np.concatenate(counted))
    return TaskResult()


def add_counts(counts: NDArray[np.uint32], shingles: Shingles) -> None:
    """Add 1 to the slot in `counts`, (2^k,), of each distinct shingle of each text, in place."""
    texts = np.repeat(
        np.arange(len(shingles.offsets) - 1, dtype=np.uint64), np.diff(shingles.offsets)
    )
    keys = np.sort(
        texts << np.uint64(32) | shingles.hashes & np.uint64(len(counts) - 1)
    )
    once = keys[np.flatnonzero(np.diff(keys, prepend=~keys[:1]))] & np.uint64(
        0xFFFFFFFF
    )
    np.add.at(counts, once.astype(np.int64), np.uint32(1))


def weights_from(counts: NDArray[np.uint32], sampled: int) -> Weights:
    """Return the weights by slot, (2^k,) in 1 … 1024; `counts` of `sampled` documents have a shingle of the slot."""
    # 1024 · limit / count, rounded down; limit is 16 documents or a thousandth of them, here in thousandths of a document.
    limit = max(_COMMON_LEAST * _COMMON_SHARE, sampled)
    weights = np.full(len(counts), _FULL_WEIGHT, np.uint16)
    common = np.flatnonzero(counts > limit // _COMMON_SHARE)
    weights[common] = np.maximum(
        _FULL_WEIGHT * limit // (_COMMON_SHARE * counts[common].astype(np.int64)), 1
    )
    return weights


class ShinglesFiles(StepFiles):
    """The SHINGLES of the chunks of every shard, and where those of each chunk begin."""

    step = "shingles"
    shingles = ShardFiles(".shingles.npy")
    offsets = ShardFiles(".offsets.npy")


class WeightsFiles(StepFiles):
    """The weights of common shingles, and the shingles that were counted."""

    step = "weights"
    weights = OnlyFile(".weights.npy")
    counted = OnlyFile(".counted.npy")


def shingles_step(ingest: Step, chunk: Step) -> Step:
    """Return the step from DOCUMENTS and CHUNKS to the SHINGLES of every chunk."""
    tasks = each_shard(
        shingle_shard,
        documents=(ingest, IngestFiles.documents),
        chunks=(chunk, ChunkFiles.chunks),
    )
    return Step("shingles", 3, {}, (ingest, chunk), tasks)


def weights_step(ingest: Step, chunk: Step, shingles: Step, *, seed: int) -> Step:
    """Return the step that weighs SHINGLES by the number of sampled documents that have them."""

    def tasks(done: Artifacts) -> list[Task]:
        chunked, hashes = chunks_of(done), IngestFiles.of(done).hashes
        share = min(
            1.0,
            SAMPLED_CHARS
            / max(1, sum(shard.chars for shard in chunked.results(ChunkResult))),
        )
        weigh = partial(
            weigh_shingles, store=shingle_store(done), share=share, seed=seed
        )
        return [partial(weigh, chunks=chunk_files(done).chunks, hashes=hashes)]

    config = {"sampled_chars": SAMPLED_CHARS, "seed": seed}
    return Step("weights", 3, config, (ingest, chunk, shingles), tasks)


def shingle_store(done: Artifacts) -> ShingleStore:
    """Return the shingles of every chunk."""
    files = ShinglesFiles.of(done)
    return ShingleStore(hashes=files.shingles, offsets=files.offsets)
