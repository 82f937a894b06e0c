"""ICLM's graph and walk, measured: seconds and peak memory for growing numbers of documents, after the search.

In:  numbers of documents. Their neighbours and cosines are random: no search, and no cluster in the graph, so the walk reads
     memory in the worst order.
Out: a Markdown table. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from measure import measure
from nextlong.methods import iclm
from nextlong.methods.base import CorpusArrays, DraftRequest, Neighbours

OPTIONS = iclm.Iclm()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--documents", type=int, nargs="+", default=[50_000, 100_000, 200_000, 400_000]
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(walk(options.one)))
        return 0
    print("| documents | graph and walk | peak memory |\n|---:|---:|---:|")
    for documents in options.documents:
        taken = measure([sys.executable, __file__, "--one", str(documents)])
        if taken.rc:
            print(taken.stderr, file=sys.stderr)
            return 1
        seconds = json.loads(taken.stdout)
        print(
            f"| {documents:,} | {seconds:.1f} s | {taken.peak_mb:,.0f} MB {taken.memory} |",
            flush=True,
        )
    return 0


def walk(documents: int) -> float:
    """Make random neighbours; return the processor seconds from them to the drafts."""
    draw = np.random.default_rng(0)
    count = iclm.METHOD.neighbours(OPTIONS)
    neighbours = draw.integers(documents - 1, size=(documents, count))
    neighbours += (
        neighbours >= np.arange(documents)[:, None]
    )  # no document is its own neighbour
    cosines = -np.sort(
        -0.9 * draw.random((documents, count), np.float32), axis=1
    )  # below `max_similarity`
    tokens = draw.integers(100, 2_000, size=documents)
    corpus = CorpusArrays(
        content_hashes=draw.integers(2**63, size=documents, dtype=np.uint64),
        tokens=tokens,
        chunk_offsets=np.arange(documents + 1),
        chunk_tokens=tokens,
        neighbours=Neighbours(
            queries=np.arange(documents),
            offsets=np.arange(documents + 1) * count,
            documents=neighbours.ravel(),
            cosines=cosines.ravel(),
        ),
    )
    start = time.process_time()
    drafted = iclm.METHOD.draft(
        corpus, OPTIONS, DraftRequest(target_tokens=131_072, sequences=None, seed=0)
    )
    seconds = time.process_time() - start
    assert drafted.drafts
    return seconds


if __name__ == "__main__":
    sys.exit(main())
