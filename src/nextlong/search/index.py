"""Index: what finds the nearest vectors. One kind a file; `open_index` imports only the one that is asked for.

Mining needs nothing but `search` and the recall that it promises, so anything that finds nearest neighbours fits: `exact`
compares every query with every vector, `ivf` only with the clusters that lie nearest to it, `torch` is `exact` on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nextlong.engine.executor import granted_gpus

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

    kind: str
    vectors: tuple[Path, ...]
    template: Path | None = None
    lists: tuple[Path, ...] = ()  # stems of the filled parts
    probes: int = 0  # clusters that a query looks into
    spare: float = 0.0  # found beyond k by rough scores, as a share of k
    recall: float = 1.0


KINDS: Final = {
    "exact": "nextlong.search.exact:Exact",
    "ivf": "nextlong.search.ivf:Ivf",
    "torch": "nextlong.search.exact_torch:ExactTorch",
}


def open_index(files: IndexFiles) -> Index:
    """Return the index of the kind that `files` names; only its own module, and what that needs, is imported.

    Exact search runs by torch where the task was given a GPU; its results are the same.
    """
    kind = "torch" if files.kind == "exact" and granted_gpus() else files.kind
    module, _, name = KINDS[kind].partition(":")
    opener = cast(Callable[[IndexFiles], Index], getattr(import_module(module), name))
    return opener(files)
