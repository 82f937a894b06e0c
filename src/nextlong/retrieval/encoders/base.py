"""The contract: what an encoder says of itself, and what it does: text → unit vectors.

A file here is an encoder: it is called as its module is, with hyphens for underscores, and its options are the section of that
name in `encoder`. Everything outside its file asks the `EncoderKind` that the file calls ENCODER, never its name.
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
from nextlong.engine import store
from nextlong.engine.executor import Resources
from nextlong.engine.step import Estimate, Task, TaskResult
from nextlong.errors import EncoderError
from nextlong.plugins import ENCODERS
from nextlong.rng import rng_for

# What a slice of a shard holds at most; plans count the tasks by the same two.
SLICE_S: Final = 30.0  # what a kill costs a worker, and how long the others may wait for the last one
SLICE_CHUNKS: Final = 1 << 16  # so that the folders of a large corpus stay small


class LoadedEncoder(Protocol):
    """Texts in, unit vectors out."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, shape (n, dimensions), each of unit length."""


def unit_or_drawn(vectors: NDArray[np.float32], texts: Sequence[str], *, least: float) -> NDArray[np.float32]:
    """Return the vectors, changed in place, at unit length; one shorter than `least` gets a direction drawn by its text's hash."""
    # A zero vector would stop the run. Equal texts stay equal, so near-duplicates are still found; nothing else lies near.
    lengths = np.linalg.norm(vectors, axis=1)
    for row in np.flatnonzero(lengths < least).tolist():
        digest = hashlib.blake2b(texts[row].encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        vectors[row] = rng_for(0, "lsa.unknown", digest).standard_normal(vectors.shape[1], dtype=np.float32)
        lengths[row] = np.linalg.norm(vectors[row])
    vectors /= lengths[:, None]
    return vectors


class Speed(NamedTuple):
    """Seconds a chunk, None and why if they are not known; and the width of the vectors, None where only a fit tells."""

    chunk_s: float | None = None
    unknown: str = ""
    dimensions: int | None = None


class EncoderKind(ABC):
    """One kind of encoder. `config` is always the section `encoder` of the recipe, which names it."""

    Options: type[recipe.Section] = recipe.Section  # the keys of its section of the recipe
    usage: str  # what `encoder.model` says: `openai:<model>`
    # What a task takes: a slice is as the preparation's `ExecutionResult` says.
    embeds: Literal["shards", "slices"] = "shards"
    needs_fit: bool = False  # `load` reads what the preparation wrote
    asks_for_gpus: bool = False
    is_model: bool = False  # `config.name` is a name on a hub or a local folder
    package: tuple[str, str] | None = None  # a module that must be installed, and the extra of nextlong that brings it
    preload: tuple[str, ...] = ()  # modules that a worker imports at its start
    rate: str = "encoder"  # what plans measure it by (`engine/step.py`)
    cure: str  # what to do about vectors that are wrong
    result: type[TaskResult] = TaskResult  # of the preparation
    version: int = 1  # of the preparation; to be raised whenever the same options give other vectors
    not_repeatable: str = ""  # why the same text may be given other vectors another time, if it may

    @abstractmethod
    def load(
        self, config: recipe.Encoder, *, fitted: Path | None, dtype: str | None, threads: int | None
    ) -> LoadedEncoder:
        """Return the encoder, by the stem that the preparation wrote, and what it chose. Raises EncoderError with the cure."""

    def prepare(
        self, config: recipe.Encoder, *, documents: Sequence[Path], chunks: Sequence[Path], seed: int
    ) -> list[Task]:
        """Return the tasks to do before the first chunk is embedded: none."""
        return []

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        """Return what vectors depend on beside the model's name and the options: the files of a local model."""
        folder = Path(config.name).expanduser()
        return {"files": dict(store.hash_folder(folder))} if self.is_model and folder.is_dir() else {}

    def check_installed(self, config: recipe.Encoder) -> None:
        """Raise EncoderError, with the cure, if the package is missing; it is not imported, which may take seconds."""
        if self.package is not None and importlib.util.find_spec(self.package[0]) is None:
            name, extra = self.package
            needs = f"needs the package {name.replace('_', '-')}; pip install 'nextlong[{extra}]'"
            raise EncoderError(f"encoder.model={config.model} {needs}")

    def resources(self, config: recipe.Encoder) -> Resources:
        """Return what a task of embedding needs: a core."""
        return Resources()

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Return how fast chunks such as these are encoded here, for plans; nothing of what they try with the other steps."""
        return Speed()

    def estimate(self, config: recipe.Encoder) -> Estimate:
        """Return how the time, disk and memory of the preparation grow: it takes none."""
        return Estimate(work=1, seconds=0.0, rate="")


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors at unit length. A zero vector stays zero: the step reports it, with the chunk's id."""
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def kind_of(config: recipe.Encoder) -> EncoderKind:
    """Return the kind of encoder that a recipe names."""
    return ENCODERS.load(config.section, EncoderKind)


def preloaded(config: recipe.Encoder) -> list[str]:
    """Return the modules that workers of this machine have imported before their first task: those of all steps and its own."""
    # Where pandas is installed, pyarrow imports it for the first array that it gives to NumPy: a quarter of a second a worker.
    of_all_steps = ("nextlong.pipeline", "faiss", "pyarrow.parquet", "scipy.sparse", "tokenizers", "pandas")
    return [*of_all_steps, *kind_of(config).preload]


def import_preloaded(config: recipe.Encoder) -> None:
    """Import those modules here, as far as they are installed."""
    for module in preloaded(config):
        with suppress(ImportError):
            importlib.import_module(module)


def load_encoder(
    config: recipe.Encoder, *, fitted: Path | None = None, dtype: str | None = None, threads: int | None = None
) -> LoadedEncoder:
    """Return the encoder that the recipe names; as `EncoderKind.load`."""
    return kind_of(config).load(config, fitted=fitted, dtype=dtype, threads=threads)
