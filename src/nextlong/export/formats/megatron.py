"""Megatron: `.bin` and `.idx` files, version 1, for Megatron-LM, GPT-NeoX and NeMo.

Files: a pair `part-00000.bin`, `part-00000.idx` for each shard, and `blend.txt`, which
lists the pairs with their tokens.

The `.bin` file holds only the ids of the synthesized documents, concatenated: uint16 if
the vocabulary fits, else int32. The `.idx` file has a magic word, version, dtype code,
both counts, the length (int32) and byte offset (int64) of each sequence, and the bounds
of documents in sequences (int64). Each synthesized document is one sequence and one
document here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from nextlong.arrays import Int32s
from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats.base import Format, LoadingCode, Options, check_index
from nextlong.reading.tokens_megatron import MegatronIndex, read_index
from nextlong.text import Rows

_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_DTYPE_CODES: Final = {"int32": 4, "uint16": 8}
# Magic word, version, dtype code, number of sequences, number of document bounds.
_HEADER: Final = struct.Struct("<9sQBQQ")
# Megatron's own limit, which leaves room for ids that pad the vocabulary.
_UINT16_VOCABULARY: Final = 65_500


class _MegatronShard(ShardResult):
    """A shard: its file names without suffixes."""

    prefix: str


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _MegatronShard:
    """Write `{out}.bin` and `{out}.idx`.

    The token `export.megatron_eod` is appended to each document that does not end in
    it, and counts in the document's length: T tokens become T + 1.
    """
    eod_token = options.keys["megatron_eod"]
    eod = None if eod_token is None else options.token_id(eod_token)
    dtype = np.dtype(np.uint16 if options.vocab_size < _UINT16_VOCABULARY else np.int32)
    count = 0
    lengths_of_blocks: list[Future[Int32s]] = []
    # There is often only one shard, so its ids are written to disk while the next block
    # is resolved.
    with Path(f"{out}.bin").open("wb") as file, ThreadPoolExecutor(1) as disk:
        for block in rows:
            count += len(block)
            wait(lengths_of_blocks)
            writing = disk.submit(_write_ids, file, block, dtype=dtype, eod=eod)
            lengths_of_blocks.append(writing)
    written = [writing.result() for writing in lengths_of_blocks]
    lengths = np.concatenate([np.empty(0, np.int32), *written])
    _write_index(Path(f"{out}.idx"), lengths, dtype)
    tokens = int(lengths.sum(dtype=np.int64))
    return _MegatronShard(rows=count, tokens=tokens, prefix=out.name)


def _write_ids(
    file: BinaryIO, block: Resolved, *, dtype: np.dtype[Any], eod: int | None
) -> Int32s:
    """Write the ids of a block.

    The lengths of its documents in the file, (D,), are returned.
    """
    ids = np.ascontiguousarray(block.input_ids, dtype)
    ends = np.cumsum(block.document_lengths, dtype=np.int64)
    lacks_eod = np.zeros(len(ends), np.bool_)
    if eod is not None:
        lacks_eod = ids[ends - 1] != eod
    # Everything between two documents that lack the token is written at once.
    eod_bytes = b"" if eod is None else np.array([eod], dtype).tobytes()
    start = 0
    for end in ends[lacks_eod].tolist():
        file.write(ids[start:end].data)
        file.write(eod_bytes)
        start = end
    file.write(ids[start:].data)
    os.fsync(file.fileno())
    return block.document_lengths + lacks_eod.astype(np.int32)


def _write_index(path: Path, lengths: Int32s, dtype: np.dtype[Any]) -> None:
    """Write the `.idx` file of documents of these lengths, (D,)."""
    ends = np.cumsum(lengths, dtype=np.int64)
    byte_offsets = (ends - lengths) * dtype.itemsize
    # Each sequence is a document, so their bounds are 0, 1, 2, …
    bounds = np.arange(len(lengths) + 1, dtype="<i8")
    code = _DTYPE_CODES[dtype.name]
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        code,
        len(lengths),
        len(bounds),
    )
    arrays = (lengths.astype("<i4"), byte_offsets.astype("<i8"), bounds)
    with path.open("wb") as file:
        file.write(header)
        for array in arrays:
            file.write(array.tobytes())


def _close(folder: Path, shards: Sequence[_MegatronShard]) -> None:
    """Write `blend.txt`: a line for each shard with its weight and its prefix.

    The weight is the number of its tokens.
    """
    lines = [f"{shard.tokens} {shard.prefix}\n" for shard in shards]
    (folder / "blend.txt").write_text("".join(lines), encoding="utf-8")


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield the documents of the `.bin` files that `blend.txt` lists.

    Their `.idx` files divide them. Raises ValueError where files disagree.
    """
    lines = (folder / "blend.txt").read_text(encoding="utf-8").splitlines()
    blend = [line.split(" ") for line in lines]
    check_index("blend.txt", [f"{prefix}.bin" for _, prefix in blend], files)
    for name, (weight, _) in zip(files, blend, strict=True):
        path = folder / name
        index = _read_index(path.with_suffix(".idx"))
        dtype = index.dtype
        tokens = int(index.ends[-1])
        size = path.stat().st_size
        if size != tokens * dtype.itemsize:
            raise ValueError(
                f"{name} has {size:,} bytes, but its index lists {tokens:,} ids of "
                f"{dtype}"
            )
        if int(weight) != tokens:
            raise ValueError(f"{name} has {tokens:,} tokens, blend.txt says {weight}")
        # An empty file cannot be mapped.
        ids = np.memmap(path, dtype, "r") if tokens else np.empty(0, dtype)
        for start, end in pairwise(index.ends.tolist()):
            yield {"input_ids": ids[start:end]}


def _read_index(path: Path) -> MegatronIndex:
    """Return the content of an `.idx` file.

    Raises ValueError where it is not as this module writes it.
    """
    try:
        index = read_index(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    if not np.array_equal(index.documents, np.arange(len(index.ends))):
        raise ValueError(
            f"{path.name} does not have exactly one document for every sequence"
        )
    return index


FORMAT = Format(
    name="megatron",
    layout="megatron, pairs of files that `blend.txt` lists with their weights",
    suffixes=(".bin",),
    write=_write,
    result=_MegatronShard,
    close=_close,
    read=_read,
    unit="documents",
    keys=frozenset({"megatron_eod"}),
    # Few files, because users list each of them.
    auto_shard_mb=16_000,
    # Megatron reads a token after each sample, so it finds no sample in a file of one
    # row of --seq-length tokens, and asserts that every file has one.
    min_shard_rows=2,
    reader_takes="part-*",
    snippet=LoadingCode(
        "from glob import glob\n\n"
        "from megatron.core.datasets.indexed_dataset import IndexedDataset",
        "[IndexedDataset(path.removesuffix('.bin')) "
        "for path in sorted(glob({place} + '.bin'))]",
        "[len(part) for part in rows], rows[0][0][:8]",
    ),
)
