"""Chunk: split each document into chunks of at most about `max_chars` characters.

In:  DOCUMENTS of one shard, and the rows to keep.
Out: CHUNKS of that shard: character offsets, no copies of text. The slices of a
     document, in order, rebuild it exactly.

The paper's greedy rule (§3.1.1: add paragraphs while the buffer has at most s
characters) equals "cut at the last newline within the next s characters", which is one
backward search per chunk.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from nextlong import arguments, schemas
from nextlong.artifacts.corpus_files import record_batches
from nextlong.artifacts.results import ChunkResult, IngestFiles
from nextlong.corpus.select import SelectFiles
from nextlong.engine.step import Step, each_shard
from nextlong.recipe.keys import Chunk

Span = tuple[int, int]

# A cut comes after the end of a sentence: its mark, closing quotes and brackets, and
# spaces, which scripts written without spaces do not have.
_CLOSING = r"[\"'”’»)\]」』）】]*"
_SENTENCE_END = re.compile(
    rf"[.!?…]{_CLOSING}[ \t\u00a0]+|[。！？｡]{_CLOSING}\u3000?|[؟۔।॥]{_CLOSING} ?"
)
# An initial, or an abbreviation with one letter after its last period: "J. Smith".
_INITIAL = re.compile(r"(?<!\w)\w\.[ \t\u00a0]+$")
# Spaces, the zero-width one of scripts without spaces, and the commas of Chinese and
# Japanese.
_WORD_END = re.compile(r"[ \t\u00a0\u3000\u200b，、；：]")
_LONGEST_END = 8  # characters of a sentence's mark and of what follows it
_LONGEST_CLUSTER = 32  # characters displayed as one; longer runs of marks are not text


def chunk_text(
    text: str,
    *,
    max_chars: int = 2048,
    length: Literal["slice", "paper"] = "slice",
    oversize: Literal["split", "keep"] = "split",
) -> list[Span]:
    """Return the chunks of a text as character offsets [start, end), without gaps.

    `length="slice"` counts every character of a chunk; `"paper"` does not count the
    newlines between its paragraphs, like the authors' published function. A paragraph
    over `max_chars` is cut into chunks of at least half as many characters, except its
    last one: after the last sentence in the second half of a chunk, else after a word
    there, else anywhere (`oversize="split"`). Or it becomes one chunk (`"keep"`, as in
    the paper). Raises ArgumentError for invalid arguments.
    """
    if not isinstance(text, str):
        raise arguments.wrong("text", text, "is not a string", fix="give one text")
    fix = "give a number of characters"
    max_chars = arguments.whole_number(max_chars, "max_chars", fix=fix, min_value=1)
    arguments.word(length, "length", ("slice", "paper"))
    arguments.word(oversize, "oversize", ("split", "keep"))
    if length == "paper":
        return _chunk_by_paragraph_lengths(text, max_chars=max_chars, oversize=oversize)
    spans: list[Span] = []
    start = 0
    total = len(text)
    while total - start > max_chars:
        end = text.rfind("\n", start, start + max_chars) + 1
        # The next paragraph alone exceeds the limit.
        if not end:
            if oversize == "split":
                end = _split_paragraph(text, start, start + max_chars)
            else:
                end = text.find("\n", start + max_chars) + 1 or total
        spans.append((start, end))
        start = end
    if start < total:
        spans.append((start, total))
    return spans


def _chunk_by_paragraph_lengths(
    text: str, *, max_chars: int, oversize: Literal["split", "keep"]
) -> list[Span]:
    # filled[i]: characters of the first i paragraphs without newlines; paragraph i
    # starts at filled[i] + i.
    paragraphs = text.split("\n")
    filled = list(accumulate(map(len, paragraphs), initial=0))
    spans: list[Span] = []
    first = 0
    while first < len(paragraphs):
        after = max(bisect_right(filled, filled[first] + max_chars) - 1, first + 1)
        start = filled[first] + first
        end = min(filled[after] + after, len(text))
        if oversize == "split" and filled[after] - filled[first] > max_chars:
            while end - start > max_chars:
                cut = _split_paragraph(text, start, start + max_chars)
                spans.append((start, cut))
                start = cut
        if start < end:
            spans.append((start, end))
        first = after
    return spans


def _split_paragraph(text: str, start: int, end: int) -> int:
    """Return where to cut in the second half of (start, end].

    After a sentence, else after a word, else near `end`.
    """
    # The first cut that leaves half.
    first = start + (end - start + 1) // 2
    sentence = _last_sentence_end(text, first, end)
    if sentence is not None:
        return sentence
    words = [match.end() for match in _WORD_END.finditer(text, first - 1, end)]
    if words:
        return words[-1]
    for cut in range(end, max(start, end - _LONGEST_CLUSTER), -1):
        # Do not separate a letter from its marks, an emoji from its modifiers, or \r
        # from \n.
        before = text[cut - 1]
        after = text[cut]
        is_mark = unicodedata.category(after) in ("Mn", "Mc", "Me", "Sk")
        is_joined = "\u200d" in (before, after) or before + after == "\r\n"
        if not is_mark and not is_joined:
            return cut
    return end


def _last_sentence_end(text: str, first: int, end: int) -> int | None:
    """Return the last end of a sentence in [first, end]; None if there is none."""
    matches = _SENTENCE_END.finditer(text, max(0, first - _LONGEST_END), end)
    ends = [match.end() for match in matches if match.end() >= first]
    for sentence in reversed(ends):
        # "Fig. 3", "พ.ศ. 2540" and "J. Smith" are one sentence each.
        is_numbered = text[sentence : sentence + 1].isdigit()
        beginning = max(0, sentence - _LONGEST_END)
        is_initial = _INITIAL.search(text, beginning, sentence) is not None
        if not is_numbered and not is_initial:
            return sentence
    return None


def chunk_step(settings: Chunk, ingest: Step, keep: Step) -> Step:
    """Return the step from DOCUMENTS to CHUNKS.

    `keep` is the step that decides which documents are kept.
    """
    tasks = each_shard(
        partial(_chunk_shard, **settings.model_dump()),
        documents=(ingest, IngestFiles.documents),
        keep=(keep, SelectFiles.keep),
    )
    return Step(
        name="chunk",
        phase="read",
        version=2,
        config=settings.identity(),
        inputs=(ingest, keep),
        tasks=tasks,
        result=ChunkResult,
    )


def _chunk_shard(
    out: Path, *, documents: Path, keep: Path, **options: Any
) -> ChunkResult:
    """Chunk the kept documents of one shard; write `{out}.chunks.arrow`.

    With the `options` of `chunk_text`.
    """
    kept = np.load(keep)
    chunks = 0
    chars = 0
    with (
        pa.OSFile(f"{out}.chunks.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        for first_row, batch in record_batches(documents):
            texts = batch.column("text").to_pylist()
            # One entry per chunk: the row of its document, its characters, whether a
            # separator must follow it.
            doc_rows: list[int] = []
            spans: list[Span] = []
            needs_separator: list[bool] = []
            kept_rows = np.flatnonzero(kept[first_row : first_row + len(texts)])
            for row in kept_rows.tolist():
                text = texts[row]
                document_spans = chunk_text(text, **options)
                spans += document_spans
                doc_rows += [first_row + row] * len(document_spans)
                needs_separator += [text[end - 1] != "\n" for _, end in document_spans]
            starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
            columns = [
                pa.array(doc_rows, pa.int32()),
                pa.array(starts),
                pa.array(ends),
                pa.array(needs_separator, pa.bool_()),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schemas.CHUNKS)
            writer.write_batch(batch)
            chunks += len(spans)
            chars += int((ends - starts).sum())
    return ChunkResult(documents=int(kept.sum()), chunks=chunks, chars=chars)
