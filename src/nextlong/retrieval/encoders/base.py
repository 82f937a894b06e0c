"""The contract of an encoder: texts in, unit vectors out.

Each module here is one encoder, named as the module with hyphens for underscores; its options are the section of that
name in `encoder`. Other code calls only the `EncoderKind` that the module declares as ENCODER, and never checks its name.
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
from numpy.typing import NDArray
from pydantic import JsonValue

from nextlong import recipe
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.results import ExecutionResult
from nextlong.engine import store
from nextlong.engine.executor import Resources
from nextlong.engine.step import Task, TaskResult
from nextlong.errors import EncoderError
from nextlong.plugins import ENCODERS
from nextlong.rng import rng_for

Prepared = (
    Path | ExecutionResult | None
)  # the stem of the files of a fitted encoder, or how a model runs

# Limits of a slice of a shard, by which plans count tasks too.
SLICE_S: Final = 30.0  # the work lost when a worker is killed, and the longest wait for the last slice
SLICE_CHUNKS: Final = 1 << 16  # so that the folders of a large corpus hold few files


class LoadedEncoder(Protocol):
    """A loaded encoder."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, shape (n, dimensions), each of unit length."""


def unit_or_drawn(
    vectors: NDArray[np.float32], texts: Sequence[str], *, least: float
) -> NDArray[np.float32]:
    """Scale vectors to unit length in place; one shorter than `least` becomes a random direction, by the hash of its text."""
    # A zero vector would stop the run. Equal texts get equal vectors, so near-duplicates are still found.
    lengths = np.linalg.norm(vectors, axis=1)
    for row in np.flatnonzero(lengths < least).tolist():
        digest = hashlib.blake2b(
            texts[row].encode("utf-8", "surrogatepass"), digest_size=16
        ).hexdigest()
        vectors[row] = rng_for(0, "lsa.unknown", digest).standard_normal(
            vectors.shape[1], dtype=np.float32
        )
        lengths[row] = np.linalg.norm(vectors[row])
    vectors /= lengths[:, None]
    return vectors


class Speed(NamedTuple):
    """The seconds a chunk takes (None, with the reason, if unknown), and the width of the vectors (None if only a fit tells)."""

    chunk_s: float | None = None
    unknown: str = ""
    dimensions: int | None = None


class Shape(NamedTuple):
    """What sets a transformer's operations: layers, width, feed-forward width.

    It takes 2 operations per parameter and token, and 4 per token, layer and dimension for each token that it attends to.
    """

    layers: int
    width: int
    inner: int

    @property
    def parameters(self) -> float:
        """Parameters that multiply: four square matrices of attention and two of the feed-forward part per layer."""
        return float(self.layers * (4 * self.width**2 + 2 * self.width * self.inner))

    def operations(self, tokens: float) -> float:
        """Return the operations that encode one text of this many tokens."""
        return tokens * (2 * self.parameters + 4 * self.layers * self.width * tokens)


class EncoderKind(ABC):
    """A kind of encoder; `config` is always the section `encoder` of the recipe."""

    Options: type[recipe.Section] = (
        recipe.Section
    )  # the model of its section of the recipe
    usage: str  # the form of `encoder.model`: `openai:<model>`
    # The unit of work of a task; slices are as large as the `ExecutionResult` of the preparation says.
    embeds: Literal["shards", "slices"] = "shards"
    needs_fit: bool = False  # whether `load` reads files that the preparation wrote
    asks_for_gpus: bool = False
    is_model: bool = False  # whether `config.name` is a name on the Hugging Face Hub or a local folder
    package: tuple[str, str] | None = (
        None  # a required module, and the extra of nextlong that installs it
    )
    preload: tuple[str, ...] = ()  # modules that a worker imports when it starts
    # Whether the trial of a plan runs it; `measure` tells the rate of any other.
    is_tried: bool = False
    cure: str  # how messages suggest to fix wrong vectors
    result: type[TaskResult] = TaskResult  # of the preparation
    version: int = (
        1  # of the preparation; raise it whenever the same options give other vectors
    )
    not_repeatable: str = (
        ""  # why the same text may get another vector later, if it may
    )

    @abstractmethod
    def load(
        self, config: recipe.Encoder, prepared: Prepared = None, /
    ) -> LoadedEncoder:
        """Return the encoder, from what its preparation gave if there is one. Raises EncoderError with the fix."""

    def prepare(
        self, config: recipe.Encoder, corpus: CorpusFiles, *, seed: int
    ) -> list[Task]:
        """Return the tasks to run before the first chunk of the corpus is embedded; none by default."""
        return []

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        """Return what the vectors depend on besides name and options: the hashes of the files of a local model."""
        folder = Path(config.name).expanduser()
        return (
            {"files": dict(store.hash_folder(folder))}
            if self.is_model and folder.is_dir()
            else {}
        )

    def check_installed(self, config: recipe.Encoder) -> None:
        """Raise EncoderError if the package is missing; it is not imported, which may take seconds."""
        if (
            self.package is not None
            and importlib.util.find_spec(self.package[0]) is None
        ):
            name, extra = self.package
            needs = f"needs the package {name.replace('_', '-')}; pip install 'nextlong[{extra}]'"
            raise EncoderError(f"encoder.model={config.model} {needs}")

    def resources(self, config: recipe.Encoder) -> Resources:
        """Return the resources of an embedding task: one core by default."""
        return Resources()

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Return how fast such chunks are encoded on this machine, for plans; unknown by default."""
        return Speed()

    def shape(self, config: recipe.Encoder) -> Shape | None:
        """Return the shape of a transformer, for plans; None if it is unknown or the encoder is none."""
        return None


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors scaled to unit length; a zero vector stays zero, so that the step can report its chunk."""
    unit: NDArray[np.float32] = vectors / np.maximum(
        np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12
    )
    return unit


def kind_of(config: recipe.Encoder) -> EncoderKind:
    """Return the kind of encoder that a recipe names."""
    return ENCODERS.load(config.section, EncoderKind)


def preloaded(config: recipe.Encoder) -> list[str]:
    """Return the modules that workers import before their first task: those of all steps, and the encoder's own."""
    # If pandas is installed, pyarrow imports it for the first array that it converts to NumPy: 0.25 s in every worker.
    of_all_steps = (
        "nextlong.pipeline",
        "faiss",
        "pyarrow.parquet",
        "scipy.sparse",
        "tokenizers",
        "pandas",
    )
    return [*of_all_steps, *kind_of(config).preload]


def import_preloaded(config: recipe.Encoder) -> None:
    """Import these modules into this process, as far as they are installed."""
    for module in preloaded(config):
        with suppress(ImportError):
            importlib.import_module(module)
