"""Recipe text: read YAML files, their `base` and `--set` overrides.

In:  files and `key=value` strings.
Out: plain data; sections are merged key by key, lists and values are replaced. For a
     validation error, one line per mistake: where, which value, and the fix.
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
from nextlong.text import Json, similar_path

_INDEX = re.compile(r"\[(\d+)\]")
_COUNTED = re.compile(r"(\d+)([kKmM])", re.ASCII)
_THOUSANDS = {"k": 1000, "m": 1_000_000}
_SHOWN_CHARS = 80  # of a value in a message
_PACKAGE = Path(__file__).parents[1]
# Installed, and in a checkout.
_PRESET_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")
_MAX_INTEGER = 2**63 - 1
_MAX_FLOAT = 1e12
_MAX_NESTING = 5000  # levels that libyaml reads safely

# libyaml, which wheels of PyYAML hold, reads and writes a recipe in a fifth of the
# time.
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class InvalidKeysError(RecipeError):
    """Keys of a recipe that are unknown, missing or invalid.

    where: the recipe
    problem: one line per mistake, which ends with its own fix
    keys: the wrong keys, as `--set` takes them, one for each line
    """

    def __init__(
        self,
        *,
        where: object,
        value: object | None = None,
        problem: str,
        fix: str,
        keys: Sequence[str] = (),
    ) -> None:
        super().__init__(where=where, value=value, problem=problem, fix=fix)
        self.keys = tuple(keys)

    def _sentence(self) -> str:
        lines = self.problem.split("\n")
        return "\n".join(f"{self.where}: {line}" for line in lines)


class _UniqueKeys(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys, where PyYAML's own keeps the last.

    It also joins surrogate pairs: JSON may escape a character above U+FFFF as two, the
    only case in which JSON is not YAML.
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
        if not isinstance(value, str):
            return value
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            return value  # half a pair: `check_values` reports its key


def _parsed(text: str) -> Any:
    # libyaml could crash on deep nesting, where PyYAML raises. Brackets nest one level
    # each, and the indentation of a line of n characters n levels at most.
    brackets = text.count("[") + text.count("{")
    longest_line = max(map(len, text.split("\n")))
    is_deep = brackets + longest_line > _MAX_NESTING
    parser = yaml.SafeLoader if is_deep else _PARSER
    # libyaml checks the syntax; PyYAML's constructor then refuses duplicate keys.
    try:
        root = yaml.compose(text, parser)
    except yaml.YAMLError:
        # libyaml refuses surrogate pairs, and PyYAML's own messages are the better
        # ones.
        return yaml.load(text, _UniqueKeys)
    if root is None:
        return None
    return _UniqueKeys("").construct_document(root)


def as_yaml(plain: Any) -> str:
    """Return plain data as YAML that reads back to the same."""
    # PyYAML loses characters such as U+0085 if it writes them unescaped.
    is_printable = json.dumps(plain, ensure_ascii=False).isprintable()
    text = yaml.dump(
        plain, Dumper=_DUMPER, sort_keys=False, allow_unicode=is_printable, width=120
    )
    return str(text)


def _presets() -> dict[str, Path]:
    """Return the files of the presets by name."""
    for folder in _PRESET_FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def preset_path(name: str) -> Path:
    """Return the file of a preset.

    Raises RecipeError that lists the available presets.
    """
    presets = _presets()
    if name not in presets:
        raise RecipeError(
            where="preset",
            value=name,
            problem="is unknown",
            fix=f"choose one of: {', '.join(presets)}",
        )
    return presets[name]


def read_file(path: Path, *, init: str, has_presets: bool = False) -> Json:
    """Return the keys of a recipe file, merged over those of its base.

    Paths in them start from the working directory. `init` is the command that writes
    such a file, with {} for its name; `has_presets` allows a preset as the base. Raises
    RecipeError that names the file, the line and the fix.
    """
    # The paths in a preset start from the working directory, not from the package.
    folder = Path() if _is_preset(path) else path.parent
    data = _read_keys(path, folder, init=init, has_presets=has_presets)
    return _laid_over_base(
        data,
        folder=path.parent,
        above=(path,),
        init=init,
        has_presets=has_presets,
    )


def lay_over_base(data: Mapping[str, Any]) -> Json:
    """Return the keys of a recipe without a file, merged over those of its base.

    Paths in them start from the working directory.
    """
    return _laid_over_base(
        _copied(data),
        folder=Path(),
        above=(),
        init="nextlong init {}",
        has_presets=True,
    )


def _laid_over_base(
    data: Json,
    *,
    folder: Path,
    above: tuple[Path, ...],
    init: str,
    has_presets: bool,
) -> Json:
    """Return keys merged over those of their `base`, which starts from `folder`.

    `above` holds the files that led here, each the base of the one before it.
    """
    # `base` is no key of a recipe: it is gone once its file is read.
    name = data.pop("base", None)
    if name is None:
        return data
    where = f"{above[-1]}: base" if above else "recipe: base"
    path = _base_path(name, folder, where=where, has_presets=has_presets)
    if path.resolve() in {file.resolve() for file in above}:
        chain = " → ".join(str(file) for file in (*above, path))
        raise RecipeError(
            where=where,
            value=name,
            problem=f"is circular: {chain}",
            fix="remove base from one of them",
        )
    # A preset is read as if it were copied to the recipe.
    folder_of_paths = folder if _is_preset(path) else path.parent
    base = _read_keys(path, folder_of_paths, init=init, has_presets=has_presets)
    whole_base = _laid_over_base(
        base,
        folder=path.parent,
        above=(*above, path),
        init=init,
        has_presets=has_presets,
    )
    return _laid_over(whole_base, data)


def _base_path(name: Any, folder: Path, *, where: str, has_presets: bool) -> Path:
    """Return the file that `base` names: one beside the recipe, or else a preset."""
    if not isinstance(name, str) or not name:
        raise RecipeError(
            where=where,
            value=repr(name),
            problem="is not a file name",
            fix="set it to one recipe file, or to a preset such as paper-128k",
        )
    path = folder / Path(name).expanduser()
    if path.exists():
        return path
    fix = "its path is relative to the folder of the recipe"
    problem = f"names {path}, which does not exist"
    if has_presets and "/" not in name:
        presets = _presets()
        preset = name.removesuffix(".yaml").removesuffix(".yml")
        if preset in presets:
            return presets[preset]
        problem = f"names neither a file ({path}) nor a preset"
        fix = f"choose one of: {', '.join(presets)}, or a file: {fix}"
    raise RecipeError(where=where, value=name, problem=problem, fix=fix)


def _laid_over(below: Json, above: Mapping[str, Any]) -> Json:
    merged = dict(below)
    for key, value in above.items():
        section_below = _in_full(key, merged.get(key))
        section_above = _in_full(key, value)
        if isinstance(section_below, dict) and isinstance(section_above, dict):
            merged[key] = _laid_over(section_below, section_above)
        else:
            merged[key] = value
    return merged


def _is_preset(path: Path) -> bool:
    return path.parent.resolve() in {folder.resolve() for folder in _PRESET_FOLDERS}


def _read_keys(path: Path, folder: Path, *, init: str, has_presets: bool) -> Json:
    """Return the keys of a file.

    The relative paths of a recipe, which may build on presets, start from `folder`.
    """
    data = _read_yaml(path, init=init)
    return from_folder(data, folder) if has_presets else data


def _read_yaml(path: Path, *, init: str) -> Json:
    """Return the keys of a YAML file; `init` is the command that writes one."""
    data = _parsed_file(path, init=init)
    if isinstance(data, dict):
        return data
    if data is None:
        problem = "it is empty"
    elif isinstance(data, list):
        problem = "it is a YAML list, not a mapping of keys"
    elif isinstance(data, str):
        problem = "it is a YAML text, not a mapping of keys"
    else:
        problem = "it is a YAML value, not a mapping of keys"
    command = init.partition(" {")[0]
    raise RecipeError(where=path, problem=problem, fix=f"`{command}` writes a recipe")


def _parsed_file(path: Path, *, init: str) -> Any:
    instead = f"give a recipe, a YAML file; `{init.format('my.yaml')}` writes one"
    is_named_yaml = path.suffix.lower() in (".yaml", ".yml")
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        similar = similar_path(path)
        fix = f"`{init.format(path)}` writes a commented recipe"
        if similar is not None:
            fix = f"did you mean {similar}?"
        raise RecipeError(where=path, problem="it does not exist", fix=fix) from None
    except IsADirectoryError:
        raise RecipeError(where=path, problem="it is a folder", fix=instead) from None
    except OSError as error:
        raise RecipeError(
            where=path, problem=f"it cannot be read: {error.strerror}", fix=instead
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            where=path, problem=f"it is not UTF-8 text: {error}", fix=instead
        ) from None
    except yaml.MarkedYAMLError as error:
        line = 1
        if error.problem_mark is not None:
            line = error.problem_mark.line + 1
        raise RecipeError(
            where=f"{path}:{line}",
            problem=f"not YAML: {error.problem or error.context}",
            fix="correct the line" if is_named_yaml else instead,
        ) from None
    except RecursionError:
        raise RecipeError(
            where=path, problem="it is nested too deeply", fix="correct it"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(
            where=path,
            problem=f"it is not YAML: {' '.join(str(error).split())}",
            fix="correct it",
        ) from None


def merge(data: Mapping[str, Any], overrides: Sequence[str]) -> Json:
    """Return a copy of `data`, short forms expanded, with overrides applied.

    An override is `a.b[0].c=value` or `a.b.0.c=value`, with a YAML value.
    """
    merged: Json = _copied(data)
    for override in overrides:
        dotted, equals, raw = override.partition("=")
        where = f"--set {override!r}"
        if not equals or not dotted:
            raise RecipeError(
                where=where,
                problem="it is not KEY=VALUE",
                fix="write --set compose.target_tokens=65536",
            )
        try:
            value = _parsed(raw)
        except (yaml.YAMLError, ValueError):
            raise RecipeError(
                where=where, problem=f"{raw!r} is not a YAML value", fix="quote it"
            ) from None
        _set_below(merged, dotted, value, where=where)
    return {key: _in_full(key, below) for key, below in merged.items()}


def _set_below(data: Json, dotted: str, value: Any, *, where: str) -> None:
    """Set the value of a dotted key in plain data, making the sections above it."""
    # From a root that holds all data under "", each key leads one level down.
    node: Any = {"": data}
    key_in_node: Any = ""
    keys = _INDEX.sub(r".\1", dotted).split(".")
    for depth, key in enumerate(keys):
        if isinstance(node, list):
            below = node[key_in_node]
        else:
            below = node.get(key_in_node)
        if not isinstance(below, dict | list):
            # Keys replace the value that they are set below, unless it is a short form.
            full = _in_full(str(key_in_node), below)
            below = full if isinstance(full, dict) else {}
            node[key_in_node] = below
        node = below
        key_in_node = key
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                name = ".".join(keys[:depth])
                problem = f"{name} is a list of {len(node)}, and {key!r} is not in it"
                raise RecipeError(
                    where=where,
                    problem=problem,
                    fix="give the index of one of its items, from 0",
                )
            key_in_node = int(key)
    node[key_in_node] = value


def check_values(value: Any, *, origin: str, key: str = "") -> None:
    """Raise RecipeError for text that cannot be encoded and for too large numbers.

    Text cannot be encoded if it has half of a surrogate pair.
    """
    if isinstance(value, Mapping):
        for inner, below in value.items():
            dotted = f"{key}.{inner}".removeprefix(".")
            check_values(str(inner), origin=origin, key=dotted)
            check_values(below, origin=origin, key=dotted)
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            check_values(below, origin=origin, key=f"{key}[{index}]")
    elif isinstance(value, str):
        _check_text(value, origin=origin, key=key)
    elif isinstance(value, float | int):
        _check_number(value, origin=origin, key=key)


def _check_text(value: str, *, origin: str, key: str) -> None:
    if not any("\ud800" <= char <= "\udfff" for char in value):
        return
    is_short = len(value) <= _SHOWN_CHARS
    if not is_short:
        value = f"{value[:_SHOWN_CHARS]}…"
    # The key may be this text, so it is escaped too.
    printable_key = ascii(key)[1:-1]
    raise RecipeError(
        where=f"{origin}: {printable_key}",
        value=ascii(value),
        problem="has half of a surrogate pair and is not valid text",
        fix="correct it",
    )


def _check_number(value: float, *, origin: str, key: str) -> None:
    if isinstance(value, float):
        is_too_large = _MAX_FLOAT < abs(value) < inf
        shown = str(value)
    else:
        is_too_large = abs(value) > _MAX_INTEGER
        # Python refuses to print integers of more than some thousand digits.
        shown = f"a number of {value.bit_length()} bits"
    if is_too_large:
        raise RecipeError(
            where=f"{origin}: {key}",
            problem=f"it is {shown}, which is too large",
            fix="correct it",
        )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(below) for below in value]
    return value


def _in_full(key: str, value: Any) -> Any:
    """Expand a section's short form: `tokenizer: gpt2`, `decontaminate: [a, b]`."""
    if key == "tokenizer" and isinstance(value, str):
        return {"source": value}
    if key == "decontaminate" and isinstance(value, list):
        return {"files": value}
    return value


_Names = Callable[[], Sequence[str]]
# pydantic's error types that need other words for YAML
_PLAIN_WORDS = {
    "model_type": "must be a section of keys",
    "tuple_type": "must be a list",
    "invalid_key": "is not a key; keys are strings",
}


def invalid_keys(
    error: ValidationError,
    root: type[BaseModel],
    *,
    origin: str,
    methods: _Names = lambda: (),
) -> InvalidKeysError:
    """Return the error for a recipe of the model `root` that pydantic refused.

    origin: the name of the recipe in the message
    methods: return the names of methods, which may have a section at the top
    """
    # pydantic reports one mistake for each branch of a union; they become one line.
    mistakes: dict[str, list[Any]] = {}
    for mistake in error.errors():
        keys, _ = _walk(mistake["loc"], root)
        mistakes.setdefault(key_of(keys), []).append(mistake)
    lines = [
        _explained(key, branches, root, methods) for key, branches in mistakes.items()
    ]
    return InvalidKeysError(
        where=origin,
        problem="\n".join(lines),
        fix="correct these keys",
        keys=tuple(mistakes),
    )


def _walk(
    loc: Sequence[int | str], root: type[BaseModel]
) -> tuple[list[int | str], Any]:
    """Return the keys in an error location, and the model at its end.

    For a list, that is the model of its elements. Other parts of a location name a
    branch of a union: str, literal['auto'], or the `kind` of a section.
    """
    keys: list[int | str] = []
    model: Any = root
    for part in loc:
        if isinstance(part, int):
            keys.append(part)
            continue
        kinds = _models_by_kind(model)
        if part in kinds:
            model = kinds[part]
            continue
        is_branch = "[" in part or "constrained-" in part or part == "str"
        if not is_branch:
            keys.append(part)
        fields = _fields(model)
        model = _value_type(fields[part]) if part in fields else None
    return keys, model


def _models_by_kind(union: Any) -> dict[str, Any]:
    """Return the sections of a union that differ by their `kind`."""
    models = {}
    for model in get_args(union):
        kind = _fields(model).get("kind")
        if kind is not None:
            models[kind.default] = model
    return models


def _fields(model: Any) -> Mapping[str, Any]:
    return getattr(model, "model_fields", {})


def _value_type(field: Any) -> Any:
    """Return the type of a field; of a tuple, that of its elements."""
    if get_origin(field.annotation) is tuple:
        return get_args(field.annotation)[0]
    return field.annotation


def key_of(parts: Sequence[int | str]) -> str:
    """Return a key as messages and `--set` write it: `ingest.sources[0].path`."""
    if not parts:
        return ""
    key = str(parts[0])
    for part in parts[1:]:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    return key


def _explained(
    where: str, mistakes: Sequence[Any], root: type[BaseModel], methods: _Names
) -> str:
    """Return a line for the mistakes at one key: one per branch of a union."""
    first = mistakes[0]
    given = first["input"]
    if first["type"] == "extra_forbidden":
        return _unknown_key(first["loc"], root, methods)
    if first["type"] == "missing":
        init = getattr(root, "INIT", "nextlong init").partition(" {")[0]
        return f"{where} is missing; `{init}` writes a recipe with every key"
    is_section = isinstance(given, dict | list | tuple | BaseModel)
    shown = "" if is_section else f" (it is {given!r})"
    for mistake in mistakes:
        # A sentence of our own validators says more than pydantic's on other branches.
        if mistake["type"] == "value_error":
            reason = mistake["ctx"]["error"]
            return f"{where}: {reason}{shown}".removeprefix(": ")
    reasons = [_reason(mistake) for mistake in mistakes]
    others = (reason.removeprefix("must be ") for reason in reasons[1:])
    problem = f"{where} {' or '.join([reasons[0], *others])}{shown}"
    if first["type"] == "tuple_type" and isinstance(given, str):
        _, element = _walk(first["loc"], root)
        # A section in a list needs braces, and the user probably meant its first key.
        listed = given
        if isinstance(element, type) and issubclass(element, BaseModel):
            first_key = next(iter(element.model_fields))
            listed = f"{{{first_key}: {given}}}"
        return f"{problem}; a list needs brackets: --set '{where}=[{listed}]'"
    is_no_integer = any(mistake["type"] == "int_parsing" for mistake in mistakes)
    counted = _COUNTED.fullmatch(str(given))
    if is_no_integer and counted is not None:
        count = int(counted[1]) * _THOUSANDS[counted[2].lower()]
        return (
            f"{problem}; only lengths in tokens or characters may use k and M: "
            f"write {count}"
        )
    return problem


def _reason(mistake: Any) -> str:
    """Return what a value must be, in words for YAML."""
    words = _PLAIN_WORDS.get(mistake["type"])
    reason = words or mistake["msg"].partition(", unable")[0]
    reason = reason.replace("Input should", "must").replace("String should", "must")
    if "valid integer" in reason:
        return str(reason.replace("a valid", "an"))
    return str(reason.replace("a valid", "a"))


def _unknown_key(
    loc: tuple[int | str, ...], root: type[BaseModel], methods: _Names
) -> str:
    """Return a line for a key that its section does not have, with similar ones."""
    above, section = _walk(loc[:-1], root)
    key = str(loc[-1])
    # A method's section stands beside `compose`, not in it.
    at_top = {*root.model_fields, *methods()}
    known = sorted(at_top if section is root else section.model_fields)
    if key in known:
        return f"unknown key {key!r}; the method {key} has no options"

    # First the same key in another section, then a similar one here, then elsewhere.
    keys_below = _keys_below(root)
    near = [dotted for dotted in keys_below if _last_part(dotted) == key]
    if not near and key in at_top:
        near = [key]
    if not near:
        similar = difflib.get_close_matches(key, known, n=1)
        near = [key_of([*above, name]) for name in similar]
    if not near:
        last_parts = {_last_part(dotted) for dotted in keys_below}
        similar = difflib.get_close_matches(key, last_parts, n=1)
        near = [dotted for dotted in keys_below if _last_part(dotted) in similar]

    advice = f"known here: {', '.join(known)}"
    if near:
        advice = f"did you mean {' or '.join(map(repr, near))}?"
    keys, _ = _walk(loc, root)
    return f"unknown key {key_of(keys)!r}; {advice}"


def _last_part(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _keys_below(model: Any, above: str = "") -> list[str]:
    """Return all keys of a model and its sections, as `--set` takes them."""
    keys = []
    for name, field in model.model_fields.items():
        value_type = _value_type(field)
        if not (isinstance(value_type, type) and issubclass(value_type, BaseModel)):
            keys.append(f"{above}{name}")
            continue
        is_list = get_origin(field.annotation) is tuple
        index = "[0]" if is_list else ""
        keys += _keys_below(value_type, f"{above}{name}{index}.")
    return keys
