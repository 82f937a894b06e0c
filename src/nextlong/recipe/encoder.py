"""Recipe keys of the encoder: which one turns chunks into vectors; its options are a section that the encoder itself declares."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import Field, create_model, field_validator

from nextlong.plugins import ENCODERS
from nextlong.recipe.keys import Section, options_class
from nextlong.text import Json

SectionT = TypeVar("SectionT", bound=Section)


class Encoder(Section):
    """chunks → vectors."""

    model: str = Field(
        "lsa",
        description="lsa | static:<name or path> | sentence-transformers:<name or path> | openai:<model>; or a plugin's",
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoder:
        """Validate plain data, with the sections of the encoders that it names. Raises pydantic's ValidationError."""
        return encoder_with(encoders_named(data)).model_validate(data)

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

    def options_as(self, kind: type[SectionT]) -> SectionT:
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


def encoders_named(data: object) -> tuple[str, ...]:
    """Return the encoder that a section `encoder`, as plain data, names, and those that it has options for."""
    plain = data if isinstance(data, Mapping) else {}
    model = plain.get("model", Encoder.model_fields["model"].default)
    named = {_section_of(model) if isinstance(model, str) else "", *map(str, plain)} - {"model"}
    return tuple(name for name in ENCODERS.names() if name in named)


@lru_cache
def encoder_with(names: tuple[str, ...]) -> type[Encoder]:
    """Return `Encoder` with the sections of some encoders."""
    classes = {name: options_class(ENCODERS, name) for name in names}
    sections: Json = {name: (options, options()) for name, options in classes.items()}
    return create_model("Encoder", __base__=Encoder, __doc__=Encoder.__doc__, **sections)


def _section_of(model: str) -> str:
    return model.partition(":")[0].replace("-", "_")


def _usage(section: str) -> str:
    """Return what `encoder.model` says for an encoder, as its declaration has it: `openai:<model>`."""
    return str(getattr(ENCODERS.load(section, object), "usage", section))
