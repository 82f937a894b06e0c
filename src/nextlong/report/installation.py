"""Installation: which dependencies are installed, and the hardware of this machine.

The package's metadata says what each feature needs.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from rich.console import Console

import nextlong
from nextlong.engine.executor import memory_bytes, usable_cpus
from nextlong.report import tables
from nextlong.text import Json

_FEATURES: Final = {
    "static": "encoder.model: static:…",
    "wordllama": "encoder.model: static:wordllama",
    "sentence-transformers": "encoder.model: sentence-transformers:…",
    "scorer": "scoring tokens with a causal language model",
    "quest": "quest with queries of a doc2query model",
    "convert": "tokenizer.source without tokenizer.json",
    "dedup": "ingest.dedup: minhash",
    "languages": "quest on text without spaces between words",
    "filter": "ingest.sources[].filter",
    "web": "WARC and HTML inputs",
    "s3": "s3:// inputs and exports",
    "gcs": "gs:// inputs and exports",
    "hub": "hf:// inputs and exports",
    "ray": "executor: ray",
    "png": "nextlong peek --svg FILE.png",
    "view": "nextlong view",
    "torch": "nextlong.torch; search on a GPU",
    "train": "nextlong train",
    "trl": "nextlong train --engine trl",
    "evaluate": "nextlong evaluate",
    "short-text": "nextlong evaluate run --suite short",
}


def examine() -> Json:
    """Return the installed packages and the hardware.

    These are the values of `nextlong doctor --json` (docs/reference/json.md). `core` is
    empty if nextlong runs from its sources without package metadata; `gpus` is None
    without torch.
    """
    requires: Sequence[str] = []
    # From its sources, the package has no metadata.
    if list(metadata.distributions(name="nextlong")):
        requires = metadata.requires("nextlong") or []
    core = list(_packages("", requires))
    features = []
    for extra, purpose in _FEATURES.items():
        needed = list(_packages(extra, requires))
        if needed:
            features.append(_feature(extra, purpose, needed))
    return {
        "nextlong": nextlong.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": {
            "cpus": usable_cpus(),
            "memory_bytes": memory_bytes(),
            "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
            "gpus": _gpus(),
        },
        "core": core,
        "features": features,
        "is_whole": all(package["is_enough"] for package in core),
    }


def _gpus() -> list[str] | None:
    """Return the names of the GPUs that torch sees; None without torch."""
    if util.find_spec("torch") is None:
        return None
    import torch

    count = torch.cuda.device_count()
    return [torch.cuda.get_device_name(index) for index in range(count)]


def _feature(extra: str, purpose: str, needed: Sequence[Json]) -> Json:
    """Return which packages of a feature are missing, and the command for them."""
    missing = []
    for package in needed:
        name = package["name"]
        if package["installed"]:
            installed = f"({package['installed']} is installed)"
            name = f"{name}{package['needed']} {installed}"
        if not package["is_enough"]:
            missing.append(name)
    cure = f"pip install 'nextlong[{extra}]'" if missing else None
    return {"extra": extra, "purpose": purpose, "missing": missing, "cure": cure}


def _packages(extra: str, requires: Sequence[str]) -> Iterator[Json]:
    """Yield what the package, or one of its extras, needs.

    Of each its name, the version needed, and the version installed or None.
    """
    for needed in map(Requirement, requires):
        if not _is_of(extra, needed):
            continue
        if needed.name == "nextlong":
            # An extra may be made of other extras.
            for other in needed.extras:
                yield from _packages(other, requires)
            continue
        installed: str | None = None
        with suppress(metadata.PackageNotFoundError):
            installed = metadata.version(needed.name)
        is_enough = installed is not None and needed.specifier.contains(
            installed, prereleases=True
        )
        yield {
            "name": needed.name,
            "needed": str(needed.specifier),
            "installed": installed,
            "is_enough": is_enough,
        }


def _is_of(extra: str, needed: Requirement) -> bool:
    """Return whether a requirement is of an extra; "": of the package itself."""
    if needed.marker is None:
        return not extra
    is_core = needed.marker.evaluate({"extra": ""})
    return is_core == (not extra) and needed.marker.evaluate({"extra": extra})


def show(found: Json, console: Console) -> None:
    """Print what `examine` found, and for each missing feature the command for it."""
    hardware = found["hardware"]
    cpus = f"{hardware['cpus']} (`workers: auto` starts one worker on each)"
    facts = [
        ("python", f"{found['python']}, {found['platform']}"),
        ("processors", cpus),
        ("memory", f"{hardware['memory_bytes'] / 1e9:,.1f} GB"),
        ("free disk", f"{hardware['free_disk_bytes'] / 1e9:,.1f} GB in {Path.cwd()}"),
        ("GPU", _described_gpus(hardware["gpus"])),
        ("core", _described_core(found)),
    ]
    tables.show_pairs(f"nextlong {found['nextlong']}", facts, console)
    table = tables.table()
    for heading in ("feature", "for", "state"):
        table.add_column(heading, overflow="fold")
    for feature in found["features"]:
        state = "[green]ready[/]"
        if feature["missing"]:
            missing = f"{', '.join(feature['missing'])}: {feature['cure']}"
            state = f"[yellow]missing[/] {tables.cell(missing)}"
        table.add_row(feature["extra"], tables.cell(feature["purpose"]), state)
    if found["features"]:
        tables.show(table, console)


def _described_gpus(gpus: Sequence[str] | None) -> str:
    if gpus:
        return ", ".join(gpus)
    known = "unknown without torch" if gpus is None else "none visible to torch"
    return f"{known}; everything runs on the CPU"


def _described_core(found: Json) -> str:
    """Return whether the packages that nextlong always needs are installed."""
    if not found["core"]:
        return (
            "unknown, because nextlong runs from its sources; install it with "
            "pip install -e ."
        )
    if found["is_whole"]:
        return f"all {len(found['core'])} packages are installed"
    broken = []
    for package in found["core"]:
        if not package["is_enough"]:
            installed = package["installed"] or "missing"
            broken.append(f"{package['name']}{package['needed']} ({installed})")
    return f"broken: {', '.join(broken)}; repair it with pip install --upgrade nextlong"
