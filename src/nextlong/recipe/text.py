"""Recipe text: read YAML files, their `base` and `--set` overrides, and explain validation errors.

In:  files and `key=value` strings. Out: plain data; sections are merged key by key, lists and values are replaced. A mistake is
one line: where, which value, and the fix.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from nextlong.errors import RecipeError
from nextlong.recipe.paths import from_folder
from nextlong.text import Json, did_you_mean

_INDEX = re.compile(r"\[(\d+)\]")
_COUNTED = re.compile(r"(\d+)([kKmM])", re.ASCII)
_SHOWN_CHARS = 80  # of a value in a message
_PACKAGE = Path(__file__).parents[1]
# Installed, and in a checkout.
_PRESET_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")
_MOST, _MOST_FRACTIONAL = 2**63 - 1, 1e12  # largest integer and float in a recipe


# libyaml, which wheels of PyYAML hold, reads and writes a recipe in a fifth of the time.
_PARSER, _DUMPER = (
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    getattr(yaml, "CSafeDumper", yaml.SafeDumper),
)


class _UniqueKeys(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys, of which PyYAML's own loader keeps the last.

    It also joins surrogate pairs: JSON may escape a character above U+FFFF as two, the only case in which JSON is not YAML.
    """

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key is not a string", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        try:
            return (
                value.encode("utf-16", "surrogatepass").decode("utf-16")
                if isinstance(value, str)
                else value
            )
        except UnicodeDecodeError:
            return value  # half a pair: `check_plain` reports its key


def _parsed(text: str) -> Any:
    # libyaml could crash on deep nesting, where PyYAML raises; a line of n characters nests n levels at most.
    parser = (
        yaml.SafeLoader
        if sum(map(text.count, "[{")) + max(map(len, text.split("\n"))) > 5000
        else _PARSER
    )
    try:
        root = yaml.compose(text, parser)
    except (
        yaml.YAMLError
    ):  # of surrogate pairs too; and PyYAML's own messages are the better ones
        return yaml.load(text, _UniqueKeys)
    return _UniqueKeys("").construct_document(root) if root else None


def as_yaml(plain: Any) -> str:
    """Return plain data as YAML that reads back to the same."""
    # PyYAML loses characters such as U+0085 if it writes them unescaped.
    printable = json.dumps(plain, ensure_ascii=False).isprintable()
    return str(
        yaml.dump(
            plain, Dumper=_DUMPER, sort_keys=False, allow_unicode=printable, width=120
        )
    )


def preset_path(name: str) -> Path:
    """Return the file of a preset. Raises RecipeError that lists the available presets."""
    found = (folder for folder in _PRESET_FOLDERS if folder.is_dir())
    folder = next(found, _PRESET_FOLDERS[0])
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise RecipeError(f"unknown preset {name!r}; choose one of: {', '.join(known)}")
    return known[name]


def read_file(path: Path, *, init: str, has_presets: bool = False) -> Json:
    """Return the keys of a recipe file, merged over those of its base, with paths that start from the working directory.

    `init` is the command that writes such a file, with {} for its name; `has_presets` allows a preset as the base.
    Raises RecipeError that names the file, the line and the fix.
    """
    return _laid_over_base(
        _read_keys(
            path,
            Path() if _is_preset(path) else path.parent,
            init=init,
            has_presets=has_presets,
        ),
        path.parent,
        (path,),
        init=init,
        has_presets=has_presets,
    )


def lay_over_base(data: Mapping[str, Any]) -> Json:
    """Return the keys of a recipe without a file, merged over those of its base; paths start from the working directory."""
    return _laid_over_base(
        _copied(data), Path(), (), init="nextlong init {}", has_presets=True
    )


def _laid_over_base(
    data: Json, folder: Path, above: tuple[Path, ...], *, init: str, has_presets: bool
) -> Json:
    if (name := data.pop("base", None)) is None:
        return data
    where = f"{above[-1]}: base" if above else "recipe: base"
    if not isinstance(name, str) or not name:
        raise RecipeError(
            f"{where} is {name!r}; set it to one recipe file, or to a preset such as paper-128k"
        )
    path, reason = folder / Path(name).expanduser(), ""
    if not path.exists() and has_presets and "/" not in name:
        try:
            path = preset_path(name.removesuffix(".yaml").removesuffix(".yml"))
        except RecipeError as error:
            reason = f", and {error}"
    if not path.exists():
        cure = "its path is relative to the folder of the recipe"
        raise RecipeError(f"{where}={name}: {path} does not exist{reason}; {cure}")
    if path.resolve() in {before.resolve() for before in above}:
        chain = " → ".join(str(one) for one in (*above, path))
        raise RecipeError(
            f"{where}={name} is circular: {chain}; remove base from one of them"
        )
    # A preset is read as if it were copied to the recipe.
    place = folder if _is_preset(path) else path.parent
    base = _read_keys(path, place, init=init, has_presets=has_presets)
    return _laid_over(
        _laid_over_base(
            base, path.parent, (*above, path), init=init, has_presets=has_presets
        ),
        data,
    )


def _laid_over(below: Json, above: Mapping[str, Any]) -> Json:
    merged = dict(below)
    for key, value in above.items():
        under, full = _in_full(key, merged.get(key)), _in_full(key, value)
        merged[key] = (
            _laid_over(under, full)
            if isinstance(under, dict) and isinstance(full, dict)
            else value
        )
    return merged


def _is_preset(path: Path) -> bool:
    return path.parent.resolve() in {folder.resolve() for folder in _PRESET_FOLDERS}


def _read_keys(path: Path, folder: Path, *, init: str, has_presets: bool) -> Json:
    """Return the keys of a file; the relative paths of a recipe, which may build on presets, start from `folder`."""
    data = _read_yaml(path, init=init)
    return from_folder(data, folder) if has_presets else data


def _read_yaml(path: Path, *, init: str) -> Json:
    try:
        data = _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = did_you_mean(path) or f"; `{init.format(path)}` writes a commented recipe"
        raise RecipeError(f"{path} does not exist{fix}") from None
    except OSError as error:
        raise RecipeError(
            f"{path} cannot be read: {error.strerror}; use a recipe file"
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path} is not UTF-8 text: {error}; use a recipe file"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(
            f"{path}:{line}: not YAML: {error.problem or error.context}; correct the line"
        ) from None
    except RecursionError:
        raise RecipeError(f"{path} is nested too deeply; correct it") from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(
            f"{path} is not YAML: {' '.join(str(error).split())}; correct it"
        ) from None
    if not isinstance(data, dict):
        kind = (
            "list"
            if isinstance(data, list)
            else "text"
            if isinstance(data, str)
            else "value"
        )
        held = (
            "is empty" if data is None else f"is a YAML {kind}, not a mapping of keys"
        )
        raise RecipeError(f"{path} {held}; `{init.partition(' {')[0]}` writes a recipe")
    return data


def merge(data: Mapping[str, Any], overrides: Sequence[str]) -> Json:
    """Return a copy of `data`, short forms expanded, with each YAML override `a.b[0].c=value` (or `a.b.0.c=value`) applied."""
    merged: Json = _copied(data)
    for override in overrides:
        dotted, equals, raw = override.partition("=")
        if not equals or not dotted:
            raise RecipeError(
                f"--set {override!r} is not KEY=VALUE; write --set compose.target_tokens=65536"
            )
        try:
            value = _parsed(raw)
        except (yaml.YAMLError, ValueError):
            raise RecipeError(
                f"--set {override!r}: {raw!r} is not a YAML value; quote it"
            ) from None
        node: Any = {"": merged}
        place: Any = ""
        keys = _INDEX.sub(r".\1", dotted).split(".")
        for depth, key in enumerate(keys):
            below = node[place] if isinstance(node, list) else node.get(place)
            if not isinstance(below, dict | list):
                full = _in_full(str(place), below)
                node[place] = (
                    full if isinstance(full, dict) else {}
                )  # keys replace the value that they are set below
            node, place = node[place], key
            if isinstance(node, list):
                if not key.isdigit() or int(key) >= len(node):
                    where = ".".join(keys[:depth])
                    raise RecipeError(
                        f"--set {override!r}: {where} is a list of {len(node)}; {key!r} is not in it"
                    )
                place = int(key)
        node[place] = value
    return {key: _in_full(key, below) for key, below in merged.items()}


def check_plain(value: Any, *, origin: str, key: str = "") -> None:
    """Raise RecipeError for text that cannot be encoded (half a surrogate pair) and for numbers that are too large."""
    if isinstance(value, Mapping):
        for inner, below in value.items():
            check_plain(
                str(inner), origin=origin, key=f"{key}.{inner}".removeprefix(".")
            )
            check_plain(below, origin=origin, key=f"{key}.{inner}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for place, below in enumerate(value):
            check_plain(below, origin=origin, key=f"{key}[{place}]")
    elif isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        shown = ascii(
            value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…"
        )
        where = f"{origin}: {ascii(key)[1:-1]}"
        raise RecipeError(
            f"{where} is {shown}, which has half of a surrogate pair and is not valid text; correct it"
        )
    elif (
        isinstance(value, float | int)
        and (_MOST, _MOST_FRACTIONAL)[isinstance(value, float)] < abs(value) < inf
    ):
        shown = (
            str(value)
            if isinstance(value, float)
            else f"a number of {value.bit_length()} bits"
        )
        raise RecipeError(f"{origin}: {key} is {shown}, which is too large; correct it")


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(below) for key, below in value.items()}
    return (
        [_copied(below) for below in value]
        if isinstance(value, list | tuple)
        else value
    )


def _in_full(key: str, value: Any) -> Any:
    """Expand the short form of a section to its keys: `tokenizer: gpt2`, `decontaminate: [a, b]`."""
    if key == "tokenizer" and isinstance(value, str):
        return {"source": value}
    return (
        {"files": value}
        if key == "decontaminate" and isinstance(value, list)
        else value
    )


_Names = Callable[[], Sequence[str]]
# pydantic's error types that need other words for YAML
_PLAIN_WORDS = {
    "model_type": "must be a section of keys",
    "tuple_type": "must be a list",
    "invalid_key": "is not a key; keys are strings",
}


def explain(
    error: ValidationError, root: type[BaseModel], *, methods: _Names = lambda: ()
) -> list[str]:
    """Return one line per mistake: where, which value, and the fix. `methods` names those that may have a section."""
    mistakes: dict[str, list[Any]] = {}
    for item in error.errors():
        mistakes.setdefault(key_of(_walk(item["loc"], root)[0]), []).append(item)
    return [
        _explain_one(where, items, root, methods) for where, items in mistakes.items()
    ]


def _walk(
    loc: Sequence[int | str], root: type[BaseModel]
) -> tuple[list[int | str], Any]:
    """Return the keys in an error location, and the model at its end (for a list, that of its elements).

    Other parts of a location name a branch of a union: str, literal['auto'], or the `kind`
    of a section.
    """
    keys: list[int | str] = []
    model: Any = root
    for part in loc:
        if isinstance(part, int):
            keys.append(part)
        elif part in (
            kinds := {
                _fields(one)["kind"].default: one
                for one in get_args(model)
                if "kind" in _fields(one)
            }
        ):
            model = kinds[part]  # of a union of sections, the one with this `kind`
        else:
            is_branch = any(mark in part for mark in ("[", "constrained-"))
            if not is_branch and part != "str":
                keys.append(part)
            model = _held(_fields(model)[part]) if part in _fields(model) else None
    return keys, model


def _fields(model: Any) -> Mapping[str, Any]:
    return getattr(model, "model_fields", {})


def _held(field: Any) -> Any:
    return (
        get_args(field.annotation)[0]
        if get_origin(field.annotation) is tuple
        else field.annotation
    )


def key_of(parts: Sequence[int | str]) -> str:
    """Return a key in the form of error messages and of `--set`: `ingest.sources[0].path`."""
    first, *below = parts or ("",)
    return str(first) + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in below
    )


def _explain_one(
    where: str, items: Sequence[Any], root: type[BaseModel], methods: _Names
) -> str:
    first = items[0]
    if first["type"] == "extra_forbidden":
        return _explain_unknown(first["loc"], root, methods)
    if first["type"] == "missing":
        init = getattr(root, "INIT", "nextlong init").partition(" {")[0]
        return f"{where} is missing; `{init}` writes a recipe with every key"
    value = (
        ""
        if isinstance(first["input"], dict | list | tuple | BaseModel)
        else f" (it is {first['input']!r})"
    )
    if (
        wrong := next((item for item in items if item["type"] == "value_error"), None)
    ) is not None:
        return f"{where}: {wrong['ctx']['error']}{value}".removeprefix(": ")
    reasons = [
        _PLAIN_WORDS.get(item["type"]) or item["msg"].partition(", unable")[0]
        for item in items
    ]
    reasons = [
        reason.replace("Input should", "must").replace("String should", "must")
        for reason in reasons
    ]
    reasons = [
        reason.replace("a valid", "an" if "valid integer" in reason else "a")
        for reason in reasons
    ]
    others = (reason.removeprefix("must be ") for reason in reasons[1:])
    problem = f"{where} {' or '.join([reasons[0], *others])}{value}"
    if first["type"] == "tuple_type" and isinstance(first["input"], str):
        element = _walk(first["loc"], root)[1]
        is_section = isinstance(element, type) and issubclass(element, BaseModel)
        listed = (
            f"{{{next(iter(element.model_fields))}: {first['input']}}}"
            if is_section
            else first["input"]
        )
        return f"{problem}; a list needs brackets: --set '{where}=[{listed}]'"
    if any(item["type"] == "int_parsing" for item in items) and (
        short := _COUNTED.fullmatch(str(first["input"]))
    ):
        thousands = int(short[1]) * {"k": 1000, "m": 1_000_000}[short[2].lower()]
        return f"{problem}; only lengths in tokens or characters may use k and M: write {thousands}"
    return problem


def _explain_unknown(
    loc: tuple[int | str, ...], root: type[BaseModel], methods: _Names
) -> str:
    model, key = _walk(loc[:-1], root)[1], str(loc[-1])
    at_top = {
        *root.model_fields,
        *methods(),
    }  # a method's section stands beside `compose`, not in it
    known = sorted(at_top if model is root else model.model_fields)
    if key in known:
        return f"unknown key {key!r}; the method {key} has no options"
    below = _keys_below(root)
    elsewhere = [dotted for dotted in below if dotted.rpartition(".")[2] == key] or [
        key
    ] * (key in at_top)
    near = elsewhere or difflib.get_close_matches(key, known, n=1)
    if not near:
        lasts = difflib.get_close_matches(
            key, {dotted.rpartition(".")[2] for dotted in below}, n=1
        )
        near = [dotted for dotted in below if dotted.rpartition(".")[2] in lasts]
    advice = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"known here: {', '.join(known)}"
    )
    return f"unknown key {key_of(_walk(loc, root)[0])!r}; {advice}"


def _keys_below(model: Any, above: str = "") -> list[str]:
    """Return all keys of a model and its sections, in the form of error messages and of `--set`."""
    keys = []
    for name, field in model.model_fields.items():
        below, index = _held(field), "[0]" * (get_origin(field.annotation) is tuple)
        is_section = isinstance(below, type) and issubclass(below, BaseModel)
        keys += (
            _keys_below(below, f"{above}{name}{index}.")
            if is_section
            else [f"{above}{name}"]
        )
    return keys
