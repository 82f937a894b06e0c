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
from itertools import pairwise
from typing import Any, Final

import fsspec
import numpy as np

from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile, open_binary, retried
from nextlong.reading.records import ReadRequest
from nextlong.reading.token_ids import TokenFormat, TokenRow, read_exactly

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
        dtype, tokens_of_documents = _read_index(stream.read(), file)
        fs, path = fsspec.core.url_to_fs(file.path)
        ids_path = f"{path[: -len('.idx')]}.bin"
        if not retried(fs.exists, ids_path, fs=fs):
            raise _broken(file, f"has no ids beside it, {ids_path}")
        size = retried(fs.size, ids_path, fs=fs)
        tokens = sum(tokens_of_documents)
        if size != tokens * dtype.itemsize:
            raise _broken(file, f"has {tokens:,} ids, but {ids_path} {size:,} bytes")
        disk_bytes = file.bytes // max(len(tokens_of_documents), 1)
        with open_binary(str(fs.unstrip_protocol(ids_path))) as ids:
            for tokens in tokens_of_documents:
                raw = read_exactly(ids, tokens * dtype.itemsize)
                yield TokenRow(np.frombuffer(raw, dtype), disk_bytes=disk_bytes)


def _read_index(index: bytes, file: InputFile) -> tuple[np.dtype[Any], list[int]]:
    """Return the type of the ids, and the tokens of each document.

    Raises CorpusError if it is no index, or its documents are not in file order.
    """
    if not index.startswith(_MAGIC) or len(index) < _HEADER.size:
        raise _broken(file, "is no index of Megatron")
    _, _, code, sequences, bounds = _HEADER.unpack_from(index)
    if code not in _TYPES:
        raise _broken(file, f"has ids of the type {code}, which are no integers")
    dtype = np.dtype(_TYPES[code])
    # Behind the header: lengths, byte offsets, and bounds of documents in sequences.
    place = _HEADER.size
    lengths = np.frombuffer(index, "<i4", sequences, place)
    place += lengths.nbytes
    offsets = np.frombuffer(index, "<i8", sequences, place)
    place += offsets.nbytes
    document_bounds = np.frombuffer(index, "<i8", bounds, place)
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    if not np.array_equal(offsets, ends[:-1] * dtype.itemsize):
        raise _broken(file, "names sequences that are not in the order of the ids")
    token_bounds = ends[document_bounds].tolist()
    return dtype, [stop - start for start, stop in pairwise(token_bounds)]


def _broken(file: InputFile, problem: str) -> CorpusError:
    return CorpusError(
        where=file.path,
        problem=f"it {problem}",
        fix="copy the .idx and .bin files again, or leave this one out",
    )


FORMAT: Final = _Megatron()
