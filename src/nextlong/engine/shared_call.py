"""Make a call in the process that workers are forked from, so that they share memory.

In:  a call that another process has written to the file that `VARIABLE` names.
Out: the call is made once, before the next worker is forked.

The fork server imports this module. It has one thread and serves one request after the
other, so nothing is half loaded in a forked worker.
"""

from __future__ import annotations

import ctypes
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
        pickle.loads(pickled)()
        return_freed_memory()


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the system."""
    # Only glibc has it.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


if VARIABLE in os.environ:
    os.register_at_fork(before=_make_requested_call)
