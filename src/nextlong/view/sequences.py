"""Sequences: those of a run that match a query, sorted, with counts and histograms.

Out: a page of sequence numbers, how many match, and how much of the run was read for it. A request reads blocks of sequences
until its time is up; the next one continues. 48 bytes are kept for each sequence that was read, and one for each held query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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
_HELD_QUERIES: Final = 8  # whose matches are kept
_KNOWN_CHUNKS: Final = 1_000_000  # whose text a query has looked at
_BINS: Final = 14  # of a histogram …
_COUNTED: Final = 100_000  # … over at most this many matches
SORTS: Final = (
    "cosine",
    "chunks",
    "documents",
    "share",
)  # what a list can be sorted by, besides the sequence number


class _Histogram(NamedTuple):
    """Counts between equidistant edges, from `least` to `most`."""

    least: float
    most: float
    counts: list[int]


class _Found(NamedTuple):
    """A page of the sequences that match: numbers, all matches so far, and how many sequences of the run were read."""

    numbers: list[int]
    matches: int
    read: int
    is_complete: bool


@dataclass
class _Matches:
    """The matches of a query in the first `blocks` of a run; `chunk_of` names a chunk with the text that was searched for."""

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
    """The sequences of one run; `values` has a row for each of SORTS and a column for each sequence that was read."""

    def __init__(self, run: Run) -> None:
        self._run, total = run, len(run)
        self._blocks: list[_Stretch] = []
        size, number = max(1, _BLOCK_TOKENS // run.recipe.sequence_tokens), 0
        for path, take in zip(
            ComposeFiles.of(run.steps).sequences,
            run.sequences_per_part,
            strict=True,
        ):
            for first in range(0, take, size):
                self._blocks.append(
                    _Stretch(path, first, min(size, take - first), number + first)
                )
            number += take
        self._starts = np.array([block.number for block in self._blocks], np.int64)
        self._is_read = np.zeros(len(self._blocks), np.bool_)
        # Uninitialised arrays take memory only where something was written.
        self.values = np.empty((len(SORTS), total), np.float64)
        self.leads = np.empty(
            total, np.int64
        )  # doc_id of the meta-document or first document
        self.first_chunks = np.empty(
            total, np.int64
        )  # chunk_id of the first chunk of that document
        # The matches of the last few queries.
        self._matches = lru_cache(maxsize=_HELD_QUERIES)(
            lambda query: _Matches(query, np.zeros(total, np.bool_))
        )

    def find(
        self,
        query: Query,
        *,
        sort: str = "",
        first: int = 0,
        most: int = 25,
        seconds: float = 60.0,
    ) -> _Found:
        """Return a page of the sequences that match `query`, reading for about `seconds`.

        `sort` is one of SORTS, with a "-" in front for descending order, or "random-SEED" for a random sample; "" is by number.
        """
        total, column = len(self._run), sort.removeprefix("-")
        numbers, read = np.arange(total), total
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
            places = _smallest(-keys if sort.startswith("-") else keys, first + most)[
                first:
            ]
        elif column:
            rng = np.random.default_rng(int(column.removeprefix("random-")))
            places = rng.choice(len(numbers), min(most, len(numbers)), replace=False)
        else:
            places = np.arange(first, min(first + most, len(numbers)))
        return _Found(
            numbers[places].tolist(), len(numbers), read, is_complete=read == total
        )

    def chunk_with_text(self, query: Query, number: int) -> int:
        """Return the chunk of a found sequence that contains the text that was searched for; else its first one."""
        return self._matches(query).chunk_of.get(number, int(self.first_chunks[number]))

    def know(self, number: int) -> None:
        """Read what `values`, `leads` and `first_chunks` hold of a sequence, and of those that are read with it."""
        self._know(int(np.searchsorted(self._starts, number, side="right")) - 1)

    def histograms(self, query: Query) -> tuple[dict[str, _Histogram], int]:
        """Return a histogram of each of SORTS over the matches that `find` has read, and how many these are (at most 100,000)."""
        numbers = self._found(self._matches(query))[0][:_COUNTED]
        made = {}
        for name, row in zip(SORTS, self.values, strict=True):
            column = row[numbers]
            if len(known := column[np.isfinite(column)]):
                counts, edges = np.histogram(known, bins=_BINS)
                made[name] = _Histogram(
                    float(edges[0]), float(edges[-1]), counts.tolist()
                )
        return made, len(numbers)

    def _found(self, matches: _Matches) -> tuple[NDArray[np.int64], int]:
        """Return the numbers of all matches so far, and how many sequences were read for them."""
        read = (
            len(self._run)
            if matches.blocks == len(self._blocks)
            else self._blocks[matches.blocks].number
        )
        return np.flatnonzero(matches.fits[:read]), read

    def _extend(self, matches: _Matches) -> None:
        """Read one more block of sequences."""
        query, block = matches.query, self._blocks[matches.blocks]
        whole = slice(block.number, block.number + block.size)
        self._know(matches.blocks)
        # Whether each sequence of the block fits so far, by its row there; what has to be read from files comes last.
        fits = np.ones(block.size, np.bool_)
        cosine = self.values[SORTS.index("cosine"), whole]
        fits &= True if query.least is None else cosine >= query.least
        fits &= True if query.most is None else cosine <= query.most
        for column, text in (("source", query.source), ("source_id", query.name)):
            if text and fits.any():
                (names,) = corpus_files.document_columns(
                    self.leads[whole][fits], self._run.corpus.documents, (column,)
                )
                is_source, part = column == "source", text.casefold()
                fits[fits] = [
                    name == text if is_source else part in name.casefold()
                    for name in names.tolist()
                ]
        for doc_id, roles in (
            (query.document, spans.CHUNK_ROLES),
            (query.about, spans.ABOUT_ROLES),
        ):
            if doc_id is not None and fits.any():
                holds = np.zeros(block.size, np.bool_)
                for first, one in self._read(matches.blocks):
                    of_roles = one.of(*roles)
                    holds[first + of_roles.sequence[of_roles.doc_ids == doc_id]] = True
                fits &= holds
        if query.text and fits.any():
            known, chunk_of = (
                matches.known_chunks,
                dict[int, int](),
            )  # of rows: a chunk that contains the text
            if len(known) > _KNOWN_CHUNKS:
                known.clear()
            for first, one in self._read(matches.blocks):
                chunks = one.of(*spans.CHUNK_ROLES)
                new = [
                    chunk
                    for chunk in np.unique(chunks.chunk_ids).tolist()
                    if chunk not in known
                ]
                ids = np.array(new, np.int64)
                texts = self._run.corpus.texts(ids)
                known.update(
                    zip(
                        ids.tolist(),
                        documents.contain(texts, query.text).tolist(),
                        strict=True,
                    )
                )
                for row, chunk in zip(
                    (first + chunks.sequence).tolist(),
                    chunks.chunk_ids.tolist(),
                    strict=True,
                ):
                    if known[chunk]:
                        chunk_of.setdefault(row, chunk)
            fits &= np.isin(np.arange(block.size), list(chunk_of))
            matches.chunk_of |= {
                block.number + row: chunk
                for row, chunk in chunk_of.items()
                if fits[row]
            }
        matches.fits[whole] = fits
        matches.blocks += 1

    def _know(self, number: int) -> None:
        if self._is_read[number]:
            return
        for first, one in self._read(number):
            count = int(one.sequence[-1]) + 1
            rows = slice(
                self._blocks[number].number + first,
                self._blocks[number].number + first + count,
            )
            # One element per span; `sequence` is the row in this part of the block. Meta-chunks have no cosine.
            of_others = one.of(schemas.NEGATIVE, schemas.DOCUMENT)
            scored = of_others.sequence[np.isfinite(of_others.scores)]
            sums = np.bincount(
                scored,
                weights=of_others.scores[np.isfinite(of_others.scores)],
                minlength=count,
            )
            # The meta-document of each sequence, else the document of its first chunk; and the first chunk of it. Meta-chunks come
            # second, and overwrite what the first chunk said.
            leads, first_chunks = np.full((2, count), schemas.NO_CHUNK, np.int64)
            chunks = one.of(*spans.CHUNK_ROLES)
            for of_roles in (chunks, one.of(schemas.META)):
                places, firsts = np.unique(of_roles.sequence, return_index=True)
                leads[places], first_chunks[places] = (
                    of_roles.doc_ids[firsts],
                    of_roles.chunk_ids[firsts],
                )
            self.leads[rows], self.first_chunks[rows] = leads, first_chunks
            of_lead = chunks.doc_ids == leads[chunks.sequence]
            own_tokens = np.bincount(
                chunks.sequence[of_lead],
                weights=chunks.lengths[of_lead],
                minlength=count,
            )
            with np.errstate(invalid="ignore"):  # NaN where nothing has a cosine
                cosines = sums / np.bincount(scored, minlength=count)
            # (P,) a number for each document of each sequence.
            documents = (
                chunks.sequence << 32
                | np.unique(chunks.doc_ids, return_inverse=True)[1]
            )
            # In the order of SORTS.
            self.values[:, rows] = (
                cosines,
                np.bincount(chunks.sequence, minlength=count),
                np.bincount(np.unique(documents) >> 32, minlength=count),
                own_tokens / self._run.recipe.sequence_tokens,
            )
        self._is_read[number] = True

    def _read(self, number: int) -> Iterator[tuple[int, spans.Block]]:
        """Yield the spans of a block, with the row in it at which they begin."""
        block, first = self._blocks[number], 0
        for one in spans.read_blocks(
            block.path, block.first + block.size, self._run.corpus, first=block.first
        ):
            yield first, one
            first += int(one.sequence[-1]) + 1


def _smallest(keys: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` smallest keys in order; NaN comes last, ties keep their order."""
    if (
        count < len(keys) // 8
    ):  # sorting a million keys to show 25 takes ten times as long
        limit = np.partition(keys, count)[count]
        if not np.isnan(limit):
            near = np.flatnonzero(keys <= limit)
            return near[np.argsort(keys[near], kind="stable")][:count]
    return np.argsort(keys, kind="stable")[:count]
