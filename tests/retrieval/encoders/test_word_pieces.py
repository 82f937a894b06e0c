"""Mean token vectors by pieces, against the tokenizer on the whole text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bert_like_tokenizer import bert_like
from tests.support.llama_like_tokenizer import TEXT, llama_like
from tokenizers import AddedToken

from nextlong.retrieval.encoders import word_pieces
from nextlong.retrieval.encoders.word_pieces import BertWords, WordPieces, cut

PLAIN = llama_like()
# Tokens that begin in one piece and end in the next.
SPANNING = llama_like(spanning=[("e", ","), ("▁", "4"), ("d", "▁")])
SIX = [
    TEXT,
    "",
    "  two blanks, ▁ and a tab\tthen",
    "<s>The tide</s> <0x0A>",
    "日本 🙂 déjà vu ² ½ \u200b e\u0301",
    "anchors,e,harboured 44",
]


def encoder(tokenizer):
    vectors = np.random.default_rng(0).standard_normal(
        (tokenizer.get_vocab_size(), 8), np.float32
    )
    return WordPieces(tokenizer, vectors), vectors


def naive(tokenizer, vectors, text):
    """Return the mean over the ids of the whole text, one after the other."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    total = np.zeros(vectors.shape[1])
    for token_id in ids:
        total += vectors[token_id]
    return total / max(len(ids), 1)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPANNING], ids=["plain", "spanning"])
def test_six_texts(tokenizer):
    pieces, vectors = encoder(tokenizer)
    expected = [naive(tokenizer, vectors, text) for text in SIX]
    np.testing.assert_allclose(pieces.means(SIX), expected, atol=1e-5)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPANNING], ids=["plain", "spanning"])
@given(
    texts=st.lists(
        st.one_of(
            st.text("Thetid anchors,.4\n▁_(²<s>)", max_size=60), st.text(max_size=20)
        ),
        max_size=5,
    )
)
def test_any_texts(tokenizer, texts):
    pieces, vectors = encoder(tokenizer)
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    expected = [naive(tokenizer, vectors, text) for text in texts]
    found = pieces.means(texts)
    assert found.shape == (len(texts), 8)
    np.testing.assert_allclose(
        found, np.array(expected).reshape(found.shape), atol=1e-5
    )


def test_a_text_has_the_same_bits_whatever_came_before(monkeypatch):
    monkeypatch.setattr(word_pieces, "_KEPT_PIECES", 40)
    monkeypatch.setattr(word_pieces, "_BATCH_CHARS", 50)
    words = TEXT.split()
    texts = [" ".join(words[first : first + 9]) for first in range(len(words))]
    pieces, _ = encoder(PLAIN)
    together = pieces.means(texts)
    backwards = pieces.means(texts[::-1])[::-1]
    for text, first, second in zip(texts, together, backwards, strict=True):
        alone = encoder(PLAIN)[0].means([text])[0]
        assert alone.tobytes() == first.tobytes() == second.tobytes()


def test_only_tokens_of_several_pieces_keep_a_text_whole():
    plain, _ = encoder(PLAIN)
    spanning, _ = encoder(SPANNING)
    assert plain._crossing.search(TEXT) is None
    assert spanning._crossing.search("one,") is not None
    assert spanning._crossing.search("one.") is None


def test_pieces_are_runs_with_the_blanks_before_them():
    pieces, offsets = cut(["The tide,  (x_1)\n\n42 ", ""], word_pieces._kinds())
    assert [piece.decode("utf-32-le") for piece in pieces.to_pylist()] == [
        *(" The", " tide", ",", "  (", "x", "_", "1", ")", "\n", "\n", "4", "2", " "),
        " ",
    ]
    assert offsets.tolist() == [0, 13, 14]


UNCASED = bert_like()
CASED = bert_like(lowercase=False, strip_accents=False)


@pytest.mark.parametrize("tokenizer", [UNCASED, CASED], ids=["uncased", "cased"])
@pytest.mark.parametrize("kept", [3, 1 << 18])
@given(
    texts=st.lists(
        st.lists(
            st.one_of(
                st.sampled_from([*"Thetid[],.- \n\t\u0301é日本\u200b\x85", *SIX]),
                st.sampled_from(["the ", "[PAD]", "[UNK]", "[ PAD]", "cafe\u0301 "]),
                st.text(max_size=4),
            ),
            max_size=30,
        ).map("".join),
        min_size=1,
        max_size=5,
    )
)
def test_words_of_bert_have_the_ids_of_the_whole_texts(tokenizer, kept, texts):
    words = BertWords(tokenizer, np.eye(tokenizer.get_vocab_size()), unknown=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_pieces, "_KEPT_PIECES", kept)
        ids, bounds = words.token_ids(texts)
    for text, first, last in zip(texts, bounds[:-1], bounds[1:], strict=True):
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids[first:last].tolist() == [token for token in expected if token != 1]


def test_other_tokenizers_than_berts_are_not_cut():
    assert BertWords.takes(UNCASED)
    assert not BertWords.takes(PLAIN)
    assert not BertWords.takes(bert_like(handle_chinese_chars=False))
    added = bert_like()
    added.add_tokens(["the tide"])
    assert not BertWords.takes(added)
    of_words = bert_like()
    of_words.add_tokens([AddedToken("[tide]", single_word=True)])
    assert not BertWords.takes(of_words)
