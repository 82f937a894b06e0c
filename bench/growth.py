"""Growth: the same corpus in sizes 1x, 2x, 4x, 8x, without repeating a document.

In:  JSONL(.zst) files.
Out: eight part files of the same mix (document i goes to part i mod 8); size n is the first n parts. Sizes over 8 need
     copies: in each copy every document opens with the copy's number and has its paragraphs in another order, so that
     hardly a chunk is the twin of another while lengths and vocabulary stay those of real text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import zstandard

PARTS = 8


def write_parts(files: Sequence[Path], *, copies: int, out: Path) -> list[Path]:
    """Write PARTS * copies files to `out` and return them; the first PARTS hold the documents unchanged."""
    parts = [out / f"part-{number:03d}.jsonl" for number in range(PARTS * copies)]
    with ExitStack() as stack:
        opened = [stack.enter_context(part.open("w", encoding="utf-8")) for part in parts]
        for row, document in enumerate(_documents(files)):
            for copy in range(copies):
                text = perturb(document, copy=copy, row=row) if copy else document
                line = json.dumps({"id": f"{copy}-{row}", "text": text}, ensure_ascii=False)
                opened[copy * PARTS + row % PARTS].write(line + "\n")
    return parts


def perturb(document: str, *, copy: int, row: int) -> str:
    """Return the document with a first line that names the copy and its paragraphs in an order of their own."""
    paragraphs = document.split("\n")
    random.Random(f"{copy}:{row}").shuffle(paragraphs)
    return "\n".join([f"Copy {copy}.", *paragraphs])


def _documents(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        opened = zstandard.open(file, "rt", encoding="utf-8") if file.suffix == ".zst" else file.open(encoding="utf-8")
        with opened as lines:
            for line in lines:
                yield json.loads(line)["text"]
