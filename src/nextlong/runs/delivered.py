"""Delivered: the record that goes with an export to where it is put, so that it can be verified there by itself.

In:  what was exported, and the files as they are sent. Out: `manifest.json`: the size and hash of every file, rows and tokens
of every split, the settings, and the fingerprints of the run that it is of. It says what it should hash to itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import xxhash

from nextlong.engine.step import Done, Finished
from nextlong.export import steps as export_steps
from nextlong.export.destination import DELIVERED, ExportFile
from nextlong.export.splits import RowsResult
from nextlong.plain_data import Json
from nextlong.recipe import Recipe
from nextlong.results import ShardResult
from nextlong.runs.card import public_recipe
from nextlong.runs.opened import Run

NAME: Final = DELIVERED


def manifest(
    recipe: Recipe,
    runs: Sequence[Run],
    done: Finished,
    *,
    name: str,
    below: Mapping[str, str],
    files: Sequence[ExportFile],
) -> str:
    """Return the record, as JSON, of one format whose splits lie in the folders `below`."""
    record = {
        "format": name,
        "nextlong": done["rows"].manifest["versions"].get("nextlong", "not installed as a package"),
        "runs": [_run(run) for run in runs],
        "rows": done["rows"].manifest["fingerprint"],
        "splits": {
            split: _split(done[export_steps.step_name(name, split)], done["rows"], split) | {"folder": folder}
            for split, folder in below.items()
        },
        "settings": recipe.export.model_dump(mode="json", exclude={"push", "formats"}),
        "recipe": public_recipe(recipe),
        "files": {
            file.name: {"bytes": file.bytes, "xxh3": file.xxh3} for file in sorted(files, key=lambda file: file.name)
        },
    }
    # Without a newline at the end: whatever is cut off, it is JSON no more.
    return json.dumps(record | {"xxh3": fingerprint(record)}, indent=1, ensure_ascii=False)


def fingerprint(record: Mapping[str, Any]) -> str:
    """Return the hash of a record without its own `xxh3`, whatever its layout as JSON."""
    plain = {key: value for key, value in record.items() if key != "xxh3"}
    return xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def _run(run: Run) -> Json:
    return {
        "name": run.path.name,
        "variant": run.variant.name,
        "steps": {step.name: step.fingerprint for step in export_steps.read_steps(run.steps)},
        "sequences": len(run),
        "target_tokens": run.recipe.sequence_tokens,
    }


def _split(step: Done, rows: Done, split: str) -> Json:
    """Return what one split holds; of a format that adds tokens, as it counted them itself."""
    arranged = rows.result(RowsResult).splits[split]
    counted = [shard.tokens for shard in step.results(ShardResult) if shard.tokens is not None]
    return {
        "step": step.manifest["fingerprint"],
        "config": step.manifest["config"],
        **arranged.model_dump(include={"rows", "sequences", "documents"}),
        "tokens": sum(counted) if counted else arranged.tokens,
    }
