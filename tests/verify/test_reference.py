"""The reference of `verify` agrees with what composing encodes, by its own code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spacing_tokenizers import MAKERS, TEXTS, made

from nextlong.artifacts.continuation import (
    decode_within,
    ids_within,
    offsets_within,
)
from nextlong.sequences.tokenizer import train_bpe
from nextlong.verify.reference import Reference

TOKENIZERS = {name: made(name) for name in MAKERS}
TOKENIZERS["no-space"] = train_bpe(TEXTS, vocab_size=300)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    texts=st.lists(
        st.text(min_size=1, max_size=12) | st.sampled_from(TEXTS),
        min_size=1,
        max_size=4,
    ),
    begins=st.booleans(),
)
def test_ids_offsets_and_texts_of_chunks(name, texts, begins):
    tokenizer = TOKENIZERS[name]
    reference = Reference(tokenizer)
    all_begin = [begins] * len(texts)
    ids = reference.ids(texts, all_begin)
    assert ids == [of.tolist() for of in ids_within(tokenizer, texts, all_begin)]
    for text, of_text, decoded in zip(
        texts, ids, reference.texts(ids, all_begin), strict=True
    ):
        expected = offsets_within(tokenizer, text, begins=begins).tolist()
        assert list(map(list, reference.offsets(text, begins=begins))) == expected
        assert decoded == decode_within(tokenizer, of_text, begins=begins)
