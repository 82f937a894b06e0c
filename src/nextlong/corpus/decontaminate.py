"""Decontaminate: which chunks share a run of n words with evaluation texts.

In:  the runs to look for (`evaluation_texts.py`), and the documents and chunks of one shard.
Out: one bool a chunk, and how many chunks each file met.

Words are lower-cased runs of letters and digits, so punctuation and layout hide nothing. Runs are sought in whole documents and
then mapped to the chunks they lie in: one that a chunk border divides marks both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.chunks import read_chunks
from nextlong.corpus.evaluation_texts import HEAD_WORDS, EvaluationGrams
from nextlong.results import ChunkResult, ContaminatedResult
from nextlong.similarity.words import Words, hash_words, ngrams

_EXAMPLE_CHARS: Final = 200


def contaminated_shard(
    out: Path, *, documents: Path, chunks: Path, heads: Path, grams: Path, files: Sequence[str]
) -> ContaminatedResult:
    """Write `{out}.contaminated.npy`, one bool a chunk row of the shard; return how many chunks each file met.

    `heads` and `grams` are what `evaluation_grams` wrote for `files`. `example` shows the first match.
    """
    wanted = _Wanted.of(EvaluationGrams(np.load(heads), np.load(grams)))
    table = read_chunks(chunks)
    met = np.zeros((len(files), len(table["doc_row"])), np.bool_)
    example, example_doc_row, first_doc = "", -1, 0
    with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            low, high = np.searchsorted(table["doc_row"], [first_doc, first_doc + batch.num_rows])
            if low < high:
                rows, text_of_chunk = np.unique(table["doc_row"][low:high] - first_doc, return_inverse=True)
                texts = batch.column("text").take(pa.array(rows)).to_pylist()
                text = "\n".join(texts)
                text_starts = np.cumsum([0, *(len(piece) + 1 for piece in texts)])
                firsts, lasts, of_file = _matches(hash_words(text), text_starts, wanted)
                starts = text_starts[text_of_chunk] + table["start"][low:high]
                met[:, low:high] = _chunks_met(firsts, lasts, of_file, starts, len(files))
                if len(firsts) and not example:
                    example = f"{files[of_file[0]]}: {text[firsts[0] : lasts[0]][:_EXAMPLE_CHARS]}"
                    example_doc_row = first_doc + int(rows[np.searchsorted(text_starts, firsts[0], side="right") - 1])
            first_doc += batch.num_rows
    contaminated: NDArray[np.bool_] = np.logical_or.reduce(met, axis=0)
    np.save(f"{out}.contaminated.npy", contaminated)
    return ContaminatedResult(
        chunks=len(contaminated),
        contaminated=int(contaminated.sum()),
        files=dict(zip(files, met.sum(axis=1).tolist(), strict=True)),
        example=example,
        example_doc_row=example_doc_row,
    )


def clean_shard(out: Path, *, chunks: Path, contaminated: Path) -> ChunkResult:
    """Write `{out}.chunks.arrow`: the CHUNKS of a shard without the contaminated rows."""
    wanted = ~np.load(contaminated)
    table = read_chunks(chunks)
    kept = {name: np.ascontiguousarray(column[wanted]) for name, column in table.items()}
    batch = pa.record_batch([pa.array(kept[name]) for name in schemas.CHUNKS.names], schema=schemas.CHUNKS)
    with pa.OSFile(f"{out}.chunks.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.CHUNKS) as writer:
        writer.write_batch(batch)
    sizes = kept["end"] - kept["start"]
    return ChunkResult(
        documents=len(np.unique(kept["doc_row"])),
        chunks=batch.num_rows,
        chars=int(sizes.sum()),
        longest_chunk_chars=int(sizes.max(initial=0)),
    )


class _Hashes(NamedTuple):
    """Hashes to look up: a Bloom filter of two bits (64 MB at most) spares nearly all others the search."""

    ascending: NDArray[np.uint64]
    bloom: NDArray[np.bool_]

    @classmethod
    def of(cls, ascending: NDArray[np.uint64]) -> _Hashes:
        bits = min(max((8 * len(ascending)).bit_length(), 12), 26)
        bloom = np.zeros(1 << bits, np.bool_)
        for slots in _slots(ascending, bloom):
            bloom[slots] = True
        return cls(ascending, bloom)

    def places_in(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of the hashes that are among these, ascending."""
        low, _ = _slots(hashes, self.bloom)
        at: NDArray[np.int64] = np.flatnonzero(self.bloom[low])
        _, high = _slots(hashes[at], self.bloom)
        at = at[self.bloom[high]]
        return at[_find(self.ascending, hashes[at]) >= 0]


def _slots(hashes: NDArray[np.uint64], bloom: NDArray[np.bool_]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    mask = np.uint64(len(bloom) - 1)
    return hashes & mask, hashes >> np.uint64(32) & mask


class _Wanted(NamedTuple):
    """EvaluationGrams, laid out for looking up."""

    heads: dict[int, _Hashes]  # by their words
    hashes: NDArray[np.uint64]
    files: NDArray[np.uint16]
    lengths: list[int]  # of the runs, in words

    @classmethod
    def of(cls, evaluation: EvaluationGrams) -> _Wanted:
        words = evaluation.heads["words"]
        heads = {size: _Hashes.of(evaluation.heads["hash"][words == size]) for size in np.unique(words).tolist()}
        hashes, files = (np.ascontiguousarray(evaluation.grams[name]) for name in ("hash", "file"))
        return cls(heads, hashes, files, np.unique(evaluation.grams["words"]).tolist())


def _matches(
    words: Words, text_starts: NDArray[np.int64], wanted: _Wanted
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16]]:
    """Return first and last character and file of every run found, in order of place; none reaches into the next text."""
    columns = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))]
    places = {size: heads.places_in(ngrams(words.hashes, size)) for size, heads in wanted.heads.items()}
    for length in wanted.lengths:
        at = places[min(length, HEAD_WORDS)]
        at = at[at + length <= len(words.hashes)]
        text_ends = text_starts[np.searchsorted(text_starts, words.starts[at], side="right")]
        at = at[words.ends[at + length - 1] <= text_ends]
        rows = _find(wanted.hashes, _grams_at(words.hashes, at, length))
        at, rows = at[rows >= 0], rows[rows >= 0]
        while len(at):  # a run may stand in several files: its rows follow each other
            columns.append((words.starts[at], words.ends[at + length - 1], wanted.files[rows]))
            more = rows + 1 < len(wanted.hashes)
            at, rows = at[more], rows[more] + 1
            same = wanted.hashes[rows] == wanted.hashes[rows - 1]
            at, rows = at[same], rows[same]
    firsts, lasts, of_file = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((of_file, lasts, firsts))
    return firsts[order], lasts[order], of_file[order]


def _find(ascending: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the first row that holds each value, shape (n,); −1 where none does."""
    rows = np.searchsorted(ascending, values)
    held: NDArray[np.bool_] = np.less(rows, len(ascending))
    held[held] = ascending[rows[held]] == values[held]
    return np.where(held, rows, -1)


def _grams_at(word_hashes: NDArray[np.uint64], places: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    if not len(places):
        return np.empty(0, np.uint64)
    runs = word_hashes[places[:, None] + np.arange(length)].ravel()
    return ngrams(runs, length)[::length]


def _chunks_met(
    firsts: NDArray[np.int64],
    lasts: NDArray[np.int64],
    of_file: NDArray[np.uint16],
    chunk_starts: NDArray[np.int64],
    files: int,
) -> NDArray[np.bool_]:
    """Return which chunks each file's runs lie in, shape (files, chunks)."""
    changes = np.zeros((files, len(chunk_starts) + 1), np.int64)
    np.add.at(changes, (of_file, np.searchsorted(chunk_starts, firsts, side="right") - 1), 1)
    np.add.at(changes, (of_file, np.searchsorted(chunk_starts, lasts - 1, side="right")), -1)
    met: NDArray[np.bool_] = np.cumsum(changes, axis=1)[:, :-1] > 0
    return met
