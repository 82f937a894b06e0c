"""Memory: the most that a process holds while it runs a task.

Linux keeps the peak of a process and lets it be set back, so that one task after another is measured. Where there is no such
file, or it is not ours to write, there is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_RESET: Final = Path("/proc/self/clear_refs")
_STATUS: Final = Path("/proc/self/status")
_RESET_PEAK: Final = "5"  # proc(5): resets VmHWM to the present


@contextmanager
def peak() -> Iterator[Callable[[], int | None]]:
    """Yield what tells, at the end, the largest resident memory since, in bytes; None where it is not known."""
    try:
        _RESET.write_text(_RESET_PEAK)
    except OSError:
        yield lambda: None
        return
    found: list[int | None] = [None]
    yield lambda: found[0]
    found[0] = _highest()


def _highest() -> int | None:
    """Return VmHWM in bytes."""
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(sizes[0]) * 1024 if sizes else None
