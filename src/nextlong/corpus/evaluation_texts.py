"""Evaluation texts: which runs of n words to look for in the corpus.

In:  evaluation files of any layout (every string in them counts).
Out: hashes of the runs of words, each with the file that holds it.

13 words are the measure of GPT-3 (Brown et al. 2020, appendix C). Most questions are shorter: a text of 8 words or more
counts as a whole, one of 3 to 7 only if it is a question (it ends in a question mark, or JSON calls it one), because answers
of that length are names ("People's Republic of China"), which stand in many documents.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np
from numpy.typing import NDArray

from nextlong.errors import CorpusError
from nextlong.results import EvalNgramsResult
from nextlong.similarity.words import bounds_of, hash_words, ngrams, runs_on

_LEAST_WORDS: Final = 8
_LEAST_QUESTION_WORDS: Final = 3
HEAD_WORDS: Final = 5
_BATCH_CHARS: Final = 1_000_000
_LONGEST_FIELD_CHARS: Final = 64_000_000
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_KNOWN: Final = "json, jsonl, ndjson, csv, tsv, txt or md, plain or with .gz or .zst after it"

# One row a distinct head: the first five words of a run, or all if it has fewer; ascending by words, then hash.
HEADS = np.dtype([("hash", "u8"), ("words", "u1")])
# One row a distinct run of words and file that holds it, ascending.
GRAMS = np.dtype([("hash", "u8"), ("file", "u2"), ("words", "u1")])


class EvaluationGrams(NamedTuple):
    """What to look for. A place whose next words are no head starts no run, which settles nearly all places at once."""

    heads: NDArray[Any]  # (h,) HEADS
    grams: NDArray[Any]  # (g,) GRAMS


def read_evaluation(files: Sequence[str], *, ngram: int) -> EvaluationGrams:
    """Return the runs of words of evaluation files (paths or URLs).

    Raises CorpusError for a file that is missing, unreadable, of unknown format, or without a text long enough to look for.
    """
    heads, grams = [np.empty(0, HEADS)], [np.empty(0, GRAMS)]
    for number, file in enumerate(files):
        file_runs = 0
        for texts in _batches(_texts_of(file)):
            for length, starts, hashes in _runs_of(texts, ngram):
                heads.append(_rows(HEADS, hash=starts, words=min(length, HEAD_WORDS)))
                grams.append(_rows(GRAMS, hash=hashes, file=number, words=length))
                file_runs += len(hashes)
        if not file_runs:
            raise CorpusError(
                f"decontaminate: {file} holds no text of {min(ngram, _LEAST_WORDS)} words or more and no question of "
                f"{min(ngram, _LEAST_QUESTION_WORDS)}, so there is nothing to look for; remove it from the list"
            )
    return EvaluationGrams(
        _distinct(np.concatenate(heads), "words", "hash"), _distinct(np.concatenate(grams), "hash", "file")
    )


def _rows(kind: Any, **columns: Any) -> NDArray[Any]:
    rows = np.empty(len(columns["hash"]), kind)
    for name, values in columns.items():
        rows[name] = values
    return rows


def _distinct(rows: NDArray[Any], major: str, minor: str) -> NDArray[Any]:
    """Return the rows ascending by two columns, one of each pair of values."""
    rows = rows[np.lexsort((rows[minor], rows[major]))]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[major][1:] != rows[major][:-1]) | (rows[minor][1:] != rows[minor][:-1])
    return rows[is_new]


def evaluation_grams(out: Path, *, files: Sequence[str], ngram: int) -> EvalNgramsResult:
    """Write what `read_evaluation` finds as `{out}.heads.npy` and `{out}.grams.npy`; return the runs of each file."""
    evaluation = read_evaluation(files, ngram=ngram)
    np.save(f"{out}.heads.npy", evaluation.heads)
    np.save(f"{out}.grams.npy", evaluation.grams)
    runs = np.bincount(evaluation.grams["file"], minlength=len(files)).tolist()
    return EvalNgramsResult(runs=len(evaluation.grams), files=dict(zip(files, runs, strict=True)))


def _runs_of(texts: list[str], ngram: int) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the runs to look for, by their length in words: the hashes of their heads and of the whole."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    is_question = np.array([text.rstrip().endswith(("?", "？")) for text in texts], np.bool_)
    for length in range(min(_LEAST_QUESTION_WORDS, ngram), ngram + 1):
        if length == ngram:
            at = np.flatnonzero(runs_on(bounds, ngram))
        else:
            at = bounds[:-1][(np.diff(bounds) == length) & (is_question | (length >= _LEAST_WORDS))]
        if len(at):
            yield length, ngrams(words.hashes, min(length, HEAD_WORDS))[at], ngrams(words.hashes, length)[at]


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    held: list[str] = []
    chars = 0
    for text in texts:
        held.append(text)
        chars += len(text)
        if chars >= _BATCH_CHARS:
            yield held
            held, chars = [], 0
    if held:
        yield held


def _texts_of(file: str) -> Iterator[str]:
    """Yield every string of a file, keys of JSON objects aside."""
    path = PurePosixPath(file)
    compression = _COMPRESSIONS.get(path.suffix)
    kind = path.with_suffix("").suffix if compression else path.suffix
    readers = {
        ".json": _json, ".jsonl": _json_lines, ".ndjson": _json_lines,
        ".csv": _csv, ".tsv": _tsv, ".txt": _plain, ".md": _plain,
    }  # fmt: skip
    if kind not in readers:
        raise CorpusError(f"decontaminate: {file} is of no known format; name files that end in {_KNOWN}")
    try:
        with (
            fsspec.open(file, "rb", compression=compression) as raw,
            io.TextIOWrapper(raw, "utf-8-sig", newline="") as text,
        ):
            yield from readers[kind](text)
    except FileNotFoundError:
        raise CorpusError(f"decontaminate: {file} does not exist; correct the path or remove it") from None
    except (OSError, EOFError, ValueError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(
            f"decontaminate: {file} cannot be read as {kind[1:]}: {reason}; mend it or remove it"
        ) from None


def _json(stream: io.TextIOWrapper) -> Iterator[str]:
    yield from _strings(json.load(stream))


def _json_lines(stream: io.TextIOWrapper) -> Iterator[str]:
    for line in stream:
        if line.strip():
            yield from _strings(json.loads(line))


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value; those of a list of strings joined as well, for each alone may be too short."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            is_bare_question = key == "question" and isinstance(inner, str)
            yield from _strings(f"{inner}?" if is_bare_question else inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
        if len(value) > 1 and all(isinstance(inner, str) for inner in value):
            yield " ".join(value)


def _csv(stream: io.TextIOWrapper, delimiter: str = ",") -> Iterator[str]:
    csv.field_size_limit(_LONGEST_FIELD_CHARS)  # the module's own is 131,072 characters
    for row in csv.reader(stream, delimiter=delimiter):
        yield from row


def _tsv(stream: io.TextIOWrapper) -> Iterator[str]:
    return _csv(stream, "\t")


def _plain(stream: io.TextIOWrapper) -> Iterator[str]:
    """Yield each line, which may be a question, and each paragraph, whose lines may be one text."""
    for paragraph in stream.read().replace("\r\n", "\n").split("\n\n"):
        lines = paragraph.split("\n")
        yield from lines
        if len(lines) > 1:
            yield paragraph
