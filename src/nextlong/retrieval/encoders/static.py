"""Static: chunks → unit vectors, as the mean of one stored vector per token (model2vec).

In:  texts. Out: float32 (n, dimensions), unit rows.
A static model is distilled from a transformer once: it knows meanings of words, not of their order, and encodes some hundred
times as many chunks per second on a processor. Models: any that model2vec reads, by folder or by name on the Hugging Face Hub.
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


class StaticOptions(Section):
    """Options of `encoder.model: static:<name or path>`."""

    dimensions: Positive | None = Field(None, description="use only the first of the model's dimensions; default: all")


class _StaticEncoder:
    """A loaded model of model2vec."""

    def __init__(self, name: str, options: StaticOptions) -> None:
        """Load the model; raises EncoderError where the package or the model is missing."""
        try:
            from model2vec import StaticModel
        except ImportError as error:
            raise EncoderError(f"encoder.model=static:{name}: {error}; pip install 'nextlong[static]'") from None
        path = Path(name).expanduser()
        try:
            self._model: Any = StaticModel.from_pretrained(
                path if path.exists() else name, dimensionality=options.dimensions, force_download=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise EncoderError(
                f"encoder.model=static:{name} cannot be loaded: {first_sentence(error)}; give the folder of a model2vec "
                "model, or its name on the Hugging Face Hub (and a network)"
            ) from None
        self.dimensions = int(self._model.dim)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dimensions); a text without any known token gets a direction of its own."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        # model2vec cuts at 512 tokens by default: a chunk counts as a whole.
        vectors = self._model.encode(list(texts), max_length=None, use_multiprocessing=False)
        return unit_or_drawn(np.array(vectors, np.float32), texts, least=float(np.finfo(np.float32).tiny))


class _StaticKind(EncoderKind):
    """Models of model2vec, which need neither torch nor a GPU."""

    Options = StaticOptions
    usage = "static:<name or path>"
    package = ("model2vec", "static")
    is_model = True
    preload = ("model2vec",)
    cure = "take another model"

    def load(self, config: recipe.Encoder, **_: object) -> _StaticEncoder:
        return _StaticEncoder(config.name, config.options_as(StaticOptions))

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        encoder = self.load(config)
        few = chunks[:_MEASURED_CHUNKS]
        encoder.encode(few[:1])
        began = time.process_time()
        encoder.encode(few)
        return Speed((time.process_time() - began) / max(1, len(few)), "", encoder.dimensions)


ENCODER = _StaticKind()
