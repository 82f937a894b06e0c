"""The ids of a chunk are those that Hugging Face tokenizers give it within its document."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spacing_tokenizers import MAKERS, TEXTS, byte_fallback, made, unigram
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from nextlong.artifacts.continuation import (
    contexts_of,
    continuation_ids,
    decode_within,
    ids_within,
    offsets_within,
)
from nextlong.errors import TokenizerError
from nextlong.sequences.tokenizer import train_bpe

TOKENIZERS = {name: made(name) for name in MAKERS}
# These write a newline as its byte, which no token contains, so that ids by lines are
# those of the whole text.
NEWLINE_ALONE = [
    name for name in MAKERS if name.split("-")[0] not in ("unigram", "byte")
]
PIECES = [
    "Word", " word", "  two", "\n", "\t", "é", "e\u0301", "東京", "👍🏽", "1234", ".", "</s>", "▁", "_",
    "<think>", "<tool>", " <tool> ", "<name>", " <name>", "<", "\u0378", "a b ", "ﬁ",
]  # fmt: skip


def lines_of(text):
    lines = text.splitlines(keepends=True)
    return lines, [number == 0 for number in range(len(lines))]


def whole_ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", NEWLINE_ALONE)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=20))
def test_ids_by_lines_are_those_of_the_whole_text(name, pieces):
    tokenizer = TOKENIZERS[name]
    # An added token that takes the newline beside it would belong to two lines.
    text = re.sub(r"<tool>[ \t]*\n", "<tool>.\n", "".join(pieces))
    text = re.sub(r"\n[ \t]*<tool>", "\n.<tool>", text)
    lines = [line + "\n" for line in text.split("\n")]
    begins = [number == 0 for number in range(len(lines))]
    ids = np.concatenate(ids_within(tokenizer, lines, begins)).tolist()
    assert ids == whole_ids(tokenizer, "".join(lines))


@pytest.mark.parametrize("name", MAKERS)
def test_a_document_of_one_chunk_has_the_ids_of_its_text(name):
    tokenizer = TOKENIZERS[name]
    ids = ids_within(tokenizer, TEXTS, [True] * len(TEXTS))
    assert [of.tolist() for of in ids] == [whole_ids(tokenizer, text) for text in TEXTS]


@pytest.mark.parametrize("name", MAKERS)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_a_continuation_follows_another_text_as_its_own_ids(name, pieces):
    tokenizer, text = TOKENIZERS[name], "".join(pieces)
    ids = list(continuation_ids(tokenizer, text))
    befores = ["x.", "(y)", "z?", "0"]
    wholes = [
        (whole_ids(tokenizer, before + text), whole_ids(tokenizer, before))
        for before in befores
    ]
    assert any(whole == before + ids for whole, before in wholes)


@pytest.mark.parametrize("name", MAKERS)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_offsets_of_a_continuation_are_within_its_text(name, pieces):
    tokenizer, text = TOKENIZERS[name], "".join(pieces)
    offsets = offsets_within(tokenizer, text, begins=False)
    assert len(offsets) == len(continuation_ids(tokenizer, text))
    assert ((offsets >= 0) & (offsets <= len(text))).all()


@pytest.mark.parametrize("name", ["llama2", "mistral", "always"])
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_a_continuation_decodes_to_its_text(name, pieces):
    tokenizer, text = TOKENIZERS[name], "".join(pieces).replace("▁", "")
    ids = continuation_ids(tokenizer, text)
    assert decode_within(tokenizer, ids, begins=False) == text


@pytest.mark.parametrize(
    "tokenizer",
    [train_bpe(TEXTS, vocab_size=300), byte_fallback(scheme="never")],
    ids=["byte-level", "never"],
)
def test_a_tokenizer_without_a_leading_space_needs_no_context(tokenizer):
    assert contexts_of(tokenizer) == ()
    texts = ["Word", " word"]
    ids = ids_within(tokenizer, texts, [False, False])
    assert [of.tolist() for of in ids] == [whole_ids(tokenizer, text) for text in texts]


def test_a_tokenizer_that_drops_spaces_at_the_ends_needs_no_context():
    tokenizer = unigram(scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    assert contexts_of(tokenizer) == ()


def test_a_tokenizer_whose_continuations_cannot_be_known_is_refused():
    # Only whole texts of two words are tokens.
    vocabulary = {
        "<unk>": 0,
        "▁word.\n▁Word": 1,
        "▁word.\n": 2,
        "▁Word": 3,
        "▁word.\nWord": 4,
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    with pytest.raises(TokenizerError):
        contexts_of(tokenizer)
