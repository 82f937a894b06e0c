"""Memory: how much there is, the most that a process holds while it runs a task, and what is said where it gets no more.

Linux keeps the peak of a process and lets it be set back, so that one task after another is measured. Where there is no such
file, or it is not ours to write, there is no number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from nextlong.errors import RunError

_RESET: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")
_RESET_PEAK: Final = "5"  # proc(5): resets VmHWM to the present
_CONTAINER_LIMITS: Final = (  # as a container sees its own control group, of version 2 and 1; "max" is none
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container that this process may not leave."""
    installed = int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    limits = [path.read_text(encoding="ascii").strip() for path in _CONTAINER_LIMITS if path.is_file()]
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())])


@contextmanager
def peak() -> Iterator[Callable[[], int | None]]:
    """Yield what tells, at the end, the largest resident memory since, in bytes; None where it is not known."""
    try:
        _RESET.write_text(_RESET_PEAK)
    except OSError:
        yield lambda: None
        return
    highest: list[int | None] = [None]
    yield lambda: highest[0]
    highest[0] = resident_bytes(of="VmHWM")


def resident_bytes(*, of: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Return what this process holds in memory now, or at most since its peak was set back; None where it is not known."""
    if not _STATUS.exists():
        return None
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith(f"{of}:")]
    return int(sizes[0]) * 1024 if sizes else None


@contextmanager
def named(folder: Path, index: int) -> Iterator[None]:
    """Turn what a task says that gets no more memory into a RunError that names it."""
    try:
        yield
    except MemoryError as error:
        step = folder.name.split("-", 1)[1].rpartition("-")[0]
        said = " ".join(str(error).split()) or "no more is to be had"
        raise RunError(
            f"{step} task {index} (the files {folder.name}/part-{index:05d}.*) ran out of memory: {said}; run again with fewer "
            "workers (--set workers=1) or on a larger machine: finished steps are kept"
        ) from None
