"""Plan, measured: what `nextlong plan` says before a run, against what the run takes.

In:  JSONL files of a corpus, one corpus an argument (a file or a folder), a tokenizer.
Out: a Markdown table: seconds and bytes, planned and real, of one worker; with `--steps` one of each corpus' steps, too.

Both are processor seconds of one process (`executor: serial`), so that a busy machine shows less; on an idle one they are what
a clock shows, and on more workers each step takes its share.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nextlong
from nextlong import pipeline
from nextlong.reading.known_files import input_files
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import page
from nextlong.report.plan.trial import Timed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--sequences", default="100")
    parser.add_argument("--target-tokens", type=int, default=32_768)
    parser.add_argument("--methods", nargs="+", default=["nextlong"])
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    print(
        "| corpus | method | plan | run | off | plan | run | off | planned in |\n|---|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for corpus in options.corpora:
        for method in options.methods:
            with tempfile.TemporaryDirectory() as folder:
                compare(corpus, method, Path(folder), options)
    return 0


def compare(corpus: Path, method: str, folder: Path, options: argparse.Namespace) -> None:
    """Plan and run one corpus; print a row."""
    plain: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "workers": 1,
        "ingest": {"sources": [{"path": str(corpus)}]},
        "tokenizer": options.tokenizer,
        "compose": {"sequences": options.sequences, "target_tokens": options.target_tokens, "method": method},
    }
    recipe = Recipe.from_dict(plain)
    files = input_files(recipe)
    steps = pipeline.route(recipe, files)
    began = time.process_time()
    ((machines, told),) = page.make(recipe, files, steps).on
    planning = time.process_time() - began
    total = plan_costs.total(steps, told, machines._replace(head_s=0.0, start_s=0.0))
    timed = Timed()
    pipeline.executor_for = lambda *_, **__: timed
    done = nextlong.pipeline.run(recipe)
    seconds = sum(timed.seconds.values())
    written = sum(step.manifest["bytes"] for step in done.values())
    assert total.seconds is not None
    print(
        f"| {corpus.name} | {method} | {total.seconds:.1f} s | {seconds:.1f} s | {total.seconds / seconds - 1:+.0%} "
        f"| {total.disk_bytes / 1e6:.0f} MB | {written / 1e6:.0f} MB | {total.disk_bytes / written - 1:+.0%} | {planning:.1f} s |",
        flush=True,
    )
    if options.steps:
        for step in steps:
            cost, taken = told[step.name], timed.seconds.get(step.name, 0.0)
            planned = cost.start_s + (cost.seconds or 0.0)
            size = done[step.name].manifest["bytes"] / 1e6
            print(
                f"  {step.name:16} {cost.start_s:6.2f} {planned:7.2f} {taken:7.2f} s {cost.disk_bytes / 1e6:8.1f} {size:8.1f} MB"
            )


if __name__ == "__main__":
    sys.exit(main())
