"""Texts: the warnings of warnings.yaml, whose fields the checks fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from nextlong.runs.statistics.stats import DataWarning

_TEXTS: Final[dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_name("warnings.yaml").read_text("utf-8")
)
# The names of the warnings about a run, in the order in which they are shown.
CHECKS: Final = tuple(_TEXTS["run"])
_TEXT_BY_NAME: Final = _TEXTS["run"] | _TEXTS["rows"]


def warn(name: str, change: str = "", /, **values: Any) -> DataWarning:
    """Return the warning `name` with `values` in the fields of its text."""
    message = _TEXT_BY_NAME[name].format(**values)
    return DataWarning(name, message, change)
