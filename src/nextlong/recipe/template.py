"""Template: write a recipe as commented YAML.

In:  a recipe. Out: YAML with the description of each key, generated from the models so that it is always up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe.keys import options_class
from nextlong.recipe.recipe import Recipe, encoder_with
from nextlong.text import Json

_COMMENT_COLUMN = 44
# The keys of a new recipe, even if they have their defaults.
_SHOWN = frozenset((
    "run_dir", "ingest.sources.path", "ingest.sources.name", "ingest.sources.text", "ingest.dedup", "decontaminate.files",
    "encoder.model", "tokenizer.eos", "compose.method", "compose.sequences", "compose.target_tokens", "export.formats",
    "export.pack", "export.validation",
))  # fmt: skip


def commented(recipe: Recipe, *, heading: str) -> str:
    """Return the recipe as YAML with every key and a comment for each; `Recipe.load` reads it back to an equal recipe."""
    values: Json = {name: getattr(recipe, name) for name in type(recipe).model_fields}
    # Include the options of all built-in encoders and methods, the latter before `export`.
    values["encoder"] = encoder_with(tuple(ENCODERS.built_in)).model_validate(recipe.encoder.model_dump(mode="json"))
    export = values.pop("export")
    of_methods = {name: options_class(METHODS, name)() for name in METHODS.built_in}
    shown = {name: values.get(name, options) for name, options in of_methods.items() if type(options).model_fields}
    return _headed(heading, _lines(recipe, values | shown | {"export": export}, keys="all"))


def short(recipe: Recipe, *, heading: str) -> str:
    """Return the most important keys of a recipe as commented YAML that reads back to an equal recipe.

    Other keys are included only if they differ from their default.
    """
    return _headed(heading, _lines(recipe, dict(recipe), keys="important"))


def commented_sections(recipe: BaseModel, *, heading: str, sources: Mapping[str, tuple[Any, str]]) -> str:
    """Return another kind of recipe in the same form; `sources` has the values of a preset, each with its source, by dotted key."""
    unchanged = [key for key, (value, _) in sources.items() if reduce(getattr, key.split("."), recipe) == value]
    origins = {key: f"[{sources[key][1]}]" for key in unchanged}
    return _headed(heading, _lines(recipe, dict(recipe), keys="all", sources=origins))


def _headed(heading: str, lines: Sequence[str]) -> str:
    return "\n".join([*(f"# {line}".rstrip() for line in heading.splitlines()), *lines]) + "\n"


def _lines(
    model: BaseModel,
    values: Mapping[str, Any],
    *,
    keys: Literal["all", "important"],
    above: str = "",
    depth: int = 0,
    has_comments: bool = True,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a model's `values`, with nested sections; `above` is its dotted key with a final dot."""
    lines: list[str] = []
    indent = "  " * depth
    for key, value in values.items():
        field, dotted = type(model).model_fields.get(key), f"{above}{key}"
        comment = field.description if field is not None and has_comments else None
        comment = "; ".join(filter(None, [sources.get(dotted), comment]))
        if isinstance(value, BaseModel):
            below = _lines(value, dict(value), keys=keys, above=f"{dotted}.", depth=depth + 1, sources=sources)
            if below or keys == "all":
                doc = (type(value).__doc__ or "").strip().partition("\n")[0] if keys == "all" else None
                lines += [*([""] if depth == 0 else []), _beside(f"{indent}{key}:", doc), *below]
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            lines.append(_beside(f"{indent}{key}:", comment if keys == "all" else None))
            for number, item in enumerate(value):
                has_own = keys == "all" or number == 0  # in a short recipe, only the first item has comments
                place: Json = {"above": f"{dotted}.", "depth": depth + 2, "has_comments": has_own}
                first, *others = _lines(item, dict(item), keys=keys, **place)
                lines += [f"{indent}  - {first.lstrip()}", *others]
        elif keys == "all" or dotted in _SHOWN or (field is not None and value != field.get_default()):
            plain = list(value) if isinstance(value, tuple) else value
            quotes = '"' if isinstance(plain, str) and not (plain and plain.isprintable()) else None
            text = yaml.safe_dump(
                plain, default_style=quotes, default_flow_style=True, allow_unicode=True, width=10_000
            )
            scalar = text.removesuffix("\n").removesuffix("\n...")
            lines.append(_beside(f"{indent}{key}: {scalar}", comment))
    return lines


def _beside(line: str, comment: str | None) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line
