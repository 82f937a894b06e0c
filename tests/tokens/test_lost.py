"""How much of a text its tokens do not say: nothing in a byte-level one, capitals and unknown characters in others."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from nextlong.tokens.lost import lost_share, warning
from nextlong.tokens.tokenizer import train_bpe

TEXTS = ["The Zoë\r\n\tsaw  東京 🤗 e\u0301 \x00\n", "", "1234 <|endoftext|>"]


def words(*known, normalizer=None):
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(["[UNK]", *known])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
@pytest.mark.parametrize("decoder", [None, decoders.ByteLevel()])
def test_a_byte_level_tokenizer_loses_nothing(normalizer, decoder):
    tokenizer = train_bpe(["the the"], vocab_size=300)
    tokenizer.encode_special_tokens = True
    tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    assert lost_share(tokenizer, TEXTS) == 0


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (words("the", "star"), "the star", 0),
        (words("the", "star"), "the moon", 5),
        (words("the", "star", normalizer=normalizers.Lowercase()), "The STAR", 5),
        (words("the", "star"), "the\nstar", 1),  # a newline; the blank that joins words is not in the text
        (words("cafe", normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])), "café", 1),
        (words("[UNK]"), "abcd", 4),
    ],
)
def test_characters_that_no_token_says_are_counted(tokenizer, text, lost):
    assert lost_share(tokenizer, [text]) == pytest.approx(lost / len(text))


def test_no_text_loses_nothing():
    assert lost_share(words("the"), []) == 0


def test_the_warning_says_the_share_and_a_cure():
    assert warning(0.0) == ""
    assert warning(0.0496).startswith("loses 5.0% of the text's characters")
    assert warning(0.0496).endswith("a byte-level tokenizer loses nothing")
