"""Installation: what of nextlong is installed, and what hardware it finds.

In:  the metadata of installed packages, and this machine. Out: `Installation`, and a page of it.
The extras and what they need are read from the package's own metadata, so that they cannot go stale.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from rich.console import Console

import nextlong
from nextlong.engine.executor import usable_cpus
from nextlong.engine.process import memory_bytes
from nextlong.report import tables

FEATURES: Final = {
    "static": "encoder.model: static:…",
    "sentence-transformers": "encoder.model: sentence-transformers:…",
    "quest": "quest's queries by a doc2query model",
    "dedup": "ingest.dedup: minhash",
    "languages": "keywords of texts without blanks between words (quest)",
    "filter": "ingest.sources[].filter",
    "web": "WARC and HTML inputs",
    "s3": "s3:// inputs and exports",
    "gcs": "gs:// inputs and exports",
    "ray": "executor: ray",
    "png": "nextlong peek --svg FILE.png",
    "view": "nextlong view",
    "torch": "nextlong.torch; search on a GPU",
    "train": "nextlong train",
    "trl": "nextlong train --engine trl",
    "evaluate": "nextlong evaluate",
    "short-text": "nextlong evaluate --suite short",
    "vllm": "nextlong evaluate --engine vllm",
}
_GB = 1e9


@dataclass(frozen=True)
class Package:
    """A package that something needs; `installed` is its version, None if it is not there."""

    name: str
    needed: str
    installed: str | None
    is_enough: bool


@dataclass(frozen=True)
class Feature:
    """What an extra is for, and what of it is missing or too old; `cure` is the command that adds it, None if nothing is."""

    extra: str
    purpose: str
    missing: tuple[str, ...]
    cure: str | None


@dataclass(frozen=True)
class LocalHardware:
    """What runs use. `gpus` is None where torch, which is asked for them, is not installed."""

    cpus: int
    memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[str, ...] | None


@dataclass(frozen=True)
class Installation:
    """What `nextlong doctor` says. `core` is empty where nextlong runs from its sources and nothing says what it needs."""

    nextlong: str
    python: str
    platform: str
    hardware: LocalHardware
    core: tuple[Package, ...]
    features: tuple[Feature, ...]
    is_whole: bool


def examine() -> Installation:
    """Look at the installed packages and this machine."""
    core = tuple(_packages(""))
    features = []
    for extra in _extras():
        missing = tuple(
            package.name if package.installed is None else f"{package.name}{package.needed} (is {package.installed})"
            for package in _packages(extra)
            if not package.is_enough
        )
        cure = f"pip install 'nextlong[{extra}]'" if missing else None
        features.append(Feature(extra, FEATURES[extra], missing, cure))
    gpus = None
    if util.find_spec("torch") is not None:
        import torch

        gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return Installation(
        nextlong=nextlong.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        hardware=LocalHardware(usable_cpus(), memory_bytes(), shutil.disk_usage(Path.cwd()).free, gpus),
        core=core,
        features=tuple(features),
        is_whole=all(package.is_enough for package in core),
    )


def _extras() -> list[str]:
    """Return the extras that are features, in order; those for developing nextlong are none."""
    known = metadata.metadata("nextlong").get_all("Provides-Extra") or () if _is_installed() else ()
    return [extra for extra in FEATURES if extra in known]


def _is_installed() -> bool:
    return bool(list(metadata.distributions(name="nextlong")))


def _packages(extra: str) -> Iterator[Package]:
    """Yield what the package, or one of its extras, needs."""
    for line in (metadata.requires("nextlong") or ()) if _is_installed() else ():
        needed = Requirement(line)
        is_core = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if is_core != (not extra) or (needed.marker and not needed.marker.evaluate({"extra": extra})):
            continue
        if needed.name == "nextlong":
            for other in needed.extras:
                yield from _packages(other)
            continue
        installed: str | None = None
        with suppress(metadata.PackageNotFoundError):
            installed = metadata.version(needed.name)
        is_enough = installed is not None and needed.specifier.contains(installed, prereleases=True)
        yield Package(needed.name, str(needed.specifier), installed, is_enough=is_enough)


def show(installation: Installation, console: Console) -> None:
    """Print what is there, and for each feature that is not, the command that adds it."""
    hardware = installation.hardware
    gpus = "unknown without torch" if hardware.gpus is None else ", ".join(hardware.gpus) or "none that torch sees"
    wrong = [
        f"{package.name}{package.needed} ({package.installed or 'missing'})"
        for package in installation.core
        if not package.is_enough
    ]
    if not installation.core:
        core = "runs from its sources, so what it needs is not known; say pip install -e ."
    elif wrong:
        core = f"broken: {', '.join(wrong)}; say pip install --upgrade nextlong"
    else:
        core = f"all {len(installation.core)} packages are there"
    tables.show_pairs(
        f"nextlong {installation.nextlong}",
        [
            ("python", f"{installation.python}, {installation.platform}"),
            ("processors", f"{hardware.cpus}, as many workers as `workers: auto` starts"),
            ("memory", f"{hardware.memory_bytes / _GB:,.1f} GB"),
            ("free disk", f"{hardware.free_disk_bytes / _GB:,.1f} GB in {Path.cwd()}"),
            ("GPU", gpus if hardware.gpus else f"{gpus}; everything runs on processors"),
            ("core", core),
        ],
        console,
    )
    table = tables.table()
    for heading in ("feature", "for", "state"):
        table.add_column(heading, overflow="fold")
    for feature in installation.features:
        missing = tables.cell(f"{', '.join(feature.missing)}: {feature.cure}")
        state = f"[yellow]missing[/] {missing}" if feature.missing else "[green]ready[/]"
        table.add_row(feature.extra, tables.cell(feature.purpose), state)
    if installation.features:
        tables.show(table, console)
