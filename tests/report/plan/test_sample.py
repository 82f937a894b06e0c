"""Caps and weights of sources, as a sample has them."""

import json

import pytest

from nextlong.reading.known_files import input_files
from nextlong.report.plan import sample
from planned import sources_in


def measured(recipe):
    return sample.measure(recipe, input_files(recipe)).corpus


@pytest.fixture
def two_sources(tmp_path):
    """200 documents of 100 characters, of two bytes each, in one source, 50 of 1,000 in another."""
    for name, count, text in (("small", 200, "é" * 95), ("large", 50, "b" * 995)):
        rows = [json.dumps({"text": f"{n:05d}" + text}) + "\n" for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("small", "large", "documents", "chars"),
    [
        ({}, {}, 250, 70_000),
        ({"max_documents": 10}, {}, 60, 51_000),
        ({"max_documents": 10}, {"max_chars": 5_000}, 15, 6_000),
        ({"max_documents": 900}, {"max_chars": 10}, 201, 21_000),
        ({"weight": 1.0}, {"weight": 1.0}, 220, 40_000),
        ({"weight": 1.0, "max_documents": 10}, {"weight": 3.0}, 13, 4_000),
    ],
)
def test_caps_and_weights_are_applied_to_each_source(two_sources, small, large, documents, chars):
    corpus = measured(sources_in(two_sources, ("small.jsonl", small), ("large.jsonl", large)))
    assert corpus.is_whole
    assert (corpus.documents, corpus.text_bytes) == (250, 200 * 195 + 50_000)
    assert corpus.kept_documents == pytest.approx(documents)
    assert corpus.kept_chars == pytest.approx(chars)
