"""The contract of an output format: how rows are written to files and read back.

In:  blocks of rows (`Resolved`).
Out: the files of one shard and, once all shards are written, the files beside them.

A module declares its format as FORMAT, with the name of the module; variants that
differ in columns or options are declared in the same module (FORMAT_PROLONG in mds.py).
Another package adds one by an entry point of the group `nextlong.formats`, whose name
recipes use. Everything specific to a format is declared here: the keys that it accepts,
the rows that it gets, its size for estimates, its text on cards and its reader. No
other code checks the name of a format.

Formats with columns write tables (`to_table`); ids and offsets are not copied unless
documents are padded. `seq_lengths` (TRL's name) are the lengths of synthesized
documents, never of chunks. With `export.pad_documents_to`, each document is padded to a
multiple of that many tokens (2 · the context-parallel ranks): `seq_lengths` remain the
true lengths, `seq_lengths_padded` include the padding, and `labels` mask it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import zstandard

from nextlong import schemas
from nextlong.arrays import Int32s, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.blocks import Resolved, Wanted
from nextlong.artifacts.results import ShardResult
from nextlong.artifacts.sequence_files import padding_id
from nextlong.plugins import FORMATS
from nextlong.text import Rows

# Added by `export.pad_documents_to`.
_PADDED_COLUMNS: Final = ("seq_lengths_padded", "labels")

# The exceptions of readers for a missing, truncated or invalid file; the message names
# the file.
UNREADABLE: Final = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    struct.error,
    pa.ArrowException,
    zstandard.ZstdError,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of shard number `shard` of `shards`.

    `keys` are the keys of `export` that the format accepts, with `compression` in the
    format's own terms. `vocab_size` is one more than the highest id. `token_id` returns
    the id of a token by its name, and raises a TokenizerError if there is none.
    """

    keys: Mapping[str, Any]
    shard_bytes: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    token_id: Callable[[str], int]
    shard: int = 0
    shards: int = 1


class LoadingCode(NamedTuple):
    """Python code that loads an export.

    It is an import, an expression for its rows, and an expression to print. {place} is
    the path of the files, {split} the quoted name of the split, {tokens} the length of
    a sequence, {vocabulary} one more than the highest id, {uint} the NumPy type for it,
    {eos} the id of the EOS token.
    """

    package: str
    rows: str
    shown: str


class RowSizes(NamedTuple):
    """The sizes of rows before they are resolved, shape (rows,).

    They are tokens, documents and domain.
    """

    tokens: Ints
    documents: Ints
    domains: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Format:
    """An output format.

    Files: `suffixes` are those of the files that hold rows. `write(stem, blocks,
    options)` writes the files of one shard and returns its `result`; `close(folder,
    results)` writes the files for all shards. `read(folder, names)` yields each row of
    these files in order (each document if the `unit` is documents) as a mapping:
    columns named as in Parquet, besides `indices` and `text`; `spans` has one list per
    field. It raises one of UNREADABLE for files that contradict each other. Files of a
    format without `read` are verified by their hashes alone.

    Rows: `wanted` is what the format needs besides token ids and boundaries: the source
    of each row, the spans, or the spans with their texts. `extra_tokens` are added to
    `compose.target_tokens`; `eos` is whether each document
    must end in EOS; `no_packing` is the reason why a row may
    hold only one sequence, empty if it may hold several.

    Keys: the `keys` of `export` that it accepts, and its `compressions`, of which
    `auto` means the first. A file holds `auto_shard_mb` MB of ids (None: depends on the
    total), at most `max_shard_mb`, and at least `min_shard_rows` rows if its split has
    as many; `shard_rows` divides rows into files by the format's own rule.

    Splits: `describe_splits(names)` returns the text of each file, by name, that the
    format's folder needs where an export has several splits.

    Cards and estimates: `layout` names the files; `columns`; `reader_takes` is the path
    below the folder that a reader gets; `hub` is whether the Hugging Face Hub loads it;
    `bytes_per_token(compression, characters per token)`.
    """

    name: str
    layout: str
    suffixes: tuple[str, ...]
    write: Callable[[Path, Iterable[Any], Options], ShardResult]
    result: type[ShardResult] = ShardResult
    close: Callable[[Path, Sequence[Any]], None] | None = None
    read: Callable[[Path, Sequence[str]], Rows] | None = None
    unit: Literal["rows", "documents"] = "rows"
    wanted: Wanted = "ids"
    extra_tokens: int = 0
    eos: Literal["free", "required"] = "free"
    no_packing: str = ""
    keys: frozenset[str] = frozenset()
    compressions: tuple[str, ...] = ("none",)
    auto_shard_mb: float | None = None
    max_shard_mb: float | None = None
    min_shard_rows: int = 1
    shard_rows: Callable[[RowSizes, Options], Sequence[int]] | None = None
    describe_splits: Callable[[Sequence[str]], Mapping[str, str]] | None = None
    columns: tuple[str, ...] = ()
    reader_takes: str = ""
    hub: Literal["loads", "cannot"] = "cannot"
    snippet: LoadingCode
    bytes_per_token: Callable[[str, float], float] = (
        lambda _compression, _chars_per_token: 4.0
    )


def format_of(name: str, keys: Mapping[str, Any] = MappingProxyType({})) -> Format:
    """Return a format by its name, with its columns under the given `keys` of `export`.

    Raises KeyError for an unknown name, PluginError if another package registered
    something else.
    """
    declared = FORMATS.load(name, Format)
    is_padded = keys.get("pad_documents_to") and "pad_documents_to" in declared.keys
    if not is_padded:
        return declared
    return replace(declared, columns=(*declared.columns, *_PADDED_COLUMNS))


def check_index(index: str, listed: Sequence[str], files: Sequence[str]) -> None:
    """Raise ValueError unless the index file lists exactly `files`, in their order."""
    for named, file in zip(listed, files, strict=False):
        if named != file:
            raise ValueError(f"{index} names {named} in place of {file}")
    if len(listed) != len(files):
        raise ValueError(
            f"{index} names {len(listed)} files, but there are {len(files)}"
        )


SPAN: Final = pa.struct(
    [
        ("chunk_id", pa.int64()),
        ("doc_id", pa.int64()),
        ("source_id", pa.string()),
        ("metadata", pa.string()),
        ("char_start", pa.int64()),
        ("char_end", pa.int64()),
        ("role", pa.string()),
        ("token_start", pa.int32()),
        ("token_end", pa.int32()),
        ("score", pa.float32()),
    ]
)
_IGNORED: Final = -100  # a label that cross entropy ignores
_ARRAYS: Final = frozenset({"input_ids", "attention_mask", "labels"})


def to_table(block: Resolved, columns: Sequence[str], options: Options) -> pa.Table:
    """Return a table with the given columns of a block.

    It is padded if `options` request it.
    """
    occupied = block.document_lengths  # (D,) tokens of each document with its padding
    # Ids and offsets are copied only where documents are padded.
    multiple = options.keys.get("pad_documents_to")
    if multiple:
        lengths = block.document_lengths.astype(np.int64)
        padded = -(-lengths // multiple) * multiple
        block = _padded(block, padded, padding=padding_id(options.eos_id))
        occupied = padded.astype(np.int32)
    return pa.table({name: _column(name, block, occupied) for name in columns})


def _padded(block: Resolved, padded: Ints, *, padding: int) -> Resolved:
    """Return a block whose documents have `padded` tokens, (D,).

    Spans move with them.
    """
    lengths = block.document_lengths.astype(np.int64)
    # (D,) where each document starts among all tokens of the block, before and after.
    starts = np.cumsum(lengths) - lengths
    padded_ends = np.cumsum(padded)
    padded_starts = padded_ends - padded
    ids = np.full(padded.sum(), padding, np.int32)
    ids[corpus_files.ranges(padded_starts, lengths)] = block.input_ids
    token_offsets = np.append(0, padded_ends)[block.document_offsets]

    # (P,) the first token of each span, counted through the block, and its document.
    spans_per_row = np.diff(block.span_offsets)
    row_of_span = np.repeat(np.arange(len(block)), spans_per_row)
    firsts = block.token_offsets[row_of_span] + block.token_starts
    document_of_span = np.searchsorted(starts, firsts, side="right") - 1
    shifts = padded_starts - starts
    padded_firsts = firsts + shifts[document_of_span]
    token_starts = (padded_firsts - token_offsets[row_of_span]).astype(np.int32)
    return replace(
        block,
        input_ids=ids,
        token_offsets=token_offsets,
        token_starts=token_starts,
        token_ends=token_starts + (block.token_ends - block.token_starts),
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch.

    Columns with a value per token are arrays, spans are one list per field.
    """
    names = batch.schema.names
    for row in range(batch.num_rows):
        yield {name: _as_python(name, batch.column(name)[row]) for name in names}


def _as_python(name: str, value: pa.Scalar) -> Any:
    """Return a value of a column; ids and other arrays are not copied."""
    if name in _ARRAYS:
        return value.values.to_numpy()
    if name == "spans":
        spans = value.values
        return {field.name: spans.field(field.name).to_pylist() for field in SPAN}
    return value.as_py()


def span_columns(block: Resolved) -> list[pa.Array]:
    """Return the fields of SPAN for every span of a block, shape (P,) each."""
    roles = pa.DictionaryArray.from_arrays(
        pa.array(block.roles), pa.array(schemas.ROLES)
    )
    columns = []
    for field in SPAN:
        if field.name == "role":
            values = roles.cast(pa.string())
        elif field.name == "metadata":
            values = block.metadata
        else:
            # The fields of a block have the names of SPAN in the plural.
            values = getattr(block, f"{field.name}s")
        columns.append(pa.array(values, field.type))
    return columns


def _labels(block: Resolved, occupied: Int32s) -> Int32s:
    """Return the ids, (S,), with -100 at padding and at first tokens of documents.

    The first token of a document has no context.
    """
    labels = block.input_ids.copy()
    lengths = block.document_lengths
    starts = np.cumsum(occupied, dtype=np.int64) - occupied
    # Padding lies behind the tokens of each document.
    padding = corpus_files.ranges(starts + lengths, occupied - lengths)
    labels[starts] = _IGNORED
    labels[padding] = _IGNORED
    return labels


_TYPES: Final[Mapping[str, pa.DataType]] = {
    "sequence_id": pa.string(),
    "method": pa.string(),
    "domain": pa.string(),
    "input_ids": pa.list_(pa.int32()),
    "length": pa.int32(),
    "seq_lengths": pa.list_(pa.int32()),
    "spans": pa.list_(SPAN),
    "attention_mask": pa.list_(pa.int8()),
    "seq_lengths_padded": pa.list_(pa.int32()),
    "labels": pa.list_(pa.int32()),
}
COLUMNS: Final = tuple(_TYPES)[:7]  # of formats with all data


def _column(name: str, block: Resolved, occupied: Int32s) -> pa.Array:
    """Return a column of a block.

    `occupied`, (D,), has the tokens of each document including padding.
    """
    match name:
        case "sequence_id" | "method" | "domain":
            names = getattr(block, f"{name}s")
            return pa.array(names, pa.string())
        case "length":
            tokens = np.diff(block.token_offsets)
            return pa.array(tokens.astype("int32"))
        case "seq_lengths":
            offsets = block.document_offsets
            values: Any = block.document_lengths
        case "seq_lengths_padded":
            offsets = block.document_offsets
            values = occupied
        case "spans":
            offsets = block.span_offsets
            columns = span_columns(block)
            values = pa.StructArray.from_arrays(columns, fields=list(SPAN))
        case "attention_mask":
            offsets = block.token_offsets
            values = np.ones(len(block.input_ids), np.int8)
        case "labels":
            offsets = block.token_offsets
            values = _labels(block, occupied)
        case _:
            offsets = block.token_offsets
            values = block.input_ids
    # Arrow's lists have int32 offsets; ids are not copied.
    list_offsets = pa.array(offsets.astype("int32"))
    return pa.ListArray.from_arrays(list_offsets, pa.array(values))


def schema_of(
    columns: Sequence[str], keys: Mapping[str, Any] = MappingProxyType({})
) -> pa.Schema:
    """Return the schema of the columns.

    Also of those that `export.pad_documents_to` adds, if `keys` contain it.
    """
    added = _PADDED_COLUMNS if keys.get("pad_documents_to") else ()
    return pa.schema([(name, _TYPES[name]) for name in (*columns, *added)])
