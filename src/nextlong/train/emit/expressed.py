"""Expressed: refuse a recipe that another trainer would carry out differently, instead of dropping a key in silence.

A trainer declares the keys that it expresses. Every other key must have its default, which is what the trainer does anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from nextlong.errors import RecipeError
from nextlong.train.recipe import TrainRecipe

Keys = Mapping[
    str, tuple[Any, ...] | None
]  # the values that a trainer expresses of a key, or of a whole section; None: all

DATA: Final[Keys] = dict.fromkeys(
    ("data.runs", "data.mix", "data.by", "data.pack", "data.validation", "data.shared_chunks", "data.split_seed")
)
EVERYWHERE: Final[Keys] = dict.fromkeys(
    ("out", "hardware.device", "hardware.count", "hardware.ranks_per_row", "model.path")
)


def check(recipe: TrainRecipe, keys: Keys, *, trainer: str, cure: str) -> None:
    """Raise RecipeError that names every key which `trainer` cannot express."""
    wrong, known = [], {**EVERYWHERE, **keys}
    for key, value, default in _leaves(recipe, above=""):
        section = key.split(".")[0]
        values = known[key] if key in known else known.get(section, (default,))
        if values is not None and value not in values:
            wrong.append(f"{key}={_said(value)} (only {' or '.join(map(_said, values))})")
    if wrong:
        raise RecipeError(f"{trainer} cannot express {'; '.join(wrong)}; {cure}")


def _leaves(section: BaseModel, *, above: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key, its value and its default."""
    for name, field in type(section).model_fields.items():
        value, default = getattr(section, name), field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel) and default is not None:  # a section; model.scratch is a value
            yield from _leaves(value, above=f"{above}{name}.")
        else:
            yield f"{above}{name}", value, default


def _said(value: Any) -> str:
    return "null" if value is None else str(value)
