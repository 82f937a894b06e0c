"""Sequences: those of a run that match a query, sorted, with counts and histograms.

In:  SEQUENCES and a query. Out: a page of sequence numbers, how many match, and how much of the run was read for it.

Nothing is read before a query needs it. A request reads blocks of sequences until its time is up and answers with what it
knows by then; the next request continues. About 56 bytes are kept for each sequence that was read.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import finished, lookup
from nextlong.runs import spans
from nextlong.runs.run import Run
from nextlong.runs.spans import Block
from nextlong.view import terms

_BLOCK: Final = 64  # sequences that are read at a time
_HELD_QUERIES: Final = 8  # whose matches are kept
_KNOWN_CHUNKS: Final = 1_000_000  # whose text a query has looked at
_BINS: Final = 14  # of a histogram …
_COUNTED: Final = 100_000  # … over so many matches at most
SORTS: Final = ("cosine", "chunks", "documents", "share")  # what a list can be sorted by, besides the sequence number


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a sequence has to be; None and "" match everything.

    `text` holds words and quoted phrases that one of its chunks has to contain; `least` and `most` bound its mean cosine;
    `source` and `name` are about its meta-document or first document; `document` is one that it takes text from, `about`
    one that it is about.
    """

    text: str = ""
    name: str = ""
    source: str = ""
    least: float | None = None
    most: float | None = None
    document: int | None = None
    about: int | None = None

    @property
    def matches_all(self) -> bool:
        """Whether every sequence matches."""
        return self == Query()


class Summary(NamedTuple):
    """What is kept of n sequences; all arrays have shape (n,)."""

    cosine: NDArray[np.float64]  # mean; NaN where there are none
    own_tokens: NDArray[np.int64]  # of the document that it is about
    documents: NDArray[np.int64]  # that it takes text from
    chunks: NDArray[np.int64]
    leads: NDArray[np.int64]  # doc_id of its meta-document or first document
    first_chunks: NDArray[np.int64]  # chunk_id of the first chunk of that document


class Histogram(NamedTuple):
    """Counts between equidistant edges, from `least` to `most`."""

    least: float
    most: float
    counts: list[int]


class Found(NamedTuple):
    """A page of the sequences that match: numbers, all matches so far, and how many sequences of the run were read."""

    numbers: list[int]
    matches: int
    read: int
    is_complete: bool


@dataclass
class _Matches:
    """The matches of a query so far; `chunk_of` names a chunk with the text that was searched for.

    `numbers` and `values` hold an array for each block that was read: shapes (n,) and (n, 4), a column of SORTS each.
    """

    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    chunk_of: dict[int, int] = field(default_factory=dict)
    known_chunks: dict[int, bool] = field(default_factory=dict)
    blocks: int = 0

    def joined(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers and the values of all matches so far."""
        if len(self.numbers) > 1:
            self.numbers, self.values = [np.concatenate(self.numbers)], [np.concatenate(self.values)]
        return (self.numbers[0], self.values[0]) if self.numbers else (np.empty(0, np.int64), np.empty((0, len(SORTS))))


class _Place(NamedTuple):
    path: Path
    first: int  # within the file
    size: int
    number: int  # of the first one, within the run


class SequenceIndex:
    """The sequences of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._places = list(_places(run))
        self._starts = np.array([place.number for place in self._places], np.int64)
        self._summaries: dict[int, Summary] = {}
        self._held: OrderedDict[Query, _Matches] = OrderedDict()

    def find(self, query: Query, *, sort: str = "", first: int = 0, most: int = 25, seconds: float = 60.0) -> Found:
        """Return a page of the sequences that match `query`, reading for about so many seconds.

        `sort` is one of SORTS, with a "-" in front for descending order, "random" or "random-SEED"; "" is by number.
        """
        total = len(self._run)
        if query.matches_all and (not sort or sort.startswith("random")):
            return Found(_ordered(range(total), sort, first, most), total, total, is_complete=True)
        matches = self._matches(query)
        until = time.monotonic() + seconds
        while matches.blocks < len(self._places):
            self._extend(matches, query)
            if time.monotonic() > until:
                break
        is_complete = matches.blocks == len(self._places)
        read = total if is_complete else self._places[matches.blocks].number
        numbers, values = matches.joined()
        column = sort.removeprefix("-")
        if column in SORTS:
            keys = values[:, SORTS.index(column)]
            order = _smallest(-keys if sort.startswith("-") else keys, first + most)[first:]
            return Found(numbers[order].tolist(), len(numbers), read, is_complete=is_complete)
        return Found(_ordered(numbers, sort, first, most), len(numbers), read, is_complete=is_complete)

    def chunk_with_text(self, query: Query, number: int) -> int | None:
        """Return the chunk of a found sequence that contains the text that was searched for."""
        return self._matches(query).chunk_of.get(number)

    def summary(self, number: int) -> tuple[Summary, int]:
        """Return what is known of a sequence: the summary of its block, and its place there."""
        block = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._summary(block), number - self._places[block].number

    def histograms(self, query: Query) -> tuple[dict[str, Histogram], int]:
        """Return a histogram of each of SORTS over the matches that `find` has read, and how many these are (at most 100,000)."""
        values = self._matches(query).joined()[1][:_COUNTED]
        made = {}
        for name, column in zip(SORTS, values.T, strict=True):
            if len(known := column[np.isfinite(column)]):
                counts, edges = np.histogram(known, bins=_BINS)
                made[name] = Histogram(float(edges[0]), float(edges[-1]), counts.tolist())
        return made, len(values)

    def _matches(self, query: Query) -> _Matches:
        matches = self._held.setdefault(query, _Matches())
        self._held.move_to_end(query)
        if len(self._held) > _HELD_QUERIES:
            self._held.popitem(last=False)
        return matches

    def _extend(self, matches: _Matches, query: Query) -> None:
        """Read one more block of sequences."""
        place = self._places[matches.blocks]
        fits = self._fits(matches.blocks, query)
        if query.text and fits.any():
            chunk_of = self._with_text(matches, query.text)
            fits &= np.isin(np.arange(place.size), list(chunk_of))
            matches.chunk_of |= {place.number + row: chunk for row, chunk in chunk_of.items() if fits[row]}
        summary = self._summary(matches.blocks)
        share = summary.own_tokens / self._run.recipe.sequence_tokens
        columns = np.column_stack([summary.cosine, summary.chunks, summary.documents, share])  # in the order of SORTS
        matches.numbers.append(place.number + np.flatnonzero(fits))
        matches.values.append(columns[fits])
        matches.blocks += 1

    def _fits(self, block: int, query: Query) -> NDArray[np.bool_]:
        summary = self._summary(block)
        fits = np.ones(len(summary.leads), np.bool_)
        if query.least is not None:
            fits &= summary.cosine >= query.least
        if query.most is not None:
            fits &= summary.cosine <= query.most
        for column, text in (("source", query.source), ("source_id", query.name)):
            if text and fits.any():
                (names,) = lookup.document_columns(summary.leads[fits], self._run.corpus.documents, (column,))
                fits[fits] = [
                    name == text if column == "source" else text.casefold() in name.casefold()
                    for name in names.tolist()
                ]
        for doc_id, roles in ((query.document, spans.CHUNK_ROLES), (query.about, spans.ABOUT_ROLES)):
            if doc_id is not None and fits.any():
                holds = np.zeros(self._places[block].size, np.bool_)
                for first, one in self._read(block):
                    of_roles = one.of(*roles)
                    holds[first + of_roles.sequence[of_roles.doc_ids == doc_id]] = True
                fits &= holds
        return fits

    def _with_text(self, matches: _Matches, text: str) -> dict[int, int]:
        """Return the rows of a block one of whose chunks contains the text, with that chunk."""
        if len(matches.known_chunks) > _KNOWN_CHUNKS:
            matches.known_chunks.clear()
        known = matches.known_chunks
        chunk_of: dict[int, int] = {}
        for first, one in self._read(matches.blocks):
            chunks = one.of(*spans.CHUNK_ROLES)
            new = np.array([chunk for chunk in np.unique(chunks.chunk_ids).tolist() if chunk not in known], np.int64)
            known.update(zip(new.tolist(), terms.contain(self._run.corpus.texts(new), text).tolist(), strict=True))
            for row, chunk in zip((first + chunks.sequence).tolist(), chunks.chunk_ids.tolist(), strict=True):
                if known[chunk]:
                    chunk_of.setdefault(row, chunk)
        return chunk_of

    def _summary(self, block: int) -> Summary:
        if block not in self._summaries:
            parts = [_summarise(one) for _, one in self._read(block)]
            self._summaries[block] = Summary(*map(np.concatenate, zip(*parts, strict=True)))
        return self._summaries[block]

    def _read(self, block: int) -> Iterator[tuple[int, Block]]:
        """Yield the spans of a block, with the row in it at which they begin."""
        place, first = self._places[block], 0
        for one in spans.read_blocks(place.path, place.first + place.size, self._run.corpus, first=place.first):
            yield first, one
            first += int(one.sequence[-1]) + 1


def _smallest(keys: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` smallest keys in order; NaN comes last, ties keep their order."""
    if count < len(keys) // 8:  # sorting a million keys to show 25 takes ten times as long
        limit = np.partition(keys, count)[count]
        if not np.isnan(limit):
            near = np.flatnonzero(keys <= limit)
            return near[np.argsort(keys[near], kind="stable")][:count]
    return np.argsort(keys, kind="stable")[:count]


def _ordered(numbers: range | NDArray[np.int64], sort: str, first: int, most: int) -> list[int]:
    """Return a page of numbers as they are, or of a random order that its seed fixes."""
    if not sort.startswith("random"):
        return [int(number) for number in numbers[first : first + most]]
    rng = np.random.default_rng(int(sort.partition("-")[2] or 0))
    if first + most < len(numbers) // 8:  # a million numbers need not be shuffled to show 25
        chosen = rng.choice(len(numbers), first + most, replace=False, shuffle=True)[first:]
    else:
        chosen = rng.permutation(len(numbers))[first : first + most]
    return [int(numbers[place]) for place in chosen.tolist()]


def _places(run: Run) -> Iterator[_Place]:
    number = 0
    for path, take in zip(finished.sequence_files(run.steps), run.sequences_per_part, strict=True):
        for first in range(0, take, _BLOCK):
            count = min(_BLOCK, take - first)
            yield _Place(path, first, count, number)
            number += count


def _summarise(block: Block) -> Summary:
    count = int(block.sequence[-1]) + 1
    of_others = block.of(schemas.NEGATIVE, schemas.DOCUMENT)
    known = np.isfinite(of_others.scores)
    sums = np.bincount(of_others.sequence[known], weights=of_others.scores[known], minlength=count)
    scored = np.bincount(of_others.sequence[known], minlength=count)
    with np.errstate(invalid="ignore"):
        cosines = sums / scored
    chunks = block.of(*spans.CHUNK_ROLES)
    leads, firsts = _leads(block, count)
    of_lead = chunks.doc_ids == leads[chunks.sequence]
    return Summary(
        cosines,
        np.bincount(chunks.sequence[of_lead], weights=chunks.lengths[of_lead], minlength=count).astype(np.int64),
        spans.documents_per_sequence(block),
        np.bincount(chunks.sequence, minlength=count),
        leads,
        firsts,
    )


def _leads(block: Block, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the meta-document of each sequence, else the document of its first chunk; and the first chunk of it."""
    leads, chunk_ids = np.full((2, count), schemas.NO_CHUNK, np.int64)
    for roles in (spans.CHUNK_ROLES, (schemas.META,)):
        chunks = block.of(*roles)
        sequences, firsts = np.unique(chunks.sequence, return_index=True)
        leads[sequences], chunk_ids[sequences] = chunks.doc_ids[firsts], chunks.chunk_ids[firsts]
    return leads, chunk_ids
