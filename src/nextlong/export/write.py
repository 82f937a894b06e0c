"""Export: write rows of sequences as files that trainers read.

In:  rows (`export/arrange.py`), and per run SEQUENCES (references) and what they refer to.
Out: the files of one shard in the requested format and, once all are written, the format's index over them; each format is
a module of `formats/`. A row of several sequences is resolved run by run and joined, in blocks of about eight million
tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.artifacts.finished import RunFiles
from nextlong.artifacts.resolve import (
    Resolved,
    domains_of,
    joined,
    joined_names,
    of_documents,
    packed,
    resolve_table,
    sliced,
    span_texts,
)
from nextlong.artifacts.results import ShardResult
from nextlong.engine.step import TaskResult
from nextlong.export.formats.base import Options, RowSizes, format_of
from nextlong.plugins import FORMATS

_ID_BYTES = 4
_BLOCK_TOKENS = 1 << 23  # resolved at a time, 32 MB of ids: each block reads what it names of every shard
_SEQUENCES_HELD = 4096  # references of these, some hundred bytes a span


class Shard(NamedTuple):
    """Rows [first, last) of a split, which make file `number` of `total`."""

    number: int
    total: int
    first: int
    last: int


def divide_into_shards(
    index: NDArray[Any],
    offsets: NDArray[np.int64],
    origins: Sequence[RunFiles],
    *,
    name: str,
    options: Options,
) -> list[Shard]:
    """Return which rows make one file: by the format's rule, else as many as `options.shard_bytes` hold, at least one."""
    shard_rows = format_of(name).shard_rows
    # (rows,) tokens of each row: the index has the tokens of its sequences, the offsets say which sequences make a row.
    row_tokens = np.diff(np.concatenate([[0], np.cumsum(index["length"])])[offsets])
    if shard_rows is None:
        return shards_of(_ID_BYTES * row_tokens, shard_bytes=options.shard_bytes)
    domains = _domains(index, origins)
    of_rows = [joined_names(domains[first:last]) for first, last in pairwise(offsets.tolist())]
    bounds = np.cumsum([0, *shard_rows(RowSizes(row_tokens, np.diff(offsets), of_rows), options)]).tolist()
    return _numbered(bounds)


def shards_of(row_bytes: NDArray[np.int64], *, shard_bytes: int) -> list[Shard]:
    """Return which rows, each of `row_bytes`, make one file: as many as `shard_bytes` hold, at least one."""
    ends = np.cumsum(row_bytes)
    bounds = [0]
    while bounds[-1] < len(ends):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + shard_bytes, side="right"))))
    return _numbered(bounds)


def _numbered(bounds: Sequence[int]) -> list[Shard]:
    return [Shard(number, len(bounds) - 1, *rows) for number, rows in enumerate(pairwise(bounds))]


def export_shard(
    out: Path,
    *,
    name: str,
    shard: Shard,
    index: Path,
    offsets: Path,
    origins: Sequence[RunFiles],
    options: Options,
) -> ShardResult:
    """Write one shard of the rows of `index` and `offsets`; files are named beside `out`."""
    made = format_of(name)
    bounded = of_documents if options.keys.get("boundaries") == "document" else lambda block: block
    row_offsets = np.load(offsets)[shard.first : shard.last + 1]
    blocks = read_rows(np.load(index), row_offsets, origins, wanted=made.wanted)
    rows = ((bounded(block), texts) if made.wanted == "texts" else bounded(block) for block, texts in blocks)
    written = made.write(out, rows, replace(options, shard=shard.number, shards=shard.total))
    if not isinstance(written, made.result):
        raise FORMATS.broken(name, f"returns {written!r:.80} from write, which must be its {made.result.__name__}")
    return written


def close_export(out: Path, *, name: str, shards: Sequence[ShardResult]) -> TaskResult:
    """Write the files that a format has once for all shards, from what `write` returned for each of them."""
    close = format_of(name).close
    if close is not None:
        close(out.parent, shards)
    return TaskResult()


def _domains(index: NDArray[Any], origins: Sequence[RunFiles]) -> list[str]:
    """Return the domain of every sequence of a SEQUENCE_INDEX."""
    domains = np.empty(len(index), object)
    for number, origin in enumerate(origins):
        places = np.flatnonzero(index["run"] == number)
        for block_places in np.array_split(places, -(-len(places) // _SEQUENCES_HELD) or 1):
            if not len(block_places):  # a split that holds none of this run
                continue
            lists = [_table(index[block_places], origin).column(name).combine_chunks() for name in ("chunk_id", "role")]
            chunk_ids, roles = (column.values.to_numpy() for column in lists)
            domains[block_places] = domains_of(chunk_ids, roles, lists[0].offsets.to_numpy(), origin.corpus)
    as_list: list[str] = domains.tolist()
    return as_list


def read_rows(
    index: NDArray[Any],
    offsets: NDArray[np.int64],
    origins: Sequence[RunFiles],
    *,
    wanted: Literal["ids", "domains", "spans", "texts"],
) -> Iterator[tuple[Resolved, list[str]]]:
    """Yield rows of sequences, index[offsets[i]:offsets[i + 1]] each (SEQUENCE_INDEX), in blocks of about eight
    million tokens, with the texts of all spans of the block where `wanted` is "texts".

    What is not `wanted` is -1 or empty.
    """
    ends = np.concatenate([[0], np.cumsum(index["length"])])[offsets]  # (rows + 1,) in tokens
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_TOKENS, side="right")) - 1)
        sequences = index[offsets[first] : offsets[last]]
        runs = sequences["run"]
        of_runs, texts_of_runs = {}, {}
        for run in np.unique(runs).tolist():
            origin = origins[run]
            table, columns = _table(sequences[runs == run], origin), "spans" if wanted == "texts" else wanted
            of_runs[run] = resolve_table(table, origin, wanted=columns)
            if wanted == "texts":
                texts_of_runs[run] = span_texts(
                    of_runs[run], text_of=origin.corpus.texts, special_text=origin.special_texts
                )
        order = _order(runs)
        texts = [
            text
            for run, start, stop in (order if wanted == "texts" else ())
            for text in texts_of_runs[run][slice(*of_runs[run].span_offsets[[start, stop]])]
        ]
        if len(of_runs) == 1:
            (block,) = of_runs.values()
        else:
            block = joined([sliced(of_runs[run], start, stop) for run, start, stop in order])
        yield packed(block, offsets[first : last + 1] - offsets[first]), texts
        first = last


def _order(runs: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return which sequences of which run, counted run by run, stand one after the other."""
    seen: Counter[int] = Counter()
    order = []
    for run_spans in np.split(runs, np.flatnonzero(np.diff(runs)) + 1):
        run, first = int(run_spans[0]), seen[int(run_spans[0])]
        seen[run] += len(run_spans)
        order.append((run, first, seen[run]))
    return order


def _table(sequences: NDArray[Any], origin: RunFiles) -> pa.Table:
    """Return the SEQUENCES of one run that an index names; each stretch of one file is read at once."""
    batches: list[pa.RecordBatch] = []
    for part in np.split(sequences, np.flatnonzero(np.diff(sequences["part"])) + 1):
        with pa.ipc.open_file(pa.memory_map(str(origin.sequences[part["part"][0]]))) as reader:
            batches += [reader.get_batch(place) for place in part["place"].tolist()]
    return pa.Table.from_batches(batches)
