"""The wording of messages about encoders and samples, in one place."""

from pathlib import Path

import numpy as np

from nextlong import recipe
from nextlong.retrieval import embed
from nextlong.retrieval.encoders.openai import OpenAIEncoder, OpenAIOptions
from nextlong.retrieval.sample import none_long_enough


def test_a_wrong_vector_names_its_chunk_and_what_to_do(monkeypatch):
    monkeypatch.setattr(embed, "chunk_names", lambda *_, **__: [("a", 1)])
    error = embed._wrong_vector(
        recipe.Encoder(model="openai:m"),
        (Path("d"), Path("c"), None),
        np.array([7]),
        "a vector of length 2 where it must be 1",
    )
    assert str(error) == (
        "encoder.model=openai:m gave a · chunk 1 a vector of length 2 where it must be 1; "
        "check the server's log, or use another model"
    )


def test_an_answer_of_a_server_is_told_with_its_url():
    encoder = OpenAIEncoder("m", OpenAIOptions(base_url="http://host/v1"))
    error = encoder._error("refused with HTTP 413", encoder._fix_of(413))
    assert str(error) == (
        "encoder.model=openai:m fails: http://host/v1/embeddings refused with HTTP 413; "
        "lower encoder.openai.batch_size"
    )


def test_a_corpus_of_short_documents_is_told_what_to_lower():
    assert str(none_long_enough("9 documents", 2, max_chars=200)) == (
        "compose.min_meta_chunks=2 is too high: none of the 9 documents has as many "
        "chunks of at most chunk.max_chars=200 characters; lower one of the two keys, "
        "or add longer documents"
    )
