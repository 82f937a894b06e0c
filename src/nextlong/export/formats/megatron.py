"""Megatron: `.bin` and `.idx` files, version 1, for Megatron-LM, GPT-NeoX and NeMo.

Files: a pair `part-00000.bin`, `part-00000.idx` for each shard, and `blend.txt`, which lists the pairs with their tokens.

The `.bin` file holds only the ids of the synthesized documents, concatenated: uint16 if the vocabulary fits, else int32. The
`.idx` file has a magic word, version, dtype code, both counts, the length (int32) and byte offset (int64) of each sequence,
and the bounds of documents in sequences (int64). Each synthesized document is one sequence and one document here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.export.formats.base import Format, LoadingCode, Options, check_index

_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_DTYPE_CODES: Final = {"int32": 4, "uint16": 8}
_UINT16_VOCABULARY: Final = (
    65_500  # Megatron's own limit, which leaves room for ids that pad the vocabulary
)


class _MegatronShard(ShardResult):
    """A shard: its file names without suffixes."""

    prefix: str


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> _MegatronShard:
    """Write `{out}.bin` and `{out}.idx`.

    The token `export.megatron_eod` is appended to each document that does not end in it, and counts in the document's length:
    T tokens become T + 1.
    """
    eod = (
        None
        if options.keys["megatron_eod"] is None
        else options.token_id(options.keys["megatron_eod"])
    )
    dtype = np.dtype(np.uint16 if options.vocab_size < _UINT16_VOCABULARY else np.int32)

    def write_block(block: Resolved) -> NDArray[np.int32]:
        """Write the ids of a block; return the lengths of its documents in the file, shape (D,)."""
        ids = np.ascontiguousarray(block.input_ids, dtype)
        ends = np.cumsum(block.document_lengths, dtype=np.int64)
        is_open = np.zeros(len(ends), np.bool_) if eod is None else ids[ends - 1] != eod
        start = 0
        for stop in (
            ends[is_open].tolist()
        ):  # write everything between two documents that need the token at once
            file.write(ids[start:stop].data)
            file.write(np.array([eod], dtype).tobytes())
            start = stop
        file.write(ids[start:].data)
        os.fsync(file.fileno())
        return block.document_lengths + is_open.astype(np.int32)

    count = 0
    written: list[Future[NDArray[np.int32]]] = []
    # There is often only one shard, so its ids are written to disk while the next block is resolved.
    with Path(f"{out}.bin").open("wb") as file, ThreadPoolExecutor(1) as disk:
        for block in rows:
            count += len(block)
            wait(written)
            written.append(disk.submit(write_block, block))
    lengths = np.concatenate(
        [np.empty(0, np.int32), *(each.result() for each in written)]
    )
    ends = np.cumsum(lengths, dtype=np.int64)
    with Path(f"{out}.idx").open("wb") as file:
        file.write(
            _MAGIC
            + struct.pack(
                "<QBQQ",
                _VERSION,
                _DTYPE_CODES[dtype.name],
                len(lengths),
                len(lengths) + 1,
            )
        )
        file.write(lengths.astype("<i4").tobytes())
        file.write(((ends - lengths) * dtype.itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return _MegatronShard(
        rows=count, tokens=int(lengths.sum(dtype=np.int64)), prefix=out.name
    )


def _close(folder: Path, shards: Sequence[_MegatronShard]) -> None:
    """Write `blend.txt`: a line for each shard with its weight, the number of its tokens, and its prefix."""
    lines = [f"{shard.tokens} {shard.prefix}\n" for shard in shards]
    (folder / "blend.txt").write_text("".join(lines), encoding="utf-8")


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of the `.bin` files that `blend.txt` lists, as their `.idx` files divide them."""
    blend = [
        line.split(" ")
        for line in (folder / "blend.txt").read_text(encoding="utf-8").splitlines()
    ]
    check_index("blend.txt", [f"{prefix}.bin" for _, prefix in blend], files)
    for name, (weight, _) in zip(files, blend, strict=True):
        path = (folder / name).with_suffix(".idx")
        index = path.read_bytes()
        magic, version, code, sequences, bounds = struct.unpack_from("<9sQBQQ", index)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"{path.name} begins with {magic!r}, version {version}")
        dtype = np.dtype({code: name for name, code in _DTYPE_CODES.items()}[code])
        # After the header of 34 bytes: the lengths of the sequences, (D,), their byte offsets, and the bounds of documents.
        lengths = np.frombuffer(index, "<i4", sequences, 34)
        pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
        if not np.array_equal(
            np.frombuffer(index, "<i8", bounds, 34 + 12 * sequences),
            np.arange(sequences + 1),
        ):
            raise ValueError(
                f"{path.name} does not have exactly one document for every sequence"
            )
        if not np.array_equal(
            pointers, (np.cumsum(lengths, dtype=np.int64) - lengths) * dtype.itemsize
        ):
            raise ValueError(
                f"{path.name} has documents that do not begin where the previous one ends"
            )
        tokens = int(lengths.sum(dtype=np.int64))
        if (size := (folder / name).stat().st_size) != tokens * dtype.itemsize:
            raise ValueError(
                f"{name} has {size:,} bytes, but its index lists {tokens:,} ids of {dtype}"
            )
        if int(weight) != tokens:
            raise ValueError(f"{name} has {tokens:,} tokens, blend.txt says {weight}")
        ids = np.memmap(folder / name, dtype, "r") if tokens else np.empty(0, dtype)
        for start, stop in pairwise([0, *np.cumsum(lengths, dtype=np.int64).tolist()]):
            yield {"input_ids": ids[start:stop]}


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
    auto_shard_mb=16_000,  # few files, because users list each of them
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
