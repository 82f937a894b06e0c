"""Tokenize: the chunks that drafts refer to, once each.

In:  DOCUMENTS and CHUNKS of shards, the sorted chunk rows wanted of each, a tokenizer.json, TOKENS of earlier drafts.
Out: TOKENS, a shard: flat ids (uint32) and offsets (int64, one more than chunks), both memory-mappable `.npy`; ids of the i-th
wanted row are ids[offsets[i]:offsets[i + 1]].
No special tokens are added; composing does that. A special token's name inside the corpus' text is text.
Rows that earlier drafts of the same run wanted are copied: another length or method costs what it asks for anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.lookup import count_chunks, iter_chunk_texts, read_chunks, write_header
from nextlong.artifacts.results import ReferencedChunksResult, TokensResult
from nextlong.sequences.encode import Engine, TextEncoder, kept_encoder

Known = tuple[Path, Path, Path]  # rows, offsets and ids of this shard

_COPIED_ROWS = 4096  # at a time


class Wanted(NamedTuple):
    """A shard, the rows wanted of it (.npy, sorted int64, shape (n,)), and what earlier drafts have of it."""

    shard: int
    documents: Path
    chunks: Path
    rows: Path
    known: Sequence[Known] = ()


def tokenize_shards(out: Path, *, wanted: Sequence[Wanted], tokenizer: Path, engine: Engine) -> TokensResult:
    """Encode what is wanted of shards into `{out}.{shard}.ids.npy` and `{out}.{shard}.offsets.npy`.

    What is known is copied from there; the bytes are the same without. The files are wrong if there is a mismatch.
    """
    encoder = kept_encoder(tokenizer, engine)
    encoder.check_anew()
    new_chars = 0
    for shard in wanted:
        table, rows = read_chunks(shard.chunks, ("start", "end")), np.load(shard.rows)
        new = rows[~_are_known(rows, shard)]
        new_chars += int((table["end"][new] - table["start"][new]).sum())
    encoder.expect(new_chars)
    shards = [_tokenize_shard(Path(f"{out}.{shard.shard:05d}"), shard, encoder) for shard in wanted]
    return TokensResult(
        chunks=sum(shard.chunks for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        chars=sum(shard.chars for shard in shards),
        copied_chunks=sum(shard.copied_chunks for shard in shards),
        mismatches=encoder.mismatches,  # those of earlier tasks too, whose ids it would have to doubt
    )


def _are_known(rows: NDArray[np.int64], shard: Wanted) -> NDArray[np.bool_]:
    is_known = np.zeros(len(rows), bool)
    for known_rows, _, _ in shard.known:
        is_known |= np.isin(rows, np.load(known_rows), assume_unique=True)
    return is_known


def _tokenize_shard(out: Path, shard: Wanted, encoder: TextEncoder) -> TokensResult:
    rows = np.load(shard.rows)
    is_known = _are_known(rows, shard)
    if is_known.any():
        _write_merged(out, rows, is_known, shard=shard, encoder=encoder)
    else:
        _write_encoded(out, rows, shard=shard, encoder=encoder)
    table = read_chunks(shard.chunks)
    return TokensResult(
        chunks=len(rows),
        tokens=int(np.load(f"{out}.offsets.npy", mmap_mode="r")[-1]),
        chars=int((table["end"][rows] - table["start"][rows]).sum()),
        copied_chunks=int(is_known.sum()),
        mismatches=0,
    )


def _write_encoded(out: Path, rows: NDArray[np.int64], *, shard: Wanted, encoder: TextEncoder) -> None:
    all_lengths = [np.zeros(1, np.int64)]
    tokens = 0
    with open(f"{out}.ids.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), 0)
        for batch in iter_chunk_texts(shard.documents, shard.chunks, rows):
            ids, lengths = encoder.encode_batch(batch.texts)
            sink.write(ids.data)
            all_lengths.append(lengths)
            tokens += len(ids)
        sink.seek(0)
        write_header(sink, np.dtype(np.uint32), tokens)
    np.save(f"{out}.offsets.npy", np.cumsum(np.concatenate(all_lengths)))


def _write_merged(
    out: Path,
    wanted: NDArray[np.int64],
    is_known: NDArray[np.bool_],
    *,
    shard: Wanted,
    encoder: TextEncoder,
) -> None:
    """Encode the rows that are not known beside `out`, then write all of them in order."""
    new = out.with_name(f"{out.name}.new")
    new_files = tuple(new.with_name(f"{new.name}.{name}.npy") for name in ("rows", "offsets", "ids"))
    np.save(new_files[0], wanted[~is_known])
    _write_encoded(new, wanted[~is_known], shard=shard, encoder=encoder)
    _write_copied(out, wanted, sources=[*shard.known, new_files])
    for path in new_files:
        path.unlink()


def _write_copied(out: Path, wanted: NDArray[np.int64], *, sources: Sequence[tuple[Path, ...]]) -> None:
    """Write TOKENS of the wanted rows, each of which some source has."""
    # Of each wanted row, (n,) each: the number of the source that has it, and where its ids begin there and how many there are.
    origin, starts, lengths = (np.zeros(len(wanted), np.int64) for _ in range(3))
    all_ids = []
    for number, (rows_path, offsets_path, ids_path) in enumerate(sources):
        rows, offsets = np.load(rows_path), np.load(offsets_path, mmap_mode="r")
        here = np.flatnonzero(np.isin(wanted, rows, assume_unique=True))
        places = np.searchsorted(rows, wanted[here])
        origin[here], starts[here], lengths[here] = number, offsets[places], offsets[places + 1] - offsets[places]
        all_ids.append(np.load(ids_path, mmap_mode="r"))
    with open(f"{out}.ids.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), int(lengths.sum()))
        for first in range(0, len(wanted), _COPIED_ROWS):
            block = (column[first : first + _COPIED_ROWS].tolist() for column in (origin, starts, lengths))
            pieces = [all_ids[number][start : start + length] for number, start, length in zip(*block, strict=True)]
            sink.write(np.concatenate(pieces).data)
    np.save(f"{out}.offsets.npy", np.cumsum(np.concatenate([np.zeros(1, np.int64), lengths])))


def list_referenced_chunks(
    out: Path, *, drafts: Sequence[Path], chunks: Sequence[Path], limit: int | None
) -> ReferencedChunksResult:
    """Choose the first `limit` drafts and list the chunks they name; writes `{out}.{shard}.rows.npy`, sorted, per shard.

    Memory: one byte a chunk.
    """
    starts = np.cumsum([0, *map(count_chunks, chunks)])  # of each shard's chunks among those of all
    named = np.zeros(starts[-1], np.bool_)  # whether a draft names the chunk, shard after shard
    take, left = [], limit
    for path in drafts:
        taken = 0
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches if left is None else min(left, reader.num_record_batches)):
                ids = reader.get_batch(number).column("chunk_id").values.to_numpy()
                named[starts[schemas.shard_of(ids)] + schemas.row_of(ids)] = True
                taken += 1
        take.append(taken)
        left = None if left is None else left - taken
    for shard, (first, last) in enumerate(pairwise(starts.tolist())):
        np.save(f"{out}.{shard:05d}.rows.npy", np.flatnonzero(named[first:last]))
    return ReferencedChunksResult(take=tuple(take), drafts=sum(take), chunks=int(np.count_nonzero(named)))
