"""SequenceDataset, measured: tokens a second from a warm page cache in one process, by the columns that are asked for.

In:  a finished run (best with sequences of 131,072 tokens).
Out: a table on standard output: tokens/s, and how many times as long as a plain copy of as many ids.

    python bench/sequence_dataset.py RUN [--pack 524288] [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from nextlong.torch import COLUMNS, SequenceDataset

ASKED = (
    ("input_ids",),
    ("input_ids", "labels"),
    ("input_ids", "labels", "position_ids"),
    COLUMNS,
)


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    began = time.perf_counter()
    datasets = [
        SequenceDataset(options.run, pack=options.pack, columns=columns)
        for columns in ASKED
    ]
    opened = (time.perf_counter() - began) / len(datasets)
    rows = len(datasets[0])
    tokens = sum(int(datasets[0].rows.lengths(row).sum()) for row in range(rows))
    print(
        f"{rows} rows, {tokens:,} tokens; opened in {opened:.3f} s; medians of {options.repeats} passes\n"
    )
    source = np.zeros(tokens // rows, np.uint32)
    copied = _median(
        lambda: [source.astype(np.int64) for _ in range(rows)], options.repeats
    )
    print("| columns | million tokens/s | times a plain copy |\n|---|---:|---:|")
    print(f"| a plain copy of uint32 to int64 | {tokens / copied / 1e6:.0f} | 1.0 |")
    for columns, dataset in zip(ASKED, datasets, strict=True):
        taken = _median(partial(_read_all, dataset, rows), options.repeats)
        print(
            f"| {', '.join(columns)} | {tokens / taken / 1e6:.0f} | {taken / copied:.1f} |"
        )


def _read_all(dataset: SequenceDataset, rows: int) -> None:
    for row in range(rows):
        dataset[row]


def _median(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of `work`, after one pass that warms the page cache."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--pack",
        type=int,
        metavar="TOKENS",
        help="pack sequences into rows of this many tokens",
    )
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
