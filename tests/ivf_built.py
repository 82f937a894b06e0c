"""A small IVF index, trained and filled."""

from itertools import pairwise

import numpy as np

from nextlong.retrieval.indexes import ivf
from nextlong.retrieval.indexes.base import IndexFiles, open_index
from stored_vectors import save_shards


def built(folder, shards, factory, *, parts=1, **tuned):
    """Train, fill in `parts` parts and open."""
    paths = save_shards(folder, *shards)
    factory = ivf.fitted(factory, vectors=sum(map(len, shards)))
    ivf.train(folder / "t", vectors=paths, factory=factory, seed=0)
    bounds = np.linspace(0, len(paths), parts + 1).astype(int).tolist()
    stems = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        stems.append(folder / f"p{number}")
        ivf.fill(stems[-1], template=folder / "t.template.faiss", vectors=paths[low:high], first_shard=low)
    files = IndexFiles(factory, tuple(paths), template=folder / "t.template.faiss", lists=tuple(stems), **tuned)
    return open_index(files)
