"""Routes: one measured run of either program on the same files.

In:  corpus files, a tokenizer.json, how many sequences of how many tokens, an empty folder.
Out: a Route: seconds by stage, peak memory, and how many of the exported sequences are exactly T tokens long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from measure import Measurement, measure


@dataclass(frozen=True, kw_only=True)
class Order:
    """What both programs are asked for."""

    tokenizer: Path
    sequences: int
    target_tokens: int


@dataclass(frozen=True, kw_only=True)
class Route:
    """What one program took and gave; `error` holds the end of its output if it failed.

    `stage_seconds` of nextlong are those of all workers.
    """

    seconds: float
    peak_mb: float
    memory: str
    stage_seconds: dict[str, float] = field(default_factory=dict)
    exact_sequences: int = 0
    other_sequences: int = 0
    vectors_mb: float = 0.0
    processor_seconds: float = 0.0
    load: float = 0.0
    step_peaks_mb: dict[str, float] = field(default_factory=dict)
    error: str = ""


def run_handwritten(
    files: Sequence[Path], *, order: Order, out: Path, tuning: Sequence[str] = ()
) -> Route:
    """Run bench/handwritten.py on `files`, its result in `out`."""
    script = Path(__file__).with_name("handwritten.py")
    command = [
        sys.executable,
        str(script),
        "--corpus",
        *map(str, files),
        "--tokenizer",
        str(order.tokenizer),
    ]
    command += [
        "--target-tokens",
        str(order.target_tokens),
        "--sequences",
        str(order.sequences),
    ]
    command += ["--out", str(out), *tuning]
    taken = measure(command)
    if taken.rc:
        return _failed(taken)
    report = json.loads(taken.stdout.splitlines()[-1])
    return _finished(
        taken,
        stage_seconds=report["seconds"],
        out=out,
        target_tokens=order.target_tokens,
    )


def run_tuned(files: Sequence[Path], *, order: Order, out: Path) -> Route:
    """Run bench/handwritten.py as its author tuned it."""
    return run_handwritten(files, order=order, out=out, tuning=["--tuned"])


def run_nextlong(files: Sequence[Path], *, order: Order, out: Path) -> Route:
    """Run `nextlong run` with its defaults on `files`, the run directory in `out`, which must be fresh."""
    out.mkdir(parents=True)
    recipe = out / "recipe.yaml"
    run_dir = out / "run"
    request = {
        "run_dir": str(run_dir.absolute()),
        "ingest": {
            "sources": [
                {"path": str(file.absolute()), "name": file.name} for file in files
            ]
        },
        "tokenizer": str(order.tokenizer.absolute()),
        "compose": {"sequences": order.sequences, "target_tokens": order.target_tokens},
    }
    recipe.write_text(yaml.safe_dump(request, sort_keys=False), encoding="utf-8")
    taken = measure([sys.executable, "-m", "nextlong", "run", str(recipe)])
    if taken.rc:
        return _failed(taken)
    return _finished(
        taken,
        stage_seconds=step_seconds(run_dir),
        out=run_dir,
        target_tokens=order.target_tokens,
    )


def step_seconds(run_dir: Path) -> dict[str, float]:
    """Return the seconds of each step's tasks by name, in route order, from the manifests of a run.

    Of all workers added up: steps run side by side, so their wall seconds would
    overlap.
    """
    seconds: dict[str, float] = {}
    for path in sorted(run_dir.glob("*/manifest.json")):
        manifest = json.loads(path.read_bytes())
        seconds[manifest["step"]] = sum(part["seconds"] for part in manifest["parts"])
    return seconds


def step_peaks_mb(run_dir: Path) -> dict[str, float]:
    """Return the most that a task of each step held, by name, from the manifests of a run; none of another program."""
    peaks: dict[str, float] = {}
    for path in sorted(run_dir.glob("*/manifest.json")):
        manifest = json.loads(path.read_bytes())
        peaks[manifest["step"]] = (
            max((part.get("peak_bytes") or 0 for part in manifest["parts"]), default=0)
            / 1e6
        )
    return peaks


def _failed(taken: Measurement) -> Route:
    end = (taken.stderr or taken.stdout).strip()[-2000:]
    return Route(
        seconds=taken.seconds,
        peak_mb=taken.peak_mb,
        memory=taken.memory,
        error=f"exit status {taken.rc}: {end}",
    )


def _finished(
    taken: Measurement,
    *,
    stage_seconds: dict[str, float],
    out: Path,
    target_tokens: int,
) -> Route:
    # A run's rows lie in `data/` and, as links, in the folder of the step that wrote
    # them.
    lengths = _sequence_lengths(out / "data" if (out / "data").is_dir() else out)
    exact = lengths.count(target_tokens)
    return Route(
        seconds=taken.seconds,
        peak_mb=taken.peak_mb,
        memory=taken.memory,
        stage_seconds=stage_seconds,
        processor_seconds=taken.processor_seconds,
        load=taken.load,
        step_peaks_mb=step_peaks_mb(out),
        exact_sequences=exact,
        other_sequences=len(lengths) - exact,
        vectors_mb=sum(path.stat().st_size for path in out.rglob("*.vectors.npy"))
        / 1e6,
    )


def _sequence_lengths(folder: Path) -> list[int]:
    lengths: list[int] = []
    for path in sorted(folder.rglob("*.parquet")):
        with pq.ParquetFile(path) as file:
            if "input_ids" in file.schema_arrow.names:
                for batch in file.iter_batches(batch_size=64, columns=["input_ids"]):
                    lengths += pc.list_value_length(batch.column(0)).to_pylist()
    return lengths
