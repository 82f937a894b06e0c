"""Ingest: files → documents.

In:  a few files of one source, or a part of one file.
Out: DOCUMENTS shards in file order, and .npy files with one value per document, from
     which later steps select and sample without reading text; also the rejects, with
     file, line and reason.

`content_hash` is xxh3-64 of the text's UTF-8 bytes as they were read.
"""

from __future__ import annotations

import difflib
import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from nextlong.artifacts.results import IngestResult
from nextlong.corpus.select import Exclusion, exclusions_of
from nextlong.corpus.splits import LineCountResult, Parts, Splits, numbered
from nextlong.engine.step import Artifact, Artifacts, Step, Task
from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile, SourceFiles
from nextlong.reading.formats import format_of, head_columns, read_records
from nextlong.reading.listing import hash_of
from nextlong.reading.records import (
    FilteredOut,
    Record,
    Reject,
    RejectKind,
    Skip,
    library,
    text_problem,
)
from nextlong.reading.token_ids import identity_of
from nextlong.recipe import Ingest, Source
from nextlong.schemas import DOCUMENTS, DOCUMENTS_WITH_METADATA, REJECTS
from nextlong.text import Json

_BATCH_TEXT_BYTES: Final = 1_000_000
_BATCH_ROWS: Final = 4096
_FILTER_EXAMPLES: Final = 2  # per task
_HEAD_CHARS: Final = 200  # of an excluded document, as an example
# Config key: the number of entries in the exclusion list for other sources.
_ELSEWHERE: Final = "excluded_elsewhere"
_SHOWN_COLUMNS: Final = 20
_ASCII: Final = bytes(range(128))
# str.lower of ASCII with white space replaced by blanks, as a table over bytes.
_LOWER_AND_BLANK: Final = bytes(
    ord(" ") if code < 128 and chr(code).isspace() else code
    for code in bytes(range(256)).lower()
)


def ingest_step(
    ingest: Ingest,
    files: SourceFiles,
    splits: Splits,
    line_counts: Sequence[Step],
    *,
    shard_bytes: int,
    when_ingested: Callable[[Artifact], None],
) -> Step:
    """Return the step from files to DOCUMENTS.

    Too many rejects are an error at its end. `line_counts` are the `line_counts_steps`.
    """
    exclusions, excluded_elsewhere = exclusions_of(ingest.exclude, ingest.sources)

    def tasks(done: Artifacts) -> list[Task]:
        counts: list[LineCountResult] = []
        for counted in done.values():
            counts += counted.results(LineCountResult)
        line_counts = iter(counts)
        read = partial(_ingest_split, settings=ingest, shard_bytes=shard_bytes)
        reading: list[Task] = []
        for source, source_splits, exclusion in zip(
            ingest.sources, splits, exclusions, strict=True
        ):
            for index, parts in enumerate(numbered(source_splits, line_counts)):
                task = partial(
                    read,
                    parts=parts,
                    source=source,
                    exclusion=exclusion,
                    is_first=index == 0,
                )
                reading.append(task)
        return reading

    def check(done: Artifact) -> None:
        results = done.results(IngestResult)
        _check_rejects(
            results, ingest.max_reject_share, f"{done.folder}/part-*.rejects.arrow"
        )
        rest = iter(results)
        for index, source in enumerate(ingest.sources):
            task_count = len(splits[index])
            source_results = list(islice(rest, task_count))
            _check_columns(
                source,
                source_results,
                files[index],
                key=f"ingest.sources[{index}]",
            )
        when_ingested(done)

    parts_of_tasks = list(chain.from_iterable(splits))
    config = _config(ingest, parts_of_tasks, shard_bytes=shard_bytes)
    if excluded_elsewhere:
        config[_ELSEWHERE] = excluded_elsewhere
    for source, source_files, exclusion in zip(
        ingest.sources, files, exclusions, strict=True
    ):
        config["sources"].append(_source_config(source, source_files, exclusion))
    return Step(
        name="ingest",
        phase="read",
        version=8,
        config=config,
        inputs=tuple(line_counts),
        tasks=tasks,
        result=IngestResult,
        check=check,
        sizes=[_disk_bytes(parts) for parts in parts_of_tasks],
    )


def _disk_bytes(parts: Parts) -> float:
    return sum(part.disk_bytes for part in parts)


def _config(
    ingest: Ingest, parts_of_tasks: Sequence[Parts], *, shard_bytes: int
) -> Json:
    """Return what decides the documents of all sources; `sources` is empty still."""
    config: Json = {
        "sources": [],
        "max_document_chars": ingest.max_document_chars,
        "shard_bytes": shard_bytes,
    }
    if ingest.dedup == "normalized":
        config["hash_normalized"] = True
    # The parts of Parquet files, and of files compressed as a whole.
    row_groups = []
    skipping = []
    for part in chain.from_iterable(parts_of_tasks):
        if part.row_groups:
            row_groups.append([part.file.name, *part.row_groups])
        if part.skips:
            skipping.append([part.file.name, part.start])
    if row_groups:
        config["row_groups"] = row_groups
    if skipping:
        config["decompressed_from"] = skipping
    return config


def _source_config(
    source: Source, files: Sequence[InputFile], exclusion: Exclusion
) -> Json:
    """Return what decides the documents of one source, without empty keys."""
    extractors = (format_of(file.name, source).extractor for file in files)
    optional = {
        "encoding": source.encoding,
        "filter": source.filter,
        "evaluator": source.filter and library("duckdb"),
        "metadata": source.metadata,
        "extractor": next(filter(None, extractors), None),
        "excluded": exclusion.identity,
        "token_ids": identity_of(source),
    }
    return {
        "format": source.format,
        "id": source.id,
        "label": source.label,
        "text": source.text,
        # Relative names: a corpus that was moved is the same.
        "files": [[file.name, file.identity] for file in files],
        **{key: value for key, value in optional.items() if value},
    }


def _ingest_split(
    out: Path,
    *,
    parts: Parts,
    source: Source,
    settings: Ingest,
    shard_bytes: int,
    exclusion: Exclusion,
    is_first: bool,
) -> IngestResult:
    """Write the documents of one task as `{out}.{k:04d}.documents.arrow`.

    With `.hashes.npy` (uint64), `.chars.npy` (int64) and others: `.id_hashes.npy`
    (uint64) hashes source and id; `.normalized.npy` (uint64), for `dedup: normalized`,
    has each `normalized_hash`. A shard is closed once its text has `shard_bytes` UTF-8
    bytes.

    Rejects, if any, are written to `{out}.rejects.arrow`. The first task of a source
    writes its exclusions to `{out}.excluded.json`; `{out}.excluded_met.json` holds the
    entries ("" for a whole source) that match a document of this task. Raises
    CorpusError for a file that cannot be read to its end.
    """
    max_chars = settings.max_document_chars
    documents = _DocumentShards(
        out, source, shard_bytes, hash_normalized=settings.dedup == "normalized"
    )
    rejects = _Rejects(out)
    removals = _Removals(exclusion)
    without_id = 0
    skipped = Counter[str]()
    skipped_examples: dict[str, str] = {}
    for part in parts:
        file = part.file.name
        for item in read_records(part, source, max_document_chars=max_chars):
            if isinstance(item, Skip):
                skipped[item.reason] += 1
                skipped_examples.setdefault(item.reason, f"{file}:{item.line}")
                continue
            if isinstance(item, Reject):
                rejects.add(item)
                continue
            if removals.removes(item):
                continue
            assert isinstance(item, Record)
            problem = text_problem(item.text, max_chars)
            if problem is not None:
                rejects.add(Reject(file, item.line, *problem))
                continue
            documents.add(item)
            # Readers give a record without an id the name of its place.
            if source.names_ids and item.source_id in (f"{file}:{item.line}", file):
                without_id += 1
    documents.close()
    rejects.close()
    if exclusion.identity:
        _write_exclusions(out, source, exclusion, removals.met, is_first=is_first)
    return IngestResult(
        documents=documents.documents,
        text_bytes=documents.text_bytes,
        chars=documents.chars,
        rejects=rejects.kinds.total(),
        reject_reasons={
            kind.value: count for kind, count in sorted(rejects.kinds.items())
        },
        example=rejects.example,
        shards=documents.shards,
        # Small files are still in the page cache.
        input_hashes=tuple(hash_of(part.file) for part in parts if part.begins_file),
        filtered_out=removals.counts["filtered_out"],
        filter_examples=tuple(removals.examples["filtered_out"]),
        excluded=removals.counts["excluded"],
        excluded_examples=tuple(removals.examples["excluded"]),
        metadata_values=documents.metadata_values,
        without_id=without_id,
        skipped=dict(sorted(skipped.items())),
        skipped_examples=dict(sorted(skipped_examples.items())),
    )


class _Rejects:
    """Count rejected records by kind, and write them to `{out}.rejects.arrow`."""

    def __init__(self, out: Path) -> None:
        self.kinds = Counter[RejectKind]()
        # The first one, "" if there is none.
        self.example = ""
        self._file = _ArrowFile(f"{out}.rejects.arrow", REJECTS)
        # Not yet written.
        self._pending: list[tuple[str, int, str]] = []

    def add(self, reject: Reject) -> None:
        self.example = self.example or f"{reject.file}:{reject.line}: {reject.reason}"
        self.kinds[reject.kind] += 1
        self._pending.append((reject.file, reject.line, reject.reason))
        if len(self._pending) >= _BATCH_ROWS:
            self._write_batch()

    def close(self) -> None:
        self._write_batch()
        self._file.close()

    def _write_batch(self) -> None:
        if self._pending:
            self._file.write(zip(*self._pending, strict=True))
            self._pending = []


class _Removals:
    """Count the documents that the source's filter or the exclusion list removes."""

    def __init__(self, exclusion: Exclusion) -> None:
        self._exclusion = exclusion
        self.counts = Counter[str]()
        # The id and the beginning of some documents, by what removes them.
        self.examples: dict[str, list[tuple[str, str]]] = {
            "filtered_out": [],
            "excluded": [],
        }
        # The entries of the exclusion list that match a document; "" is the whole
        # source.
        self.met = set[str]()

    def removes(self, item: Record | FilteredOut) -> bool:
        """Return whether an item is removed, and count it."""
        # An entry is met also by a document that the filter removes.
        is_excluded = self._exclusion.holds(item.source_id)
        if is_excluded:
            if self._exclusion.is_whole:
                self.met.add("")
            if item.source_id in self._exclusion.ids:
                self.met.add(item.source_id)
        if isinstance(item, FilteredOut):
            self._count("filtered_out", item.source_id, item.head)
            return True
        if is_excluded:
            self._count("excluded", item.source_id, item.text[:_HEAD_CHARS])
        return is_excluded

    def _count(self, reason: str, source_id: str, head: str) -> None:
        self.counts[reason] += 1
        if self.counts[reason] <= _FILTER_EXAMPLES:
            self.examples[reason].append((source_id, head))


def _write_exclusions(
    out: Path, source: Source, exclusion: Exclusion, met: set[str], *, is_first: bool
) -> None:
    """Write the entries that a task met, and in the first task the exclusions."""
    if is_first:
        excluded = {
            "source": source.label,
            "whole": exclusion.is_whole,
            "ids": sorted(exclusion.ids),
        }
        _write_json(f"{out}.excluded.json", excluded)
    excluded_met = {"source": source.label, "entries": sorted(met)}
    _write_json(f"{out}.excluded_met.json", excluded_met)


def _write_json(path: str, content: Json) -> None:
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def unmet_exclusions(ingested: Artifact) -> tuple[int, int]:
    """Return how many entries of the exclusion list matched no document during ingest.

    And the number of entries.
    """
    lists = _read_json_files(ingested, ".excluded.json")
    tasks = _read_json_files(ingested, ".excluded_met.json")
    entries = int(ingested.manifest["config"].get(_ELSEWHERE, 0))
    for excluded in lists:
        entries += len(excluded["ids"])
        if excluded["whole"]:
            entries += 1
    met: set[tuple[str, str]] = set()
    for task in tasks:
        met.update((task["source"], entry) for entry in task["entries"])
    return entries - len(met), entries


def _read_json_files(done: Artifact, suffix: str) -> list[Json]:
    """Return the contents of the files of this suffix; there may be none."""
    contents: list[Json] = []
    for part in done.manifest["parts"]:
        for name in part["files"]:
            if name.endswith(suffix):
                text = (done.folder / name).read_text(encoding="utf-8")
                contents.append(json.loads(text))
    return contents


def missing_id_column(
    source: Source, problem: str, known: Sequence[str], *, key: str
) -> CorpusError:
    """Return the error for a source whose id column, at `key`, names no document."""
    near = difflib.get_close_matches(source.id, known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "use one of these."
    shown = ", ".join(known[:_SHOWN_COLUMNS]) or "none"
    return CorpusError(
        where=key,
        value=repr(source.id),
        problem=f"cannot identify the documents: {problem}; columns of the first "
        f"records: {shown}",
        fix=f"{fix} Without an id column, documents are named file:line",
    )


def _check_columns(
    source: Source,
    results: Sequence[IngestResult],
    files: Sequence[InputFile],
    *,
    key: str,
) -> None:
    """Raise CorpusError if no document of a source has a value in a named column."""
    documents = sum(result.documents for result in results)
    if not documents:
        return
    none = f"none of {documents:,} documents of {source.label} has a value"
    for name in source.metadata:
        if not sum(result.metadata_values[name] for result in results):
            raise CorpusError(
                where=f"{key}.metadata",
                problem=f"{none} in {name!r}",
                fix="correct or remove the name",
            )
    without_id = sum(result.without_id for result in results)
    if source.names_ids and without_id == documents:
        heads = (head_columns(file, source) for file in files)
        known = next(filter(None, heads), [])
        raise missing_id_column(
            source, f"{none} in this column", known, key=f"{key}.id"
        )


def _check_rejects(
    results: Sequence[IngestResult], max_reject_share: float, rejects_path: str
) -> None:
    """Raise CorpusError if no document was read, or too many records were rejected.

    More than the share `max_reject_share` are too many.
    """
    documents = sum(result.documents for result in results)
    rejects = sum(result.rejects for result in results)
    filtered_out = sum(result.filtered_out for result in results)
    excluded = sum(result.excluded for result in results)
    records = documents + rejects
    if not documents and excluded:
        raise CorpusError(
            where="ingest.exclude",
            problem=f"it removes all {excluded:,} documents",
            fix="delete lines of it, or set it to null",
        )
    if not documents and filtered_out:
        raise CorpusError(
            where="ingest.sources[].filter",
            problem=f"it matches none of {filtered_out:,} documents",
            fix=(
                "check the values of its columns (a missing column is NULL) and "
                "correct the condition"
            ),
        )
    if not records:
        raise _no_records(results)

    if not documents:
        evidence = _evidence_of_rejects(results, rejects_path)
        raise CorpusError(
            where="ingest.sources",
            problem=f"all {records:,} records were rejected: {evidence}",
            fix="correct ingest.sources",
        )
    # Divided as in `allowing` and plan, to round in the same way.
    share = rejects / records
    if share > max_reject_share:
        evidence = _evidence_of_rejects(results, rejects_path)
        raise CorpusError(
            where="ingest.max_reject_share",
            value=max_reject_share,
            problem=(
                f"is exceeded: {rejects:,} of {records:,} records ({share:.2%}) were "
                f"rejected: {evidence}"
            ),
            fix=f"correct the files, or set {allowing(share)} in the recipe",
        )


def _evidence_of_rejects(results: Sequence[IngestResult], rejects_path: str) -> str:
    """Return the most frequent reasons, the first reject, and the file of all."""
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.reject_reasons)
    worst = sorted(reasons, key=lambda kind: (-reasons[kind], kind))[:3]
    most_frequent = ", ".join(f"{reasons[kind]:,} × {kind}" for kind in worst)
    example = next((result.example for result in results if result.example), "")
    return f"{most_frequent}; first one: {example}; all of them: {rejects_path}"


def _no_records(results: Sequence[IngestResult]) -> CorpusError:
    """Return the error for files without a record that could be a document."""
    skipped: Counter[str] = Counter()
    for result in results:
        skipped.update(result.skipped)
    if not skipped:
        return CorpusError(
            where="ingest.sources",
            problem="they have no records, because every file is empty",
            fix="use files with documents",
        )
    most_frequent = ", ".join(
        f"{count:,} × {reason}" for reason, count in skipped.most_common(3)
    )
    return CorpusError(
        where="ingest.sources",
        problem=(
            f"none of their {skipped.total():,} records is a document ({most_frequent})"
        ),
        fix="use other files",
    )


def allowing(share: float) -> str:
    """Return the setting that allows this share of rejects, in hundredths."""
    return f"ingest.max_reject_share={min(1.0, math.ceil(100 * share) / 100):g}"


content_hash: Final = xxhash.xxh3_64_intdigest  # of the UTF-8 bytes of a text


def normalized_hash(utf8: bytes) -> int:
    """Return xxh3-64 of `" ".join(text.lower().split())`.

    That is the text in lower case, with runs of white space as one blank. If nothing
    outside ASCII changes case or is white space (nearly all English text), the work is
    done on bytes, four times faster.
    """
    if not utf8.isascii():
        others = utf8.translate(None, _ASCII).decode("utf-8")
        if others.lower() != others or others.split() != [others]:
            words = utf8.decode("utf-8").lower().split()
            joined = " ".join(words)
            return content_hash(joined.encode("utf-8"))
    # Splitting at double blanks, which are rare, is fast; the odd blank of a longer run
    # is stripped off the next piece.
    lowered = utf8.translate(_LOWER_AND_BLANK)
    pieces = map(bytes.strip, lowered.split(b"  "))
    normalized = b" ".join(filter(None, pieces))
    return content_hash(normalized)


class _DocumentShards:
    """Write documents in order: record batches of a MB, shards of `shard_bytes`."""

    def __init__(
        self, out: Path, source: Source, shard_bytes: int, *, hash_normalized: bool
    ) -> None:
        self._out = out
        self._source = source
        self._shard_bytes = shard_bytes
        self._typecodes = {"hashes": "Q", "chars": "q", "id_hashes": "Q"}
        if hash_normalized:
            self._typecodes["normalized"] = "Q"
        # Of all closed shards.
        self.documents = 0
        self.text_bytes = 0
        self.chars = 0
        self.shards = 0
        # By column, how many documents have one.
        self.metadata_values = dict.fromkeys(source.metadata, 0)
        self._open_batch()
        self._open_shard()

    def add(self, record: Record) -> None:
        raw = record.text.encode("utf-8")
        self._texts.append(raw)
        self._ids.append(record.source_id)
        self._columns["hashes"].append(content_hash(raw))
        if "normalized" in self._columns:
            self._columns["normalized"].append(normalized_hash(raw))
        self._columns["chars"].append(len(record.text))
        named = f"{self._source.label}\0{record.source_id}"
        id_hash = content_hash(named.encode())
        self._columns["id_hashes"].append(id_hash)
        if self._source.metadata:
            self._metadata.append(self._metadata_of(record))
        self._batch_bytes += len(raw)
        self._shard_text_bytes += len(raw)
        if self._shard_text_bytes >= self._shard_bytes:
            self.close()
        elif self._batch_bytes >= _BATCH_TEXT_BYTES or len(self._texts) >= _BATCH_ROWS:
            self._write_batch()

    def _metadata_of(self, record: Record) -> bytes:
        """Return the metadata as JSON, and count its values."""
        values = dict(zip(self._source.metadata, record.values, strict=True))
        for name, value in values.items():
            self.metadata_values[name] += value is not None
        return orjson.dumps(values, default=_as_text, option=orjson.OPT_NON_STR_KEYS)

    def close(self) -> None:
        """Finish the current shard, if it has documents."""
        if not self._columns["hashes"]:
            return
        self._write_batch()
        self._file.close()
        for name, column in self._columns.items():
            path = f"{self._out}.{self.shards:04d}.{name}.npy"
            np.save(path, np.frombuffer(column, column.typecode))
        self.documents += len(self._columns["chars"])
        self.chars += sum(self._columns["chars"])
        self.text_bytes += self._shard_text_bytes
        self.shards += 1
        self._open_shard()

    def _open_shard(self) -> None:
        schema = DOCUMENTS_WITH_METADATA if self._source.metadata else DOCUMENTS
        path = f"{self._out}.{self.shards:04d}.documents.arrow"
        self._file = _ArrowFile(path, schema)
        # One value per document.
        self._columns = {name: array(code) for name, code in self._typecodes.items()}
        self._shard_text_bytes = 0

    def _open_batch(self) -> None:
        """Begin a record batch: texts, ids, and metadata as UTF-8 JSON."""
        self._texts = list[bytes]()
        self._ids = list[str]()
        self._metadata = list[bytes]()
        self._batch_bytes = 0

    def _write_batch(self) -> None:
        rows = len(self._texts)
        if not rows:
            return
        # Build the texts from bytes, because they were encoded for hashing: int64
        # offsets (rows + 1,) and content.
        offsets = np.cumsum([0, *map(len, self._texts)], dtype=np.int64)
        content = pa.py_buffer(b"".join(self._texts))
        texts = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), content)
        # A copy, because an array of which a view exists cannot grow.
        hashes = np.frombuffer(self._columns["hashes"], np.uint64)[-rows:].copy()
        label = pa.scalar(self._source.label, pa.string())
        labels = pa.repeat(label, rows)
        columns = [texts, hashes, labels, self._ids]
        if self._source.metadata:
            columns.append(self._metadata)
        self._file.write(columns)
        self._open_batch()


def _as_text(value: Any) -> str:
    """Return a value without a JSON type (a decimal, a duration, bytes) as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


class _ArrowFile:
    """A compressed Arrow file, created when the first batch is written."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: Any = None

    def write(self, columns: Iterable[Any]) -> None:
        """Write a record batch.

        Each column is an array, or values of the schema's type.
        """
        if self._writer is None:
            codec = pa.Codec("zstd", compression_level=1)
            options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
            self._writer = pa.ipc.new_file(self._path, self._schema, options=options)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
