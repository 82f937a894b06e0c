"""Recipe reference: a directive that lists every key of a recipe, from the models that read recipes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docutils import nodes
from docutils.statemachine import StringList
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import options_class

WORDS = {
    NoneType: "null",
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true | false",
}


class RecipeReference(SphinxDirective):
    """Every key of a recipe: its name, what it may be, its default, what it means."""

    def run(self) -> list[nodes.Node]:
        """Return a section a part of the recipe."""
        methods = {name: options_class(METHODS, name) for name in METHODS.built_in}
        encoders = {
            f"encoder.{name}": options_class(ENCODERS, name)
            for name in ENCODERS.built_in
        }
        parts = {
            "": Recipe,
            **sections(Recipe),
            **encoders,
            **{name: own for name, own in methods.items() if own.model_fields},
        }
        lines = [line for name, model in parts.items() for line in part(name, model)]
        holder = nodes.section()
        holder.document = self.state.document
        self.state.nested_parse(
            StringList(lines, source="nextlong.recipe"), 0, holder, match_titles=True
        )
        return holder.children


def sections(model: type[BaseModel], above: str = "") -> dict[str, type[BaseModel]]:
    """Return the models below a model by their dotted names."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        for own in models_in(field.annotation):
            listed = "[]" if own is not field.annotation else ""
            found[f"{above}{name}{listed}"] = own
            found |= sections(own, f"{above}{name}{listed}.")
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def part(name: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of one section: heading, meaning, and a table of its own keys."""
    yield from (f"## {name or 'At the top'}", "")
    if name:
        yield from ((model.__doc__ or "").strip().splitlines()[0], "")
    rows = [
        row(key, field)
        for key, field in model.model_fields.items()
        if not list(models_in(field.annotation))
    ]
    if rows:
        yield from (
            "| key | values | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        )


def row(key: str, field: FieldInfo) -> str:
    """Return a row of the table."""
    default = (
        "needed"
        if field.is_required()
        else f"`{shown(field.get_default(call_default_factory=True))}`"
    )
    return f"| `{key}` | {escaped(kind(field.annotation))} | {default} | {escaped(field.description or '')} |"


def kind(annotation: Any) -> str:
    """Return what a value may be, as a reader of YAML would say it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin is tuple:
        return f"list of {kind(inner[0])}"
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(kind, inner)))
    return WORDS.get(annotation, "text")


def shown(value: Any) -> str:
    """Return a default as YAML writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, str) and not value.strip():
        return json.dumps(value)
    return str(list(value) if isinstance(value, tuple) else value)


def escaped(text: str) -> str:
    """Return text that stands in a cell as it is."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("recipe-reference", RecipeReference)
    return {"parallel_read_safe": True}
