"""Public recipe: a recipe as it may be published, without what reveals its machine.

In:  a recipe. Out: YAML with every key; of paths and URLs only the last part.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import MayBePath, MayBePrivate
from nextlong.recipe.text import as_yaml
from nextlong.text import Json, public_name

_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML with every key, without paths of its machine."""
    data = recipe.as_data()
    data["run_dir"] = public_name(data["run_dir"])
    # Several variants may share an export.
    del data["name"]
    for source in data["ingest"]["sources"]:
        source["path"] = public_name(source["path"])
        if source["tokenizer"] is not None:
            source["tokenizer"] = hub_name(source["tokenizer"])
    files = data["decontaminate"]["files"]
    data["decontaminate"]["files"] = [public_name(file) for file in files]
    _hide_paths(data, recipe)
    made_public = (
        ("ingest", "exclude", public_name),
        ("encoder", "model", public_model),
        ("tokenizer", "source", hub_name),
        ("export", "push", public_name),
    )
    for section, key, make_public in made_public:
        value = data[section][key]
        if value is not None:
            data[section][key] = make_public(value)
    return as_yaml(data)


def _hide_paths(data: Json, section: Section) -> None:
    """Replace marked keys of a section and its subsections by values to publish.

    `data` is the section as plain data.
    """
    for key, field in type(section).model_fields.items():
        value: Any = getattr(section, key)
        may_be_path = any(isinstance(mark, MayBePath) for mark in field.metadata)
        may_be_private = any(isinstance(mark, MayBePrivate) for mark in field.metadata)
        if isinstance(value, Section):
            _hide_paths(data[key], value)
        elif may_be_path and value is not None:
            data[key] = hub_name(value)
        elif may_be_private and value != field.default:
            data[key] = "(not published)"


def hub_name(given: str) -> str:
    """Return a hub name unchanged, and of a path its last part."""
    if _HUB_NAME.fullmatch(given) and not Path(given).exists():
        return given
    return public_name(given)


def public_model(model: str) -> str:
    """Return `encoder.model`, reduced to the last part of its path if it is local."""
    kind, colon, name = model.partition(":")
    return f"{kind}{colon}{hub_name(name)}" if colon else model
