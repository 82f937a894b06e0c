"""MDS: the shards and the index of MosaicML streaming, for ProLong, its forks and whatever reads a `StreamingDataset`.

In:  blocks of rows. Out: `shard.00000.mds` (`.mds.zstd` where compressed) a shard and one `index.json`, byte for byte what
streaming's own `MDSWriter` makes of the same rows, columns and options; that library, which pins an old NumPy, is not needed.

A shard is the number of its samples (uint32), the offset of each sample and of the end (uint32), a JSON header, then the
samples; a sample is the sizes (uint32) of its columns of no fixed size, then its columns in the order of their names.
`shard_sizes` says from lengths alone which rows belong to which shard, so that shards can be written at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import JsonValue

from nextlong.artefacts.resolved import Resolved
from nextlong.errors import ExportError
from nextlong.export.formats.base import Format, Options, RowSizes, Snippet
from nextlong.results import ShardResult

Compression = Literal["zstd"] | None

_COLUMNS: Final = {"domain": "str", "indices": "ndarray:uint32", "input_ids": "ndarray:uint32", "length": "int"}
_FIXED_SIZES: Final = [None, None, None, 8]
_SIZES_BYTES: Final = 4 * _FIXED_SIZES.count(None)
_LENGTH_BYTES: Final = 8
_UINT32_BYTES: Final = 4
_MOST_BYTES: Final = 2**32 - 1
_ZSTD_LEVEL: Final = 3


class MdsShard(ShardResult):
    """A shard and its entry in the index."""

    entry: dict[str, JsonValue]


def write(
    out: Path, rows: Iterable[Resolved], *, shard: int, shards: int, size_limit: int, compression: Compression = None
) -> MdsShard:
    """Write one shard beside `out`, held in memory until it is whole.

    `shards` is not needed: the name of a shard is its own number. Which rows it must hold, `shard_sizes` says.
    """
    del shards
    samples = [sample for block in rows for sample in _samples(block)]
    pieces = list(_pieces(samples, _header(size_limit, compression)))
    name = f"shard.{shard:05}.mds"
    files: dict[str, JsonValue] = {"raw_data": _file_entry(name, sum(map(len, pieces))), "zip_data": None}
    if compression == "zstd":
        # MDSWriter compresses with worker threads: even one of them gives other bytes than none.
        pieces = [zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=1).compress(b"".join(pieces))]
        name = f"{name}.zstd"
        files["zip_data"] = _file_entry(name, len(pieces[0]))
    with (out.parent / name).open("wb") as file:
        file.writelines(pieces)
    entry = {"samples": len(samples), **files, **_config(size_limit, compression)}
    return MdsShard(rows=len(samples), entry=entry)


def close(folder: Path, shards: Sequence[MdsShard]) -> None:
    """Write `index.json` from what `write` returned for each shard, in their order."""
    index = {"version": 2, "shards": [shard.entry for shard in shards]}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True), encoding="ascii")


def shard_sizes(
    row_lengths: NDArray[np.int64],
    documents_per_row: NDArray[np.int64],
    domains: Sequence[str],
    *,
    size_limit: int,
    compression: Compression = None,
) -> list[int]:
    """Return how many rows each shard holds, by the rule of `MDSWriter`; row_lengths in tokens, all of shape (n,).

    A shard is closed before the row that would take it over `size_limit` bytes. So a first row that is larger than that
    leaves an empty shard before it, as it does there.
    """
    empty = 2 * _UINT32_BYTES + len(_header(size_limit, compression))
    sizes, held, rows = [], empty, 0
    for tokens, documents, domain in zip(row_lengths.tolist(), documents_per_row.tolist(), domains, strict=True):
        row_bytes = _sample_bytes(tokens, documents, domain) + _UINT32_BYTES
        if held + row_bytes > size_limit:
            sizes.append(rows)
            held, rows = empty, 0
        held += row_bytes
        rows += 1
    return [*sizes, rows] if rows else sizes


def _samples(block: Resolved) -> Iterator[list[bytes | memoryview]]:
    """Yield each row as the pieces that its bytes consist of; the ids stay where they are."""
    ids = np.ascontiguousarray(block.input_ids).data.cast("B")  # int32 as uint32: no id is negative
    for row, domain in enumerate(block.domains):
        start, stop = block.token_offsets[row : row + 2].tolist()
        ends = np.cumsum(block.document_lengths[slice(*block.document_offsets[row : row + 2])], dtype=np.uint32)
        indices = np.column_stack([np.append(np.uint32(0), ends[:-1]), ends])
        shape, indices_shape, name = _shape(stop - start), _shape(len(ends), 2), domain.encode()
        sizes = [len(name), len(indices_shape) + indices.nbytes, len(shape) + _UINT32_BYTES * (stop - start)]
        head = np.array(sizes, np.uint32).tobytes() + name + indices_shape + indices.tobytes() + shape
        yield [head, ids[_UINT32_BYTES * start : _UINT32_BYTES * stop], np.int64(stop - start).tobytes()]


def _pieces(samples: list[list[bytes | memoryview]], header: bytes) -> Iterator[bytes | memoryview]:
    sizes = [sum(map(len, sample)) for sample in samples]
    first = _UINT32_BYTES * (len(samples) + 2) + len(header)
    offsets = np.cumsum([0, *sizes]) + first
    if offsets[-1] > _MOST_BYTES:
        raise ExportError(
            f"an MDS shard of {offsets[-1]:,} bytes is more than its offsets can count ({_MOST_BYTES:,}); lower "
            "export.shard_mb, or export.pack"
        )
    yield np.uint32(len(samples)).tobytes()
    yield offsets.astype(np.uint32).tobytes()
    yield header
    for sample in samples:
        yield from sample


def _shape(*shape: int) -> bytes:
    """Return the shape of an array as it stands before its values: number of axes and width, then the axes."""
    width = next(width for width in range(4) if max(shape) < 1 << (8 << width))
    return bytes([len(shape) << 2 | width]) + np.array(shape, f"<u{1 << width}").tobytes()


def _sample_bytes(tokens: int, documents: int, domain: str) -> int:
    arrays = len(_shape(tokens)) + len(_shape(documents, 2)) + _UINT32_BYTES * (tokens + 2 * documents)
    return _SIZES_BYTES + len(domain.encode()) + arrays + _LENGTH_BYTES


def _config(size_limit: int, compression: Compression) -> dict[str, JsonValue]:
    return {
        "version": 2,
        "format": "mds",
        "compression": compression,
        "hashes": [],
        "size_limit": size_limit,
        "column_names": list(_COLUMNS),
        "column_encodings": list(_COLUMNS.values()),
        "column_sizes": [*_FIXED_SIZES],
    }


def _header(size_limit: int, compression: Compression) -> bytes:
    return json.dumps(_config(size_limit, compression), sort_keys=True).encode()


def _file_entry(name: str, size_bytes: int) -> dict[str, JsonValue]:
    return {"basename": name, "bytes": size_bytes, "hashes": {}}


def _write_shard(out: Path, rows: Iterable[Resolved], options: Options) -> MdsShard:
    compression = _compression(options)
    return write(
        out, rows, shard=options.shard, shards=options.shards, size_limit=options.shard_bytes, compression=compression
    )


def _shard_rows(rows: RowSizes, options: Options) -> list[int]:
    return shard_sizes(*rows, size_limit=options.shard_bytes, compression=_compression(options))


def _compression(options: Options) -> Compression:
    return "zstd" if options.keys["compression"] == "zstd" else None


FORMAT = Format(
    name="mds",
    layout="mds",
    suffixes=(".mds", ".mds.zstd"),
    write=_write_shard,
    result=MdsShard,
    close=close,
    shard_rows=_shard_rows,
    wanted="domains",
    keys=frozenset({"compression"}),
    compressions=("none", "zstd"),
    most_shard_mb=4000,
    columns=("input_ids", "indices", "length", "domain"),
    snippet=Snippet(
        "from streaming import StreamingDataset",
        "StreamingDataset(local={place}, shuffle=False, batch_size=1)",
        'rows[0]["input_ids"].shape, rows[0]["indices"]',
    ),
)
