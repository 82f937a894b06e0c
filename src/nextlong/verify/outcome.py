"""Outcome: what one check looked at and what it found wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

_KEPT_EXAMPLES = 5


def in_words(error: BaseException) -> str:
    """Return what an error says, with the file where it names one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass
class Outcome:
    """One check: `checked` things of a kind, `breaches` of them wrong, the first few of these in words."""

    check: str
    unit: str
    checked: int = 0
    breaches: int = 0
    examples: list[str] = field(default_factory=list)
    note: str = ""
    skipped: str = ""  # why nothing was checked, or …
    not_needed: str = ""  # … why the method, or what the recipe asks of it, has nothing to check

    def breach(self, example: str) -> None:
        """Count one breach, and keep its description if it is among the first."""
        self.breaches += 1
        if len(self.examples) < _KEPT_EXAMPLES:
            self.examples.append(example)

    def add(self, part: Outcome) -> None:
        """Count what another one of the same kind looked at and found, too."""
        self.checked += part.checked
        self.breaches += part.breaches
        self.examples = [*self.examples, *part.examples][:_KEPT_EXAMPLES]

    @property
    def result(self) -> Literal["pass", "breach", "skipped", "not needed"]:
        """What the table says."""
        if self.breaches:
            return "breach"
        if self.not_needed:
            return "not needed"
        return "skipped" if self.skipped else "pass"
