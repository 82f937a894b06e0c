"""Index: what a list shows, sorts by and searches, for each sequence of a variant.

In:  SEQUENCES, CHUNKS and DOCUMENTS of a run. Out: three files, made on first use:

    sequences.arrow   the values of each sequence that a list can be sorted by
    chunks.arrow      for each chunk of the data, the sequences that contain it
    words.arrow       for each word of these chunks, the chunks that contain it

They are made in steps, so that a page can show the progress, and each appears under its
name only when it is complete. Viewers that make the same file at the same time write
the same content under names of their own, and the last one replaces it.

They are kept in `RUN/search-index`, which `nextlong gc` deletes. If that cannot be
written to, they are in a temporary folder for as long as the viewer runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from weakref import finalize

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Bools, Doubles, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import ComposeFiles
from nextlong.engine import store
from nextlong.runs.run import Run
from nextlong.runs.statistics import spans
from nextlong.runs.variants import SEARCH_INDEX
from nextlong.view import documents, words

# What a list can be sorted by, besides the sequence number.
SORTS: Final = ("cosine", "chunks", "documents", "share")

# Rises when the content of a file changes, so that old ones are not read.
_VERSION: Final = 2
_SEQUENCES_FILE: Final = "sequences.arrow"
_CHUNKS_FILE: Final = "chunks.arrow"
_WORDS_FILE: Final = "words.arrow"
# One row per sequence: SORTS, the doc_id of its meta-document or first document, and
# the chunk_id of the first chunk of that document.
_SEQUENCES: Final = pa.schema(
    [(name, pa.float64()) for name in SORTS]
    + [("lead", pa.int64()), ("first_chunk", pa.int64())]
)
# One row per chunk of the data, ascending.
_CHUNKS: Final = pa.schema(
    [("chunk_id", pa.int64()), ("sequences", pa.large_list(pa.int32()))]
)
# Texts of tasks are found, too, but are of no document that a list counts.
_SEARCHED_ROLES: Final = (*spans.CHUNK_ROLES, schemas.TASK)
_BLOCK_TOKENS: Final = 1 << 19  # of sequences that are read at a time: 5 to 20 ms
_SEQUENCE_BITS: Final = 32
_FEW: Final = 0.1  # of the chunks, whose sequences are looked up one by one
_ABANDONED_SECONDS: Final = 3600  # without a change of an unfinished file


class Progress(NamedTuple):
    """How far a first use is: `done` of `total`, and what these are."""

    what: str
    done: int
    total: int


class _Stretch(NamedTuple):
    """Consecutive sequences of a file, which are read together."""

    path: Path
    first: int  # within the file
    size: int
    number: int  # of the first one, within the run


class RunIndex:
    """The index of one variant, read from its files or made.

    `values` has a row for each of SORTS and a column for each sequence; `leads` and
    `first_chunks` have an element for each. They hold what was read of the sequences
    until `read_sequences` is complete.
    """

    def __init__(self, run: Run) -> None:
        total = len(run)
        self._run = run
        self._blocks = _stretches(run)
        self._starts = np.array([block.number for block in self._blocks], np.int64)
        self._is_read = np.zeros(len(self._blocks), np.bool_)
        # Uninitialised arrays take memory only where something was written.
        self.values = np.empty((len(SORTS), total), np.float64)
        self.leads = np.empty(total, np.int64)
        self.first_chunks = np.empty(total, np.int64)

        # Variants of the same composed sequences may take different numbers of them.
        fingerprint = run.variant.steps["compose"].rpartition("-")[2]
        name = f"{fingerprint}-{total}-{_VERSION}"
        self._folder = run.path / SEARCH_INDEX / name
        self.is_temporary = False  # whether its files last only as long as the viewer
        self._making: Iterator[Progress] | None = None
        self._chunks: pa.RecordBatch | None = None
        self._words: list[pa.RecordBatch] | None = None

    def know(self, number: int) -> None:
        """Read a sequence, and those that are read with it.

        `values`, `leads` and `first_chunks` hold it from then on.
        """
        if self._chunks is None:
            index = int(np.searchsorted(self._starts, number, side="right")) - 1
            if not self._is_read[index]:
                for _ in self._read(index):
                    pass

    def read_sequences(self, until: float) -> Progress | None:
        """Read sequences until a time of the monotonic clock, or until all are read.

        Return None if all are read.
        """
        if self._chunks is None and not self._open_sequences():
            progress = self._advance(self._make_sequences, until)
            if progress is not None:
                return progress
            self._open_sequences()
        return None

    def read_words(self, until: float) -> Progress | None:
        """Index the words of chunks until a time of the monotonic clock, or of all.

        Return None if all are indexed.
        """
        progress = self.read_sequences(until)
        if progress is not None:
            return progress
        if self._words is None and not self._open_words():
            progress = self._advance(self._make_words, until)
            if progress is not None:
                return progress
            self._open_words()
        return None

    @property
    def chunk_ids(self) -> Ints:
        """The chunks of the data, ascending, shape (C,); all sequences must be read."""
        chunk_ids: Ints = self._chunk_column("chunk_id").to_numpy()
        return chunk_ids

    def may_contain(self, text: str) -> tuple[Bools, bool]:
        """Return which chunks can contain all terms of a text, shape (C,).

        With it comes whether these do contain them, without a look at their texts. All
        words must be indexed.
        """
        assert self._words is not None
        terms = documents.parse(text)
        contains = np.ones((len(self._words), words.MAX_TEXTS), np.bool_)
        for own, batch in zip(contains, self._words, strict=True):
            for term in terms:
                own &= words.may_contain(batch, term)
        is_exact = all(map(words.is_word, terms))
        return contains.ravel()[: len(self.chunk_ids)], is_exact

    def of_document(self, doc_id: int) -> Bools:
        """Return which chunks are of a document, shape (C,)."""
        chunk_ids = self.chunk_ids
        is_of_document = np.zeros(len(chunk_ids), np.bool_)
        shard = doc_id >> schemas.SHARD_BITS
        if 0 <= shard < len(self._run.corpus.chunks):
            rows = corpus_files.chunk_rows(self._run.corpus.chunks[shard], doc_id)
            bounds = schemas.pack_ids(shard, np.array([rows.start, rows.stop]))
            first, last = np.searchsorted(chunk_ids, bounds).tolist()
            is_of_document[first:last] = True
        return is_of_document

    def containing(self, is_chosen: Bools) -> Bools:
        """Return which sequences contain one of the chosen chunks (C,), in any role."""
        # The lists of all chunks, one after the other, and where each begins.
        lists = self._chunk_column("sequences")
        listed = lists.values.to_numpy()
        offsets = lists.offsets.to_numpy()
        sizes = np.diff(offsets)
        if np.mean(is_chosen) < _FEW:
            places = corpus_files.ranges(offsets[:-1][is_chosen], sizes[is_chosen])
            chosen = listed[places]
        else:
            # With 37 million spans and most chunks, a third of the time.
            chosen = listed[np.repeat(is_chosen, sizes)]
        contains = np.zeros(len(self._run), np.bool_)
        contains[chosen] = True
        return contains

    def chunks_of(self, number: int) -> Ints:
        """Return the chunks of a sequence in their order."""
        index = int(np.searchsorted(self._starts, number, side="right")) - 1
        block = self._blocks[index]
        first = block.first + number - block.number
        parts = spans.read_blocks(block.path, first + 1, self._run.corpus, first=first)
        return np.concatenate([part.of(*_SEARCHED_ROLES).chunk_ids for part in parts])

    def _chunk_column(self, name: str) -> pa.Array:
        assert self._chunks is not None
        return self._chunks.column(name)

    def _advance(
        self, make: Callable[[], Iterator[Progress]], until: float
    ) -> Progress | None:
        """Continue to make files until a time; return None if they are complete."""
        if self._making is None:
            self._making = make()
        try:
            for progress in self._making:
                if time.monotonic() > until:
                    return progress
        except BaseException:
            # The next request begins again.
            self._making = None
            raise
        self._making = None
        return None

    def _make_sequences(self) -> Iterator[Progress]:
        """Write CHUNKS and SEQUENCES of the index."""
        self._prepare()
        with store.explained(self._folder):
            # One key for each span, by chunk, then sequence, in a file without a name:
            # a million sequences of 131,072 tokens have 300 million spans.
            with tempfile.TemporaryFile(dir=self._folder) as file:
                for index, block in enumerate(self._blocks):
                    for keys in self._read(index):
                        file.write(keys.tobytes())
                    read = block.number + block.size
                    yield Progress("sequences read", read, len(self._run))
                keys = np.empty(0, np.int64)
                if file.tell():
                    keys = np.memmap(file, np.int64, mode="r+")
                keys.sort()
                chunks = self._chunks_of_keys(keys[np.diff(keys, prepend=-1) > 0])
            columns = [*self.values, self.leads, self.first_chunks]
            sequences = pa.record_batch(list(map(pa.array, columns)), schema=_SEQUENCES)
            for name, batch in ((_CHUNKS_FILE, chunks), (_SEQUENCES_FILE, sequences)):
                with self._writer(name, batch.schema) as writer:
                    writer.write_batch(batch)

    def _make_words(self) -> Iterator[Progress]:
        """Write WORDS of the index."""
        self._prepare()
        ids = self.chunk_ids
        with (
            store.explained(self._folder),
            self._writer(_WORDS_FILE, words.WORDS) as writer,
        ):
            for first in range(0, len(ids), words.MAX_TEXTS):
                yield Progress("chunks indexed", first, len(ids))
                part = ids[first : first + words.MAX_TEXTS]
                texts = self._run.corpus.texts(part)
                writer.write_batch(words.index_words(texts.tolist()))

    def _read(self, index: int) -> Iterator[Ints]:
        """Fill in what is kept of the sequences of a block.

        Yield the keys of its spans, shape (S,).
        """
        block = self._blocks[index]
        first = block.number
        parts = spans.read_blocks(
            block.path,
            block.first + block.size,
            self._run.corpus,
            first=block.first,
        )
        for part in parts:
            count = int(part.sequence[-1]) + 1
            self._keep(part, slice(first, first + count))
            chunks = part.of(*_SEARCHED_ROLES)
            places = self._chunk_starts[schemas.shard_of(chunks.chunk_ids)]
            places += schemas.row_of(chunks.chunk_ids)
            yield places << _SEQUENCE_BITS | (first + chunks.sequence)
            first += count
        self._is_read[index] = True

    def _keep(self, part: spans.Block, rows: slice) -> None:
        """Fill in `values`, `leads` and `first_chunks` of some sequences."""
        count = rows.stop - rows.start
        chunks = part.of(*spans.CHUNK_ROLES)
        leads, first_chunks = _leads(part, count)
        self.leads[rows] = leads
        self.first_chunks[rows] = first_chunks

        # (count,): the tokens of the document that each sequence is about.
        is_own = chunks.doc_ids == leads[chunks.sequence]
        own_tokens = np.bincount(
            chunks.sequence[is_own],
            weights=chunks.lengths[is_own],
            minlength=count,
        )
        # (P,): a number for each document of each sequence; the sequence is in the
        # upper half.
        _, documents_of_chunks = np.unique(chunks.doc_ids, return_inverse=True)
        pairs = np.sort(chunks.sequence << _SEQUENCE_BITS | documents_of_chunks)
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        # In the order of SORTS.
        self.values[:, rows] = (
            _mean_cosines(part, count),
            np.bincount(chunks.sequence, minlength=count),
            np.bincount(pairs >> _SEQUENCE_BITS, minlength=count),
            own_tokens / self._run.recipe.sequence_tokens,
        )

    @cached_property
    def _chunk_starts(self) -> Ints:
        """The chunks of the corpus before each shard, shape (shards,)."""
        counts = list(map(corpus_files.count_chunks, self._run.corpus.chunks))
        return np.cumsum([0, *counts[:-1]])

    def _chunks_of_keys(self, keys: Ints) -> pa.RecordBatch:
        """Return CHUNKS of the index from the sorted, distinct keys of spans."""
        places = keys >> _SEQUENCE_BITS
        firsts = np.flatnonzero(np.diff(places, prepend=-1))
        starts = self._chunk_starts
        shards = np.searchsorted(starts, places[firsts], side="right") - 1
        chunk_ids = schemas.pack_ids(shards, places[firsts] - starts[shards])
        sequences = (keys & ((1 << _SEQUENCE_BITS) - 1)).astype(np.int32)
        lists = pa.LargeListArray.from_arrays(
            np.append(firsts, len(keys)), pa.array(sequences)
        )
        return pa.record_batch([pa.array(chunk_ids), lists], schema=_CHUNKS)

    def _prepare(self) -> None:
        """Make the folder, or a temporary one if it cannot be written to."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError:
            self.is_temporary = True
            self._folder = Path(tempfile.mkdtemp(prefix="nextlong-view-"))
            # When the index is deleted, and at the latest when the viewer ends.
            finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # A killed viewer leaves its unfinished file; one that works writes to it.
        for path in self._folder.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    @contextmanager
    def _writer(
        self, name: str, schema: pa.Schema
    ) -> Iterator[pa.ipc.RecordBatchFileWriter]:
        """Write a file, which gets its name when it is complete and on the disk."""
        temporary = self._folder / f".{name}.{os.getpid()}.tmp"
        try:
            with (
                pa.OSFile(str(temporary), "wb") as sink,
                pa.ipc.new_file(sink, schema) as writer,
            ):
                yield writer
            store.sync(temporary)
            temporary.replace(self._folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        store.sync(self._folder)

    def _open_sequences(self) -> bool:
        """Open the files of sequences and chunks; return whether they exist."""
        sequences = self._batches(_SEQUENCES_FILE)
        chunks = self._batches(_CHUNKS_FILE)
        if not sequences or not chunks:
            return False
        for row, name in enumerate(SORTS):
            self.values[row] = sequences[0].column(name).to_numpy()
        self.leads[:] = sequences[0].column("lead").to_numpy()
        self.first_chunks[:] = sequences[0].column("first_chunk").to_numpy()
        self._chunks = chunks[0]
        return True

    def _open_words(self) -> bool:
        """Open the file of words; return whether it exists."""
        self._words = self._batches(_WORDS_FILE)
        return self._words is not None

    def _batches(self, name: str) -> list[pa.RecordBatch] | None:
        """Return the batches of a file, from a memory map.

        None if it does not exist, or is damaged.
        """
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(self._folder / name)))
            numbers = range(reader.num_record_batches)
            return [reader.get_batch(number) for number in numbers]
        except (OSError, pa.ArrowInvalid):
            return None


def _stretches(run: Run) -> list[_Stretch]:
    """Return the sequences of a run in blocks of about as many tokens."""
    size = max(1, _BLOCK_TOKENS // run.recipe.sequence_tokens)
    stretches = []
    number = 0
    paths = ComposeFiles.of(run.steps).sequences
    for path, take in zip(paths, run.sequences_per_part, strict=True):
        for first in range(0, take, size):
            stretches.append(
                _Stretch(
                    path=path,
                    first=first,
                    size=min(size, take - first),
                    number=number + first,
                )
            )
        number += take
    return stretches


def _leads(part: spans.Block, count: int) -> tuple[Ints, Ints]:
    """Return the document that each sequence is about, and its first chunk there.

    It is the meta-document or first document, else the document of its first chunk.
    """
    leads = np.full(count, schemas.NO_CHUNK, np.int64)
    first_chunks = np.full(count, schemas.NO_CHUNK, np.int64)
    # What it is about comes second, and overwrites what the first chunk said.
    for roles in (spans.CHUNK_ROLES, spans.ABOUT_ROLES):
        of_roles = part.of(*roles)
        rows, firsts = np.unique(of_roles.sequence, return_index=True)
        leads[rows] = of_roles.doc_ids[firsts]
        first_chunks[rows] = of_roles.chunk_ids[firsts]
    return leads, first_chunks


def _mean_cosines(part: spans.Block, count: int) -> Doubles:
    """Return the mean cosine of each sequence; NaN where nothing has a cosine."""
    # Meta-chunks have none.
    others = part.of(schemas.NEGATIVE, schemas.DOCUMENT, schemas.CONTEXT)
    is_scored = np.isfinite(others.scores)
    rows = others.sequence[is_scored]
    sums = np.bincount(rows, weights=others.scores[is_scored], minlength=count)
    with np.errstate(invalid="ignore"):
        cosines: Doubles = sums / np.bincount(rows, minlength=count)
    return cosines
