"""MDS: the shards and index of MosaicML streaming, for ProLong and its forks.

Any reader of a `StreamingDataset` reads them. Files: `shard.00000.mds` (`.mds.zstd` if
compressed) for each shard and one `index.json`, byte-identical to what `MDSWriter` of
streaming writes for the same rows, columns and options. That library pins an old NumPy
and is not needed.

A shard consists of the number of its samples (uint32), the offset of each sample and of
the end (uint32), a JSON header, and the samples. A sample consists of the sizes
(uint32) of its columns of variable size, and its columns in the order of their names.
`_shard_sizes` computes from lengths alone which rows are in which shard, so that shards
are written in parallel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import zstandard
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
from nextlong.reading.tokens_mds import decoded
from nextlong.text import Json, Rows

_COLUMNS: Final = {
    "domain": "str",
    "indices": "ndarray:uint32",
    "input_ids": "ndarray:uint32",
    "length": "int",
}
_LENGTH_BYTES: Final = 8
_SIZES: Final = (None, None, None, _LENGTH_BYTES)  # of the columns; None if they vary
_UINT32_BYTES: Final = 4
# A sample begins with the sizes of its columns of variable size, all but the last.
_SIZED_COLUMNS: Final = 3
_SIZES_BYTES: Final = _SIZED_COLUMNS * _UINT32_BYTES
_MAX_BYTES: Final = 2**32 - 1
_ZSTD_LEVEL: Final = 3


class _MdsShard(ShardResult):
    """A shard: its entry in the index."""

    entry: dict[str, JsonValue]


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _MdsShard:
    """Write one shard beside `out`; it is held in memory until complete.

    Its rows are those of `_shard_sizes`.
    """
    samples = [sample for block in rows for sample in _samples(block)]
    header = _header(options)
    # (samples + 1,): where each sample begins in the shard, and the end of the last.
    sizes = [_bytes_of(sample) for sample in samples]
    offsets = np.cumsum([0, *sizes])
    offsets += _UINT32_BYTES * (len(samples) + 2) + len(header)
    if offsets[-1] > _MAX_BYTES:
        raise ExportError(
            where="export.shard_mb",
            problem=f"an MDS shard of {offsets[-1]:,} bytes exceeds its 32-bit offsets "
            f"({_MAX_BYTES:,})",
            fix="lower export.shard_mb, or export.pack",
        )
    numbers = np.append(len(samples), offsets).astype(np.uint32)
    pieces = [numbers.tobytes(), header, *chain.from_iterable(samples)]
    name = f"shard.{options.shard:05}.mds"
    entry = {"samples": len(samples), "zip_data": None, **_config(options)}
    entry["raw_data"] = _stored(name, _bytes_of(pieces))
    if options.keys["compression"] == "zstd":
        # MDSWriter compresses with worker threads, and even one of them gives other
        # bytes than none.
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=1)
        pieces = [compressor.compress(b"".join(pieces))]
        name = f"{name}.zstd"
        entry["zip_data"] = _stored(name, len(pieces[0]))
    with (out.parent / name).open("wb") as file:
        file.writelines(pieces)
    return _MdsShard(rows=len(samples), entry=entry)


def _bytes_of(pieces: Iterable[bytes | memoryview]) -> int:
    return sum(map(len, pieces))


def _stored(name: str, size: int) -> dict[str, JsonValue]:
    """Return the entry of a file in the index."""
    return {"basename": name, "bytes": size, "hashes": {}}


def _close(folder: Path, shards: Sequence[_MdsShard]) -> None:
    """Write `index.json` from the results of `write`, in the order of the shards."""
    index = {"version": 2, "shards": [shard.entry for shard in shards]}
    text = json.dumps(index, sort_keys=True)
    (folder / "index.json").write_text(text, encoding="ascii")


def _shard_sizes(rows: RowSizes, options: Options) -> list[int]:
    """Return the number of rows of each shard, by the rule of `MDSWriter`.

    A shard is closed before the row that would exceed `options.shard_bytes`. A first
    row that is larger than that therefore leaves an empty shard before it, as with
    `MDSWriter`.
    """
    # The number of samples and the offset of the end, and the header.
    empty_bytes = 2 * _UINT32_BYTES + len(_header(options))
    sizes = []
    shard_bytes = empty_bytes
    count = 0
    token_counts = rows.tokens.tolist()
    document_counts = rows.documents.tolist()
    for tokens, documents, domain in zip(
        token_counts, document_counts, rows.domains, strict=True
    ):
        row_bytes = _row_bytes(tokens, documents, domain)
        if shard_bytes + row_bytes > options.shard_bytes:
            sizes.append(count)
            shard_bytes = empty_bytes
            count = 0
        shard_bytes += row_bytes
        count += 1
    if count:
        sizes.append(count)
    return sizes


def _row_bytes(tokens: int, documents: int, domain: str) -> int:
    """Return the bytes of a row in a shard, with its offset."""
    ids_bytes = len(_shape(tokens)) + _UINT32_BYTES * tokens
    indices_bytes = len(_shape(documents, 2)) + _UINT32_BYTES * 2 * documents
    columns = len(domain.encode()) + ids_bytes + indices_bytes + _LENGTH_BYTES
    return _UINT32_BYTES + _SIZES_BYTES + columns


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield the rows of the shards in `index.json`.

    Raises ValueError where index, header and shard disagree.
    """
    try:
        entries = json.loads((folder / "index.json").read_bytes())["shards"]
        stored = [entry["zip_data"] or entry["raw_data"] for entry in entries]
        names = [str(file["basename"]) for file in stored]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"index.json is not an index of MDS shards ({error})"
        ) from None
    check_index("index.json", names, sorted(files))
    for name, entry in zip(names, entries, strict=True):
        data = _read_shard(folder / name, entry)
        offsets = _read_offsets(name, data, entry)
        for start, end in pairwise(offsets):
            row = decoded(data[start:end], _COLUMNS, _SIZES)
            yield {**row, "indices": row["indices"].tolist()}


def _read_shard(path: Path, entry: Json) -> memoryview:
    """Return the bytes of a shard, decompressed. Raises ValueError for another size."""
    name = path.name
    data = np.memmap(path, np.uint8, "r").data
    stored = entry["zip_data"] or entry["raw_data"]
    if len(data) != stored["bytes"]:
        raise ValueError(
            f"{name} has {len(data):,} bytes, index.json says {stored['bytes']:,}"
        )
    if not entry["zip_data"]:
        return data
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    unpacked = memoryview(decompressor.decompress(data))
    size = entry["raw_data"]["bytes"]
    if len(unpacked) != size:
        raise ValueError(
            f"{name} unpacks to {len(unpacked):,} bytes, index.json says {size:,}"
        )
    return unpacked


def _read_offsets(name: str, data: memoryview, entry: Json) -> list[int]:
    """Return where the samples of a shard begin, and the end of the last.

    Raises ValueError where its header or the index say otherwise.
    """
    count = int(np.frombuffer(data, "<u4", 1)[0])
    if count != entry["samples"]:
        raise ValueError(
            f"{name} has {count} samples, index.json says {entry['samples']}"
        )
    # Behind the number of samples.
    numbers = np.frombuffer(
        data,
        dtype="<u4",
        count=count + 1,
        offset=_UINT32_BYTES,
    )
    offsets: list[int] = numbers.tolist()
    first_header_byte = _UINT32_BYTES * (count + 2)
    header = json.loads(bytes(data[first_header_byte : offsets[0]]))
    for key, value in header.items():
        if entry[key] != value:
            raise ValueError(
                f"{name} has {key} {value!r}, index.json says {entry[key]!r}"
            )
    columns = dict(zip(header["column_names"], header["column_encodings"], strict=True))
    if columns != _COLUMNS:
        raise ValueError(
            f"{name} has the columns {columns}, but should have {_COLUMNS}"
        )
    if offsets[-1] != len(data):
        raise ValueError(
            f"{name} ends at byte {len(data)}, its last sample at {offsets[-1]}"
        )
    return offsets


def _samples(block: Resolved) -> Iterator[list[bytes | memoryview]]:
    """Yield the pieces of the bytes of each row; the ids are not copied."""
    # int32 read as uint32: no id is negative.
    ids = np.ascontiguousarray(block.input_ids).data.cast("B")
    for row, domain in enumerate(block.domains):
        first, last = block.token_offsets[row : row + 2].tolist()
        first_document, last_document = block.document_offsets[row : row + 2].tolist()
        lengths = block.document_lengths[first_document:last_document]
        # (d, 2), the [start, end) of each of the row's documents.
        ends = np.cumsum(lengths, dtype=np.uint32)
        starts = np.append(np.uint32(0), ends[:-1])
        indices = np.column_stack([starts, ends])

        name = domain.encode()
        indices_shape = _shape(len(ends), 2)
        ids_shape = _shape(last - first)
        ids_bytes = ids[_UINT32_BYTES * first : _UINT32_BYTES * last]
        indices_size = len(indices_shape) + indices.nbytes
        ids_size = len(ids_shape) + len(ids_bytes)
        sizes = np.array([len(name), indices_size, ids_size], np.uint32)
        small = [sizes.tobytes(), name, indices_shape, indices.tobytes(), ids_shape]
        length = np.int64(last - first).tobytes()
        yield [b"".join(small), ids_bytes, length]


def _shape(*shape: int) -> bytes:
    """Return the shape of an array as MDS writes it before the values.

    It is the number of axes and the width of their sizes, then these.
    """
    # The smallest of 1, 2, 4 and 8 bytes that hold the longest axis.
    longest = max(shape)
    power = next(power for power in range(4) if longest < 1 << (8 << power))
    sizes = np.array(shape, f"<u{1 << power}")
    head = len(shape) << 2 | power
    return bytes([head]) + sizes.tobytes()


def _header(options: Options) -> bytes:
    """Return the JSON that each shard begins with."""
    header = json.dumps(_config(options), sort_keys=True)
    return header.encode()


def _config(options: Options) -> dict[str, JsonValue]:
    return {
        "version": 2,
        "format": "mds",
        "compression": "zstd" if options.keys["compression"] == "zstd" else None,
        "hashes": [],
        "size_limit": options.shard_bytes,
        "column_names": list(_COLUMNS),
        "column_encodings": list(_COLUMNS.values()),
        "column_sizes": list(_SIZES),
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
    max_shard_mb=4000,
    columns=("input_ids", "indices", "length", "domain"),
    snippet=LoadingCode(
        "from streaming import StreamingDataset",
        "StreamingDataset(local={place}, shuffle=False, batch_size=1)",
        'rows[0]["input_ids"].shape, rows[0]["indices"]',
    ),
)

# The trainer of ProLong reads the same files.
FORMAT_PROLONG = replace(FORMAT, name="prolong")
