"""Screening, measured: how long a draft takes to find the near-duplicates among its candidates, by this tree and by another.

In:  a finished run of the method `nextlong`, and with --baseline the folder `src` of another checkout of nextlong.
Out: a Markdown table: processor seconds a draft, and whether both judge all candidates alike (exit code 1 if not).

What is judged is what `--drafts` random drafts of the run hold: the runs of words of
their candidates and of their meta-documents, read once and given to both. They take
turns, `--repeats` times; the least of each is shown, so that a busy machine shows less.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

import nextlong
from nextlong.artifacts.results import DraftFiles
from nextlong.retrieval.near_duplicates.rule import find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    Shingles,
    WeightsFiles,
    documents_of,
    shingle_store,
)
from nextlong.schemas import META, NEGATIVE


def main() -> int:
    """Print the table, or judge for one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--baseline",
        type=Path,
        help="the folder src of another checkout, such as one from before",
    )
    parser.add_argument("--drafts", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--judge",
        action="store_true",
        help="time what is stored in the file that `run` names",
    )
    options = parser.parse_args()
    if options.judge:
        return judge(options.run)
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "drafts.pickle"
        candidates, runs = store(nextlong.open(options.run), options.drafts, stored)
        trees = {"this tree": Path(nextlong.__file__).parent.parent}
        if options.baseline is not None:
            trees = {"baseline": options.baseline, **trees}
        timed: dict[str, list[tuple[float, str]]] = {name: [] for name in trees}
        for _ in range(options.repeats):
            for name, tree in trees.items():
                timed[name].append(judged(tree, stored))
    print(
        f"{options.drafts} drafts of {candidates:,.0f} candidates and {runs:,.0f} runs of words each, one core:\n"
    )
    print("| program | processor time a draft | of the baseline |\n|---|---:|---:|")
    least = {
        name: min(seconds for seconds, _ in found) for name, found in timed.items()
    }
    for name, seconds in least.items():
        print(
            f"| {name} | {1e3 * seconds / options.drafts:.1f} ms | {seconds / next(iter(least.values())):.2f}× |"
        )
    alike = len({said for found in timed.values() for _, said in found}) == 1
    print(f"\njudged alike: {'yes' if alike else 'NO'}")
    return 0 if alike else 1


def store(run: Any, count: int, path: Path) -> tuple[float, float]:
    """Store what `count` random drafts compare; return how many candidates and runs each has on average."""
    shingles = shingle_store(run.steps)
    weights = np.load(WeightsFiles.of(run.steps).weights)
    rows = []
    for file in DraftFiles.of(run.steps).drafts:
        with pa.ipc.open_file(pa.memory_map(str(file))) as reader:
            rows += [
                reader.get_batch(number) for number in range(reader.num_record_batches)
            ]
    drafts: list[tuple[Any, ...]] = []
    for number in np.random.default_rng(0).permutation(len(rows))[:count].tolist():
        chunks, roles = (
            rows[number].column(name).values.to_numpy() for name in ("chunk_id", "role")
        )
        document = documents_of([run.corpus.texts(chunks[roles == META]).tolist()])[0]
        drafts.append((*shingles.of(np.unique(chunks[roles == NEGATIVE])), *document))
    threshold = run.recipe.mine.near_duplicates_for(run.recipe.compose.negatives)
    path.write_bytes(pickle.dumps((weights, threshold, drafts)))
    sizes = [(len(offsets) - 1, len(hashes)) for hashes, offsets, *_ in drafts]
    return float(np.mean([size[0] for size in sizes])), float(
        np.mean([size[1] for size in sizes])
    )


def judged(tree: Path, stored: Path) -> tuple[float, str]:
    """Return the processor seconds that a tree takes, and a hash of what it finds."""
    told = subprocess.run(
        [sys.executable, __file__, str(stored), "--judge"],
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return float(told[0]), told[1]


def judge(stored: Path) -> int:
    """Judge what is stored, with the nextlong that is on the path; print seconds and a hash of what is found."""
    weights, threshold, drafts = pickle.loads(stored.read_bytes())
    seconds, state = 0.0, xxhash.xxh3_128()
    for hashes, offsets, runs, wholes in drafts:
        given = Shingles(hashes, offsets), ComparedDocument(runs, wholes)
        start = time.process_time()
        found = find_near_duplicates(
            given[0], document=given[1], weights=weights, threshold=threshold
        )
        seconds += time.process_time() - start
        for column in found:
            state.update(np.ascontiguousarray(column).tobytes())
    print(seconds, state.hexdigest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
