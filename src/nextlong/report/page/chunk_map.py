"""Chunk map: a sample of the corpus's chunk vectors in two dimensions, with the chunks of one sequence marked.

In:  a run whose encoder made vectors. Out: a chart; "" where the run has none. The plane is that of the first two principal
components of the sample (numpy's SVD), so the map is deterministic; its caption says how much of the variance it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup

from nextlong.artifacts import lookup
from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.picture.pieces import CHUNK_ROLES
from nextlong.runs.measures import has_every_vector, sample_chunks
from nextlong.runs.run import Run
from nextlong.schemas import Span

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
    own: list[Point] = []
    others: list[Point] = []
    for chunk, point in zip(ids[len(sampled) :].tolist(), points[len(sampled) :], strict=True):
        span = of_sequence[chunk]
        cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
        is_own = span.doc_id == lead
        marked = Point(point.x, point.y, f"{span.role}, {point.tip}{cosine}", 6 if is_own else 4)
        (own if is_own else others).append(marked)
    what = "negatives" if any(span.role == "negative" for span in of_sequence.values()) else "other documents"
    series = [*background, Series(f"{what} of this sequence", "marked negative", points=others)]
    series.append(Series("the document of this sequence", "marked own", points=own))
    variance = float((singular[:2] ** 2).sum() / (singular**2).sum())
    chart = charts.scatter(
        series, height=250, x_label="first principal component", y_label="second principal component"
    )
    return ChunkMap(chart, len(sampled), variance)


def _by_source(sources: Sequence[str], points: Sequence[Point]) -> list[Series]:
    """Return the sampled chunks by source: the largest of several sources with a colour each, all others in grey."""
    counts = Counter(sources)
    largest = [name for name, _ in counts.most_common(len(SOURCE_COLOURS) if len(counts) > 1 else 0)]
    others = [name for name in counts if name not in largest]
    rest = (
        (f"{len(others)} more sources" if len(others) > 1 else "".join(others))
        if largest
        else "other chunks of the corpus"
    )
    of_series: dict[tuple[str, str], list[Point]] = {}
    colours = dict(zip(largest, SOURCE_COLOURS, strict=False))
    for name in (*largest, *others):
        shown = (name, f"map {colours[name]}") if name in colours else (rest, "map plain0")
        of_source = [point._replace(radius=2) for point, source in zip(points, sources, strict=True) if source == name]
        of_series.setdefault(shown, []).extend(of_source)
    return [Series(name, colour, points=of_series[name, colour]) for name, colour in of_series]
