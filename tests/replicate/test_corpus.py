"""The user's documents, parted: what is told where none is left."""

import pytest

from nextlong.errors import CorpusError
from nextlong.recipe.keys import Source
from nextlong.replicate import corpus
from nextlong.replicate.recipe import Corpus


def test_records_without_a_document_are_told_by_reason(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"text": ""}\n{"text": " "}\n')
    asked = Corpus(sources=(Source(path=str(tmp_path / "a.jsonl")),))
    with pytest.raises(CorpusError, match="rejected were 2 × empty, 1 × no text column; add documents, correct"):
        corpus.part(asked, corpus.stage_of(asked, tmp_path / "out"))
