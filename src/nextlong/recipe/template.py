"""Template: a recipe as commented YAML, every key with its meaning, generated from the models so that it cannot go stale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe.encoder import encoder_with
from nextlong.recipe.keys import options_class
from nextlong.recipe.recipe import Recipe
from nextlong.text import Json

_COMMENT_COLUMN = 44
# What a first recipe shows, default or not.
_SHOWN = frozenset(
    {
        "run_dir",
        *(f"ingest.sources.{key}" for key in ("path", "name", "text")),
        "ingest.dedup",
        "decontaminate.files",
        "encoder.model",
        "tokenizer.eos",
        *(f"compose.{key}" for key in ("method", "sequences", "target_tokens")),
        *(f"export.{key}" for key in ("formats", "pack", "validation")),
    }
)


def commented(recipe: Recipe, *, heading: str) -> str:
    """Return the recipe as YAML with a comment for each key; `Recipe.load` reads it back to an equal recipe."""
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for name, section in _sections(recipe).items():
        lines += _section(name, section, 0) if isinstance(section, BaseModel) else _entry(recipe, name, 0)
    return "\n".join(lines) + "\n"


def short(recipe: Recipe, *, heading: str) -> str:
    """Return the keys of the recipe that nearly everybody changes, as commented YAML that reads back to an equal recipe.

    A key that matters less stands there only if it has another value than the default.
    """
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for name in type(recipe).model_fields:
        value = getattr(recipe, name)
        below = _matching(value, name) if isinstance(value, BaseModel) else []
        if (
            name in _SHOWN
            or below
            or (not isinstance(value, BaseModel) and value != type(recipe).model_fields[name].default)
        ):
            lines += [*([""] if below else []), f"{name}:", *below] if below else _entry(recipe, name, 0)
    return "\n".join(lines) + "\n"


def _matching(section: BaseModel, name: str, depth: int = 1, *, comments: Literal["all", "none"] = "all") -> list[str]:
    """Return the keys of a section that matter or say something, and the sections below it that do."""
    lines = []
    for key, field in type(section).model_fields.items():
        value, dotted = getattr(section, key), f"{name}.{key}"
        if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            lines += [
                f"{'  ' * depth}{key}:",
                *_items(value, dotted, depth + 1),
            ]
        elif isinstance(value, BaseModel):
            below = _matching(value, dotted, depth + 1)
            lines += [f"{'  ' * depth}{key}:", *below] if below else []
        elif dotted in _SHOWN or value != field.get_default():
            comment = f"  # {field.description}" if comments == "none" else ""
            lines += [line.removesuffix(comment).rstrip() if comment else line for line in _entry(section, key, depth)]
    return lines


def _items(models: Sequence[BaseModel], name: str, depth: int) -> list[str]:
    """Return the items of a list; what their keys mean stands beside the first."""
    first, *others = models
    lines = _short_item(first, name, depth, comments="all")
    return lines + [line for model in others for line in _short_item(model, name, depth, comments="none")]


def _short_item(model: BaseModel, name: str, depth: int, *, comments: Literal["all", "none"]) -> list[str]:
    lines = _matching(model, name, depth + 1, comments=comments)
    return [f"{'  ' * depth}- {lines[0].lstrip()}", *lines[1:]]


def _sections(recipe: Recipe) -> Json:
    """Return the recipe's keys in order, with the options of every built-in encoder, and of every method before `export`."""
    said = {name: getattr(recipe, name) for name in type(recipe).model_fields}
    said["encoder"] = encoder_with(ENCODERS.built_in).model_validate(recipe.encoder.model_dump(mode="json"))
    export = said.pop("export")
    of_methods = {name: options_class(METHODS, name)() for name in METHODS.built_in}
    shown = {name: said.get(name, options) for name, options in of_methods.items() if type(options).model_fields}
    return said | shown | {"export": export}


def _section(name: str, section: BaseModel, depth: int) -> list[str]:
    doc = (type(section).__doc__ or "").strip().splitlines()[0]
    below = [line for key in type(section).model_fields for line in _entry(section, key, depth + 1)]
    return [*([""] if depth == 0 else []), _beside(f"{'  ' * depth}{name}:", doc), *below]


def _entry(model: BaseModel, name: str, depth: int) -> list[str]:
    field, value = type(model).model_fields[name], getattr(model, name)
    indent = "  " * depth
    if isinstance(value, BaseModel):
        return _section(name, value, depth)
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return [
            _beside(f"{indent}{name}:", field.description),
            *(line for item in value for line in _item(item, depth + 1)),
        ]
    return [_beside(f"{indent}{name}: {_scalar(value)}", field.description)]


def _item(model: BaseModel, depth: int) -> list[str]:
    lines = [line for key in type(model).model_fields for line in _entry(model, key, depth + 1)]
    return [f"{'  ' * depth}- {lines[0].lstrip()}", *lines[1:]]


def _scalar(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, str) and (not plain.isprintable() or not plain):
        return yaml.safe_dump(plain, default_style='"', width=10_000).removesuffix("\n")
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _beside(line: str, comment: str | None) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line
