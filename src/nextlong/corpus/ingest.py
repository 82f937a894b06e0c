"""Ingest: files → documents.

In:  a few files of one source, or a part of one.
Out: DOCUMENTS shards in file order, each beside small .npy files (hash and length of every document, under `dedup: normalized`
its second hash) from which later steps select and draw without touching text; and the rejects, each with file, line and reason.
`content_hash` is xxh3-64 of the text's UTF-8 bytes, as they were read: no Unicode normalisation.
"""

from __future__ import annotations

import difflib
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from nextlong.errors import CorpusError
from nextlong.inputs.files import InputFile, Part
from nextlong.inputs.formats import format_of
from nextlong.inputs.head import head_columns
from nextlong.inputs.record import Record, Reject, RejectKind, problem
from nextlong.inputs.records import read_records
from nextlong.inputs.where import LeftOut
from nextlong.recipe import Source
from nextlong.results import IngestResult
from nextlong.schemas import DOCUMENTS, DOCUMENTS_KEPT, REJECTS

_BATCH_TEXT_BYTES: Final = 1_000_000
_BATCH_ROWS: Final = 4096
_EXAMPLES: Final = 2  # of a task's documents for which the source's `where` does not hold
_SHOWN_COLUMNS: Final = 20
_MOST_HEADS: Final = 64  # of a source's tables; each takes a moment to open, or a request
_ASCII: Final = bytes(range(128))
# What str.isspace and str.lower say of ASCII, as a table over bytes.
_LOWER_AND_BLANK: Final = bytes(
    ord(" ") if code < 128 and chr(code).isspace() else ord(chr(code).lower()) if code < 128 else code
    for code in range(256)
)


def ingest_split(
    out: Path,
    *,
    parts: tuple[Part, ...],
    source: Source,
    shard_bytes: int,
    max_document_chars: int,
    hash_normalized: bool = False,
) -> IngestResult:
    """Write one task's documents as `{out}.{k:04d}.documents.arrow`, `.hashes.npy` (uint64) and `.chars.npy` (int64).

    With `hash_normalized` also `.normalized.npy` (uint64), the hash of each document's `normalized_hash`.
    A shard is closed once its text reaches `shard_bytes` UTF-8 bytes. Rejects, if any, go to `{out}.rejects.arrow`.
    Raises CorpusError for a file that cannot be read to its end.
    """
    documents = _DocumentShards(out, source, shard_bytes, hash_normalized=hash_normalized)
    rejects = _RejectFile(out)
    left_out: list[tuple[str, str]] = []
    left_out_count = without_id = 0
    for part in parts:
        for item in read_records(part, source, max_document_chars=max_document_chars):
            if isinstance(item, Reject):
                rejects.add(item)
            elif isinstance(item, LeftOut):
                left_out_count += 1
                if len(left_out) < _EXAMPLES:
                    left_out.append((item.source_id, item.head))
            elif wrong := problem(item.text, max_document_chars):
                rejects.add(Reject(part.file.name, item.line, *wrong))
            else:
                documents.add(item)
                without_id += source.names_ids and _is_called_by_place(item, part)
    documents.close()
    rejects.close()
    return IngestResult(
        documents=documents.documents,
        text_bytes=documents.text_bytes,
        chars=documents.chars,
        rejects=rejects.kinds.total(),
        reject_reasons={kind.value: count for kind, count in sorted(rejects.kinds.items())},
        example=rejects.example,
        shards=documents.shards,
        left_out_by_where=left_out_count,
        where_examples=tuple(left_out),
        kept=documents.kept_values,
        without_id=without_id,
    )


def _is_called_by_place(record: Record, part: Part) -> bool:
    """Say whether a record has no id of its own, for which readers put its place."""
    return record.source_id in (f"{part.file.name}:{record.line}", part.file.name)


def check_kept(source: Source, ingested: Sequence[IngestResult], *, key: str) -> None:
    """Raise CorpusError for a column of `keep` that no document of a source has; `ingested` is of its tasks."""
    documents = sum(part.documents for part in ingested)
    for name in source.keep:
        if documents and not sum(part.kept[name] for part in ingested):
            raise CorpusError(
                f"{key}: none of {documents:,} documents of {source.label} has a value in {name!r}; correct the name, or "
                "leave it out"
            )


def check_ids(source: Source, ingested: Sequence[IngestResult], files: Sequence[InputFile], *, key: str) -> None:
    """Raise CorpusError if the source names a column of ids that none of its documents has; `ingested` is of its tasks."""
    documents = sum(part.documents for part in ingested)
    if not source.names_ids or not documents or sum(part.without_id for part in ingested) < documents:
        return
    known = next((list(columns) for file in files if (columns := head_columns(file, source))), [])
    raise _no_ids(source, f"none of {documents:,} documents of {source.label} has a value there", known, key=key)


def check_named_ids(sources: Sequence[Source], files: Sequence[Sequence[InputFile]]) -> None:
    """Raise CorpusError, before anything is read whole, if no table of a source has the column of ids that it names.

    JSON lines may have an id further down, and many files take long to open: those are judged once they are read.
    """
    for place, (source, source_files) in enumerate(zip(sources, files, strict=True)):
        is_seen_here = len(source_files) <= _MOST_HEADS and all(_is_table(file, source) for file in source_files)
        if not source.names_ids or not is_seen_here:
            continue
        heads = [head_columns(file, source) for file in source_files]
        if all(head and source.id not in head for head in heads):
            lacks = f"{source_files[0].path} has no such column"
            raise _no_ids(source, lacks, list(heads[0]), key=f"ingest.sources[{place}].id")


def _is_table(file: InputFile, source: Source) -> bool:
    kind = format_of(file.name, source)
    return kind.has_columns and not kind.is_lines and kind.extractor is None


def _no_ids(source: Source, problem: str, known: Sequence[str], *, key: str) -> CorpusError:
    near = difflib.get_close_matches(source.id, known, n=1)
    cure = f"did you mean {near[0]!r}?" if near else "name one of these."
    return CorpusError(
        f"{key}={source.id!r}: {problem}; columns of its first records: {', '.join(known[:_SHOWN_COLUMNS]) or 'none'}; {cure} "
        "Without id, documents are called file:line"
    )


def check_rejects(
    *,
    documents: int,
    rejects: int,
    reasons: Mapping[str, int],
    max_reject_share: float,
    example: str,
    rejects_at: str,
    left_out: int = 0,
) -> None:
    """Raise CorpusError if no document was read at all, or more than `max_reject_share` of the records were rejected.

    `reasons` counts rejects by kind, `example` is the first as file:line: reason, `rejects_at` where all of them lie,
    `left_out` how many documents no `where` held for.
    """
    records = documents + rejects
    worst = ", ".join(
        f"{count:,} × {kind}" for kind, count in sorted(reasons.items(), key=lambda kv: (-kv[1], kv[0]))[:3]
    )
    evidence = f"{worst}; the first: {example}; all of them: {rejects_at}"
    if left_out and not documents:
        raise CorpusError(
            f"where holds for none of {left_out:,} documents of ingest.sources, so none is left; look at the values of its columns "
            "(a column that is missing is NULL), and correct it"
        )
    if not records:
        raise CorpusError(
            "ingest.sources hold no record at all: every file is empty; name files with documents in them"
        )
    if not documents:
        raise CorpusError(f"none of {records:,} records is a document: {evidence}; correct ingest.sources")
    if rejects / records > max_reject_share:  # as `allowing` and plan divide; a product is rounded otherwise
        raise CorpusError(
            f"{rejects:,} of {records:,} records ({rejects / records:.2%}) cannot be used, more than "
            f"ingest.max_reject_share={max_reject_share} allows: {evidence}; mend the files, or say {allowing(rejects / records)}"
        )


def allowing(share: float) -> str:
    """Return what raises the share of rejects that a run puts up with to `share`, in whole hundredths."""
    return f"--set ingest.max_reject_share={min(1.0, math.ceil(100 * share) / 100):g}"


def content_hash(utf8: bytes) -> int:
    """Return xxh3-64 of a text's UTF-8 bytes."""
    return xxhash.xxh3_64_intdigest(utf8)


def normalized_hash(utf8: bytes) -> int:
    """Return xxh3-64 of a text lower-cased, with runs of white space as one blank, stripped."""
    return xxhash.xxh3_64_intdigest(_normalised(utf8))


def _normalised(utf8: bytes) -> bytes:
    """Return what `" ".join(text.lower().split())` gives, as UTF-8.

    Where nothing outside ASCII changes case or is white space (nearly all English text), bytes do it four times faster.
    """
    if not utf8.isascii():
        others = utf8.translate(None, _ASCII).decode("utf-8")
        if others.lower() != others or others.split() != [others]:
            return " ".join(utf8.decode("utf-8").lower().split()).encode("utf-8")
    # Split where there are two blanks, which are few: an odd one of a longer run is stripped off the part behind it.
    return b" ".join(filter(None, map(bytes.strip, utf8.translate(_LOWER_AND_BLANK).split(b"  "))))


class _DocumentShards:
    """Writes documents in order, closing a record batch every MB and a shard every `shard_bytes`."""

    def __init__(self, out: Path, source: Source, shard_bytes: int, *, hash_normalized: bool) -> None:
        self._out = out
        self._label = source.label
        self._keep = source.keep
        self._kept: list[bytes] = []
        self.kept_values = dict.fromkeys(source.keep, 0)
        self._shard_bytes = shard_bytes
        self._writer: Any = None
        self._texts: list[bytes] = []
        self._ids: list[str] = []
        self._batch_bytes = 0
        self._shard_text_bytes = 0
        self._hashes = array("Q")
        self._normalized = array("Q") if hash_normalized else None
        self._chars = array("q")
        self.documents = self.text_bytes = self.chars = self.shards = 0

    def add(self, record: Record) -> None:
        raw = record.text.encode("utf-8")
        self._texts.append(raw)
        self._ids.append(record.source_id)
        self._hashes.append(content_hash(raw))
        if self._normalized is not None:
            self._normalized.append(normalized_hash(raw))
        self._chars.append(len(record.text))
        if self._keep:
            self._add_kept(record.values)
        self._batch_bytes += len(raw)
        self._shard_text_bytes += len(raw)
        if self._shard_text_bytes >= self._shard_bytes:
            self.close()
        elif self._batch_bytes >= _BATCH_TEXT_BYTES or len(self._texts) >= _BATCH_ROWS:
            self._write_batch()

    def _add_kept(self, values: tuple[Any, ...]) -> None:
        kept = dict(zip(self._keep, values, strict=True))
        for name, value in kept.items():
            self.kept_values[name] += value is not None
        self._kept.append(orjson.dumps(kept, default=_in_words, option=orjson.OPT_NON_STR_KEYS))

    def close(self) -> None:
        """Finish the shard that is being written, if any."""
        if not self._hashes:
            return
        self._write_batch()
        self._writer.close()
        stem = self._stem()
        np.save(f"{stem}.hashes.npy", np.frombuffer(self._hashes, np.uint64))
        np.save(f"{stem}.chars.npy", np.frombuffer(self._chars, np.int64))
        if self._normalized is not None:
            np.save(f"{stem}.normalized.npy", np.frombuffer(self._normalized, np.uint64))
            self._normalized = array("Q")
        self.documents += len(self._chars)
        self.chars += sum(self._chars)
        self.text_bytes += self._shard_text_bytes
        self.shards += 1
        self._writer = None
        self._hashes, self._chars, self._shard_text_bytes = array("Q"), array("q"), 0

    def _stem(self) -> str:
        return f"{self._out}.{self.shards:04d}"

    def _write_batch(self) -> None:
        rows = len(self._texts)
        if not rows:
            return
        if self._writer is None:
            schema = DOCUMENTS_KEPT if self._keep else DOCUMENTS
            self._writer = _open_writer(f"{self._stem()}.documents.arrow", schema)
        columns = [
            _large_strings(self._texts),
            pa.array(np.frombuffer(self._hashes, np.uint64)[-rows:].copy()),
            pa.repeat(pa.scalar(self._label, pa.string()), rows),
            pa.array(self._ids, pa.string()),
            *([pa.array(self._kept, pa.string())] if self._keep else []),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=DOCUMENTS_KEPT if self._keep else DOCUMENTS))
        self._texts, self._ids, self._kept, self._batch_bytes = [], [], [], 0


def _in_words(value: Any) -> str:
    """Return a value that JSON has no kind for: a decimal, a duration, bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _RejectFile:
    """Writes rejects, opening the file with the first one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._writer: Any = None
        self._rows: list[Reject] = []
        self.kinds: Counter[RejectKind] = Counter()
        self.example = ""

    def add(self, reject: Reject) -> None:
        self.example = self.example or f"{reject.file}:{reject.line}: {reject.reason}"
        self.kinds[reject.kind] += 1
        self._rows.append(reject)
        if len(self._rows) >= _BATCH_ROWS:
            self._write_batch()

    def close(self) -> None:
        if self._rows:
            self._write_batch()
        if self._writer is not None:
            self._writer.close()

    def _write_batch(self) -> None:
        if self._writer is None:
            self._writer = _open_writer(f"{self._out}.rejects.arrow", REJECTS)
        rows = [(reject.file, reject.line, reject.reason) for reject in self._rows]
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), REJECTS, strict=True)]
        self._writer.write_batch(pa.record_batch(columns, schema=REJECTS))
        self._rows = []


def _open_writer(path: str, schema: pa.Schema) -> Any:
    codec = pa.Codec("zstd", compression_level=1)
    return pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression=codec, use_threads=False))


def _large_strings(raws: list[bytes]) -> Any:
    """Return UTF-8 strings as an Arrow array; from bytes, because hashing has encoded them already."""
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.cumsum([len(raw) for raw in raws], out=offsets[1:])
    return pa.LargeStringArray.from_buffers(len(raws), pa.py_buffer(offsets), pa.py_buffer(b"".join(raws)))
