"""Datatrove: the documents of `.ds` files, as its DocumentTokenizer writes them.

In:  a `.ds` file of ids (uint16 or uint32), and beside it `.ds.index`, the end of each
     document in tokens (uint64), and `.ds.metadata`, the tokenizer and bytes of an id.
Out: a row of ids for each document; without an index one row, which end tokens divide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile, open_binary
from nextlong.reading.records import ReadRequest
from nextlong.reading.token_ids import TokenFormat, TokenRow, decoder_of, rows_in

_TYPES: Final = {2: "<u2", 4: "<u4"}
_FIX: Final = "copy the .ds file and its .index again, or leave it out"


class _Datatrove(TokenFormat):
    name = "datatrove"
    suffixes = (".ds",)
    compression = "inside"  # places in the file are those of the index

    def token_rows(self, stream: Any, request: ReadRequest) -> Iterator[TokenRow]:
        """Yield the ids of each document."""
        file = request.part.file
        dtype = np.dtype(_TYPES[_id_bytes(request)])
        tokens, left = divmod(file.bytes, dtype.itemsize)
        index = _beside(file, ".index")
        ends = np.array([tokens])
        if index is not None:
            # A last number that is cut is left out, so it is missing below.
            ends = np.frombuffer(index, "<i8", len(index) // 8)
        last = int(ends[-1]) if len(ends) else 0
        if last != tokens or left:
            raise CorpusError(
                where=file.path,
                problem=f"it has {file.bytes:,} bytes, but its index {last:,} ids of "
                f"{dtype.itemsize} bytes",
                fix=_FIX,
            )
        starts = np.append(0, ends)[:-1]
        falls = np.flatnonzero(ends < starts)
        if len(falls):
            raise CorpusError(
                where=file.path,
                problem=f"its index has a document from id {starts[falls[0]]:,} to "
                f"{ends[falls[0]]:,}",
                fix=_FIX,
            )
        yield from rows_in(stream, dtype, (ends - starts).tolist())


def _id_bytes(request: ReadRequest) -> int:
    """Return the bytes of an id: of the metadata, else what the vocabulary needs."""
    metadata = _beside(request.part.file, ".metadata")
    if metadata is not None:
        first_line = metadata.decode(errors="replace").partition("\n")[0]
        size = first_line.rpartition("|")[2]
        if size in ("2", "4"):
            return int(size)
    decoder = decoder_of(request.source, request.part.file)
    return 2 if decoder.tokenizer.get_vocab_size() <= 1 << 16 else 4


def _beside(file: InputFile, suffix: str) -> bytes | None:
    """Return the content of the file with a further suffix; None if there is none."""
    try:
        with open_binary(f"{file.path}{suffix}") as stream:
            content: bytes = stream.read()
            return content
    except FileNotFoundError:
        return None


FORMAT: Final = _Datatrove()
