"""A document that sequences of several runs are about, and sampled chunks."""

from nextlong.runs.statistics.common import common_document, sample_chunks


def test_samples_are_distinct_chunks_and_no_more_than_wanted(run):
    ids = sample_chunks(run, 20)
    assert len(set(ids.tolist())) == len(ids)
    assert 0 < len(ids) <= 20 + len(run.corpus.chunks)
    assert all(run.corpus.texts(ids))


def about(sequence):
    return {span.doc_id for span in sequence.spans if span.role in ("meta", "document")}


def test_the_common_document_is_one_that_both_are_about(run, standard_run):
    runs = [run, standard_run]
    document, numbers = common_document(runs)
    assert set(numbers) == {0, 1}
    for place, number in numbers.items():
        assert document in about(runs[place].sequence(number))
        assert not any(
            document in about(runs[place].sequence(before)) for before in range(number)
        )


def test_a_run_alone_has_none_in_common(run):
    assert common_document([run]) is None
