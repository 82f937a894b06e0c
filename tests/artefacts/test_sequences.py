import numpy as np
import pytest

import nextlong
from nextlong import pipeline
from nextlong.artefacts import finished
from nextlong.artefacts.sequences import read_references


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def test_the_index_of_a_run_names_every_sequence(run):
    index = finished.references(run.steps, run.sequences_per_part).read_index(run=3)
    ids = [f"nextlong-{key:016x}" for key in index["key"].tolist()]
    assert ids == [sequence.id for sequence in run.sequences()]
    assert set(index["run"].tolist()) == {3}
    assert index["length"].tolist() == [2048] * 12
    places = [(part, place) for part, count in enumerate(run.sequences_per_part) for place in range(count)]
    assert [(row["part"], row["place"]) for row in index] == places


def test_the_references_of_a_run_are_its_chunks(run):
    ids, offsets = read_references(run.steps["compose"].files(".sequences.arrow"), take=run.sequences_per_part)
    for number, sequence in enumerate(run.sequences()):
        expected = [span.chunk_id for span in sequence.spans if span.chunk_id != -1]
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected


def test_without_a_meta_document_the_key_is_the_first_documents_hash(recipe_for, own_run):
    pipeline.run(recipe_for(own_run, "compose.method=standard", "export.formats=[jsonl]"))
    run = nextlong.open(own_run)
    hashes = [np.load(path) for path in run.steps["ingest"].files(".hashes.npy")]
    firsts = [next(span.doc_id for span in sequence.spans if span.doc_id >= 0) for sequence in run.sequences()]
    index = finished.references(run.steps, run.sequences_per_part).read_index()
    assert index["key"].tolist() == [hashes[doc_id >> 32][doc_id & 0xFFFFFFFF] for doc_id in firsts]
