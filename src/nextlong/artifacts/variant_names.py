"""Variant names: the settings in which variants differ, and names made from them.

In:  a recipe, and the records of a run directory. Out: the name under which its variant
is, or will be, recorded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import xxhash

from nextlong.artifacts.variant_records import (
    DATA,
    Variant,
    current,
    seen_from_run,
    variants,
)
from nextlong.errors import PluginError, RecipeError
from nextlong.plugins import ENCODERS, FORMATS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import options_class
from nextlong.text import Json

_FIRST_NAME: Final = "base"
_NAMELESS: Final = "variant"  # for values without a letter or a digit
_MAX_VALUE_CHARS: Final = 40  # in a generated name
_MAX_NAME_CHARS: Final = 60  # of a generated name
# Keys whose values say what they are of.
_TELLING: Final = frozenset(
    {"compose.method", "compose.negatives", "encoder.model", "mine.shortlist"}
)
_LENGTH: Final = "compose.target_tokens"
LONG_NAME: Final = 32  # characters above which a user may prefer an own name


def _settings_of(recipe: Mapping[str, Any]) -> Json:
    """Return the settings that distinguish variants, by dotted key, of plain data."""
    try:
        # This adds the defaults of new keys.
        identity: Mapping[str, Any] = Recipe.from_dict(recipe).identity()
    except (RecipeError, PluginError):
        # Of another version, or with an extension that is broken or not installed.
        identity = recipe
    return dict(flattened(identity))


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested plain data."""
    if isinstance(value, Mapping) and value:
        for inner, below in value.items():
            yield from flattened(below, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for index, below in enumerate(value):
            yield from flattened(below, f"{key}.{index}")
    else:
        yield key, value


def differences(recipe: Mapping[str, Any], first: Mapping[str, Any]) -> Json:
    """Return the settings of a recipe that differ from another, by dotted key.

    None if only the other has the key. Options of a method or an encoder that one
    recipe lacks count as their defaults.
    """
    ours = _settings_of(recipe)
    theirs = _settings_of(first)
    # A section of options that only one recipe has belongs to a method or an encoder.
    defaults: Json = {}
    only_one_has = {*ours} ^ {*theirs}
    for section in {key.rpartition(".")[0] for key in only_one_has}:
        registry = ENCODERS if section.startswith("encoder.") else METHODS
        name = section.removeprefix("encoder.")
        if name in registry:
            with suppress(PluginError):
                options = options_class(registry, name)()
                defaults |= dict(flattened(options.identity(), section))
    ours_with_defaults = defaults | ours
    theirs_with_defaults = defaults | theirs
    absent = object()  # unlike every value, None too
    differing = {}
    for key in (*ours, *theirs):
        own_value = ours_with_defaults.get(key, absent)
        if own_value != theirs_with_defaults.get(key, absent):
            differing[key] = ours.get(key)
    return differing


def name_for(recipe: Recipe, run_dir: Path, *, taken: Collection[str] = ()) -> str:
    """Return the name under which the variant of a recipe is, or will be, recorded.

    That is the recipe's `name`; else the name of a variant with the same settings; else
    `base` for a recipe without overrides; or, if `base` has other settings, a name made
    from the differing settings. A name that another variant has, or that is `taken`,
    gets a number. Raises RecipeError if the recipe's `name` belongs to another variant
    or to a folder in `data/`.
    """
    recorded = variants(run_dir)
    settings = seen_from_run(recipe.model_dump(mode="json"), Path.cwd(), run_dir)
    alike = [
        variant.name
        for variant in recorded
        if not differences(settings, variant.settings)
    ]
    if recipe.name is not None:
        _check_reserved(recipe.name)
        if recipe.name not in alike:
            _check_taken(recipe.name, settings, recorded, run_dir)
        return recipe.name
    if alike:
        current_name = current(run_dir)
        return current_name if current_name in alike else alike[0]
    used = {*taken, *(variant.name for variant in recorded)}
    if not recipe.overridden and _FIRST_NAME not in used:
        return _FIRST_NAME
    return _free(name_of(_differing(recipe, settings, recorded, run_dir)), used)


def _free(name: str, used: Collection[str]) -> str:
    """Return a name that is free: itself, or with the next number."""
    free = name
    number = 1
    while free in used or _is_reserved(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _is_reserved(name: str) -> bool:
    """Return whether `data/` may hold something else under a name."""
    return name in FORMATS.names() or name == "README.md" or name.startswith("mix-")


def _check_reserved(name: str) -> None:
    """Raise RecipeError for the name of something else in `data/`."""
    if _is_reserved(name):
        raise RecipeError(
            where="name",
            value=name,
            problem=f"cannot be used: {DATA}/{name} is reserved in a run directory",
            fix="choose another name",
        )


def _check_taken(
    name: str, settings: Json, recorded: Sequence[Variant], run_dir: Path
) -> None:
    """Raise RecipeError if a variant with other settings has the name."""
    for variant in recorded:
        if variant.name == name:
            changed = differences(settings, variant.settings)
            now = ", ".join(f"{key}={word(value)}" for key, value in changed.items())
            raise RecipeError(
                where="name",
                value=name,
                problem=(
                    f"is taken: {run_dir} has a variant of this name with other "
                    f"settings (now {now})"
                ),
                fix=(
                    "choose another name, or delete that variant: "
                    f"nextlong gc {run_dir} --drop {name}"
                ),
            )


def _differing(
    recipe: Recipe, settings: Json, recorded: Sequence[Variant], run_dir: Path
) -> Json:
    """Return the settings that tell a variant from the first one of its directory."""
    if recipe.overridden:
        return _overridden_settings(recipe, settings, run_dir)
    return differences(settings, recorded[0].settings) if recorded else {}


def _overridden_settings(recipe: Recipe, settings: Json, run_dir: Path) -> Json:
    """Return what the overrides of a recipe change.

    If that is nothing, return all that differs.
    """
    if recipe.own is None:
        differing = _settings_of(settings)
    else:
        own = seen_from_run(recipe.own.model_dump(mode="json"), Path.cwd(), run_dir)
        differing = differences(settings, own)
    overridden: Json = {}
    for name in recipe.overridden:
        for key, value in differing.items():
            if f"{key}.".startswith(f"{name}."):
                overridden[key] = value
    return overridden or differing


def name_of(settings: Mapping[str, Any]) -> str:
    """Return a short name for settings, in the words of their values: `knn-64k`.

    Words come first, then lengths; another value follows the last part of its key.
    """
    if not settings:
        return _FIRST_NAME
    last_parts = Counter(key.rpartition(".")[2] for key in settings)
    words = []
    lengths = []
    others = []
    for key, value in settings.items():
        text = _short_value(word(value))
        last_part = key.rpartition(".")[2]
        if key in _TELLING and isinstance(value, str):
            words.append(text)
        elif key == _LENGTH and isinstance(value, int):
            lengths.append(_length(value))
        else:
            shown = last_part if last_parts[last_part] == 1 else key
            others.append(f"{shown}-{text}")
    # A name must be one of a file, and a leading dot would hide it.
    name = re.sub(r"[^\w.+=,]+", "-", "-".join([*words, *lengths, *others]))
    name = name.strip(".-") or _NAMELESS
    return _shortened(name, name, max_chars=_MAX_NAME_CHARS)


def _length(tokens: int) -> str:
    """Return a length as recipes write it: 64k, or 1000-tokens."""
    thousands, rest = divmod(tokens, 1024)
    return f"{tokens}-tokens" if rest or not thousands else f"{thousands}k"


def _short_value(text: str) -> str:
    """Return a value as it stands in a name: of a path, the last part."""
    last_part = text.rstrip("/").rpartition("/")[2] or text
    if text.startswith(("/", "./", "../", "~")):
        text = last_part
    # The last part says most about a path, so it is what is kept of a long one.
    return _shortened(text, last_part, max_chars=_MAX_VALUE_CHARS)


def _shortened(text: str, shown: str, *, max_chars: int) -> str:
    """Return a text; if it is too long, the beginning of `shown` and its hash."""
    if len(text) <= max_chars:
        return text
    # Two long texts may begin alike; their hashes keep the names apart.
    digest = xxhash.xxh3_64_hexdigest(text.encode())[:6]
    return f"{shown[: max_chars - len(digest) - 1]}-{digest}"


def word(value: Any) -> str:
    """Return a value as text for a name or a table; lists are joined by +."""
    if isinstance(value, list | tuple):
        return "+".join(map(word, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)
