"""Sequences: those of a run that match a query, sorted, with counts and histograms.

Out: a page of sequence numbers, how many match, and how much of the run was read for
it. A request reads blocks of sequences until its time is up; the next one continues. 48
bytes are kept for each sequence that was read, and one for each kept query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import ComposeFiles
from nextlong.runs.run import Run
from nextlong.runs.statistics import spans
from nextlong.view import documents
from nextlong.view.documents import EVERY, Query

_BLOCK_TOKENS: Final = 1 << 19  # of sequences that are read at a time: 5 to 20 ms
_KEPT_QUERIES: Final = 8  # whose matches are kept
_KNOWN_CHUNKS: Final = 1_000_000  # whose text a query has looked at
_BINS: Final = 14  # of a histogram …
_COUNTED: Final = 100_000  # … over at most this many matches
# What a list can be sorted by, besides the sequence number.
SORTS: Final = ("cosine", "chunks", "documents", "share")


class Histogram(NamedTuple):
    """Counts between equidistant edges, from `least` to `most`."""

    least: float
    most: float
    counts: list[int]


class Found(NamedTuple):
    """A page of the sequences that match.

    Their numbers, all matches so far, and how many sequences of the run were read.
    """

    numbers: list[int]
    matches: int
    read: int
    is_complete: bool


@dataclass
class _Matches:
    """The matches of a query in the first `blocks` of a run.

    `chunk_of` names, for a sequence, a chunk with the text that was searched for.
    """

    query: Query
    fits: NDArray[np.bool_]  # of each sequence of the run
    blocks: int = 0
    chunk_of: dict[int, int] = field(default_factory=dict)
    known_chunks: dict[int, bool] = field(default_factory=dict)


class _Stretch(NamedTuple):
    """Consecutive sequences of a file, which are read together."""

    path: Path
    first: int  # within the file
    size: int
    number: int  # of the first one, within the run


class SequenceIndex:
    """The sequences of one run.

    `values` has a row for each of SORTS and a column for each sequence that was read;
    `leads` is the doc_id of its meta-document or first document, and `first_chunks` the
    chunk_id of the first chunk of that document.
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
        # The matches of the last few queries.
        self._matches = lru_cache(maxsize=_KEPT_QUERIES)(
            lambda query: _Matches(query, np.zeros(total, np.bool_))
        )

    def find(
        self,
        query: Query,
        *,
        sort: str = "",
        first: int = 0,
        limit: int = 25,
        seconds: float = 60.0,
    ) -> Found:
        """Return a page of the sequences that match `query`.

        It reads for about `seconds`. `sort` is one of SORTS, with a "-" in front for
        descending order, or "random-SEED" for a random sample; "" is by number.
        """
        read = len(self._run)
        numbers = np.arange(read)
        column = sort.removeprefix("-")
        # A plain list reads nothing.
        if query != EVERY or column in SORTS:
            matches = self._matches(query)
            until = time.monotonic() + seconds
            while matches.blocks < len(self._blocks):
                self._extend(matches)
                if time.monotonic() > until:
                    break
            numbers, read = self._found(matches)

        if column in SORTS:
            keys = self.values[SORTS.index(column)][numbers]
            if sort.startswith("-"):
                keys = -keys
            indexes = _smallest(keys, first + limit)[first:]
        elif column:
            seed = int(column.removeprefix("random-"))
            rng = np.random.default_rng(seed)
            count = min(limit, len(numbers))
            indexes = rng.choice(len(numbers), count, replace=False)
        else:
            last = min(first + limit, len(numbers))
            indexes = np.arange(first, last)
        return Found(
            numbers=numbers[indexes].tolist(),
            matches=len(numbers),
            read=read,
            is_complete=read == len(self._run),
        )

    def chunk_with_text(self, query: Query, number: int) -> int:
        """Return the chunk of a found sequence that contains the text of the query.

        Else its first one.
        """
        first_chunk = int(self.first_chunks[number])
        return self._matches(query).chunk_of.get(number, first_chunk)

    def know(self, number: int) -> None:
        """Read a sequence, and those that are read with it.

        `values`, `leads` and `first_chunks` hold it from then on.
        """
        block = int(np.searchsorted(self._starts, number, side="right")) - 1
        self._know(block)

    def histograms(self, query: Query) -> tuple[dict[str, Histogram], int]:
        """Return a histogram of each of SORTS over the matches that `find` has read.

        With it comes how many these are (at most 100,000).
        """
        found, _ = self._found(self._matches(query))
        numbers = found[:_COUNTED]
        # NaN is the cosine of a sequence without negatives, and in no bin.
        histograms = {}
        for name, row in zip(SORTS, self.values, strict=True):
            column = row[numbers]
            known = column[np.isfinite(column)]
            if not len(known):
                continue
            counts, edges = np.histogram(known, bins=_BINS)
            least, most = float(edges[0]), float(edges[-1])
            histograms[name] = Histogram(least, most, counts.tolist())
        return histograms, len(numbers)

    def _found(self, matches: _Matches) -> tuple[NDArray[np.int64], int]:
        """Return the numbers of all matches, and how many sequences were read."""
        read = len(self._run)
        if matches.blocks < len(self._blocks):
            read = self._blocks[matches.blocks].number
        return np.flatnonzero(matches.fits[:read]), read

    def _extend(self, matches: _Matches) -> None:
        """Read one more block of sequences."""
        query = matches.query
        block = self._blocks[matches.blocks]
        whole = slice(block.number, block.number + block.size)
        self._know(matches.blocks)
        # Whether each sequence of the block fits so far, by its row there; what has to
        # be read from files comes last.
        fits = self._fit_by_lead(query, block)
        if query.document is not None and fits.any():
            fits &= self._holds(matches.blocks, query.document, spans.CHUNK_ROLES)
        if query.about is not None and fits.any():
            fits &= self._holds(matches.blocks, query.about, spans.ABOUT_ROLES)
        if query.text and fits.any():
            chunk_of = self._chunks_with_text(matches)
            rows = np.arange(block.size)
            fits &= np.isin(rows, list(chunk_of))
            for row, chunk in chunk_of.items():
                if fits[row]:
                    matches.chunk_of[block.number + row] = chunk
        matches.fits[whole] = fits
        matches.blocks += 1

    def _fit_by_lead(self, query: Query, block: _Stretch) -> NDArray[np.bool_]:
        """Return which sequences of a block fit by what is kept, and by their lead."""
        fits = np.ones(block.size, np.bool_)
        whole = slice(block.number, block.number + block.size)
        cosine = self.values[SORTS.index("cosine"), whole]
        if query.least is not None:
            fits &= cosine >= query.least
        if query.most is not None:
            fits &= cosine <= query.most
        if query.source and fits.any():
            sources = self._names(block, fits, "source")
            fits[fits] = [source == query.source for source in sources]
        if query.name and fits.any():
            part = query.name.casefold()
            names = self._names(block, fits, "source_id")
            fits[fits] = [part in name.casefold() for name in names]
        return fits

    def _names(
        self, block: _Stretch, fits: NDArray[np.bool_], column: str
    ) -> list[str]:
        """Return a column of the leads of the sequences of a block that fit so far."""
        leads = self.leads[block.number : block.number + block.size][fits]
        (names,) = corpus_files.document_columns(
            leads, self._run.corpus.documents, (column,)
        )
        return list(map(str, names))

    def _holds(
        self, index: int, doc_id: int, roles: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Return whether each sequence of a block has a chunk of a document."""
        holds = np.zeros(self._blocks[index].size, np.bool_)
        for first, part in self._read(index):
            of_roles = part.of(*roles)
            rows = of_roles.sequence[of_roles.doc_ids == doc_id]
            holds[first + rows] = True
        return holds

    def _chunks_with_text(self, matches: _Matches) -> dict[int, int]:
        """Return a chunk with the text of the query for each row of the next block.

        Only rows that have one are in it.
        """
        # A chunk may be in many sequences, so its text is searched once.
        known = matches.known_chunks
        if len(known) > _KNOWN_CHUNKS:
            known.clear()
        chunk_of: dict[int, int] = {}
        for first, part in self._read(matches.blocks):
            chunks = part.of(*spans.CHUNK_ROLES)
            distinct = np.unique(chunks.chunk_ids).tolist()
            new = [chunk for chunk in distinct if chunk not in known]
            texts = self._run.corpus.texts(np.array(new, np.int64))
            contains = documents.contain(texts, matches.query.text)
            known.update(zip(new, contains.tolist(), strict=True))
            rows = (first + chunks.sequence).tolist()
            for row, chunk in zip(rows, chunks.chunk_ids.tolist(), strict=True):
                if known[chunk]:
                    chunk_of.setdefault(row, chunk)
        return chunk_of

    def _know(self, index: int) -> None:
        """Fill in what is kept of the sequences of a block."""
        if self._is_read[index]:
            return
        for first, part in self._read(index):
            count = int(part.sequence[-1]) + 1
            start = self._blocks[index].number + first
            rows = slice(start, start + count)
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
            pairs = np.unique(chunks.sequence << 32 | documents_of_chunks)
            # In the order of SORTS.
            self.values[:, rows] = (
                _mean_cosines(part, count),
                np.bincount(chunks.sequence, minlength=count),
                np.bincount(pairs >> 32, minlength=count),
                own_tokens / self._run.recipe.sequence_tokens,
            )
        self._is_read[index] = True

    def _read(self, index: int) -> Iterator[tuple[int, spans.Block]]:
        """Yield the spans of a block in parts, with the row in it where each begins."""
        block = self._blocks[index]
        first = 0
        parts = spans.read_blocks(
            block.path,
            block.first + block.size,
            self._run.corpus,
            first=block.first,
        )
        for part in parts:
            yield first, part
            first += int(part.sequence[-1]) + 1


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


def _leads(
    part: spans.Block, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the document that each sequence is about, and its first chunk there.

    It is the meta-document, else the document of its first chunk.
    """
    leads = np.full(count, schemas.NO_CHUNK, np.int64)
    first_chunks = np.full(count, schemas.NO_CHUNK, np.int64)
    # Meta-chunks come second, and overwrite what the first chunk said.
    for roles in (spans.CHUNK_ROLES, (schemas.META,)):
        of_roles = part.of(*roles)
        rows, firsts = np.unique(of_roles.sequence, return_index=True)
        leads[rows] = of_roles.doc_ids[firsts]
        first_chunks[rows] = of_roles.chunk_ids[firsts]
    return leads, first_chunks


def _mean_cosines(part: spans.Block, count: int) -> NDArray[np.float64]:
    """Return the mean cosine of each sequence; NaN where nothing has a cosine."""
    # Meta-chunks have none.
    others = part.of(schemas.NEGATIVE, schemas.DOCUMENT)
    is_scored = np.isfinite(others.scores)
    rows = others.sequence[is_scored]
    sums = np.bincount(rows, weights=others.scores[is_scored], minlength=count)
    with np.errstate(invalid="ignore"):
        cosines: NDArray[np.float64] = sums / np.bincount(rows, minlength=count)
    return cosines


def _smallest(keys: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the indexes of the `count` smallest keys in order.

    NaN comes last, ties keep their order.
    """
    # Sorting a million keys to show 25 takes ten times as long as a partition.
    if count < len(keys) // 8:
        limit = np.partition(keys, count)[count]
        if not np.isnan(limit):
            near = np.flatnonzero(keys <= limit)
            order = np.argsort(keys[near], kind="stable")
            return near[order][:count]
    return np.argsort(keys, kind="stable")[:count]
