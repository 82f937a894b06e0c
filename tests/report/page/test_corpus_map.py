"""The map of a corpus: every chunk of the sequence is marked on sampled chunks."""

import re

import nextlong
from nextlong.picture.charts import Point
from nextlong.picture.pieces import CHUNK_ROLES, lead_document
from nextlong.report.page import corpus_map


def test_every_chunk_of_the_sequence_is_marked(shared_run):
    run = nextlong.open(shared_run)
    spans = run.sequence(0).spans
    lead = lead_document(spans)
    made = corpus_map.draw_map(run, spans, lead=lead)
    chunks = {span.chunk_id: span.doc_id for span in spans if span.role in CHUNK_ROLES}
    assert made["chart"].count('class="marked own" data-series') == sum(
        doc == lead for doc in chunks.values()
    )
    assert made["chart"].count('class="marked negative" data-series') == sum(
        doc != lead for doc in chunks.values()
    )
    assert 0 < made["variance"] <= 1
    assert made["sampled"] == len(re.findall('<circle class="map', made["chart"]))


def test_the_largest_of_several_sources_have_colours_and_one_source_is_grey():
    points = [Point(0, 0, "")] * 10
    shown = corpus_map._background(list("aaabbbccde"), points)
    assert [(one.name, one.colour, len(one.points)) for one in shown] == [
        ("a", "map run2", 3),
        ("b", "map run3", 3),
        ("c", "map run4", 2),
        ("2 more sources", "map plain0", 2),
    ]
    assert [one.colour for one in corpus_map._background(["a"] * 10, points)] == [
        "map plain0"
    ]
