"""Recipe: everything that a user configures for a run, as one frozen model.

In:  YAML, a preset or a dictionary, and overrides (`--set`). Out: a validated `Recipe`, or one RecipeError that lists every
mistake. Back to YAML, `commented` writes the description of each key beside it, from the models, so it is always up to date.
`keys` declares the sections; methods and encoders declare the sections of their own options, so a model class is built for
the extensions that a recipe names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

import nextlong.recipe.keys as keys
from nextlong import arguments
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, METHODS, Registry
from nextlong.recipe.export import Export, terms_of
from nextlong.recipe.keys import Named, Operational, Section, keyed, options_class
from nextlong.recipe.text import (
    as_yaml,
    check_plain,
    explain,
    lay_over_base,
    merge,
    read_file,
)
from nextlong.text import Json

# Valid in a file name and in RUN@name.
_OVERRIDES_FIX: Final = 'give a list such as ["compose.target_tokens=65536"]'
_VariantName = Annotated[str, Field(pattern=r"^[\w+=,][\w.+=,-]*$", max_length=120)]
_SectionT = TypeVar("_SectionT", bound=Section)


class Encoder(Section):
    """chunks → vectors."""

    model: str = keyed(
        "lsa",
        "lsa | static:<name or path> | sentence-transformers:<name or path> | openai:<model> | a plugin's",
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoder:
        """Validate plain data, including the option sections of encoders. Raises pydantic's ValidationError."""
        names, plain = _encoders_named(data)
        return encoder_with(names).model_validate(plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder.from_dict, (
            self.model_dump(mode="json"),
        )  # the class is built at run time

    @property
    def section(self) -> str:
        """The name of the encoder's option section, which is also the name of its module or entry point."""
        return _section_of(self.model)

    @property
    def name(self) -> str:
        """The name or path of the model, after the colon."""
        return self.model.partition(":")[2]

    @property
    def options(self) -> Section:
        """The encoder's options; the defaults if the recipe has no section for them."""
        return (
            getattr(self, self.section, None) or options_class(ENCODERS, self.section)()
        )

    def options_as(self, kind: type[_SectionT]) -> _SectionT:
        options = self.options
        assert isinstance(options, kind), options
        return options

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model == cls.model_fields["model"].default:
            return model  # not checked: a worker may import the encoder's module first, which imports this one
        section = _section_of(model)
        if section not in ENCODERS or (":" in _usage(section)) != bool(
            model.partition(":")[2]
        ):
            *others, last = (repr(_usage(name)) for name in ENCODERS.names())
            raise ValueError(f"must be {', '.join(others)} or {last}")
        return model


def _encoders_named(data: Mapping[str, Any]) -> tuple[tuple[str, ...], Json]:
    """Return `_extensions` of an `encoder` section given as plain data."""
    return _extensions(
        ENCODERS, Encoder, data, _section_of(str(data.get("model", Encoder().model)))
    )


def _extensions(
    registry: Registry, base: type[Section], data: Mapping[str, Any], chosen: str
) -> tuple[tuple[str, ...], Json]:
    """Return the extensions with a section in `data` (the keys of `base`), and `data` without sections of defaults only.

    The chosen extension always has a section; any other only if it differs from its defaults. So equal recipes compare equal.
    """
    named = {key for key in (chosen, *data) if isinstance(key, str)} - (
        set(base.model_fields) - {chosen}
    )
    names, plain = [], dict(data)
    for name in sorted(filter(registry.__contains__, named)):
        options = _options(registry, base, name)
        if not options.model_fields:
            continue
        try:
            is_default = (
                name != chosen and options.model_validate(data[name]) == options()
            )
        except ValidationError:
            is_default = False
        if is_default:
            del plain[name]
        else:
            names.append(name)
    return tuple(names), plain


def _options(registry: Registry, base: type[Section], name: str) -> type[Section]:
    """Return the model of an extension's section, as `options_class` does; its name must not be a key of `base`."""
    options = options_class(registry, name)
    if (options.model_fields and hasattr(base, name)) or name in base.model_fields:
        raise registry.broken(name, "has a name that recipes use for something else")
    return options


@lru_cache
def encoder_with(names: tuple[str, ...]) -> type[Encoder]:
    sections: Json = {
        name: ((options := options_class(ENCODERS, name)), options()) for name in names
    }
    return create_model(
        "Encoder", __base__=Encoder, __doc__=Encoder.__doc__, **sections
    )


def _section_of(model: str) -> str:
    return model.partition(":")[0].replace("-", "_")


def _usage(section: str) -> str:
    """Return the form of `encoder.model` that an encoder declares, such as `openai:<model>`."""
    return str(getattr(ENCODERS.load(section, object), "usage", section))


class Recipe(Section):
    """A complete recipe. `Recipe.load(path)` reads YAML; `recipe.dump()` writes it."""

    run_dir: Annotated[Named, Operational()] = Field(
        description="run directory, with one folder per step"
    )
    name: Annotated[_VariantName | None, Operational()] = keyed(
        None,
        "name of this variant, opened as RUN@name; null: made from the settings that differ",
    )
    seed: int = Field(0, description="seed of all random choices")
    workers: Annotated[keys.Positive | keys.Auto, Operational()] = keyed(
        "auto", "number of processes; auto: one per CPU core; never changes the data"
    )
    executor: Annotated[Literal["local", "serial", "ray"], Operational()] = keyed(
        "local",
        "where tasks run: local processes, this process (serial), or a Ray cluster; never changes the data",
    )
    ray: Annotated[keys.Ray, Operational()] = keys.Ray()
    ingest: keys.Ingest
    chunk: keys.Chunk = keys.Chunk()
    decontaminate: keys.Decontaminate = keys.Decontaminate()
    encoder: Encoder = Encoder()
    search: keys.Search = keys.Search()
    mine: keys.Mine = keys.Mine()
    tokenizer: keys.Tokenizer
    compose: keys.Compose = keys.Compose()
    documents: keys.Documents = keys.Documents()
    export: Export = Export()
    _own: Recipe | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())
    _checked_chars: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if "://" in self.run_dir:
            why = "a run renames, memory-maps and locks files, which object stores do not support"
            cure = "use a folder (on a cluster, one that all nodes share) and publish with export.push"
            raise ValueError(
                f"run_dir={self.run_dir} is not a local folder: {why}; {cure}"
            )
        special = [
            f"tokenizer.{key}"
            for key in ("bos", "eos")
            if getattr(self.tokenizer, key) is not None
        ]
        if (tokens := self.compose.target_tokens) <= len(special):
            beside = " and ".join(special)
            raise ValueError(
                f"compose.target_tokens={tokens} leaves no room for text beside {beside}; raise it"
            )
        need_eos = [
            name for name in self.export.formats if terms_of(name).eos == "required"
        ]
        if need_eos and self.tokenizer.eos is None:
            why = "requires an EOS token at the end of every document, but tokenizer.eos is null"
            cure = "set it to your tokenizer's, such as <|end_of_text|> (Llama 3) or <|endoftext|> (GPT-2): "
            cure += "`nextlong run RECIPE --set tokenizer.eos=NAME`"
            raise ValueError(f"export.formats: {' and '.join(need_eos)} {why}; {cure}")
        if need_eos and self.tokenizer.bos == self.tokenizer.eos:
            why = (
                f"takes {self.tokenizer.eos!r} for the end of a document, but "
                "tokenizer.bos and tokenizer.eos are both this token"
            )
            cure = "set tokenizer.bos to null"
            raise ValueError(f"export.formats: {' and '.join(need_eos)} {why}; {cure}")
        if self.export.pack is not None and self.export.pack < self.sequence_tokens:
            why = (
                f"is less than the length of a sequence, {self.sequence_tokens} tokens"
            )
            cure = (
                "raise it to at least that (a multiple of it fills rows without a gap)"
            )
            raise ValueError(f"export.pack={self.export.pack} {why}; {cure}")
        if (share := self.export.validation) and self.compose.sequences == 1:
            raise ValueError(
                f"export.validation={share:g} cannot split compose.sequences=1; make more sequences"
            )
        return self

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
        """Read a YAML recipe and its `base`, and apply overrides such as `compose.target_tokens=128k`.

        A recipe with overrides is a variant of the file's own settings, which it keeps as `own`. Raises RecipeError that names
        the file, the key, the value and the fix.
        """
        path = arguments.path(path, "path", fix="give the path of a YAML recipe")
        overrides = arguments.strings(overrides, "overrides", fix=_OVERRIDES_FIX)
        data = read_file(path, init="nextlong init {}", has_presets=True)
        recipe = cls.from_dict(data, overrides=overrides, origin=str(path))
        if overrides:
            own = None
            with suppress(RecipeError):  # the file is incomplete without --set
                own = cls.from_dict(data, origin=str(path))
            if own is None or own.identity() != recipe.identity():
                recipe._own = own
                recipe._overridden = tuple(
                    dict.fromkeys(override.partition("=")[0] for override in overrides)
                )
        return recipe

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        origin: str = "recipe",
    ) -> Recipe:
        """Validate a dictionary after applying overrides; `origin` names it in errors. Raises RecipeError."""
        if not isinstance(data, Mapping):
            fix = "give a dictionary with the sections of a recipe"
            raise arguments.wrong("data", data, "is not a dictionary", fix=fix)
        overrides = arguments.strings(overrides, "overrides", fix=_OVERRIDES_FIX)
        try:
            merged = merge(lay_over_base(data) if "base" in data else data, overrides)
            check_plain(merged, origin=origin)
        except RecursionError:
            cure = (
                "contains itself or is nested too deeply; write it without references"
            )
            raise RecipeError(f"{origin} {cure}") from None
        compose, encoder = merged.get("compose"), merged.get("encoder")
        method = compose.get("method") if isinstance(compose, dict) else None
        chosen = method if isinstance(method, str) else keys.Compose().method
        methods, merged = _extensions(METHODS, Recipe, merged, chosen)
        encoders, plain = _encoders_named(encoder if isinstance(encoder, dict) else {})
        root = _recipe_with(methods, encoders)
        if isinstance(encoder, dict):
            merged["encoder"] = plain
        try:
            return root.model_validate(merged)
        except ValidationError as error:
            problems = explain(error, root, methods=METHODS.names)
            raise RecipeError(
                "\n".join(f"{origin}: {line}" for line in problems)
            ) from None

    def dump(self) -> str:
        """Return the resolved recipe with every key, as YAML that `load` reads back to an equal recipe."""
        return as_yaml(self.as_data())

    def as_data(self) -> Json:
        """Return the resolved recipe as plain data, as `from_dict` takes it."""
        data = self.model_dump(mode="json")
        return {
            **{key: data[key] for key in data if key != "export"},
            "export": data["export"],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe.from_dict, (self.as_data(),)  # the class is built at run time

    @property
    def overridden(self) -> tuple[str, ...]:
        """The overridden keys that make this recipe a variant of the file's own settings; empty for those settings."""
        return self._overridden

    @property
    def own(self) -> Recipe | None:
        """The recipe without overrides; None if the file is not a valid recipe by itself."""
        return self._own if self._overridden else self

    @property
    def run_path(self) -> Path:
        return Path(self.run_dir).expanduser()

    @property
    def options(self) -> Section:
        """The options of the recipe's method; a section without keys for a method without options."""
        name = self.compose.method
        return (
            getattr(self, name)
            if name in type(self).model_fields
            else _options(METHODS, Recipe, name)()
        )

    def with_candidates(self, count: int) -> Recipe:
        """Return the same recipe with this number for `mine.candidates`."""
        mine = self.mine.model_copy(update={"candidates": count})
        return self.model_copy(update={"mine": mine})

    def with_checked_chars(self, chars: int) -> Recipe:
        """Return the same recipe for a corpus with documents of more characters."""
        recipe = self.model_copy()
        recipe._checked_chars = chars
        return recipe

    @property
    def checked_chars(self) -> int | None:
        """The characters above which the tokens of a document are counted first.

        None if no document of the corpus has more, or before the corpus is known.
        """
        return self._checked_chars

    @property
    def sequence_tokens(self) -> int:
        """The length of a sequence: `compose.target_tokens` and the extra tokens of its formats."""
        return self.compose.target_tokens + self.export.extra_tokens

    @property
    def compose_seed(self) -> int:
        """The seed of all steps after the vectors."""
        return self.seed if self.compose.seed is None else self.compose.seed


@lru_cache
def _recipe_with(methods: tuple[str, ...], encoders: tuple[str, ...]) -> type[Recipe]:
    encoder = encoder_with(encoders)
    sections: Json = {
        name: ((options := options_class(METHODS, name)), options()) for name in methods
    }
    return create_model(
        "Recipe", __base__=Recipe, encoder=(encoder, encoder()), **sections
    )


_COMMENT_COLUMN = 44
# The keys of a new recipe, even if they have their defaults.
_SHOWN = frozenset((
    "run_dir", "ingest.sources.path", "ingest.sources.name", "ingest.sources.text", "ingest.dedup", "decontaminate.files",
    "encoder.model", "tokenizer.eos", "compose.method", "compose.sequences", "compose.target_tokens", "export.formats",
    "export.pack", "export.validation",
))  # fmt: skip


def commented(
    recipe: Recipe, *, heading: str, include: Literal["all", "important"] = "all"
) -> str:
    """Return the recipe as YAML with a comment for each key; `Recipe.load` reads it back to an equal recipe.

    Of keys that are not important, a recipe of "important" ones has those that differ from their default.
    """
    if include == "important":
        return _headed(heading, _lines(recipe, dict(recipe), include=include))
    values: Json = {name: getattr(recipe, name) for name in type(recipe).model_fields}
    # Include the options of all built-in encoders and methods, the latter before `export`.
    values["encoder"] = encoder_with(tuple(ENCODERS.built_in)).model_validate(
        recipe.encoder.model_dump(mode="json")
    )
    export = values.pop("export")
    of_methods = {name: options_class(METHODS, name)() for name in METHODS.built_in}
    shown = {
        name: values.get(name, options)
        for name, options in of_methods.items()
        if type(options).model_fields
    }
    return _headed(
        heading, _lines(recipe, values | shown | {"export": export}, include="all")
    )


def commented_sections(
    recipe: BaseModel, *, heading: str, sources: Mapping[str, tuple[Any, str]]
) -> str:
    """Return another kind of recipe in the same form; `sources` has the values of a preset, each with its source, by dotted key."""
    unchanged = [
        key
        for key, (value, _) in sources.items()
        if reduce(getattr, key.split("."), recipe) == value
    ]
    origins = {key: f"[{sources[key][1]}]" for key in unchanged}
    return _headed(
        heading, _lines(recipe, dict(recipe), include="all", sources=origins)
    )


def _headed(heading: str, lines: Sequence[str]) -> str:
    return (
        "\n".join([*(f"# {line}".rstrip() for line in heading.splitlines()), *lines])
        + "\n"
    )


def _lines(
    model: BaseModel,
    values: Mapping[str, Any],
    *,
    include: Literal["all", "important"],
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
            below = _lines(
                value,
                dict(value),
                include=include,
                above=f"{dotted}.",
                depth=depth + 1,
                sources=sources,
            )
            if below or include == "all":
                doc = (
                    (type(value).__doc__ or "").strip().partition("\n")[0]
                    if include == "all"
                    else None
                )
                lines += [
                    *([""] if depth == 0 else []),
                    _beside(f"{indent}{key}:", doc),
                    *below,
                ]
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            lines.append(
                _beside(f"{indent}{key}:", comment if include == "all" else None)
            )
            for number, item in enumerate(value):
                has_own = (
                    include == "all" or number == 0
                )  # in a short recipe, only the first item has comments
                place: Json = {
                    "above": f"{dotted}.",
                    "depth": depth + 2,
                    "has_comments": has_own,
                }
                first, *others = _lines(item, dict(item), include=include, **place)
                lines += [f"{indent}  - {first.lstrip()}", *others]
        elif (
            include == "all"
            or dotted in _SHOWN
            or (field is not None and value != field.get_default())
        ):
            plain = list(value) if isinstance(value, tuple) else value
            quotes = (
                '"'
                if isinstance(plain, str) and not (plain and plain.isprintable())
                else None
            )
            text = yaml.safe_dump(
                plain,
                default_style=quotes,
                default_flow_style=True,
                allow_unicode=True,
                width=10_000,
            )
            scalar = text.removesuffix("\n").removesuffix("\n...")
            lines.append(_beside(f"{indent}{key}: {scalar}", comment))
    return lines


def _beside(line: str, comment: str | None) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line
