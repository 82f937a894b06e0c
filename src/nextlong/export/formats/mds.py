"""MDS: the shards and index of MosaicML streaming, for ProLong, its forks and any reader of a `StreamingDataset`.

Files: `shard.00000.mds` (`.mds.zstd` if compressed) for each shard and one `index.json`, byte-identical to what `MDSWriter`
of streaming writes for the same rows, columns and options. That library pins an old NumPy and is not needed.

A shard consists of the number of its samples (uint32), the offset of each sample and of the end (uint32), a JSON header,
and the samples. A sample consists of the sizes (uint32) of its columns of variable size, and its columns in the order of
their names. `_shard_sizes` computes from lengths alone which rows are in which shard, so that shards are written in
parallel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import JsonValue

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.errors import ExportError
from nextlong.export.formats.base import (
    Format,
    LoadingCode,
    Options,
    RowSizes,
    check_index,
)

_COLUMNS: Final = {
    "domain": "str",
    "indices": "ndarray:uint32",
    "input_ids": "ndarray:uint32",
    "length": "int",
}
_LENGTH_BYTES: Final = 8
_SIZES_BYTES: Final = 4 * 3  # of the three columns of variable size
_UINT32_BYTES: Final = 4
_MOST_BYTES: Final = 2**32 - 1
_ZSTD_LEVEL: Final = 3


class _MdsShard(ShardResult):
    """A shard: its entry in the index."""

    entry: dict[str, JsonValue]


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _MdsShard:
    """Write one shard beside `out`; it is held in memory until complete. Its rows are those of `_shard_sizes`."""
    samples = [sample for block in rows for sample in _samples(block)]
    header = json.dumps(_config(options), sort_keys=True).encode()
    # (samples + 1,): where each sample begins in the shard, and the end of the last.
    offsets = np.cumsum([0, *(sum(map(len, sample)) for sample in samples)])
    offsets += _UINT32_BYTES * (len(samples) + 2) + len(header)
    if offsets[-1] > _MOST_BYTES:
        problem = f"an MDS shard of {offsets[-1]:,} bytes exceeds its 32-bit offsets ({_MOST_BYTES:,})"
        raise ExportError(f"{problem}; lower export.shard_mb, or export.pack")
    count = np.uint32(len(samples)).tobytes()
    pieces = [
        count,
        offsets.astype(np.uint32).tobytes(),
        header,
        *chain.from_iterable(samples),
    ]
    name = f"shard.{options.shard:05}.mds"
    entry = {"samples": len(samples), "zip_data": None, **_config(options)}
    entry["raw_data"] = {"basename": name, "bytes": sum(map(len, pieces)), "hashes": {}}
    if options.keys["compression"] == "zstd":
        # MDSWriter compresses with worker threads, and even one of them gives other bytes than none.
        pieces = [
            zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=1).compress(
                b"".join(pieces)
            )
        ]
        name = f"{name}.zstd"
        entry["zip_data"] = {"basename": name, "bytes": len(pieces[0]), "hashes": {}}
    with (out.parent / name).open("wb") as file:
        file.writelines(pieces)
    return _MdsShard(rows=len(samples), entry=entry)


def _close(folder: Path, shards: Sequence[_MdsShard]) -> None:
    """Write `index.json` from the results of `write`, in the order of the shards."""
    index = {"version": 2, "shards": [shard.entry for shard in shards]}
    (folder / "index.json").write_text(
        json.dumps(index, sort_keys=True), encoding="ascii"
    )


def _shard_sizes(rows: RowSizes, options: Options) -> list[int]:
    """Return the number of rows of each shard, by the rule of `MDSWriter`.

    A shard is closed before the row that would exceed `options.shard_bytes`. A first row that is larger than that therefore
    leaves an empty shard before it, as with `MDSWriter`.
    """
    empty = 2 * _UINT32_BYTES + len(
        json.dumps(_config(options), sort_keys=True).encode()
    )
    sizes, held, count = [], empty, 0
    for tokens, documents, domain in zip(
        rows.tokens.tolist(), rows.documents.tolist(), rows.domains, strict=True
    ):
        arrays = (
            len(_shape(tokens))
            + len(_shape(documents, 2))
            + _UINT32_BYTES * (tokens + 2 * documents)
        )
        row_bytes = (
            _SIZES_BYTES + len(domain.encode()) + arrays + _LENGTH_BYTES + _UINT32_BYTES
        )
        if held + row_bytes > options.shard_bytes:
            sizes.append(count)
            held, count = empty, 0
        held += row_bytes
        count += 1
    return [*sizes, count] if count else sizes


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the shards in `index.json`. Raises ValueError where index, header and shard disagree."""
    try:
        entries = json.loads((folder / "index.json").read_bytes())["shards"]
        names = [
            str((entry["zip_data"] or entry["raw_data"])["basename"])
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"index.json is not an index of MDS shards ({error})"
        ) from None
    check_index("index.json", names, sorted(files))
    for name, entry in zip(names, entries, strict=True):
        data = np.memmap(folder / name, np.uint8, "r").data
        stored, raw = entry["zip_data"] or entry["raw_data"], entry["raw_data"]
        if len(data) != stored["bytes"]:
            raise ValueError(
                f"{name} has {len(data):,} bytes, index.json says {stored['bytes']:,}"
            )
        if entry["zip_data"]:
            data = memoryview(
                zstandard.ZstdDecompressor().decompressobj().decompress(data)
            )
            if len(data) != raw["bytes"]:
                raise ValueError(
                    f"{name} unpacks to {len(data):,} bytes, index.json says {raw['bytes']:,}"
                )
        if (count := int(np.frombuffer(data, "<u4", 1)[0])) != entry["samples"]:
            raise ValueError(
                f"{name} has {count} samples, index.json says {entry['samples']}"
            )
        offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
        header = json.loads(bytes(data[8 + 4 * count : offsets[0]]))
        for key, value in header.items():
            if entry[key] != value:
                raise ValueError(
                    f"{name} has {key} {value!r}, index.json says {entry[key]!r}"
                )
        columns = dict(
            zip(header["column_names"], header["column_encodings"], strict=True)
        )
        if columns != _COLUMNS:
            raise ValueError(
                f"{name} has the columns {columns}, but should have {_COLUMNS}"
            )
        if offsets[-1] != len(data):
            raise ValueError(
                f"{name} ends at byte {len(data)}, its last sample at {offsets[-1]}"
            )
        for first, last in pairwise(offsets):
            # A sample begins with the sizes of all columns but the last.
            sizes = np.frombuffer(
                data, "<u4", _SIZES_BYTES // _UINT32_BYTES, first
            ).tolist()
            bounds = accumulate([_SIZES_BYTES, *sizes, _LENGTH_BYTES])
            domain, indices, input_ids, length = (
                data[first:last][start:stop] for start, stop in pairwise(bounds)
            )
            yield {
                "domain": bytes(domain).decode(),
                "indices": _array(indices).tolist(),
                "input_ids": _array(input_ids),
                "length": int.from_bytes(length, "little", signed=True),
            }


def _array(value: memoryview) -> NDArray[np.uint32]:
    """Return an array of uint32 from its bytes, which begin with its shape as `_shape` writes it."""
    axes, width = value[0] >> 2, 1 << (value[0] & 3)
    shape = np.frombuffer(value, f"<u{width}", axes, 1)
    return np.frombuffer(value, "<u4", offset=1 + axes * width).reshape(shape.tolist())


def _samples(block: Resolved) -> Iterator[list[bytes | memoryview]]:
    """Yield the pieces of the bytes of each row; the ids are not copied."""
    ids = np.ascontiguousarray(block.input_ids).data.cast(
        "B"
    )  # int32 read as uint32: no id is negative
    for row, domain in enumerate(block.domains):
        start, stop = block.token_offsets[row : row + 2].tolist()
        # `ends`, (d,), of the row's documents; `indices`, (d, 2), their [start, end); `sizes` of the columns before the ids.
        ends = np.cumsum(
            block.document_lengths[slice(*block.document_offsets[row : row + 2])],
            dtype=np.uint32,
        )
        indices = np.column_stack([np.append(np.uint32(0), ends[:-1]), ends])
        shape, indices_shape, name = (
            _shape(stop - start),
            _shape(len(ends), 2),
            domain.encode(),
        )
        sizes = [
            len(name),
            len(indices_shape) + indices.nbytes,
            len(shape) + _UINT32_BYTES * (stop - start),
        ]
        head = (
            np.array(sizes, np.uint32).tobytes()
            + name
            + indices_shape
            + indices.tobytes()
            + shape
        )
        yield [
            head,
            ids[_UINT32_BYTES * start : _UINT32_BYTES * stop],
            np.int64(stop - start).tobytes(),
        ]


def _shape(*shape: int) -> bytes:
    """Return the shape of an array as MDS writes it before the values: number of axes and width, then the axes."""
    width = next(width for width in range(4) if max(shape) < 1 << (8 << width))
    return (
        bytes([len(shape) << 2 | width]) + np.array(shape, f"<u{1 << width}").tobytes()
    )


def _config(options: Options) -> dict[str, JsonValue]:
    return {
        "version": 2,
        "format": "mds",
        "compression": "zstd" if options.keys["compression"] == "zstd" else None,
        "hashes": [],
        "size_limit": options.shard_bytes,
        "column_names": list(_COLUMNS),
        "column_encodings": list(_COLUMNS.values()),
        "column_sizes": [None, None, None, _LENGTH_BYTES],
    }


FORMAT = Format(
    name="mds",
    layout="mds",
    suffixes=(".mds", ".mds.zstd"),
    write=_write,
    result=_MdsShard,
    close=_close,
    read=_read,
    shard_rows=_shard_sizes,
    wanted="domains",
    keys=frozenset({"compression"}),
    compressions=("none", "zstd"),
    most_shard_mb=4000,
    columns=("input_ids", "indices", "length", "domain"),
    snippet=LoadingCode(
        "from streaming import StreamingDataset",
        "StreamingDataset(local={place}, shuffle=False, batch_size=1)",
        'rows[0]["input_ids"].shape, rows[0]["indices"]',
    ),
)

# The trainer of ProLong reads the same files.
FORMAT_PROLONG = replace(FORMAT, name="prolong")
