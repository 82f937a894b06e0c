"""Listed: the variants of a run directory, one a row: what tells them apart, what they hold, and what they weigh.

In:  a run directory. Out: one `Listed` a variant, the oldest first. A folder that several variants need counts for each of
them; `alone_bytes` is what dropping the one variant would free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextlong.artefacts import names, record
from nextlong.artefacts.record import Variant
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.plain_data import Json


@dataclass(frozen=True)
class Listed:
    """One variant; `differs` are the settings that differ from those that `RUN` opens, else from the oldest variant's.

    `exports` are folders by format and split.
    """

    name: str
    is_current: bool
    differs: Json
    sequences: int
    tokens_each: int | None
    exports: dict[str, str]
    bytes: int
    alone_bytes: int
    made: str


def list_variants(run_dir: Path) -> list[Listed]:
    """Return the variants of a run directory, the oldest first. Raises RunError if nothing has finished there."""
    current, there = record.current(run_dir), record.existing(run_dir)
    base = next((variant for variant in there if variant.name == current), there[0])
    holders = Counter(folder for variant in there for folder in set(variant.steps.values()))
    sizes = {folder: bytes_of(run_dir / folder) for folder in holders}
    return [
        Listed(
            name=variant.name,
            is_current=variant.name == current,
            differs=names.differences(variant.recipe, base.recipe),
            sequences=variant.sequences,
            tokens_each=_tokens_each(variant),
            exports={step: folder for step, folder in variant.steps.items() if "rows" in inputs_of(run_dir / folder)},
            bytes=sum(sizes[folder] for folder in set(variant.steps.values())),
            alone_bytes=sum(sizes[folder] for folder in set(variant.steps.values()) if holders[folder] == 1),
            made=variant.made,
        )
        for variant in there
    ]


def _tokens_each(variant: Variant) -> int | None:
    config = manifest_of(variant.run_dir / variant.steps.get("compose", "")).get("config", {})
    return config.get("target_tokens") if isinstance(config, Mapping) else None


def manifest_of(folder: Path) -> Json:
    """Return a step's manifest, {} where it has none that can be read: it is not finished, or damaged."""
    try:
        manifest = store.read_json(folder / store.MANIFEST)
    except RunError:
        return {}
    return manifest if isinstance(manifest, dict) else {}


def inputs_of(folder: Path) -> dict[str, str]:
    """Return the fingerprints of the steps that a folder was made from, by name."""
    inputs: dict[str, str] = manifest_of(folder).get("inputs", {})
    return inputs


def bytes_of(folder: Path) -> int:
    """Return how much the files in a folder, or one file, hold."""
    if not folder.is_dir():
        return folder.lstat().st_size
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
