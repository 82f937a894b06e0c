"""Static encoders: the mean of one stored vector per token (model2vec).

In:  texts. Out: float32 (n, dimensions), unit rows.

A static model is distilled from a transformer once. It represents the meanings of words
but not their order, and encodes several hundred times as many chunks per second on a
CPU. Any model that model2vec reads works, by folder or Hub name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nextlong import recipe
from nextlong.errors import EncoderError
from nextlong.recipe.keys import Positive, Section
from nextlong.retrieval.encoders.base import EncoderKind, Speed, unit_or_drawn
from nextlong.text import first_sentence

_MEASURED_CHUNKS = 256


class _StaticOptions(Section):
    """Options of `encoder.model: static:<name or path>`."""

    dimensions: Positive | None = Field(
        None, description="use only the first dimensions of the model; default: all"
    )


class _StaticEncoder:
    """A model of model2vec."""

    def __init__(self, name: str, options: _StaticOptions) -> None:
        """Load the model; raises EncoderError where the package or it is missing."""
        try:
            from model2vec import StaticModel
        except ImportError as error:
            raise EncoderError(
                where="encoder.model",
                value=f"static:{name}",
                problem=f"cannot be loaded: {error}",
                fix="pip install 'nextlong[static]'",
            ) from None
        path = Path(name).expanduser()
        try:
            self._model: Any = StaticModel.from_pretrained(
                path if path.exists() else name,
                dimensionality=options.dimensions,
                force_download=False,
            )
        except (OSError, ValueError, KeyError) as error:
            raise EncoderError(
                where="encoder.model",
                value=f"static:{name}",
                problem=f"cannot be loaded: {first_sentence(error)}",
                fix=(
                    "give the folder of a model2vec model, or its name on the Hugging "
                    "Face Hub (and a network)"
                ),
            ) from None
        self.dimensions = int(self._model.dim)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dimensions).

        A text without known tokens gets a random direction of its own.
        """
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        # model2vec truncates at 512 tokens by default; use the whole chunk.
        encoded = self._model.encode(
            list(texts), max_length=None, use_multiprocessing=False
        )
        vectors = np.array(encoded, np.float32)
        smallest = float(np.finfo(np.float32).tiny)
        return unit_or_drawn(vectors, texts, min_length=smallest)


class _StaticKind(EncoderKind):
    """Models of model2vec, which require neither torch nor a GPU."""

    Options = _StaticOptions
    usage = "static:<name or path>"
    package = ("model2vec", "static")
    is_model = True
    preload = ("model2vec",)
    fix = "use another model"

    def load(self, config: recipe.Encoder, *_: object) -> _StaticEncoder:
        return _StaticEncoder(config.name, config.options_as(_StaticOptions))

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        encoder = self.load(config)
        sample = chunks[:_MEASURED_CHUNKS]
        encoder.encode(sample[:1])  # warm up
        began = time.process_time()
        encoder.encode(sample)
        seconds = time.process_time() - began
        return Speed(
            chunk_s=seconds / max(1, len(sample)), dimensions=encoder.dimensions
        )


ENCODER = _StaticKind()
