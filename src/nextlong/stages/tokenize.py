"""Tokenize: the chunks that drafts refer to, once each.

In:  DOCUMENTS and CHUNKS of one shard, the sorted chunk rows wanted of it, a tokenizer.json.
Out: TOKENS: flat ids (uint32) and offsets (int64, one more than chunks), both memory-mappable `.npy`; ids of the i-th
wanted row are ids[offsets[i]:offsets[i + 1]].
No special tokens are added; composing does that. A special token's name inside the corpus' text becomes that token, as
the tokenizer itself has it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nextlong.stages.chunk import iter_chunk_texts
from nextlong.stages.fast_bpe import TextEncoder

_NPY_HEADER_BYTES = 128


def tokenize_shard(out: Path, *, documents: Path, chunks: Path, rows: Path, tokenizer: Path) -> dict[str, Any]:
    """Encode the chunks in `rows` (.npy, sorted int64, shape (n,)) into `{out}.ids.npy` and `{out}.offsets.npy`.

    Returns the counts chunks, tokens, chars, fallback_chunks (left to the reference tokenizer) and mismatches (1 if the
    fast engine was caught in a difference; this shard was then written anew by the reference).
    """
    encoder = _encoder(tokenizer)
    engine = encoder.engine
    counts = _write_tokens(out, documents=documents, chunks=chunks, rows=rows, encoder=encoder)
    if encoder.engine != engine:
        counts = _write_tokens(out, documents=documents, chunks=chunks, rows=rows, encoder=encoder) | {"mismatches": 1}
    return counts


@lru_cache(maxsize=2)
def _encoder(tokenizer: Path) -> TextEncoder:
    return TextEncoder.from_file(tokenizer)


def _write_tokens(out: Path, *, documents: Path, chunks: Path, rows: Path, encoder: TextEncoder) -> dict[str, Any]:
    fallbacks_before = encoder.fallback_texts
    tokens = chars = 0
    all_lengths = [np.zeros(1, np.int64)]
    with open(f"{out}.ids.npy", "wb") as sink:
        _write_npy_header(sink, np.dtype(np.uint32), 0)
        for batch in iter_chunk_texts(documents, chunks, np.load(rows)):
            ids, lengths = encoder.encode_batch(batch.texts)
            sink.write(ids.data)
            all_lengths.append(lengths)
            tokens += len(ids)
            chars += sum(map(len, batch.texts))
        sink.seek(0)
        _write_npy_header(sink, np.dtype(np.uint32), tokens)
    offsets = np.cumsum(np.concatenate(all_lengths))
    np.save(f"{out}.offsets.npy", offsets)
    return {
        "chunks": len(offsets) - 1,
        "tokens": tokens,
        "chars": chars,
        "fallback_chunks": encoder.fallback_texts - fallbacks_before,
        "mismatches": 0,
    }


def _write_npy_header(sink: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    """Write the header of a flat `.npy` (format 1.0), always 128 bytes: the row count can be put in at the end."""
    fields = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows},), }}"
    sink.write(b"\x93NUMPY\x01\x00" + (_NPY_HEADER_BYTES - 10).to_bytes(2, "little"))
    sink.write(fields.ljust(_NPY_HEADER_BYTES - 11).encode("ascii") + b"\n")
