"""Decontaminate: remove chunks that share a run of words with evaluation texts.

In:  evaluation files of any layout (every string in them is used), and the documents
     and chunks of each shard.
Out: CHUNKS without the contaminated ones, and the number of chunks that each file
     matched.

Words are lower-cased runs of letters and digits. Runs of n words, 13 as for GPT-3
(Brown et al. 2020, appendix C), are searched in whole documents; a run across a chunk
boundary marks both chunks. A text of 8 to n - 1 words is compared as a whole; one of 3
to 7 words only if it is a question (it ends in a question mark, or its JSON key is
`question`), because short answers are names that occur in many documents.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools, Hashes, Ints
from nextlong.artifacts.corpus_files import read_chunks, record_batches
from nextlong.artifacts.results import ChunkFiles, ChunkResult, IngestFiles
from nextlong.engine.step import (
    Artifacts,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    TaskResult,
    each_shard,
)
from nextlong.errors import CorpusError
from nextlong.reading.compression import COMPRESSIONS, decompressed
from nextlong.reading.files import open_binary
from nextlong.recipe.keys import Decontaminate
from nextlong.retrieval.near_duplicates.shingles import (
    Words,
    bounds_of,
    hash_words,
    ngrams,
    runs_on,
)
from nextlong.text import Json

# Of a text, and of a question, that is compared as a whole.
_MIN_WORDS: Final = 8
_MIN_QUESTION_WORDS: Final = 3
_HEAD_WORDS: Final = 5
_BATCH_CHARS: Final = 1_000_000
_EXAMPLE_CHARS: Final = 200
_MAX_FIELD_CHARS: Final = 64_000_000  # of CSV; the default is 131,072
_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".md")
_KNOWN: Final = (
    "json, jsonl, ndjson, csv, tsv, txt or md, plain or compressed (.gz, .zst, .bz2, "
    ".xz, .lz4)"
)

# One row per distinct head: the hash of the first five words of a run (or all, if it
# has fewer); ascending by words, then hash.
_HEADS = np.dtype([("hash", "u8"), ("words", "u1")])
# One row per distinct run of words and file that contains it, ascending.
_GRAMS = np.dtype([("hash", "u8"), ("file", "u2"), ("words", "u1")])


class DecontaminateResult(ChunkResult):
    """Counts of the kept chunks, the number of removed ones, and matches per file.

    There is one `example`, in row `example_doc_row`; "" without a match.
    """

    contaminated: int
    files: dict[str, int]
    example: str
    example_doc_row: int = -1


class EvalNgramsFiles(StepFiles):
    """The n-grams of the evaluation texts, and the first of each text."""

    step = "eval_ngrams"
    heads = OnlyFile(".heads.npy")
    grams = OnlyFile(".grams.npy")


class DecontaminateFiles(ChunkFiles):
    """The CHUNKS that remain of every shard, and whether each one was contaminated."""

    step = "decontaminate"
    contaminated = ShardFiles(".contaminated.npy")


def decontaminate_steps(
    settings: Decontaminate, ingest: Step, chunk: Step
) -> list[Step]:
    """Return the steps that remove contaminated chunks.

    None if there are no evaluation files.
    """
    files = settings.files
    if not files:
        return []
    names = _names_of(files)
    hashes: list[list[str]] = []
    for file, name in zip(files, names, strict=True):
        with _explained(file), open_binary(file) as stream:
            content = stream.read()
        hashes.append([name, xxhash.xxh3_128_hexdigest(content)])
    read = partial(_evaluation_grams, files=files, ngram=settings.ngram)
    eval_ngrams = Step(
        name="eval_ngrams",
        phase="read",
        version=1,
        config={"files": hashes, "ngram": settings.ngram},
        inputs=(),
        tasks=lambda _: [read],
    )

    def given(done: Artifacts) -> Json:
        ngrams = EvalNgramsFiles.of(done)
        return {"heads": ngrams.heads, "grams": ngrams.grams}

    decontaminate = Step(
        name="decontaminate",
        phase="read",
        version=3,
        config={},
        inputs=(ingest, chunk, eval_ngrams),
        tasks=each_shard(
            partial(_decontaminate_shard, files=names),
            given=given,
            documents=(ingest, IngestFiles.documents),
            chunks=(chunk, ChunkFiles.chunks),
        ),
        result=DecontaminateResult,
    )
    return [eval_ngrams, decontaminate]


@contextmanager
def _explained(file: str) -> Iterator[None]:
    """Turn errors of reading an evaluation file into a CorpusError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(
            where="decontaminate",
            value=file,
            problem="does not exist",
            fix="correct the path or remove it",
        ) from None
    except (OSError, EOFError, ValueError, ImportError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(
            where="decontaminate",
            value=file,
            problem=f"cannot be read: {reason}",
            fix="repair or remove it",
        ) from None


def _names_of(files: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that differ.

    They are the same from every working directory.
    """
    here = Path.cwd()
    parts = []
    for file in files:
        path = file
        if "://" not in file:
            path = os.path.normpath(here / Path(file).expanduser())
        parts.append(PurePosixPath(path).parts)
    longest = max(map(len, parts))
    for length in range(1, longest):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(files)


def _evaluation_grams(out: Path, *, files: Sequence[str], ngram: int) -> TaskResult:
    """Write the runs of words of evaluation files: `{out}.heads.npy`, `.grams.npy`.

    The files are paths or URLs. No run starts where the next words are not a head,
    which excludes nearly all positions at once. Raises CorpusError for a file that is
    missing, unreadable, of unknown format, or without a text long enough to search for.
    """
    heads = [np.empty(0, _HEADS)]
    grams = [np.empty(0, _GRAMS)]
    for index, file in enumerate(files):
        has_run = False
        texts = _texts_of(file)
        while batch := list(_take(texts, _BATCH_CHARS)):
            words = hash_words("\n".join(batch))
            for length, starts in _runs(words, batch, ngram=ngram):
                head_words = min(length, _HEAD_WORDS)
                head_rows = np.empty(len(starts), _HEADS)
                head_rows["words"] = head_words
                head_rows["hash"] = ngrams(words.hashes, head_words)[starts]
                heads.append(head_rows)
                gram_rows = np.empty(len(starts), _GRAMS)
                gram_rows["words"] = length
                gram_rows["file"] = index
                gram_rows["hash"] = ngrams(words.hashes, length)[starts]
                grams.append(gram_rows)
                has_run = True
        if not has_run:
            min_words = min(ngram, _MIN_WORDS)
            min_question_words = min(ngram, _MIN_QUESTION_WORDS)
            raise CorpusError(
                where="decontaminate",
                value=file,
                problem=(
                    f"has no text of at least {min_words} words and no question "
                    f"of at least {min_question_words}, so there is nothing to "
                    "search for"
                ),
                fix="remove it from the list",
            )
    all_heads = _distinct(np.concatenate(heads), "words", "hash")
    all_grams = _distinct(np.concatenate(grams), "hash", "file")
    np.save(f"{out}.heads.npy", all_heads)
    np.save(f"{out}.grams.npy", all_grams)
    return TaskResult()


def _runs(
    words: Words, texts: Sequence[str], *, ngram: int
) -> Iterator[tuple[int, Ints]]:
    """Yield each length in words, and the first words of the runs of that length.

    A run is one of `ngram` words, or a whole text of fewer that is long enough.
    """
    bounds = bounds_of(words, texts)
    lengths = np.diff(bounds)
    is_question = np.fromiter(map(_is_question, texts), np.bool_)
    for length in range(min(_MIN_QUESTION_WORDS, ngram), ngram):
        is_compared = is_question | (length >= _MIN_WORDS)
        starts = bounds[:-1][(lengths == length) & is_compared]
        if len(starts):
            yield length, starts
    starts = np.flatnonzero(runs_on(bounds, ngram))
    if len(starts):
        yield ngram, starts


def _is_question(text: str) -> bool:
    return text.rstrip().endswith(("?", "？"))


def _distinct(rows: AnyArray, major: str, minor: str) -> AnyArray:
    """Return the rows that differ in two columns, ascending by these."""
    rows = rows[np.lexsort((rows[minor], rows[major]))]
    is_new = np.ones(len(rows), np.bool_)
    is_other_major = rows[major][1:] != rows[major][:-1]
    is_other_minor = rows[minor][1:] != rows[minor][:-1]
    is_new[1:] = is_other_major | is_other_minor
    return rows[is_new]


def _take(texts: Iterator[str], chars: int) -> Iterator[str]:
    """Yield texts until they have this many characters."""
    while chars > 0 and (text := next(texts, None)) is not None:
        yield text
        chars -= len(text)


def _texts_of(file: str) -> Iterator[str]:
    """Yield every string of a file except JSON keys.

    Of plain text, each line and each paragraph of several lines.
    """
    path = PurePosixPath(file)
    compression = COMPRESSIONS.get(path.suffix)
    kind = path.with_suffix("").suffix if compression else path.suffix
    if kind not in _SUFFIXES:
        raise CorpusError(
            where="decontaminate",
            value=file,
            problem="has an unknown format",
            fix=f"use files that end in {_KNOWN}",
        )
    with (
        _explained(file),
        open_binary(file) as raw,
        io.BufferedReader(
            decompressed(raw, compression) if compression else raw
        ) as content,
        io.TextIOWrapper(content, "utf-8-sig", newline="") as stream,
    ):
        if kind == ".json":
            yield from _strings(json.load(stream))
        elif kind in (".jsonl", ".ndjson"):
            for line in filter(str.strip, stream):
                yield from _strings(json.loads(line))
        elif kind in (".csv", ".tsv"):
            csv.field_size_limit(_MAX_FIELD_CHARS)
            for row in csv.reader(stream, delimiter="," if kind == ".csv" else "\t"):
                yield from row
        else:
            text = stream.read().replace("\r\n", "\n")
            for paragraph in text.split("\n\n"):
                # Each line may be a question, and all of them one text.
                lines = paragraph.split("\n")
                yield from lines
                if len(lines) > 1:
                    yield paragraph


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value.

    Also the joined strings of a list, because each alone may be too short.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            is_question = key == "question" and isinstance(inner, str)
            yield from _strings(f"{inner}?" if is_question else inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
        if len(value) > 1 and all(isinstance(inner, str) for inner in value):
            yield " ".join(value)


def _decontaminate_shard(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    heads: Path,
    grams: Path,
    files: Sequence[str],
) -> DecontaminateResult:
    """Write `{out}.contaminated.npy`, one bool per chunk row of the shard.

    And the other rows as `{out}.chunks.arrow`.
    """
    targets = _Targets(heads, grams)
    table = read_chunks(chunks)
    doc_rows = table["doc_row"]
    # (files, chunks): which chunks share a run with which file.
    is_matched = np.zeros((len(files), len(doc_rows)), np.bool_)
    example = ""
    example_doc_row = -1
    for first_doc, batch in record_batches(documents):
        # The chunks of the batch are rows [low, high). Only documents with chunks are
        # searched, joined to one text.
        low, high = np.searchsorted(doc_rows, [first_doc, first_doc + batch.num_rows])
        if low == high:
            continue
        rows, text_of_chunk = np.unique(
            doc_rows[low:high] - first_doc, return_inverse=True
        )
        column = batch.column("text").take(pa.array(rows))
        texts = column.to_pylist()
        text = "\n".join(texts)
        text_starts = np.cumsum([0, *(len(piece) + 1 for piece in texts)])
        matches = _matches(hash_words(text), text_starts, targets)
        chunk_starts = text_starts[text_of_chunk] + table["start"][low:high]
        is_matched[:, low:high] = _overlapped(matches, chunk_starts, files=len(files))
        if len(matches.firsts) and not example:
            first = matches.firsts[0]
            shared = text[first : matches.lasts[0]][:_EXAMPLE_CHARS]
            example = f"{files[matches.files[0]]}: {shared}"
            text_index = np.searchsorted(text_starts, first, side="right") - 1
            example_doc_row = first_doc + int(rows[text_index])

    is_contaminated: Bools = np.logical_or.reduce(is_matched, axis=0)
    np.save(f"{out}.contaminated.npy", is_contaminated)
    kept = {name: column[~is_contaminated] for name, column in table.items()}
    columns = list(map(pa.array, kept.values()))
    batch = pa.record_batch(columns, schema=schemas.CHUNKS)
    with (
        pa.OSFile(f"{out}.chunks.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        writer.write_batch(batch)
    matched_chunks = is_matched.sum(axis=1).tolist()
    kept_documents = np.unique(kept["doc_row"])
    kept_chars = (kept["end"] - kept["start"]).sum()
    return DecontaminateResult(
        documents=len(kept_documents),
        chunks=batch.num_rows,
        chars=int(kept_chars),
        contaminated=int(is_contaminated.sum()),
        files=dict(zip(files, matched_chunks, strict=True)),
        example=example,
        example_doc_row=example_doc_row,
    )


class _Matches(NamedTuple):
    """Matches in a text, in order: first character, end, evaluation file; (m,)."""

    firsts: Ints
    lasts: Ints
    files: NDArray[np.uint16]


def _overlapped(matches: _Matches, chunk_starts: Ints, *, files: int) -> Bools:
    """Return which chunks a match of each file overlaps, (files, chunks).

    `changes[f, c]` is the number of matches of file f that begin in chunk c, minus
    those that ended before it. Its cumulative sum over the chunks counts the matches
    that overlap each chunk.
    """
    first_chunks = np.searchsorted(chunk_starts, matches.firsts, side="right") - 1
    next_chunks = np.searchsorted(chunk_starts, matches.lasts - 1, side="right")
    changes = np.zeros((files, len(chunk_starts) + 1), np.int64)
    np.add.at(changes, (matches.files, first_chunks), 1)
    np.add.at(changes, (matches.files, next_chunks), -1)
    overlapping: Ints = np.cumsum(changes, axis=1)[:, :-1]
    return overlapping > 0


class _Targets:
    """The heads and runs of `_evaluation_grams`, prepared for searching."""

    def __init__(self, heads: Path, grams: Path) -> None:
        head_rows = np.load(heads)
        gram_rows = np.load(grams)
        # By length in words: the hashes, ascending, and which of their last bits occur
        # (at most 64 MB), which avoids most searches.
        self.heads: dict[int, tuple[Hashes, Bools]] = {}
        for length in np.unique(head_rows["words"]).tolist():
            ascending = head_rows["hash"][head_rows["words"] == length]
            needed_bits = (8 * len(ascending)).bit_length()
            bits = min(max(needed_bits, 12), 26)
            occurs = np.zeros(1 << bits, np.bool_)
            occurs[ascending & np.uint64(len(occurs) - 1)] = True
            self.heads[length] = ascending, occurs
        # (g,) hash of each run, ascending, and its file; and the distinct lengths in
        # words.
        self.hashes = np.ascontiguousarray(gram_rows["hash"])
        self.files = np.ascontiguousarray(gram_rows["file"])
        self.lengths = np.unique(gram_rows["words"]).tolist()


def _matches(words: Words, text_starts: Ints, targets: _Targets) -> _Matches:
    """Return every match, in order; none crosses into the next text."""
    # By length in words, the words at which a head begins.
    head_starts: dict[int, Ints] = {}
    for length, (ascending, occurs) in targets.heads.items():
        hashes = ngrams(words.hashes, length)
        may_be_head = occurs[hashes & np.uint64(len(occurs) - 1)]
        starts = np.flatnonzero(may_be_head)
        head_starts[length] = starts[_find(ascending, hashes[starts]) >= 0]

    firsts = [np.empty(0, np.int64)]
    lasts = [np.empty(0, np.int64)]
    files = [np.empty(0, np.uint16)]
    for length in targets.lengths:
        starts = head_starts[min(length, _HEAD_WORDS)]
        starts = starts[starts + length <= len(words.hashes)]
        next_texts = np.searchsorted(text_starts, words.starts[starts], side="right")
        text_ends = text_starts[next_texts]
        starts = starts[words.ends[starts + length - 1] <= text_ends]
        # The `length` words from each start, one run after the other; every `length`-th
        # of their n-grams is a run.
        run_words = words.hashes[starts[:, None] + np.arange(length)].ravel()
        rows = _find(targets.hashes, ngrams(run_words, length)[::length])
        is_run = rows >= 0
        starts = starts[is_run]
        rows = rows[is_run]
        # A run of several files has consecutive rows.
        while len(starts):
            firsts.append(words.starts[starts])
            lasts.append(words.ends[starts + length - 1])
            files.append(targets.files[rows])
            has_next = rows + 1 < len(targets.hashes)
            starts = starts[has_next]
            rows = rows[has_next] + 1
            is_same = targets.hashes[rows] == targets.hashes[rows - 1]
            starts = starts[is_same]
            rows = rows[is_same]

    all_firsts = np.concatenate(firsts)
    all_lasts = np.concatenate(lasts)
    all_files = np.concatenate(files)
    order = np.lexsort((all_files, all_lasts, all_firsts))
    return _Matches(all_firsts[order], all_lasts[order], all_files[order])


def _find(ascending: Hashes, values: Hashes) -> Ints:
    """Return the first row with each value, shape (n,); −1 if there is none."""
    rows = np.searchsorted(ascending, values)
    is_found: Bools = np.less(rows, len(ascending))
    is_found[is_found] = ascending[rows[is_found]] == values[is_found]
    return np.where(is_found, rows, -1)
