"""Sequences: one sequence of each run as a strip, about the same document where they have one in common; and near-duplicates.

In:  runs. Out: what the template draws: the document as it was, what each method made of it, a map of the corpus; and pairs of
texts of which drafting filtered one out, with the runs of three words that both hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise, zip_longest
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import DraftResult
from nextlong.picture import charts, pieces, strip
from nextlong.picture.charts import Point, Series
from nextlong.picture.pieces import CHUNK_ROLES, Frequencies
from nextlong.retrieval.embed import EmbedFiles
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as OneSequence
from nextlong.runs.statistics import common
from nextlong.schemas import Span
from nextlong.text import Json, counted

_TEXT_CHARS = 1_200_000  # of all sequences of a page together
_FEWEST_CHARS = 160  # of each text; if less fits on the page, no texts are shown
_MOST_PIECES = 20_000  # of a sequence that is drawn
_SAMPLED_TEXTS = 400  # chunks of the corpus that tell rare words from common ones


def shown(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the sequences for `page.html`; None if no run has a sequence that can be drawn.

    The document `before`, with its caption; the sequences `after`, each with heading, caption, legend, strip and the document
    that it is about; a `map` of the first run's chunks; a note on which chunk is shown `first`.
    """
    common_document = common.common_document(runs)
    chosen = []  # number of the run, its name, number of the sequence, sequence, its document by doc_id
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        if not len(run):
            continue
        number = common_document[1].get(place, 0) if common_document else 0
        sequence = run.sequence(number)
        lead = (
            common_document[0]
            if common_document and place in common_document[1]
            else pieces.lead_document(sequence.spans)
        )
        if len(sequence.spans) <= _MOST_PIECES:
            chosen.append((place, name, number, sequence, lead))
    if not chosen:
        return None
    scale = pieces.scale(
        [score for *_, sequence, _ in chosen for score in pieces.scored(sequence.spans)]
    )
    limit = _TEXT_CHARS // sum(len(sequence.spans) for *_, sequence, _ in chosen)
    is_common, is_alone = len({lead for *_, lead in chosen}) == 1, len(runs) == 1
    after = []
    for place, name, number, sequence, lead in chosen:
        spans = sequence.spans
        drawn = strip.explorer(
            spans,
            lead=lead,
            scale=scale,
            name=f"sequence-{place}",
            label=f"Sequence {number} of {name}",
            texts=_texts(runs[place], sequence, limit),
            opens="at once" if is_alone else "when chosen",
        )
        heading = (
            f"After: one sequence of exactly {len(sequence.input_ids):,} tokens"
            if is_alone
            else name
        )
        document = next((span.source_id for span in spans if span.doc_id == lead), "")
        after.append({"heading": heading, "document": document} | drawn)
    place, _, _, sequence, lead = chosen[0]
    before, caption = _before(sequence, lead) if is_common else (Markup(), "")
    return {
        "is_common": is_common,
        "before": before,
        "before_caption": caption,
        "after": after,
        "map": _draw_map(runs[place], sequence.spans, lead=lead),
        "first": pieces.EXAMPLE
        if is_alone and any(span.role == "negative" for span in sequence.spans)
        else "",
    }


def _before(sequence: OneSequence, lead: int) -> tuple[Markup, str]:
    """Return the original document as a bar, to the scale of the sequence, and its caption."""
    placed = pieces.document_before(sequence.spans, lead)
    if not placed:
        return Markup(), ""
    caption = f"{placed[0].source_id}: {counted(len(placed), 'chunk')}, {placed[-1].token_end:,} tokens"
    tokens, label = len(sequence.input_ids), f"The document before: {caption}"
    return strip.bar(
        placed, tokens=tokens, lead=lead, scale=(0, 1), label=label, short=True
    ), caption


def _texts(run: Run, sequence: OneSequence, limit: int) -> Json | None:
    """Return texts of at most `limit` characters each, with the words that they share; None if that is too short to read."""
    if limit < _FEWEST_CHARS:
        return None
    texts = [
        text if len(text) <= limit else f"{text[:limit]}…" for text in sequence.texts
    ]
    return {
        "texts": texts,
        "words": pieces.shared_with_partners(sequence.spans, texts, sampled_words(run)),
    }


def sampled_words(run: Run) -> Frequencies:
    """Return how many chunks of a sample of the corpus hold each word."""
    return pieces.frequencies(
        run.corpus.texts(common.sample_chunks(run, _SAMPLED_TEXTS)).tolist()
    )


_MAPPED: Final = 1000  # chunks of the corpus
_MAP_COLOURS: Final = (
    "run2",
    "run3",
    "run4",
)  # neither the meta-document's orange nor the negatives' blue


def _draw_map(run: Run, spans: Sequence[Span], *, lead: int) -> Json | None:
    """Return a map of sampled chunks' vectors with the chunks of a sequence about document `lead` marked.

    The chart, how many are sampled, and the share of their variance that it shows; None unless the run embedded all chunks. The
    plane is that of the first two principal components of the sample, so the map is deterministic.
    """
    if not common.has_every_vector(run):
        return None
    of_sequence = {span.chunk_id: span for span in spans if span.role in CHUNK_ROLES}
    sampled = common.sample_chunks(run, _MAPPED)
    ids = np.concatenate([sampled, np.array(sorted(of_sequence), np.int64)])
    vectors = corpus_files.vectors(ids, EmbedFiles.of(run.steps).vectors)
    center = vectors[: len(sampled)].mean(axis=0)
    # The sample alone spans the plane, so that maps of several sequences of a run have the same background.
    _, singular, axes = np.linalg.svd(
        vectors[: len(sampled)] - center, full_matrices=False
    )
    if len(singular) < 2 or not singular.any():
        return None
    places = (vectors - center) @ axes[:2].T  # float32 (n, 2)
    documents = corpus_files.documents_of(ids, run.corpus.chunks)
    sources, names = corpus_files.document_columns(
        documents, run.corpus.documents, ("source", "source_id")
    )
    points = [
        Point(float(x), float(y), f"{source}: {name}")
        for (x, y), source, name in zip(
            places, sources.tolist(), names.tolist(), strict=True
        )
    ]
    series = _background(sources[: len(sampled)].tolist(), points[: len(sampled)])
    what = (
        "negatives"
        if any(span.role == "negative" for span in of_sequence.values())
        else "other documents"
    )
    others: list[Point] = []
    own: list[Point] = []
    series.append(Series(f"{what} of this sequence", "marked negative", points=others))
    series.append(Series("the document of this sequence", "marked own", points=own))
    for chunk, point in zip(
        ids[len(sampled) :].tolist(), points[len(sampled) :], strict=True
    ):
        span = of_sequence[chunk]
        cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
        drawn, radius = (own, 6) if span.doc_id == lead else (others, 4)
        drawn.append(
            Point(point.x, point.y, f"{span.role}, {point.tip}{cosine}", radius)
        )
    labels = {
        "x_label": "first principal component",
        "y_label": "second principal component",
    }
    return {
        "chart": charts.scatter(series, height=250, **labels),
        "sampled": len(sampled),
        "variance": float((singular[:2] ** 2).sum() / (singular**2).sum()),
    }


def _background(sources: Sequence[str], points: Sequence[Point]) -> list[Series]:
    """Return the sampled chunks by source: the largest of several sources with a colour each, all others in grey."""
    counts = Counter(sources)
    largest = [
        name
        for name, _ in counts.most_common(len(_MAP_COLOURS) if len(counts) > 1 else 0)
    ]
    others = [name for name in counts if name not in largest]
    rest = f"{len(others)} more sources" if len(others) > 1 else "".join(others)
    if not largest:
        rest = "other chunks of the corpus"
    of_series: dict[tuple[str, str], list[Point]] = {}
    colours = dict(zip(largest, _MAP_COLOURS, strict=False))
    for name in (*largest, *others):
        shown = (
            (name, f"map {colours[name]}") if name in colours else (rest, "map plain0")
        )
        of_source = [
            point._replace(radius=2)
            for point, source in zip(points, sources, strict=True)
            if source == name
        ]
        of_series.setdefault(shown, []).extend(of_source)
    return [
        Series(name, colour, points=of_series[name, colour])
        for name, colour in of_series
    ]


_EXAMPLE_CHARS = 900  # of a text
_RUN = 3  # words in a row, as near-duplicates are defined by (docs/decisions/0005)
_BEFORE = 120  # characters before the first of them
_WORD = re.compile(r"\w+")


def near_duplicate_pairs(
    run: Run, *, most: int
) -> Iterator[list[tuple[str, str, list[tuple[str, bool]]]]]:
    """Yield near-duplicates that drafting filtered out, from different tasks before several of one.

    Of the chunk that was filtered out, and of the one that it repeats: a heading, the source, and what `marked` returns.
    """
    # The first example of every task, then the second of every task, and so on.
    of_tasks = (
        part.near_duplicate_examples for part in run.steps["draft"].results(DraftResult)
    )
    rounds = (one for turn in zip_longest(*of_tasks) for one in turn if one is not None)
    for chunk, first, count in islice(rounds, most):
        ids = np.array([chunk, *range(first, first + count)])
        texts = run.corpus.texts(ids).tolist()
        words = pieces.words_of(texts[0])
        nearest = max(
            range(1, len(ids)),
            key=lambda place: len(words & pieces.words_of(texts[place])),
        )
        documents = corpus_files.documents_of(ids[[0, nearest]], run.corpus.chunks)
        names = corpus_files.source_ids(documents, run.corpus.documents).tolist()
        yield list(
            zip(
                ("Filtered out", "It repeats"),
                names,
                marked([texts[0], texts[nearest]]),
                strict=True,
            )
        )


def marked(texts: Sequence[str]) -> list[list[tuple[str, bool]]]:
    """Return two texts in pieces, with whether both texts hold that piece."""
    one, other = map(_runs, texts)
    places = (
        [place for run in one.keys() & other.keys() for place in of[run]]
        for of in (one, other)
    )
    return list(map(_pieces, texts, places))


def _runs(text: str) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Return every run of three words, in lower case, and its places in the text, in characters."""
    words = list(_WORD.finditer(text))
    places_of: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place in range(len(words) - _RUN + 1):
        run = words[place : place + _RUN]
        places_of.setdefault(tuple(word[0].lower() for word in run), []).append(
            (run[0].start(), run[-1].end())
        )
    return places_of


def _pieces(text: str, places: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """Return a text, from a little before the first of the places, in pieces that they cover or do not."""
    is_covered = np.zeros(len(text), np.bool_)  # of each character, for runs overlap
    for start, end in places:
        is_covered[start:end] = True
    first = max(0, min(places)[0] - _BEFORE) if places else 0
    last = min(len(text), first + _EXAMPLE_CHARS)
    edges = [
        first,
        *(first + 1 + np.flatnonzero(np.diff(is_covered[first:last]))).tolist(),
        last,
    ]
    pieces = [
        (text[start:end], bool(is_covered[start]))
        for start, end in pairwise(edges)
        if start < end
    ]
    return [("…", False)] * bool(first) + pieces + [("…", False)] * (last < len(text))
