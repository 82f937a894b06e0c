"""Installation: which dependencies are installed, according to the package's metadata, and the hardware of this machine."""

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
    "sentence-transformers": "encoder.model: sentence-transformers:…",
    "quest": "quest with queries of a doc2query model",
    "convert": "tokenizer.source without tokenizer.json",
    "dedup": "ingest.dedup: minhash",
    "languages": "quest on text without spaces between words",
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


def examine() -> Json:
    """Return the installed packages and the hardware, as `nextlong doctor --json` prints them (docs/reference/json.md).

    `core` is empty if nextlong runs from its sources without package metadata; `gpus` is None without torch.
    """
    is_installed = bool(list(metadata.distributions(name="nextlong")))
    requires = (metadata.requires("nextlong") or []) if is_installed else []
    core = list(_packages("", requires))
    features = []
    for extra, purpose in _FEATURES.items():
        needed = list(_packages(extra, requires))
        missing = [
            f"{one['name']}{one['needed']} ({one['installed']} is installed)"
            if one["installed"]
            else one["name"]
            for one in needed
            if not one["is_enough"]
        ]
        cure = f"pip install 'nextlong[{extra}]'" if missing else None
        if needed:
            features.append(
                {"extra": extra, "purpose": purpose, "missing": missing, "cure": cure}
            )
    gpus = None
    if util.find_spec("torch") is not None:
        import torch

        gpus = [
            torch.cuda.get_device_name(number)
            for number in range(torch.cuda.device_count())
        ]
    return {
        "nextlong": nextlong.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": {
            "cpus": usable_cpus(),
            "memory_bytes": memory_bytes(),
            "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
            "gpus": gpus,
        },
        "core": core,
        "features": features,
        "is_whole": all(package["is_enough"] for package in core),
    }


def _packages(extra: str, requires: Sequence[str]) -> Iterator[Json]:
    """Yield what the package, or one of its extras, needs: name, version needed, version installed or None."""
    for needed in map(Requirement, requires):
        is_core = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if is_core != (not extra) or (
            needed.marker and not needed.marker.evaluate({"extra": extra})
        ):
            continue
        if needed.name == "nextlong":
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


def show(found: Json, console: Console) -> None:
    """Print what `examine` found, and for each feature that is missing the command that adds it."""
    hardware, core = (
        found["hardware"],
        f"all {len(found['core'])} packages are installed",
    )
    gpus = ", ".join(hardware["gpus"] or ()) or "none visible to torch"
    if hardware["gpus"] is None:
        gpus = "unknown without torch"
    if not found["core"]:
        core = "unknown, because nextlong runs from its sources; install it with pip install -e ."
    elif not found["is_whole"]:
        wrong = (one for one in found["core"] if not one["is_enough"])
        named = ", ".join(
            f"{one['name']}{one['needed']} ({one['installed'] or 'missing'})"
            for one in wrong
        )
        core = f"broken: {named}; repair it with pip install --upgrade nextlong"
    facts = [
        ("python", f"{found['python']}, {found['platform']}"),
        (
            "processors",
            f"{hardware['cpus']} (`workers: auto` starts one worker on each)",
        ),
        ("memory", f"{hardware['memory_bytes'] / 1e9:,.1f} GB"),
        ("free disk", f"{hardware['free_disk_bytes'] / 1e9:,.1f} GB in {Path.cwd()}"),
        ("GPU", gpus if hardware["gpus"] else f"{gpus}; everything runs on the CPU"),
        ("core", core),
    ]
    tables.show_pairs(f"nextlong {found['nextlong']}", facts, console)
    table = tables.table()
    for heading in ("feature", "for", "state"):
        table.add_column(heading, overflow="fold")
    for feature in found["features"]:
        missing = tables.cell(f"{', '.join(feature['missing'])}: {feature['cure']}")
        state = (
            f"[yellow]missing[/] {missing}" if feature["missing"] else "[green]ready[/]"
        )
        table.add_row(feature["extra"], tables.cell(feature["purpose"]), state)
    if found["features"]:
        tables.show(table, console)
