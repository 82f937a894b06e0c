"""Export: write rows of sequences as files that trainers read.

In:  rows (`stages/arrangement.py`), and per run SEQUENCES (references) and what they refer to.
Out: the files of one shard in the asked format, and once all are there the format's index over them; each format is a room
under `formats/`. A row of several sequences is resolved run by run and joined, in blocks of about two million tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.formats import jsonl, parquet
from nextlong.schemas import Resolved
from nextlong.stages.resolve import Corpus, SpecialIds, resolve_table
from nextlong.stages.tokens import TokenStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Format = Literal["parquet", "jsonl"]
_BLOCK_TOKENS = 1 << 21  # resolved at a time: 8 MB of ids


class Origin(NamedTuple):
    """What the references of one run refer to."""

    sequences: tuple[Path, ...]
    corpus: Corpus
    tokens: TokenStore
    special: SpecialIds
    tokenizer: Path


class Options(NamedTuple):
    """The recipe's choices that shape the files of a format."""

    row_group_bytes: int


class Shard(NamedTuple):
    """Rows [first, last) of a split, which make file `number` of `total`."""

    number: int
    total: int
    first: int
    last: int


def shards_of(row_bytes: NDArray[np.int64], *, shard_bytes: int) -> list[Shard]:
    """Return which rows, each of `row_bytes`, make one file: as many as `shard_bytes` hold, at least one."""
    ends = np.cumsum(row_bytes)
    bounds = [0]
    while bounds[-1] < len(ends):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + shard_bytes, side="right"))))
    return [Shard(number, len(bounds) - 1, *own) for number, own in enumerate(pairwise(bounds))]


def export_shard(
    out: Path,
    *,
    format: Format,  # noqa: A002
    shard: Shard,
    index: Path,
    offsets: Path,
    origins: Sequence[Origin],
    options: Options,
) -> dict[str, Any]:
    """Write one shard of the rows of `index` and `offsets`; files stand beside `out`."""
    asked = np.load(index), np.load(offsets)[shard.first : shard.last + 1], origins
    path = Path(f"{out}.{format}")
    if format == "parquet":
        count = parquet.write(path, read_rows(*asked), row_group_bytes=options.row_group_bytes)
    else:
        count = jsonl.write(path, read_rows_and_texts(*asked))
    return {"rows": count}


def close_export(out: Path, *, format: Format, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: A002
    """Write what stands once beside all shards of a format, from what each of them counted."""
    if format not in ("parquet", "jsonl"):
        raise AssertionError(format)
    return {}


def read_rows(index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin]) -> Iterator[Resolved]:
    """Yield rows of sequences, index[offsets[i]:offsets[i + 1]] each (SEQUENCE_INDEX), in blocks of about two million tokens."""
    for pieces, row_offsets in _pieces(index, offsets, origins):
        blocks = [block for block, _ in pieces]
        yield schemas.packed(blocks[0] if len(blocks) == 1 else schemas.joined(blocks), row_offsets)


def read_rows_and_texts(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin]
) -> Iterator[tuple[Resolved, list[str]]]:
    """Yield the same with the text of every span."""
    for pieces, row_offsets in _pieces(index, offsets, origins):
        texts = [text for block, origin in pieces for text in span_texts(block, origin)]
        yield schemas.packed(schemas.joined([block for block, _ in pieces]), row_offsets), texts


def _pieces(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin]
) -> Iterator[tuple[list[tuple[Resolved, Origin]], NDArray[np.int64]]]:
    """Yield blocks of whole rows as the blocks of one run each that make them, and where in these the rows begin."""
    ends = np.concatenate([[0], np.cumsum(index["length"])])[offsets]
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_TOKENS, side="right")) - 1)
        sequences = index[offsets[first] : offsets[last]]
        of_runs = [(own, origins[own["run"][0]]) for own in _runs_of_equal(sequences, "run")]
        yield (
            [(_resolve(own, origin), origin) for own, origin in of_runs],
            offsets[first : last + 1] - offsets[first],
        )
        first = last


def _runs_of_equal(sequences: NDArray[Any], column: str) -> list[NDArray[Any]]:
    return np.split(sequences, np.flatnonzero(np.diff(sequences[column])) + 1)


def _resolve(sequences: NDArray[Any], origin: Origin) -> Resolved:
    """Look up sequences of one run."""
    batches: list[pa.RecordBatch] = []
    for part in _runs_of_equal(sequences, "part"):
        with pa.ipc.open_file(pa.memory_map(str(origin.sequences[part["part"][0]]))) as reader:
            batches += [reader.get_batch(place) for place in part["place"].tolist()]
    table = pa.Table.from_batches(batches)
    return resolve_table(table, origin.corpus, origin.tokens, origin.special, _tokenizer(origin.tokenizer))


def span_texts(block: Resolved, origin: Origin) -> list[str]:
    """Return the text of every span of a block of one run."""
    special = {
        role: _tokenizer(origin.tokenizer).decode(ids.tolist(), skip_special_tokens=False)
        for role, ids in origin.special.by_role().items()
    }
    return jsonl.span_texts(block, text_of=origin.corpus.texts, special_text=special)


@lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Tokenizer:
    from nextlong.stages.fast_bpe import read_tokenizer

    return read_tokenizer(path)
