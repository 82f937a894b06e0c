"""Invented corpora: run a thousand of them through the pipeline, and verify each; one line for each that fails.

In:  how many, and the first seed. Out: the seeds whose runs `verify` finds a breach in, with the breaches, and the counts.
The exit code is 1 if there is any. Tests run the first few of the same corpora.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.invented import (
    breaches,
    counted,
    recipe_of,
    run_and_verify,
    write_tokenizer,
)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    started, totals = time.monotonic(), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(options.workers) as pool,
    ):
        tokenizer = write_tokenizer(Path(name) / "tokenizer.json")
        seeds = range(options.first, options.first + options.seeds)
        for seed, (checked, wrong) in zip(
            seeds, pool.map(partial(tried, Path(name), tokenizer), seeds), strict=True
        ):
            totals.update(
                {"corpora": 1, "without a sequence": not checked, "failed": bool(wrong)}
                | checked
            )
            for problem in wrong:
                print(f"seed {seed}: {problem}", flush=True)
    print(
        ", ".join(f"{key} {count:,}" for key, count in totals.items()),
        f"in {time.monotonic() - started:.0f} s",
    )
    sys.exit(bool(totals["failed"]))


def tried(folder: Path, tokenizer: Path, seed: int) -> tuple[dict[str, int], list[str]]:
    """Return how many negatives, gaps and cuts were checked in the run of a seed, and what was found wrong."""
    own = folder / str(seed)
    try:
        outcomes = run_and_verify(recipe_of(seed, own, tokenizer))
    except Exception as error:
        return {}, [f"{type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return counted(outcomes) if outcomes else {}, breaches(outcomes)


if __name__ == "__main__":
    main()
