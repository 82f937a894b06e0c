"""Model: what a run needs of whoever answers, and the tokenizer that counts for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import tokenizers

from nextlong.errors import EvaluateError
from nextlong.evaluate.task import JSON, Sample

if TYPE_CHECKING:
    from nextlong.evaluate.models.prompts import Prompts


class Model(Protocol):
    """Whoever answers.

    `context` is the most tokens, answer included, None where nobody says; `engine` is what runs the model, with its version.
    """

    context: int | None
    engine: str
    prompts: Prompts

    def identity(self) -> dict[str, JSON]:
        """Return what names the model in results: other values are another model."""

    def batch(self, length: int) -> int:
        """Return how many samples of a length are answered at a time."""

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yield the answers in order, greedy, cut at the sample's limits."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of Hugging Face `tokenizers`, with what it puts before a text (its BOS, or nothing)."""

    backend: tokenizers.Tokenizer

    @classmethod
    def read(cls, source: str | Path) -> TextTokenizer:
        """Read a tokenizer.json, a folder with one, or a name on the Hugging Face hub. Raises EvaluateError."""
        path = Path(source).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            backend = (
                tokenizers.Tokenizer.from_file(str(file))
                if file.is_file()
                else tokenizers.Tokenizer.from_pretrained(str(source))
            )
        except Exception as error:  # the library raises a bare Exception whatever is wrong
            raise EvaluateError(
                f"--tokenizer {source}: no tokenizer.json there, and the hub gives none of that name ({error})"
            ) from None
        return cls(backend)

    def __post_init__(self) -> None:
        self.backend.no_truncation()
        self.backend.no_padding()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, no special ones added."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, no special ones added."""
        return len(self.encode(text))

    def boundaries(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [start, end) of each token."""
        offsets: list[tuple[int, int]] = self.backend.encode(text, add_special_tokens=False).offsets
        return offsets

    @cached_property
    def hash(self) -> str:
        """A hash of everything that the tokenizer is made of; two of the same cut every text alike."""
        return hashlib.blake2b(self.backend.to_str().encode(), digest_size=16).hexdigest()

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The special ids that the tokenizer puts before a text."""
        with_special, plain = self.backend.encode("a").ids, self.encode("a")
        starts = (n for n in range(len(with_special)) if with_special[n : n + len(plain)] == plain)
        return tuple(with_special[: next(starts, 0)])

    def with_prefix(self, ids: Sequence[int]) -> list[int]:
        """Return ids with the special ones before them, once: not again where they are there already."""
        return list(ids) if tuple(ids[: len(self.prefix)]) == self.prefix else [*self.prefix, *ids]
