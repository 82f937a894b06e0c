"""Plan, measured: what `nextlong plan` says before a run, against what the run takes.

In:  JSONL files of a corpus, one corpus an argument (a file or a folder), a tokenizer.
Out: a Markdown table: what the run took, and ratios plan : run of time, memory, disk, chunks, sequences and documents of a
     sequence; what planning took, and its share of the run. With `--steps` the seconds and bytes of each step, too.

Times are processor seconds of one process (`executor: serial`), so that a busy machine shows less; on an idle one they are what
a clock shows, and on more workers each step takes its share. Importing libraries is in neither. The run is a process of its own,
and its memory the most that it held at once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nextlong
from nextlong import pipeline
from nextlong.artifacts.finished import ChunkResult, ComposeResult
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import page
from nextlong.report.plan.trial import Timed
from nextlong.retrieval.encoders.base import import_preloaded
from nextlong.runs.statistics.measure import measure

_HEADINGS = (
    "corpus", "method", "run", "time", "memory", "disk", "chunks", "sequences", "documents a sequence", "planning",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--sequences", default="100")
    parser.add_argument("--target-tokens", type=int, default=32_768)
    parser.add_argument("--methods", nargs="+", default=["nextlong"])
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    print(f"| {' | '.join(_HEADINGS)} |\n|---|---|{'---:|' * (len(_HEADINGS) - 2)}")
    for corpus in options.corpora:
        for method in options.methods:
            with tempfile.TemporaryDirectory() as folder:
                compare(corpus, method, Path(folder), options)
    return 0


def run(plain: dict[str, Any], out: Path) -> None:
    """Run a recipe in this process; write the seconds of each step and the most memory."""
    recipe, timed = Recipe.from_dict(plain), Timed()
    import_preloaded(recipe.encoder)
    pipeline.executor_for = lambda *_, **__: timed
    pipeline.run(recipe)
    memory_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out.write_text(json.dumps({"seconds": timed.seconds, "memory_bytes": memory_bytes}))


def compare(
    corpus: Path, method: str, folder: Path, options: argparse.Namespace
) -> None:
    """Plan and run one corpus; print a row."""
    plain: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "workers": 1,
        "ingest": {"sources": [{"path": str(corpus)}]},
        "tokenizer": options.tokenizer,
        "compose": {
            "sequences": options.sequences,
            "target_tokens": options.target_tokens,
            "method": method,
        },
    }
    recipe = Recipe.from_dict(plain)
    import_preloaded(recipe.encoder)  # in neither figure
    began = time.process_time()
    plan = page.plan(recipe)
    planning = time.process_time() - began
    assert plan.measured is not None
    assert plan.amounts is not None
    ((machines, told),) = plan.on
    total = plan_costs.total(plan.steps, told, machines._replace(head_s=0.0))
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=(plain, folder / "taken.json")
    )
    process.start()
    process.join()
    taken = json.loads((folder / "taken.json").read_text())
    finished = nextlong.open(recipe.run_dir)
    stats, done = measure(finished), finished.steps
    seconds = sum(taken["seconds"].values())
    written = sum(step.manifest["bytes"] for step in done.values())
    chunks = sum(part.chunks for part in done["chunk"].results(ChunkResult))
    composed = sum(part.sequences for part in done["compose"].results(ComposeResult))
    sequences = (
        composed
        if options.sequences == "all"
        else min(composed, int(options.sequences))
    )
    sequence_chars = recipe.sequence_tokens * plan.measured.tokenizing.chars_per_token
    documents = plan.measured.sample.documents_of(
        sequence_chars / plan.amounts.chunk_chars
    )
    documents *= plan.measured.trial.documents_share
    spread = stats.documents.per_sequence
    assert total.seconds is not None
    cells = (
        corpus.name,
        method,
        f"{seconds:.1f} s, {written / 1e6:.0f} MB",
        f"{total.seconds / seconds:.2f}",
        f"{total.memory_bytes / taken['memory_bytes']:.2f}",
        f"{total.disk_bytes / written:.2f}",
        f"{plan.amounts.chunks / chunks:.2f}",
        f"{plan.amounts.sequences / sequences:.2f}",
        "–" if spread is None else f"{documents / spread.mean:.2f}",
        f"{planning:.1f} s, {planning / seconds:.2f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    if options.steps:
        for step in plan.steps:
            cost, real = told[step.name], taken["seconds"].get(step.name, 0.0)
            planned = cost.start_s + (cost.seconds or 0.0)
            size = done[step.name].manifest["bytes"] / 1e6
            print(
                f"  {step.name:16} {cost.start_s:6.2f} {planned:7.2f} {real:7.2f} s {cost.disk_bytes / 1e6:8.1f} {size:8.1f} MB"
            )


if __name__ == "__main__":
    sys.exit(main())
