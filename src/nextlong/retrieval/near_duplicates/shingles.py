"""Compute shingles, the three-word runs of every chunk, and their weights.

With them, near-duplicates are measured.

In:  DOCUMENTS and CHUNKS.
Out: SHINGLES, one 64-bit hash per run (1.3 bytes per byte of text), memory-mapped, so
     that drafting reads no candidate texts; WEIGHTS, integers by the lowest 22 bits of
     a hash: `limit / documents`, so that common runs (licences) weigh little.

docs/decisions/0005-near-duplicates.md has the rule. Hashes are polynomials modulo 2^64
over letters, then over words, so NumPy computes all words of a text at once.
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
from nextlong.arrays import Bools, Hashes, Ints, UInt32s
from nextlong.artifacts import corpus_files, sequence_files
from nextlong.artifacts.corpus_files import (
    iter_chunk_texts,
    opened,
    ranges,
    read_chunks,
    runs_within,
)
from nextlong.artifacts.results import (
    ChunkFiles,
    ChunkResult,
    IngestFiles,
    chunk_files,
    chunks_of,
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

_Offsets = Ints
Weights = NDArray[np.uint16]

SHINGLE_WORDS: Final = 3
# A shorter text has no shingles, and repeats only a text with the same words.
_MIN_WORDS: Final = 10

# Characters hashed at a time; the arrays fit into caches.
_PIECE_CHARS: Final = 1 << 17
_BASE: Final = 0xD1342543DE82EF95  # odd, hence invertible modulo 2^64
_BASE_INVERSE: Final = pow(_BASE, -1, 1 << 64)
# Scripts written without spaces between words: each letter counts as a word.
_SOLO_RANGES: Final = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
# Code points from here on are tags and private use, never letters.
_LETTERS_END: Final = 0x40000

# Characters of text to measure rarity on: about two shingles per slot.
SAMPLED_CHARS: Final = 48_000_000
# Common runs weigh 1 at least, so a chunk of only boilerplate repeats the same
# boilerplate.
_FULL_WEIGHT: Final = 1024
_SLOTS: Final = 1 << 22
# Shingles of documents that are counted together.
_COUNTED_AT_ONCE: Final = 1 << 20
# A shingle in more than 1/1000 of the documents is boilerplate and weighs less, but
# never one in at most 16 documents, which may be versions of one page.
_COMMON_SHARE: Final = 1000
_MIN_COMMON: Final = 16


class Words(NamedTuple):
    """The words of a text, which are runs of letters and digits."""

    hashes: Hashes  # (w,)
    starts: _Offsets  # (w,) in characters
    ends: _Offsets  # (w,)


def hash_words(text: str) -> Words:
    """Return the words of a text; equal words have equal hashes on any machine."""
    pieces: list[Words] = []
    start = 0
    while start < len(text) or not pieces:  # an empty text is one piece
        end = _piece_end(text, start)
        pieces.append(_hash_piece(text[start:end], start))
        start = end
    columns = zip(*pieces, strict=True)
    return Words(*map(np.concatenate, columns))


def _piece_end(text: str, start: int) -> int:
    """Return where the piece from `start` on ends: never within a word.

    However long the word is.
    """
    end = start + _PIECE_CHARS
    if end >= len(text):
        return end
    last_newline = text.rfind("\n", start, end)
    last_blank = max(last_newline, text.rfind(" ", start, end))
    if last_blank >= 0:
        return last_blank + 1
    while end < len(text) and text[end].isalnum():
        end += 1
    return end


def _hash_piece(text: str, offset: int) -> Words:
    """Hash all words at once as polynomials modulo 2^64.

    They are sums over their letters, divided by the power at their start.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    numbers, is_solo = _characters()
    # No code is out of range, and "clip" takes half the time of "raise".
    letters = numbers.take(codes, mode="clip")
    # Whether each character is a letter or digit, padded by one on each side, (n + 2,).
    inside = np.zeros(len(codes) + 2, np.bool_)
    inside[1:-1] = letters != 0
    # Few in most texts: quotation marks, dashes.
    high = np.flatnonzero(codes >= _SOLO_RANGES[0][0])
    high = high[is_solo.take(codes[high])]
    if len(high):
        # A word also begins and ends at each letter that is a word by itself.
        solo = np.zeros_like(inside)
        solo[high + 1] = True
        breaks = solo[1:] | solo[:-1]
        starts = np.flatnonzero(inside[1:] & (~inside[:-1] | breaks))
        ends = np.flatnonzero(inside[:-1] & (~inside[1:] | breaks))
    else:
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        starts = edges[::2]
        ends = edges[1::2]
    powers_needed = 1 << (len(letters) - 1).bit_length()
    up, down = powers(max(_PIECE_CHARS, powers_needed))
    letters *= up[: len(letters)]
    sums = np.add.reduceat(letters, starts)  # separators count 0
    return Words(mix(sums * down[starts]), starts + offset, ends + offset)


@lru_cache(maxsize=1)
def _characters() -> tuple[Hashes, Bools]:
    """Return a random number for each code point, and whether it is a word by itself.

    The numbers of both cases are equal, and that of a separator is 0.
    """
    # Letters are lower-cased one by one: İ, whose lower case has two code points, is
    # kept, and a final Σ becomes σ.
    folded = np.zeros(sys.maxunicode + 1, np.uint64)
    for code in range(_LETTERS_END):
        if chr(code).isalnum():
            lower = chr(code).lower()
            folded[code] = ord(lower) if len(lower) == 1 else code
    is_solo = np.zeros(sys.maxunicode + 1, np.bool_)
    for first, last in _SOLO_RANGES:
        is_solo[first : last + 1] = True
    numbers = np.where(folded > 0, mix(folded * np.uint64(_BASE)), np.uint64(0))
    return numbers, is_solo


@lru_cache(maxsize=3)  # for a piece, a longer word, and the passages of a draft
def powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the powers 0, 1, 2 … of the base and of its inverse, (count,) each.

    Modulo 2^64.
    """
    up = np.full(count, np.uint64(_BASE))
    up[0] = 1
    down = np.full(count, np.uint64(_BASE_INVERSE))
    down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def mix(values: Hashes) -> Hashes:
    """Return numbers whose bits all depend on all bits of the given ones.

    It is the finalizer of SplitMix64.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngrams(word_hashes: Hashes, n: int) -> Hashes:
    """Return the hash of every run of n words, (w − n + 1,), in the order of the words.

    Shape (0,) if there are fewer words.
    """
    runs = max(len(word_hashes) - n + 1, 0)
    rolled = word_hashes[:runs].copy()
    for step in range(1, n):
        rolled *= np.uint64(_BASE)
        rolled += word_hashes[step : step + runs]
    return mix(rolled ^ np.uint64(n))


def bounds_of(words: Words, texts: Sequence[str]) -> _Offsets:
    """Return the bounds of the words of m texts, shape (m + 1,).

    `words` are those of "\\n".join(texts).
    """
    ends_of_texts = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    ends_of_words = np.searchsorted(words.starts, ends_of_texts)
    return np.concatenate([[0], ends_of_words])


def runs_on(bounds: _Offsets, n: int) -> Bools:
    """Return whether the n words from each word on are of the same text, shape (w,)."""
    words_left = np.repeat(bounds[1:], np.diff(bounds))
    words_left -= np.arange(bounds[-1])
    return words_left >= n


class Shingles(NamedTuple):
    """The shingles of m texts in reading order.

    Those of text i are hashes[offsets[i]:offsets[i + 1]]. A text under ten words has
    one number instead, the hash of all its words, which no run and no other text has.
    """

    hashes: Hashes
    offsets: _Offsets  # (m + 1,)

    def picked(self, texts: _Offsets) -> Shingles:
        """Return the shingles of some texts, by their numbers."""
        sizes = np.diff(self.offsets)[texts]
        hashes = self.hashes[ranges(self.offsets[texts], sizes)]
        offsets = np.append(0, np.cumsum(sizes))
        return Shingles(hashes, offsets)

    @property
    def is_short(self) -> Bools:
        """Which texts have one to nine words, shape (m,)."""
        short: Bools = np.diff(self.offsets) == 1
        return short


class ComparedDocument(NamedTuple):
    """A meta-document, as candidates are compared with it."""

    # Of its whole text, across chunk borders; empty if it has fewer than ten words.
    runs: Hashes
    # The numbers of its chunks, and of itself, that have fewer than ten words.
    wholes: Hashes


def shingles(texts: Sequence[str]) -> Shingles:
    """Return the shingles of texts."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    counts = np.diff(bounds)
    is_long = counts >= _MIN_WORDS
    sizes = np.where(is_long, counts - SHINGLE_WORDS + 1, counts > 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    hashes = np.empty(offsets[-1], np.uint64)

    # The runs of long texts; those that would reach into the next text are left out.
    runs = ngrams(words.hashes, SHINGLE_WORDS)
    is_run = runs_on(bounds, SHINGLE_WORDS) & np.repeat(is_long, counts)
    hashes[np.repeat(is_long, sizes)] = runs[is_run[: len(runs)]]

    # One number for each short text: the hash of all of its words, inverted.
    for count in range(1, _MIN_WORDS):
        texts_of_count = np.flatnonzero(counts == count)
        if len(texts_of_count):
            numbers = ngrams(words.hashes, count)
            hashes[offsets[texts_of_count]] = ~numbers[bounds[texts_of_count]]
    return Shingles(hashes, offsets)


def positions_of(runs: Hashes, hashes: Hashes) -> Ints:
    """Return where any of the runs is among hashes, ascending."""
    # A table of the lowest bits of the runs excludes most hashes in a tenth of the time
    # that `isin` takes, which sorts them.
    slots = 1 << max(16, (8 * len(runs)).bit_length())
    lowest_bits = np.uint64(slots - 1)
    has_run = np.zeros(slots, np.bool_)
    has_run[(runs & lowest_bits).view(np.int64)] = True
    slots_of_hashes = (hashes & lowest_bits).view(np.int64)
    likely = np.flatnonzero(has_run[slots_of_hashes])
    return likely[np.isin(hashes[likely], runs)]


def documents_of(chunk_texts: Sequence[Sequence[str]]) -> list[ComparedDocument]:
    """Return the documents that consist of the given chunks, in order."""
    all_chunks: list[str] = []
    for texts in chunk_texts:
        all_chunks += texts
    chunks = shingles(all_chunks)
    wholes = shingles(["".join(texts) for texts in chunk_texts])
    is_short_chunk = chunks.is_short
    is_short_document = wholes.is_short
    ends = np.cumsum([len(texts) for texts in chunk_texts]).tolist()
    documents = []
    for number, (first, last) in enumerate(pairwise([0, *ends])):
        short_starts = chunks.offsets[first:last][is_short_chunk[first:last]]
        short_chunks = chunks.hashes[short_starts]
        whole = wholes.hashes[wholes.offsets[number] : wholes.offsets[number + 1]]
        if is_short_document[number]:
            numbers = np.append(short_chunks, whole)
            documents.append(ComparedDocument(whole[1:], numbers))
        else:
            documents.append(ComparedDocument(whole, short_chunks))
    return documents


def shingle_shard(out: Path, *, documents: Path, chunks: Path) -> TaskResult:
    """Write the shingles of every chunk of a shard.

    They are `{out}.shingles.npy`, uint64, and `{out}.offsets.npy`, (chunks + 1,).
    """
    sizes = [np.zeros(1, np.int64)]
    with open(f"{out}.shingles.npy", "wb") as sink:
        corpus_files.write_header(sink, np.dtype(np.uint64), 0)
        for batch in iter_chunk_texts(documents, chunks):
            batch_shingles = shingles(batch.texts)
            sink.write(batch_shingles.hashes.data)
            sizes.append(np.diff(batch_shingles.offsets))
        offsets = np.cumsum(np.concatenate(sizes))
        sink.seek(0)
        corpus_files.write_header(sink, np.dtype(np.uint64), int(offsets[-1]))
    np.save(f"{out}.offsets.npy", offsets)
    return TaskResult()


class ShingleStore:
    """The shingles of every chunk, memory-mapped.

    One file of each kind per shard, in shard order.
    """

    def __init__(self, *, hashes: Sequence[Path], offsets: Sequence[Path]) -> None:
        self._hashes = hashes
        self._offsets = offsets
        self._open: dict[int, tuple[Hashes, _Offsets]] = {}

    def of(self, chunk_ids: Ints) -> Shingles:
        """Return the shingles of chunks (m,), in their order."""
        order = np.argsort(chunk_ids)
        shards = schemas.shard_of(chunk_ids)[order]
        rows = schemas.row_of(chunk_ids)[order]
        firsts = np.flatnonzero(np.diff(shards, prepend=-1)).tolist()
        pieces = [np.empty(0, np.uint64)] * len(order)
        for first, last in pairwise([*firsts, len(order)]):
            hashes, offsets = self.shard(int(shards[first]))
            shard_rows = rows[first:last]
            starts = offsets[shard_rows].tolist()
            ends = offsets[shard_rows + 1].tolist()
            numbers = order[first:last].tolist()
            for number, start, end in zip(numbers, starts, ends, strict=True):
                # A copy, because a view would keep the file of its shard open.
                pieces[number] = hashes[start:end].copy()
        sizes = [len(piece) for piece in pieces]
        hashes = np.concatenate([np.empty(0, np.uint64), *pieces])
        return Shingles(hashes, np.cumsum([0, *sizes]))

    def shard(self, number: int) -> tuple[Hashes, _Offsets]:
        """Return the hashes and offsets of a shard.

        They stay mapped for later calls.
        """
        if number not in self._open:
            if len(self._open) >= sequence_files.SHARDS_KEPT:
                self._open.clear()
            hashes = opened(self._hashes[number])
            self._open[number] = hashes, opened(self._offsets[number])
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
    """Weigh shingles by how many documents have them in one of their chunks.

    A `share` of the documents is counted, sampled by content `hashes`. Writes
    `{out}.weights.npy`, uint16 (2^22,), and `{out}.counted.npy`, the ids of the sampled
    documents.
    """
    counts = np.zeros(_SLOTS, np.uint32)
    counted = [np.empty(0, np.int64)]
    for shard, (chunk_path, hash_path) in enumerate(zip(chunks, hashes, strict=True)):
        # (d,) the documents of the shard: their rows, and the range of their chunks.
        doc_rows = read_chunks(chunk_path)["doc_row"]
        firsts = np.flatnonzero(np.diff(doc_rows, prepend=-1))
        lasts = np.append(firsts[1:], len(doc_rows))
        content_hashes = np.load(hash_path)[doc_rows[firsts]]
        keys = keyed_hash(content_hashes, seed=seed, stage="shingles")
        is_sampled = keys <= threshold_for(share)
        first_chunks = firsts[is_sampled]
        last_chunks = lasts[is_sampled]
        sampled_rows = doc_rows[first_chunks].astype(np.int64)
        counted.append(schemas.pack_ids(shard, sampled_rows))
        if not len(first_chunks):
            continue
        runs, offsets = store.shard(shard)
        run_counts = offsets[last_chunks] - offsets[first_chunks]
        for first, last in runs_within(run_counts, _COUNTED_AT_ONCE):
            part = slice(first, last)
            bounds = np.stack([first_chunks[part], last_chunks[part]], axis=1)
            add_counts(counts, _runs_of_documents(runs, offsets, bounds))
    sampled = sum(len(documents) for documents in counted)
    np.save(f"{out}.weights.npy", weights_from(counts, sampled))
    np.save(f"{out}.counted.npy", np.concatenate(counted))
    return TaskResult()


def _runs_of_documents(runs: Hashes, offsets: _Offsets, bounds: _Offsets) -> Shingles:
    """Return the runs in the chunks of each document, without numbers of short chunks.

    `bounds`, (d, 2), are the ranges [first, last) of chunks of the documents.
    """
    sizes = np.diff(offsets)
    pieces = []
    for first, last in bounds.tolist():
        piece = runs[offsets[first] : offsets[last]]
        piece_sizes = sizes[first:last]
        is_short = piece_sizes == 1
        if is_short.any():
            piece = piece[np.repeat(~is_short, piece_sizes)]
        pieces.append(piece)
    counts = [len(piece) for piece in pieces]
    picked_offsets = np.cumsum([0, *counts])
    return Shingles(np.concatenate(pieces), picked_offsets)


def add_counts(counts: UInt32s, shingles: Shingles) -> None:
    """Add 1 to the slot of each distinct shingle of each text, in place.

    `counts`, (2^k,), has the slots.
    """
    # One key for each shingle: its text, then its slot. Equal keys are counted once.
    sizes = np.diff(shingles.offsets)
    texts = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    slots = shingles.hashes & np.uint64(len(counts) - 1)
    keys = np.sort(texts << np.uint64(32) | slots)
    is_first = np.diff(keys, prepend=~keys[:1])
    distinct = keys[np.flatnonzero(is_first)]
    distinct_slots = (distinct & np.uint64(0xFFFFFFFF)).astype(np.int64)
    np.add.at(counts, distinct_slots, np.uint32(1))


def weights_from(counts: UInt32s, sampled: int) -> Weights:
    """Return the weights by slot, (2^k,) in 1 … 1024.

    `counts` of `sampled` documents have a shingle of the slot.
    """
    # 1024 · limit / count, rounded down; limit is 16 documents or a thousandth of them,
    # here in thousandths of a document.
    limit = max(_MIN_COMMON * _COMMON_SHARE, sampled)
    weights = np.full(len(counts), _FULL_WEIGHT, np.uint16)
    common = np.flatnonzero(counts > limit // _COMMON_SHARE)
    thousandths = _COMMON_SHARE * counts[common].astype(np.int64)
    weights[common] = np.maximum(_FULL_WEIGHT * limit // thousandths, 1)
    return weights


class ShinglesFiles(StepFiles):
    """The SHINGLES of every shard, and where those of each chunk begin."""

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
    return Step(
        name="shingles",
        phase="search",
        version=3,
        config={},
        inputs=(ingest, chunk),
        tasks=tasks,
    )


def weights_step(ingest: Step, chunk: Step, shingles: Step, *, seed: int) -> Step:
    """Return the step that weighs SHINGLES by the documents that have them.

    It counts a sample of the documents.
    """

    def tasks(done: Artifacts) -> list[Task]:
        chunked = chunks_of(done)
        chars = sum(shard.chars for shard in chunked.results(ChunkResult))
        weigh = partial(
            weigh_shingles,
            store=shingle_store(done),
            chunks=chunk_files(done).chunks,
            hashes=IngestFiles.of(done).hashes,
            share=min(1.0, SAMPLED_CHARS / max(1, chars)),
            seed=seed,
        )
        return [weigh]

    return Step(
        name="weights",
        phase="search",
        version=3,
        config={"sampled_chars": SAMPLED_CHARS, "seed": seed},
        inputs=(ingest, chunk, shingles),
        tasks=tasks,
    )


def shingle_store(done: Artifacts) -> ShingleStore:
    """Return the shingles of every chunk."""
    files = ShinglesFiles.of(done)
    return ShingleStore(hashes=files.shingles, offsets=files.offsets)
