"""Megatron: `.bin` and `.idx` files, version 1, for Megatron-LM, GPT-NeoX and NeMo.

In:  blocks of rows. Out: a pair `part-00000.bin`, `part-00000.idx` a shard, and `blend.txt`, which lists them by tokens.

The `.bin` file is nothing but ids, one synthesised document after the other: uint16 where the vocabulary fits, else int32.
The `.idx` file is a magic word, version, dtype code, both counts, then each sequence's length (int32) and byte offset (int64)
and the bounds of documents in sequences (int64). Here every synthesised document is one sequence and one document.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.resolved import Resolved
from nextlong.export.formats.base import Format, Options, Snippet
from nextlong.results import ShardResult

_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_DTYPE_CODES: Final = {"int32": 4, "uint16": 8}
_UINT16_VOCABULARY: Final = 65_500  # Megatron's own bound: it leaves room for ids that padding the vocabulary adds


class MegatronShard(ShardResult):
    """A shard, its documents, the id put behind those that do not end in it, and the name of its files without their ends."""

    documents: int
    eod: int | None
    prefix: str


def write(
    out: Path, rows: Iterable[Resolved], *, shard: int, shards: int, vocab_size: int, eod: int | None = None
) -> MegatronShard:
    """Write `{out}.bin` and `{out}.idx`.

    `eod` is appended to each document that does not end in it already, and counts in the document's length: T tokens become
    T + 1. `vocab_size`, all ids included, decides the dtype. `shard` and `shards` are not needed: `out` names the pair.
    """
    del shard, shards
    dtype = np.dtype(np.uint16 if vocab_size < _UINT16_VOCABULARY else np.int32)
    count = 0
    written: list[Future[NDArray[np.int32]]] = []
    # There is often one shard only: its ids go to the disk while the next ones are looked up.
    with Path(f"{out}.bin").open("wb") as file, ThreadPoolExecutor(1) as disk:
        for block in rows:
            count += len(block)
            wait(written)
            written.append(disk.submit(_write_block, file, block, dtype, eod))
    sequence_lengths = np.concatenate([np.empty(0, np.int32), *(lengths.result() for lengths in written)])
    with Path(f"{out}.idx").open("wb") as file:
        file.writelines(_index(sequence_lengths, dtype))
    tokens = int(sequence_lengths.sum(dtype=np.int64))
    return MegatronShard(rows=count, documents=len(sequence_lengths), tokens=tokens, eod=eod, prefix=out.name)


def close(folder: Path, shards: Sequence[MegatronShard]) -> None:
    """Write `blend.txt`: a line a shard with its tokens, as its weight, and its prefix, relative to the folder."""
    lines = [f"{shard.tokens} {shard.prefix}\n" for shard in shards]
    (folder / "blend.txt").write_text("".join(lines), encoding="utf-8")


def _write_block(file: Any, block: Resolved, dtype: np.dtype[Any], eod: int | None) -> NDArray[np.int32]:
    """Write the ids of a block; return the lengths of its documents in the file, shape (D,)."""
    ids = np.ascontiguousarray(block.input_ids, dtype)
    if eod is None:
        file.write(ids)
        os.fsync(file.fileno())
        return block.document_lengths
    ends = np.cumsum(block.document_lengths, dtype=np.int64)
    is_open = ids[ends - 1] != eod
    last = np.array([eod], dtype).tobytes()
    for (start, stop), takes_eod in zip(pairwise([0, *ends.tolist()]), is_open.tolist(), strict=True):
        file.write(ids[start:stop])
        if takes_eod:
            file.write(last)
    os.fsync(file.fileno())
    lengths: NDArray[np.int32] = block.document_lengths + is_open.astype(np.int32)
    return lengths


def _index(lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> Iterator[bytes]:
    count = len(lengths)
    yield _MAGIC
    yield struct.pack("<QBQQ", _VERSION, _DTYPE_CODES[dtype.name], count, count + 1)
    yield lengths.astype("<i4").tobytes()
    yield ((np.cumsum(lengths, dtype=np.int64) - lengths) * dtype.itemsize).astype("<i8").tobytes()
    yield np.arange(count + 1, dtype="<i8").tobytes()


def _write_shard(out: Path, rows: Iterable[Resolved], options: Options) -> MegatronShard:
    name = options.keys["megatron_eod"]
    eod = None if name is None else options.token_id(name)
    return write(out, rows, shard=options.shard, shards=options.shards, vocab_size=options.vocab_size, eod=eod)


FORMAT = Format(
    name="megatron",
    layout="megatron",
    suffixes=(".bin",),
    write=_write_shard,
    result=MegatronShard,
    close=close,
    unit="documents",
    keys=frozenset({"megatron_eod"}),
    auto_shard_mb=16_000,  # its users name each file
    reader_takes="part-00000",
    snippet=Snippet(
        "from megatron.core.datasets.indexed_dataset import IndexedDataset",
        "IndexedDataset({place})  # the prefix is what --data-path takes",
        "len(rows), rows[0][:8]",
    ),
)
