"""Listed: the variants of a run directory, one a row: what tells them apart, what they hold, and what they weigh.

In:  a run directory. Out: one `Listed` a variant, the oldest first. A folder that several variants need counts for each of
them; `alone_bytes` is what dropping the one variant would free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextlong.artefacts import names, record
from nextlong.artefacts.record import Variant
from nextlong.compose.steps import why_fewer
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.plain_data import Json
from nextlong.recipe.methods import METHODS
from nextlong.recipe.recipe import options_class
from nextlong.runs.opened import Run


@dataclass(frozen=True)
class Listed:
    """One variant; `differs` are the settings that differ from those that `RUN` opens, else from the oldest variant's.

    `exports` are folders by format and split; `why_fewer` says why it has fewer sequences than `asked`, else it is empty.
    """

    name: str
    is_current: bool
    differs: Json
    sequences: int
    asked: int | Literal["all"]
    why_fewer: str
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
            differs=_telling(names.differences(variant.recipe, base.recipe), variant.recipe),
            sequences=variant.sequences,
            asked=variant.recipe["compose"]["sequences"],
            why_fewer=_why_fewer(variant),
            tokens_each=_tokens_each(variant),
            exports={step: folder for step, folder in variant.steps.items() if "rows" in inputs_of(run_dir / folder)},
            bytes=sum(sizes[folder] for folder in set(variant.steps.values())),
            alone_bytes=sum(sizes[folder] for folder in set(variant.steps.values()) if holders[folder] == 1),
            made=variant.made,
        )
        for variant in there
    ]


def _telling(differs: Json, recipe: Json) -> Json:
    """Return the differences without the defaults of another method's section, which come and go with `compose.method`."""
    method = recipe["compose"]["method"]
    known = METHODS.names()
    default = options_class(method)().model_dump(mode="json") if method in known else {}

    def is_default(key: str, value: object) -> bool:
        section, _, option = key.partition(".")
        return section in known and (value == default.get(option) if section == method else value is None)

    return {key: value for key, value in differs.items() if not is_default(key, value)}


def _why_fewer(variant: Variant) -> str:
    asked = variant.recipe["compose"]["sequences"]
    if not isinstance(asked, int) or variant.sequences >= asked:
        return ""
    try:
        run = Run(variant.named)
        return "; ".join(why_fewer(run.recipe, run.steps))
    except (RunError, KeyError):  # a step is damaged, of which `verify` tells
        return "unknown: its steps cannot be read"


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
