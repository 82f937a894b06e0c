"""Names: what a variant of a run directory is called, and which settings tell it from the others.

In:  recipes, as models or as plain data. Out: names that are readable, unique in their run directory, and stable: one that
is given once stays, whatever runs later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

from nextlong.artefacts.record import Variant, current, variants
from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.recipe import Recipe
from nextlong.recipe.export import FORMATS
from nextlong.recipe.keys import Section, operational_keys

DATA: Final = "data"  # the folder of the finished rows, in a run directory
_FIRST_NAME: Final = "base"
_LONGEST_VALUE, _LONGEST_NAME = 40, 120  # characters of a name that is made from settings
LONG_NAME: Final = 32  # where somebody would rather give one


def settings_of(recipe: Mapping[str, Any]) -> Json:
    """Return what a recipe, as plain data, makes a variant of, by dotted key."""
    try:
        return dict(_flat(Recipe.from_dict(recipe).identity()))  # with the defaults of keys that are new
    except RecipeError:
        return {key: value for key, value in _flat(recipe) if not _is_operational(key, Recipe)}


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for inner, below in value.items():
            yield from _flat(below, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for place, below in enumerate(value):
            yield from _flat(below, f"{key}.{place}")
    else:
        yield key, value


def _is_operational(key: str, section: type[Section]) -> bool:
    """Say whether a dotted key of a section, or the section that it is in, is operational."""
    name, _, below = key.partition(".")
    field = section.model_fields.get(name)
    if name in operational_keys(section) or field is None or not below:
        return name in operational_keys(section)
    kind = field.annotation
    return isinstance(kind, type) and issubclass(kind, Section) and _is_operational(below, kind)


def differences(recipe: Mapping[str, Any], first: Mapping[str, Any]) -> Json:
    """Return the settings of a recipe that another does not have, by dotted key; None where only the other has the key."""
    ours, theirs = settings_of(recipe), settings_of(first)
    absent = object()
    return {key: ours.get(key) for key in (*ours, *theirs) if ours.get(key, absent) != theirs.get(key, absent)}


def name_for(recipe: Recipe, run_dir: Path) -> str:
    """Return the name under which a recipe's variant is, or will be, recorded.

    The recipe's `name`, else that of the variant with the same settings, else `base` for a recipe's own settings; where that
    is the name of earlier settings, or the recipe has overrides, a name made of what differs. Raises RecipeError if the
    recipe's `name` is another variant's, or that of a folder of `data/`.
    """
    there = variants(run_dir)
    plain = recipe.model_dump(mode="json")
    alike = [variant.name for variant in there if not differences(plain, variant.recipe)]
    if recipe.name is not None:
        _check_free(recipe.name, [variant for variant in there if variant.name not in alike], plain)
        return recipe.name
    if alike:
        own = current(run_dir)
        return own if own in alike else alike[0]
    wanted = list(_wanted(recipe, plain, there))
    taken = {variant.name for variant in there}
    numbered = (f"{wanted[-1]}-{number}" for number in range(2, len(there) + 3))
    return next(name for name in (*wanted, *numbered) if name not in taken)


def _wanted(recipe: Recipe, plain: Json, there: Sequence[Variant]) -> Iterator[str]:
    """Yield names for settings that have none yet, the one to prefer first."""
    if not recipe.overridden:
        yield _FIRST_NAME
        differing = differences(plain, there[0].recipe) if there else {}
    else:
        differing = settings_of(plain) if recipe.own is None else differences(plain, recipe.own.model_dump(mode="json"))
        asked = {
            key: value
            for overridden in recipe.overridden
            for key, value in differing.items()
            if f"{key}.".startswith(f"{overridden}.")
        }
        differing = asked or differing
    if differing:
        yield name_of(differing)
        yield name_of(differing, keys="whole")


def _check_free(name: str, others: Sequence[Variant], recipe: Mapping[str, Any]) -> None:
    if name in FORMATS.names() or name == "README.md" or name.startswith("mix-"):
        raise RecipeError(f"name={name}: {DATA}/{name} has another meaning in a run directory; choose another name")
    for variant in others:
        if variant.name == name:
            changed = ", ".join(f"{key}={word(value)}" for key, value in differences(recipe, variant.recipe).items())
            raise RecipeError(
                f"name={name}: {variant.run_dir} has a variant of this name with other settings (now {changed}); choose another "
                f"name, or give this one up: nextlong gc {variant.run_dir} --drop {name}"
            )


def name_of(settings: Mapping[str, Any], *, keys: Literal["short", "whole"] = "short") -> str:
    """Return `key=value,key=value`, fit for a file's name, with the last parts of the keys where these differ."""
    lasts = [key.rpartition(".")[2] for key in settings]
    shown = lasts if len(set(lasts)) == len(lasts) and keys == "short" else list(settings)
    pairs = [f"{key}={_short(word(value))}" for key, value in zip(shown, settings.values(), strict=True)]
    name = re.sub(r"[^\w.+=,-]+", "-", ",".join(pairs)).lstrip(".-")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 7]}-{_digest(name)}"


def word(value: Any) -> str:
    """Return a value as a name or a table has it: text as it is, lists joined by +."""
    if isinstance(value, list | tuple):
        return "+".join(map(word, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _short(text: str) -> str:
    tail = text.rstrip("/").rpartition("/")[2] or text  # of a path, what tells it from others
    return text if len(text) <= _LONGEST_VALUE else f"{tail[: _LONGEST_VALUE - 7]}-{_digest(text)}"


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())[:6]
