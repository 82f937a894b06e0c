"""Listed: the states of a run directory, one a row: what tells them apart, what they hold, and what they weigh.

In:  a run directory. Out: one `Listed` a state, the oldest first. A folder that several states need counts for each of
them; `alone_bytes` is what dropping the one state would free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextlong.artefacts import names, record
from nextlong.artefacts.record import State
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.plain_data import Json


@dataclass(frozen=True)
class Listed:
    """One state; `differs` are the settings that the oldest state has otherwise, `exports` folders by format and split."""

    name: str
    is_current: bool
    differs: Json
    sequences: int
    tokens_each: int | None
    exports: dict[str, str]
    bytes: int
    alone_bytes: int
    made: str


def list_states(run_dir: Path) -> list[Listed]:
    """Return the states of a run directory, the oldest first. Raises RunError if nothing has finished there."""
    current = record.find(run_dir).name
    there = record.states(run_dir)
    holders = Counter(folder for state in there for folder in set(state.steps.values()))
    sizes = {folder: bytes_of(run_dir / folder) for folder in holders}
    return [
        Listed(
            name=state.name,
            is_current=state.name == current,
            differs=names.differences(state.recipe, there[0].recipe),
            sequences=state.sequences,
            tokens_each=_tokens_each(state),
            exports={step: folder for step, folder in state.steps.items() if "rows" in inputs_of(run_dir / folder)},
            bytes=sum(sizes[folder] for folder in set(state.steps.values())),
            alone_bytes=sum(sizes[folder] for folder in set(state.steps.values()) if holders[folder] == 1),
            made=state.made,
        )
        for state in there
    ]


def _tokens_each(state: State) -> int | None:
    config = manifest_of(state.run_dir / state.steps.get("compose", "")).get("config", {})
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
