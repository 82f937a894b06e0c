"""Checkpoints: folders that are whole or not there, whatever moment a kill comes at.

In:  a function that writes files into a folder.
Out: the folder under its name, when all of it is on the disk.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from nextlong.engine import store
from nextlong.train.prepare import RECORD

CHECKPOINTS: Final = "checkpoints"


def checkpoints_in(out: Path) -> list[Path]:
    """Return the checkpoints, that of the highest step first."""
    folders = (out / CHECKPOINTS).glob("step-[0-9]*")
    checkpoints = [folder for folder in folders if (folder / RECORD).exists()]
    return sorted(checkpoints, key=_step_of, reverse=True)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `final` at the end, whole or not at all.

    Raises RunError if the disk fails.
    """
    # A kill leaves a hidden folder, which the next attempt removes.
    work = final.with_name(f".{final.name}.tmp")
    with explained(final):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            yield work
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        publish(work, final)


def publish(work: Path, final: Path) -> None:
    """Sync a folder to the disk and rename it to `final`.

    Only then is deleted what had that name before.
    """
    for path in (*work.rglob("*"), work):
        store.sync(path)
    # The old folder keeps its files until the new one has its name.
    replaced = final.with_name(".work-replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.replace(replaced)
    work.replace(final)
    store.sync(final.parent)
    store.sync(work.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def explained(where: Path) -> Iterator[None]:
    """Turn errors of the disk into a RunError with the fix.

    safetensors reports them as text.
    """
    with store.explained(where):
        try:
            yield
        except SafetensorError as error:
            # safetensors has the number of the error in its text alone.
            code = re.search(r"os error (\d+)|code: (\d+)", str(error))
            if code is None:
                raise
            number = int(code[1] or code[2])
            raise OSError(number, os.strerror(number), str(where)) from None
