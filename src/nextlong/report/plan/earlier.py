"""Earlier: what steps took in this run directory before, which says more of this machine than a sample does.

In:  a recipe, and the manifests of a run directory. Out: seconds per unit of one lane, by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextlong.engine import store
from nextlong.recipe import Recipe

_TELLING_SECONDS = 1.0  # below, an earlier step's time is start-up and says nothing of a larger one
# What an earlier step's seconds are divided by; of other steps the bytes that it wrote.
_UNITS = {
    "ingest": "text_bytes",
    "chunk": "chars",
    "encoder": "fit_chunks",
    "embed": "chunks",
    "lengths": "chars",
    "tokens": "chars",
}


def earlier_rates(recipe: Recipe, run_dir: Path) -> dict[str, float]:
    """Return seconds per unit of one lane that steps took in this run directory, by step, the latest first.

    Units are those of `costs.Work`. Encoders count only for the same model.
    """
    rates: dict[str, float] = {}
    manifests = sorted(run_dir.glob("[0-9][0-9]-*/manifest.json"), key=lambda path: path.stat().st_mtime)
    for manifest in map(store.read_json, manifests):
        name, parts = manifest["step"], manifest["parts"]
        seconds = sum(part["seconds"] for part in parts)
        units = _units_of(manifest, run_dir)
        if units and seconds >= _TELLING_SECONDS and _same_encoder(recipe, manifest, run_dir):
            rates[name] = seconds / units
    return rates


def _units_of(manifest: Mapping[str, Any], run_dir: Path) -> float:
    if manifest["step"] in _UNITS:
        return float(sum(part["counts"].get(_UNITS[manifest["step"]], 0) for part in manifest["parts"]))
    if manifest["step"] == "mine":  # every query meets every chunk
        embedded = _input_of(manifest, "embed", run_dir)
        return float(manifest["bytes"] * (_units_of(embedded, run_dir) if embedded else 0))
    return float(manifest["bytes"])


def _same_encoder(recipe: Recipe, manifest: Mapping[str, Any], run_dir: Path) -> bool:
    if manifest["step"] not in ("encoder", "embed"):
        return True
    encoder = manifest if manifest["step"] == "encoder" else _input_of(manifest, "encoder", run_dir)
    return encoder is not None and encoder["config"].get("model") == recipe.encoder.model


def _input_of(manifest: Mapping[str, Any], name: str, run_dir: Path) -> Mapping[str, Any] | None:
    path = next(iter(run_dir.glob(f"[0-9][0-9]-{name}-{manifest['inputs'][name]}/manifest.json")), None)
    return None if path is None else store.read_json(path)
