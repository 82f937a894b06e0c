"""Texts: the sentences of a plan, from `words.yaml`, with names in braces."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import yaml

_FILE: Final = files(__package__) / "words.yaml"
TEXTS: Final[dict[str, str]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
