"""Locate: which file is the record of a run, or of one of its states.

In:  `RUN` or `RUN@NAME`. Out: the run directory, and the path of the record.
"""

from __future__ import annotations

import json
from pathlib import Path

from nextlong.errors import RunError


def locate(named: Path) -> tuple[Path, Path]:
    """Return the run directory and the record of the state that `RUN` or `RUN@NAME` means, there or not. Raises RunError."""
    head, at, state = str(named).rpartition("@")
    record = Path(head) / "states" / f"{state}.json"
    if at and record.is_file():
        return Path(head), record
    index = named / "run.json"
    try:
        state = json.loads(index.read_text(encoding="utf-8"))["state"]
    except FileNotFoundError:
        return named, index
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{index} is not the record of a run ({error!r}); `nextlong run` writes it anew") from None
    return named, named / "states" / f"{state}.json"
