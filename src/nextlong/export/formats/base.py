"""Format: what the house knows of a way to write rows as files; a file here a format, or another package's entry point.

In:  blocks of rows (`Resolved`). Out: the files of one shard and, once all shards are there, what stands beside them.

A format is one module with an attribute FORMAT; its name is the module's. Another package brings one by an entry point of the group
`nextlong.formats`, whose name recipes use. What a recipe may say for it, which rows it gets, how much room it takes, what its
card says and how its files are read again: all is declared here, so that nothing else branches on its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.recipe.export import FORMATS, terms_of
from nextlong.results import ShardResult

# Beside token ids and boundaries: which source a row is of; the spans; the spans with the text of each.
Wanted = Literal["ids", "domains", "spans", "texts"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What shapes the files of a shard, which is number `shard` of `shards`.

    `keys` are those of `export` that the format accepts, `compression` in its own words. `vocab_size` is one more than the highest
    id. `token_id` finds a token by its name; it raises a user's error if there is none.
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
    """Python that loads an export, in three pieces: an import, an expression for its rows, and one that shows them.

    In each, {place} is the expression for the files' place, {split} the name of the split in quotes, {tokens} the length of a
    sequence, {vocabulary} one more than the highest id, {uint} the NumPy type that this needs, {eos} the id of the EOS token.
    """

    package: str
    rows: str
    shown: str


class RowSizes(NamedTuple):
    """What is known of each row before it is looked up, shape (rows,): tokens, documents and domain."""

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    domains: Sequence[str]


# Takes the stem of the shard's files and its blocks; where texts are wanted, each is a pair: rows, and the text of every span.
Write = Callable[[Path, Iterable[Any], Options], ShardResult]
# Takes the folder and what `write` returned for every shard.
Close = Callable[[Path, Sequence[Any]], None]
# Takes the folder and the names of the files that hold rows, in order; yields what they say of each row, by column.
Read = Callable[[Path, Sequence[str]], Iterator[Mapping[str, Any]]]


def _four_bytes(compression: str, chars_per_token: float) -> float:
    del compression, chars_per_token
    return 4.0


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format. `suffixes` end the names of the files that hold rows; `write` makes those of a shard and returns
    its `result`, `close` makes what is beside them.

    What it wants: `wanted` of rows beside ids; `extra_tokens` more in a sequence than `compose.target_tokens`; `eos` at the end of
    every document or not; `no_packing` says why a row may hold one sequence only, and is empty where it may hold several.

    What it accepts: `keys` of `export`, and words of `export.compression`, of which `auto` means the first. A file holds
    `auto_shard_mb` of ids, None: by how much there is; never more than `most_shard_mb`. `shard_rows` says how many rows each
    file takes, where the format has a rule of its own.

    What is told: `layout` is the name of what the files are; `columns`; `reader_takes` is what a reader is given below the
    folder, nothing for the folder itself; `hub`: whether the Hugging Face hub loads it; `bytes_per_token` of a compression
    and characters per token, for plans.

    How it is verified: `read` yields every row again, or every document where that is its `unit`, by code that shares nothing
    with `write`; columns are named as in Parquet, besides `indices` and `text`. Without it files are checked by their hashes alone.
    """

    name: str
    layout: str
    suffixes: tuple[str, ...]
    write: Write
    result: type[ShardResult] = ShardResult
    close: Close | None = None

    wanted: Wanted = "ids"
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
    bytes_per_token: Callable[[str, float], float] = _four_bytes

    unit: Literal["rows", "documents"] = "rows"
    read: Read | None = None


def format_of(name: str) -> Format:
    """Return a format by its name, which a recipe has checked. Raises PluginError if another package's is none."""
    terms = terms_of(name)
    if not isinstance(terms, Format):
        raise FORMATS.broken(name, f"is not a nextlong Format, but {type(terms).__name__}")
    return terms
