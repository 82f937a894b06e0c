"""Map: sampled chunks of a corpus in a plane, with the chunks of a sequence marked.

In:  a run that embedded all chunks, and the spans of a sequence. Out: a chart of the
first two principal components of the chunks' vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from nextlong.artifacts import corpus_files
from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.picture.pieces import CHUNK_ROLES
from nextlong.retrieval.embed import EmbedFiles
from nextlong.runs.run import Run
from nextlong.runs.statistics import common
from nextlong.schemas import Span
from nextlong.text import Json

_MAPPED: Final = 1000  # chunks of the corpus
# Neither the meta-document's orange nor the negatives' blue.
MAP_COLOURS: Final = ("run2", "run3", "run4")


def draw_map(run: Run, spans: Sequence[Span], *, lead: int) -> Json | None:
    """Return a map of sampled chunks, with those of a sequence about `lead` marked.

    The chart, how many are sampled, and the share of their variance that it shows; None
    unless the run embedded all chunks. The plane is that of the first two principal
    components of the sample, so the map is deterministic.
    """
    if not common.has_every_vector(run):
        return None
    of_sequence = {span.chunk_id: span for span in spans if span.role in CHUNK_ROLES}
    sampled = common.sample_chunks(run, _MAPPED)
    count = len(sampled)
    # (n,): the sampled chunks, then those of the sequence.
    own = np.array(sorted(of_sequence), np.int64)
    ids = np.concatenate([sampled, own])
    vectors = corpus_files.vectors(ids, EmbedFiles.of(run.steps).vectors)
    center = vectors[:count].mean(axis=0)
    # The sample alone spans the plane, so that maps of several sequences of a run have
    # the same background.
    _, singular, axes = np.linalg.svd(vectors[:count] - center, full_matrices=False)
    if len(singular) < 2 or not singular.any():
        return None
    positions = (vectors - center) @ axes[:2].T  # float32 (n, 2)

    documents = corpus_files.documents_of(ids, run.corpus.chunks)
    sources, names = corpus_files.document_columns(
        documents, run.corpus.documents, ("source", "source_id")
    )
    # Shape (n,), as `ids`.
    points = []
    for (x, y), source, name in zip(positions, sources, names, strict=True):
        points.append(Point(float(x), float(y), f"{source}: {name}"))

    drawn_spans = [of_sequence[chunk] for chunk in ids[count:].tolist()]
    marked = list(zip(drawn_spans, points[count:], strict=True))
    series = [
        *_background(sources[:count].tolist(), points[:count]),
        *_marked(marked, lead=lead),
    ]
    # Singular values squared are proportional to the variance of each component.
    variances = singular**2
    return {
        "chart": charts.scatter(
            series,
            height=250,
            x_label="first principal component",
            y_label="second principal component",
        ),
        "sampled": count,
        "variance": float(variances[:2].sum() / variances.sum()),
    }


def _marked(marked: Sequence[tuple[Span, Point]], *, lead: int) -> list[Series]:
    """Return the chunks of a sequence: those of other documents, then its own."""
    others: list[Point] = []
    own: list[Point] = []
    for span, point in marked:
        cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
        tip = f"{span.role}, {point.tip}{cosine}"
        if span.doc_id == lead:
            own.append(
                Point(
                    x=point.x,
                    y=point.y,
                    tip=tip,
                    radius=6,
                )
            )
        else:
            others.append(
                Point(
                    x=point.x,
                    y=point.y,
                    tip=tip,
                    radius=4,
                )
            )
    has_negatives = any(span.role == "negative" for span, _ in marked)
    what = "negatives" if has_negatives else "other documents"
    return [
        Series(f"{what} of this sequence", "marked negative", points=others),
        Series("the document of this sequence", "marked own", points=own),
    ]


def _background(sources: Sequence[str], points: Sequence[Point]) -> list[Series]:
    """Return the sampled chunks by source.

    The largest of several sources have a colour each, all others are grey.
    """
    counts = Counter(sources)
    colours: Mapping[str, str] = {}
    if len(counts) > 1:
        # Of a single source, a colour would say nothing.
        largest = [name for name, _ in counts.most_common(len(MAP_COLOURS))]
        colours = dict(zip(largest, MAP_COLOURS, strict=False))
    others = [name for name in counts if name not in colours]
    rest = "other chunks of the corpus"
    if colours and others:
        # A single one is named.
        rest = f"{len(others)} more sources" if len(others) > 1 else others[0]

    points_of: dict[tuple[str, str], list[Point]] = {}
    for name in (*colours, *others):
        key = (rest, "map plain0")
        if name in colours:
            key = (name, f"map {colours[name]}")
        of_source = points_of.setdefault(key, [])
        for point, source in zip(points, sources, strict=True):
            if source == name:
                of_source.append(point._replace(radius=2))
    return [
        Series(name, colour, points=of_series)
        for (name, colour), of_series in points_of.items()
    ]
