"""A thousandth of 10^9 chunks, run for real and scaled up: are the claims of docs/scale.md true?

    python bench/thousandth.py --parts corpus/part-*.jsonl --tokenizer tokenizer.json --out .bench

In:  JSONL files of a million chunks in all, as `growth.py` writes them. A quarter of the files is
     run first, then all of them; a step is scaled from the difference, so what it takes
     whatever the size is (imports, models, thresholds) counts once.
Out: the processor time of all steps at 10^9 chunks; time and memory of the steps that run as one
     task. Memory is what Python's tracemalloc counts: resident memory of a small run is mostly
     libraries and what malloc keeps. It holds blocks of constant size too, so it is rather
     too high.

A busy machine makes tasks slower than they are. So the processor time of the whole run
over the seconds of its tasks is printed, and the times at 10^9 are those seconds times
this share.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import yaml

Json = dict[str, Any]
_CLAIMED: Final = 1e9  # chunks
_SEQUENCES: Final = 200  # of all files: a thousandth of 200,000


class Variant(NamedTuple):
    """A run: its settings, the step before which it ends ("": none), and what it is for."""

    settings: tuple[str, ...] = ()
    before: str = ""
    claims: tuple[str, ...] = ()  # the steps whose memory is measured


_VARIANTS: Final[Mapping[str, Variant]] = {
    "nextlong": Variant(),
    "quest": Variant(("compose.method=quest",), "compose", ("draft",)),
    "standard": Variant(("compose.method=standard",), "compose", ("draft",)),
    "minhash": Variant(("ingest.dedup=minhash",), "chunk", ("near_duplicates",)),
}


@dataclass(frozen=True)
class Measured:
    """What a step took: its folder, seconds of its tasks, and their number."""

    folder: str
    seconds: float
    tasks: int


@dataclass(frozen=True)
class Size:
    """A run of some of the files: chunks, steps, and processor seconds per task second."""

    chunks: int
    steps: Mapping[str, Measured]
    processor_share: float


def main() -> int:
    """Print a table for each variant; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--variants", nargs="+", default=list(_VARIANTS))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    results: Json = {}
    for variant in asked.variants:
        sizes = []
        for share in (4, 1):
            files = sorted(asked.parts)[: len(asked.parts) // share]
            sizes.append(run_of(asked, files, variant=variant, share=share))
        claims = {
            name: traced_bytes(asked, variant, sizes[1].steps[name])
            for name in _VARIANTS[variant].claims
        }
        lines, results[variant] = table(*sizes, claims=claims)
        print(f"\n{variant}\n\n" + "\n".join(lines), flush=True)
        (asked.out / "thousandth.json").write_text(json.dumps(results, indent=1))
    return 0


def run_of(
    asked: argparse.Namespace, files: Sequence[Path], *, variant: str, share: int
) -> Size:
    """Run the recipe on the files; return what its steps took."""
    run = asked.out / "thousandth-run" / str(share)
    if variant == "nextlong":  # the others share its first steps
        shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    recipe = {
        "run_dir": str(run),
        "ingest": {"sources": [{"path": str(path.absolute())} for path in files]},
        "tokenizer": {"source": asked.tokenizer},
        "search": {"index": "IVF,Flat"},
        "compose": {"sequences": _SEQUENCES // share, "target_tokens": 131_072},
        "workers": asked.workers,
    }
    path = run.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "nextlong", "run", str(path)]
    for setting in _VARIANTS[variant].settings:
        command += ["--set", setting]
    if _VARIANTS[variant].before:
        command += ["--before", _VARIANTS[variant].before]
    finished = {path.name for path in run.glob("[0-9][0-9]-*")}
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors
        ) as process:
            processor_s = processor_seconds(process)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(errors.read().decode(errors="replace")[-2000:])
    folders = sorted(path.parent for path in run.glob("[0-9][0-9]-*/manifest.json"))
    written = [measured(folder) for folder in folders if folder.name not in finished]
    steps = {step.folder.split("-")[1]: step for step in written}
    (chunked,) = run.glob("[0-9][0-9]-chunk-*/manifest.json")
    parts = json.loads(chunked.read_text())["parts"]
    chunks = sum(part["counts"]["chunks"] for part in parts)
    task_s = sum(step.seconds for step in steps.values())
    print(
        f"{variant}, 1/{share}: {chunks:,} chunks, {task_s:.0f} s of tasks, "
        f"{processor_s:.0f} s of processors",
        flush=True,
    )
    return Size(chunks, steps, processor_s / task_s)


def processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return the processor seconds of it and of its descendants."""
    root = psutil.Process(process.pid)
    seconds: dict[int, float] = {}
    while process.poll() is None:
        with suppress(psutil.Error):  # one may end between listing and reading
            for one in [root, *root.children(recursive=True)]:
                times = one.cpu_times()
                seconds[one.pid] = times.user + times.system
        time.sleep(0.2)
    return sum(seconds.values())


def measured(folder: Path) -> Measured:
    """Return what a step took, from its manifest."""
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    return Measured(
        folder=folder.name,
        seconds=sum(part["seconds"] for part in parts),
        tasks=len(parts),
    )


# One task again, in one process, with its memory counted.
_TRACE: Final = """
import json, sys, tracemalloc
import faiss, pandas, pyarrow.parquet, scipy.sparse
import nextlong.pipeline
from nextlong.cli.main import main
from nextlong.engine import runner
run_task = runner._run_task
def traced(*arguments):
    tracemalloc.start()
    part = run_task(*arguments)
    print(json.dumps(tracemalloc.get_traced_memory()[1]))
    return part
runner._run_task = traced
main(["run", *sys.argv[1:], "--set", "executor=serial"])
"""


def traced_bytes(asked: argparse.Namespace, variant: str, step: Measured) -> int:
    """Run a step of one task again; return the most bytes that it held."""
    run = asked.out / "thousandth-run" / "1"
    shutil.rmtree(run / step.folder)
    name = step.folder.split("-")[1]
    command = [sys.executable, "-c", _TRACE, str(run.with_suffix(".yaml"))]
    for setting in _VARIANTS[variant].settings:
        command += ["--set", setting]
    command += ["--only-step", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(next(line for line in done.stdout.splitlines() if line.isdigit()))


def table(
    quarter: Size, whole: Size, *, claims: Mapping[str, int]
) -> tuple[list[str], Json]:
    """Return the rows of the table, and the same as numbers; `claims`: bytes by step."""
    share = min(1.0, whole.processor_share)
    growth = (_CLAIMED - whole.chunks) / (whole.chunks - quarter.chunks)
    numbers: Json = {"chunks": whole.chunks, "processor_share": round(share, 3)}
    lines = ["| step | seconds of tasks | at 10⁹: hours | MB | at 10⁹: GB |"]
    lines.append("|---|---:|---:|---:|---:|")
    total_h = 0.0
    for name, step in whole.steps.items():
        before_s = quarter.steps[name].seconds
        seconds = step.seconds + growth * max(0.0, step.seconds - before_s)
        hours = seconds * share / 3600
        total_h += hours
        numbers[name] = {"seconds": round(step.seconds, 1), "hours": round(hours, 3)}
        memory = "| – | – |"
        if name in claims:
            gigabytes = claims[name] * _CLAIMED / whole.chunks / 1e9
            numbers[name]["gb"] = round(gigabytes, 1)
            memory = f"| {claims[name] / 1e6:,.1f} | {gigabytes:,.1f} |"
        lines.append(f"| {name} | {step.seconds:,.1f} | {hours:,.3f} {memory}")
    numbers["total_hours"] = round(total_h, 1)
    lines.append(f"| **all** | | **{total_h:,.1f}** | | |")
    return lines, numbers


if __name__ == "__main__":
    sys.exit(main())
