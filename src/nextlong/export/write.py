"""Export: write rows of sequences as files that trainers read.

In:  rows (`stages/arrangement.py`), and per run SEQUENCES (references) and what they refer to.
Out: the files of one shard in the asked format, and once all are there the format's index over them; each format is a room
under `formats/`. A row of several sequences is resolved run by run and joined, in blocks of about eight million tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.artefacts.resolve import Corpus, Cutting, SpecialIds, Wanted, domains_of, resolve_table
from nextlong.artefacts.resolved import Resolved, joined, joined_names, packed, sliced
from nextlong.artefacts.tokens import TokenStore
from nextlong.export.formats import arrow, jsonl, mds, megatron, parquet
from nextlong.tokens.tokenizer import eod_id, tokenizer_of

if TYPE_CHECKING:
    pass

Format = Literal["parquet", "arrow", "jsonl", "mds", "megatron", "torchtitan", "axolotl", "prolong"]
# The columns of those that are written as Parquet.
COLUMNS: Final[Mapping[Format, tuple[str, ...]]] = {
    "parquet": tuple(parquet.SCHEMA.names),
    "torchtitan": ("input_ids", "seq_lengths"),
    "axolotl": ("input_ids", "attention_mask", "labels"),
}
# What rows need beside their ids; looking it up costs more than copying the ids.
_WANTED: Final[Mapping[Format, Wanted]] = {
    **dict.fromkeys(("parquet", "arrow", "jsonl"), "spans"),
    **dict.fromkeys(("mds", "prolong"), "domains"),
}
_BLOCK_TOKENS = 1 << 23  # resolved at a time, 32 MB of ids: each block reads what it names of every shard
_SEQUENCES_HELD = 4096  # references of these, some hundred bytes a span


class Origin(NamedTuple):
    """What the references of one run refer to."""

    sequences: tuple[Path, ...]
    corpus: Corpus
    tokens: TokenStore
    special: SpecialIds
    tokenizer: Path
    token_chars: Path


class Options(NamedTuple):
    """The recipe's choices that shape the files; `shard_bytes` is the size limit of an MDS shard, `eod` a token of Megatron's."""

    shard_bytes: int
    row_group_bytes: int
    compression: parquet.Compression | None  # None: the format's own default
    eod: str | None
    vocab_size: int  # one more than the highest id


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
    if format == "jsonl":
        return {"rows": jsonl.write(Path(f"{out}.jsonl"), read_rows_and_texts(*asked))}
    rows = read_rows(*asked, wanted=_WANTED.get(format, "ids"))
    place = {"shard": shard.number, "shards": shard.total}
    if format == "arrow":
        return arrow.write(out, rows, **place)
    if format in ("mds", "prolong"):
        return mds.write(out, rows, **place, size_limit=options.shard_bytes, compression=_mds_compression(options))
    if format == "megatron":
        eod = None if options.eod is None else eod_id(origins[0].tokenizer, options.eod)
        return megatron.write(out, rows, **place, vocab_size=options.vocab_size, eod=eod)
    count = parquet.write(
        Path(f"{out}.parquet"),
        rows,
        columns=COLUMNS[format],
        row_group_bytes=options.row_group_bytes,
        compression=options.compression or "zstd",
    )
    return {"rows": count}


def close_export(out: Path, *, format: Format, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # noqa: A002
    """Write what stands once beside all shards of a format, from what each of them counted."""
    if format == "arrow":
        arrow.close(out.parent, shards)
    elif format in ("mds", "prolong"):
        mds.close(out.parent, shards)
    elif format == "megatron":
        megatron.close(out.parent, shards)
    return {}


def mds_shards(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin], options: Options
) -> list[Shard]:
    """Return which rows make one MDS shard by the rule of streaming's own writer, which counts the bytes of domains too."""
    ends = np.concatenate([[0], np.cumsum(index["length"])])[offsets]
    domains = _domains(index, origins)
    sizes = mds.shard_sizes(
        np.diff(ends),
        np.diff(offsets),
        [joined_names(domains[first:last]) for first, last in pairwise(offsets.tolist())],
        size_limit=options.shard_bytes,
        compression=_mds_compression(options),
    )
    bounds = np.cumsum([0, *sizes]).tolist()
    return [Shard(number, len(sizes), *own) for number, own in enumerate(pairwise(bounds))]


def _domains(index: NDArray[Any], origins: Sequence[Origin]) -> list[str]:
    """Return the domain of every sequence of a SEQUENCE_INDEX."""
    domains = np.empty(len(index), object)
    for number, origin in enumerate(origins):
        places = np.flatnonzero(index["run"] == number)
        for own in np.array_split(places, -(-len(places) // _SEQUENCES_HELD) or 1):
            if not len(own):  # a split that holds none of this run
                continue
            lists = [_table(index[own], origin).column(name).combine_chunks() for name in ("chunk_id", "role")]
            chunk_ids, roles = (column.values.to_numpy() for column in lists)
            domains[own] = domains_of(chunk_ids, roles, lists[0].offsets.to_numpy(), origin.corpus)
    found: list[str] = domains.tolist()
    return found


def _mds_compression(options: Options) -> mds.Compression:
    return "zstd" if options.compression == "zstd" else None


def read_rows(
    index: NDArray[Any],
    offsets: NDArray[np.int64],
    origins: Sequence[Origin],
    *,
    wanted: Wanted = "spans",
) -> Iterator[Resolved]:
    """Yield rows of sequences, index[offsets[i]:offsets[i + 1]] each (SEQUENCE_INDEX), in blocks of about eight million tokens.

    What is not `wanted` is -1 or empty.
    """
    for block in _blocks(index, offsets, origins, wanted=wanted):
        yield block.rows()


def read_rows_and_texts(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin]
) -> Iterator[tuple[Resolved, list[str]]]:
    """Yield the same with the text of every span."""
    for block in _blocks(index, offsets, origins, wanted="spans"):
        texts = {run: span_texts(own, origins[run]) for run, own in block.of_runs.items()}
        spans = {run: own.span_offsets for run, own in block.of_runs.items()}
        yield (
            block.rows(),
            [text for run, first, last in block.order for text in texts[run][spans[run][first] : spans[run][last]]],
        )


class _Block(NamedTuple):
    """Rows whose sequences were looked up run by run: `order` names sequences [first, last) of a run, one after the other."""

    of_runs: Mapping[int, Resolved]
    order: Sequence[tuple[int, int, int]]
    row_offsets: NDArray[np.int64]

    def rows(self) -> Resolved:
        if len(self.of_runs) == 1:
            (block,) = self.of_runs.values()
        else:
            block = joined([sliced(self.of_runs[run], first, last) for run, first, last in self.order])
        return packed(block, self.row_offsets)


def _blocks(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[Origin], *, wanted: Wanted
) -> Iterator[_Block]:
    ends = np.concatenate([[0], np.cumsum(index["length"])])[offsets]
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_TOKENS, side="right")) - 1)
        sequences = index[offsets[first] : offsets[last]]
        runs = sequences["run"]
        of_runs = {
            run: _resolve(sequences[runs == run], origins[run], wanted=wanted) for run in np.unique(runs).tolist()
        }
        yield _Block(of_runs, _order(runs), offsets[first : last + 1] - offsets[first])
        first = last


def _order(runs: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return which sequences of which run, counted run by run, stand one after the other."""
    seen: Counter[int] = Counter()
    order = []
    for own in np.split(runs, np.flatnonzero(np.diff(runs)) + 1):
        run, first = int(own[0]), seen[int(own[0])]
        seen[run] += len(own)
        order.append((run, first, seen[run]))
    return order


def _runs_of_equal(sequences: NDArray[Any], column: str) -> list[NDArray[Any]]:
    return np.split(sequences, np.flatnonzero(np.diff(sequences[column])) + 1)


def _resolve(sequences: NDArray[Any], origin: Origin, *, wanted: Wanted) -> Resolved:
    """Look up sequences of one run."""
    return resolve_table(
        _table(sequences, origin),
        origin.corpus,
        origin.tokens,
        origin.special,
        Cutting(origin.token_chars, partial(tokenizer_of, origin.tokenizer)),
        wanted=wanted,
    )


def _table(sequences: NDArray[Any], origin: Origin) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for part in _runs_of_equal(sequences, "part"):
        with pa.ipc.open_file(pa.memory_map(str(origin.sequences[part["part"][0]]))) as reader:
            batches += [reader.get_batch(place) for place in part["place"].tolist()]
    return pa.Table.from_batches(batches)


def span_texts(block: Resolved, origin: Origin) -> list[str]:
    """Return the text of every span of a block of one run."""
    special = {
        role: tokenizer_of(origin.tokenizer).decode(ids.tolist(), skip_special_tokens=False)
        for role, ids in origin.special.by_role().items()
    }
    return jsonl.span_texts(block, text_of=origin.corpus.texts, special_text=special)
