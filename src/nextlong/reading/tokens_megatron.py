"""Megatron: the documents of `.idx` files, whose ids are in the `.bin` files beside.

In:  a pair of files as Megatron-LM's `preprocess_data.py` and NeMo write them: ids of
     one type in the `.bin`; in the `.idx` a header, the length and byte offset of each
     sequence, and the bounds of documents in sequences. The index is listed, because
     many other files are called `.bin`.
Out: a row of ids for each document, in the order of the index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np

from nextlong.arrays import Ints
from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile, open_binary, retried
from nextlong.reading.records import ReadRequest
from nextlong.reading.token_ids import TokenFormat, TokenRow, rows_in

# Magic word, version, code of the type, and the counts of sequences and bounds.
_HEADER: Final = struct.Struct("<9sQBQQ")
_MAGIC: Final = b"MMIDIDX\0\0"
_TYPES: Final = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class _Megatron(TokenFormat):
    name = "megatron"
    suffixes = (".idx",)
    side_files = frozenset({"blend.txt"})  # of nextlong's own exports
    compression = "inside"  # places in the file are those of the index

    def token_rows(self, stream: Any, request: ReadRequest) -> Iterator[TokenRow]:
        """Yield the ids of each document."""
        file = request.part.file
        try:
            index = read_index(stream.read())
        except ValueError as error:
            raise _broken(file, str(error)) from None
        fs, path = fsspec.core.url_to_fs(file.path)
        ids_path = f"{path[: -len('.idx')]}.bin"
        if not retried(fs.exists, ids_path, fs=fs):
            raise _broken(file, f"has no ids beside it, {ids_path}")
        size = retried(fs.size, ids_path, fs=fs)
        tokens = int(index.ends[-1])
        if size != tokens * index.dtype.itemsize:
            raise _broken(file, f"has {tokens:,} ids, but {ids_path} {size:,} bytes")
        tokens_of_documents = np.diff(index.ends[index.documents]).tolist()
        disk_bytes = file.bytes // max(len(tokens_of_documents), 1)
        with open_binary(str(fs.unstrip_protocol(ids_path))) as ids:
            for row in rows_in(ids, index.dtype, tokens_of_documents):
                yield row._replace(disk_bytes=disk_bytes)


class MegatronIndex(NamedTuple):
    """The content of an `.idx` file of n sequences."""

    dtype: np.dtype[Any]  # of the ids
    ends: Ints  # (n + 1,): the ids before each sequence, and all of them
    documents: Ints  # (documents + 1,): the first sequence of each, and n


def read_index(content: bytes) -> MegatronIndex:
    """Return the content of an `.idx` file.

    Raises ValueError, with a predicate of the file, if it is no index, or if its
    sequences are not in the order of the ids.
    """
    if not content.startswith(_MAGIC) or len(content) < _HEADER.size:
        raise ValueError("is no index of Megatron")
    _, _, code, sequences, bounds = _HEADER.unpack_from(content)
    if code not in _TYPES:
        raise ValueError(f"has ids of the type {code}, which are no integers")
    dtype = np.dtype(_TYPES[code])
    # Behind the header: the length and the byte offset of each sequence, and the bounds
    # of documents in sequences.
    arrays = (("lengths", "<i4", sequences), ("offsets", "<i8", sequences))
    layout = np.dtype([*arrays, ("documents", "<i8", bounds)])
    if len(content) != _HEADER.size + layout.itemsize:
        raise ValueError(f"has {len(content):,} bytes, so it is truncated")
    parts = np.frombuffer(content, layout, offset=_HEADER.size)[0]
    ends = np.append(0, np.cumsum(parts["lengths"], dtype=np.int64))
    if not np.array_equal(parts["offsets"], ends[:-1] * dtype.itemsize):
        raise ValueError("names sequences that are not in the order of the ids")
    return MegatronIndex(dtype, ends, parts["documents"])


def _broken(file: InputFile, problem: str) -> CorpusError:
    return CorpusError(
        where=file.path,
        problem=f"it {problem}",
        fix="copy the .idx and .bin files again, or leave this one out",
    )


FORMAT: Final = _Megatron()
