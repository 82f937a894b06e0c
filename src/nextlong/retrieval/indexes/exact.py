"""Exact search: the nearest of all vectors, to the bit, on the CPU or a GPU.

Ids and scores do not depend on which of the two it is: `exact_cpu.py` and
`exact_gpu.py` select candidates by rough scores, and order them by exact ones.
"""

from __future__ import annotations

from nextlong.engine.executor import granted_gpus
from nextlong.retrieval.indexes.base import IndexFiles, IndexKind, VectorShards
from nextlong.retrieval.indexes.exact_cpu import Exact


def open_exact(files: IndexFiles, *, block: range | None = None) -> Exact:
    """Return exact search over all shards, or those of a block.

    It runs on the GPU that the task was given if there is one.
    """
    has_gpu = bool(granted_gpus())
    # A GPU holds the vectors itself; main memory would hold them a second time.
    vectors = VectorShards(files.vectors, block, is_held=not has_gpu)
    if not has_gpu:
        return Exact(vectors)
    # Imported here because torch is optional.
    from nextlong.retrieval.indexes.exact_gpu import ExactTorch

    return ExactTorch(vectors)


INDEX = IndexKind(name="exact", takes="exact", usage="exact", open=open_exact)
