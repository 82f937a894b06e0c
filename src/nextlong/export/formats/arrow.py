"""Arrow: a folder that `datasets.load_from_disk` memory-maps, with Parquet's columns.

Files: `data-00000-of-00008.arrow` (Arrow stream format) for each shard, and
`dataset_info.json` and `state.json`, as `save_to_disk` of the `datasets` library writes
them. That library copies a complete table and saves it from one process; here shards
are written in parallel, block by block, and the core does not need `datasets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import xxhash

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats.base import (
    COLUMNS,
    Format,
    LoadingCode,
    Options,
    check_index,
    rows_of,
    schema_of,
    to_table,
)
from nextlong.text import Json, Rows


class _ArrowShard(ShardResult):
    """A shard: its file, the hash of its content, and the columns padding added."""

    file: str
    xxh3: str
    added_columns: tuple[str, ...] = ()


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _ArrowShard:
    """Write one shard beside `out`, one record batch per block."""
    path = out.with_name(f"data-{options.shard:05}-of-{options.shards:05}.arrow")
    columns = schema_of(COLUMNS, options.keys)
    # Where `datasets` looks for its description of the columns.
    info = json.dumps({"info": {"features": _features(columns)}})
    schema = columns.with_metadata({"huggingface": info})
    content = xxhash.xxh3_64()
    count = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for block in rows:
            table = to_table(block, columns.names, options)
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            count += len(block)
            for column in table.columns:
                _add_hash(content, column)
    added_columns = columns.names[len(COLUMNS) :]
    return _ArrowShard(
        rows=count,
        file=path.name,
        xxh3=content.hexdigest(),
        added_columns=tuple(added_columns),
    )


def _add_hash(content: xxhash.xxh3_64, column: pa.ChunkedArray) -> None:
    """Add the bytes of a column to a hash.

    A column without nulls has no buffer of them.
    """
    for chunk in column.chunks:
        for buffer in chunk.buffers():
            if buffer is not None:
                content.update(buffer)


def _close(folder: Path, shards: Sequence[_ArrowShard]) -> None:
    """Write `dataset_info.json` (columns) and `state.json` (files and fingerprint).

    By the fingerprint `datasets` keys its caches.
    """
    info = {
        "citation": "",
        "description": "",
        "features": _features(schema_of((*COLUMNS, *shards[0].added_columns))),
        "homepage": "",
        "license": "",
    }
    hashes = "".join(shard.xxh3 for shard in shards)
    # As `datasets` writes it; only files and fingerprint differ.
    state: Json = {
        "_data_files": [{"filename": shard.file} for shard in shards],
        "_fingerprint": xxhash.xxh3_64_hexdigest(hashes.encode()),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    for name, described in (("dataset_info.json", info), ("state.json", state)):
        text = json.dumps(described, indent=2)
        (folder / name).write_text(text, encoding="utf-8")


def _describe_splits(names: Sequence[str]) -> Mapping[str, str]:
    """Return the file by which `load_from_disk` recognizes a `DatasetDict`."""
    return {"dataset_dict.json": json.dumps({"splits": list(names)})}


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield the rows of the files in `state.json`.

    Raises ValueError for columns that `dataset_info.json` does not have.
    """
    state = json.loads((folder / "state.json").read_bytes())
    info = json.loads((folder / "dataset_info.json").read_bytes())
    listed = [file["filename"] for file in state["_data_files"]]
    check_index("state.json", listed, files)
    for name in files:
        path = str(folder / name)
        with pa.memory_map(path) as mapped, pa.ipc.open_stream(mapped) as reader:
            if _features(reader.schema) != info["features"]:
                raise ValueError(
                    f"{name} has other columns than dataset_info.json says: "
                    f"{reader.schema.names}"
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
    # Arrow's own name of float32 is "float".
    dtype = "float32" if kind == pa.float32() else str(kind)
    return {"dtype": dtype, "_type": "Value"}


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
