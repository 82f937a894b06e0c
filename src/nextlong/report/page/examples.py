"""Examples: look-alikes that were left out because they repeat a text, beside what they repeat.

In:  runs. Out: a few pairs of texts of each run, the words they share marked.
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
_WORDS = re.compile(r"(\w+)")


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
    rounds = (own[turn] for turn in range(max(map(len, counted), default=0)) for own in counted if turn < len(own))
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
    shared = set(shared_words.shared(pair.left_out[1], pair.repeated[1], frozenset()))
    cards = [
        element(
            "article", element("h4", told), element("p", element("bdi", source), class_="from"), _text(text, shared)
        )
        for told, (source, text) in zip(("Left out", "It repeats"), pair, strict=True)
    ]
    return element("div", *cards, class_="pair")


def _text(text: str, shared: set[str]) -> Element:
    shown = text[:_CHARS] + ("…" if len(text) > _CHARS else "")
    pieces = [element("mark", part) if part.lower() in shared else part for part in _WORDS.split(shown) if part]
    return element("p", *pieces, class_="words", tabindex="0", role="group", aria_label="A text")
