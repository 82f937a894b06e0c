"""Chunk map: a sample of the corpus's chunk vectors in two dimensions, with the chunks of one sequence marked.

In:  a run whose encoder made vectors. Out: a chart; "" where the run has none. The plane is that of the first two principal
components of the sample (numpy's SVD), so the map is deterministic; its caption says how much of the variance it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup

from nextlong.artifacts import lookup
from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.picture.pieces import CHUNK_ROLES
from nextlong.runs.measures import has_every_vector, sample_chunks
from nextlong.runs.run import Run, Span

_SAMPLE: Final = 1000  # chunks of the corpus
SOURCE_COLOURS: Final = ("run2", "run3", "run4")  # neither the meta-document's orange nor the negatives' blue


class ChunkMap(NamedTuple):
    """The chart, the number of sampled chunks, and the share of their variance that the two axes hold."""

    chart: Markup
    sampled: int
    variance: float


def draw(run: Run, spans: Sequence[Span], *, lead: int) -> ChunkMap | None:
    """Return the map with the chunks of a sequence about document `lead`; None unless the run embedded all chunks."""
    if not has_every_vector(run):
        return None
    of_sequence = {span.chunk_id: span for span in spans if span.role in CHUNK_ROLES}
    sampled = sample_chunks(run, _SAMPLE)
    ids = np.concatenate([sampled, np.array(sorted(of_sequence), np.int64)])
    vectors = lookup.vectors(ids, run.steps["embed"].files(".vectors.npy"))
    center = vectors[: len(sampled)].mean(axis=0)
    # The sample alone spans the plane, so that maps of several sequences of a run have the same background.
    _, singular, axes = np.linalg.svd(vectors[: len(sampled)] - center, full_matrices=False)
    if len(singular) < 2 or not singular.any():
        return None
    places = (vectors - center) @ axes[:2].T  # float32 (n, 2)
    documents = lookup.documents_of(ids, run.corpus.chunks)
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
    chart = charts.scatter(
        series, height=250, x_label="first principal component", y_label="second principal component"
    )
    return ChunkMap(chart, len(sampled), variance)


def _by_source(sources: Sequence[str], points: Sequence[Point]) -> list[Series]:
    """Return the sampled chunks by source: the largest of several sources with a colour each, all others in grey."""
    counts = {name: sources.count(name) for name in dict.fromkeys(sources)}
    largest = sorted(counts, key=lambda name: -counts[name])[: len(SOURCE_COLOURS) if len(counts) > 1 else 0]
    colours = dict(zip(largest, SOURCE_COLOURS, strict=False))
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
    others = [name for name in counts if name not in colours]
    name = (
        "other chunks of the corpus"
        if not colours
        else f"{len(others)} more sources"
        if len(others) > 1
        else "".join(others)
    )
    return [*shown, Series(name, "map plain0", points=rest)] if rest else shown


def _larger(point: Point, span: Span, radius: float = 4) -> Point:
    cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
    return Point(point.x, point.y, f"{span.role}, {point.tip}{cosine}", radius)
