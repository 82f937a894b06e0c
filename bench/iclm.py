"""ICLM's graph and walk, measured: seconds and peak memory for growing numbers of documents, after the search.

In:  numbers of documents. Their neighbours are drawn at random, as are the cosines: no search, and no cluster in the graph,
     so the walk reads memory in the worst order.
Out: a Markdown table. Each size runs in a process of its own; bytes an edge are the growth of memory between sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from measure import measure
from nextlong.methods import iclm

NEIGHBOURS = 32  # found for each document, to have 10 left when near-duplicates fall out
K = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[50_000, 100_000, 200_000, 400_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(walk(options.one)))
        return 0
    print("| documents | edges | graph and walk | peak memory |\n|---:|---:|---:|---:|")
    for documents in options.documents:
        taken = measure([sys.executable, __file__, "--one", str(documents)])
        if taken.rc:
            print(taken.stderr, file=sys.stderr)
            return 1
        own = json.loads(taken.stdout)
        print(f"| {documents:,} | {own['edges']:,} | {own['seconds']:.1f} s | {taken.peak_mb:,.0f} MB {taken.memory} |")
    return 0


def walk(documents: int) -> dict[str, float]:
    """Draw a graph's neighbours; return its edges and the seconds from neighbours to shuffled stretches."""
    draw = np.random.default_rng(0)
    neighbours = draw.integers(documents - 1, size=(documents, NEIGHBOURS))
    neighbours += neighbours >= np.arange(documents)[:, None]  # none is its own
    cosines = -np.sort(-draw.random((documents, NEIGHBOURS), np.float32), axis=1)
    hashes = draw.integers(2**63, size=documents, dtype=np.uint64)
    chars = draw.integers(500, 8_000, size=documents)
    start = time.perf_counter()
    drafts = iclm.draft(
        neighbours, cosines, hashes, chars, drafted_chars=500_000, sequences=None, seed=0, k=K, max_similarity=0.99
    )
    seconds = time.perf_counter() - start
    assert drafts
    kept = np.ones(documents, np.bool_)
    edges = len(iclm._build_graph(neighbours, cosines, np.arange(documents), kept=kept, k=K).targets) // 2
    return {"edges": edges, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
