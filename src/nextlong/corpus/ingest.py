"""Ingest: files → documents.

In:  a few files of one source, or a part of one file.
Out: DOCUMENTS shards in file order, and .npy files with one value per document, from which later steps select and sample
without reading text; also the rejects, with file, line and reason. `content_hash` is xxh3-64 of the text's UTF-8 bytes as they
were read.
"""

from __future__ import annotations

import difflib
import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from nextlong.artifacts.finished import IngestResult
from nextlong.corpus.select import Exclusion, exclusions_of
from nextlong.corpus.splits import LineCountResult, Parts, Splits, numbered
from nextlong.engine.step import Artifact, Artifacts, Step, Task
from nextlong.errors import CorpusError
from nextlong.reading.files import SourceFiles
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
from nextlong.recipe import Ingest, Source
from nextlong.schemas import DOCUMENTS, DOCUMENTS_WITH_METADATA, REJECTS
from nextlong.text import Json

_BATCH_TEXT_BYTES: Final = 1_000_000
_BATCH_ROWS: Final = 4096
_FILTER_EXAMPLES: Final = 2  # per task
_HEAD_CHARS: Final = 200  # of an excluded document, as an example
_ELSEWHERE: Final = "excluded_elsewhere"  # config key: number of entries in the exclusion list for other sources
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
    """files → DOCUMENTS; too many rejects are an error at the end. `line_counts` are the `line_counts_steps`."""
    exclusions, elsewhere = exclusions_of(ingest.exclude, ingest.sources)

    def tasks(done: Artifacts) -> list[Task]:
        counts = iter(
            [part for step in done.values() for part in step.results(LineCountResult)]
        )
        task = partial(_ingest_split, settings=ingest, shard_bytes=shard_bytes)
        return [
            partial(
                task,
                parts=parts,
                source=source,
                exclusion=exclusion,
                is_first=place == 0,
            )
            for source, of_source, exclusion in zip(
                ingest.sources, splits, exclusions, strict=True
            )
            for place, parts in enumerate(numbered(of_source, counts))
        ]

    def check(done: Artifact) -> None:
        rest = iter(results := done.results(IngestResult))
        _check_rejects(
            results, ingest.max_reject_share, f"{done.folder}/part-*.rejects.arrow"
        )
        for place, (source, of_source) in enumerate(
            zip(ingest.sources, splits, strict=True)
        ):
            own, key = [next(rest) for _ in of_source], f"ingest.sources[{place}]"
            documents = sum(result.documents for result in own)
            none = f"none of {documents:,} documents of {source.label} has a value"
            for name in source.metadata if documents else ():
                if not sum(result.metadata_values[name] for result in own):
                    raise CorpusError(
                        f"{key}.metadata: {none} in {name!r}; correct or remove the name"
                    )
            if (
                documents
                and source.names_ids
                and sum(result.without_id for result in own) == documents
            ):
                heads = (head_columns(file, source) for file in files[place])
                known = next(filter(None, heads), [])
                raise missing_id_column(
                    source, f"{none} in this column", known, key=f"{key}.id"
                )
        when_ingested(done)

    # The parts of Parquet files, and of files compressed as a whole.
    parts = [part for of_source in splits for parts in of_source for part in parts]
    row_groups = [
        [part.file.name, *part.row_groups] for part in parts if part.row_groups
    ]
    skipping = [[part.file.name, part.start] for part in parts if part.skips]
    config: Json = {
        "sources": [],
        "max_document_chars": ingest.max_document_chars,
        "shard_bytes": shard_bytes,
    }
    config |= {"hash_normalized": True} if ingest.dedup == "normalized" else {}
    for key, value in (
        (_ELSEWHERE, elsewhere),
        ("row_groups", row_groups),
        ("decompressed_from", skipping),
    ):
        config |= {key: value} if value else {}
    for source, inputs, exclusion in zip(
        ingest.sources, files, exclusions, strict=True
    ):
        named = [
            [file.name, file.identity] for file in inputs
        ]  # relative names: a corpus that was moved is the same
        own: Json = {
            key: getattr(source, key) for key in ("format", "id", "label", "text")
        } | {"files": named}
        optional = {
            "encoding": source.encoding,
            "filter": source.filter,
            "evaluator": source.filter and library("duckdb"),
            "metadata": source.metadata,
            "extractor": next(
                filter(
                    None, (format_of(file.name, source).extractor for file in inputs)
                ),
                None,
            ),
            "excluded": exclusion.identity,
        }
        config["sources"].append(
            own | {key: value for key, value in optional.items() if value}
        )
    sizes = [
        sum(part.disk_bytes for part in parts)
        for of_source in splits
        for parts in of_source
    ]
    before = tuple(line_counts)
    return Step(
        "ingest",
        8,
        config,
        before,
        tasks,
        IngestResult,
        check=check,
        sizes=sizes,
    )


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
    """Write the documents of one task as `{out}.{k:04d}.documents.arrow`, with `.hashes.npy` (uint64), `.chars.npy` (int64) and
    others.

    `.id_hashes.npy` (uint64) hashes source and id; `.normalized.npy` (uint64), for `dedup: normalized`, has each
    `normalized_hash`. A shard is closed once its text has `shard_bytes` UTF-8 bytes. Rejects, if any, are written to
    `{out}.rejects.arrow`. The first task of a source writes its exclusions to `{out}.excluded.json`; `{out}.excluded_met.json`
    holds the entries ("" for a whole source) that match a document of this task. Raises CorpusError for a file that cannot be
    read to its end.
    """
    documents = _DocumentShards(
        out, source, shard_bytes, hash_normalized=settings.dedup == "normalized"
    )
    rejects = _ArrowFile(f"{out}.rejects.arrow", REJECTS)
    pending: list[tuple[str, int, str]] = []  # rejects not yet written
    kinds, removed = Counter[RejectKind](), Counter[str]()
    example, without_id, met = "", 0, set[str]()
    examples: dict[str, list[tuple[str, str]]] = {"filtered_out": [], "excluded": []}
    skipped = Counter[str]()
    skipped_examples: dict[str, str] = {}
    for part in parts:
        for item in read_records(
            part, source, max_document_chars=settings.max_document_chars
        ):
            name = part.file.name
            if isinstance(item, Skip):
                skipped[item.reason] += 1
                skipped_examples.setdefault(item.reason, f"{name}:{item.line}")
                continue
            if not isinstance(item, Reject):
                if is_excluded := exclusion.holds(item.source_id):
                    met |= (exclusion.ids & {item.source_id}) | (
                        {""} if exclusion.is_whole else set()
                    )
                if isinstance(item, FilteredOut) or is_excluded:
                    why = (
                        "filtered_out" if isinstance(item, FilteredOut) else "excluded"
                    )
                    removed[why] += 1
                    if removed[why] <= _FILTER_EXAMPLES:
                        head = (
                            item.head
                            if isinstance(item, FilteredOut)
                            else item.text[:_HEAD_CHARS]
                        )
                        examples[why].append((item.source_id, head))
                    continue
                if not (
                    problem := text_problem(item.text, settings.max_document_chars)
                ):
                    documents.add(item)
                    # Readers give a record without an id the name of its place.
                    without_id += source.names_ids and item.source_id in (
                        f"{name}:{item.line}",
                        name,
                    )
                    continue
                item = Reject(name, item.line, *problem)
            example = example or f"{item.file}:{item.line}: {item.reason}"
            kinds[item.kind] += 1
            pending.append((item.file, item.line, item.reason))
            if len(pending) >= _BATCH_ROWS:
                rejects.write(zip(*pending, strict=True))
                pending = []
    if pending:
        rejects.write(zip(*pending, strict=True))
    documents.close()
    rejects.close()
    if exclusion.identity:
        kept = {
            "source": source.label,
            "whole": exclusion.is_whole,
            "ids": sorted(exclusion.ids),
        }
        of_task = {"source": source.label, "entries": sorted(met)}
        for name, content in (("excluded", kept), ("excluded_met", of_task))[
            0 if is_first else 1 :
        ]:
            Path(f"{out}.{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return IngestResult(
        documents=documents.documents,
        text_bytes=documents.text_bytes,
        chars=documents.chars,
        rejects=kinds.total(),
        reject_reasons={kind.value: count for kind, count in sorted(kinds.items())},
        example=example,
        shards=documents.shards,
        # Small files are still in the page cache.
        input_hashes=tuple(hash_of(part.file) for part in parts if part.begins_file),
        filtered_out=removed["filtered_out"],
        filter_examples=tuple(examples["filtered_out"]),
        excluded=removed["excluded"],
        excluded_examples=tuple(examples["excluded"]),
        metadata_values=documents.metadata_values,
        without_id=without_id,
        skipped=dict(sorted(skipped.items())),
        skipped_examples=dict(sorted(skipped_examples.items())),
    )


def unmet_exclusions(ingested: Artifact) -> tuple[int, int]:
    """Return how many entries of the exclusion list matched no document during ingest, and the number of entries."""
    names = [name for part in ingested.manifest["parts"] for name in part["files"]]
    lists, tasks = (
        [
            json.loads((ingested.folder / name).read_text(encoding="utf-8"))
            for name in names
            if name.endswith(suffix)
        ]
        for suffix in (".excluded.json", ".excluded_met.json")
    )
    entries = int(ingested.manifest["config"].get(_ELSEWHERE, 0))
    entries += sum(len(kept["ids"]) + kept["whole"] for kept in lists)
    return entries - len(
        {(task["source"], entry) for task in tasks for entry in task["entries"]}
    ), entries


def missing_id_column(
    source: Source, problem: str, known: Sequence[str], *, key: str
) -> CorpusError:
    """Return the error for a source whose id column, at `key`, names no document."""
    near = difflib.get_close_matches(source.id, known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "use one of these."
    shown = ", ".join(known[:_SHOWN_COLUMNS]) or "none"
    return CorpusError(
        where=f"{key}={source.id!r}",
        problem=f"{problem}; columns of its first records: {shown}",
        fix=f"{fix} Without an id column, documents are named file:line",
    )


def _check_rejects(
    results: Sequence[IngestResult], max_reject_share: float, rejects_path: str
) -> None:
    """Raise CorpusError if no document was read, or more than `max_reject_share` of the records were rejected."""
    names = ("documents", "rejects", "filtered_out", "excluded")
    documents, rejects, filtered_out, excluded = (
        sum(getattr(part, name) for part in results) for name in names
    )
    records = documents + rejects
    reasons = sum(
        (Counter(result.reject_reasons) for result in results), Counter[str]()
    )
    worst = sorted(reasons, key=lambda kind: (-reasons[kind], kind))[:3]
    example = next((result.example for result in results if result.example), "")
    most = ", ".join(f"{reasons[kind]:,} × {kind}" for kind in worst)
    evidence = f"{most}; first one: {example}; all of them: {rejects_path}"
    if not documents and excluded:
        raise CorpusError(
            f"ingest.exclude removes all {excluded:,} documents; delete lines of it, or set it to null"
        )
    if filtered_out and not documents:
        cure = "check the values of its columns (a missing column is NULL) and correct the condition"
        raise CorpusError(
            f"ingest.sources[].filter matches none of {filtered_out:,} documents; {cure}"
        )
    skipped = sum((Counter(part.skipped) for part in results), Counter[str]())
    if not records and skipped:
        reasons_of_most = ", ".join(
            f"{count:,} × {reason}" for reason, count in skipped.most_common(3)
        )
        problem = f"none of their {skipped.total():,} records is a document"
        raise CorpusError(
            f"ingest.sources: {problem} ({reasons_of_most}); use other files"
        )
    if not records:
        raise CorpusError(
            "ingest.sources have no records: every file is empty; use files with documents"
        )
    if not documents:
        raise CorpusError(
            f"all {records:,} records were rejected: {evidence}; correct ingest.sources"
        )
    if (
        rejects / records > max_reject_share
    ):  # divided as in `allowing` and plan, to round in the same way
        raise CorpusError(
            f"{rejects:,} of {records:,} records ({rejects / records:.2%}) were rejected, more than ingest.max_reject_share="
            f"{max_reject_share} allows: {evidence}; correct the files, or set {allowing(rejects / records)} in the recipe"
        )


def allowing(share: float) -> str:
    """Return the setting that allows this share of rejects, rounded up to hundredths."""
    return f"ingest.max_reject_share={min(1.0, math.ceil(100 * share) / 100):g}"


content_hash: Final = xxhash.xxh3_64_intdigest  # of the UTF-8 bytes of a text


def normalized_hash(utf8: bytes) -> int:
    """Return xxh3-64 of `" ".join(text.lower().split())`: the text in lower case, with runs of white space as one blank.

    If nothing outside ASCII changes case or is white space (nearly all English text), the work is done on bytes, four times
    faster.
    """
    if not utf8.isascii():
        others = utf8.translate(None, _ASCII).decode("utf-8")
        if others.lower() != others or others.split() != [others]:
            return content_hash(
                " ".join(utf8.decode("utf-8").lower().split()).encode("utf-8")
            )
    # Splitting at double blanks, which are rare, is fast; the odd blank of a longer run is stripped off the next piece.
    pieces = map(bytes.strip, utf8.translate(_LOWER_AND_BLANK).split(b"  "))
    return content_hash(b" ".join(filter(None, pieces)))


class _DocumentShards:
    """Write documents in order; close a record batch every MB and a shard every `shard_bytes`."""

    def __init__(
        self, out: Path, source: Source, shard_bytes: int, *, hash_normalized: bool
    ) -> None:
        self._out, self._source, self._shard_bytes = out, source, shard_bytes
        normalized = {"normalized": "Q"} if hash_normalized else {}
        self._typecodes = {"hashes": "Q", "chars": "q", "id_hashes": "Q", **normalized}
        # The current record batch: texts, ids, and metadata as UTF-8 JSON.
        self._texts, self._ids, self._metadata, self._batch_bytes = (
            list[bytes](),
            list[str](),
            list[bytes](),
            0,
        )
        self.documents = self.text_bytes = self.chars = self.shards = 0
        self.metadata_values = dict.fromkeys(source.metadata, 0)
        self._open_shard()

    def add(self, record: Record) -> None:
        raw = record.text.encode("utf-8")
        self._texts.append(raw)
        self._ids.append(record.source_id)
        self._columns["hashes"].append(content_hash(raw))
        if "normalized" in self._columns:
            self._columns["normalized"].append(normalized_hash(raw))
        self._columns["chars"].append(len(record.text))
        self._columns["id_hashes"].append(
            content_hash(f"{self._source.label}\0{record.source_id}".encode())
        )
        if self._source.metadata:
            values = dict(zip(self._source.metadata, record.values, strict=True))
            for name, value in values.items():
                self.metadata_values[name] += value is not None
            self._metadata.append(
                orjson.dumps(values, default=_as_text, option=orjson.OPT_NON_STR_KEYS)
            )
        self._batch_bytes += len(raw)
        self._shard_text_bytes += len(raw)
        if self._shard_text_bytes >= self._shard_bytes:
            self.close()
        elif self._batch_bytes >= _BATCH_TEXT_BYTES or len(self._texts) >= _BATCH_ROWS:
            self._write_batch()

    def close(self) -> None:
        """Finish the current shard, if it has documents."""
        if not self._columns["hashes"]:
            return
        self._write_batch()
        self._file.close()
        for name, values in self._columns.items():
            np.save(
                f"{self._out}.{self.shards:04d}.{name}.npy",
                np.frombuffer(values, values.typecode),
            )
        self.documents += len(self._columns["chars"])
        self.chars += sum(self._columns["chars"])
        self.text_bytes += self._shard_text_bytes
        self.shards += 1
        self._open_shard()

    def _open_shard(self) -> None:
        schema = DOCUMENTS_WITH_METADATA if self._source.metadata else DOCUMENTS
        self._file = _ArrowFile(
            f"{self._out}.{self.shards:04d}.documents.arrow", schema
        )
        self._columns = {
            name: array(code) for name, code in self._typecodes.items()
        }  # one value per document
        self._shard_text_bytes = 0

    def _write_batch(self) -> None:
        if not (rows := len(self._texts)):
            return
        # Build the texts from bytes, because they were encoded for hashing: int64 offsets (rows + 1,) and content.
        offsets = np.cumsum([0, *map(len, self._texts)], dtype=np.int64)
        texts = pa.LargeStringArray.from_buffers(
            rows, pa.py_buffer(offsets), pa.py_buffer(b"".join(self._texts))
        )
        hashes = np.frombuffer(self._columns["hashes"], np.uint64)[-rows:].copy()
        labels = pa.repeat(pa.scalar(self._source.label, pa.string()), rows)
        self._file.write(
            [
                texts,
                hashes,
                labels,
                self._ids,
                *([self._metadata] if self._source.metadata else []),
            ]
        )
        self._texts, self._ids, self._metadata, self._batch_bytes = [], [], [], 0


def _as_text(value: Any) -> str:
    """Return a value without a JSON type (a decimal, a duration, bytes) as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _ArrowFile:
    """A compressed Arrow file, created when the first batch is written."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._writer: Any = None

    def write(self, columns: Iterable[Any]) -> None:
        """Write a record batch; each column is an array, or values of the schema's type."""
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(
                compression=pa.Codec("zstd", compression_level=1), use_threads=False
            )
            self._writer = pa.ipc.new_file(self._path, self._schema, options=options)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
