"""Recipe: everything that a user configures for a run, as one frozen model.

In:  YAML, a preset or a dictionary, and overrides (`--set`).
Out: a validated `Recipe`, or one RecipeError that lists every mistake.

Back to YAML, `commented` writes the description of each key beside it, from the models,
so it is always up to date. `keys` declares the sections; methods and encoders declare
the sections of their own options, so a model class is built for the extensions that a
recipe names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

import nextlong.recipe.keys as keys
from nextlong import arguments
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, METHODS, Registry
from nextlong.recipe.export import Export, terms_of
from nextlong.recipe.keys import Named, Operational, Section, keyed, options_class
from nextlong.recipe.text import (
    as_yaml,
    check_values,
    invalid_keys,
    lay_over_base,
    merge,
    read_file,
)
from nextlong.schemas import Layout
from nextlong.text import Json

_OVERRIDES_FIX: Final = 'give a list such as ["compose.target_tokens=65536"]'
# Valid in a file name and in RUN@name.
# A name such as 2 is a number in YAML.
_VariantName = Annotated[
    str,
    BeforeValidator(lambda name: str(name) if type(name) is int else name),
    Field(pattern=r"^[\w+=,][\w.+=,-]*$", max_length=120),
]
_SectionT = TypeVar("_SectionT", bound=Section)


class Encoder(Section):
    """chunks → vectors."""

    model: str = keyed(
        "lsa",
        "lsa | static:<name or path> | sentence-transformers:<name or path> | "
        "openai:<model> | a plugin's",
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoder:
        """Validate plain data, including the option sections of encoders.

        Raises pydantic's ValidationError.
        """
        names, without_defaults = _encoders_named(data)
        return encoder_with(names).model_validate(without_defaults)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is built at run time, so it cannot be pickled by its name.
        return Encoder.from_dict, (self.model_dump(mode="json"),)

    @property
    def section(self) -> str:
        """The name of the encoder's option section, also that of its module."""
        return _section_of(self.model)

    @property
    def name(self) -> str:
        """The name or path of the model, after the colon."""
        return self.model.partition(":")[2]

    @property
    def options(self) -> Section:
        """The encoder's options; the defaults if the recipe has no section for them."""
        given: Section | None = getattr(self, self.section, None)
        if given is not None:
            return given
        return options_class(ENCODERS, self.section)()

    def options_as(self, kind: type[_SectionT]) -> _SectionT:
        options = self.options
        assert isinstance(options, kind), options
        return options

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        # The default is not looked up: a worker may import the encoder's module first,
        # which imports this one.
        if model == cls.model_fields["model"].default:
            return model
        section = _section_of(model)
        has_name = model.partition(":")[2] != ""
        if section in ENCODERS and has_name == (":" in _usage(section)):
            return model
        *others, last = (repr(_usage(name)) for name in ENCODERS.names())
        raise ValueError(f"must be {', '.join(others)} or {last}")


def _encoders_named(data: Mapping[str, Any]) -> tuple[tuple[str, ...], Json]:
    """Return `_extensions` of an `encoder` section given as plain data."""
    model = data.get("model", Encoder().model)
    return _extensions(ENCODERS, Encoder, data, chosen=_section_of(str(model)))


def _extensions(
    registry: Registry, base: type[Section], data: Mapping[str, Any], *, chosen: str
) -> tuple[tuple[str, ...], Json]:
    """Return the extensions with a section in `data`, and `data` without mere defaults.

    `data` has the keys of `base` and sections of extensions. The chosen extension
    always has a section; any other only if it differs from its defaults. So equal
    recipes compare equal.
    """
    keys_of_base = set(base.model_fields) - {chosen}
    named = {key for key in (chosen, *data) if isinstance(key, str)} - keys_of_base
    names = []
    remaining = dict(data)
    for name in sorted(named):
        if name not in registry:
            continue
        options = _options(registry, base, name)
        if not options.model_fields:
            continue
        if name != chosen and _is_default(options, data[name]):
            del remaining[name]
        else:
            names.append(name)
    return tuple(names), remaining


def _is_default(options: type[Section], given: Any) -> bool:
    try:
        return options.model_validate(given) == options()
    except ValidationError:
        return False  # reported when the whole recipe is validated


def _options(registry: Registry, base: type[Section], name: str) -> type[Section]:
    """Return the model of an extension's section, as `options_class` does.

    Its name must not be a key of `base`.
    """
    options = options_class(registry, name)
    hides_attribute = bool(options.model_fields) and hasattr(base, name)
    if hides_attribute or name in base.model_fields:
        raise registry.broken(name, "has a name that recipes use for something else")
    return options


def _option_fields(registry: Registry, names: tuple[str, ...]) -> Json:
    """Return the fields of extensions' sections, as `create_model` takes them."""
    fields: Json = {}
    for name in names:
        options = options_class(registry, name)
        fields[name] = (options, options())
    return fields


# One class for each set of extensions, however many recipes name it.
@lru_cache
def encoder_with(names: tuple[str, ...]) -> type[Encoder]:
    """Return the model of the encoder section with the options of these encoders."""
    fields = _option_fields(ENCODERS, names)
    return create_model("Encoder", __base__=Encoder, __doc__=Encoder.__doc__, **fields)


def _section_of(model: str) -> str:
    return model.partition(":")[0].replace("-", "_")


def _usage(section: str) -> str:
    """Return the form of `encoder.model` that an encoder declares: `openai:<model>`."""
    encoder = ENCODERS.load(section, object)
    return str(getattr(encoder, "usage", section))


class Recipe(Section):
    """A complete recipe. `Recipe.load(path)` reads YAML; `recipe.dump()` writes it."""

    run_dir: Annotated[Named, Operational()] = Field(
        description="run directory, with one folder per step"
    )
    name: Annotated[_VariantName | None, Operational()] = keyed(
        None,
        "name of this variant, opened as RUN@name; null: made from the settings that "
        "differ",
    )
    seed: int = Field(0, description="seed of all random choices")
    workers: Annotated[keys.Positive | keys.Auto, Operational()] = keyed(
        "auto", "number of processes; auto: one per CPU core; never changes the data"
    )
    executor: Annotated[Literal["local", "serial", "ray"], Operational()] = keyed(
        "local",
        "where tasks run: local processes, this process (serial), or a Ray cluster; "
        "never changes the data",
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
    scorer: keys.Scorer = keys.Scorer()
    export: Export = Export()
    # What the file alone says, and which keys were overridden: no part of the settings.
    _own: Recipe | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())
    _checked_chars: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse sections that are valid one by one, but do not go together."""
        self._check_run_dir()
        self._check_room_for_text()
        self._check_ends_of_documents()
        self._check_tasks()
        if self.export.pack is not None and self.export.pack < self.sequence_tokens:
            raise ValueError(
                f"export.pack={self.export.pack} is less than the length of a "
                f"sequence, {self.sequence_tokens} tokens; raise it to at least that "
                "(a multiple of it fills rows without a gap)"
            )
        validation = self.export.validation
        if validation > 0 and self.compose.sequences == 1:
            raise ValueError(
                f"export.validation={validation:g} cannot split compose.sequences=1; "
                "make more sequences"
            )
        return self

    def _check_tasks(self) -> None:
        """Refuse tasks for a method whose sequences have no meta-chunks."""
        method = METHODS.load(self.compose.method, object)
        is_extended = getattr(method, "layout", None) == Layout.EXTENDED
        if self.compose.tasks.share > 0 and not is_extended:
            raise ValueError(
                f"compose.tasks.share={self.compose.tasks.share:g} inserts tasks "
                "between meta-chunks, which sequences of "
                f"compose.method={self.compose.method} do not have; set it to 0"
            )

    def _check_run_dir(self) -> None:
        if "://" in self.run_dir:
            raise ValueError(
                f"run_dir={self.run_dir} is not a local folder: a run renames, "
                "memory-maps and locks files, which object stores do not support; use "
                "a folder (on a cluster, one that all nodes share) and publish with "
                "export.push"
            )

    def _check_room_for_text(self) -> None:
        special = []
        if self.tokenizer.bos is not None:
            special.append("tokenizer.bos")
        if self.tokenizer.eos is not None:
            special.append("tokenizer.eos")
        tokens = self.compose.target_tokens
        if tokens <= len(special):
            raise ValueError(
                f"compose.target_tokens={tokens} leaves no room for text beside "
                f"{' and '.join(special)}; raise it"
            )

    def _check_ends_of_documents(self) -> None:
        """Check the EOS token that some formats find the ends of documents by."""
        need_eos = [
            name for name in self.export.formats if terms_of(name).eos == "required"
        ]
        if not need_eos:
            return
        formats = " and ".join(need_eos)
        eos = self.tokenizer.eos
        if eos is None:
            raise ValueError(
                f"export.formats: {formats} requires an EOS token at the end of every "
                "document, but tokenizer.eos is null; set it to your tokenizer's, such "
                "as <|end_of_text|> (Llama 3) or <|endoftext|> (GPT-2): `nextlong run "
                "RECIPE --set tokenizer.eos=NAME`"
            )
        if self.tokenizer.bos == eos:
            raise ValueError(
                f"export.formats: {formats} takes {eos!r} for the end of a document, "
                "but tokenizer.bos and tokenizer.eos are both this token; set "
                "tokenizer.bos to null"
            )

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
        """Read a YAML recipe and its `base`, and apply overrides.

        An override is `compose.target_tokens=128k`. A recipe with overrides is a
        variant of the file's own settings, which it keeps as `own`. Raises RecipeError
        that names the file, the key, the value and the fix.
        """
        path = arguments.path(path, "path", fix="give the path of a YAML recipe")
        overrides = arguments.strings(overrides, "overrides", fix=_OVERRIDES_FIX)
        data = read_file(path, init="nextlong init {}", has_presets=True)
        recipe = cls.from_dict(data, overrides=overrides, origin=str(path))
        if not overrides:
            return recipe
        # Overrides that change nothing make no variant.
        own = None
        # The file may be incomplete without --set.
        with suppress(RecipeError):
            own = cls.from_dict(data, origin=str(path))
        if own is None or own.identity() != recipe.identity():
            keys_set = [override.partition("=")[0] for override in overrides]
            recipe._own = own
            recipe._overridden = tuple(dict.fromkeys(keys_set))
        return recipe

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        origin: str = "recipe",
    ) -> Recipe:
        """Validate a dictionary after applying overrides.

        `origin` names it in errors. Raises RecipeError.
        """
        if not isinstance(data, Mapping):
            fix = "give a dictionary with the sections of a recipe"
            raise arguments.wrong("data", data, "is not a dictionary", fix=fix)
        overrides = arguments.strings(overrides, "overrides", fix=_OVERRIDES_FIX)
        try:
            over_base = lay_over_base(data) if "base" in data else data
            merged = merge(over_base, overrides)
            check_values(merged, origin=origin)
        except RecursionError:
            raise RecipeError(
                where=origin,
                problem="it contains itself or is nested too deeply",
                fix="write it without YAML references (& and *)",
            ) from None

        chosen = keys.Compose().method
        compose = merged.get("compose")
        # A method that is no string is reported when the recipe is validated.
        if isinstance(compose, dict) and isinstance(compose.get("method"), str):
            chosen = compose["method"]
        # The models of these extensions' options become fields of the recipe's model.
        methods, merged = _extensions(METHODS, Recipe, merged, chosen=chosen)
        encoder = merged.get("encoder")
        if isinstance(encoder, dict):
            encoders, merged["encoder"] = _encoders_named(encoder)
        else:
            encoders, _ = _encoders_named({})
        root = _recipe_with(methods, encoders)
        try:
            return root.model_validate(merged)
        except ValidationError as error:
            raise invalid_keys(
                error, root, origin=origin, methods=METHODS.names
            ) from None

    def dump(self) -> str:
        """Return the resolved recipe with every key, as YAML.

        `load` reads it back to an equal recipe.
        """
        return as_yaml(self.as_data())

    def as_data(self) -> Json:
        """Return the resolved recipe as plain data, as `from_dict` takes it."""
        data = self.model_dump(mode="json")
        # The export stands last, after the options of methods.
        data["export"] = data.pop("export")
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is built at run time, so it cannot be pickled by its name.
        return Recipe.from_dict, (self.as_data(),)

    @property
    def overridden(self) -> tuple[str, ...]:
        """The overridden keys that make this recipe a variant of its file.

        Empty for the file's own settings.
        """
        return self._overridden

    @property
    def own(self) -> Recipe | None:
        """The recipe without overrides; None if the file is not valid by itself."""
        return self._own if self._overridden else self

    @property
    def run_path(self) -> Path:
        return Path(self.run_dir).expanduser()

    @property
    def options(self) -> Section:
        """The options of the recipe's method; without keys if it has no options."""
        name = self.compose.method
        if name in type(self).model_fields:
            section: Section = getattr(self, name)
            return section
        return _options(METHODS, Recipe, name)()

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
        """The length of a sequence: target_tokens and its formats' extra tokens."""
        return self.compose.target_tokens + self.export.extra_tokens

    @property
    def compose_seed(self) -> int:
        """The seed of all steps after the vectors."""
        return self.seed if self.compose.seed is None else self.compose.seed


@lru_cache
def _recipe_with(methods: tuple[str, ...], encoders: tuple[str, ...]) -> type[Recipe]:
    encoder = encoder_with(encoders)
    fields = _option_fields(METHODS, methods)
    fields["encoder"] = (encoder, encoder())
    return create_model("Recipe", __base__=Recipe, **fields)


_COMMENT_COLUMN = 44
# The keys of a new recipe, even if they have their defaults.
_SHOWN = frozenset((
    "run_dir", "ingest.sources.path", "ingest.sources.name", "ingest.sources.text",
    "ingest.dedup", "decontaminate.files", "encoder.model", "tokenizer.eos",
    "compose.method", "compose.sequences", "compose.target_tokens", "export.formats",
    "export.pack", "export.validation",
))  # fmt: skip


# The other keys of a complete recipe, by the phase of a run that reads them.
_GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "the run": ("name", "seed", "workers", "executor", "ray"),
    "read": ("ingest", "chunk", "decontaminate", "tokenizer"),
    "encode": ("encoder",),
    "search": ("search", "mine", "documents"),
    "compose": ("compose", *METHODS.built_in),
    "write": ("export",),
}
_REST: Final = """\
The other keys, each with its default. To set one, write it without "# " into its
section above; a section that is not there may be added."""


def commented(
    recipe: Recipe, *, heading: str, include: Literal["all", "important"] = "all"
) -> str:
    """Return the recipe as YAML with a comment for each key.

    `Recipe.load` reads it back to an equal recipe. The important keys come first, and
    those that differ from their default; with "all", the others follow as comments, in
    groups.
    """
    lines = _Commenter("important").lines(recipe, dict(recipe))
    if include == "all":
        lines += ["", *(f"# {line}" for line in _REST.splitlines())]
        for group, rest in _rest(recipe).items():
            lines += ["", f"# == {group} ==", *(f"# {line}".rstrip() for line in rest)]
    return _headed(heading, lines)


def _rest(recipe: Recipe) -> dict[str, list[str]]:
    """Return the lines of the keys that a short recipe leaves out, by group."""
    values: Json = {name: getattr(recipe, name) for name in type(recipe).model_fields}
    # The options of all built-in encoders and methods.
    encoder = encoder_with(tuple(ENCODERS.built_in))
    values["encoder"] = encoder.model_validate(recipe.encoder.model_dump(mode="json"))
    for name in METHODS.built_in:
        options = options_class(METHODS, name)
        if options.model_fields:
            values[name] = values.get(name, options())
    group_of: dict[str, str] = {}
    for group, sections in _GROUPS.items():
        group_of |= dict.fromkeys(sections, group)
    grouped: dict[str, Json] = {group: {} for group in _GROUPS}
    for name, value in values.items():
        # The options of a plug-in's method.
        grouped[group_of.get(name, "compose")][name] = value
    commenter = _Commenter("rest")
    return {
        group: commenter.lines(recipe, of_group) for group, of_group in grouped.items()
    }


def commented_sections(
    recipe: BaseModel, *, heading: str, sources: Mapping[str, tuple[Any, str]]
) -> str:
    """Return another kind of recipe in the same form.

    `sources` has the values of a preset, each with its source, by dotted key.
    """
    origins = {}
    for key, (preset_value, source) in sources.items():
        value = reduce(getattr, key.split("."), recipe)
        if value == preset_value:
            origins[key] = f"[{source}]"
    commenter = _Commenter("all", sources=origins)
    return _headed(heading, commenter.lines(recipe, dict(recipe)))


def _headed(heading: str, lines: Sequence[str]) -> str:
    comments = [f"# {line}".rstrip() for line in heading.splitlines()]
    return "\n".join([*comments, *lines]) + "\n"


@dataclass(frozen=True)
class _Commenter:
    """Writes sections as lines of YAML, with the descriptions of their keys.

    sources: what stands before a description, by dotted key
    """

    include: Literal["all", "important", "rest"]
    sources: Mapping[str, str] = field(default_factory=dict)

    def lines(
        self,
        model: BaseModel,
        values: Mapping[str, Any],
        *,
        above: str = "",
        depth: int = 0,
        has_comments: bool = True,
    ) -> list[str]:
        """Return the lines of a model's `values`, with nested sections.

        `above` is the model's dotted key with a final dot.
        """
        lines: list[str] = []
        indent = "  " * depth
        for key, value in values.items():
            field_info = type(model).model_fields.get(key)
            dotted = f"{above}{key}"
            comments = [self.sources.get(dotted)]
            if field_info is not None and has_comments:
                comments.append(field_info.description)
            comment = "; ".join(filter(None, comments))
            if isinstance(value, BaseModel):
                lines += self._section(key, value, dotted=dotted, depth=depth)
            elif _is_list_of_sections(value):
                shown = comment if self.include == "all" else ""
                lines.append(_beside(f"{indent}{key}:", shown))
                items = value[:1] if self.include == "rest" else value
                for index, item in enumerate(items):
                    # In a short recipe, only the first item has comments.
                    first, *others = self.lines(
                        item,
                        dict(item),
                        above=f"{dotted}.",
                        depth=depth + 2,
                        has_comments=self.include == "all" or index == 0,
                    )
                    lines += [f"{indent}  - {first.lstrip()}", *others]
            elif self._is_shown(dotted, value, field_info):
                lines.append(_beside(f"{indent}{key}: {_yaml_value(value)}", comment))
        return lines

    def _section(
        self, key: str, section: BaseModel, *, dotted: str, depth: int
    ) -> list[str]:
        """Return the lines of a nested section; none if it is short and has no keys."""
        below = self.lines(section, dict(section), above=f"{dotted}.", depth=depth + 1)
        if not below and self.include != "all":
            return []
        summary = "" if self.include == "important" else _summary(section)
        heading = _beside(f"{'  ' * depth}{key}:", summary)
        blank = [""] if depth == 0 and self.include != "rest" else []
        return [*blank, heading, *below]

    def _is_shown(self, dotted: str, value: Any, field_info: FieldInfo | None) -> bool:
        if self.include == "all":
            return True
        is_changed = field_info is not None and value != field_info.get_default()
        is_important = dotted in _SHOWN or is_changed
        return is_important == (self.include == "important")


def _summary(section: BaseModel) -> str:
    """Return the first line of a section's docstring."""
    doc = type(section).__doc__ or ""
    return doc.strip().partition("\n")[0]


def _is_list_of_sections(value: Any) -> bool:
    return isinstance(value, tuple) and value != () and isinstance(value[0], BaseModel)


def _yaml_value(value: Any) -> str:
    """Return a value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    # Without quotes, PyYAML writes a text with line ends over several lines.
    needs_quotes = isinstance(plain, str) and not (plain and plain.isprintable())
    text: str = yaml.safe_dump(
        plain,
        default_style='"' if needs_quotes else None,
        default_flow_style=True,
        allow_unicode=True,
        width=10_000,
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _beside(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line
