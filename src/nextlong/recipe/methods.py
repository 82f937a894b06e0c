"""Which methods there are: those of this package, and those that other distributions bring."""

from __future__ import annotations

from typing import Final

from nextlong.plugins import Plugins

METHODS: Final = Plugins(
    kind="method",
    package="nextlong.methods",
    attribute="METHOD",
    group="nextlong.methods",
    shared=frozenset({"base", "documents", "steps"}),
)
