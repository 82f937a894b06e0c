"""Chunk: split each document into chunks of about `max_chars` characters, losing nothing.

In:  DOCUMENTS of one shard, and which of its rows to keep.
Out: CHUNKS of that shard: character offsets, never copies. The slices of a document, in order, rebuild it exactly.

The rule is the paper's (§3.1.1): paragraphs (split at newlines) are added to a buffer while it stays within the
granularity s. That greedy rule equals "cut at the last newline within the next s characters", which is one backward
search per chunk, so the speed is that of decoding UTF-8.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.results import ChunkResult

Span = tuple[int, int]

# A sentence ends with one of these, a word before one of those; the cut comes behind them.
_SENTENCE_ENDS = (". ", "! ", "? ", '." ', ".) ", "。", "！", "？", "؟ ", "। ")
_WORD_ENDS = (" ", "\t", "\u3000", "\u00a0")
_LONGEST_CLUSTER = 32  # characters that show as one; longer runs of marks are no text


def chunk_text(
    text: str,
    *,
    max_chars: int = 2048,
    length: Literal["slice", "paper"] = "slice",
    oversize: Literal["split", "keep"] = "split",
) -> list[Span]:
    """Return the chunks of a text as character offsets [start, end) that tile it.

    `length="slice"` counts every character of a chunk; `"paper"` counts its paragraphs without the newlines between them,
    as the authors' published function does. A paragraph over `max_chars` is cut at sentence ends, then words, then
    anywhere (`oversize="split"`), or becomes a chunk of its own (`"keep"`, the paper's).
    """
    if length == "paper":
        return _chunk_by_paragraph_lengths(text, max_chars=max_chars, oversize=oversize)
    spans, start, total = [], 0, len(text)
    while total - start > max_chars:
        end = text.rfind("\n", start, start + max_chars) + 1
        if not end:  # the first paragraph alone is over the limit
            if oversize == "split":
                end = _split_paragraph(text, start, start + max_chars)
            else:
                end = text.find("\n", start + max_chars) + 1 or total
        spans.append((start, end))
        start = end
    if start < total:
        spans.append((start, total))
    return spans


def _chunk_by_paragraph_lengths(text: str, *, max_chars: int, oversize: Literal["split", "keep"]) -> list[Span]:
    # filled[i]: characters of the first i paragraphs, newlines not counted; paragraph i starts at filled[i] + i.
    filled = list(accumulate(map(len, text.split("\n")), initial=0))
    paragraphs = len(filled) - 1
    spans, first = [], 0
    while first < paragraphs:
        after = max(bisect_right(filled, filled[first] + max_chars) - 1, first + 1)
        start = filled[first] + first
        end = min(filled[after] + after, len(text))
        if oversize == "split" and filled[after] - filled[first] > max_chars:
            while end - start > max_chars:
                end_of_chunk = _split_paragraph(text, start, start + max_chars)
                spans.append((start, end_of_chunk))
                start = end_of_chunk
        if start < end:
            spans.append((start, end))
        first = after
    return spans


def _split_paragraph(text: str, start: int, end: int) -> int:
    """Return where to cut within (start, end]: behind the last sentence, else the last word, else near `end`."""
    for marks in (_SENTENCE_ENDS, _WORD_ENDS):
        marks_before = [(text.rfind(mark, start, end), len(mark)) for mark in marks]
        if best := max((at + size for at, size in marks_before if at >= 0), default=0):
            return best
    for place in range(end, max(start, end - _LONGEST_CLUSTER), -1):
        if not _clings(text, place):
            return place
    return end


def _clings(text: str, at: int) -> bool:
    """Return whether a cut before `at` parts a letter from its marks, an emoji from its modifiers, or \\r from \\n."""
    before, after = text[at - 1], text[at]
    marks = unicodedata.category(after) in ("Mn", "Mc", "Me", "Sk")
    return marks or "\u200d" in (before, after) or before + after == "\r\n"


def chunk_shard(
    out: Path,
    *,
    documents: Path,
    keep: Path,
    max_chars: int,
    length: Literal["slice", "paper"],
    oversize: Literal["split", "keep"],
) -> ChunkResult:
    """Chunk the kept documents of one shard; writes `{out}.chunks.arrow`."""
    kept = np.load(keep)
    rows_done = chunks = chars = longest = 0
    with (
        pa.ipc.open_file(pa.memory_map(str(documents))) as reader,
        pa.OSFile(f"{out}.chunks.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        for number in range(reader.num_record_batches):
            texts = reader.get_batch(number).column("text").to_pylist()
            here = kept[rows_done : rows_done + len(texts)]
            batch = _chunk_batch(texts, here, rows_done, max_chars=max_chars, length=length, oversize=oversize)
            writer.write_batch(batch)
            rows_done += len(texts)
            chunks += batch.num_rows
            sizes = batch.column("end").to_numpy() - batch.column("start").to_numpy()
            chars += int(sizes.sum())
            longest = max(longest, int(sizes.max(initial=0)))
    return ChunkResult(documents=int(kept.sum()), chunks=chunks, chars=chars, longest_chunk_chars=longest)


def _chunk_batch(
    texts: list[str],
    kept: NDArray[np.bool_],
    first_row: int,
    *,
    max_chars: int,
    length: Literal["slice", "paper"],
    oversize: Literal["split", "keep"],
) -> pa.RecordBatch:
    doc_rows: list[int] = []
    spans: list[Span] = []
    joints: list[bool] = []
    for row in np.flatnonzero(kept).tolist():
        text = texts[row]
        chunk_spans = chunk_text(text, max_chars=max_chars, length=length, oversize=oversize)
        spans += chunk_spans
        doc_rows += [first_row + row] * len(chunk_spans)
        joints += [text[end - 1] != "\n" for _, end in chunk_spans]
    offsets = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(doc_rows, pa.int32()),
            pa.array(np.ascontiguousarray(offsets[:, 0])),
            pa.array(np.ascontiguousarray(offsets[:, 1])),
            pa.array(joints, pa.bool_()),
        ],
        schema=schemas.CHUNKS,
    )
