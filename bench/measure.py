"""Measure: a command's wall and processor seconds and the peak memory of its whole process tree.

In:  a command as a list of words.
Out: seconds, processor seconds, load, peak memory, exit status and output.
Processor seconds are those of the command and of all that it started: what else the machine does shows less in them.
Memory is PSS summed over the tree, sampled every 50 ms or slower: shared pages (forked workers, mapped vectors) count
once, which summed RSS gets wrong. Where the kernel has no PSS it is RSS, and `memory` says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import psutil

SAMPLE_SECONDS = 0.05
# The kernel walks the page tables for PSS: 6 to 11 ms a GB on a two-core VM, taken from
# the programs being measured.
MAX_SAMPLING_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of a command; MB are 10^6 bytes; `memory` says what was summed: pss or rss; `load` is the mean of the last minute."""

    seconds: float
    processor_seconds: float
    load: float
    peak_mb: float
    memory: str
    rc: int
    stdout: str
    stderr: str


def measure(
    command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Measurement:
    """Run `command` to its end and return what it took; a failing command is returned, not raised."""
    memory = "pss" if _has_pss() else "rss"
    _adopt_orphans()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        start, before = time.perf_counter(), _processor_seconds()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env
        ) as process:
            peak_bytes = _watch(process, memory=memory)
        seconds = time.perf_counter() - start
        _wait_for_orphans()
        stdout.seek(0)
        stderr.seek(0)
        return Measurement(
            seconds=round(seconds, 3),
            processor_seconds=round(_processor_seconds() - before, 2),
            load=round(os.getloadavg()[0], 1),
            peak_mb=round(peak_bytes / 1e6, 1),
            memory=memory,
            rc=process.returncode,
            stdout=stdout.read().decode(errors="replace"),
            stderr=stderr.read().decode(errors="replace"),
        )


def _adopt_orphans() -> None:
    """Become the parent of processes that outlive theirs: the server that workers are forked from counts them."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36  # noqa: N806 (as in prctl.h)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _processor_seconds() -> float:
    """Return what all ended children took so far, with theirs."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _watch(process: subprocess.Popen[bytes], *, memory: str) -> int:
    """Sample until the process ends; return the largest sum of bytes seen."""
    root = psutil.Process(process.pid)
    peak_bytes = 0
    while True:
        start = time.perf_counter()
        peak_bytes = max(peak_bytes, _tree_bytes(root, memory=memory))
        pause = max(SAMPLE_SECONDS, (time.perf_counter() - start) / MAX_SAMPLING_SHARE)
        try:
            process.wait(timeout=pause)
        except subprocess.TimeoutExpired:
            continue
        return peak_bytes


def _tree_bytes(root: psutil.Process, *, memory: str) -> int:
    total = 0
    try:
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in tree:
        try:
            total += (
                process.memory_full_info().pss
                if memory == "pss"
                else process.memory_info().rss
            )
        except psutil.Error:  # it ended between listing and reading
            continue
    return total


def _has_pss() -> bool:
    try:
        return bool(getattr(psutil.Process().memory_full_info(), "pss", 0))
    except psutil.Error:
        return False


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1:])), indent=1))
