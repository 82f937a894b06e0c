"""Growth: the same corpus in sizes 1x, 2x, 4x, 8x, without repeating a document.

In:  JSONL(.zst) files.
Out: eight part files of the same mix (document i goes to part i mod 8); size n is the first n parts. Sizes over 8 need
     copies: in each copy every word stands for another one of about its frequency, throughout. Lengths, repetitions and
     the frequencies of words stay those of real text, while copies have nothing in common that makes them near-duplicates.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import zstandard

PARTS = 8
_WORD = re.compile(r"\w+")
_PIECES = re.compile(r"\w+|\W+")
_ALIKE = 256  # words that stand for one another


def write_parts(files: Sequence[Path], *, copies: range, out: Path) -> list[Path]:
    """Write PARTS files to `out` for each of the copies and return them; those of copy 0 hold the documents unchanged."""
    texts = list(_documents(files))
    # Cut into words and what stands between them once, not for each copy; equal pieces
    # are one string.
    known: dict[str, str] = {}
    cut = (
        [
            [known.setdefault(piece, piece) for piece in _PIECES.findall(text)]
            for text in texts
        ]
        if copies[-1]
        else []
    )
    frequencies = Counter(
        piece for pieces in cut for piece in pieces if _WORD.fullmatch(piece)
    )
    parts: list[Path] = []
    for copy in copies:
        exchange = exchanged_words(frequencies, copy=copy) if copy else {}
        of_copy = [
            out / f"part-{copy * PARTS + number:03d}.jsonl" for number in range(PARTS)
        ]
        with ExitStack() as stack:
            opened = [
                stack.enter_context(part.open("w", encoding="utf-8"))
                for part in of_copy
            ]
            for row, text in enumerate(texts):
                rewritten = (
                    "".join(map(exchange.get, cut[row], cut[row])) if copy else text
                )
                line = json.dumps(
                    {"id": f"{copy}-{row}", "text": rewritten}, ensure_ascii=False
                )
                opened[row % PARTS].write(line + "\n")
        parts += of_copy
    return parts


def exchanged_words(frequencies: Mapping[str, int], *, copy: int) -> dict[str, str]:
    """Return word → the word that stands for it in a copy: about as frequent, and about as long."""
    ranked = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    exchange: dict[str, str] = {}
    for first in range(0, len(ranked), _ALIKE):
        band = ranked[first : first + _ALIKE]
        others = band.copy()
        random.Random(f"{copy}:{first}").shuffle(others)
        exchange.update(
            zip(sorted(band, key=len), sorted(others, key=len), strict=True)
        )
    return exchange


def _documents(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        opened = (
            zstandard.open(file, "rt", encoding="utf-8")
            if file.suffix == ".zst"
            else file.open(encoding="utf-8")
        )
        with opened as lines:
            for line in lines:
                yield json.loads(line)["text"]
