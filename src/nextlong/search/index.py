"""Index: what finds the nearest vectors. One kind a file; only the one that is asked for is imported.

Mining needs nothing but `search` and the recall that it promises, so anything that finds nearest neighbours fits: `exact`
compares every query with every vector, `ivf` only with the clusters that lie nearest to it. An index goes by what the recipe
calls it, `exact` or a FAISS factory string; `index_kind` says what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nextlong.engine.executor import granted_gpus
from nextlong.recipe.search import EXACT

Neighbours = tuple[list[NDArray[np.int64]], list[NDArray[np.float32]]]  # of each query: ids, cosines


class Index(Protocol):
    """Queries in, the nearest vectors out."""

    @property
    def recall(self) -> float:
        """The share of a query's k nearest that a search finds, on average: 1 if it is exact."""

    def search(self, queries_QD: NDArray[np.float32], k: int, *, exclude: NDArray[np.int64]) -> Neighbours:
        """Return the ids and cosines of each query's `k` nearest, outside its [first, last) of `exclude`, shape (Q, 2).

        Descending by cosine, which is that of the stored vectors; equal cosines by id. Fewer only where no more are found.
        """


@dataclass(frozen=True)
class IndexFiles:
    """What an index is opened from: the stored vectors, and what was trained, filled and tuned before."""

    index: str  # exact, or a FAISS factory string
    vectors: tuple[Path, ...]
    template: Path | None = None
    lists: tuple[Path, ...] = ()  # stems of the filled parts
    probes: int = 0  # clusters that a query looks into
    spare: float = 0.0  # found beyond k by rough scores, as a share of k
    recall: float = 1.0


@dataclass(frozen=True)
class Kind:
    """What is asked of a kind of index: who opens it, as `module:name`; with a GPU, if it can use one, to the same results.

    `is_built`: it is trained, filled and tuned before it is searched; else the vectors are searched as they are stored.
    """

    opener: str
    gpu_opener: str | None
    is_built: bool


_EXACT: Final = Kind("nextlong.search.exact:Exact", "nextlong.search.exact_torch:ExactTorch", is_built=False)
_IVF: Final = Kind("nextlong.search.ivf:Ivf", None, is_built=True)


def index_kind(index: str) -> Kind:
    """Return the kind of an index by its name."""
    return _EXACT if index == EXACT else _IVF


def gpu_use(files: IndexFiles) -> Literal["as declared", "unused"]:
    """Return what tasks that search the index do with a GPU, for `Work`."""
    return "as declared" if index_kind(files.index).gpu_opener else "unused"


def open_index(files: IndexFiles) -> Index:
    """Return the index that `files` names, by the GPU that the task was given, if its kind can use one."""
    kind = index_kind(files.index)
    module, _, name = ((granted_gpus() and kind.gpu_opener) or kind.opener).partition(":")
    opener = cast(Callable[[IndexFiles], Index], getattr(import_module(module), name))
    return opener(files)
