"""The contract: what an encoder says of itself, and what it does: text → unit vectors.

Mining needs nothing but `encode`, so anything that turns texts into unit vectors fits. A file here is an encoder: it is called
as its module is, with hyphens for underscores, and its options are the section of that name in `encoder`. Everything outside
its file asks the `EncoderKind` that the file calls ENCODER, never its name; only the one that the recipe names is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
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

# What a slice of a shard holds at most: half a minute is what a kill costs a worker, and how long the others may wait for the
# last one; so many chunks keep the folders of a large corpus small. Plans count the tasks by the same two.
SLICE_S: Final = 30.0
SLICE_CHUNKS: Final = 1 << 16


class LoadedEncoder(Protocol):
    """Texts in, unit vectors out."""

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, shape (n, dimensions), each of unit length."""


def direction_of(text: str, dimensions: int) -> NDArray[np.float32]:
    """Return a direction drawn by the hash of a text, for texts of which an encoder knows nothing.

    A zero vector would stop the run. Equal texts stay equal, so near-duplicates are still found; nothing else lies near.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return rng_for(0, "lsa.unknown", digest).standard_normal(dimensions, dtype=np.float32)


class Speed(NamedTuple):
    """Seconds a chunk, None and why if they are not known; and the width of the vectors, None where only a fit tells."""

    chunk_s: float | None = None
    unknown: str = ""
    dimensions: int | None = None


class EncoderKind(ABC):
    """One kind of encoder. `config` is always the section `encoder` of the recipe, which names it.

    `Options` are the keys of its section of the recipe, `usage` is what `encoder.model` says: `openai:<model>`. `embeds`: whether
    a task takes a whole shard, or a slice of one as an `ExecutionResult` of the preparation says. `needs_fit`: whether `load`
    reads what the preparation wrote. `preload` are the modules that a worker imports at its start, `rate` what plans measure it by
    (`engine/step.py`), `cure` what to do about vectors that are wrong.
    """

    Options: type[recipe.Section] = recipe.Section
    usage: str
    embeds: Literal["shards", "slices"] = "shards"
    needs_fit: bool = False
    asks_for_gpus: bool = False
    package: tuple[str, str] | None = None  # a module that must be installed, and the extra of nextlong that brings it
    preload: tuple[str, ...] = ()
    rate: str = "encoder"
    cure: str
    result: type[TaskResult] = TaskResult  # of the preparation
    version: int = 1  # of the preparation; to be raised whenever the same options give other vectors
    not_repeatable: str = ""  # why the same text may be given other vectors another time, if it may

    @abstractmethod
    def load(
        self, config: recipe.Encoder, *, fitted: Path | None, dtype: str | None, threads: int | None
    ) -> LoadedEncoder:
        """Return the encoder. Raises EncoderError where a package or a model is missing, with the cure.

        `fitted` is the stem that the preparation wrote; `dtype` and `threads` are what it chose.
        """

    def prepare(
        self, config: recipe.Encoder, *, documents: Sequence[Path], chunks: Sequence[Path], seed: int
    ) -> list[Task]:
        """Return the tasks to do before the first chunk is embedded: none."""
        del config, documents, chunks, seed
        return []

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        """Return what vectors depend on beside the model's name and the options: nothing."""
        del config, seed
        return {}

    def check_installed(self, config: recipe.Encoder) -> None:
        """Raise EncoderError, with the cure, if the package is missing; it is not imported, which may take seconds."""
        if self.package is not None and importlib.util.find_spec(self.package[0]) is None:
            name, extra = self.package
            needs = f"needs the package {name.replace('_', '-')}; pip install 'nextlong[{extra}]'"
            raise EncoderError(f"encoder.model={config.model} {needs}")

    def resources(self, config: recipe.Encoder) -> Resources:
        """Return what a task of embedding needs: a core."""
        del config
        return Resources()

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Return how fast chunks such as these are encoded here, for plans; nothing of what they try with the other steps."""
        del config, chunks
        return Speed()

    def estimate(self, config: recipe.Encoder) -> Estimate:
        """Return how the time, disk and memory of the preparation grow: it takes none."""
        del config
        return Estimate(work=1, seconds=0.0, rate="")


def local_files(config: recipe.Encoder) -> dict[str, JsonValue]:
    """Return the hashes of the files of a model that is a local folder, for `depends_on`; of a name, nothing."""
    folder = Path(config.name).expanduser()
    return {"files": dict(store.hash_folder(folder))} if folder.is_dir() else {}


def kind_of(config: recipe.Encoder) -> EncoderKind:
    """Return the kind of encoder that a recipe names."""
    return ENCODERS.load(config.section, EncoderKind)


def load_encoder(
    config: recipe.Encoder, *, fitted: Path | None = None, dtype: str | None = None, threads: int | None = None
) -> LoadedEncoder:
    """Return the encoder that the recipe names; as `EncoderKind.load`."""
    return kind_of(config).load(config, fitted=fitted, dtype=dtype, threads=threads)
