"""Static encoders: the mean of one stored vector per token (model2vec, WordLlama).

In:  texts. Out: float32 (n, dimensions), unit rows.

A static model is distilled from a transformer once. It represents the meanings of words
but not their order, and encodes several hundred times as many chunks per second on a
CPU. Any model that model2vec reads works, by folder or Hub name. `static:wordllama` is
in the wheel of the package wordllama, so it needs no network but that of pip.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import Field, JsonValue

from nextlong import recipe
from nextlong.arrays import Floats
from nextlong.engine import store
from nextlong.errors import EncoderError
from nextlong.recipe.keys import Positive, Section
from nextlong.retrieval.encoders.base import EncoderKind, Speed, unit_or_drawn
from nextlong.retrieval.encoders.word_pieces import BertWords, WordPieces
from nextlong.text import first_sentence

_MEASURED_CHUNKS = 256
_SMALLEST: Final = float(np.finfo(np.float32).tiny)  # length of a vector of no tokens

# The package and the files of `static:wordllama`: 32,000 vectors of float16, distilled
# from the embeddings of Llama 2 70B (MIT), and the tokenizer of Llama 2.
_WORDLLAMA: Final = "wordllama"
_WORDLLAMA_FILES: Final = (
    "weights/l2_supercat_256.safetensors",
    "tokenizers/l2_supercat_tokenizer_config.json",
)
# Its tokenizer and the faster one must agree on this.
_PROBE: Final = "Two words, 3.14\n  (x_1) – “déjà vu” 日本 \u200b🙂end "


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
        self._words: BertWords | None = None
        is_plain = self._model.token_mapping is None and self._model.weights is None
        is_float32 = self._model.embedding.dtype == np.float32
        if is_plain and is_float32 and BertWords.takes(self._model.tokenizer):
            self._words = BertWords(
                self._model.tokenizer,
                self._model.embedding,
                unknown=self._model.unk_token_id,
            )

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors, shape (n, dimensions).

        A text without known tokens gets a random direction of its own.
        """
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        if self._words is not None:
            vectors = self._words.means(texts)
            if self._model.normalize:
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-32
            return unit_or_drawn(vectors, texts, min_length=_SMALLEST)
        # model2vec truncates at 512 tokens by default; use the whole chunk.
        encoded = self._model.encode(
            list(texts), max_length=None, use_multiprocessing=False
        )
        vectors = np.array(encoded, np.float32)
        return unit_or_drawn(vectors, texts, min_length=_SMALLEST)


class _WordLlama:
    """The model in the package wordllama, which is not imported.

    Its vectors are those of the package, with sums in another order.
    """

    def __init__(self, options: _StaticOptions) -> None:
        """Read the files; raises EncoderError for a version with others."""
        from tokenizers import Tokenizer

        weights, tokenizer_file = _wordllama_files()
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        vectors = _read_vectors(weights)[:, : options.dimensions]
        self._pieces = WordPieces(tokenizer, np.ascontiguousarray(vectors))
        self.dimensions = vectors.shape[1]
        ids = tokenizer.encode(_PROBE, add_special_tokens=False).ids
        expected = vectors[ids].mean(axis=0)
        if not np.allclose(self._pieces.means([_PROBE])[0], expected, atol=1e-5):
            raise _other_version("has a tokenizer that cuts words differently")

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors, shape (n, dimensions)."""
        return unit_or_drawn(self._pieces.means(texts), texts, min_length=_SMALLEST)


def _wordllama_files() -> list[Path]:
    """Return the files of the installed package. Raises EncoderError without them."""
    package = importlib.util.find_spec(_WORDLLAMA)
    if package is None or package.origin is None:
        raise EncoderError(
            where="encoder.model",
            value=f"static:{_WORDLLAMA}",
            problem=f"needs the package {_WORDLLAMA}",
            fix=f"pip install 'nextlong[{_WORDLLAMA}]'",
        )
    paths = [Path(package.origin).parent / name for name in _WORDLLAMA_FILES]
    if not all(path.is_file() for path in paths):
        raise _other_version(f"has no file {paths[0].name}")
    return paths


def _other_version(problem: str) -> EncoderError:
    return EncoderError(
        where="encoder.model",
        value=f"static:{_WORDLLAMA}",
        problem=f"cannot be loaded: the installed package {problem}",
        fix=f"pip install 'nextlong[{_WORDLLAMA}]', which names a version that works",
    )


def _read_vectors(path: Path) -> Floats:
    """Return the only array of a safetensors file, (tokens, dimensions)."""
    content = path.read_bytes()
    # The size of the JSON header, the header, and the values.
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    (entry,) = header.values()
    dtype = {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]
    values = np.frombuffer(content, dtype, offset=8 + header_bytes)
    return values.reshape(entry["shape"]).astype(np.float32)


class _StaticKind(EncoderKind):
    """Models that require neither torch nor a GPU."""

    Options = _StaticOptions
    usage = "static:<name or path>"  # `static:wordllama` is a name too
    package = ("model2vec", "static")
    is_model = True
    preload = ("model2vec",)
    fix = "use another model"

    def load(self, config: recipe.Encoder, *_: object) -> _StaticEncoder | _WordLlama:
        options = config.options_as(_StaticOptions)
        if config.name == _WORDLLAMA:
            return _WordLlama(options)
        return _StaticEncoder(config.name, options)

    def check_installed(self, config: recipe.Encoder) -> None:
        if config.name == _WORDLLAMA:
            _wordllama_files()
        else:
            super().check_installed(config)

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        if config.name != _WORDLLAMA:
            return super().depends_on(config, seed=seed)
        files = _wordllama_files()
        return {"files": {path.name: store.hash_file(path) for path in files}}

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
