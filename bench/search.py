"""Search, measured: exact search against what it cannot do without, and indexes against exact search.

In:  vectors of a run (`--vectors RUN/*-embed-*/*.vectors.npy`): `--count` of them, or all and noisy copies if they are fewer; or
     clustered synthetic ones (none given). Queries are drawn from them and leave themselves out.
Out: three Markdown tables. Everything runs on one core, in turn, `--repeats` times; seconds are processor time, the least of
     the repeats, so that a busy machine shows less.

*stream* reads the vectors and makes them float32, by blocks; *products* multiplies each block with all queries, too; *exact*
is `nextlong.retrieval.indexes.exact_cpu`, from the files; *FAISS* is one search of all queries in an `IndexFlatIP`, which holds
the vectors as float32 before the clock starts; *files to FAISS* reads and adds them. Clusters are trained on 40 vectors each, by as many rounds of k-means. Recall is measured against exact search, as tuning measures it.
*Peak* is the largest resident memory (VmHWM) while an index is built, tuned and searched by this one process, with all that
is memory-mapped meanwhile.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from nextlong.engine.executor import peak_from_now
from nextlong.retrieval.indexes import exact_cpu, ivf, kmeans
from nextlong.retrieval.indexes.base import IndexFiles, VectorShards
from nextlong.retrieval.indexes.ivf import TuneResult

_ROWS = 65_536
_PER_SHARD = 262_144
_ResultT = TypeVar("_ResultT")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        nargs="*",
        default=[],
        help="files of a run; none: synthetic",
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument(
        "--dimensions", type=int, default=256, help="of synthetic vectors"
    )
    parser.add_argument(
        "--exact-queries", type=int, default=1_000, help="0: leave the first table out"
    )
    parser.add_argument(
        "--clusters", type=int, default=1_024, help="0: leave the second table out"
    )
    parser.add_argument(
        "--index-queries", type=int, default=4_000, help="0: leave the third table out"
    )
    parser.add_argument("--k", type=int, nargs="+", default=[1_088, 200])
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--kinds", nargs="+", default=["IVF,Flat", "IVF,SQ8"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    faiss.omp_set_num_threads(1)
    # FAISS multiplies matrices only from 128,000 / dimensions queries on, and compares
    # fewer one by one, which takes seven times as long.
    faiss.cvar.distance_compute_blas_threshold = 1
    with threadpool_limits(1), tempfile.TemporaryDirectory(dir=options.out) as folder:
        paths = _write_vectors(Path(folder), options)
        if options.exact_queries:
            for k in options.k:
                _compare_exact(paths, options, k)
        if options.clusters:
            _compare_clusters(paths, options)
        if options.index_queries:
            _compare_indexes(Path(folder), paths, options)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"\npeak memory, mapped vectors included: {peak_mb:,.0f} MB")
    return 0


def _write_vectors(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Write `count` unit vectors in shards, a block at a time."""
    draw = np.random.default_rng(0)
    real = [np.load(path) for path in options.vectors]
    stored = np.concatenate(real) if real else None
    dimensions = options.dimensions if stored is None else stored.shape[1]
    is_whole = stored is not None and len(stored) >= options.count
    order = (
        draw.permutation(len(stored)) if stored is not None else np.empty(0, np.int64)
    )
    scale = np.arange(1, dimensions + 1) ** -0.4  # as the spectrum of texts falls off
    centres = draw.standard_normal((4_000, dimensions)).astype(np.float32) * scale
    paths = []
    for shard, first in enumerate(range(0, options.count, _PER_SHARD)):
        rows = min(_PER_SHARD, options.count - first)
        paths.append(folder / f"{shard:05d}.vectors.npy")
        out = np.lib.format.open_memmap(paths[-1], "w+", np.float16, (rows, dimensions))
        for low in range(0, rows, _ROWS):
            block = slice(low, min(rows, low + _ROWS))
            size = block.stop - block.start
            noise = draw.standard_normal((size, dimensions), dtype=np.float32)
            if is_whole and stored is not None:
                made = stored[order[first + low : first + low + size]].astype(
                    np.float32
                )
            elif stored is None:
                made = (
                    centres[draw.integers(0, len(centres), size)] + 0.6 * noise * scale
                )
            else:
                base = stored[draw.integers(0, len(stored), size)].astype(np.float32)
                made = base + 0.5 * noise * base.std(axis=0)
            out[block] = made / np.linalg.norm(made, axis=1, keepdims=True)
        del out
    kind = (
        "clustered synthetic"
        if stored is None
        else f"{len(stored):,} of a run{', inflated by noisy copies' * (not is_whole)}"
    )
    print(
        f"{options.count:,} vectors of {dimensions} dimensions ({kind})\n", flush=True
    )
    return paths


def _queries(
    paths: Sequence[Path], count: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    sizes = [len(np.load(path, mmap_mode="r")) for path in paths]
    ids = np.concatenate(
        [(shard << 32) + np.arange(size) for shard, size in enumerate(sizes)]
    )
    ids = np.sort(np.random.default_rng(1).choice(ids, count, replace=False))
    return VectorShards(paths).take(ids).astype(np.float32), np.stack(
        [ids, ids + 1], axis=1
    )


def _seconds(call: Callable[[], _ResultT]) -> tuple[float, _ResultT]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


# exact search


def _compare_exact(paths: Sequence[Path], options: argparse.Namespace, k: int) -> None:
    queries, exclude = _queries(paths, options.exact_queries)
    held = _faiss_index(paths)
    programs: dict[str, Callable[[], Any]] = {
        "stream": lambda: _stream(paths, None),
        "stream and products": lambda: _stream(paths, queries),
        "exact": lambda: exact_cpu.Exact(VectorShards(paths)).search(
            queries, k, exclude=exclude
        ),
        "FAISS": lambda: held.search(queries, k + 1)[1],
        "files to FAISS": lambda: _faiss_index(paths).search(queries, k + 1),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    found: dict[str, Any] = {}
    for _ in range(options.repeats):
        for name, program in programs.items():
            seconds, found[name] = _seconds(program)
            times[name].append(seconds)
    least = {name: min(taken) for name, taken in times.items()}
    print(f"Exact search, {len(queries)} queries, k = {k:,}, one core:\n")
    print("| program | processor time | of products | of FAISS |\n|---|---:|---:|---:|")
    for name, seconds in least.items():
        of_products = seconds / least["stream and products"]
        of_faiss = seconds / least["FAISS"]
        print(f"| {name} | {seconds:.2f} s | {of_products:.2f}× | {of_faiss:.2f}× |")
    found_ids = VectorShards(paths).ids_at(found["FAISS"])
    same = [
        len(np.intersect1d(ids, others[others != own])) / len(ids)
        for ids, others, own in zip(
            found["exact"][0], found_ids, exclude[:, 0], strict=True
        )
    ]
    print(f"\nneighbours that FAISS found too: {np.mean(same):.6f}\n", flush=True)


def _stream(paths: Sequence[Path], queries: NDArray[np.float32] | None) -> None:
    scores = (
        None
        if queries is None
        else np.empty((len(queries), exact_cpu._BLOCK_ROWS), np.float32)
    )
    for _, block in VectorShards(paths).blocks(exact_cpu._BLOCK_ROWS):
        if queries is not None and scores is not None:
            np.matmul(queries, block.T, out=scores[:, : len(block)])


def _faiss_index(paths: Sequence[Path]) -> Any:
    index = faiss.IndexFlatIP(VectorShards(paths)[0].shape[1])
    for _, block in VectorShards(paths).blocks(_ROWS):
        index.add(block)
    return index


# clusters


def _compare_clusters(paths: Sequence[Path], options: argparse.Namespace) -> None:
    sample, _ = _queries(paths, min(options.count, 40 * options.clusters))
    theirs = faiss.Kmeans(
        sample.shape[1], options.clusters, niter=ivf.ITERATIONS, spherical=True, seed=0
    )
    how = {"count": options.clusters, "iterations": ivf.ITERATIONS, "seed": 0}

    def train_with_faiss() -> NDArray[np.float32]:
        theirs.train(sample)
        return np.asarray(theirs.centroids)

    trained: dict[str, Callable[[], NDArray[np.float32]]]
    trained = {
        "nextlong": partial(kmeans.train_centres, sample, **how),
        "FAISS": train_with_faiss,
    }
    print(
        f"{options.clusters:,} clusters of {len(sample):,} vectors, {ivf.ITERATIONS} rounds, one core:\n"
    )
    print(
        "| program | training | looking up each vector's nearest | GFLOP/s of it | mean cosine |\n|---|---:|---:|---:|---:|"
    )
    for name, train in trained.items():
        training, centres = min(
            (_seconds(train) for _ in range(options.repeats)), key=lambda one: one[0]
        )
        looking, nearest = min(
            (_seconds(_finder(name, centres, sample)) for _ in range(options.repeats)),
            key=lambda one: one[0],
        )
        cosine = float(np.einsum("nd,nd->n", sample, centres[nearest[:, 0]]).mean())
        rate = 2 * sample.size * options.clusters / looking / 1e9
        print(
            f"| {name} | {training:.1f} s | {looking:.2f} s | {rate:.0f} | {cosine:.3f} |",
            flush=True,
        )
    print()


def _finder(
    name: str, centres: NDArray[np.float32], rows: NDArray[np.float32]
) -> Callable[[], NDArray[np.int64]]:
    if name == "nextlong":
        return lambda: kmeans.nearest_centres(rows, centres, count=1)
    flat = faiss.IndexFlatIP(centres.shape[1])
    flat.add(centres)
    return lambda: flat.search(rows, 1)[1]


# indexes


def _compare_indexes(
    folder: Path, paths: Sequence[Path], options: argparse.Namespace
) -> None:
    queries, exclude = _queries(paths, options.index_queries)
    some = slice(0, min(len(queries), 512))
    base = {
        k: _seconds(
            partial(
                exact_cpu.Exact(VectorShards(paths)).search,
                queries[some],
                k,
                exclude=exclude[some],
            )
        )[0]
        / some.stop
        for k in options.k
    }
    print(
        f"Indexes, {len(queries):,} queries, tuned to a recall of {options.recall:g}, one core:\n"
    )
    print(
        "| index | train | fill | bytes a vector | k | tune | clusters looked into | recall | queries/s | of exact search | peak |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for k, seconds in base.items():
        print(
            f"| exact | – | – | {2 * queries.shape[1]:,} | {k:,} | – | – | 1 | {1 / seconds:,.0f} | 1× | |",
            flush=True,
        )
    for number, kind in enumerate(options.kinds):
        _measure_index(
            folder / f"index{number}", kind, paths, queries, exclude, base, options
        )


def _measure_index(
    stem: Path,
    kind: str,
    paths: Sequence[Path],
    queries: NDArray[np.float32],
    exclude: NDArray[np.int64],
    base: dict[int, float],
    options: argparse.Namespace,
) -> None:
    factory = ivf.fitted(kind, vectors=options.count)
    template = stem.with_name(f"{stem.name}.template.faiss")
    stems = [stem.with_name(f"{stem.name}-{shard}") for shard in range(len(paths))]
    peak = peak_from_now()
    training, clusters = _seconds(
        lambda: ivf.train(stem, vectors=paths, factory=factory, seed=0)
    )
    filling, filled = _seconds(
        lambda: [_fill(stems, template, paths, shard) for shard in range(len(paths))]
    )
    built_mb = _mb(peak())
    files = IndexFiles(factory, tuple(paths), template=template, lists=tuple(stems))
    for k, exact_seconds in base.items():
        peak = peak_from_now()
        np.save(asked := stem.with_name("queries.npy"), exclude[:, 0])
        tuning, tuned = _seconds(partial(_tune, stem, files, asked, k, options.recall))
        opened = ivf.Ivf(replace(files, probes=tuned.probes, spare=tuned.spare))
        seconds, _ = _seconds(partial(opened.search, queries, k, exclude=exclude))
        rate = len(queries) / seconds
        print(
            f"| {factory} | {training:.0f} s | {filling:.0f} s | {sum(filled) / options.count:,.0f} | {k:,} | {tuning:.0f} s "
            f"| {tuned.probes:,} of {clusters:,} | {tuned.recall_measured:.3f} | {rate:,.0f} | {rate * exact_seconds:.1f}× "
            f"| {built_mb}, {_mb(peak())} MB |",
            flush=True,
        )


def _tune(
    stem: Path, files: IndexFiles, queries: Path, k: int, target: float
) -> TuneResult:
    """Measure the whole corpus as one block, and choose."""
    block, shards = slice(0, len(files.lists)), range(len(files.vectors))
    part = stem.with_name("part-00000")
    ivf.measure_block(
        part, lists=block, shards=shards, files=files, queries=queries, k=k, seed=0
    )
    work = stem.with_name("work") / "part"
    return ivf.tune(
        work, blocks=1, target=target, files=files, queries=queries, k=k, seed=0
    )


def _fill(
    stems: Sequence[Path], template: Path, paths: Sequence[Path], shard: int
) -> int:
    """Encode one shard; return the bytes of its codes and ids."""
    ivf.fill(stems[shard], template=template, vectors=[paths[shard]], first_shard=shard)
    return sum(
        Path(f"{stems[shard]}.{name}.npy").stat().st_size
        for name in ("codes", "members")
    )


def _mb(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
