"""The map of the corpus's vectors: every chunk of the sequence is on it, and near vectors are near."""

import re

import nextlong
from nextlong.picture.pieces import CHUNK_ROLES, lead_document
from nextlong.report.page import chunk_map


def test_every_chunk_of_the_sequence_is_marked(shared_run):
    run = nextlong.open(shared_run)
    spans = run.sequence(0).spans
    lead = lead_document(spans)
    made = chunk_map.draw(run, spans, lead=lead)
    chunks = {span.chunk_id: span.doc_id for span in spans if span.role in CHUNK_ROLES}
    assert made.chart.count('class="marked own" data-series') == sum(doc == lead for doc in chunks.values())
    assert made.chart.count('class="marked negative" data-series') == sum(doc != lead for doc in chunks.values())
    assert 0 < made.variance <= 1
    assert made.sampled == len(re.findall('<circle class="map', made.chart))


def test_samples_are_distinct_chunks_and_no_more_than_wanted(shared_run):
    run = nextlong.open(shared_run)
    ids = chunk_map.sample_chunks(run, 20)
    assert len(set(ids.tolist())) == len(ids)
    assert 0 < len(ids) <= 20 + len(run.corpus.chunks)
    assert all(run.corpus.texts(ids))
