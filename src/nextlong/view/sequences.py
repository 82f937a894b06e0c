"""Sequences: those of a run that match a query, sorted, with counts and histograms.

Out: a page of sequence numbers and how many match, or how far the first use of the
index is that the answer needs. The chunks that contain a phrase are read until the time
of a request is up; the next request continues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nextlong import schemas
from nextlong.arrays import Bools, Doubles, Ints
from nextlong.artifacts import corpus_files
from nextlong.methods.base import method_of
from nextlong.runs.run import Run
from nextlong.view import documents
from nextlong.view.documents import EVERY, Query
from nextlong.view.index import SORTS, Progress, RunIndex

_KEPT_QUERIES: Final = 8  # whose matches are kept
_CHECKED_CHUNKS: Final = 512  # that are read at a time for a phrase
_BINS: Final = 14  # of a histogram


class Histogram(NamedTuple):
    """Counts between equidistant edges, from `least` to `most`."""

    least: float
    most: float
    counts: list[int]


class Found(NamedTuple):
    """A page of the sequences that match, and how many match.

    While `progress` is not None, neither is known yet.
    """

    numbers: list[int]
    matches: int
    progress: Progress | None = None


@dataclass
class _Matches:
    """The matches of a query; None where they are not known yet.

    `fits` is about each sequence of the run, `contains` about each chunk of the data;
    `unchecked` are chunks that contain the words of a phrase, but may not contain it.
    """

    query: Query
    fits: Bools | None = None
    contains: Bools | None = None
    unchecked: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    to_check: int = 0
    histograms: dict[str, Histogram] | None = None


class SequenceSearch:
    """Searches of the sequences of one run."""

    def __init__(self, run: Run, index: RunIndex) -> None:
        self._run = run
        self._index = index
        # The matches of the last few queries.
        self._matches = lru_cache(maxsize=_KEPT_QUERIES)(_Matches)

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
        numbers = np.arange(len(self._run))
        column = sort.removeprefix("-")
        # A plain list reads nothing.
        if query != EVERY or column in SORTS:
            matches = self._matches(query)
            progress = self._complete(matches, time.monotonic() + seconds)
            if matches.fits is None:
                return Found([], 0, progress)
            numbers = np.flatnonzero(matches.fits)

        if column in SORTS:
            keys = self._index.values[SORTS.index(column)][numbers]
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
        return Found(numbers[indexes].tolist(), len(numbers))

    def chunk_with_text(self, query: Query, number: int) -> int:
        """Return the first chunk of a found sequence that contains the query's text.

        Else the first chunk of the document that the sequence is about.
        """
        contains = self._matches(query).contains
        if contains is not None:
            chunks = self._index.chunks_of(number)
            places = np.searchsorted(self._index.chunk_ids, chunks)
            containing = chunks[contains[places]]
            if len(containing):
                return int(containing[0])
        return int(self._index.first_chunks[number])

    def histograms(self, query: Query) -> dict[str, Histogram]:
        """Return a histogram of each of SORTS over all matches.

        {} until `find` has found them. NaN is the cosine of a sequence without
        negatives, and in no bin.
        """
        matches = self._matches(query)
        if matches.histograms is None:
            if matches.fits is None:
                return {}
            matches.histograms = {}
            for name, row in zip(SORTS, self._index.values, strict=True):
                column = row[matches.fits]
                known = column[np.isfinite(column)]
                if len(known):
                    matches.histograms[name] = _histogram(known)
        return matches.histograms

    def _complete(self, matches: _Matches, until: float) -> Progress | None:
        """Find the matches of a query; return how far this is, None if it is done."""
        if matches.fits is not None:
            return None
        query = matches.query
        progress = self._index.read_sequences(until)
        if progress is None and query.text:
            progress = self._find_chunks(matches, until)
        if progress is not None:
            return progress
        # What is kept in memory first, then what follows the lists of chunks.
        fits = self._fit_by_lead(query)
        if matches.contains is not None:
            fits &= self._index.containing(matches.contains)
        if query.document is not None:
            of_document = self._index.of_document(query.document)
            fits &= self._index.containing(of_document)
        if query.about is not None:
            fits &= self._are_about(query.about)
        matches.fits = fits
        return None

    def _find_chunks(self, matches: _Matches, until: float) -> Progress | None:
        """Find the chunks with the text of a query."""
        text = matches.query.text
        progress = self._index.read_words(until)
        if progress is not None:
            return progress
        if matches.contains is None:
            matches.contains, is_exact = self._index.may_contain(text)
            if not is_exact:
                matches.unchecked = np.flatnonzero(matches.contains)
                matches.to_check = len(matches.unchecked)
        # By id, so that each batch of documents is decompressed once or twice.
        while len(matches.unchecked):
            checked, matches.unchecked = np.split(matches.unchecked, [_CHECKED_CHUNKS])
            texts = self._run.corpus.texts(self._index.chunk_ids[checked])
            matches.contains[checked] = documents.contain(texts, text)
            if time.monotonic() > until and len(matches.unchecked):
                done = matches.to_check - len(matches.unchecked)
                return Progress("chunks checked", done, matches.to_check)
        return None

    def _fit_by_lead(self, query: Query) -> Bools:
        """Return which sequences fit by their cosine and by what they are about."""
        cosine = self._index.values[SORTS.index("cosine")]
        fits = np.ones(len(cosine), np.bool_)
        if query.least is not None:
            fits &= cosine >= query.least
        if query.most is not None:
            fits &= cosine <= query.most
        if query.source:
            is_equal = np.asarray(pc.equal(self._sources, query.source))
            fits &= is_equal[self._lead_of_sequence]
        if query.name:
            contains = documents.contain_term(self._names, query.name)
            fits &= contains[self._lead_of_sequence]
        return fits

    def _are_about(self, doc_id: int) -> Bools:
        """Return which sequences have a document as meta-document or as one of theirs.

        Not as the source of negatives.
        """
        if is_extended(self._run):
            return np.asarray(self._index.leads == doc_id)
        return self._index.containing(self._index.of_document(doc_id))

    @cached_property
    def _lead_of_sequence(self) -> Ints:
        """For each sequence, the place of its lead among the distinct ones."""
        _, places = np.unique(self._index.leads, return_inverse=True)
        return places

    @cached_property
    def _sources(self) -> pa.Array:
        return self._column_of_leads("source")

    @cached_property
    def _names(self) -> pa.Array:
        return self._column_of_leads("source_id")

    def _column_of_leads(self, name: str) -> pa.Array:
        """Return a column of DOCUMENTS for each distinct lead."""
        leads = np.unique(self._index.leads)
        paths = self._run.corpus.documents
        (column,) = corpus_files.document_columns(leads, paths, (name,))
        return pa.array(column, pa.large_string())


def is_extended(run: Run) -> bool:
    """Return whether sequences are about a document that they extend."""
    return method_of(run.recipe).layout == schemas.Layout.EXTENDED


def _histogram(values: Doubles) -> Histogram:
    counts, edges = np.histogram(values, bins=_BINS)
    return Histogram(float(edges[0]), float(edges[-1]), counts.tolist())


def _smallest(keys: Doubles, count: int) -> Ints:
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
