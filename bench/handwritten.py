"""The baselines: what a competent engineer writes in an afternoon from the paper's Algorithm 1 (arXiv 2501.12766), and in a day.

In:  JSONL(.zst) files with a `text` field, a tokenizer.json.
Out: OUT/sequences.parquet with `input_ids`, each exactly T tokens; one JSON line with the seconds of each stage.
One process, everything in memory, every library at its defaults: scikit-learn's TF-IDF and SVD fitted on every chunk,
one FAISS call and one call of the tokenizer a document. Nothing here is slow on purpose. `--tuned` is the same script after
its author looked at a profile: 50,000 terms in float32, and FAISS and the tokenizer called for 32 documents at once, on every core.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from tokenizers import Tokenizer

MAX_CHARS = 2048  # s
DRAFT_FACTOR = 1.5  # w
CANDIDATES = 512
DIMENSIONS = 256
SEED = 0
TUNED_TERMS = 50_000
TUNED_BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FILE")
    parser.add_argument("--target-tokens", type=int, default=131_072)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seconds = dict.fromkeys(
        ("read", "tfidf", "svd", "search", "tokenize", "write"), 0.0
    )

    with timed(seconds, "read"):
        documents = [text for file in options.corpus for text in read(file)]
        chunks: list[str] = []
        first_chunk = [0]
        for text in documents:
            chunks.extend(chunk(text))
            first_chunk.append(len(chunks))
    with timed(seconds, "tfidf"):
        tuning = (
            {"max_features": TUNED_TERMS, "dtype": np.float32} if options.tuned else {}
        )
        terms = TfidfVectorizer(**tuning).fit_transform(chunks)
    with timed(seconds, "svd"):
        svd = TruncatedSVD(DIMENSIONS, random_state=SEED)
        vectors = normalize(svd.fit_transform(terms)).astype(np.float32)
    with timed(seconds, "search"):
        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(vectors)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    rng = np.random.default_rng(SEED)
    with timed(seconds, "tokenize"):
        sample = [documents[i] for i in rng.permutation(len(documents))[:200]]
        tokens = sum(
            len(encoding)
            for encoding in tokenizer.encode_batch(sample, add_special_tokens=False)
        )
        chars_per_token = sum(map(len, sample)) / tokens
    draft_chars = options.target_tokens * chars_per_token * DRAFT_FACTOR

    chunk_counts = np.diff(first_chunk)
    queue = rng.permutation(np.flatnonzero(chunk_counts >= 2)).tolist()
    kept: list[list[int]] = []
    dropped = 0
    batch = TUNED_BATCH if options.tuned else 1
    while queue and len(kept) < options.sequences:
        drawn = [
            queue.pop()
            for _ in range(min(batch, len(queue), options.sequences - len(kept)))
        ]
        with timed(seconds, "search"):
            ranges = [
                (int(first_chunk[document]), int(first_chunk[document + 1]))
                for document in drawn
            ]
            _, neighbours = index.search(
                np.concatenate([vectors[first:last] for first, last in ranges]),
                CANDIDATES,
            )
            texts = []
            for first, last in ranges:
                texts.append(
                    draft(
                        first,
                        last,
                        chunks,
                        neighbours[: last - first],
                        draft_chars=draft_chars,
                    )
                )
                neighbours = neighbours[last - first :]
        with timed(seconds, "tokenize"):
            encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        for encoding in encodings:
            if len(encoding.ids) < options.target_tokens:
                dropped += 1
            else:
                kept.append(encoding.ids[: options.target_tokens])
    with timed(seconds, "write"):
        table = pa.table({"input_ids": pa.array(kept, pa.list_(pa.int32()))})
        pq.write_table(table, options.out / "sequences.parquet")
    report = {
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "sequences": len(kept),
        "tokens": sum(map(len, kept)),
        "dropped": dropped,
        "documents": len(documents),
        "chunks": len(chunks),
        "chars_per_token": round(chars_per_token, 3),
    }
    print(json.dumps(report))


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the wall seconds of the block to `seconds[stage]`."""
    start = time.perf_counter()
    yield
    seconds[stage] += time.perf_counter() - start


def read(file: Path) -> Iterator[str]:
    """Yield the text of each document in a JSONL file, plain or zstd."""
    opened = (
        zstandard.open(file, "rt", encoding="utf-8")
        if file.suffix == ".zst"
        else file.open(encoding="utf-8")
    )
    with opened as lines:
        for line in lines:
            yield json.loads(line)["text"]


def chunk(text: str) -> list[str]:
    """Cut a document at newlines into chunks of up to MAX_CHARS; a longer paragraph stays whole, as in the paper."""
    chunks: list[str] = []
    paragraphs: list[str] = []
    chars = 0
    for paragraph in text.split("\n"):
        if paragraphs and chars + len(paragraph) > MAX_CHARS:
            chunks.append("\n".join(paragraphs))
            paragraphs, chars = [], 0
        paragraphs.append(paragraph)
        chars += len(paragraph)
    chunks.append("\n".join(paragraphs))
    return chunks


def draft(
    start: int,
    end: int,
    chunks: list[str],
    neighbours: NDArray[np.int64],
    *,
    draft_chars: float,
) -> str:
    """Return the text of one sequence: chunks [start, end) of a document, each followed by its k nearest others."""
    meta_chunks = end - start
    document_chars = sum(map(len, chunks[start:end]))
    negatives = max(
        1, math.ceil((draft_chars - document_chars) / (meta_chunks * MAX_CHARS))
    )
    used = set(range(start, end))
    used.add(-1)  # FAISS pads with it where the index holds fewer vectors
    parts: list[str] = []
    for meta, nearest in zip(range(start, end), neighbours.tolist(), strict=True):
        fresh = [i for i in nearest if i not in used][:negatives]
        used.update(fresh)
        parts.append(chunks[meta])
        parts.extend(chunks[i] for i in fresh)
    return "\n".join(parts)


if __name__ == "__main__":
    main()
