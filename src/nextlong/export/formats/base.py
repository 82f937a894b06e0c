"""Format: how rows are written to files and read again; each format is one module of this folder.

In:  blocks of rows (`Resolved`). Out: the files of one shard, and once all shards are written the files beside them.

A module declares its format as FORMAT and the format has the module's name. Another package brings one by an entry
point of the group `nextlong.formats`, whose name recipes use. Everything specific to a format is declared here: the
keys it accepts, the rows it gets, its size for estimates, its text on cards and its reader. No other code branches on
a format's name.
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

from nextlong.artifacts.results import ShardResult
from nextlong.plugins import FORMATS

PADDED_COLUMNS: Final = ("seq_lengths_padded", "labels")  # that `export.pad_documents_to` adds

# What a reader raises for a file that is missing, truncated or of another shape; its message names the file.
UNREADABLE: Final = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, struct.error),
    *(pa.ArrowException, zstandard.ZstdError),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of shard number `shard` of `shards`.

    `keys` are the keys of `export` that the format accepts, `compression` in the format's own words. `vocab_size` is
    one more than the highest id. `token_id` looks up a token by its name and raises a user error if there is none.
    """

    keys: Mapping[str, Any]
    shard_bytes: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    token_id: Callable[[str], int]
    shard: int = 0
    shards: int = 1


class Snippet(NamedTuple):
    """Python code that loads an export: an import, an expression for its rows, and an expression to print.

    In each, {place} is the expression for the path of the files, {split} the name of the split in quotes, {tokens} the
    length of a sequence, {vocabulary} one more than the highest id, {uint} the NumPy type that this needs, {eos} the
    id of the EOS token.
    """

    package: str
    rows: str
    shown: str


class RowSizes(NamedTuple):
    """The sizes of rows before they are looked up, shape (rows,): tokens, documents and domain."""

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    domains: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format.

    Files: `suffixes` end the names of the files that hold rows. `write(stem, blocks, options)` writes those of one
    shard and returns its `result`; `close(folder, results)` writes the files beside them. `read(folder, names)` yields
    each row of these files in order, or each document where that is the `unit`, as a mapping: columns named as in
    Parquet, besides `indices` and `text`; `spans` has one list per field. It raises one of UNREADABLE for files that
    contradict each other. Files of a format without `read` are verified by their hashes alone.

    Rows: `wanted` is what the format needs besides token ids and boundaries: the source of each row, the spans, or the
    spans with their texts (blocks are then pairs of rows and texts). `extra_tokens` are added to
    `compose.target_tokens`; `eos` says whether each document must end in EOS; `no_packing` says why a row may hold
    only one sequence, and is empty where it may hold several.

    Keys: `keys` of `export` that it accepts, and the `compressions`, of which `auto` means the first. A file holds
    `auto_shard_mb` MB of ids (None: depends on the total), never more than `most_shard_mb`; `shard_rows` divides rows
    into files by the format's own rule.

    Cards and estimates: `layout` names the files; `columns`; `reader_takes` is the path below the folder that a reader
    is given; `hub` says whether the Hugging Face hub loads it; `bytes_per_token(compression, characters per token)`.
    """

    name: str
    layout: str
    suffixes: tuple[str, ...]
    write: Callable[[Path, Iterable[Any], Options], ShardResult]
    result: type[ShardResult] = ShardResult
    close: Callable[[Path, Sequence[Any]], None] | None = None
    read: Callable[[Path, Sequence[str]], Iterator[Mapping[str, Any]]] | None = None
    unit: Literal["rows", "documents"] = "rows"
    wanted: Literal["ids", "domains", "spans", "texts"] = "ids"
    extra_tokens: int = 0
    eos: Literal["free", "required"] = "free"
    no_packing: str = ""
    keys: frozenset[str] = frozenset()
    compressions: tuple[str, ...] = ("none",)
    auto_shard_mb: float | None = None
    most_shard_mb: float | None = None
    shard_rows: Callable[[RowSizes, Options], Sequence[int]] | None = None
    columns: tuple[str, ...] = ()
    reader_takes: str = ""
    hub: Literal["loads", "cannot"] = "cannot"
    snippet: Snippet
    bytes_per_token: Callable[[str, float], float] = lambda _compression, _chars_per_token: 4.0


def format_of(name: str, keys: Mapping[str, Any] = MappingProxyType({})) -> Format:
    """Return a format by its name, with the columns that it has under these `keys` of `export`.

    Raises KeyError for an unknown name, PluginError if another package's object is not a Format.
    """
    made = FORMATS.load(name, Format)
    is_padded = keys.get("pad_documents_to") and "pad_documents_to" in made.keys
    return replace(made, columns=(*made.columns, *PADDED_COLUMNS)) if is_padded else made


def check_index(index: str, listed: Sequence[str], files: Sequence[str]) -> None:
    """Raise ValueError unless the file `index` lists exactly `files`, in their order."""
    if list(listed) != list(files):
        wrong = next((pair for pair in zip(listed, files, strict=False) if pair[0] != pair[1]), None)
        what = f"{wrong[0]} in the place of {wrong[1]}" if wrong else f"{len(listed)} files, there are {len(files)}"
        raise ValueError(f"{index} names {what}")
