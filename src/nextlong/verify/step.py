"""Step: the folder of a step of a run, and what its manifest says of the files in it; and the record that names the steps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from nextlong.errors import RunError
from nextlong.plain_data import Json


class FileEntry(TypedDict):
    """A file's size and hash, as recorded."""

    bytes: int
    xxh3: str


class Part(TypedDict):
    """What one task wrote, and counted."""

    files: dict[str, FileEntry]
    counts: NotRequired[Json]


class Manifest(TypedDict):
    """What a step's manifest says, of which damaged or earlier ones may lack some."""

    parts: list[Part]
    inputs: dict[str, str]
    fingerprint: str
    config: NotRequired[Json]


_NO_MANIFEST: Manifest = {"parts": [], "inputs": {}, "fingerprint": ""}


@dataclass(frozen=True)
class Step:
    """The folder of a step and its manifest; `damage` says why the manifest could not be read, else it is empty."""

    name: str
    folder: Path
    manifest: Manifest
    damage: str = ""

    def files(self, suffix: str) -> list[Path]:
        """Return the files that end in `suffix`, in the order of the numbers in their names."""
        names = [name for part in self.manifest["parts"] for name in part["files"] if name.endswith(suffix)]
        return [self.folder / name for name in sorted(names, key=lambda name: [*map(int, re.findall(r"\d+", name))])]


def open_step(name: str, folder: Path) -> Step:
    """Return a step that a record names."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        whole = {"fingerprint", "inputs"} <= manifest.keys() and all("files" in part for part in manifest["parts"])
        if whole:
            return Step(name, folder, manifest)
        return Step(name, folder, _NO_MANIFEST, "is not the manifest of a step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Step(name, folder, _NO_MANIFEST, f"cannot be read ({error})")


def locate(named: Path) -> tuple[Path, Path]:
    """Return the run directory and the record of the variant that `RUN` or `RUN@NAME` means, there or not."""
    head, at, variant = str(named).rpartition("@")
    record = Path(head) / "variants" / f"{variant}.json"
    if at and record.is_file():
        return Path(head), record
    index = named / "run.json"
    try:
        variant = json.loads(index.read_text(encoding="utf-8"))["variant"]
    except FileNotFoundError:
        return named, index
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{index} is not the record of a run ({error!r}); `nextlong run` rewrites it") from None
    return named, named / "variants" / f"{variant}.json"
