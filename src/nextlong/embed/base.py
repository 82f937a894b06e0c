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
from nextlong.engine.executor import Capacity, Resources
from nextlong.errors import EncoderError


class Encoder(Protocol):
    """Texts in, unit vectors out."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, shape (n, dimensions), each of unit length."""


def embedding_resources(config: recipe.Encoder, capacity: Capacity) -> Resources:
    """Return what a task of embedding needs where there is so much in all.

    A server's rate limit is kept by one process (its requests run in threads); a model takes a GPU for itself, if there is one.
    """
    if config.kind == "openai":
        return Resources(at_once=1)
    if config.kind == "sentence-transformers" and config.sentence_transformers.backend == "torch":
        device = config.sentence_transformers.device
        if capacity.gpus and (device is None or device == "cuda"):
            return Resources(gpus=1)
        if device is not None and device.startswith("cuda"):  # the one that is named
            return Resources(at_once=1)
    return Resources()


def load_encoder(
    config: recipe.Encoder, *, fitted: Path | None = None, dtype: str | None = None, threads: int | None = None
) -> Encoder:
    """Return the encoder that the recipe names.

    `fitted` is the stem that `Lsa.save` wrote, for `lsa` only; `dtype` and `threads` are what `choose` found, for
    `sentence-transformers` only. Raises EncoderError where a package or a model is missing, with the cure.
    """
    if config.kind == "sentence-transformers":
        from nextlong.embed.sentence_transformers import SentenceTransformersEncoder

        return SentenceTransformersEncoder(config.name, config.sentence_transformers, dtype=dtype, threads=threads)
    if config.kind == "openai":
        from nextlong.embed.openai import OpenAIEncoder

        return OpenAIEncoder(config.name, config.openai)
    from nextlong.embed.lsa import Lsa

    if fitted is None:
        raise EncoderError("encoder.model=lsa is fitted on the corpus; give the stem of the files that the fit wrote")
    return Lsa.load(fitted)
