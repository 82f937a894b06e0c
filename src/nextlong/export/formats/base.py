"""The contract of an output format: how rows are written to files and read back.

In:  blocks of rows (`Resolved`). Out: the files of one shard and, once all shards are written, the files beside them.

A module declares its format as FORMAT, with the name of the module; variants that differ in columns or options are declared
in the same module (FORMAT_PROLONG in mds.py). Another package adds one by an entry point of the group `nextlong.formats`,
whose name recipes use. Everything specific to a format is declared here: the keys that it accepts, the rows that it gets,
its size for estimates, its text on cards and its reader. No other code checks the name of a format.

Formats with columns write tables (`to_table`); ids and offsets are not copied unless documents are padded. `seq_lengths`
(TRL's name) are the lengths of synthesized documents, never of chunks. With `export.pad_documents_to`, each document is
padded to a multiple of that many tokens (2 · the context-parallel ranks): `seq_lengths` remain the true lengths,
`seq_lengths_padded` include the padding, and `labels` mask it.
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
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.blocks import Resolved, Wanted
from nextlong.artifacts.results import ShardResult
from nextlong.artifacts.sequence_files import padding_id
from nextlong.plugins import FORMATS

_PADDED_COLUMNS: Final = (
    "seq_lengths_padded",
    "labels",
)  # added by `export.pad_documents_to`

# The exceptions of readers for a missing, truncated or invalid file; the message names the file.
UNREADABLE: Final = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, struct.error),
    *(pa.ArrowException, zstandard.ZstdError),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of shard number `shard` of `shards`.

    `keys` are the keys of `export` that the format accepts, with `compression` in the format's own terms. `vocab_size` is one
    more than the highest id. `token_id` returns the id of a token by its name, and raises a TokenizerError if there is none.
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
    """Python code that loads an export: an import, an expression for its rows, and an expression to print.

    {place} is the path of the files, {split} the quoted name of the split, {tokens} the length of a sequence, {vocabulary} one
    more than the highest id, {uint} the NumPy type for it, {eos} the id of the EOS token.
    """

    package: str
    rows: str
    shown: str


class RowSizes(NamedTuple):
    """The sizes of rows before they are resolved, shape (rows,): tokens, documents and domain."""

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    domains: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Format:
    """An output format.

    Files: `suffixes` are those of the files that hold rows. `write(stem, blocks, options)` writes the files of one shard and
    returns its `result`; `close(folder, results)` writes the files for all shards. `read(folder, names)` yields each row of
    these files in order (each document if the `unit` is documents) as a mapping: columns named as in Parquet, besides
    `indices` and `text`; `spans` has one list per field. It raises one of UNREADABLE for files that contradict each other.
    Files of a format without `read` are verified by their hashes alone.

    Rows: `wanted` is what the format needs besides token ids and boundaries: the source of each row, the spans, or the spans
    with their texts. `extra_tokens` are added to `compose.target_tokens`; `eos` is whether each document must end in EOS;
    `no_packing` is the reason why a row may hold only one sequence, empty if it may hold several.

    Keys: the `keys` of `export` that it accepts, and its `compressions`, of which `auto`
    means the first. A file holds `auto_shard_mb` MB of ids (None: depends on the total),
    at most `most_shard_mb`, and at least `min_shard_rows` rows if its split has as many;
    `shard_rows` divides rows into files by the format's own rule.

    Splits: `describe_splits(names)` returns the text of each file, by name, that the
    format's folder needs where an export has several splits.

    Cards and estimates: `layout` names the files; `columns`; `reader_takes` is the path below the folder that a reader gets;
    `hub` is whether the Hugging Face Hub loads it; `bytes_per_token(compression, characters per token)`.
    """

    name: str
    layout: str
    suffixes: tuple[str, ...]
    write: Callable[[Path, Iterable[Any], Options], ShardResult]
    result: type[ShardResult] = ShardResult
    close: Callable[[Path, Sequence[Any]], None] | None = None
    read: Callable[[Path, Sequence[str]], Iterator[Mapping[str, Any]]] | None = None
    unit: Literal["rows", "documents"] = "rows"
    wanted: Wanted = "ids"
    extra_tokens: int = 0
    eos: Literal["free", "required"] = "free"
    no_packing: str = ""
    keys: frozenset[str] = frozenset()
    compressions: tuple[str, ...] = ("none",)
    auto_shard_mb: float | None = None
    most_shard_mb: float | None = None
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

    Raises KeyError for an unknown name, PluginError if another package registered something else.
    """
    made = FORMATS.load(name, Format)
    is_padded = keys.get("pad_documents_to") and "pad_documents_to" in made.keys
    return (
        replace(made, columns=(*made.columns, *_PADDED_COLUMNS)) if is_padded else made
    )


def check_index(index: str, listed: Sequence[str], files: Sequence[str]) -> None:
    """Raise ValueError unless the index file lists exactly `files`, in their order."""
    if list(listed) != list(files):
        wrong = next(
            (pair for pair in zip(listed, files, strict=False) if pair[0] != pair[1]),
            None,
        )
        what = (
            f"{wrong[0]} in place of {wrong[1]}"
            if wrong
            else f"{len(listed)} files, but there are {len(files)}"
        )
        raise ValueError(f"{index} names {what}")


SPAN: Final = pa.struct(
    [
        *((name, pa.int64()) for name in ("chunk_id", "doc_id")),
        *((name, pa.string()) for name in ("source_id", "metadata")),
        *((name, pa.int64()) for name in ("char_start", "char_end")),
        ("role", pa.string()),
        *((name, pa.int32()) for name in ("token_start", "token_end")),
        ("score", pa.float32()),
    ]
)
_IGNORED: Final = -100  # a label that cross entropy ignores
_ARRAYS: Final = frozenset({"input_ids", "attention_mask", "labels"})


def to_table(block: Resolved, columns: Sequence[str], options: Options) -> pa.Table:
    """Return a table with the given columns of a block, padded if `options` request it."""
    room = block.document_lengths  # (D,) the tokens that each document occupies
    if multiple := options.keys.get("pad_documents_to"):
        lengths = block.document_lengths.astype(np.int64)
        padded = -(-lengths // multiple) * multiple
        # (D,) where each document starts among all tokens of the block, before and after padding.
        starts, new_starts = np.cumsum(lengths) - lengths, np.cumsum(padded) - padded
        ids = np.full(padded.sum(), padding_id(options.eos_id), np.int32)
        ids[corpus_files.ranges(new_starts, lengths)] = block.input_ids
        token_offsets = np.append(0, np.cumsum(padded))[block.document_offsets]
        # Spans move with their documents; `places` count the tokens of all rows.
        row_of_span = np.repeat(np.arange(len(block)), np.diff(block.span_offsets))
        places = block.token_offsets[row_of_span] + block.token_starts
        document = np.searchsorted(starts, places, side="right") - 1
        firsts = (
            places + (new_starts - starts)[document] - token_offsets[row_of_span]
        ).astype(np.int32)
        ends = firsts + (block.token_ends - block.token_starts)
        block = replace(
            block,
            input_ids=ids,
            token_offsets=token_offsets,
            token_starts=firsts,
            token_ends=ends,
        )
        room = padded.astype(np.int32)
    return pa.table({name: _column(name, block, room) for name in columns})


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch: columns with a value per token as arrays, spans as one list per field."""

    def plain(name: str, value: Any) -> Any:
        if name in _ARRAYS:
            return value.values.to_numpy()
        if name == "spans":
            return {
                field.name: value.values.field(field.name).to_pylist() for field in SPAN
            }
        return value.as_py()

    for row in range(batch.num_rows):
        yield {
            name: plain(name, batch.column(name)[row]) for name in batch.schema.names
        }


def span_columns(block: Resolved) -> list[pa.Array]:
    """Return the fields of SPAN for every span of a block, shape (P,) each."""
    roles = pa.DictionaryArray.from_arrays(
        pa.array(block.roles), pa.array(schemas.ROLES)
    ).cast(pa.string())
    columns = {"role": roles, "metadata": block.metadata}
    return [
        pa.array(
            columns.get(field.name, getattr(block, f"{field.name}s", None)), field.type
        )
        for field in SPAN
    ]


def _labels(block: Resolved, room: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the ids, (S,), with -100 at padding and at the first token of each document, which has no context."""
    labels = block.input_ids.copy()
    starts = np.cumsum(room, dtype=np.int64) - room
    labels[starts] = _IGNORED
    labels[
        corpus_files.ranges(
            starts + block.document_lengths, room - block.document_lengths
        )
    ] = _IGNORED
    return labels


_TYPES: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("sequence_id", "method", "domain"), pa.string()),
    "input_ids": pa.list_(pa.int32()),
    "length": pa.int32(),
    "seq_lengths": pa.list_(pa.int32()),
    "spans": pa.list_(SPAN),
    "attention_mask": pa.list_(pa.int8()),
    **dict.fromkeys(_PADDED_COLUMNS, pa.list_(pa.int32())),
}
COLUMNS: Final = tuple(_TYPES)[:7]  # of formats with all data


def _column(name: str, block: Resolved, room: NDArray[np.int32]) -> pa.Array:
    """Return a column of a block; `room`, (D,), has the tokens that each document occupies, including padding."""
    match name:
        case "sequence_id" | "method" | "domain":
            return pa.array(getattr(block, f"{name}s"), pa.string())
        case "length":
            return pa.array(np.diff(block.token_offsets).astype("int32"))
        case "seq_lengths":
            offsets, values = block.document_offsets, block.document_lengths
        case "seq_lengths_padded":
            offsets, values = block.document_offsets, room
        case "spans":
            offsets, values = (
                block.span_offsets,
                pa.StructArray.from_arrays(span_columns(block), fields=list(SPAN)),
            )
        case "attention_mask":
            offsets, values = (
                block.token_offsets,
                np.ones(len(block.input_ids), np.int8),
            )
        case "labels":
            offsets, values = block.token_offsets, _labels(block, room)
        case _:
            offsets, values = block.token_offsets, block.input_ids
    return pa.ListArray.from_arrays(pa.array(offsets.astype("int32")), pa.array(values))


def schema_of(
    columns: Sequence[str], keys: Mapping[str, Any] = MappingProxyType({})
) -> pa.Schema:
    """Return the schema of the columns, and of those that `export.pad_documents_to` adds if `keys` contain it."""
    added = _PADDED_COLUMNS if keys.get("pad_documents_to") else ()
    return pa.schema([(name, _TYPES[name]) for name in (*columns, *added)])
