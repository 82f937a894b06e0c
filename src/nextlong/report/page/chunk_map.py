"""Chunk map: a sample of the corpus's chunk vectors in two dimensions, with the chunks of one sequence marked.

In:  a run whose encoder made vectors. Out: a chart; "" where the run has none. The plane is that of the first two principal
components of the sample (numpy's SVD), so the map is deterministic; its caption says how much of the variance it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import read_chunks
from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.picture.pieces import CHUNK_ROLES
from nextlong.runs.run import Run, Span

_SAMPLE: Final = 1000  # chunks of the corpus
_SHARDS: Final = 48  # that they are sampled from
_SOURCES: Final = 4  # with a colour of their own
_SOURCE_COLOURS: Final = ("run0", "run2", "run3", "run4")  # not the meta-document's orange


class ChunkMap(NamedTuple):
    """The chart, the number of sampled chunks, and the share of their variance that the two axes hold."""

    chart: Markup
    sampled: int
    variance: float


def sample_chunks(run: Run, most: int) -> NDArray[np.int64]:
    """Return the sorted ids of at most `most` chunks, shape (n,), from at most 48 evenly spaced shards."""
    shards = np.unique(np.linspace(0, len(run.corpus.chunks) - 1, min(_SHARDS, len(run.corpus.chunks))).astype(int))
    rng = np.random.default_rng(0)
    ids = []
    for shard in shards.tolist():
        count = len(read_chunks(run.corpus.chunks[shard], ("doc_row",))["doc_row"])
        rows = rng.choice(count, min(count, -(-most // len(shards))), replace=False)
        ids.append(schemas.pack_ids(shard, np.sort(rows)))
    return np.concatenate(ids)


def draw(run: Run, spans: Sequence[Span], *, lead: int) -> ChunkMap | None:
    """Return the map with the chunks of a sequence about document `lead`; None where the run has no vectors."""
    if "embed" not in run.steps:
        return None
    of_sequence = {span.chunk_id: span for span in spans if span.role in CHUNK_ROLES}
    sampled = sample_chunks(run, _SAMPLE)
    ids = np.concatenate([sampled, np.array(sorted(of_sequence), np.int64)])
    vectors = _vectors(run, ids)
    center = vectors[: len(sampled)].mean(axis=0)
    _, singular, axes = np.linalg.svd(vectors[: len(sampled)] - center, full_matrices=False)
    if len(singular) < 2 or not singular.any():
        return None
    places = (vectors - center) @ axes[:2].T  # float32 (n, 2)
    documents = (
        schemas.shard_of(ids) << schemas.SHARD_BITS | lookup.chunk_columns(ids, run.corpus.chunks, ("doc_row",))[0]
    )
    sources, names = lookup.document_columns(documents, run.corpus.documents, ("source", "source_id"))
    points = [
        Point(float(x), float(y), f"{source}: {name}")
        for (x, y), source, name in zip(places, sources.tolist(), names.tolist(), strict=True)
    ]
    background = _by_source(sources[: len(sampled)].tolist(), points[: len(sampled)])
    marked = [
        (of_sequence[chunk], point)
        for chunk, point in zip(ids[len(sampled) :].tolist(), points[len(sampled) :], strict=True)
    ]
    what = "negatives" if any(span.role == "negative" for span in of_sequence.values()) else "other documents"
    series = [
        *background,
        Series(
            f"{what} of this sequence",
            "marked negative",
            points=[_larger(point, span) for span, point in marked if span.doc_id != lead],
        ),
        Series(
            "the document of this sequence",
            "marked own",
            points=[_larger(point, span, 6) for span, point in marked if span.doc_id == lead],
        ),
    ]
    variance = float((singular[:2] ** 2).sum() / (singular**2).sum())
    return ChunkMap(charts.scatter(series, height=240), len(sampled), variance)


def _vectors(run: Run, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    files = run.steps["embed"].files(".vectors.npy")

    def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [np.load(files[shard], mmap_mode="r")[rows]]

    return lookup.by_shard(ids, load)[0].astype(np.float32)


def _by_source(sources: Sequence[str], points: Sequence[Point]) -> list[Series]:
    """Return the sampled chunks by source: the largest sources with a colour each, all others together."""
    counts = {name: sources.count(name) for name in dict.fromkeys(sources)}
    largest = sorted(counts, key=lambda name: -counts[name])[:_SOURCES]
    colours = dict(zip(largest, _SOURCE_COLOURS, strict=False))
    small = [point._replace(radius=2) for point in points]
    shown = [
        Series(
            name,
            f"map {colour}",
            points=[point for source, point in zip(sources, small, strict=True) if source == name],
        )
        for name, colour in colours.items()
    ]
    rest = [point for source, point in zip(sources, small, strict=True) if source not in colours]
    return [*shown, Series(f"{len(counts) - len(colours)} more sources", "map plain1", points=rest)] if rest else shown


def _larger(point: Point, span: Span, radius: float = 4) -> Point:
    cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
    return Point(point.x, point.y, f"{span.role}, {point.tip}{cosine}", radius)
