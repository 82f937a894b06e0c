"""The contract of an encoder: texts in, unit vectors out.

Each module here is one encoder, named as the module with hyphens for underscores; its
options are the section of that name in `encoder`. Other code calls only the
`EncoderKind` that the module declares as ENCODER, and never checks its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import JsonValue

from nextlong import recipe
from nextlong.arrays import Floats
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.results import ExecutionResult
from nextlong.engine import store
from nextlong.engine.executor import Resources
from nextlong.engine.step import Task, TaskResult
from nextlong.errors import EncoderError
from nextlong.plugins import ENCODERS
from nextlong.rng import rng_for

# The stem of the files of a fitted encoder, or how a model runs.
Prepared = Path | ExecutionResult | None

# Limits of a slice of a shard, by which plans count tasks too.
# The work lost when a worker is killed, and the longest wait for the last slice.
SLICE_S: Final = 30.0
# So that the folders of a large corpus hold few files.
SLICE_CHUNKS: Final = 1 << 16


class LoadedEncoder(Protocol):
    """A loaded encoder."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of the texts, (n, dimensions), each of unit length."""


def unit_or_drawn(
    vectors: Floats, texts: Sequence[str], *, min_length: float
) -> Floats:
    """Scale vectors to unit length in place.

    One shorter than `min_length` becomes a random direction, by the hash of its text.
    """
    # A zero vector would stop the run. Equal texts get equal vectors, so
    # near-duplicates are still found.
    lengths = np.linalg.norm(vectors, axis=1)
    for row in np.flatnonzero(lengths < min_length).tolist():
        text = texts[row].encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        draw = rng_for(0, "lsa.unknown", digest)
        vectors[row] = draw.standard_normal(vectors.shape[1], dtype=np.float32)
        lengths[row] = np.linalg.norm(vectors[row])
    vectors /= lengths[:, None]
    return vectors


class Speed(NamedTuple):
    """How fast an encoder is, and how wide its vectors are."""

    chunk_s: float | None = None  # seconds per chunk; None if unknown
    unknown: str = ""  # the reason why it is
    dimensions: int | None = None  # None if only a fit tells


class Shape(NamedTuple):
    """What sets a transformer's operations.

    It takes 2 operations per parameter and token, and 4 per token, layer and dimension
    for each token that it attends to.
    """

    layers: int
    width: int
    inner: int  # width of the feed-forward part

    @property
    def parameters(self) -> float:
        """Parameters that multiply.

        Per layer, four square matrices of attention and two of the feed-forward part.
        """
        attention = 4 * self.width**2
        feed_forward = 2 * self.width * self.inner
        return float(self.layers * (attention + feed_forward))

    def operations(self, tokens: float) -> float:
        """Return the operations that encode one text of this many tokens."""
        return tokens * (2 * self.parameters + 4 * self.layers * self.width * tokens)


class EncoderKind(ABC):
    """A kind of encoder; `config` is always the section `encoder` of the recipe."""

    # The model of its section of the recipe.
    Options: type[recipe.Section] = recipe.Section
    usage: str  # the form of `encoder.model`: `openai:<model>`
    # The unit of work of a task; slices are as large as the `ExecutionResult` of the
    # preparation says.
    embeds: Literal["shards", "slices"] = "shards"
    needs_fit: bool = False  # whether `load` reads files that the preparation wrote
    asks_for_gpus: bool = False
    # Whether `config.name` is a name on the Hugging Face Hub or a local folder.
    is_model: bool = False
    # A required module, and the extra of nextlong that installs it.
    package: tuple[str, str] | None = None
    preload: tuple[str, ...] = ()  # modules that a worker imports when it starts
    # Whether the trial of a plan runs it; `measure` tells the rate of any other.
    is_tried: bool = False
    fix: str  # what messages suggest where its vectors are wrong
    result: type[TaskResult] = TaskResult  # of the preparation
    # Of the preparation; raise it whenever the same options give other vectors.
    version: int = 1
    # Why the same text may get another vector later, if it may.
    not_repeatable: str = ""

    @abstractmethod
    def load(
        self, config: recipe.Encoder, prepared: Prepared = None, /
    ) -> LoadedEncoder:
        """Return the encoder, from what its preparation gave if there is one.

        Raises EncoderError with the fix.
        """

    def prepare(
        self, config: recipe.Encoder, corpus: CorpusFiles, *, seed: int
    ) -> list[Task]:
        """Return the tasks to run before the first chunk of the corpus is embedded.

        None by default.
        """
        return []

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        """Return what the vectors depend on besides name and options.

        Of a local model, these are the hashes of its files.
        """
        folder = Path(config.name).expanduser()
        is_local = self.is_model and folder.is_dir()
        if not is_local:
            return {}
        return {"files": dict(store.hash_folder(folder))}

    def check_installed(self, config: recipe.Encoder) -> None:
        """Raise EncoderError if the package is missing.

        It is not imported, which may take seconds.
        """
        if self.package is None:
            return
        name, extra = self.package
        if importlib.util.find_spec(name) is None:
            raise EncoderError(
                where="encoder.model",
                value=config.model,
                problem=f"needs the package {name.replace('_', '-')}",
                fix=f"pip install 'nextlong[{extra}]'",
            )

    def resources(self, config: recipe.Encoder) -> Resources:
        """Return the resources of an embedding task: one core by default."""
        return Resources()

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Return how fast such chunks are encoded on this machine, for plans.

        Unknown by default.
        """
        return Speed()

    def shape(self, config: recipe.Encoder) -> Shape | None:
        """Return the shape of a transformer, for plans.

        None if it is unknown or the encoder is none.
        """
        return None


def unit_rows(vectors: Floats) -> Floats:
    """Return vectors scaled to unit length.

    A zero vector stays zero, so that the step can report its chunk.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = vectors / np.maximum(lengths, 1e-12)
    return unit


def kind_of(config: recipe.Encoder) -> EncoderKind:
    """Return the kind of encoder that a recipe names."""
    return ENCODERS.load(config.section, EncoderKind)


def preloaded(config: recipe.Encoder) -> list[str]:
    """Return the modules that workers import before their first task.

    They are those of all steps, and the encoder's own.
    """
    for_all_steps = (
        "nextlong.pipeline",
        "faiss",
        "pyarrow.parquet",
        "scipy.sparse",
        "tokenizers",
        # If it is installed, pyarrow imports it for the first array that it converts to
        # NumPy: 0.25 s in every worker.
        "pandas",
    )
    return [*for_all_steps, *kind_of(config).preload]


def import_preloaded(config: recipe.Encoder) -> None:
    """Import these modules into this process, as far as they are installed."""
    for module in preloaded(config):
        with suppress(ImportError):
            importlib.import_module(module)
