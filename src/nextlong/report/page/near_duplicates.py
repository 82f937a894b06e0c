"""Near-duplicates: pairs of texts of which drafting filtered one out.

In:  a run. Out: both texts in pieces, with the runs of three words that both hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise, zip_longest
from typing import Final

import numpy as np

from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import DraftResult
from nextlong.picture import pieces
from nextlong.runs.run import Run

_EXAMPLE_CHARS: Final = 900  # of a text
# Words in a row, as near-duplicates are defined by (docs/decisions/0005).
_RUN_WORDS: Final = 3
_CHARS_BEFORE: Final = 120  # characters before the first of them
_WORD: Final = re.compile(r"\w+")

Pieces = list[tuple[str, bool]]  # a text in pieces, with whether both texts hold each


def near_duplicate_pairs(
    run: Run, *, limit: int
) -> Iterator[list[tuple[str, str, Pieces]]]:
    """Yield near-duplicates that drafting filtered out.

    They are from different tasks before several are of one. Of the chunk that was
    filtered out, and of the one that it repeats: a heading, the source, and what
    `marked` returns.
    """
    for chunk, first, count in islice(_examples(run), limit):
        # The chunk, and those of the document that it may repeat.
        ids = np.array([chunk, *range(first, first + count)])
        texts = run.corpus.texts(ids).tolist()
        words = pieces.words_of(texts[0])
        # Of these, the one that shares most words with it is shown.
        shared = [len(words & pieces.words_of(text)) for text in texts[1:]]
        nearest = 1 + shared.index(max(shared))
        documents = corpus_files.documents_of(ids[[0, nearest]], run.corpus.chunks)
        names = corpus_files.source_ids(documents, run.corpus.documents).tolist()
        filtered_out, repeated = marked([texts[0], texts[nearest]])
        yield [
            ("Filtered out", names[0], filtered_out),
            ("It repeats", names[1], repeated),
        ]


def _examples(run: Run) -> Iterator[tuple[int, int, int]]:
    """Yield the first example of every task, then the second, and so on."""
    drafted = run.steps["draft"].results(DraftResult)
    for examples in zip_longest(*(part.near_duplicate_examples for part in drafted)):
        for example in examples:
            if example is not None:
                yield example


def marked(texts: Sequence[str]) -> list[Pieces]:
    """Return two texts in pieces, with whether both texts hold that piece."""
    first, second = map(_runs, texts)
    shared = first.keys() & second.keys()
    in_pieces = []
    for text, runs in zip(texts, (first, second), strict=True):
        ranges = []
        for run in shared:
            ranges += runs[run]
        in_pieces.append(_pieces(text, ranges))
    return in_pieces


def _runs(text: str) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Return every run of three words, in lower case, and where it is in the text.

    The ranges are in characters.
    """
    words = list(_WORD.finditer(text))
    ranges_of: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for index in range(len(words) - _RUN_WORDS + 1):
        run = words[index : index + _RUN_WORDS]
        key = tuple(word[0].lower() for word in run)
        start = run[0].start()
        end = run[-1].end()
        ranges_of.setdefault(key, []).append((start, end))
    return ranges_of


def _pieces(text: str, ranges: Sequence[tuple[int, int]]) -> Pieces:
    """Return a text in pieces that the ranges cover, or do not.

    It begins a little before the first of the ranges.
    """
    is_covered = np.zeros(len(text), np.bool_)  # of each character, for runs overlap
    for start, end in ranges:
        is_covered[start:end] = True
    # A long text is shown from its first shared words on.
    first = max(0, min(ranges)[0] - _CHARS_BEFORE) if ranges else 0
    last = min(len(text), first + _EXAMPLE_CHARS)
    changes = first + 1 + np.flatnonzero(np.diff(is_covered[first:last]))
    in_pieces = []
    if first:
        in_pieces.append(("…", False))
    for start, end in pairwise([first, *changes.tolist(), last]):
        if start < end:
            in_pieces.append((text[start:end], bool(is_covered[start])))
    if last < len(text):
        in_pieces.append(("…", False))
    return in_pieces
