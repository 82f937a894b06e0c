"""Ingest: files → documents.

In:  a few files of one source, or a part of one.
Out: DOCUMENTS shards in file order, each with small .npy files beside it (hash and length of every document; under
`dedup: normalized` also a second hash) from which later steps select and sample without reading text; and the rejects, each
with file, line and reason. `content_hash` is xxh3-64 of the text's UTF-8 bytes as they were read: no Unicode normalisation.
"""

from __future__ import annotations

import difflib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from nextlong.artifacts.results import IngestResult, LineCountResult
from nextlong.corpus.select import ELSEWHERE, Exclusion, all_excluded, exclusions_of, write_kept, write_met
from nextlong.corpus.splits import Splits, numbered, split_config, task_bytes
from nextlong.engine.step import Artifact, Artifacts, Estimate, Step, Task, per_shard
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.filter import evaluator
from nextlong.reading.formats import format_of, head_columns, read_records
from nextlong.reading.listing import hash_of
from nextlong.reading.records import FilteredOut, Record, Reject, RejectKind, text_problem
from nextlong.recipe import Ingest, Source
from nextlong.schemas import DOCUMENTS, DOCUMENTS_WITH_METADATA, REJECTS

_BATCH_TEXT_BYTES: Final = 1_000_000
_BATCH_ROWS: Final = 4096
_FILTER_EXAMPLES: Final = 2  # per task
_HEAD_CHARS: Final = 200  # of an excluded document, as an example
_NOTHING: Final = Exclusion()
_SHOWN_COLUMNS: Final = 20
_MAX_HEADS: Final = 64  # files of a source that are opened in advance; each takes a moment, or a request
_ASCII: Final = bytes(range(128))
# What str.isspace and str.lower do to ASCII, as a table over bytes.
_LOWER_AND_BLANK: Final = bytes(
    ord(" ") if code < 128 and chr(code).isspace() else ord(chr(code).lower()) if code < 128 else code
    for code in range(256)
)


def ingest_step(
    ingest: Ingest,
    files: Sequence[Sequence[InputFile]],
    splits: Splits,
    line_counts: Sequence[Step],
    *,
    shard_bytes: int,
    when_ingested: Callable[[Artifact], None],
) -> Step:
    """files → DOCUMENTS, refused at the end if there are too many rejects; `line_counts` are the `line_counts_steps`."""
    hash_normalized = ingest.dedup == "normalized"
    exclusions, elsewhere = exclusions_of(ingest.exclude, ingest.sources)

    def tasks(done: Artifacts) -> list[Task]:
        counts = iter([part for step in done.values() for part in step.results(LineCountResult)])
        return [
            partial(
                _ingest_split,
                parts=parts,
                source=source,
                shard_bytes=shard_bytes,
                max_document_chars=ingest.max_document_chars,
                hash_normalized=hash_normalized,
                hash_inputs=True,
                exclusion=exclusion,
                keep_exclusion=place == 0,
            )
            for source, of_source, exclusion in zip(ingest.sources, splits, exclusions, strict=True)
            for place, parts in enumerate(numbered(of_source, counts))
        ]

    def check(done: Artifact) -> None:
        results = done.results(IngestResult)
        _check_rejects(
            results, max_reject_share=ingest.max_reject_share, rejects_path=f"{done.folder}/part-*.rejects.arrow"
        )
        rest = iter(results)
        for place, (source, of_source) in enumerate(zip(ingest.sources, splits, strict=True)):
            _check_columns(source, [next(rest) for _ in of_source], files[place], key=f"ingest.sources[{place}]")
        when_ingested(done)

    # Of each source the version of the library that extracts the text of its files, if one does.
    extractors = [
        next(filter(None, (format_of(file.name, source).extractor for file in source_files)), None)
        for source, source_files in zip(ingest.sources, files, strict=True)
    ]
    config = {
        "sources": [
            # Names below the source: a corpus that was moved is the same.
            {"format": source.format, "id": source.id, "label": source.label, "text": source.text}
            | {key: value for key in ("filter", "metadata") if (value := getattr(source, key))}
            | ({"evaluator": evaluator()} if source.filter else {})
            | ({"extractor": extractor} if extractor else {})
            | ({"excluded": exclusion.identity} if exclusion.identity else {})
            | {"files": [[file.name, file.identity] for file in source_files]}
            for source, source_files, exclusion, extractor in zip(
                ingest.sources, files, exclusions, extractors, strict=True
            )
        ],
        "max_document_chars": ingest.max_document_chars,
        "shard_bytes": shard_bytes,
        **({"hash_normalized": True} if hash_normalized else {}),
        **({ELSEWHERE: elsewhere} if elsewhere else {}),
        **split_config(splits),
    }
    estimate = Estimate(work="text_bytes", seconds=6e-9, disk="text_bytes", bytes=0.4, tasks=per_shard)
    inputs, sizes = tuple(line_counts), task_bytes(splits)
    return Step("ingest", 6, config, inputs, tasks, IngestResult, check=check, sizes=sizes, estimate=estimate)


def _ingest_split(
    out: Path,
    *,
    parts: tuple[FilePart, ...],
    source: Source,
    shard_bytes: int,
    max_document_chars: int,
    hash_normalized: bool = False,
    hash_inputs: bool = False,
    exclusion: Exclusion = _NOTHING,
    keep_exclusion: bool = False,
) -> IngestResult:
    """Write one task's documents as `{out}.{k:04d}.documents.arrow`, `.hashes.npy` (uint64) and `.chars.npy` (int64).

    `.id_hashes.npy` (uint64) holds the hash of each document's source and id, by which the filter report finds equal ids.

    With `hash_normalized` also `.normalized.npy` (uint64), the `normalized_hash` of each document. A shard is closed once its
    text reaches `shard_bytes` UTF-8 bytes. Rejects, if any, go to `{out}.rejects.arrow`. With `hash_inputs`, files whose
    beginning the task reads are hashed; the page cache still holds a small one. What an `exclusion` names is kept as `write_met`
    does, and with `keep_exclusion` the exclusion itself as `write_kept` does.
    Raises CorpusError for a file that cannot be read to its end.
    """
    documents = _DocumentShards(out, source, shard_bytes, hash_normalized=hash_normalized)
    rejects = _RejectFile(out)
    filter_examples: list[tuple[str, str]] = []
    excluded_examples: list[tuple[str, str]] = []
    filtered_out = excluded = without_id = 0
    met: set[str] = set()
    for part in parts:
        for item in read_records(part, source, max_document_chars=max_document_chars):
            if isinstance(item, Reject):
                rejects.add(item)
            elif isinstance(item, FilteredOut):
                filtered_out += 1
                met |= exclusion.entries(item.source_id)
                if len(filter_examples) < _FILTER_EXAMPLES:
                    filter_examples.append((item.source_id, item.head))
            elif exclusion.holds(item.source_id):
                excluded += 1
                met |= exclusion.entries(item.source_id)
                if len(excluded_examples) < _FILTER_EXAMPLES:
                    excluded_examples.append((item.source_id, item.text[:_HEAD_CHARS]))
            elif problem := text_problem(item.text, max_document_chars):
                rejects.add(Reject(part.file.name, item.line, *problem))
            else:
                documents.add(item)
                # Readers name a record without an id of its own by its place.
                place = (f"{part.file.name}:{item.line}", part.file.name)
                without_id += source.names_ids and item.source_id in place
    documents.close()
    rejects.close()
    if keep_exclusion and exclusion.identity:
        write_kept(out, source, exclusion)
    if met:
        write_met(out, source, met)
    return IngestResult(
        documents=documents.documents,
        text_bytes=documents.text_bytes,
        chars=documents.chars,
        rejects=rejects.kinds.total(),
        reject_reasons={kind.value: count for kind, count in sorted(rejects.kinds.items())},
        example=rejects.example,
        shards=documents.shards,
        input_hashes=tuple(hash_of(part.file) for part in parts if part.begins_file) if hash_inputs else (),
        filtered_out=filtered_out,
        filter_examples=tuple(filter_examples),
        excluded=excluded,
        excluded_examples=tuple(excluded_examples),
        metadata_values=documents.metadata_values,
        without_id=without_id,
    )


def check_named_ids(sources: Sequence[Source], files: Sequence[Sequence[InputFile]]) -> None:
    """Raise CorpusError, before anything is read whole, if no table of a source has the id column that the source names.

    JSON lines may have an id further down, and many files take long to open: those are checked after reading.
    """
    for place, (source, source_files) in enumerate(zip(sources, files, strict=True)):
        formats = {format_of(file.name, source) for file in source_files}
        are_tables = all(one.has_columns and not one.is_lines and one.extractor is None for one in formats)
        if not source.names_ids or len(source_files) > _MAX_HEADS or not are_tables:
            continue
        heads = [head_columns(file, source) for file in source_files]
        if all(head and source.id not in head for head in heads):
            problem = f"{source_files[0].path} has no such column"
            raise _no_ids(source, problem, list(heads[0]), key=f"ingest.sources[{place}].id")


def _check_columns(source: Source, results: Sequence[IngestResult], files: Sequence[InputFile], *, key: str) -> None:
    """Raise CorpusError for a metadata or id column that the source names and none of its documents has."""
    documents = sum(result.documents for result in results)
    if not documents:
        return
    for name in source.metadata:
        if not sum(result.metadata_values[name] for result in results):
            raise CorpusError(
                f"{key}.metadata: none of {documents:,} documents of {source.label} has a value in {name!r}; correct or "
                "remove the name"
            )
    if source.names_ids and sum(result.without_id for result in results) == documents:
        known = next((list(columns) for file in files if (columns := head_columns(file, source))), [])
        problem = f"none of {documents:,} documents of {source.label} has a value there"
        raise _no_ids(source, problem, known, key=f"{key}.id")


def _no_ids(source: Source, problem: str, known: Sequence[str], *, key: str) -> CorpusError:
    near = difflib.get_close_matches(source.id, known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "name one of these."
    return CorpusError(
        f"{key}={source.id!r}: {problem}; columns of its first records: {', '.join(known[:_SHOWN_COLUMNS]) or 'none'}; {fix} "
        "Without id, documents are named file:line"
    )


def _check_rejects(results: Sequence[IngestResult], *, max_reject_share: float, rejects_path: str) -> None:
    """Raise CorpusError if no document was read at all, or more than `max_reject_share` of the records were rejected."""
    documents, rejects, filtered_out = (
        sum(getattr(result, name) for result in results) for name in ("documents", "rejects", "filtered_out")
    )
    records = documents + rejects
    reasons = sum((Counter(result.reject_reasons) for result in results), Counter[str]())
    worst = ", ".join(
        f"{count:,} × {kind}" for kind, count in sorted(reasons.items(), key=lambda kv: (-kv[1], kv[0]))[:3]
    )
    example = next((result.example for result in results if result.example), "")
    evidence = f"{worst}; the first: {example}; all of them: {rejects_path}"
    if not documents and (excluded := sum(result.excluded for result in results)):
        raise all_excluded(f"{excluded:,} documents")
    if filtered_out and not documents:
        raise CorpusError(
            f"ingest.sources[].filter matches none of {filtered_out:,} documents; look at the values of its columns (a column "
            "that is missing is NULL), and correct it"
        )
    if not records:
        raise CorpusError("ingest.sources hold no records: every file is empty; name files with documents in them")
    if not documents:
        raise CorpusError(f"none of {records:,} records is a document: {evidence}; correct ingest.sources")
    if rejects / records > max_reject_share:  # divided as in `allowing` and plan; a product would be rounded otherwise
        raise CorpusError(
            f"{rejects:,} of {records:,} records ({rejects / records:.2%}) were rejected, more than ingest.max_reject_share="
            f"{max_reject_share} allows: {evidence}; correct the files, or add {allowing(rejects / records)}"
        )


def allowing(share: float) -> str:
    """Return the option that raises the allowed share of rejects to `share`, in whole hundredths."""
    return f"--set ingest.max_reject_share={min(1.0, math.ceil(100 * share) / 100):g}"


def content_hash(utf8: bytes) -> int:
    """Return xxh3-64 of a text's UTF-8 bytes."""
    return xxhash.xxh3_64_intdigest(utf8)


def normalized_hash(utf8: bytes) -> int:
    """Return xxh3-64 of `" ".join(text.lower().split())`: a text in lower case, with runs of white space as one blank.

    If nothing outside ASCII changes case or is white space (nearly all English text), bytes do it four times faster.
    """
    if not utf8.isascii():
        others = utf8.translate(None, _ASCII).decode("utf-8")
        if others.lower() != others or others.split() != [others]:
            return content_hash(" ".join(utf8.decode("utf-8").lower().split()).encode("utf-8"))
    # Splitting at double blanks, which are few, is fast; the odd blank of a longer run is stripped off the next piece.
    pieces = map(bytes.strip, utf8.translate(_LOWER_AND_BLANK).split(b"  "))
    return content_hash(b" ".join(filter(None, pieces)))


class _DocumentShards:
    """Writes documents in order; closes a record batch every MB and a shard every `shard_bytes`."""

    def __init__(self, out: Path, source: Source, shard_bytes: int, *, hash_normalized: bool) -> None:
        self._out, self._source, self._shard_bytes = out, source, shard_bytes
        self._schema = DOCUMENTS_WITH_METADATA if source.metadata else DOCUMENTS
        self._writer: Any = None
        # Of the record batch: texts, ids and metadata as UTF-8 JSON.
        self._texts: list[bytes] = []
        self._ids: list[str] = []
        self._metadata: list[bytes] = []
        self._batch_bytes = 0
        # Of the shard, one value per document.
        self._hashes = array("Q")
        self._normalized = array("Q") if hash_normalized else None
        self._chars = array("q")
        self._id_hashes = array("Q")
        self._shard_text_bytes = 0
        self.documents = self.text_bytes = self.chars = self.shards = 0
        self.metadata_values = dict.fromkeys(source.metadata, 0)

    def add(self, record: Record) -> None:
        raw = record.text.encode("utf-8")
        self._texts.append(raw)
        self._ids.append(record.source_id)
        self._hashes.append(content_hash(raw))
        if self._normalized is not None:
            self._normalized.append(normalized_hash(raw))
        self._chars.append(len(record.text))
        self._id_hashes.append(xxhash.xxh3_64_intdigest(f"{self._source.label}\0{record.source_id}".encode()))
        if self._source.metadata:
            values = dict(zip(self._source.metadata, record.values, strict=True))
            for name, value in values.items():
                self.metadata_values[name] += value is not None
            self._metadata.append(orjson.dumps(values, default=_as_text, option=orjson.OPT_NON_STR_KEYS))
        self._batch_bytes += len(raw)
        self._shard_text_bytes += len(raw)
        if self._shard_text_bytes >= self._shard_bytes:
            self.close()
        elif self._batch_bytes >= _BATCH_TEXT_BYTES or len(self._texts) >= _BATCH_ROWS:
            self._write_batch()

    def close(self) -> None:
        """Finish the current shard, if any."""
        if not self._hashes:
            return
        self._write_batch()
        self._writer.close()
        stem = f"{self._out}.{self.shards:04d}"
        np.save(f"{stem}.hashes.npy", np.frombuffer(self._hashes, np.uint64))
        np.save(f"{stem}.chars.npy", np.frombuffer(self._chars, np.int64))
        np.save(f"{stem}.id_hashes.npy", np.frombuffer(self._id_hashes, np.uint64))
        if self._normalized is not None:
            np.save(f"{stem}.normalized.npy", np.frombuffer(self._normalized, np.uint64))
            self._normalized = array("Q")
        self.documents += len(self._chars)
        self.chars += sum(self._chars)
        self.text_bytes += self._shard_text_bytes
        self.shards += 1
        self._writer = None
        self._hashes, self._chars, self._id_hashes, self._shard_text_bytes = array("Q"), array("q"), array("Q"), 0

    def _write_batch(self) -> None:
        rows = len(self._texts)
        if not rows:
            return
        if self._writer is None:
            self._writer = _open_writer(f"{self._out}.{self.shards:04d}.documents.arrow", self._schema)
        # The texts from bytes, because hashing has encoded them already: int64 offsets (rows + 1,) and their content.
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum([len(raw) for raw in self._texts], out=offsets[1:])
        columns = [
            pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(b"".join(self._texts))),
            pa.array(np.frombuffer(self._hashes, np.uint64)[-rows:].copy()),
            pa.repeat(pa.scalar(self._source.label, pa.string()), rows),
            pa.array(self._ids, pa.string()),
            *([pa.array(self._metadata, pa.string())] if self._source.metadata else []),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._texts, self._ids, self._metadata, self._batch_bytes = [], [], [], 0


def _as_text(value: Any) -> str:
    """Return a value that JSON has no type for: a decimal, a duration, bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _RejectFile:
    """Writes rejects; the first one opens the file."""

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


def _open_writer(path: str, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
    codec = pa.Codec("zstd", compression_level=1)
    return pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression=codec, use_threads=False))
