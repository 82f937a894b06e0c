"""MDS: the samples of MosaicML streaming's shards, of text or of token ids.

In:  a shard: the number of its samples and their offsets (uint32), a JSON header, and
     the samples. A sample has the sizes (uint32) of its columns of variable size, then
     its columns.
Out: of a column of strings, a record for each sample; of a column of ids, those of each
     document. ProLong's `indices` say where the documents of a row begin and end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nextlong.arrays import AnyArray
from nextlong.errors import CorpusError
from nextlong.reading.document_text import document_text
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.records import InputFormat, Items, ReadRequest, Reject
from nextlong.reading.token_ids import (
    TokenFormat,
    TokenRow,
    read_exactly,
    records_of,
)
from nextlong.recipe import Source
from nextlong.text import Rows

_UINT32_BYTES: Final = 4
# The columns of ids of ProLong and LLM-foundry.
_ID_COLUMNS: Final = ("input_ids", "tokens")
_BOUNDS: Final = "indices"
_SCALAR: Final = re.compile(r"(u?int|float)\d+")


class _Mds(TokenFormat):
    name = "mds"
    suffixes = (".mds",)
    side_files = frozenset({"index.json"})
    has_columns = True

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield the record or reject of each document.

        A sample of strings is one document.
        """
        shard = _Shard.read(stream, request.part.file)
        named = request.required()
        has_ids = shard.id_column(request.source) is not None
        if has_ids:
            named = [(name, key) for name, key in named if key != "text"]
        for name, key in named:
            if name not in shard.encodings:
                request.refuse_column(name, list(shard.encodings), key=key)
        if has_ids:
            return records_of(_token_rows(shard, request), request)
        return _texts(shard, request)

    def token_rows(self, stream: Any, request: ReadRequest) -> Iterator[TokenRow]:
        """Yield the ids of each document of each sample."""
        return _token_rows(_Shard.read(stream, request.part.file), request)

    def rows(self, stream: pa.NativeFile, part: FilePart) -> Rows:
        """Yield the samples; arrays are lists."""
        for sample in _Shard.read(stream, part.file).samples():
            yield {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in sample.items()
            }

    def text_bytes(
        self, file: InputFile, source: Source, head_bytes: int
    ) -> tuple[int, int]:
        """Estimate from the head of a file how much text it holds."""
        if source.tokenizer is None:
            return InputFormat.text_bytes(self, file, source, head_bytes)
        return super().text_bytes(file, source, head_bytes)


@dataclass(frozen=True)
class _Shard:
    """An open shard: where its samples begin, and the encoding of each column.

    sizes: of the columns in bytes; None if they vary
    """

    stream: Any
    offsets: list[int]
    encodings: Mapping[str, str]
    sizes: Sequence[int | None]

    @classmethod
    def read(cls, stream: Any, file: InputFile) -> _Shard:
        """Read the beginning of a shard. Raises CorpusError for another file."""
        (count,) = np.frombuffer(read_exactly(stream, _UINT32_BYTES), "<u4").tolist()
        raw_offsets = read_exactly(stream, (count + 1) * _UINT32_BYTES)
        offsets = np.frombuffer(raw_offsets, "<u4").tolist()
        header_bytes = offsets[0] - (count + 2) * _UINT32_BYTES
        try:
            header = json.loads(read_exactly(stream, max(header_bytes, 0)))
            names = header["column_names"]
            encodings = dict(zip(names, header["column_encodings"], strict=True))
            return cls(stream, offsets, encodings, header["column_sizes"])
        except (ValueError, KeyError, TypeError):
            raise CorpusError(
                where=file.path,
                problem="it is not a shard of MosaicML streaming (it has no header)",
                fix="rename it if it has another format, or leave it out",
            ) from None

    def id_column(self, source: Source) -> str | None:
        """Return the column of ids: the source's `text`, or one of the usual names.

        None if the source's column holds text.
        """
        for name in (*source.text_columns, *_ID_COLUMNS):
            kind = self.encodings.get(name, "").partition(":")[0]
            if kind == "str":
                return None
            if kind in ("ndarray", "bytes"):
                return name
        return None

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of each sample. It can be called once."""
        for start, stop in pairwise(self.offsets):
            sample = read_exactly(self.stream, stop - start)
            try:
                yield decoded(sample, self.encodings, self.sizes)
            except (ValueError, IndexError, TypeError) as error:
                raise OSError(f"the sample at byte {start:,}: {error}") from None


def _texts(shard: _Shard, request: ReadRequest) -> Items:
    """Yield the record or reject of each sample of strings."""
    names = request.source.text_columns
    for line, sample in enumerate(shard.samples(), start=1):
        text = document_text(names, [sample[name] for name in names])
        if isinstance(text, str):
            own_id = sample.get(request.source.id)
            yield request.record(text, own_id, line, _values(sample, request))
        else:
            yield Reject(request.part.file.name, line, *text)


def _token_rows(shard: _Shard, request: ReadRequest) -> Iterator[TokenRow]:
    """Yield the ids of each document of each sample."""
    column = shard.id_column(request.source)
    if column is None:
        request.refuse_column(_ID_COLUMNS[0], list(shard.encodings))
    for sample in shard.samples():
        ids = sample[column]
        if isinstance(ids, bytes):
            ids = np.frombuffer(ids, "<i8")  # as LLM-foundry stores them
        values = _values(sample, request)
        own_id = sample.get(request.source.id)
        bounds = sample.get(_BOUNDS, [[0, len(ids)]])
        for start, stop in _checked_bounds(bounds, len(ids)):
            yield TokenRow(ids[start:stop], values, own_id)


def _checked_bounds(bounds: Any, tokens: int) -> list[list[int]]:
    """Return where each document begins and ends. Raises OSError for other values."""
    pairs = np.asarray(bounds)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        found = f"{pairs.dtype} of the shape {pairs.shape}"
        raise OSError(f"{_BOUNDS} is {found}, not a pair of integers per document")
    listed: list[list[int]] = pairs.tolist()
    for start, stop in listed:
        if not 0 <= start <= stop <= tokens:
            raise OSError(
                f"{_BOUNDS} has a document from id {start:,} to {stop:,} of {tokens:,}"
            )
    return listed


def _values(sample: Mapping[str, Any], request: ReadRequest) -> tuple[Any, ...]:
    return tuple(sample.get(name) for name in request.columns)


def decoded(
    sample: bytes | memoryview,
    encodings: Mapping[str, str],
    sizes: Sequence[int | None],
) -> dict[str, Any]:
    """Return the columns of a sample; `sizes` has None for those that vary."""
    varying = sum(size is None for size in sizes)
    place = varying * _UINT32_BYTES
    own_sizes = iter(np.frombuffer(sample, "<u4", varying).tolist())
    columns = {}
    for (name, encoding), size in zip(encodings.items(), sizes, strict=True):
        stop = place + (next(own_sizes) if size is None else size)
        columns[name] = _value(sample[place:stop], encoding)
        place = stop
    return columns


def _value(value: bytes | memoryview, encoding: str) -> Any:
    """Return a value of one of the encodings of text and numbers; others as bytes."""
    kind, _, details = encoding.partition(":")
    # str, and numbers of any precision as text: str_int, str_float and str_decimal.
    if kind.startswith("str"):
        return str(value, "utf-8")
    if kind == "json":
        return json.loads(bytes(value))
    if kind == "int":
        return int.from_bytes(value, "little", signed=True)
    if kind == "ndarray":
        return _array(value, details)
    if _SCALAR.fullmatch(kind):
        return np.frombuffer(value, kind)[0].item()
    return value


def _array(value: bytes | memoryview, details: str) -> AnyArray:
    """Return an array; `details` are its type and shape, as far as they are fixed."""
    dtype, _, fixed_shape = details.partition(":")
    place = 0
    if not dtype:
        # The bits of a number, plus 0 for unsigned, 1 for signed, 2 for real ones.
        size, kind = divmod(value[0], 8)
        dtype = f"<{'uif'[kind]}{size}"
        place = 1
    if fixed_shape:
        shape = [int(size) for size in fixed_shape.split(",")]
    else:
        # The number of axes and the width of their sizes in one byte, then these.
        axes, power = divmod(value[place], 4)
        axis_sizes = np.frombuffer(value, f"<u{1 << power}", axes, place + 1)
        shape = axis_sizes.tolist()
        place += 1 + axis_sizes.nbytes
    numbers = np.frombuffer(value, dtype, offset=place)
    return numbers.reshape(shape)


FORMAT: Final = _Mds()
