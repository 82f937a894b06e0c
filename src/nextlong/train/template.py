"""Template: a training recipe as YAML with a comment at every key: what it means, or where its number stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from nextlong.train.presets import Sourced

_COMMENT_COLUMN = 46


def commented(recipe: BaseModel, *, sources: Mapping[str, Sourced], heading: str) -> str:
    """Return the recipe with every key and a comment; those that a preset set say its source."""
    lines = [*(f"# {line}".rstrip() for line in heading.splitlines()), ""]
    return "\n".join([*lines, *_section(recipe, sources, above="", indent="")]) + "\n"


def _section(section: BaseModel, sources: Mapping[str, Sourced], *, above: str, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{above}{name}"
        if isinstance(value, BaseModel):
            meaning = (type(value).__doc__ or "").strip().splitlines()
            yield f"{indent}{name}:" + (f"  # {meaning[0]}" if meaning and not meaning[0].startswith("!") else "")
            yield from _section(value, sources, above=f"{key}.", indent=f"{indent}  ")
            continue
        comment = field.description or ""
        if key in sources and sources[key].value == value:
            comment = "; ".join(filter(None, [f"[{sources[key].source}]", comment]))
        line = f"{indent}{name}: {_yaml(value)}"
        yield f"{line:<{_COMMENT_COLUMN}}  # {comment}" if comment else line


def _yaml(value: Any) -> str:
    if isinstance(value, tuple):
        plain = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in value]
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(value, float):
        return yaml.safe_dump(value).splitlines()[0]  # 1.0e-05: what JSON writes, 1e-05, is a word in YAML
    return json.dumps(value, ensure_ascii=False)
