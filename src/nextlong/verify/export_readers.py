"""Export readers: the rows of exported files, each format read in its simplest way, from its own index where it has one.

In:  the step that wrote them. Out: `Row`s in the order in which a trainer reads them; what a format does not say is None or
left out. An index that does not tell the truth of its files raises ValueError.

The readers here share nothing with what wrote the files. A format that has none here is read by the reader that it brings
itself, which the outcome tells; one that brings none is known by the hashes of its files alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from numpy.typing import NDArray

from nextlong.errors import PluginError
from nextlong.plain_data import Json
from nextlong.recipe.export import FORMATS
from nextlong.verify.step import Step

Spans = dict[str, list[Any]]

SPAN_KEYS = (
    "chunk_id", "doc_id", "source_id", "kept", "char_start", "char_end", "role", "token_start", "token_end", "score",
)  # fmt: skip
# What reading a file that is missing, torn or of another shape raises.
BROKEN = (OSError, ValueError, LookupError, TypeError, EOFError, struct.error, pa.ArrowException, zstandard.ZstdError)

_NAMES = ("sequence_id", "method", "domain", "length", "seq_lengths")
_COLUMNS = {
    "parquet": (*_NAMES[:3], "input_ids", *_NAMES[3:], "spans"),
    "torchtitan": ("input_ids", "seq_lengths"),
    "axolotl": ("input_ids", "attention_mask", "labels"),
}
_BESIDE_NAMES = ("input_ids", "attention_mask", "labels", "text", "spans")
_MDS_ENCODINGS = {"domain": "str", "indices": "ndarray:uint32", "input_ids": "ndarray:uint32", "length": "int"}


@dataclass(frozen=True)
class Row:
    """One row as its file has it, or as it should be; `names` holds its plain columns."""

    names: dict[str, Any] = field(default_factory=dict)
    input_ids: NDArray[Any] | None = None
    attention_mask: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    text: str | None = None
    spans: Spans | None = None


@dataclass(frozen=True)
class Reader:
    """How the files of a format are read: `rows` yields its rows, or its documents; `parts` is what they tell beside tokens."""

    rows: Callable[[Step], Iterator[Row]]
    parts: tuple[str, ...] = ()
    unit: Literal["rows", "documents"] = "rows"
    note: str = ""


def reader_of(name: str) -> Reader | None:
    """Return the reader of a format: the one here, else the one that it brings; None if there is none, or no such format."""
    if name in _READERS:
        return _READERS[name]
    try:
        brought = FORMATS.load(name)
    except (KeyError, PluginError):
        return None
    if getattr(brought, "read", None) is None:
        return None
    parts = {"spans": ("spans",), "texts": ("spans", "text")}.get(brought.wanted, ())
    return Reader(
        partial(_brought_rows, brought=brought), parts, brought.unit, "read by the reader that the format brings"
    )


def _brought_rows(step: Step, brought: Any) -> Iterator[Row]:
    """Yield what a format's own reader finds, in the columns that are known here. Raises ValueError for any other."""
    names = [path.name for suffix in brought.suffixes for path in step.files(suffix)]
    for values in brought.read(step.folder, names):
        unknown = sorted(values.keys() - {*_NAMES, "indices", *_BESIDE_NAMES})
        if unknown:
            raise ValueError(f"its reader tells of {unknown[0]!r}, which rows do not have")
        yield Row({name: value for name, value in values.items() if name not in _BESIDE_NAMES}, **_beside(values))


def _beside(values: Mapping[str, Any]) -> Json:
    return {name: values[name] for name in _BESIDE_NAMES if name in values}


def _parquet_rows(step: Step, columns: Sequence[str]) -> Iterator[Row]:
    for path in _globbed(step, ".parquet"):
        with pq.ParquetFile(path) as file:
            if file.schema_arrow.names != list(columns):
                raise ValueError(f"{path.name} has the columns {file.schema_arrow.names}, should have {list(columns)}")
            for batch in file.iter_batches(batch_size=8):
                yield from _table_rows(batch)


def _globbed(step: Step, suffix: str) -> list[Path]:
    """Return the files of a format whose readers take whatever ends in `suffix`. Raises ValueError for one too many."""
    named = step.files(suffix)
    foreign = sorted(path.name for path in step.folder.glob(f"*{suffix}") if path not in named)
    if foreign:
        raise ValueError(
            f"{foreign[0]} lies among the files and would be read as one of them; the manifest names it not"
        )
    return named


def _table_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = {name: batch.column(name) for name in batch.schema.names}
    for row in range(batch.num_rows):
        arrays = {
            name: columns[name][row].values.to_numpy()
            for name in ("input_ids", "attention_mask", "labels")
            if name in columns
        }
        spans = columns["spans"][row].values if "spans" in columns else None
        yield Row(
            {name: columns[name][row].as_py() for name in _NAMES if name in columns},
            spans=None if spans is None else {key: spans.field(key).to_pylist() for key in SPAN_KEYS},
            **arrays,
        )


def _arrow_rows(step: Step) -> Iterator[Row]:
    """Yield the rows of a folder that `datasets.load_from_disk` reads, in the order of its `state.json`."""
    state, info = (_read_json(step.folder / name) for name in ("state.json", "dataset_info.json"))
    _expect_files("state.json", [file["filename"] for file in state["_data_files"]], step.files(".arrow"))
    features = pa.schema([(name, _arrow_type(feature)) for name, feature in info["features"].items()])
    for path in step.files(".arrow"):
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as reader:
            if reader.schema != features:
                raise ValueError(f"{path.name} has other columns than dataset_info.json says: {reader.schema.names}")
            for batch in reader:
                yield from _table_rows(batch)


def _arrow_type(feature: Any) -> pa.DataType:
    """Return the type that `datasets` describes in JSON. Raises ValueError if it is none."""
    if not isinstance(feature, dict):
        raise ValueError(f"dataset_info.json describes the type of a column by {feature!r:.80}")
    if feature.get("_type") == "List":
        return pa.list_(_arrow_type(feature.get("feature")))
    if feature.get("_type") == "Value":
        return pa.type_for_alias(str(feature.get("dtype")))
    return pa.struct([(name, _arrow_type(feature_type)) for name, feature_type in feature.items()])


def _jsonl_rows(step: Step) -> Iterator[Row]:
    for path in _globbed(step, ".jsonl"):
        with path.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                spans = {key: [span[key] for span in row["spans"]] for key in SPAN_KEYS}
                yield Row({name: row[name] for name in _NAMES}, text=row["text"], spans=spans)


def _mds_rows(step: Step) -> Iterator[Row]:
    shards = _read_json(step.folder / "index.json")["shards"]
    written = sorted([*step.files(".mds"), *step.files(".mds.zstd")])
    _expect_files("index.json", [(shard["zip_data"] or shard["raw_data"])["basename"] for shard in shards], written)
    for path, shard in zip(written, shards, strict=True):
        data = _mds_data(path, shard)
        offsets = _mds_offsets(path.name, data, shard)
        for start, stop in pairwise(offsets):
            yield _mds_row(data[start:stop], shard["column_names"], shard["column_sizes"])


def _mds_data(path: Path, shard: Json) -> memoryview:
    """Return the samples of a shard, not read yet unless they are compressed."""
    packed = shard["zip_data"] or shard["raw_data"]
    data = np.memmap(path, np.uint8, "r").data
    if len(data) != packed["bytes"]:
        raise ValueError(f"{path.name} has {len(data)} bytes, index.json says {packed['bytes']}")
    if shard["zip_data"]:
        data = memoryview(zstandard.ZstdDecompressor().decompress(data))
        if len(data) != shard["raw_data"]["bytes"]:
            raise ValueError(f"{path.name} unpacks to {len(data)} bytes, index.json says {shard['raw_data']['bytes']}")
    return data


def _mds_offsets(name: str, data: memoryview, shard: Json) -> list[int]:
    """Return where the samples of a shard begin, and where the last one ends."""
    (count,) = struct.unpack_from("<I", data)
    if count != shard["samples"]:
        raise ValueError(f"{name} has {count} samples, index.json says {shard['samples']}")
    offsets: list[int] = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    header = json.loads(bytes(data[4 + 4 * (count + 1) : offsets[0]]))
    for key, value in header.items():
        if shard[key] != value:
            raise ValueError(f"{name} has {key} {value!r}, index.json says {shard[key]!r}")
    encodings = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    if encodings != _MDS_ENCODINGS:
        raise ValueError(f"{name} has the columns {encodings}, should have {_MDS_ENCODINGS}")
    if offsets[-1] != len(data):
        raise ValueError(f"{name} ends at byte {len(data)}, its last sample at {offsets[-1]}")
    return offsets


def _mds_row(data: memoryview, columns: list[str], fixed: list[int | None]) -> Row:
    open_sizes = iter(struct.unpack_from(f"<{fixed.count(None)}I", data))
    at, sample = 4 * fixed.count(None), {}
    for name, size in zip(columns, fixed, strict=True):
        stop = at + (next(open_sizes) if size is None else size)
        sample[name] = data[at:stop]
        at = stop
    names = {
        "domain": bytes(sample["domain"]).decode(),
        "length": struct.unpack("<q", sample["length"])[0],
        "indices": _mds_array(sample["indices"]).tolist(),
    }
    return Row(names, input_ids=_mds_array(sample["input_ids"]))


def _mds_array(data: memoryview) -> NDArray[np.uint32]:
    axes, width = data[0] >> 2, 1 << (data[0] & 3)
    shape = np.frombuffer(data, f"<u{width}", axes, 1)
    return np.frombuffer(data, "<u4", offset=1 + axes * width).reshape(shape.tolist())


def _megatron_rows(step: Step) -> Iterator[Row]:
    """Yield the documents of the `.bin` files that `blend.txt` lists, by the `.idx` files beside them."""
    paths = step.files(".bin")
    blend = [line.split(" ") for line in (step.folder / "blend.txt").read_text(encoding="utf-8").splitlines()]
    _expect_files("blend.txt", [f"{prefix}.bin" for _, prefix in blend], paths)
    for path, (weight, _) in zip(paths, blend, strict=True):
        lengths, dtype = _megatron_lengths(path)
        tokens = int(lengths.sum(dtype=np.int64))
        if path.stat().st_size != tokens * dtype.itemsize:
            raise ValueError(
                f"{path.name} holds {path.stat().st_size:,} bytes, its index names {tokens:,} ids of {dtype}"
            )
        if int(weight) != tokens:
            raise ValueError(f"{path.name} holds {tokens:,} tokens, blend.txt says {weight}")
        ids = np.memmap(path, dtype, "r") if tokens else np.empty(0, dtype)
        for length, stop in zip(lengths.tolist(), np.cumsum(lengths, dtype=np.int64).tolist(), strict=True):
            yield Row(input_ids=ids[stop - length : stop])


def _megatron_lengths(path: Path) -> tuple[NDArray[np.int32], np.dtype[Any]]:
    """Return the lengths of the documents of a `.bin` file, as its `.idx` file has them, and the type of the ids."""
    name, index = path.with_suffix(".idx").name, path.with_suffix(".idx").read_bytes()
    magic, version, code, sequences, bounds = struct.unpack_from("<9sQBQQ", index)
    if (magic, version) != (b"MMIDIDX\x00\x00", 1):
        raise ValueError(f"{name} begins with {magic!r}, version {version}")
    dtype = np.dtype({4: "<i4", 8: "<u2"}[code])
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, "<i8", bounds, 34 + 12 * sequences)
    if not np.array_equal(documents, np.arange(sequences + 1)):
        raise ValueError(f"{name} does not make one document of every sequence")
    if not np.array_equal(pointers, (np.cumsum(lengths, dtype=np.int64) - lengths) * dtype.itemsize):
        raise ValueError(f"{name} has documents that do not begin where the one before ends")
    return lengths, dtype


_READERS: Final[Mapping[str, Reader]] = {
    "parquet": Reader(partial(_parquet_rows, columns=_COLUMNS["parquet"]), ("spans",)),
    "torchtitan": Reader(partial(_parquet_rows, columns=_COLUMNS["torchtitan"])),
    "axolotl": Reader(partial(_parquet_rows, columns=_COLUMNS["axolotl"])),
    "arrow": Reader(_arrow_rows, ("spans",)),
    "jsonl": Reader(_jsonl_rows, ("spans", "text")),
    "mds": Reader(_mds_rows),
    "prolong": Reader(_mds_rows),
    "megatron": Reader(_megatron_rows, unit="documents"),
}


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _expect_files(index: str, listed: list[str], written: list[Path]) -> None:
    """Raise ValueError unless an index names the files that were written, in their order."""
    names = [path.name for path in written]
    if listed != names:
        wrong = next((pair for pair in zip(listed, names, strict=False) if pair[0] != pair[1]), None)
        what = f"{wrong[0]} in the place of {wrong[1]}" if wrong else f"{len(listed)} files, there are {len(names)}"
        raise ValueError(f"{index} names {what}")
