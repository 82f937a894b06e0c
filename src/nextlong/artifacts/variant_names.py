"""Variant names: the settings in which variants differ, and names made from them.

In:  a recipe, and the records of a run directory. Out: the name under which its variant
is, or will be, recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

from nextlong.artifacts.variant_records import (
    DATA,
    current,
    flattened,
    seen_from_run,
    settings_of,
    variants,
)
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, FORMATS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import options_class
from nextlong.text import Json

_FIRST_NAME: Final = "base"


_LONGEST_VALUE, _LONGEST_NAME = 40, 120  # characters of a generated name


LONG_NAME: Final = 32  # characters above which a user may prefer an own name


def differences(recipe: Mapping[str, Any], first: Mapping[str, Any]) -> Json:
    """Return the settings of a recipe that differ from another, by dotted key; None if only the other has the key.

    Options of a method or an encoder that one recipe lacks count as their defaults.
    """
    ours, theirs = settings_of(recipe), settings_of(first)
    defaults: Json = {}
    for above in {key.rpartition(".")[0] for key in {*ours} ^ {*theirs}}:
        registry = ENCODERS if above.startswith("encoder.") else METHODS
        if (name := above.removeprefix("encoder.")) in registry:
            defaults |= dict(
                flattened(options_class(registry, name)().identity(), above)
            )
    full, other = defaults | ours, defaults | theirs
    absent = object()  # unlike every value, None too
    return {
        key: ours.get(key)
        for key in (*ours, *theirs)
        if full.get(key, absent) != other.get(key, absent)
    }


def name_for(recipe: Recipe, run_dir: Path) -> str:
    """Return the name under which the variant of a recipe is, or will be, recorded.

    That is the recipe's `name`; else the name of a variant with the same settings; else `base` for a recipe without overrides;
    or, if `base` has other settings, a name made from the differing settings. Raises RecipeError if the recipe's `name` belongs
    to another variant or to a folder in `data/`.
    """
    recorded = variants(run_dir)
    plain = seen_from_run(recipe.model_dump(mode="json"), Path.cwd(), run_dir)
    alike = [
        variant.name for variant in recorded if not differences(plain, variant.settings)
    ]
    if (name := recipe.name) is not None:
        if name in FORMATS.names() or name == "README.md" or name.startswith("mix-"):
            raise RecipeError(
                f"name={name}: {DATA}/{name} is reserved in a run directory; choose another name"
            )
        if name not in alike and (
            same_name := next((one for one in recorded if one.name == name), None)
        ):
            changed = ", ".join(
                f"{key}={word(value)}"
                for key, value in differences(plain, same_name.settings).items()
            )
            cure = f"choose another name, or delete that variant: nextlong gc {run_dir} --drop {name}"
            why = f"{run_dir} has a variant of this name with other settings (now {changed})"
            raise RecipeError(f"name={name}: {why}; {cure}")
        return name
    if alike:
        current_name = current(run_dir)
        return current_name if current_name in alike else alike[0]
    preferred: list[str] = []  # names, best first
    if not recipe.overridden:
        preferred, differing = (
            [_FIRST_NAME],
            differences(plain, recorded[0].settings) if recorded else {},
        )
    else:
        own = recipe.own
        differing = (
            settings_of(plain)
            if own is None
            else differences(
                plain,
                seen_from_run(own.model_dump(mode="json"), Path.cwd(), run_dir),
            )
        )
        overridden = [
            key
            for name in recipe.overridden
            for key in differing
            if f"{key}.".startswith(f"{name}.")
        ]
        differing = {key: differing[key] for key in overridden or differing}
    if differing:
        preferred += [name_of(differing), name_of(differing, keys="whole")]
    taken = {variant.name for variant in recorded}
    numbered = (f"{preferred[-1]}-{number}" for number in range(2, len(recorded) + 3))
    return next(name for name in (*preferred, *numbered) if name not in taken)


def name_of(
    settings: Mapping[str, Any], *, keys: Literal["short", "whole"] = "short"
) -> str:
    """Return `key=value,key=value` as a valid file name, with only the last parts of the keys if these are distinct."""
    lasts = [key.rpartition(".")[2] for key in settings]
    shown = (
        lasts if len(set(lasts)) == len(lasts) and keys == "short" else list(settings)
    )
    values = []
    for text in map(word, settings.values()):
        last = (
            text.rstrip("/").rpartition("/")[2] or text
        )  # of a path, which says most about it
        text = last if text.startswith(("/", "./", "../", "~")) else text
        values.append(
            text
            if len(text) <= _LONGEST_VALUE
            else f"{last[: _LONGEST_VALUE - 7]}-{_digest(text)}"
        )
    pairs = ",".join(f"{key}={value}" for key, value in zip(shown, values, strict=True))
    name = re.sub(r"[^\w.+=,-]+", "-", pairs).lstrip(".-")
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"{name[: _LONGEST_NAME - 7]}-{_digest(name)}"
    )


def word(value: Any) -> str:
    """Return a value as text for a name or a table; lists are joined by +."""
    if isinstance(value, list | tuple):
        return "+".join(map(word, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())[:6]
