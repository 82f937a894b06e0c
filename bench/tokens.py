"""MB/s a core of fastokens and of the reference, and whether their ids are the same.

    python bench/tokens.py --corpus corpus/*.jsonl.zst --tokenizer tokenizer.json other/tokenizer.json

Texts are cut at paragraphs into pieces of at most 2,048 characters. Processor time, one thread; loading apart. Exit status 1 means
that ids differ.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from nextlong.artifacts.finished import read_tokenizer
from nextlong.corpus.chunk import chunk_text
from nextlong.sequences.tokenize import TextEncoder

_BATCH = 512
_Ids = NDArray[np.signedinteger[Any]]
_ResultT = TypeVar("_ResultT")


def main() -> int:
    """Print a Markdown table, a row a tokenizer; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", type=Path, required=True)
    parser.add_argument("--tokenizer", nargs="+", type=Path, required=True)
    parser.add_argument(
        "--megabytes", type=float, default=20.0, help="of text to encode at most"
    )
    asked = parser.parse_args()
    texts = list(_limited(asked.corpus, asked.megabytes * 1e6))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} chunks, {megabytes:,.1f} MB\n")
    print(
        "| tokenizer | engine | load, s | MB/s a core | reference | ratio | chunks that differ |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
    different = 0
    for path in asked.tokenizer:
        encoder = TextEncoder(read_tokenizer(path))
        engine, load_s = _timed(partial(encoder.expect, math.inf))
        encoder.encode_batch(texts[:_BATCH])
        (ids, lengths), fast_s = _timed(partial(_encode, encoder, texts))
        reference = TextEncoder(read_tokenizer(path), engine="reference")
        (true_ids, true_lengths), reference_s = _timed(
            partial(_encode, reference, texts)
        )
        wrong = _differences(ids, lengths, true_ids, true_lengths)
        different += wrong
        print(
            f"| {path.parent.name} | {engine} | {load_s:.2f} | {megabytes / fast_s:.1f} | {megabytes / reference_s:.1f} | "
            f"{reference_s / fast_s:.1f} | {wrong} |",
            flush=True,
        )
    return int(different > 0)


def _encode(encoder: TextEncoder, texts: list[str]) -> tuple[_Ids, _Ids]:
    parts = [
        encoder.encode_batch(texts[first : first + _BATCH])
        for first in range(0, len(texts), _BATCH)
    ]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate(
        [lengths for _, lengths in parts]
    )


def _differences(ids: _Ids, lengths: _Ids, true_ids: _Ids, true_lengths: _Ids) -> int:
    own, true = (
        np.split(flat, np.cumsum(each)[:-1])
        for flat, each in ((ids, lengths), (true_ids, true_lengths))
    )
    return sum(
        not np.array_equal(first, second)
        for first, second in zip(own, true, strict=True)
    )


def _limited(paths: list[Path], most_bytes: float) -> Iterator[str]:
    read = 0
    for path in paths:
        for text in _texts(path):
            for start, end in chunk_text(
                text, max_chars=2048, length="slice", oversize="split"
            ):
                yield text[start:end]
                read += len(text[start:end].encode())
                if read >= most_bytes:
                    return


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as raw:
        lines = (
            zstandard.ZstdDecompressor().stream_reader(raw)
            if path.suffix == ".zst"
            else raw
        )
        for line in io.TextIOWrapper(lines, "utf-8"):
            yield json.loads(line)["text"]


def _timed(call: Callable[[], _ResultT]) -> tuple[_ResultT, float]:
    began = time.process_time()
    return call(), time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
