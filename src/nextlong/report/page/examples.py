"""Examples: look-alikes that were left out because they repeat a text, beside what they repeat.

In:  runs. Out: a few pairs of texts of each run, the runs of three words that both hold marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.picture import shared_words
from nextlong.picture.elements import element
from nextlong.report.page import parts
from nextlong.results import DraftResult
from nextlong.runs.opened import Run

_PAIRS = 3  # of a run
_CHARS = 900  # of a text
_RUN = 3  # words in a row, as near-copies are told by (docs/decisions/0005)
_BEFORE = 120  # characters before the first of them
_WORD = re.compile(r"\w+")


class Pair(NamedTuple):
    """A chunk that was left out, and the chunk that it repeats: source and text of each."""

    left_out: tuple[str, str]
    repeated: tuple[str, str]


def near_copies(runs: Sequence[Run]) -> Iterator[Element]:
    """Yield the examples of each run whose drafts remember some."""
    for letter, run in zip(parts.letters(len(runs)), runs, strict=True):
        if pairs := list(near_copy_pairs(run, most=_PAIRS)):
            of = "" if len(runs) == 1 else f" of {letter}"
            heading = element("h3", f"Left out{of}, and what it repeats")
            yield element("div", heading, *map(_shown, pairs), class_="examples")


def near_copy_pairs(run: Run, *, most: int) -> Iterator[Pair]:
    """Yield near-copies that the drafts left out, from different tasks before several of one."""
    counted = [part.near_copy_examples for part in run.steps["draft"].results(DraftResult)]
    rounds = (
        of_run[turn] for turn in range(max(map(len, counted), default=0)) for of_run in counted if turn < len(of_run)
    )
    for (chunk, first, count), _ in zip(rounds, range(most), strict=False):
        ids = np.array([chunk, *range(first, first + count)])
        texts = run.corpus.texts(ids).tolist()
        words = shared_words.words_of(texts[0])
        nearest = max(range(1, len(ids)), key=lambda place: len(words & shared_words.words_of(texts[place])))
        names = _names(run, ids[[0, nearest]])
        yield Pair((names[0], texts[0]), (names[1], texts[nearest]))


def _names(run: Run, ids: np.ndarray) -> list[str]:
    (doc_rows,) = lookup.chunk_columns(ids, run.corpus.chunks, ("doc_row",))
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    names: list[str] = lookup.source_ids(docs, run.corpus.documents).tolist()
    return names


def _shown(pair: Pair) -> Element:
    texts = [text for _, text in pair]
    shared = set(_runs(texts[0])) & set(_runs(texts[1]))
    cards = [
        element(
            "article", element("h4", heading), element("p", element("bdi", source), class_="from"), _text(text, shared)
        )
        for heading, (source, text) in zip(("Left out", "It repeats"), pair, strict=True)
    ]
    return element("div", *cards, class_="pair")


def _runs(text: str) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Return every run of three words, in lower case, and where each of them stands, in characters."""
    words = list(_WORD.finditer(text))
    places_of: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place in range(len(words) - _RUN + 1):
        run = words[place : place + _RUN]
        places_of.setdefault(tuple(word[0].lower() for word in run), []).append((run[0].start(), run[-1].end()))
    return places_of


def _text(text: str, shared: set[tuple[str, ...]]) -> Element:
    """Return a text from a little before the first run that both hold, with what such runs cover marked."""
    places = sorted(place for run, run_places in _runs(text).items() if run in shared for place in run_places)
    first = max(0, places[0][0] - _BEFORE) if places else 0
    last = min(len(text), first + _CHARS)
    pieces: list[Element | str] = ["…"] if first else []
    at = first
    for start, end in _joined(places):
        if start >= last:
            break
        pieces += [text[at:start], element("mark", text[start : min(end, last)])]
        at = min(end, last)
    pieces += [text[at:last], "…" if last < len(text) else ""]
    return element("p", *pieces, class_="words", tabindex="0", role="group", aria_label="A text")


def _joined(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the stretches that sorted, overlapping ones cover together."""
    joined: list[tuple[int, int]] = []
    for start, end in places:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    yield from joined
