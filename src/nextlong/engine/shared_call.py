"""Make a call in the process that workers are forked from, so that they share memory.

In:  a call that another process has written to the file that `VARIABLE` names.
Out: the call is made once, before the next worker is forked. Its errors are ignored.

The fork server imports this module. It has one thread and serves one request after the
other, so nothing is half loaded in a forked worker.
"""

from __future__ import annotations

# These two hold locks while a process forks: first imported by the call, which runs
# then, they would release locks that they have not taken.
import concurrent.futures.thread  # noqa: F401
import ctypes
import logging  # noqa: F401
import os
import pickle
from contextlib import suppress
from pathlib import Path

VARIABLE = "NEXTLONG_SHARED_CALL"


def _make_requested_call() -> None:
    request = Path(os.environ[VARIABLE])
    pickled = request.read_bytes()
    if pickled:
        # Emptied first, so that no later worker asks again.
        os.truncate(request, 0)
        # Python would print an error here as ignored; the tasks that load the same
        # report it. The panic of a library in Rust is no Exception.
        with suppress(BaseException):
            pickle.loads(pickled)()
        return_freed_memory()


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the system."""
    # Only glibc has it.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


if VARIABLE in os.environ:
    os.register_at_fork(before=_make_requested_call)
