"""Tokenize: the chunks that drafts refer to, once each.

In:  DOCUMENTS and CHUNKS of one shard, the sorted chunk rows wanted of it, a tokenizer.json, TOKENS of earlier drafts.
Out: TOKENS: flat ids (uint32) and offsets (int64, one more than chunks), both memory-mappable `.npy`; ids of the i-th
wanted row are ids[offsets[i]:offsets[i + 1]].
No special tokens are added; composing does that. A special token's name inside the corpus' text is text.
Rows that earlier drafts of the same run wanted are copied: another length or method costs what it asks for anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.chunks import iter_chunk_texts, read_chunks
from nextlong.artefacts.flat_npy import write_header
from nextlong.results import TokensResult
from nextlong.tokens.encode import TextEncoder

Engine = Literal["auto", "reference"]
Known = tuple[Path, Path, Path]  # rows, offsets and ids of this shard

_COPIED_ROWS = 4096  # at a time


def tokenize_shard(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    rows: Path,
    tokenizer: Path,
    engine: Engine = "auto",
    known: Sequence[Known] = (),
) -> TokensResult:
    """Encode the chunks in `rows` (.npy, sorted int64, shape (n,)) into `{out}.ids.npy` and `{out}.offsets.npy`.

    Rows of `known` are copied from there; the bytes are the same without. The files are wrong if there is a mismatch.
    """
    wanted = np.load(rows)
    is_known = np.zeros(len(wanted), bool)
    for known_rows, _, _ in known:
        is_known |= np.isin(wanted, np.load(known_rows), assume_unique=True)
    encoder = _encoder(tokenizer, engine)
    encoder.count_anew()
    if is_known.any():
        _write_merged(out, wanted, is_known, documents=documents, chunks=chunks, encoder=encoder, known=known)
    else:
        _write_encoded(out, wanted, documents=documents, chunks=chunks, encoder=encoder)
    table = read_chunks(chunks)
    return TokensResult(
        chunks=len(wanted),
        tokens=int(np.load(f"{out}.offsets.npy", mmap_mode="r")[-1]),
        chars=int((table["end"][wanted] - table["start"][wanted]).sum()),
        copied_chunks=int(is_known.sum()),
        mismatches=encoder.mismatches,
    )


@lru_cache(maxsize=2)
def _encoder(tokenizer: Path, engine: Engine) -> TextEncoder:
    return TextEncoder.from_file(tokenizer, engine=engine)


def _write_encoded(out: Path, rows: NDArray[np.int64], *, documents: Path, chunks: Path, encoder: TextEncoder) -> None:
    all_lengths = [np.zeros(1, np.int64)]
    tokens = 0
    with open(f"{out}.ids.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), 0)
        for batch in iter_chunk_texts(documents, chunks, rows):
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
    documents: Path,
    chunks: Path,
    encoder: TextEncoder,
    known: Sequence[Known],
) -> None:
    """Encode the rows that are not known beside `out`, then write all of them in order."""
    new = out.with_name(f"{out.name}.new")
    new_files = tuple(new.with_name(f"{new.name}.{name}.npy") for name in ("rows", "offsets", "ids"))
    np.save(new_files[0], wanted[~is_known])
    _write_encoded(new, wanted[~is_known], documents=documents, chunks=chunks, encoder=encoder)
    _write_copied(out, wanted, sources=[*known, new_files])
    for path in new_files:
        path.unlink()


def _write_copied(out: Path, wanted: NDArray[np.int64], *, sources: Sequence[tuple[Path, ...]]) -> None:
    """Write TOKENS of the wanted rows, each of which some source has."""
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
