"""Everything that only a GPU can show, in nine minutes, as one JSON file (bench/gpu.md).

    bash bench/gpu.sh [--out FOLDER] [--device cpu --tiny] [--parts attention,search]

Each part of `gpu_parts.py` runs in a process of its own, with its own time limit. The
process imports torch while the part before it still runs, and then waits for its turn;
the limit counts from there. It prints each figure as soon as it has it, and the file is
written again after every part, so a crash, a limit or the end of a lease loses at most
the figures that were not measured yet.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

# The parts in order of their value, and the most seconds that each may take.
LIMITS_S: Final = {
    "machine": 15.0,
    "attention": 60.0,
    "start_check": 20.0,
    "training": 150.0,
    "search": 90.0,
    "encoder": 60.0,
    "evaluation": 60.0,
    "head": 15.0,
    "experiment": float("inf"),
}
_ALL_S: Final = 540.0
_TINY_FACTOR: Final = 20.0  # of all limits on a CPU, where only crashes are looked for
_IMPORT_S: Final = 90.0  # the longest wait for the imports of a part
_EXIT_S: Final = 10.0  # after its last figure
_LEAST_S: Final = 3.0  # a part with less time left is not begun
_PACKAGES: Final = (
    "torch",
    "transformers",
    "sentence-transformers",
    "triton",
    "numpy",
    "pyarrow",
)
_LOG_LINES: Final = 12  # of a failed part's log, kept in the results


@dataclass
class Started:
    """The process of a part, which imports what it needs and waits for `go`."""

    part: str
    process: subprocess.Popen[str]
    log: Path
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def wait(self, limit_s: float) -> bool:
        """Wait until the part has imported what it needs; return whether it has."""
        try:
            return self.lines.get(timeout=limit_s) is not None
        except queue.Empty:
            return False

    def go(self, limit_s: float) -> Json:
        """Let the part measure for at most `limit_s` seconds, and return its record."""
        began = time.monotonic()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed, and its log says why
            self.process.stdin.write(f"{limit_s}\n")
            self.process.stdin.flush()
        figures: Json = {}
        is_cut = True
        while True:
            left_s = began + limit_s - time.monotonic()
            try:
                line = self.lines.get(timeout=max(0.0, left_s))
            except queue.Empty:
                break
            if line is None:
                is_cut = False
                break
            figures |= json.loads(line)
        seconds = time.monotonic() - began
        self.stop(grace_s=0.0 if is_cut else _EXIT_S)
        if is_cut:
            status = f"stopped after {limit_s:.0f} s"
        elif self.process.returncode:
            status = f"failed with exit status {self.process.returncode}"
        elif any(has_failed(value) for value in figures.values()):
            status = "failed in part"
        else:
            status = "done"
        return self.record(status, seconds=seconds, figures=figures)

    def record(self, status: str, *, seconds: float, figures: Json) -> Json:
        """Return what the results say of the part, with the end of its log if it failed."""
        record = {"status": status, "seconds": round(seconds, 1), "figures": figures}
        if status.startswith("failed with"):
            written = self.log.read_text(errors="replace").splitlines()
            record["log"] = written[-_LOG_LINES:]
        return record

    def stop(self, *, grace_s: float = 0.0) -> None:
        """End the process, which may end by itself first, and those that it started."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()  # the output ends with the last process that has it
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        with suppress(BrokenPipeError):
            self.process.stdin.close()


def has_failed(figure: object) -> bool:
    """Return whether a figure is a failure that its part survived."""
    return isinstance(figure, dict) and "failed" in figure


def start(part: str, asked: argparse.Namespace, scratch: Path) -> Started:
    """Start the process of a part."""
    log = scratch / f"{part}.log"
    command = [
        sys.executable,
        str(Path(__file__).with_name("gpu_parts.py")),
        part,
        f"--device={asked.device}",
        f"--scratch={scratch}",
        f"--out={asked.out}",
    ]
    if asked.tiny:
        command.append("--tiny")
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    return Started(part, process, log)


def installed() -> Json:
    """Return the versions of the packages that matter; null for one that is missing."""
    versions: Json = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def measure(asked: argparse.Namespace, *, path: Path) -> Json:
    """Run the parts in turn, writing all results to `path` after each; return them."""
    factor = _TINY_FACTOR if asked.tiny else 1.0
    ends_at = time.monotonic() + asked.seconds * factor
    parts = [part for part in LIMITS_S if not asked.parts or part in asked.parts]
    results: Json = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": asked.device,
        "is_tiny": asked.tiny,
        "packages": installed(),
        "parts": {},
    }
    with tempfile.TemporaryDirectory(prefix="nextlong-gpu-") as scratch:
        following: Started | None = start(parts[0], asked, Path(scratch))
        for number, part in enumerate(parts):
            running = following
            assert running is not None
            is_last = number + 1 == len(parts)
            following = None
            if not is_last:
                following = start(parts[number + 1], asked, Path(scratch))
            left_s = ends_at - time.monotonic()
            is_ready = running.wait(min(_IMPORT_S * factor, max(0.0, left_s)))
            left_s = ends_at - time.monotonic()
            if left_s < _LEAST_S:
                running.stop()
                record = running.record("no time left", seconds=0, figures={})
            elif is_ready:
                record = running.go(min(LIMITS_S[part] * factor, left_s))
            else:
                running.stop()
                record = running.record(
                    "failed with its imports", seconds=0, figures={}
                )
            results["parts"][part] = record
            write(path, results)
            # One file for all logs: some machines hand back few files.
            with (asked.out / "gpu.log").open("a") as logs:
                logs.write(f"== {part}\n{running.log.read_text(errors='replace')}")
            print(json.dumps({part: record}, ensure_ascii=False), flush=True)
    return results


def write(path: Path, results: Json) -> None:
    """Replace the file as a whole, so that a cut leaves the one before."""
    new = path.with_name(f".{path.name}.tmp")
    new.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def main() -> int:
    """Measure; return the exit status, 1 where a part is not done."""
    parser = argparse.ArgumentParser(description="Measure on a GPU, in nine minutes.")
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--seconds", type=float, default=_ALL_S, help="of all parts")
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=[],
        help=f"some of {','.join(LIMITS_S)}",
    )
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(LIMITS_S):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}")
    asked.out = asked.out.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"gpu-{datetime.now(UTC):%Y-%m-%d}.json"
    results = measure(asked, path=path)
    print(f"results: {path}")
    statuses = [record["status"] for record in results["parts"].values()]
    return int(any(status != "done" for status in statuses))


if __name__ == "__main__":
    sys.exit(main())
