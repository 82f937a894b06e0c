"""Negatives: the choices of `compose.negatives` (the paper's ablation, §4.4), and what each means for those who ask.

Everything outside asks for these properties, never for a choice's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

NegativesName = Literal["top", "random-retrieved", "tail", "random-corpus", "self-repeat"]


@dataclass(frozen=True, kw_only=True)
class NegativeChoice:
    """Where negatives come from (retrieved candidates, the whole corpus, or the meta-chunk itself), and in what order."""

    origin: Literal["retrieved", "corpus", "meta-chunk"] = "retrieved"
    order: Literal["nearest", "random", "farthest"] = "nearest"

    @property
    def are_nearest(self) -> bool:
        """Whether the nearest candidates serve first."""
        return self.origin == "retrieved" and self.order == "nearest"

    @property
    def are_reordered(self) -> bool:
        """Whether the nearest candidates serve in another order than by cosine."""
        return self.origin == "retrieved" and self.order != "nearest"

    @property
    def are_random(self) -> bool:
        """Whether a seed decides."""
        return self.order == "random"

    @property
    def repeat_meta_chunk(self) -> bool:
        """Whether the meta-chunk serves as its own negative, so that repeats are the point."""
        return self.origin == "meta-chunk"


NEGATIVES: Final[Mapping[str, NegativeChoice]] = {
    "top": NegativeChoice(),
    "random-retrieved": NegativeChoice(order="random"),
    "tail": NegativeChoice(order="farthest"),
    "random-corpus": NegativeChoice(origin="corpus", order="random"),
    "self-repeat": NegativeChoice(origin="meta-chunk"),
}
