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
_VERSION: Final = 1
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
    sequences or documents are not in the order of the ids.
    """
    if not content.startswith(_MAGIC) or len(content) < _HEADER.size:
        raise ValueError("is no index of Megatron")
    _, version, code, sequences, bounds = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise ValueError(f"is an index of version {version}, not {_VERSION}")
    if code not in _TYPES:
        raise ValueError(f"has ids of the type {code}, which are no integers")
    dtype = np.dtype(_TYPES[code])
    if not bounds:
        raise ValueError("has no bounds of documents")
    # Behind the header: the length and the byte offset of each sequence, and the bounds
    # of documents in sequences. NumPy's errors for damaged counts would name no bytes.
    if len(content) != _HEADER.size + (4 + 8) * sequences + 8 * bounds:
        raise ValueError(f"has {len(content):,} bytes, so it is truncated")
    arrays = (("lengths", "<i4", sequences), ("offsets", "<i8", sequences))
    layout = np.dtype([*arrays, ("documents", "<i8", bounds)])
    parts = np.frombuffer(content, layout, offset=_HEADER.size)[0]
    shortest = parts["lengths"].min(initial=0)
    if shortest < 0:
        raise ValueError(f"has a sequence of {shortest:,} ids")
    ends = np.append(0, np.cumsum(parts["lengths"], dtype=np.int64))
    if not np.array_equal(parts["offsets"], ends[:-1] * dtype.itemsize):
        raise ValueError("names sequences that are not in the order of the ids")
    documents = parts["documents"]
    _check_bounds(documents, sequences)
    return MegatronIndex(dtype, ends, documents)


def _check_bounds(bounds: Ints, sequences: int) -> None:
    """Raise ValueError unless documents take all sequences in their order."""
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        bound, next_bound = bounds[falls[0] :][:2].tolist()
        raise ValueError(f"has the bound of documents {next_bound:,} after {bound:,}")
    first, last = bounds[[0, -1]].tolist()
    if (first, last) != (0, sequences):
        raise ValueError(
            f"has documents of the sequences {first:,} to {last:,}, not 0 to "
            f"{sequences:,}"
        )


def _broken(file: InputFile, problem: str) -> CorpusError:
    return CorpusError(
        where=file.path,
        problem=f"it {problem}",
        fix="copy the .idx and .bin files again, or leave this one out",
    )


FORMAT: Final = _Megatron()
