"""Earlier: what steps took in this run directory before, which says more of this machine than a sample does.

In:  a recipe, its steps, and the manifests of a run directory.
Out: seconds per unit of one worker, by step; and of the steps that take over what earlier ones made, how much is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nextlong.engine import store
from nextlong.engine.estimate import Amounts
from nextlong.engine.runner import find_done
from nextlong.engine.step import Step
from nextlong.recipe import Recipe

_TELLING_SECONDS: Final = 1.0  # below, an earlier step's time is start-up and says nothing of a larger one
# Counts of a manifest that are in the unit of the step's `Estimate.work`; of other steps nothing follows from earlier times.
_UNITS: Final = {
    "ingest": "text_bytes",
    "chunk": "chars",
    "encoder": "fit_chunks",
    "embed": "chunks",
    "lengths": "chars",
    "tokens": "chars",
}


def earlier_rates(recipe: Recipe, run_dir: Path) -> dict[str, float]:
    """Return seconds per unit of work of one worker that steps took in this run directory, by step, the latest first.

    Encoders count only for the same model.
    """
    rates: dict[str, float] = {}
    for manifest in _manifests(run_dir, "*"):
        name, parts = manifest["step"], manifest["parts"]
        seconds = sum(part["seconds"] for part in parts)
        units = _units_of(manifest)
        if units and seconds >= _TELLING_SECONDS and _same_encoder(recipe, manifest, run_dir):
            rates[name] = seconds / units
    return rates


def shares_to_do(steps: Sequence[Step], amounts: Amounts, run_dir: Path) -> dict[str, float]:
    """Return, for the step that tokenizes, which share of its chunks no earlier length or method has tokenized here.

    Where the same documents are drawn, the chunks of a longer sequence begin with those of a shorter one; where others are,
    some chunks are met again by chance.
    """
    by_name = {step.name: step for step in steps}
    tokens = by_name.get("tokens")
    if tokens is None or not amounts.referenced_chunks:
        return {}
    inputs = {step.name: step.fingerprint for step in tokens.inputs if step.name != "referenced_chunks"}
    known = max(
        (_chunks_of(one) for one in _manifests(run_dir, "tokens") if inputs.items() <= one["inputs"].items()), default=0
    )
    drawn = by_name.get("meta_documents")
    if drawn is not None and find_done(drawn, run_dir) is not None:
        return {"tokens": max(0.0, 1 - known / amounts.referenced_chunks)}
    return {"tokens": max(0.0, 1 - known / max(1.0, amounts.chunks))}


def _chunks_of(manifest: Mapping[str, Any]) -> int:
    return sum(part["counts"].get("chunks", 0) for part in manifest["parts"])


def _manifests(run_dir: Path, name: str) -> list[Any]:
    """Return the manifests of finished steps of a name, the oldest first."""
    paths = run_dir.glob(f"[0-9][0-9]-{name}-*/manifest.json")
    return list(map(store.read_json, sorted(paths, key=lambda path: path.stat().st_mtime)))


def _units_of(manifest: Mapping[str, Any]) -> float:
    counts = [part["counts"] for part in manifest["parts"]]
    units = float(sum(count.get(_UNITS.get(manifest["step"], ""), 0) for count in counts))
    if manifest["step"] != "tokens":
        return units
    chunks, copied = (float(sum(count[key] for count in counts)) for key in ("chunks", "copied_chunks"))
    return units * (1 - copied / max(1.0, chunks))


def _same_encoder(recipe: Recipe, manifest: Mapping[str, Any], run_dir: Path) -> bool:
    if manifest["step"] not in ("encoder", "embed"):
        return True
    encoder = manifest if manifest["step"] == "encoder" else _input_of(manifest, "encoder", run_dir)
    return encoder is not None and encoder["config"].get("model") == recipe.encoder.model


def _input_of(manifest: Mapping[str, Any], name: str, run_dir: Path) -> Mapping[str, Any] | None:
    path = next(iter(run_dir.glob(f"[0-9][0-9]-{name}-{manifest['inputs'][name]}/manifest.json")), None)
    return None if path is None else store.read_json(path)
