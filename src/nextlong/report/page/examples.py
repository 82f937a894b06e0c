"""Examples: negatives that were filtered out as near-duplicates, beside the text that they repeat.

In:  a run. Out: a few pairs of texts, with the runs of three words that both hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, zip_longest

import numpy as np

from nextlong.artifacts import lookup
from nextlong.artifacts.results import DraftResult
from nextlong.picture import pieces
from nextlong.runs.run import Run

_CHARS = 900  # of a text
_RUN = 3  # words in a row, as near-duplicates are defined by (docs/decisions/0005)
_BEFORE = 120  # characters before the first of them
_WORD = re.compile(r"\w+")


_Pair = tuple[
    tuple[str, str], tuple[str, str]
]  # source and text of a chunk filtered out, and of the chunk that it repeats


def near_duplicate_pairs(run: Run, *, most: int) -> Iterator[_Pair]:
    """Yield near-duplicates that drafting filtered out, from different tasks before several of one."""
    # The first example of every task, then the second of every task, and so on.
    of_tasks = (part.near_duplicate_examples for part in run.steps["draft"].results(DraftResult))
    rounds = (one for turn in zip_longest(*of_tasks) for one in turn if one is not None)
    for chunk, first, count in islice(rounds, most):
        ids = np.array([chunk, *range(first, first + count)])
        texts = run.corpus.texts(ids).tolist()
        words = pieces.words_of(texts[0])
        nearest = max(range(1, len(ids)), key=lambda place: len(words & pieces.words_of(texts[place])))
        documents = lookup.documents_of(ids[[0, nearest]], run.corpus.chunks)
        names = lookup.source_ids(documents, run.corpus.documents).tolist()
        yield (names[0], texts[0]), (names[1], texts[nearest])


def marked(pair: _Pair) -> list[tuple[str, str, list[tuple[str, bool]]]]:
    """Return a heading, the source and the pieces of each text, with whether both texts hold that piece."""
    texts = [text for _, text in pair]
    shared = set(_runs(texts[0])) & set(_runs(texts[1]))
    headings = ("Filtered out", "It repeats")
    return [(heading, source, _pieces(text, shared)) for heading, (source, text) in zip(headings, pair, strict=True)]


def _runs(text: str) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Return every run of three words, in lower case, and where each of them stands, in characters."""
    words = list(_WORD.finditer(text))
    places_of: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place in range(len(words) - _RUN + 1):
        run = words[place : place + _RUN]
        places_of.setdefault(tuple(word[0].lower() for word in run), []).append((run[0].start(), run[-1].end()))
    return places_of


def _pieces(text: str, shared: set[tuple[str, ...]]) -> list[tuple[str, bool]]:
    """Return a text, from a little before the first run that both hold, in pieces that such runs cover or do not."""
    places = sorted(place for run, run_places in _runs(text).items() if run in shared for place in run_places)
    first = max(0, places[0][0] - _BEFORE) if places else 0
    last = min(len(text), first + _CHARS)
    joined: list[tuple[int, int]] = []  # the stretches that the runs cover together, for runs overlap
    for start, end in places:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    pieces = [("…", False)] if first else []
    done = first
    for start, end in joined:
        if start >= last:
            break
        pieces += [(text[done:start], False), (text[start : min(end, last)], True)]
        done = min(end, last)
    return [*pieces, (text[done:last] + ("…" if last < len(text) else ""), False)]
