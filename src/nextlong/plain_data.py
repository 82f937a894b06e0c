"""Plain data: what JSON and YAML hold, where its keys are not ours to list."""

from __future__ import annotations

from typing import Any

# An object whose keys users, plug-ins, trainers or other libraries choose; what we choose has a model or a TypedDict.
Json = dict[str, Any]
