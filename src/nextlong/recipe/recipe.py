"""Recipe: what the user asks for.

YAML in, frozen models out. Unknown keys are refused with the nearest known one; `--set a.b=c` overrides single keys.
The sections and their keys are in `keys`; the options of methods and encoders are sections that these declare themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, PrivateAttr, ValidationError, create_model, field_validator, model_validator

from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe.export import Export
from nextlong.recipe.keys import (
    Auto,
    Chunk,
    Compose,
    Decontaminate,
    Documents,
    Ingest,
    Mine,
    Named,
    Operational,
    Positive,
    Ray,
    Search,
    Section,
    Tokenizer,
    VariantName,
    options_class,
)
from nextlong.recipe.text import check_plain, explain, lay_over_base, merge, read_file
from nextlong.text import Json

_SectionT = TypeVar("_SectionT", bound=Section)


class Encoder(Section):
    """chunks → vectors."""

    model: str = Field(
        "lsa",
        description="lsa | static:<name or path> | sentence-transformers:<name or path> | openai:<model>; or a plugin's",
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoder:
        """Validate plain data, with the sections of the encoders that it names. Raises pydantic's ValidationError."""
        return encoder_with(_encoders_named(data)).model_validate(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder.from_dict, (self.model_dump(mode="json"),)  # the class was made for the encoders that it names

    @property
    def section(self) -> str:
        """The name of the section that holds its options, and of its module or entry point."""
        return _section_of(self.model)

    @property
    def name(self) -> str:
        """What follows the colon: the model's name or path."""
        return self.model.partition(":")[2]

    @property
    def options(self) -> Section:
        """The section that holds its options; where the recipe has none, the defaults."""
        options: Section = getattr(self, self.section, None) or options_class(ENCODERS, self.section)()
        return options

    def options_as(self, kind: type[_SectionT]) -> _SectionT:
        """Return the options of an encoder that knows their class."""
        options = self.options
        assert isinstance(options, kind), options
        return options

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model == cls.model_fields["model"].default:
            return model  # unchecked: a worker may import the encoder's module first, which imports this one
        section = _section_of(model)
        if section not in ENCODERS or (":" in _usage(section)) != bool(model.partition(":")[2]):
            *others, last = (repr(_usage(name)) for name in ENCODERS.names())
            raise ValueError(f"must be {', '.join(others)} or {last}")
        return model


def _encoders_named(data: object) -> tuple[str, ...]:
    """Return the encoder that a section `encoder`, as plain data, names, and those that it has options for."""
    plain = data if isinstance(data, Mapping) else {}
    model = plain.get("model", Encoder.model_fields["model"].default)
    named = {_section_of(model) if isinstance(model, str) else "", *map(str, plain)} - {"model"}
    return tuple(name for name in ENCODERS.names() if name in named)


@lru_cache
def encoder_with(names: tuple[str, ...]) -> type[Encoder]:
    """Return `Encoder` with the sections of some encoders."""
    sections: Json = {name: ((options := options_class(ENCODERS, name)), options()) for name in names}
    return create_model("Encoder", __base__=Encoder, __doc__=Encoder.__doc__, **sections)


def _section_of(model: str) -> str:
    return model.partition(":")[0].replace("-", "_")


def _usage(section: str) -> str:
    """Return what `encoder.model` says for an encoder, as its declaration has it: `openai:<model>`."""
    return str(getattr(ENCODERS.load(section, object), "usage", section))


class Recipe(Section):
    """The whole request. `Recipe.load(path)` reads YAML; `recipe.dump()` writes it."""

    run_dir: Annotated[Named, Operational()] = Field(description="where the run lives; one folder per step")
    name: Annotated[VariantName | None, Operational()] = Field(
        None, description="of this variant of run_dir, opened as RUN@name; null: made from the settings that differ"
    )
    seed: int = Field(0, description="of every random draw")
    workers: Annotated[Positive | Auto, Operational()] = Field(
        "auto", description="processes; auto: one per CPU core; never changes the data"
    )
    executor: Annotated[Literal["local", "serial", "ray"], Operational()] = Field(
        "local",
        description="where tasks run: processes of this machine, this process, or a Ray cluster; never changes the data",
    )
    ray: Annotated[Ray, Operational()] = Ray()
    ingest: Ingest
    chunk: Chunk = Chunk()
    decontaminate: Decontaminate = Decontaminate()
    encoder: Encoder = Encoder()
    search: Search = Search()
    mine: Mine = Mine()
    tokenizer: Tokenizer
    compose: Compose = Compose()
    documents: Documents = Documents()
    export: Export = Export()
    _own: Recipe | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _run_dir_on_disk(self) -> Self:
        if "://" in self.run_dir:
            raise ValueError(
                f"run_dir={self.run_dir} is not a local folder: a run renames and maps files and locks its folder, which object "
                "stores cannot do; give it a folder (shared by all nodes, for a cluster), and publish with export.push"
            )
        return self

    @model_validator(mode="after")
    def _room_for_text(self) -> Self:
        special = [key for key in ("bos", "eos") if getattr(self.tokenizer, key) is not None]
        if self.compose.target_tokens <= len(special):
            raise ValueError(
                f"compose.target_tokens={self.compose.target_tokens} leaves no room beside "
                f"{' and '.join(f'tokenizer.{key}' for key in special)}; raise it"
            )
        return self

    @model_validator(mode="after")
    def _documents_end(self) -> Self:
        if self.export.wants_eos and self.tokenizer.eos is None:
            raise ValueError(
                f"export.formats: {' and '.join(self.export.wants_eos)} wants an EOS token at the end of every document, but "
                "tokenizer.eos is null; name your tokenizer's, such as <|end_of_text|> (Llama 3) or <|endoftext|> (GPT-2), or "
                "by `nextlong run RECIPE --set tokenizer.eos=NAME`"
            )
        return self

    @model_validator(mode="after")
    def _rows_hold_sequences(self) -> Self:
        pack = self.export.pack
        if pack is not None and pack < self.sequence_tokens:
            raise ValueError(
                f"export.pack={pack} tokens a row cannot hold a sequence, which has {self.sequence_tokens}; raise it to at "
                "least that (a multiple leaves no gap)"
            )
        if self.export.validation and self.compose.sequences == 1:
            raise ValueError(
                f"export.validation={self.export.validation:g} but compose.sequences=1 cannot be split; make more sequences"
            )
        return self

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
        """Read a YAML recipe, with what it builds on (`base`), and apply overrides such as `compose.target_tokens=128k`.

        A recipe with overrides remembers the file's own settings (`own`), of which it is a variant. Raises RecipeError naming
        the file, the key, the value and the cure.
        """
        data = read_file(Path(path), init="nextlong init {}", has_presets=True)
        recipe = cls.from_dict(data, overrides=overrides, origin=str(path))
        if overrides:
            try:
                own: Recipe | None = cls.from_dict(data, origin=str(path))
            except RecipeError:  # the file leaves a key to --set
                own = None
            if own is None or own.identity() != recipe.identity():
                recipe._own = own
                recipe._overridden = tuple(dict.fromkeys(override.partition("=")[0] for override in overrides))
        return recipe

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, overrides: Sequence[str] = (), origin: str = "recipe") -> Recipe:
        """Validate a plain dictionary, with overrides applied; `origin` names it in errors. Raises RecipeError."""
        try:
            merged = merge(lay_over_base(data) if "base" in data else data, overrides)
            check_plain(merged, origin=origin)
        except RecursionError:
            raise RecipeError(
                f"{origin} refers to itself, or is nested too deeply to be a recipe; write it out"
            ) from None
        methods, encoders = _methods_named(merged), _encoders_named(merged.get("encoder"))
        model = _recipe_with(methods, encoders)
        try:
            recipe = model.model_validate(merged)
        except ValidationError as error:
            problems = explain(error, model, methods=METHODS.names)
            raise RecipeError("\n".join(f"{origin}: {line}" for line in problems)) from None
        # The chosen method's and encoder's own section is always there, another's only if it says something: so equal recipes
        # are equal.
        kept_methods = tuple(
            name
            for name in methods
            if name == recipe.compose.method or getattr(recipe, name) != _method_options(name)()
        )
        kept_encoders = tuple(
            name
            for name in encoders
            if name == recipe.encoder.section or getattr(recipe.encoder, name) != options_class(ENCODERS, name)()
        )
        if (kept_methods, kept_encoders) == (methods, encoders):
            return recipe
        dropped = {*methods} - {*kept_methods} | {f"encoder.{name}" for name in {*encoders} - {*kept_encoders}}
        plain = {key: value for key, value in merged.items() if key not in dropped}
        if isinstance(section := plain.get("encoder"), dict):
            plain["encoder"] = {key: value for key, value in section.items() if f"encoder.{key}" not in dropped}
        return _recipe_with(kept_methods, kept_encoders).model_validate(plain)

    def dump(self) -> str:
        """Return the resolved recipe, every key named, as YAML that `load` reads back to an equal recipe."""
        return yaml.safe_dump(self.as_data(), sort_keys=False, width=120)

    def as_data(self) -> Json:
        """Return the resolved recipe as plain data that `from_dict` takes."""
        data = self.model_dump(mode="json")
        return {**{key: data[key] for key in data if key != "export"}, "export": data["export"]}

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe.from_dict, (self.as_data(),)  # the class may have been made for the methods that it names

    @property
    def overridden(self) -> tuple[str, ...]:
        """The keys of the overrides that make it a variant of the recipe's own settings; empty for these settings."""
        return self._overridden

    @property
    def own(self) -> Recipe | None:
        """The recipe's own settings, without overrides; None where they are no valid recipe by themselves."""
        return self._own if self._overridden else self

    @property
    def run_path(self) -> Path:
        """Where the recipe's run lives."""
        return Path(self.run_dir).expanduser()

    @property
    def options(self) -> Section:
        """The section of the recipe's method, which has no keys where the method has no options."""
        name = self.compose.method
        section: Section = getattr(self, name) if name in type(self).model_fields else _method_options(name)()
        return section

    @property
    def sequence_tokens(self) -> int:
        """The length of a sequence: `compose.target_tokens`, and what its formats want more."""
        return self.compose.target_tokens + self.export.extra_tokens

    @property
    def compose_seed(self) -> int:
        """The seed of everything after the vectors."""
        return self.seed if self.compose.seed is None else self.compose.seed


def _methods_named(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the recipe's method and those that it has a section for, as far as they have options."""
    compose = data.get("compose")
    asked = compose.get("method") if isinstance(compose, dict) else None
    asked = asked if isinstance(asked, str) else Compose().method
    named = {asked, *(key for key in data if isinstance(key, str))}
    named -= set(Recipe.model_fields) - {asked}
    known = METHODS.built_in if named <= set(METHODS.built_in) else METHODS.names()
    return tuple(name for name in known if name in named and _method_options(name).model_fields)


@lru_cache
def _recipe_with(methods: tuple[str, ...], encoders: tuple[str, ...]) -> type[Recipe]:
    """Return `Recipe` with the sections of some methods and encoders."""
    encoder = encoder_with(encoders)
    sections: Json = {name: (_method_options(name), _method_options(name)()) for name in methods}
    return create_model("Recipe", __base__=Recipe, encoder=(encoder, encoder()), **sections)


def _method_options(method: str) -> type[Section]:
    """Return the model of a method's section, as `options_class` does; its name must not be a key of recipes."""
    options = options_class(METHODS, method)
    if (options.model_fields and hasattr(Recipe, method)) or method in Recipe.model_fields:
        raise METHODS.broken(method, "has a name that recipes use for something else")
    return options
