"""Memory: the peak of a task, not of what its process did before."""

import subprocess
import sys

from nextlong.engine import executor as process

MEASURED = """
import numpy as np
from nextlong.engine import executor as process

def peak_of(megabytes):
    peak = process.peak_from_now()
    np.ones(megabytes << 17).sum()
    return peak()

print(peak_of(256), peak_of(1))
"""


def test_each_task_has_its_own_peak():
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True
    )
    large, small = map(int, done.stdout.split())
    assert large > 256 << 20 > small > 0


def test_without_the_file_there_is_no_number(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "_RESET", tmp_path / "none" / "clear_refs")
    assert process.peak_from_now()() is None


def test_the_memory_of_a_container_is_what_it_may_use(tmp_path, monkeypatch):
    limits = (tmp_path / "memory.max", tmp_path / "limit_in_bytes")
    monkeypatch.setattr(process, "_CONTAINER_LIMITS", limits)
    installed = process.memory_bytes()
    limits[0].write_text("max\n")
    limits[1].write_text(f"{2**62}\n")  # as version 1 says that there is none
    assert process.memory_bytes() == installed
    limits[0].write_text("1048576\n")
    assert process.memory_bytes() == 1 << 20
