"""Finding the same document in several runs, against a look at every sequence."""

import pytest

import nextlong
from nextlong import pipeline
from nextlong.runs import find


def about(sequence):
    return {span.doc_id for span in sequence.spans if span.role in ("meta", "document")}


@pytest.fixture(scope="module")
def other(recipe_for, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("find") / "run"
    return pipeline.run(recipe_for(run_dir, "compose.method=standard")) and nextlong.open(run_dir)


def test_about_names_the_documents_of_each_sequence(shared_run):
    run = nextlong.open(shared_run)
    found = dict(find.about(run, first=2, most=5))
    assert list(found) == [2, 3, 4, 5, 6]
    assert {number: set(ids.tolist()) for number, ids in found.items()} == {n: about(run.sequence(n)) for n in found}


def test_the_common_document_is_one_that_both_are_about(shared_run, other):
    runs = [nextlong.open(shared_run), other]
    document, numbers = find.common_document(runs)
    assert set(numbers) == {0, 1}
    for place, number in numbers.items():
        assert document in about(runs[place].sequence(number))
        assert not any(document in about(runs[place].sequence(before)) for before in range(number))


def test_a_run_alone_has_none_in_common(shared_run):
    assert find.common_document([nextlong.open(shared_run)]) is None
