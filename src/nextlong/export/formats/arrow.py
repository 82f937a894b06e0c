"""Arrow: a folder that `datasets.load_from_disk` memory-maps, with the columns of the Parquet files.

Files: `data-00000-of-00008.arrow` (Arrow stream format) for each shard, and `dataset_info.json` and `state.json`, as
`save_to_disk` of the `datasets` library writes them. That library copies a complete table and saves it from one process;
here shards are written in parallel, block by block, and the core does not need `datasets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats import base
from nextlong.export.formats.base import (
    COLUMNS,
    Format,
    LoadingCode,
    Options,
    rows_of,
    schema_of,
    to_table,
)
from nextlong.text import Json


class _ArrowShard(ShardResult):
    """A shard: its file, the hash of its content, and the columns that padding added."""

    file: str
    xxh3: str
    added_columns: tuple[str, ...] = ()


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _ArrowShard:
    """Write one shard beside `out`, one record batch per block."""
    path = out.with_name(f"data-{options.shard:05}-of-{options.shards:05}.arrow")
    content, count = xxhash.xxh3_64(), 0
    columns = schema_of(COLUMNS, options.keys)
    schema = columns.with_metadata(
        {"huggingface": json.dumps({"info": {"features": _features(columns)}})}
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for block in rows:
            table = to_table(block, columns.names, options)
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            count += len(block)
            for chunk in (chunk for column in table.columns for chunk in column.chunks):
                for buffer in filter(None, chunk.buffers()):
                    content.update(buffer)
    added = tuple(columns.names[len(COLUMNS) :])
    return _ArrowShard(
        rows=count, file=path.name, xxh3=content.hexdigest(), added_columns=added
    )


def _close(folder: Path, shards: Sequence[_ArrowShard]) -> None:
    """Write `dataset_info.json` (columns) and `state.json` (files, and the hash by which `datasets` keys its caches)."""
    features = _features(schema_of((*COLUMNS, *shards[0].added_columns)))
    info = {
        "citation": "",
        "description": "",
        "features": features,
        "homepage": "",
        "license": "",
    }
    fingerprint = xxhash.xxh3_64_hexdigest(
        "".join(shard.xxh3 for shard in shards).encode()
    )
    state: Json = {
        "_data_files": [{"filename": shard.file} for shard in shards],
        "_fingerprint": fingerprint,
    }
    state |= {"_format_columns": None, "_format_kwargs": {}, "_format_type": None}
    state |= {"_output_all_columns": False, "_split": None}
    for name, content in (("dataset_info.json", info), ("state.json", state)):
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _describe_splits(names: Sequence[str]) -> Mapping[str, str]:
    """Return the file by which `load_from_disk` recognizes a `DatasetDict`."""
    return {"dataset_dict.json": json.dumps({"splits": list(names)})}


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the files in `state.json`. Raises ValueError for columns that `dataset_info.json` does not have."""
    state, info = (
        json.loads((folder / name).read_bytes())
        for name in ("state.json", "dataset_info.json")
    )
    base.check_index(
        "state.json", [file["filename"] for file in state["_data_files"]], files
    )
    for name in files:
        with (
            pa.memory_map(str(folder / name)) as mapped,
            pa.ipc.open_stream(mapped) as reader,
        ):
            if _features(reader.schema) != info["features"]:
                raise ValueError(
                    f"{name} has other columns than dataset_info.json says: {reader.schema.names}"
                )
            for batch in reader:
                yield from rows_of(batch)


def _features(schema: pa.Schema) -> Json:
    """Return the columns as `datasets` describes them in JSON."""
    return {field.name: _feature(field.type) for field in schema}


def _feature(kind: pa.DataType) -> Json:
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind.fields}
    return {
        "dtype": "float32" if kind == pa.float32() else str(kind),
        "_type": "Value",
    }  # Arrow's name is "float"


FORMAT = Format(
    name="arrow",
    layout="arrow",
    suffixes=(".arrow",),
    write=_write,
    result=_ArrowShard,
    close=_close,
    describe_splits=_describe_splits,
    read=_read,
    wanted="spans",
    keys=frozenset({"boundaries", "pad_documents_to"}),
    columns=COLUMNS,
    snippet=LoadingCode(
        "from datasets import load_from_disk",
        "load_from_disk({place})",
        'rows[0]["length"]',
    ),
)
