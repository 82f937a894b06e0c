"""Read: recipe files → plain data, each laid over the one that it builds on.

In:  a YAML file; `base` in it names another, relative to the file that names it, or a recipe of the package.
Out: its keys, with those of its base where it says nothing. Sections are merged key by key, lists and values replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from nextlong.errors import RecipeError
from nextlong.recipe.text import UniqueKeys, copied, in_full
from nextlong.text import Json, did_you_mean

_YAML_NAMES: Final[dict[type, str]] = {list: "list", str: "text"}


def preset(name: str) -> str:
    """Return the text of a recipe that comes with the package, comments and all. Raises RecipeError, naming those there are."""
    return preset_path(name).read_text(encoding="utf-8")


def preset_path(name: str) -> Path:
    """Return the file of a recipe that comes with the package. Raises RecipeError, naming those there are."""
    inside = Path(__file__).parents[1]
    folders = (inside / "recipes", inside.parents[1] / "recipes")  # installed; a checkout
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise RecipeError(f"preset {name!r} is not known; choose one of: {', '.join(known)}")
    return known[name]


_SUFFIXES = (".yaml", ".yml")
PresetPath = Callable[[str], Path]  # of a recipe of the package; raises RecipeError


def read_file(path: Path, *, init: str, preset: PresetPath | None = None) -> Json:
    """Return the keys of a recipe file, laid over those of its base.

    `init` is the command that writes such a file, {} for its name. Raises RecipeError naming the file, the line and the cure.
    """
    return _laid_over_base(_read_yaml(path, init=init), path.parent, (path,), init=init, preset=preset)


def lay_over_base(data: Mapping[str, Any], *, preset: PresetPath) -> Json:
    """Return the keys of a recipe that is no file, laid over those of its base; paths count from the working directory."""
    return _laid_over_base(copied(data), Path(), (), init="nextlong init {}", preset=preset)


def _laid_over_base(data: Json, folder: Path, above: tuple[Path, ...], *, init: str, preset: PresetPath | None) -> Json:
    name = data.pop("base", None)
    if name is None:
        return data
    where = f"{above[-1]}: base" if above else "recipe: base"
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{where} is {name!r}; name one recipe file, or a preset such as paper-128k")
    path = _find(name, folder, where=where, preset=preset)
    if path.resolve() in {before.resolve() for before in above}:
        chain = " → ".join(str(one) for one in (*above, path))
        raise RecipeError(f"{where}={name} builds on itself: {chain}; take base out of one of them")
    below = _laid_over_base(_read_yaml(path, init=init), path.parent, (*above, path), init=init, preset=preset)
    return _laid_over(below, data)


def _find(name: str, folder: Path, *, where: str, preset: PresetPath | None) -> Path:
    path = folder / Path(name).expanduser()
    if path.exists():
        return path
    stem = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
    reason = ""
    if preset is not None and "/" not in name:
        try:
            return preset(stem)
        except RecipeError as error:
            reason = f", and {error}"
    raise RecipeError(
        f"{where}={name}: {path} does not exist{reason}; a base counts from the folder of the recipe that names it"
    )


def _laid_over(below: Json, above: Mapping[str, Any]) -> Json:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, dict | str | list) and isinstance(value, dict):
            under = in_full(key, under)
        if isinstance(under, dict) and isinstance(full := in_full(key, value), dict):
            merged[key] = _laid_over(under, full)
        else:
            merged[key] = value
    return merged


def _read_yaml(path: Path, *, init: str) -> Json:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), UniqueKeys)
    except FileNotFoundError:
        fix = did_you_mean(path) or f"; `{init.format(path)}` writes a commented recipe there"
        raise RecipeError(f"{path} does not exist{fix}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}; name a recipe file") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text: {error}; name a recipe file") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{path}:{line}: not YAML: {error.problem or error.context}; correct the line") from None
    except RecursionError:
        raise RecipeError(f"{path} is nested too deeply to be a recipe; correct it") from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}; correct it") from None
    if not isinstance(data, dict):
        held = (
            "is empty" if data is None else f"is a YAML {_YAML_NAMES.get(type(data), 'value')}, not a mapping of keys"
        )
        raise RecipeError(f"{path} {held}; `{init.partition(' {')[0]}` writes a recipe")
    return data
