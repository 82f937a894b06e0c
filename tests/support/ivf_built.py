"""A small IVF index, trained, filled and tuned."""

from itertools import pairwise

import numpy as np

from nextlong.retrieval.indexes import ivf
from nextlong.retrieval.indexes.base import IndexFiles, index_kind
from tests.support.stored_vectors import save_shards


def built(folder, shards, factory, *, parts=1, **tuned):
    """Train, fill in `parts` parts and open."""
    paths = save_shards(folder, *shards)
    factory = ivf.fitted(factory, vectors=sum(map(len, shards)))
    ivf.train(folder / "t", vectors=paths, factory=factory, seed=0)
    bounds = np.linspace(0, len(paths), parts + 1).astype(int).tolist()
    stems = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        stems.append(folder / f"p{number}")
        ivf.fill(
            stems[-1],
            template=folder / "t.template.faiss",
            vectors=paths[low:high],
            first_shard=low,
        )
    files = IndexFiles(
        factory,
        tuple(paths),
        template=folder / "t.template.faiss",
        lists=tuple(stems),
        **tuned,
    )
    return index_kind(files.index).open(files)


def tuned(folder, files, queries, *, blocks=1, **given):
    """Measure block by block, as the tasks of `tune` do, and return what the last one chooses."""
    parts = np.linspace(0, len(files.lists), blocks + 1).astype(int).tolist()
    # `built` gives each part the same share of the shards.
    ends = np.linspace(0, len(files.vectors), len(files.lists) + 1).astype(int).tolist()
    given |= {"files": files, "queries": queries}
    for number, (low, high) in enumerate(pairwise(parts)):
        of_block = {"lists": slice(low, high), "shards": range(ends[low], ends[high])}
        ivf.measure_block(
            folder / f"part-{number:05d}",
            **of_block,
            k=given["k"],
            seed=given["seed"],
            files=files,
            queries=queries,
        )
    return ivf.tune(folder / "work" / "part", blocks=blocks, **given)


def recalls_of(found, truth):
    """Return the recall of each query: found ids among the true ones, or as near as the farthest of them."""
    return np.array(
        [
            min(
                1.0,
                float(
                    (np.isin(ids, true_ids) | (scores >= true_scores[-1])).mean()
                    * len(ids)
                    / len(true_ids)
                ),
            )
            for ids, scores, true_ids, true_scores in zip(*found, *truth, strict=True)
        ]
    )
