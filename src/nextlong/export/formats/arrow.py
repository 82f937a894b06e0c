"""Arrow: a folder that `datasets.load_from_disk` maps into memory, with the columns of the Parquet files.

In:  blocks of rows. Out: `data-00000-of-00008.arrow` (Arrow stream format) a shard, and `dataset_info.json` and `state.json`,
as the `datasets` library's own `save_to_disk` writes them. That library saves a finished table from one process and copies
it first; written here, shards are made at the same time, from blocks, and the core needs no `datasets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import xxhash

from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.base import Format, Options, Snippet
from nextlong.export.table import SCHEMA, to_table
from nextlong.plain_data import Json
from nextlong.results import ShardResult

_DTYPES: Final = {pa.float32(): "float32"}  # where the name in `datasets` is not Arrow's


class ArrowShard(ShardResult):
    """A shard, its file, and the hash of its content."""

    file: str
    xxh3: str


def write(out: Path, rows: Iterable[Resolved], *, shard: int, shards: int) -> ArrowShard:
    """Write one shard beside `out`, a record batch a block."""
    path = out.with_name(f"data-{shard:05}-of-{shards:05}.arrow")
    content, count = xxhash.xxh3_64(), 0
    schema = SCHEMA.with_metadata({"huggingface": json.dumps({"info": {"features": features()}})})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for block in rows:
            table = to_table(block)
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            count += len(block)
            for buffer in _buffers(table):
                content.update(buffer)
    return ArrowShard(rows=count, file=path.name, xxh3=content.hexdigest())


def close(folder: Path, shards: Sequence[ArrowShard]) -> None:
    """Write `dataset_info.json` (what the columns are) and `state.json` (which files, in which order).

    `_fingerprint` names the content: `datasets` keys its caches of `map` and `filter` by it.
    """
    info = {"citation": "", "description": "", "features": features(), "homepage": "", "license": ""}
    state: Json = {
        "_data_files": [{"filename": shard.file} for shard in shards],
        "_fingerprint": xxhash.xxh3_64_hexdigest("".join(shard.xxh3 for shard in shards).encode()),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    for name, content in (("dataset_info.json", info), ("state.json", state)):
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def features() -> Json:
    """Return the columns as the `datasets` library describes them in JSON."""
    return {field.name: _feature(field.type) for field in SCHEMA}


def _feature(kind: pa.DataType) -> Json:
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind.fields}
    return {"dtype": _DTYPES.get(kind, str(kind)), "_type": "Value"}


def _buffers(table: pa.Table) -> Iterable[pa.Buffer]:
    for column in table.columns:
        for chunk in column.chunks:
            yield from filter(None, chunk.buffers())


def _write_shard(out: Path, rows: Iterable[Resolved], options: Options) -> ArrowShard:
    return write(out, rows, shard=options.shard, shards=options.shards)


FORMAT = Format(
    name="arrow",
    layout="arrow",
    suffixes=(".arrow",),
    write=_write_shard,
    result=ArrowShard,
    close=close,
    wanted="spans",
    keys=frozenset({"boundaries"}),
    columns=tuple(SCHEMA.names),
    snippet=Snippet("from datasets import load_from_disk", "load_from_disk({place})", 'rows[0]["length"]'),
)
