"""Encoders: text → unit vectors. One adapter a file; `load_encoder` imports only the one that the recipe names.

Mining needs nothing but `encode`, so anything that turns texts into unit vectors fits. `lsa` is built in and fitted on
the corpus; `sentence-transformers` runs a model of that library; `openai` asks a server that speaks that API.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.errors import EncoderError


class Encoder(Protocol):
    """Texts in, unit vectors out."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, shape (n, dimensions), each of unit length."""


def embedding_lanes(config: recipe.Encoder) -> int | None:
    """Return how many shards to embed at once; None: one for each worker.

    One for a server, whose rate limit one process keeps (its requests run in threads); one for each GPU.
    """
    if config.kind == "openai":
        return 1
    if config.kind == "sentence-transformers":
        from nextlong.embed.sentence_transformers import count_gpus

        return count_gpus(config.sentence_transformers) or None
    return None


def load_encoder(config: recipe.Encoder, *, fitted: Path | None = None) -> Encoder:
    """Return the encoder that the recipe names; `fitted` is the stem that `Lsa.save` wrote, for `lsa` only.

    Raises EncoderError where a package or a model is missing, with the cure.
    """
    if config.kind == "sentence-transformers":
        from nextlong.embed.sentence_transformers import SentenceTransformersEncoder

        return SentenceTransformersEncoder(config.name, config.sentence_transformers)
    if config.kind == "openai":
        from nextlong.embed.openai import OpenAIEncoder

        return OpenAIEncoder(config.name, config.openai)
    from nextlong.embed.lsa import Lsa

    if fitted is None:
        raise EncoderError("encoder.model=lsa is fitted on the corpus; give the stem of the files that the fit wrote")
    return Lsa.load(fitted)
