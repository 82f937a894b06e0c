"""Decontaminate: remove chunks that share a run of words with evaluation texts.

In:  evaluation files of any layout (every string in them is used), and the documents and chunks of each shard.
Out: CHUNKS without the contaminated ones, and the number of chunks that each file matched.

Words are lower-cased runs of letters and digits. Runs of n words, 13 as for GPT-3 (Brown et al. 2020, appendix C), are searched
in whole documents; a run across a chunk boundary marks both chunks. A text of 8 to n - 1 words is compared as a whole; one of 3
to 7 words only if it is a question (it ends in a question mark, or its JSON key is `question`), because short answers are names
that occur in many documents.
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
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.corpus_files import read_chunks, record_batches
from nextlong.artifacts.results import ChunkFiles, ChunkResult, IngestFiles
from nextlong.engine.step import (
    Artifacts,
    OnlyFile,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    Work,
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

_LEAST_WORDS: Final = 8
_LEAST_QUESTION_WORDS: Final = 3
_HEAD_WORDS: Final = 5
_BATCH_CHARS: Final = 1_000_000
_EXAMPLE_CHARS: Final = 200
_LONGEST_FIELD_CHARS: Final = 64_000_000
_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".md")
_KNOWN: Final = "json, jsonl, ndjson, csv, tsv, txt or md, plain or compressed (.gz, .zst, .bz2, .xz, .lz4)"

# One row per distinct head: the hash of the first five words of a run (or all, if it has fewer); ascending by words, then hash.
_HEADS = np.dtype([("hash", "u8"), ("words", "u1")])
# One row per distinct run of words and file that contains it, ascending.
_GRAMS = np.dtype([("hash", "u8"), ("file", "u2"), ("words", "u1")])


class DecontaminateResult(ChunkResult):
    """Counts of the kept chunks, the number of removed ones, matches per file, and one `example` in row `example_doc_row`."""

    contaminated: int
    files: dict[str, int]
    example: str  # "" without a match
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
    """Return the steps that remove contaminated chunks; none if there are no evaluation files."""
    files, ngram = settings.files, settings.ngram
    if not files:
        return []
    names = _names_of(files)
    hashes: list[list[str]] = []
    grams = [partial(_evaluation_grams, files=files, ngram=ngram)]
    for file, name in zip(files, names, strict=True):
        with _explained(file), open_binary(file) as stream:
            content = stream.read()
        hashes.append([name, xxhash.xxh3_128_hexdigest(content)])
    eval_ngrams = Step(
        "eval_ngrams",
        1,
        {"files": hashes, "ngram": ngram},
        (),
        lambda _: grams,
    )

    def tasks(done: Artifacts) -> Sequence[Task] | Work:
        ngrams = EvalNgramsFiles.of(done)
        task = partial(
            _decontaminate_shard, heads=ngrams.heads, grams=ngrams.grams, files=names
        )
        return each_shard(
            task,
            documents=(ingest, IngestFiles.documents),
            chunks=(chunk, ChunkFiles.chunks),
        )(done)

    inputs = (ingest, chunk, eval_ngrams)
    return [
        eval_ngrams,
        Step(
            "decontaminate",
            3,
            {},
            inputs,
            tasks,
            DecontaminateResult,
        ),
    ]


@contextmanager
def _explained(file: str) -> Iterator[None]:
    """Turn errors of reading an evaluation file into a CorpusError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError(
            f"decontaminate: {file} does not exist; correct the path or remove it"
        ) from None
    except (OSError, EOFError, ValueError, ImportError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"decontaminate: {file} cannot be read: {reason}; repair or remove it"
        ) from None


def _names_of(files: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that differ, which are the same from every working directory."""
    here = Path.cwd()
    parts = []
    for file in files:
        is_url = "://" in file
        path = file if is_url else os.path.normpath(here / Path(file).expanduser())
        parts.append(PurePosixPath(path).parts)
    for length in range(1, max(map(len, parts))):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(files)


def _evaluation_grams(out: Path, *, files: Sequence[str], ngram: int) -> TaskResult:
    """Write the runs of words of evaluation files (paths or URLs) as `{out}.heads.npy` and `{out}.grams.npy`.

    No run starts where the next words are not a head, which excludes nearly all positions at once. Raises CorpusError for a
    file that is missing, unreadable, of unknown format, or without a text long enough to search for.
    """
    # Heads: hash and length in words. Runs: hash, file and length.
    heads, grams = [np.empty(0, _HEADS)], [np.empty(0, _GRAMS)]
    for number, file in enumerate(files):
        file_runs, texts = 0, _texts_of(file)
        while batch := list(_take(texts, _BATCH_CHARS)):
            words = hash_words("\n".join(batch))
            bounds = bounds_of(words, batch)
            is_question = np.array(
                [text.rstrip().endswith(("?", "？")) for text in batch], np.bool_
            )
            for length in range(min(_LEAST_QUESTION_WORDS, ngram), ngram + 1):
                if length == ngram:
                    at = np.flatnonzero(runs_on(bounds, ngram))
                else:
                    at = bounds[:-1][
                        (np.diff(bounds) == length)
                        & (is_question | (length >= _LEAST_WORDS))
                    ]
                if len(at):
                    heads.append(np.empty(len(at), _HEADS))
                    heads[-1]["words"] = size = min(length, _HEAD_WORDS)
                    heads[-1]["hash"] = ngrams(words.hashes, size)[at]
                    grams.append(np.empty(len(at), _GRAMS))
                    grams[-1]["words"], grams[-1]["file"] = length, number
                    grams[-1]["hash"] = ngrams(words.hashes, length)[at]
                    file_runs += len(at)
        if not file_runs:
            raise CorpusError(
                f"decontaminate: {file} has no text of at least {min(ngram, _LEAST_WORDS)} words and no question of at least "
                f"{min(ngram, _LEAST_QUESTION_WORDS)}, so there is nothing to search for; remove it from the list"
            )
    for name, parts, major, minor in (
        ("heads", heads, "words", "hash"),
        ("grams", grams, "hash", "file"),
    ):
        # Distinct rows, ascending by two columns.
        rows = np.concatenate(parts)
        rows = rows[np.lexsort((rows[minor], rows[major]))]
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = (rows[major][1:] != rows[major][:-1]) | (
            rows[minor][1:] != rows[minor][:-1]
        )
        np.save(f"{out}.{name}.npy", rows[is_new])
    return TaskResult()


def _take(texts: Iterator[str], chars: int) -> Iterator[str]:
    """Yield texts until they have this many characters."""
    while chars > 0 and (text := next(texts, None)) is not None:
        yield text
        chars -= len(text)


def _texts_of(file: str) -> Iterator[str]:
    """Yield every string of a file except JSON keys; of plain text, each line and each paragraph of several lines."""
    path = PurePosixPath(file)
    compression = COMPRESSIONS.get(path.suffix)
    kind = path.with_suffix("").suffix if compression else path.suffix
    if kind not in _SUFFIXES:
        raise CorpusError(
            f"decontaminate: {file} has an unknown format; use files that end in {_KNOWN}"
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
            csv.field_size_limit(
                _LONGEST_FIELD_CHARS
            )  # the default is 131,072 characters
            for row in csv.reader(stream, delimiter="," if kind == ".csv" else "\t"):
                yield from row
        else:
            for paragraph in stream.read().replace("\r\n", "\n").split("\n\n"):
                lines = paragraph.split(
                    "\n"
                )  # each line may be a question, and all of them one text
                yield from lines if len(lines) == 1 else [*lines, paragraph]


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value; also the joined strings of a list, because each alone may be too short."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(
                f"{inner}?" if key == "question" and isinstance(inner, str) else inner
            )
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
    """Write `{out}.contaminated.npy`, one bool per chunk row of the shard, and the other rows as `{out}.chunks.arrow`."""
    targets = _Targets(heads, grams)
    table = read_chunks(chunks)
    matched = np.zeros(
        (len(files), len(table["doc_row"])), np.bool_
    )  # which chunks share a run with which file
    example, example_doc_row = "", -1
    for first_doc, batch in record_batches(documents):
        # The chunks of the batch are rows [low, high). Only documents with chunks are searched, joined to one text.
        low, high = np.searchsorted(
            table["doc_row"], [first_doc, first_doc + batch.num_rows]
        )
        if low < high:
            rows, text_of_chunk = np.unique(
                table["doc_row"][low:high] - first_doc, return_inverse=True
            )
            texts = batch.column("text").take(pa.array(rows)).to_pylist()
            text = "\n".join(texts)
            text_starts = np.cumsum([0, *(len(piece) + 1 for piece in texts)])
            firsts, lasts, of_file = _matches(hash_words(text), text_starts, targets)
            starts = text_starts[text_of_chunk] + table["start"][low:high]
            # changes[f, c] is the number of matches of file f that begin in chunk c, minus those that ended before it. Its
            # cumulative sum over the chunks counts the matches that overlap each chunk.
            changes = np.zeros((len(files), len(starts) + 1), np.int64)
            np.add.at(
                changes, (of_file, np.searchsorted(starts, firsts, side="right") - 1), 1
            )
            np.add.at(
                changes, (of_file, np.searchsorted(starts, lasts - 1, side="right")), -1
            )
            matched[:, low:high] = np.cumsum(changes, axis=1)[:, :-1] > 0
            if len(firsts) and not example:
                example = f"{files[of_file[0]]}: {text[firsts[0] : lasts[0]][:_EXAMPLE_CHARS]}"
                example_doc_row = first_doc + int(
                    rows[np.searchsorted(text_starts, firsts[0], side="right") - 1]
                )
    contaminated: NDArray[np.bool_] = np.logical_or.reduce(matched, axis=0)
    np.save(f"{out}.contaminated.npy", contaminated)
    kept = {name: column[~contaminated] for name, column in table.items()}
    batch = pa.record_batch(list(map(pa.array, kept.values())), schema=schemas.CHUNKS)
    with (
        pa.OSFile(f"{out}.chunks.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        writer.write_batch(batch)
    return DecontaminateResult(
        documents=len(np.unique(kept["doc_row"])),
        chunks=batch.num_rows,
        chars=int((kept["end"] - kept["start"]).sum()),
        contaminated=int(contaminated.sum()),
        files=dict(zip(files, matched.sum(axis=1).tolist(), strict=True)),
        example=example,
        example_doc_row=example_doc_row,
    )


class _Targets:
    """The heads and runs of `_evaluation_grams`, prepared for searching."""

    def __init__(self, heads: Path, grams: Path) -> None:
        # By length in words: hashes, ascending, and which of their last bits occur (at most 64 MB), which avoids most searches.
        self.heads: dict[int, tuple[NDArray[np.uint64], NDArray[np.bool_]]] = {}
        rows, runs = np.load(heads), np.load(grams)
        for size in np.unique(rows["words"]).tolist():
            ascending = rows["hash"][rows["words"] == size]
            occurs = np.zeros(
                1 << min(max((8 * len(ascending)).bit_length(), 12), 26), np.bool_
            )
            occurs[ascending & np.uint64(len(occurs) - 1)] = True
            self.heads[size] = ascending, occurs
        # (g,) hash of each run, ascending, and its file; and the distinct lengths in words.
        self.hashes, self.files = (
            np.ascontiguousarray(runs[name]) for name in ("hash", "file")
        )
        self.lengths = np.unique(runs["words"]).tolist()


def _matches(
    words: Words, text_starts: NDArray[np.int64], targets: _Targets
) -> tuple[NDArray[Any], ...]:
    """Return first character, last character and file of every match, in order; no match crosses into the next text."""
    # Of each match: first character, end of the last character, number of the evaluation file.
    columns = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))]
    places = {}  # of heads, by length in words
    for size, (ascending, occurs) in targets.heads.items():
        of_words = ngrams(words.hashes, size)
        at = np.flatnonzero(occurs[of_words & np.uint64(len(occurs) - 1)])
        places[size] = at[_find(ascending, of_words[at]) >= 0]
    for length in targets.lengths:
        at = places[min(length, _HEAD_WORDS)]
        at = at[at + length <= len(words.hashes)]
        text_ends = text_starts[
            np.searchsorted(text_starts, words.starts[at], side="right")
        ]
        at = at[words.ends[at + length - 1] <= text_ends]
        # The `length` words from each place, one run after the other; every `length`-th of their n-grams is a run.
        rows = _find(
            targets.hashes,
            ngrams(words.hashes[at[:, None] + np.arange(length)].ravel(), length)[
                ::length
            ],
        )
        at, rows = at[rows >= 0], rows[rows >= 0]
        while len(at):  # a run of several files has consecutive rows
            columns.append(
                (words.starts[at], words.ends[at + length - 1], targets.files[rows])
            )
            more = rows + 1 < len(targets.hashes)
            at, rows = at[more], rows[more] + 1
            same = targets.hashes[rows] == targets.hashes[rows - 1]
            at, rows = at[same], rows[same]
    firsts, lasts, of_file = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    order = np.lexsort((of_file, lasts, firsts))
    return firsts[order], lasts[order], of_file[order]


def _find(
    ascending: NDArray[np.uint64], values: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the first row with each value, shape (n,); −1 if there is none."""
    rows = np.searchsorted(ascending, values)
    held: NDArray[np.bool_] = np.less(rows, len(ascending))
    held[held] = ascending[rows[held]] == values[held]
    return np.where(held, rows, -1)
