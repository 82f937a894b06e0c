"""The words of the errors of the replication: where, what is wrong, and what to do."""

import pytest
from experiments.replicate.corpora import RealDocuments
from experiments.replicate.recipe import recipe_from

from nextlong.errors import CorpusError, RecipeError


def test_documents_for_a_preset_that_invents_its_corpus():
    with pytest.raises(RecipeError) as error:
        recipe_from("mechanism", out="out", sources=["a.jsonl"])
    assert str(error.value) == (
        "--preset mechanism: it invents its corpus; remove --corpus"
    )


def test_records_without_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"txt": "a"}\n{"text": ""}\n{"text": " "}\n')
    corpus = RealDocuments(sources=({"path": str(path)},))
    with pytest.raises(CorpusError) as error:
        corpus.write(tmp_path / "out")
    assert str(error.value) == (
        "corpus: of 0 documents none is in the train part (corpus.held_out=0.1); "
        "rejected: 2 × empty, 1 × no text column; add documents, correct "
        "corpus.sources, or change the share"
    )
