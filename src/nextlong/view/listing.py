"""Listing: the sequences of a run that fit a filter, looked through piece by piece.

In:  SEQUENCES and what is asked for. Out: numbers of sequences, and where to go on.

Nothing is read before it is asked for. A request looks through blocks of sequences until its page is full or its time is
up; what it has learnt of a block, some 40 bytes a sequence, it keeps for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts import finished, lookup
from nextlong.runs import spans
from nextlong.runs.opened import Run
from nextlong.runs.spans import Block

_BLOCK = 64  # sequences that are looked through at a time


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a sequence has to be; None and "" ask for nothing.

    `least` and `most` bound its mean cosine; `source` is that of its meta-document or first document, `name` stands in the
    id of that document; `document` is one that it takes text from, `about` one that it is about.
    """

    least: float | None = None
    most: float | None = None
    source: str = ""
    name: str = ""
    document: int | None = None
    about: int | None = None

    @property
    def is_anything(self) -> bool:
        """Whether every sequence fits."""
        return self == Wanted()


class MatchingSequences(NamedTuple):
    """Sequences that fit, and the first that was not looked at; None: there are no more."""

    numbers: list[int]
    go_on: int | None


class Summary(NamedTuple):
    """What is kept of n sequences; all arrays have shape (n,)."""

    cosines: NDArray[np.float64]  # mean; NaN where there are none
    own_tokens: NDArray[np.int64]  # of the document that it is about
    documents: NDArray[np.int64]  # that it takes text from
    chunks: NDArray[np.int64]
    leads: NDArray[np.int64]  # doc_id of its meta-document or first document


class _Place(NamedTuple):
    path: Path
    first: int  # within the file
    size: int
    number: int  # of the first one, within the run


class Listing:
    """The sequences of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._places = list(_places(run))
        self._summaries: dict[int, Summary] = {}

    def find(self, wanted: Wanted, *, first: int, most: int, seconds: float) -> MatchingSequences:
        """Return at most `most` sequences from number `first` on that fit, found in about so many seconds."""
        if wanted.is_anything:
            last = min(first + most, len(self._run))
            return MatchingSequences(list(range(first, last)), last if last < len(self._run) else None)
        until = time.monotonic() + seconds
        numbers: list[int] = []
        for block, place in enumerate(self._places):
            if place.number + place.size <= first:
                continue
            fits = place.number + np.flatnonzero(self._fits(block, wanted))
            for number in fits[fits >= first].tolist():
                if len(numbers) == most:
                    return MatchingSequences(numbers, number)
                numbers.append(number)
            behind = place.number + place.size
            if behind < len(self._run) and time.monotonic() > until:
                return MatchingSequences(numbers, behind)
        return MatchingSequences(numbers, None)

    def summary(self, number: int) -> tuple[Summary, int]:
        """Return what is known of a sequence: the summary of its block, and its place there."""
        block = next(n for n, place in enumerate(self._places) if number < place.number + place.size)
        return self._summary(block), number - self._places[block].number

    def _fits(self, block: int, wanted: Wanted) -> NDArray[np.bool_]:
        summary = self._summary(block)
        fits = np.ones(len(summary.leads), np.bool_)
        if wanted.least is not None:
            fits &= summary.cosines >= wanted.least
        if wanted.most is not None:
            fits &= summary.cosines <= wanted.most
        for column, text in (("source", wanted.source), ("source_id", wanted.name)):
            if text and fits.any():
                (names,) = lookup.document_columns(summary.leads[fits], self._run.corpus.documents, (column,))
                is_equal = column == "source"
                fits[fits] = [
                    name == text if is_equal else text.casefold() in name.casefold() for name in names.tolist()
                ]
        for doc_id, roles in ((wanted.document, spans.CHUNK_ROLES), (wanted.about, spans.ABOUT_ROLES)):
            if doc_id is not None and fits.any():
                fits &= self._holds(block, doc_id, roles)
        return fits

    def _holds(self, block: int, doc_id: int, roles: tuple[int, ...]) -> NDArray[np.bool_]:
        holds = np.zeros(self._places[block].size, np.bool_)
        for first, one in self._read(block):
            spans = one.of(*roles)
            holds[first + spans.sequence[spans.doc_ids == doc_id]] = True
        return holds

    def _summary(self, block: int) -> Summary:
        if block not in self._summaries:
            parts = [_summarise(one) for _, one in self._read(block)]
            self._summaries[block] = Summary(*map(np.concatenate, zip(*parts, strict=True)))
        return self._summaries[block]

    def _read(self, block: int) -> Iterator[tuple[int, Block]]:
        """Yield the spans of a block, with the place in it at which they begin."""
        place, first = self._places[block], 0
        for one in spans.read_blocks(place.path, place.first + place.size, self._run.corpus, first=place.first):
            yield first, one
            first += int(one.sequence[-1]) + 1


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
    leads = _leads(block, count)
    of_lead = chunks.doc_ids == leads[chunks.sequence]
    return Summary(
        cosines,
        np.bincount(chunks.sequence[of_lead], weights=chunks.lengths[of_lead], minlength=count).astype(np.int64),
        spans.documents_per_sequence(block),
        np.bincount(chunks.sequence, minlength=count),
        leads,
    )


def _leads(block: Block, count: int) -> NDArray[np.int64]:
    """Return the meta-document of each sequence, else the document of its first chunk."""
    leads = np.full(count, schemas.NO_CHUNK, np.int64)
    for roles in (spans.CHUNK_ROLES, (schemas.META,)):
        chunks = block.of(*roles)
        sequences, firsts = np.unique(chunks.sequence, return_index=True)
        leads[sequences] = chunks.doc_ids[firsts]
    return leads
