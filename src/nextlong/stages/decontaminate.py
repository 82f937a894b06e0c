"""Decontaminate: which chunks share a run of n words with evaluation texts.

In:  evaluation files of any layout (every string in them counts), and the documents and chunks of one shard.
Out: one bool a chunk, and how many chunks each file met.

Words are lower-cased runs of letters and digits, so punctuation and layout hide nothing. Runs are sought in whole documents and
then mapped to the chunks they lie in: one that the chunker cut marks both. 13 words are the measure of GPT-3 (Brown et
al. 2020, appendix C). Most questions are shorter: a text of 8 words or more counts as a whole, one of 5 to 7 words only if it
is a question, because answers of that length are names ("People's Republic of China"), which stand in many documents.
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
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.errors import CorpusError
from nextlong.stages.chunk import read_chunks
from nextlong.stages.near_copies import Words, bounds_of, hash_words, ngrams, runs_on

_LEAST_WORDS: Final = 8
_LEAST_QUESTION_WORDS: Final = 5
_BATCH_CHARS: Final = 1_000_000
_EXAMPLE_CHARS: Final = 200
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_KNOWN: Final = "json, jsonl, ndjson, csv, tsv, txt or md, plain or with .gz or .zst after it"

# One row a distinct run of words and file that holds it, ascending.
GRAMS = np.dtype([("hash", "u8"), ("file", "u2"), ("words", "u1")])


class EvaluationGrams(NamedTuple):
    """What to look for; a place whose first words are no `head` starts no run, which settles nearly all places at once."""

    heads: NDArray[np.uint64]  # (h,) ascending hashes of the first `head_words(ngram)` words of each run
    grams: NDArray[Any]  # (g,) GRAMS


def head_words(ngram: int) -> int:
    """Return how many words are looked at first."""
    return min(_LEAST_QUESTION_WORDS, ngram)


def read_evaluation(files: Sequence[str], *, ngram: int) -> EvaluationGrams:
    """Return the runs of words of evaluation files (paths or URLs).

    Raises CorpusError for a file that is missing, unreadable, of unknown format, or without a text long enough to look for.
    """
    heads, grams = [np.empty(0, np.uint64)], [np.empty(0, GRAMS)]
    for number, file in enumerate(files):
        found = 0
        for texts in _batches(_texts_of(file)):
            starts, hashes, words = _runs_of(texts, ngram)
            rows = np.empty(len(hashes), GRAMS)
            rows["hash"], rows["file"], rows["words"] = hashes, number, words
            heads.append(np.unique(starts))
            grams.append(rows)
            found += len(rows)
        if not found:
            raise CorpusError(
                f"decontaminate: {file} holds no text of {min(ngram, _LEAST_WORDS)} words or more and no question of "
                f"{head_words(ngram)}, so there is nothing to look for; remove it from the list"
            )
    rows = np.concatenate(grams)
    rows = rows[np.lexsort((rows["file"], rows["hash"]))]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows["hash"][1:] != rows["hash"][:-1]) | (rows["file"][1:] != rows["file"][:-1])
    return EvaluationGrams(np.unique(np.concatenate(heads)), rows[is_new])


def evaluation_grams(out: Path, *, files: Sequence[str], ngram: int) -> dict[str, Any]:
    """Write what `read_evaluation` finds as `{out}.heads.npy` and `{out}.grams.npy`; return the runs of each file."""
    found = read_evaluation(files, ngram=ngram)
    np.save(f"{out}.heads.npy", found.heads)
    np.save(f"{out}.grams.npy", found.grams)
    runs = np.bincount(found.grams["file"], minlength=len(files)).tolist()
    return {"runs": len(found.grams), "files": dict(zip(files, runs, strict=True))}


def _runs_of(texts: list[str], ngram: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]:
    """Return head, hash and number of words of every run to look for."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    counts = np.diff(bounds)
    heads = ngrams(words.hashes, head_words(ngram))
    places = [np.flatnonzero(runs_on(bounds, ngram))]
    lengths = [ngram]
    is_question = np.array([text.rstrip().endswith(("?", "？")) for text in texts], np.bool_)
    for length in range(head_words(ngram), ngram):
        places.append(bounds[:-1][(counts == length) & (is_question | (length >= _LEAST_WORDS))])
        lengths.append(length)
    return (
        heads[np.concatenate(places)],
        np.concatenate([ngrams(words.hashes, length)[at] for at, length in zip(places, lengths, strict=True)]),
        np.repeat(np.array(lengths, np.uint8), [len(at) for at in places]),
    )


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
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
        if len(value) > 1 and all(isinstance(inner, str) for inner in value):
            yield " ".join(value)


def _csv(stream: io.TextIOWrapper, delimiter: str = ",") -> Iterator[str]:
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


def contaminated_shard(
    out: Path, *, documents: Path, chunks: Path, heads: Path, grams: Path, files: Sequence[str], ngram: int
) -> dict[str, Any]:
    """Write `{out}.contaminated.npy`, one bool a chunk row of the shard; return how many chunks each file met.

    `heads` and `grams` are what `evaluation_grams` wrote for `files` and `ngram`. `example` shows the first match.
    """
    wanted = _Wanted.of(EvaluationGrams(np.load(heads), np.load(grams)))
    table = read_chunks(chunks)
    met = np.zeros((len(files), len(table["doc_row"])), np.bool_)
    example, first_doc = "", 0
    with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            low, high = np.searchsorted(table["doc_row"], [first_doc, first_doc + batch.num_rows])
            if low < high:
                rows, text_of_chunk = np.unique(table["doc_row"][low:high] - first_doc, return_inverse=True)
                texts = batch.column("text").take(pa.array(rows)).to_pylist()
                text = "\n".join(texts)
                text_starts = np.cumsum([0, *(len(piece) + 1 for piece in texts)])
                firsts, lasts, of_file = _matches(hash_words(text), text_starts, wanted, ngram)
                starts = text_starts[text_of_chunk] + table["start"][low:high]
                met[:, low:high] = _chunks_met(firsts, lasts, of_file, starts, len(files))
                if len(firsts) and not example:
                    example = f"{files[of_file[0]]}: {text[firsts[0] : lasts[0]][:_EXAMPLE_CHARS]}"
            first_doc += batch.num_rows
    contaminated: NDArray[np.bool_] = np.logical_or.reduce(met, axis=0)
    np.save(f"{out}.contaminated.npy", contaminated)
    return {
        "chunks": len(contaminated),
        "contaminated": int(contaminated.sum()),
        "files": dict(zip(files, met.sum(axis=1).tolist(), strict=True)),
        "example": example,
    }


class _Wanted(NamedTuple):
    """EvaluationGrams, laid out for looking up."""

    heads: NDArray[np.uint64]
    is_head: NDArray[np.bool_]  # by lowest bits: True for every head, and for at most about one other in sixteen
    hashes: NDArray[np.uint64]
    files: NDArray[np.uint16]
    lengths: list[int]  # of the runs, in words

    @classmethod
    def of(cls, evaluation: EvaluationGrams) -> _Wanted:
        bits = min(max((16 * len(evaluation.heads)).bit_length(), 16), 26)
        is_head = np.zeros(1 << bits, np.bool_)
        is_head[evaluation.heads & np.uint64(len(is_head) - 1)] = True
        hashes, files = (np.ascontiguousarray(evaluation.grams[name]) for name in ("hash", "file"))
        return cls(evaluation.heads, is_head, hashes, files, np.unique(evaluation.grams["words"]).tolist())


def _matches(
    words: Words, text_starts: NDArray[np.int64], wanted: _Wanted, ngram: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16]]:
    """Return first and last character and file of every run found, in order of place; none reaches into the next text."""
    heads = ngrams(words.hashes, head_words(ngram))
    places = np.flatnonzero(wanted.is_head[heads & np.uint64(len(wanted.is_head) - 1)])
    places = places[_find(wanted.heads, heads[places]) >= 0]
    text_ends = text_starts[np.searchsorted(text_starts, words.starts[places], side="right")]
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))]
    for length in wanted.lengths:
        inside: NDArray[np.bool_] = places + length <= len(words.hashes)
        inside[inside] = words.ends[places[inside] + length - 1] <= text_ends[inside]
        at = places[inside]
        rows = _find(wanted.hashes, _grams_at(words.hashes, at, length))
        at, rows = at[rows >= 0], rows[rows >= 0]
        while len(at):  # a run may stand in several files: its rows follow each other
            found.append((words.starts[at], words.ends[at + length - 1], wanted.files[rows]))
            more = rows + 1 < len(wanted.hashes)
            at, rows = at[more], rows[more] + 1
            same = wanted.hashes[rows] == wanted.hashes[rows - 1]
            at, rows = at[same], rows[same]
    firsts, lasts, of_file = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((of_file, lasts, firsts))
    return firsts[order], lasts[order], of_file[order]


def _find(ascending: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the first row that holds each value, shape (n,); −1 where none does."""
    rows = np.searchsorted(ascending, values)
    held: NDArray[np.bool_] = np.less(rows, len(ascending))
    held[held] = ascending[rows[held]] == values[held]
    return np.where(held, rows, -1)


def _grams_at(word_hashes: NDArray[np.uint64], places: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    if not len(places):
        return np.empty(0, np.uint64)
    runs = word_hashes[places[:, None] + np.arange(length)].ravel()
    return ngrams(runs, length)[::length]


def _chunks_met(
    firsts: NDArray[np.int64],
    lasts: NDArray[np.int64],
    of_file: NDArray[np.uint16],
    chunk_starts: NDArray[np.int64],
    files: int,
) -> NDArray[np.bool_]:
    """Return which chunks each file's runs lie in, shape (files, chunks)."""
    changes = np.zeros((files, len(chunk_starts) + 1), np.int64)
    np.add.at(changes, (of_file, np.searchsorted(chunk_starts, firsts, side="right") - 1), 1)
    np.add.at(changes, (of_file, np.searchsorted(chunk_starts, lasts - 1, side="right")), -1)
    met: NDArray[np.bool_] = np.cumsum(changes, axis=1)[:, :-1] > 0
    return met
