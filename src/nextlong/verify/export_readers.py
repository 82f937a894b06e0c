"""Export readers: the rows of exported files, each format read in its simplest way, from its own index where it has one.

In:  the folder of an export, or its files in order. Out: `Row`s; what a format does not say is None or left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from numpy.typing import NDArray

Spans = dict[str, list[Any]]

SPAN_KEYS = ("chunk_id", "doc_id", "source_id", "char_start", "char_end", "role", "token_start", "token_end", "score")
_NAMES = ("sequence_id", "method", "domain", "length", "seq_lengths")


@dataclass(frozen=True)
class Row:
    """One row as its file has it; `sequences` says how many are packed in it, `names` holds its plain columns."""

    sequences: int
    names: dict[str, Any]
    input_ids: NDArray[Any] | None = None
    text: str | None = None
    spans: Spans | None = None


def parquet_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """Yield the rows of Parquet files."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=8):
                yield from _table_rows(batch)


def arrow_rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of a folder that `datasets.load_from_disk` reads, in the order of its `state.json`."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    for file in state["_data_files"]:
        with pa.memory_map(str(folder / file["filename"])) as mapped, pa.ipc.open_stream(mapped) as reader:
            for batch in reader:
                yield from _table_rows(batch)


def _table_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    for row in range(batch.num_rows):
        names = {name: batch.column(name)[row].as_py() for name in _NAMES}
        spans = batch.column("spans")[row].values
        yield Row(
            len(names["sequence_id"].split(" ")),
            names,
            input_ids=batch.column("input_ids")[row].values.to_numpy(),
            spans={key: spans.field(key).to_pylist() for key in SPAN_KEYS},
        )


def jsonl_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """Yield the rows of JSONL files."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                spans = {key: [span[key] for span in row["spans"]] for key in SPAN_KEYS}
                names = {name: row[name] for name in _NAMES}
                yield Row(len(row["sequence_id"].split(" ")), names, text=row["text"], spans=spans)


def mds_rows(folder: Path) -> Iterator[Row]:
    """Yield the samples of MDS shards, in the order of `index.json`; raises ValueError where it and a shard disagree."""
    for shard in json.loads((folder / "index.json").read_text(encoding="utf-8"))["shards"]:
        packed = shard["zip_data"] or shard["raw_data"]
        data = (folder / packed["basename"]).read_bytes()
        if len(data) != packed["bytes"]:
            raise ValueError(f"{packed['basename']} has {len(data)} bytes, index.json says {packed['bytes']}")
        if shard["zip_data"]:
            data = zstandard.ZstdDecompressor().decompress(data)
        (count,) = struct.unpack_from("<I", data)
        if count != shard["samples"]:
            raise ValueError(f"{packed['basename']} has {count} samples, index.json says {shard['samples']}")
        offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
        for start in offsets[:-1]:
            yield _mds_row(data, start, shard["column_names"], shard["column_sizes"])


def _mds_row(data: bytes, start: int, columns: list[str], fixed: list[int | None]) -> Row:
    open_sizes = iter(struct.unpack_from(f"<{fixed.count(None)}I", data, start))
    at, sample = start + 4 * fixed.count(None), {}
    for name, size in zip(columns, fixed, strict=True):
        stop = at + (next(open_sizes) if size is None else size)
        sample[name] = data[at:stop]
        at = stop
    ids, indices = _mds_array(sample["input_ids"]), _mds_array(sample["indices"])
    names = {
        "domain": sample["domain"].decode(),
        "length": struct.unpack("<q", sample["length"])[0],
        "indices": indices.tolist(),
    }
    return Row(len(indices), names, input_ids=ids)


def _mds_array(data: bytes) -> NDArray[np.uint32]:
    axes, width = data[0] >> 2, 1 << (data[0] & 3)
    shape = np.frombuffer(data, f"<u{width}", axes, 1)
    return np.frombuffer(data, "<u4", offset=1 + axes * width).reshape(shape.tolist())


def megatron_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """Yield the documents of `.bin` files, by the `.idx` files beside them; each document is one sequence of ids."""
    for path in paths:
        index = path.with_suffix(".idx").read_bytes()
        magic, version, code, sequences, bounds = struct.unpack_from("<9sQBQQ", index)
        if (magic, version) != (b"MMIDIDX\x00\x00", 1):
            raise ValueError(f"{path.with_suffix('.idx')} begins with {magic!r}, version {version}")
        lengths = np.frombuffer(index, "<i4", sequences, 34)
        pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
        documents = np.frombuffer(index, "<i8", bounds, 34 + 12 * sequences)
        if not np.array_equal(documents, np.arange(sequences + 1)):
            raise ValueError(f"{path.with_suffix('.idx')} does not make one document of every sequence")
        ids = np.memmap(path, {4: "<i4", 8: "<u2"}[code], "r") if sequences else np.empty(0, np.int32)
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True):
            first = pointer // ids.itemsize
            yield Row(1, {}, input_ids=ids[first : first + length])
        if len(ids) != int(lengths.sum(dtype=np.int64)):
            raise ValueError(f"{path} holds {len(ids):,} ids, its index names {int(lengths.sum(dtype=np.int64)):,}")
