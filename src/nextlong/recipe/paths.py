"""Paths in a recipe: relative ones start from the folder of its file.

In:  the keys of a recipe as plain data, not yet validated. Out: the same keys with
     paths seen from another folder. A path may be a glob; URLs and absolute paths stay
     as they are, and so do names of models and tokenizers, unless such a file or folder
     exists.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nextlong.plugins import METHODS
from nextlong.recipe.keys import MayBePath, options_class
from nextlong.text import Json

_Change = Callable[[str], str]


def from_folder(data: Json, folder: Path) -> Json:
    """Return the keys of a recipe file with paths from the working directory.

    Relative ones in the file start from `folder`, where it is. A source without a name
    keeps its written path as its name, so that its documents have the same source
    wherever the recipe is run from.
    """
    if folder.resolve() == Path.cwd():
        return data
    return _changed(
        data,
        path=lambda written: os.path.normpath(folder / written),
        exists=lambda written: (folder / written).exists(),
    )


def to_folder(data: Json, folder: Path) -> Json:
    """Return keys with paths that start from `folder`, not the working directory."""
    return _changed(
        data,
        path=lambda seen: os.path.relpath(seen, folder),
        exists=lambda seen: Path(seen).exists(),
    )


def from_run(data: Json, folder: Path, run_dir: Path) -> Json:
    """Return keys with all local paths as seen from the run directory.

    It is now at `run_dir`. Relative ones start from `folder`, which need not exist any
    more.
    """
    written_dir = folder / Path(data["run_dir"]).expanduser()

    def from_written_dir(path: str) -> str:
        return os.path.relpath(folder / Path(path).expanduser(), written_dir)

    def exists(name: str) -> bool:
        path = os.path.normpath(run_dir / from_written_dir(name))
        return Path(path).exists()

    return _changed(data, path=from_written_dir, exists=exists, is_changed=_is_local)


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and "://" not in value and value != ""


def is_relative(value: Any) -> bool:
    """Return whether a value is a relative path of this machine, and not a URL."""
    return (
        isinstance(value, str)
        and "://" not in value
        and value[:1] not in ("", "/", "~")
    )


def _changed(
    data: Json,
    *,
    path: _Change,
    exists: Callable[[str], bool],
    is_changed: Callable[[Any], bool] = is_relative,
) -> Json:
    """Return a copy of the keys with `path` applied to some paths.

    These are the paths for which `is_changed`, and names that exist as such files.
    """

    def change_path(value: Any) -> Any:
        return path(value) if is_changed(value) else value

    def change_name(value: Any) -> Any:
        return path(value) if is_changed(value) and exists(value) else value

    def change_model(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        kind, colon, name = value.partition(":")
        return f"{kind}{colon}{change_name(name)}" if colon else value

    changed = dict(data)
    _apply(changed, "run_dir", change_path)
    ingest = _section(changed, "ingest")
    _apply(ingest, "exclude", change_path)
    if isinstance(ingest.get("sources"), list):
        ingest["sources"] = [
            _source(source, change_path, change_name) for source in ingest["sources"]
        ]
    # Short forms, which `merge` expands only later.
    if isinstance(changed.get("decontaminate"), list):
        changed["decontaminate"] = [
            change_path(file) for file in changed["decontaminate"]
        ]
    decontaminate = _section(changed, "decontaminate")
    if isinstance(decontaminate.get("files"), list):
        decontaminate["files"] = [change_path(file) for file in decontaminate["files"]]
    if isinstance(changed.get("tokenizer"), str):
        changed["tokenizer"] = change_name(changed["tokenizer"])
    # Names of models are paths only if such a file or folder exists.
    _apply(_section(changed, "tokenizer"), "source", change_name)
    _apply(_section(changed, "encoder"), "model", change_model)
    for method in METHODS.built_in:
        if method in changed:
            section = _section(changed, method)
            for key in _model_keys(method):
                _apply(section, key, change_name)
    _apply(_section(changed, "scorer"), "model", change_name)
    _apply(_section(changed, "export"), "push", change_path)
    return changed


def _model_keys(method: str) -> list[str]:
    """Return the keys of a method's section that may name a model or a file."""
    keys = []
    for key, field in options_class(METHODS, method).model_fields.items():
        if any(isinstance(mark, MayBePath) for mark in field.metadata):
            keys.append(key)
    return keys


def _section(data: Json, key: str) -> Json:
    """Return a copy of a section that takes its place; {} if there is none."""
    section = data.get(key)
    if not isinstance(section, dict):
        return {}
    copied = dict(section)
    data[key] = copied
    return copied


def _apply(section: Json, key: str, change: Callable[[Any], Any]) -> None:
    if key in section:
        section[key] = change(section[key])


def _source(
    source: Any, change_path: Callable[[Any], Any], change_name: Callable[[Any], Any]
) -> Any:
    if not isinstance(source, dict):
        return source
    if "tokenizer" in source:
        source = source | {"tokenizer": change_name(source["tokenizer"])}
    written = source.get("path")
    path = change_path(written)
    if path == written:
        return source
    return source | {"path": path, "name": source.get("name") or written}
