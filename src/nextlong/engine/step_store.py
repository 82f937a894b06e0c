"""StepStore: steps that several run directories hold in one store, each by a link.

A step's folder is named by its fingerprint, so what two runs would make alike is one folder of the store. A run directory
has a link to each, and is read as if they lay in it. Whoever makes a step holds its lock; others wait, and find it done. The
kernel frees the lock of a process that dies, and the next one goes on with the tasks that are missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nextlong.engine import store
from nextlong.engine.step import Step
from nextlong.engine.store import Mode

USERS: str = "runs"  # a file in it for each run directory that has used the store
_FOLDERS: str = "[0-9][0-9]-*"


@dataclass(frozen=True)
class StepStore:
    """A store, and how it serves one run directory; the step `until` and what is made from it stay in the run directory."""

    store: Path
    run_dir: Path
    until: str = "compose"

    def holds(self, step: Step) -> bool:
        """Say whether a step belongs into the store."""
        return self.until not in (step.name, *(before.name for before in step.inputs))

    def link(self, step: Step, place: int) -> None:
        """Let the run directory have the step's folder, by a link into the store; one of its own, or that is done, stays."""
        # Runs on other routes would number it otherwise; array jobs of one run would link it twice.
        with store.alone(self.store / "folders"):
            there = store.step_folder(self.run_dir, step.folder_suffix)
            if there is not None and (not there.is_symlink() or (there / store.MANIFEST).exists()):
                return
            target = (
                store.step_folder(self.store, step.folder_suffix) or self.store / f"{place:02d}-{step.folder_suffix}"
            )
            target.mkdir(exist_ok=True)
            if there is not None and there.name == target.name and there.resolve() == target.resolve():
                return
            if there is not None:
                there.unlink()
            self.run_dir.mkdir(exist_ok=True)
            relative = os.path.relpath(target.absolute(), self.run_dir.absolute())
            to = target if self.store.is_absolute() else relative
            (self.run_dir / target.name).symlink_to(to, target_is_directory=True)

    def claim(self, step: Step, *, mode: Mode = "alone") -> IO[str] | str:
        """Return what holds the step's lock until it is closed, or who holds it."""
        return store.hold(self.store / f".{step.folder_suffix}.lock", mode=mode)


@contextmanager
def opened(path: Path | None, run_dir: Path) -> Iterator[StepStore | None]:
    """Hold a store together with other runs, so that nothing is removed from it meanwhile; None where there is none."""
    if path is None:
        yield None
        return
    with store.locked(path, mode="together"):
        user = _record_of(path, run_dir)
        with store.explained(path):
            user.parent.mkdir(exist_ok=True)
            if not user.exists():
                store.write_json(user, {"run_dir": str(run_dir.absolute())})
        yield StepStore(path, run_dir)


def unlink_unfinished(step: Step, run_dir: Path) -> None:
    """Let a run without a store make the step in its own directory, not through a link into a store that others write."""
    there = store.step_folder(run_dir, step.folder_suffix)
    if there is not None and there.is_symlink() and not (there / store.MANIFEST).exists():
        try:
            there.unlink()
        except OSError:  # another array job was first, and may have made its folder already
            if there.is_symlink():
                raise


def is_store(folder: Path) -> bool:
    """Say whether a folder is a store."""
    return (folder / USERS).is_dir()


def forget(path: Path, run_dir: Path) -> None:
    """Let a store no longer know a run directory; the caller holds the store's lock, alone."""
    store.remove_file(_record_of(path, run_dir))


def _record_of(path: Path, run_dir: Path) -> Path:
    name = hashlib.blake2b(str(run_dir.absolute()).encode(), digest_size=8).hexdigest()
    return path / USERS / f"{name}.json"


def users(path: Path) -> dict[Path, set[str]]:
    """Return the run directories that have used a store, and the folders of it that each links to; gone ones link to none."""
    links_of = {}
    for record in sorted((path / USERS).glob("*.json")):
        run_dir = Path(store.read_json(record)["run_dir"])
        links_of[run_dir] = {link.name for link in links(run_dir) if link.resolve().parent == path.resolve()}
    return links_of


def links(run_dir: Path) -> list[Path]:
    """Return the links of a run directory to steps in a store, there or not."""
    return [folder for folder in sorted(run_dir.glob(_FOLDERS)) if folder.is_symlink()]
